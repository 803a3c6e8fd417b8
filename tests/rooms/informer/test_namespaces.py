"""An informer of the namespaces of a set: they come and go, and one cache has the objects of all of them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declctl.decoding import Projection
from declctl.errors import Forbidden, NotFound, Unreachable
from declctl.informer import FakeControllerSource, SharedIndexInformer, field_index
from declctl.informer.applier import NamespacedApplier
from declctl.informer.controller import Config, Controller
from declctl.informer.queues.namespaced_fifo import NamespacedFIFO
from declctl.informer.queues.real_fifo import Bookmark, Departure, RealFIFO, Replacement
from declctl.informer.reflector.namespaces import DELETED_SECONDS, NamespaceStatistics, SourcesByNamespace
from declctl.informer.stores.thread_safe_store import Indexer
from declctl.kit import ManualClock
from declctl.objects import Delta, DeltaType
from tests.rooms.informer.shapes import Recorder, fresh_projection, pod, record, rest, running

FORBIDDEN = Forbidden(403, "Forbidden", "not here")


class Spaces:
    """The namespaces that match, as the test says."""

    selector = "team=web"

    def __init__(self, *names: str) -> None:
        self.names: frozenset[str] | None = frozenset(names)
        self.fault: Exception | None = None
        self.resource_version = "1"
        self.deleted: set[str] = set()
        self.calls: list[Callable[[], None]] = []

    def was_deleted(self, name: str) -> bool:
        return name in self.deleted

    def join(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def leave(self, call: Callable[[], None]) -> None:
        self.calls.remove(call)

    def become(self, *names: str, deleted: Sequence[str] = ()) -> None:
        """Other namespaces match; the deleted ones are gone from the cluster."""
        self.names = frozenset(names)
        self.deleted = set(deleted)
        self.tell()

    def tell(self) -> None:
        for call in self.calls:
            call()


class World:
    """A server of pods by namespace, an informer of some namespaces, and a listener."""

    def __init__(self, *names: str, projection: Projection | None = None) -> None:
        self.clock = ManualClock()
        self.spaces = Spaces(*names)
        self.projection = projection or fresh_projection()
        self.servers: dict[str, FakeControllerSource] = {}
        self.opened: list[str] = []
        self.source = SourcesByNamespace(
            self._open, projection=self.projection, namespaces=self.spaces, description="pods"
        )
        self.informer = SharedIndexInformer(
            self.source, name="pods", clock=self.clock, indexers={"byNode": field_index("spec.nodeName")}
        )
        self.listener = Recorder()
        self.informer.add_listener(self.listener)

    def server(self, namespace: str) -> FakeControllerSource:
        return self.servers.setdefault(namespace, FakeControllerSource(projection=self.projection))

    def add(self, namespace: str, name: str = "web", **more: Any) -> None:
        self.server(namespace).add(pod(name, namespace=namespace, **more))

    @property
    def figures(self) -> NamespaceStatistics:
        found = self.informer.statistics().namespaces
        assert found is not None
        return found

    @property
    def keys(self) -> list[str]:
        return sorted(self.informer.indexer.list_keys())

    def heard(self) -> list[tuple[str, str, str]]:
        """Type, key and reason of what the listener was told since the last call."""
        told = [(str(n.type), n.key, str(n.reason)) for n in self.listener.told]
        self.listener.clear()
        return told

    @contextlib.asynccontextmanager
    async def runs(self) -> AsyncIterator["World"]:
        async with running(self.informer, self.clock):
            yield self
        assert self.spaces.calls == []
        assert all(server.open_watches == 0 for server in self.servers.values())

    async def become(self, *names: str, deleted: Sequence[str] = ()) -> None:
        self.spaces.become(*names, deleted=deleted)
        await rest(self.clock)

    def _open(self, namespace: str, projection: Projection) -> FakeControllerSource:
        self.opened.append(namespace)
        server = self.server(namespace)
        server.projection = projection
        return server


async def test_namespaces_come_and_go():
    """Objects of a namespace that comes are Added; those of one that leaves are Deleted, out of scope.

    A resync has the objects of all namespaces, and none of one that has left. An empty set has synced:
    nothing is listed, and reads find nothing instead of raising NotSynced.
    """
    world = World()
    world.add("a")
    world.add("c")
    async with world.runs():
        assert world.informer.has_synced
        assert world.informer.lister.list() == []
        assert (world.informer.statistics().state, world.opened) == ("NoNamespaces", [])
        await world.become("a", "b")
        assert world.heard() == [("Added", "a/web", "Initial")]
        await world.become("a", "c")
        assert world.heard() == [("Added", "c/web", "Initial")]
        assert world.listener.faults == []
        await world.become("c")
        assert world.heard() == [("Deleted", "a/web", "OutOfScope")]
        assert world.server("a").open_watches == 0
        world.add("a", "unseen")
        world.add("c", "seen")
        await rest(world.clock)
        assert world.heard() == [("Added", "c/seen", "Watch")]
        world.informer.resync_now(world.listener)
        await rest(world.clock)
        assert world.heard() == [("Resync", "c/web", "Resync"), ("Resync", "c/seen", "Resync")]
        figures = world.figures
        assert (figures.names, figures.entered, figures.left, figures.unlisted) == (["c"], 3, 2, 0)


async def test_the_first_sync_waits_for_all_namespaces_of_the_beginning():
    """One that fails holds it up until it is listed or leaves; one that comes later never does."""
    world = World("a", "b")
    world.server("b").fail_next(FORBIDDEN, verb="list", times=1000)
    world.server("b").streams = False
    async with world.runs():
        assert not world.informer.has_synced
        assert "not here" in world.informer.why_not_synced()
        assert isinstance(world.informer.fault, Forbidden)
        await world.become("a")
        assert world.informer.has_synced
        assert world.informer.fault is None
        await world.become("a", "b")
        statistics = world.informer.statistics()
        assert (statistics.synced, statistics.forbidden, world.figures.unlisted) == (True, True, 1)
        assert "not here" in (statistics.error or "")


async def test_before_the_set_is_known_nothing_is_read():
    """The reason is that of the namespaces; it is over when they are known."""
    world = World()
    world.spaces.names, world.spaces.fault = None, FORBIDDEN
    faults: list[Exception] = []
    world.informer.set_watch_error_handler(faults.append)
    async with world.runs():
        assert not world.informer.has_synced
        assert faults == [FORBIDDEN]
        error = world.informer.statistics().error or ""
        assert error.startswith("namespaces with team=web: ")
        assert 'the rule {apiGroups: [""], resources: [namespaces], verbs: [list, watch]}' in error
        assert world.informer.why_not_synced() == error
        world.spaces.fault = None
        assert "are not known yet" in world.informer.why_not_synced()
        await world.become("a")
        assert world.informer.has_synced
        # A fault of the set later on is shown, and stops nothing.
        world.spaces.fault = Unreachable("no answer")
        world.spaces.tell()
        await rest(world.clock)
        assert "no answer" in (world.informer.statistics().error or "")
        world.add("a")
        await rest(world.clock)
        assert world.keys == ["a/web"]
        assert len(faults) == 2


async def test_a_kind_that_is_missing_is_missing_in_all_namespaces():
    """Handlers do not wait for a kind that the server does not serve, but for one namespace they do."""
    world, missing = World("a", "b"), NotFound(404, "NotFound", "no such kind")
    for name in ("a", "b"):
        world.server(name).streams = False
    world.server("a").fail_next(missing, verb="list", times=1000)
    async with world.runs():
        assert world.informer.fault is None
        assert not world.informer.statistics().missing
        await world.become("a")
        assert world.informer.fault is missing
        assert world.informer.statistics().missing


@pytest.mark.parametrize("by_its_watch", [True, False])
async def test_a_deleted_namespace_leaves_when_it_is_empty_or_after_some_seconds(by_its_watch):
    """The deletes of its objects come by its own watch, which may be later than that of namespaces.

    If it brings none, what is left goes out of scope.
    """
    world = World("a")
    world.add("a")
    async with world.runs():
        world.heard()
        await world.become(deleted=["a"])
        await world.clock.advance(DELETED_SECONDS - 1)
        assert (world.heard(), world.figures.names) == ([], ["a"])
        if by_its_watch:
            world.server("a").delete("a/web")
        await world.clock.advance(0.9 if by_its_watch else 2)
        assert world.heard() == [("Deleted", "a/web", "Watch" if by_its_watch else "OutOfScope")]
        assert world.figures.names == []


async def test_a_namespace_that_is_made_again_keeps_its_watch():
    """It comes back before it was empty: nothing is listed anew, and a later wait is a new one."""
    world = World("a")
    world.add("a")
    async with world.runs():
        await world.become(deleted=["a"])
        await world.clock.advance(DELETED_SECONDS - 1)
        await world.become("a")
        await world.clock.advance(2 * DELETED_SECONDS)
        assert (world.opened, world.keys) == (["a"], ["a/web"])
        await world.become(deleted=["a"])
        await world.clock.advance(DELETED_SECONDS - 1)
        assert world.keys == ["a/web"]


async def test_the_store_is_at_the_version_of_the_namespace_that_lags():
    """A reader of a version finds all changes up to it, in every namespace."""
    world = World("a", "b")
    for _ in range(5):
        world.server("a").advance()
    world.add("b")
    async with world.runs():
        store = world.informer.indexer
        newest, lowest = world.server("a").resource_version, world.server("b").resource_version
        assert int(newest) > int(lowest)
        assert store.last_store_sync_resource_version == lowest
        assert world.informer.newest_store_version == newest
        assert (world.informer.version_in("a"), world.informer.version_in("b")) == (newest, lowest)
        assert world.informer.last_sync_resource_version == newest
        assert (world.informer.version_in("c"), world.informer.version_in(None)) == (None, None)
        assert (world.informer.follows("b"), world.informer.follows("c")) == (True, False)
        left: list[Sequence[str] | None] = []
        world.informer.observe(left.append)
        await world.become("a")
        assert left == [None]  # any key
        assert store.last_store_sync_resource_version == newest
        assert world.informer.version_in("b") is None
        await world.become()
        assert store.last_store_sync_resource_version == world.informer.newest_store_version == ""


async def test_a_list_that_is_asked_for_is_one_in_each_namespace():
    """What it finds is compared with the objects of its own namespace alone."""
    world = World("a", "b")
    world.add("a")
    world.add("b")
    async with world.runs():
        before = world.informer.statistics()
        world.heard()
        world.informer.request_relist()
        await rest(world.clock)
        await world.clock.advance(5)
        after = world.informer.statistics()
        assert after.lists - before.lists == 2
        assert after.relists - before.relists == 2
        assert world.heard() == []
        # The counts stay when a namespace leaves.
        await world.become("a")
        assert world.informer.statistics().lists == after.lists


async def test_another_projection_is_that_of_all_namespaces():
    """Also of those that come later: their records have the fields that an index reads."""
    world = World("a")
    world.add("a", node="n1")
    async with world.runs():
        other = fresh_projection()
        world.informer.reproject(other)
        world.server("a").cut()  # the next watch of the fake has the new one
        await world.clock.advance(5)
        await world.become("a", "b")
        world.add("a", "second", node="n1")
        world.add("b", node="n1")
        await rest(world.clock)
        found = {record.key: record.layout for record in world.informer.indexer.list()}
        assert found["a/second"] is found["b/web"] is other.layout
        assert len(world.informer.lister.by_index("byNode", "n1")) == 3
        assert [each.key for each in world.informer.lister.list(namespace="b")] == ["b/web"]


_NAMES = st.sampled_from(["a", "b", "c"])
_STEPS = st.one_of(
    st.tuples(st.sampled_from(["enter", "leave", "drop", "cut", "compact", "replace"]), _NAMES, st.just("")),
    st.tuples(st.sampled_from(["add", "modify", "delete"]), _NAMES, st.sampled_from(["x", "y"])),
    st.tuples(st.just("wait"), st.sampled_from(["0.05", "1", "20"]), st.just("")),
    st.tuples(st.just("settle"), st.just(""), st.just("")),
)


def _disturb(world: World, what: str, space: str) -> None:
    """A namespace comes, leaves or is deleted; or its watch breaks off; or its objects are made again."""
    server, names = world.server(space), world.spaces.names or frozenset()
    match what:
        case "enter":
            world.spaces.become(*names, space)
        case "leave":
            world.spaces.become(*(names - {space}))
        case "drop":
            for there in server.objects:
                server.delete(there)
            world.spaces.become(*(names - {space}), deleted=[space])
        case "replace":
            for there in server.objects:
                server.add(pod(server.delete(there)["metadata"]["name"], namespace=space))
        case _:
            server.cut()
            if what == "compact":
                server.compact()


def _change(server: FakeControllerSource, what: str, space: str, name: str) -> None:
    key = f"{space}/{name}"
    if what == "add" and key not in server.objects:
        server.add(pod(name, namespace=space))
    elif what == "modify" and key in server.objects:
        server.modify(pod(name, namespace=space))
    elif what == "delete" and key in server.objects:
        server.delete(key)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(_STEPS, max_size=40), first=st.sets(_NAMES))
def test_whatever_comes_and_goes_cache_and_listener_agree_with_the_server(steps, first):
    """No object is told twice, none is deleted that was not told, and at rest the cache has what is there."""
    world = World(*first)

    async def scenario() -> None:
        async with world.runs():
            for what, space, name in steps:
                if what == "wait":
                    await world.clock.advance(float(space))
                elif what == "settle":
                    await rest(world.clock)
                elif name:
                    _change(world.server(space), what, space, name)
                else:
                    _disturb(world, what, space)
            await rest(world.clock)
            await world.clock.advance(120)
            await rest(world.clock)
            present = world.spaces.names or frozenset()
            wanted = sorted(key for name in present for key in world.server(name).objects)
            assert world.keys == wanted
            assert sorted(world.listener.folded) == wanted
            assert world.listener.faults == []
            assert world.figures.names == sorted(present)
            for name in "abc":
                listed = [each.key for each in world.informer.lister.list(namespace=name)]
                assert sorted(listed) == [key for key in wanted if key.startswith(f"{name}/")]

    asyncio.run(scenario())


# The parts


def test_the_queue_has_synced_when_the_first_lists_are_processed():
    """Of the namespaces of the beginning, in any order; changes and departures count as they come."""
    queue = NamespacedFIFO()
    queue.of("later").replace((), "1")
    queue.processed(queue.pop_batch_nowait(10))
    assert not queue.has_synced  # the namespaces are not known yet
    queue.expect(["a", "b"])
    queue.of("b").extend([Delta(DeltaType.ADDED, "b/x", record("x", namespace="b"))])
    queue.of("a").replace((), "2")
    while batch := queue.pop_batch_nowait(10):
        queue.processed(batch)
    assert not queue.has_synced
    queue.depart(Departure("b"))
    queue.processed(queue.pop_batch_nowait(10))
    assert queue.has_synced


def test_the_first_list_after_a_departure_is_an_initial_one():
    """What it brings is new to the listeners; a list in between is not."""
    queue = NamespacedFIFO()
    part = queue.of("a")
    for _ in range(2):
        part.replace((), "1")
    queue.depart(Departure("a"))
    part.replace((), "2")
    part.bookmark("3")
    found = []
    while batch := queue.pop_batch_nowait(10):
        found.append(batch)
    assert found == [
        Replacement((), "1", initial=True, namespace="a"),
        Replacement((), "1", initial=False, namespace="a"),
        Departure("a"),
        Replacement((), "2", initial=True, namespace="a"),
        Bookmark("3", "a"),
    ]


@given(st.lists(st.tuples(_NAMES, st.one_of(st.none(), st.integers(1, 30).map(str))), max_size=30))
def test_the_lowest_and_the_newest_version_are_those_of_all_namespaces(steps):
    """Versions may also go back: the server was restored from a backup."""
    indexer = Indexer()
    applier, model = NamespacedApplier(indexer), dict[str, int]()
    for namespace, version in steps:
        if version is None:
            for _ in applier.depart(Departure(namespace), 0.0):
                pass
            model.pop(namespace, None)
        else:
            applier.bookmark(Bookmark(version, namespace))
            model[namespace] = int(version)
        lowest, newest = (str(of(model.values())) if model else "" for of in (min, max))
        assert (indexer.last_store_sync_resource_version, applier.newest_version) == (lowest, newest)


def test_a_controller_needs_something_that_fills_its_queue():
    """Neither a source nor a reflector: refused where it is made."""
    with pytest.raises(TypeError, match="maps needs a source or a reflector"):
        Controller(Config(queue=RealFIFO(), source=None, process=lambda _: None, name="maps"))
