"""An informer, a server that does what it likes, listeners that come and go, and what each may be told.

A history is a list of steps. Each step is an action of `World` with its arguments, so that it can be
made by chance, played again, printed and shortened.
"""

import asyncio
import itertools
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import pytest

from declctl.decoding import Projection
from declctl.errors import CacheError, Expired, MalformedAnswer, ServerError, TooManyRequests, Unreachable
from declctl.informer import (
    FakeControllerSource,
    IndexBuild,
    ProcessorListener,
    ReflectorOptions,
    Registration,
    SharedIndexInformer,
    SharedProcessor,
    field_index,
)
from declctl.informer.applier import Applier
from declctl.informer.stores.indices import StaleObjects
from declctl.kit import ManualClock
from declctl.objects import FieldPath, KubeObject, Notification, ObjectView, Record
from tests.properties.folding import Folding, Handling, State, states

NAMES = "abcdefg"
NODES = ("n1", "n2", "n3", "hidden")
FAULTS: Mapping[str, Exception] = {
    "unreachable": Unreachable("connection refused"),
    "busy": TooManyRequests(429, "TooManyRequests", "slow down", retry_after=3.0),
    "broken": ServerError(500, "InternalError", "no idea"),
    "malformed": MalformedAnswer("half a line"),
    "expired": Expired(410, "Expired", "too old"),
    "bug": RuntimeError("a bug in the source"),
}
LAYOUTS: Mapping[str, Sequence[str]] = {
    "node": ["spec.nodeName"],
    "nothing": [],
    "zones": ["spec.zones", "metadata.annotations"],
}
ODD_LINES: Mapping[str, bytes] = {
    "rubbish": b"\xff{",
    "nothing": b'{"type":"ADDED","object":{}}',
    "expired": b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}',
    "broken": b'{"type":"ERROR","object":{"kind":"Status","code":500,"reason":"InternalError"}}',
    "unreadable": b'{"type":"ERROR","object":{"kind":"Status","code":500,"reason":"StoreReadError"}}',
}
ODD_BODIES: Mapping[str, bytes] = {
    "rubbish": b"<html>",
    "status": b'{"kind":"Status","apiVersion":"v1","status":"Failure","code":500}',
    "no version": b'{"kind":"PodList","metadata":{},"items":[]}',
}
LONG_ENOUGH = 400.0  # seconds in which every deadline and every back-off has passed
_DEFAULT = ReflectorOptions()
_LONGEST_RUN = 100  # turns of the loop, so that a test ends whoever runs for ever
_SMALLEST = 256  # bytes that a notification weighs at least
_MOST_LISTENERS, _MOST_HANDLERS = 4, 3

Step = tuple[str, Mapping[str, Any]]
Doing = TypeVar("Doing", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Action:
    """How often a step is of this kind, and what it may be told."""

    weight: int
    choices: Mapping[str, Sequence[Any]]


ACTIONS: dict[str, Action] = {}


def action(weight: int = 1, **choices: Sequence[Any]) -> Callable[[Doing], Doing]:
    """Makes a method of `World` a step of histories."""

    def note(method: Doing) -> Doing:
        ACTIONS[method.__name__] = Action(weight, choices)
        return method

    return note


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


def projection(layout: str) -> Projection:
    """What is decoded of a pod."""
    paths = [FieldPath.parse(path) for path in LAYOUTS[layout]]
    return Projection(api_version="v1", kind="Pod", paths=paths, transform=hide)


@contextmanager
def instrumented() -> Iterator[None]:
    """Slices so small that what happens between two of them is seen; what listeners are told is counted."""
    take = ProcessorListener.add_all

    def count_and_take(listener: ProcessorListener, notifications: Sequence[Notification]) -> None:
        if not listener.closed:
            _TOLD[listener] = _TOLD.get(listener, 0) + len(notifications)
        take(listener, notifications)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.root.manager, "disable", logging.CRITICAL)  # millions of faults on purpose
        patch.setattr(Applier, "slice_size", 2)
        patch.setattr(SharedProcessor, "slice_size", 2)
        patch.setattr(ProcessorListener, "add_all", count_and_take)
        yield


_TOLD: WeakKeyDictionary[ProcessorListener, int] = WeakKeyDictionary()


class QuickClock(ManualClock):
    """A manual clock that settles no longer than there is anybody who can run."""

    async def settle(self) -> None:
        """Let every task that can run do so, without time passing."""
        ready: Sized = asyncio.get_running_loop()._ready  # nothing public says it
        for _ in range(_LONGEST_RUN):
            await asyncio.sleep(0)
            if not ready:
                return


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a world begins: what the server can do, and how it is asked."""

    queue: Literal["RealFIFO", "DeltaFIFO"] = "RealFIFO"
    streams: bool = True
    watch_cache: bool = False
    options: ReflectorOptions = _DEFAULT

    @classmethod
    def by_chance(cls, chance: random.Random, queue: Literal["RealFIFO", "DeltaFIFO"]) -> "Beginning":
        """Any, with that queue."""
        options = ReflectorOptions(
            page_size=chance.choice([None, 1, 2, 500]),
            watch_list=chance.random() < 0.8,
            check_consistency=chance.random() < 0.2,
        )
        return cls(queue, chance.random() < 0.6, chance.random() < 0.5, options)


class World:
    """One informer and all that may happen to it. Made where a loop runs."""

    def __init__(self, beginning: "Beginning") -> None:
        self._beginning = beginning
        self.clock = QuickClock()
        self.server = FakeControllerSource(projection=projection("node"))
        self.server.streams, self.server.watch_cache = beginning.streams, beginning.watch_cache
        self.informer = self._informer()
        self.listeners: list[Folding] = []
        self.handlers: list[Handling] = []
        self.gone: list[Handling] = []
        self.builds: list[IndexBuild] = []
        self.asked: tuple[IndexBuild, StaleObjects, Sequence[Any]] | None = (
            None  # by a thread, of the first build
        )
        self.corrupted: set[str] = set()
        self.waiters: list[tuple[Registration, asyncio.Task[None]]] = []
        self.done: Counter[str] = Counter()
        self._uids = itertools.count(1)
        self.join(period=0.0)
        self.task = asyncio.create_task(self.informer.run())

    def _informer(self) -> SharedIndexInformer:
        return SharedIndexInformer(
            self.server,
            name="pods",
            clock=self.clock,
            queue=self._beginning.queue,
            options=self._beginning.options,
            indexers={"node": field_index("spec.nodeName"), "zone": zones},
        )

    async def do(self, step: Step) -> None:
        """Take a step; one that makes no sense at the moment is none."""
        name, arguments = step
        self.done[name] += 1
        result = getattr(self, name)(**arguments)
        if isinstance(result, Awaitable):
            await result

    @action(weight=10, name=NAMES, node=NODES)
    def change(self, name: str, node: str) -> None:
        there = self.server.objects.get(f"team-a/{name}")
        if there is None:
            self.server.add(pod(name, node, f"uid-{next(self._uids)}"))
        else:
            self.server.modify(pod(name, node, there["metadata"]["uid"]))

    @action(weight=3, name=NAMES)
    def delete(self, name: str) -> None:
        if f"team-a/{name}" in self.server.objects:
            self.server.delete(f"team-a/{name}")

    @action(weight=3, name=NAMES, node=NODES)
    def recreate(self, name: str, node: str) -> None:
        self.delete(name)
        self.change(name, node)

    @action(weight=8)
    async def settle(self) -> None:
        await self.clock.settle()

    @action(weight=6, times=(1, 2, 3, 5))
    async def breathe(self, times: int) -> None:
        """Whoever can run does a part of what it has to do."""
        for _ in range(times):
            await asyncio.sleep(0)

    @action(weight=6, seconds=(0.5, 1.0, 7.0, 40.0))
    async def wait(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    @action(fault=(None, *FAULTS))
    def cut(self, fault: str | None) -> None:
        self.server.cut(FAULTS[fault] if fault else None)

    @action(fault=tuple(FAULTS), verb=("list", "watch"), times=(1, 2, 3))
    def fail_next(self, fault: str, verb: str, times: int) -> None:
        self.server.fail_next(FAULTS[fault], verb=verb, times=times)

    @action(name=NAMES, node=NODES)
    def change_unseen_and_forgotten(self, name: str, node: str) -> None:
        """The watch is gone, an object is another one, and its history is compacted."""
        self.server.cut()
        self.recreate(name, node)
        self.server.compact()

    @action()
    def compact(self) -> None:
        self.server.compact()

    @action()
    def bookmark(self) -> None:
        self.server.bookmark()

    @action()
    def advance(self) -> None:
        self.server.advance()

    @action(silent=(True, False, False))
    def silence(self, silent: bool) -> None:
        self.server.silent = silent

    @action(ends=(False, True, True))
    def end_initial_events(self, ends: bool) -> None:
        self.server.ends_initial_events = ends

    @action(slams=(True, False, False))
    def slam(self, slams: bool) -> None:
        """Watches end as soon as they have told what there is."""
        self.server.slams = slams

    @action(body=(None, None, *ODD_BODIES))
    def list_oddly(self, body: str | None) -> None:
        """LISTs are answered with something else."""
        self.server.body = ODD_BODIES[body] if body else None

    @action(line=(None, None, *ODD_LINES))
    def begin_watches_oddly(self, line: str | None) -> None:
        """Every watch begins with this line."""
        self.server.first_line = ODD_LINES[line] if line else None

    @action(line=tuple(ODD_LINES))
    def tell_oddly(self, line: str) -> None:
        """A line of the history is no event, and comes again for whoever watches from before it."""
        self.server.tell(ODD_LINES[line])

    @action(name=NAMES)
    def corrupt(self, name: str) -> None:
        """An object can't be read in lists, until it is changed."""
        if f"team-a/{name}" in self.server.objects:
            self.server.corrupt(f"team-a/{name}", b'{"metadata":{"name":7}}')
            self.corrupted.add(name)

    @action(weight=2)
    async def recover(self) -> None:
        """The server behaves for a while: in a history of nothing but faults little would be told."""
        self.server.calm()
        await self.clock.advance(40.0)

    @action(layout=tuple(LAYOUTS))
    def decode_otherwise(self, layout: str) -> None:
        """What is indexed has changed: from now on other fields are decoded."""
        self.server.projection = projection(layout)

    @action(weight=2, period=(0.0, 5.0, 11.0))
    def join(self, period: float) -> None:
        if len(self.listeners) > _MOST_LISTENERS:
            return
        listener = Folding(self.informer)
        self.listeners.append(listener)
        listener.asked_for_resyncs = period > 0
        listener.registration = self.informer.add_listener(listener, resync_period=period)

    @action()
    def leave(self) -> None:
        if len(self.listeners) > 1:
            listener = self.listeners.pop()
            assert listener.registration is not None
            listener.registration.remove()
            listener.registration.remove()

    @action(period=(0.0, 3.0, 5.0))
    def retime(self, period: float) -> None:
        listener = self.listeners[-1]
        listener.asked_for_resyncs |= period > 0
        assert listener.registration is not None
        listener.registration.retime(period)

    @action()
    def replay(self) -> None:
        listener = self.listeners[0]
        listener.asked_for_resyncs = True
        self.informer.resync_now(listener)

    @action(weight=2, period=(0.0, 4.0), seconds=(0.0, 0.3, 3.0), limit=(1, 600, 3000))
    def handle(self, period: float, seconds: float, limit: int) -> None:
        """A library handler joins, whose buffer holds so many bytes until changes are merged."""
        if len(self.handlers) > _MOST_HANDLERS:
            return
        handler = Handling(self.clock)
        self.handlers.append(handler)
        handler.seconds = seconds
        handler.registration = self.informer.add_event_handler(handler, resync_period=period)
        handler.listener.queue.merge_above = limit

    @action(which=(0, 1, 2))
    def handle_no_more(self, which: int) -> None:
        if which < len(self.handlers):
            handler = self.handlers.pop(which)
            self.gone.append(handler)
            assert handler.registration is not None
            handler.registration.remove()

    @action(which=(0, 1, 2), failing=(True, False), seconds=(0.0, 0.3, 3.0))
    def behave(self, which: int, failing: bool, seconds: float) -> None:
        if which < len(self.handlers):
            self.handlers[which].failing, self.handlers[which].seconds = failing, seconds

    @action(which=(0, 1, 2))
    def wait_for_sync(self, which: int) -> None:
        """Somebody waits until a handler has dealt with the first sync."""
        if which < len(self.handlers) and len(self.waiters) < 6:
            registration = self.handlers[which].registration
            assert registration is not None
            self.waiters.append((registration, asyncio.create_task(registration.synced.wait())))

    @action()
    def wait_no_longer(self) -> None:
        if self.waiters:
            self.waiters.pop(0)[1].cancel()

    @action(name=("late", "later"))
    def begin_index(self, name: str) -> None:
        self.informer.remove_indexers([name])
        self.builds.append(self.informer.build_index(name, zones))

    @action(weight=2, budget=(1, 2, 3))
    def step_index(self, budget: int) -> None:
        self.asked = None  # a thread is asked no longer
        if self.builds and self.builds[0].step(budget):
            self.builds.pop(0)

    @action(weight=2, most=(1, 2, 3))
    def ask_for_index(self, most: int) -> None:
        """A thread is asked about some objects as they are now; its answers come later."""
        if self.builds and self.asked is None:
            stale_objects = self.builds[0].stale_objects(most)
            self.asked = self.builds[0], stale_objects, self.builds[0].compute(stale_objects)

    @action(weight=2)
    def enter_into_index(self) -> None:
        """The answers come, about objects that may have changed; the index is read once none is stale."""
        if self.asked is not None:
            build, stale_objects, values = self.asked
            self.asked = None
            build.enter(stale_objects, values)
            if not build.stale:
                build.finish()
                self.builds.remove(build)

    def count(self, happened: Counter[str]) -> None:
        """Add up what became of it."""
        figures = self.informer.statistics()
        happened.update(
            {
                "lists": figures.lists,
                "watches": figures.watches,
                "faults": figures.failures,
                "silent watches": figures.idle_closes,
                "events": sum(figures.events.values()),
                "told": sum(len(listener.told) for listener in self.listeners),
            }
        )
        for handler in (*self.handlers, *self.gone):
            told = handler.listener.statistics()
            happened.update(
                {
                    "delivered": told.delivered,
                    "failed": told.failed,
                    "merged": told.merged,
                    "dropped": told.dropped,
                }
            )

    def check_after(self) -> None:
        """What a stop must not have changed."""
        for handler in (*self.handlers, *self.gone):
            assert not handler.wrong, handler.wrong
        for listener in self.listeners:
            assert not listener.wrong, listener.wrong

    def check(self) -> None:
        """What holds at every moment."""
        for listener in self.listeners:
            assert not listener.wrong, listener.wrong
            assert listener.asked_for_resyncs or not listener.resyncs
        for handler in (*self.handlers, *self.gone):
            assert not handler.wrong, handler.wrong
            figures = handler.listener.statistics()
            told = _TOLD.get(handler.listener, 0)
            assert told == figures.delivered + figures.merged + figures.dropped + figures.waiting
            # Beyond its limit a buffer holds, of each key, what runs, a delete and an add at most.
            held = handler.listener.queue.merge_above // _SMALLEST + 1 + 3 * len(NAMES)
            assert figures.waiting <= held
        assert self.informer.processor.faults == 0
        assert not self.task.done()

    def check_indexes(self) -> None:
        """The indexes are what a look at every record gives."""
        indexer = self.informer.indexer
        records = indexer.list()
        readers: dict[str, Callable[[Record], Sequence[str]]]
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

    async def calm_down(self) -> None:
        """The server behaves again, handlers hurry, and all that was under way comes to its end."""
        self.server.calm()
        for name in sorted(self.corrupted):
            self.change(name, "n1")
        for handler in self.handlers:
            handler.seconds, handler.failing = 0.0, False
        self.server.bookmark()
        await self.clock.advance(LONG_ENOUGH)
        for _ in range(20):
            await self.clock.settle()

    def check_at_rest(self) -> None:
        """The cache is what the server has, and everybody knows it."""
        wanted = seen(self.server.objects)
        assert states({record.key: record for record in self.informer.indexer.list()}) == wanted
        for listener in self.listeners:
            assert states(listener.view) == wanted
            assert listener.registration is not None
            assert listener.registration.has_synced
        for handler in self.handlers:
            assert handler.view == wanted
            assert handler.registration is not None
            assert handler.registration.has_synced
            figures = handler.listener.statistics()
            assert (figures.waiting, figures.dropped) == (0, 0)
            assert (figures.delivered, figures.failed) == (handler.calls, handler.raised)
        for registration, waiter in self.waiters:
            assert waiter.done() or registration.removed
        figures = self.informer.statistics()
        assert figures.synced
        assert figures.error is None
        assert figures.state == "Watching"
        assert self.server.open_watches == 1

    async def stop(self) -> None:
        """The informer stops and leaves nothing behind; another one begins where it ended."""
        for _, waiter in self.waiters:
            waiter.cancel()
        await self._end(self.task)
        with pytest.raises(CacheError):
            await self.informer.run()
        with pytest.raises(CacheError):
            self.informer.add_listener(Folding(self.informer))
        again = self._informer()
        listener = Folding(again)
        listener.registration = again.add_listener(listener)
        running = asyncio.create_task(again.run())
        for _ in range(8):
            await self.clock.settle()
        assert not listener.wrong, listener.wrong
        assert states(listener.view) == seen(self.server.objects)
        await self._end(running)

    async def _end(self, running: "asyncio.Task[None]") -> None:
        running.cancel()
        await asyncio.wait([running])
        await self.clock.advance(
            max((handler.seconds for handler in self.gone), default=0.0)
        )  # what runs ends
        await self.clock.settle()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"left behind: {left}"
        assert self.server.open_watches == 0


def seen(objects: Mapping[str, KubeObject]) -> dict[str, State]:
    """What of the server's objects gets past the transform: uid and version by key."""
    return {
        key: (obj["metadata"]["uid"], obj["metadata"]["resourceVersion"])
        for key, obj in objects.items()
        if obj["spec"]["nodeName"] != "hidden"
    }
