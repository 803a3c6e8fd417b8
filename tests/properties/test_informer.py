"""The informer against a server that changes, breaks off and forgets as it likes, and a model that folds.

Whatever happens, each listener's notifications add up to the store, the store to the server, and
the indexes to what a look at every record gives.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from declctl.errors import Expired, MalformedAnswer, ServerError, TooManyRequests, Unreachable
from declctl.informer import (
    FakeControllerSource,
    IndexBuild,
    ReflectorOptions,
    Registration,
    SharedIndexInformer,
    applying,
    field_index,
    processor,
)
from declctl.kit import ManualClock
from declctl.objects import (
    ChangeReason,
    ChangeType,
    FieldPath,
    KubeObject,
    Notification,
    ObjectView,
    Projection,
    Record,
)

NAMES = st.sampled_from("abcdefg")
NODES = st.sampled_from(["n1", "n2", "n3", "hidden"])
QUEUES = st.sampled_from(["RealFIFO", "DeltaFIFO"])
FAULTS = st.sampled_from(
    [
        Unreachable("connection refused"),
        TooManyRequests(429, "TooManyRequests", "slow down", retry_after=3.0),
        ServerError(500, "InternalError", "no idea"),
        MalformedAnswer("half a line"),
        Expired(410, "Expired", "too old"),
        RuntimeError("a bug in the source"),
    ]
)
LONG_ENOUGH = 400.0  # seconds in which every deadline and every back-off has passed


def pod(name: str, node: str, uid: str) -> KubeObject:
    """A pod; the zone follows from its node, and one on node `hidden` is dropped by the transform."""
    zones = {"n1": ["z1", ""], "n2": ["z1", "z2"], "n3": []}
    return {
        "metadata": {"namespace": "team-a", "name": name, "uid": uid},
        "spec": {"nodeName": node, "zones": zones.get(node, [])},
    }


def hide(obj: KubeObject) -> KubeObject | None:
    """The transform."""
    return None if obj["spec"]["nodeName"] == "hidden" else obj


def zones(obj: ObjectView) -> Sequence[str]:
    """An index function with several values, an empty one among them, and none."""
    return obj["spec"]["zones"]


class Folding:
    """A listener that keeps what it was told as a cache of its own, and notes what does not fit."""

    def __init__(self, informer: SharedIndexInformer) -> None:
        self.informer = informer
        self.registration: Registration | None = None
        self.view: dict[str, Record] = {}
        self.wrong: list[str] = []
        self.told: list[tuple[ChangeType, str, str]] = []
        self.resyncs = 0
        self.asked_for_resyncs = False

    def add_all(self, notifications: Sequence[Notification]) -> None:
        for each in notifications:
            self.told.append((each.type, each.record.key, each.record.resource_version))
            fault = self._fold(each)
            if fault:
                self.wrong.append(f"{fault}: {each.type} {each.record.key} {each.record.resource_version}")
        registration = self.registration
        if registration is not None and registration.pending is None and self.view != self._stored():
            self.wrong.append(f"told {sorted(self.view)}, stored {sorted(self._stored())}")

    def _fold(self, each: Notification) -> str | None:
        key, record, held = each.record.key, each.record, self.view.get(each.record.key)
        match each.type:
            case ChangeType.ADDED:
                self.view[key] = record
                if each.initial is not (each.reason is ChangeReason.INITIAL):
                    return "initial and reason differ"
                return "it is there already" if held is not None else None
            case ChangeType.MODIFIED:
                self.view[key] = record
                if held is None or held is not each.old:
                    return "the old state is not what was told last"
                if held.uid != record.uid:
                    return "another object"
                newer = int(record.resource_version) > int(held.resource_version)
                return None if newer else "not newer"
            case ChangeType.DELETED:
                self.view.pop(key, None)
                if held is None or held.uid != record.uid:
                    return "never told"
                return "not the last known state" if each.final_state_unknown and held is not record else None
            case ChangeType.RESYNC:
                self.resyncs += 1
                return None if held is record else "not what was told last"

    def _stored(self) -> dict[str, Record]:
        return {record.key: record for record in self.informer.indexer.list()}


class InformerMachine(RuleBasedStateMachine):
    """Everything that may happen to an informer, in any order."""

    @initialize(queue=QUEUES, streams=st.booleans(), page=st.sampled_from([1, 2, 500]))
    def start(self, queue: Any, streams: bool, page: int) -> None:
        self.patch = pytest.MonkeyPatch()
        # Slices so small that what happens between two of them is seen.
        self.patch.setattr(applying, "_SLICE", 2)
        self.patch.setattr(processor, "_SLICE", 2)
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.server = FakeControllerSource(
            projection=Projection(
                api_version="v1", kind="Pod", paths=[FieldPath.parse("spec.nodeName")], transform=hide
            )
        )
        self.server.streams = streams
        self.informer = SharedIndexInformer(
            self.server,
            name="pods",
            clock=self.clock,
            queue=queue,
            options=ReflectorOptions(page_size=page),
            indexers={"node": field_index("spec.nodeName"), "zone": zones},
        )
        self.listeners: list[Folding] = []
        self.builds: list[IndexBuild] = []
        self.uids = 0
        self.join(period=0.0)
        self.task = self.loop.create_task(self.informer.run())

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(work)

    @rule(name=NAMES, node=NODES)
    def change(self, name: str, node: str) -> None:
        there = self.server.objects.get(f"team-a/{name}")
        if there is None:
            self.uids += 1
            self.server.add(pod(name, node, f"uid-{self.uids}"))
        else:
            self.server.modify(pod(name, node, there["metadata"]["uid"]))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if f"team-a/{name}" in self.server.objects:
            self.server.delete(f"team-a/{name}")

    @rule(name=NAMES, node=NODES)
    def recreate(self, name: str, node: str) -> None:
        self.delete(name)
        self.change(name, node)

    @rule()
    def settle(self) -> None:
        self.do(self.clock.settle())

    @rule(seconds=st.sampled_from([0.5, 1.0, 7.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.do(self.clock.advance(seconds))

    @rule(fault=st.none() | FAULTS)
    def cut(self, fault: Exception | None) -> None:
        self.server.cut(fault)

    @rule(fault=FAULTS, verb=st.sampled_from(["list", "watch"]), times=st.integers(1, 3))
    def fail_next(self, fault: Exception, verb: str, times: int) -> None:
        self.server.fail_next(fault, verb=verb, times=times)

    @rule(name=NAMES, node=NODES)
    def change_unseen_and_forgotten(self, name: str, node: str) -> None:
        """The watch is gone, an object is another one, and its history is compacted."""
        self.server.cut()
        self.recreate(name, node)
        self.server.compact()

    @rule()
    def compact(self) -> None:
        self.server.compact()

    @rule()
    def bookmark(self) -> None:
        self.server.bookmark()

    @rule()
    def advance(self) -> None:
        self.server.advance()

    @rule(silent=st.booleans())
    def silence(self, silent: bool) -> None:
        self.server.silent = silent

    @rule(ends=st.booleans())
    def no_end_of_initial_events(self, ends: bool) -> None:
        self.server.ends_initial_events = ends

    @precondition(lambda self: len(self.listeners) < 5)
    @rule(period=st.sampled_from([0.0, 5.0, 11.0]))
    def join(self, period: float) -> None:
        async def now() -> None:
            listener = Folding(self.informer)
            self.listeners.append(listener)
            listener.asked_for_resyncs = period > 0
            listener.registration = self.informer.add_listener(listener, resync_period=period)

        self.do(now())

    @precondition(lambda self: len(self.listeners) > 1)
    @rule()
    def leave(self) -> None:
        listener = self.listeners.pop()
        assert listener.registration is not None
        listener.registration.remove()
        listener.registration.remove()

    @rule(period=st.sampled_from([0.0, 3.0, 5.0]))
    def retime(self, period: float) -> None:
        listener = self.listeners[-1]
        listener.asked_for_resyncs |= period > 0
        assert listener.registration is not None
        listener.registration.retime(period)

    @rule(name=st.sampled_from(["late", "later"]))
    def begin_index(self, name: str) -> None:
        self.informer.remove_indexers([name])
        self.builds.append(self.informer.build_index(name, zones))

    @precondition(lambda self: self.builds)
    @rule(budget=st.integers(1, 3))
    def step_index(self, budget: int) -> None:
        if self.builds[0].step(budget):
            self.builds.pop(0)

    @invariant()
    def nothing_was_told_wrongly(self) -> None:
        for listener in self.listeners:
            assert listener.wrong == []
            assert listener.asked_for_resyncs or not listener.resyncs
        assert self.informer.processor.faults == 0
        assert not self.task.done()

    @invariant()
    def indexes_are_what_a_look_at_everything_gives(self) -> None:
        indexer = self.informer.indexer
        records = indexer.list()
        readers = dict.fromkeys(["zone", "late", "later"], lambda r: zones(ObjectView(r)))
        readers["node"] = lambda r: [ObjectView(r)["spec"]["nodeName"]]
        for name in indexer.get_indexers():
            expected: dict[str, dict[str, Record]] = {}
            for record in records:
                for value in readers[name](record):
                    expected.setdefault(value, {})[record.key] = record
            assert set(indexer.list_index_func_values(name)) == set(expected)
            for value, found in expected.items():
                assert {r.key: r for r in indexer.by_index(name, value)} == found
                assert set(indexer.index_keys(name, value)) == set(found)

    def teardown(self) -> None:
        if not hasattr(self, "task"):
            return
        try:
            self.do(self._calm_down())
            self.nothing_was_told_wrongly()
            self.indexes_are_what_a_look_at_everything_gives()
            self._everything_agrees()
        finally:
            self.task.cancel()
            self.loop.run_until_complete(asyncio.wait([self.task]))
            self.loop.close()
            self.patch.undo()

    async def _calm_down(self) -> None:
        self.server.silent, self.server.ends_initial_events = False, True
        for faults in self.server._faults.values():
            faults.clear()
        self.server.bookmark()
        await self.clock.advance(LONG_ENOUGH)
        for _ in range(20):
            await self.clock.settle()

    def _everything_agrees(self) -> None:
        wanted = _seen(self.server.objects)
        assert _versions(self.informer.indexer.list()) == wanted
        for listener in self.listeners:
            assert _versions(listener.view.values()) == wanted
            assert listener.registration is not None
            assert listener.registration.has_synced
        figures = self.informer.statistics()
        assert figures.synced
        assert figures.error is None
        assert figures.state == "Watching"
        assert self.server.open_watches == 1


def _seen(objects: Mapping[str, KubeObject]) -> dict[str, tuple[str, str]]:
    """What of the server's objects gets past the transform: uid and version by key."""
    return {
        key: (obj["metadata"]["uid"], obj["metadata"]["resourceVersion"])
        for key, obj in objects.items()
        if obj["spec"]["nodeName"] != "hidden"
    }


def _versions(records: Iterable[Record]) -> dict[str, tuple[str, str]]:
    return {record.key: (record.uid, record.resource_version) for record in records}


TestInformer = InformerMachine.TestCase
TestInformer.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("queue", ["RealFIFO", "DeltaFIFO"])
@given(
    changes=st.lists(st.tuples(NAMES, st.sampled_from(["put", "put", "delete"])), max_size=40),
    pauses=st.sets(st.integers(0, 40)),
)
@settings(max_examples=60, deadline=None)
def test_every_change_is_told_once_and_in_order(queue, changes, pauses):
    """While a watch lasts, a listener hears every change of each object, once and in its order."""

    async def scenario() -> None:
        clock, server = ManualClock(), FakeControllerSource()
        informer = SharedIndexInformer(server, name="pods", clock=clock, queue=queue)
        listener = Folding(informer)
        listener.registration = informer.add_listener(listener)
        task = asyncio.create_task(informer.run())
        await clock.settle()
        expected: list[tuple[ChangeType, str, str]] = []
        for number, (name, what) in enumerate(changes):
            there = f"team-a/{name}" in server.objects
            if what == "put":
                put = server.modify if there else server.add
                stored = put({"metadata": {"namespace": "team-a", "name": name}})
                kind = ChangeType.MODIFIED if there else ChangeType.ADDED
                expected.append((kind, f"team-a/{name}", stored["metadata"]["resourceVersion"]))
            elif there:
                stored = server.delete(f"team-a/{name}")
                expected.append((ChangeType.DELETED, f"team-a/{name}", stored["metadata"]["resourceVersion"]))
            if number in pauses:
                await clock.settle()
        for _ in range(3):
            await clock.settle()
        task.cancel()
        await asyncio.wait([task])

        assert listener.wrong == []
        if queue == "RealFIFO":
            assert listener.told == expected
        else:  # in order for each key
            assert sorted(listener.told, key=lambda t: t[1]) == sorted(expected, key=lambda t: t[1])

    asyncio.run(scenario())
