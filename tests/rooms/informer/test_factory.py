"""SharedInformerFactory: one informer for each distinct watch."""

import asyncio
from typing import Any

import pytest

from declctl.errors import CacheError, Forbidden, NotSynced
from declctl.informer import (
    FakeControllerSource,
    ResourceEventHandlerFuncs,
    SharedInformerFactory,
    field_index,
)
from declctl.kit import ManualClock
from declctl.objects import FieldPath, GroupVersionKind, Projection
from tests.rooms.informer.shapes import pod


class FakeClient:
    """Gives a source for each watch, and remembers what was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.sources: list[FakeControllerSource] = []
        self.fault: Exception | None = None

    def source(self, gvk: GroupVersionKind, *, projection: Projection, **scope: Any) -> FakeControllerSource:
        self.asked.append({"kind": gvk.kind, **scope})
        source = FakeControllerSource(kind=gvk.kind, projection=projection)
        if self.fault is not None:
            source.fail_next(self.fault, verb="watch", times=100)
            source.fail_next(self.fault, verb="list", times=100)
        source.add(pod("a", node="node-1"))
        self.sources.append(source)
        return source


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_the_library_example_of_the_contract_runs(client):
    """What the documentation shows for library users works as written."""
    added: list[str] = []

    async def scenario():
        async with SharedInformerFactory(client, resync_period=600) as factory:
            pods = factory.informer("v1", "Pod", namespace="team-a")
            pods.add_indexers({"byNode": field_index("spec.nodeName")})
            handler = ResourceEventHandlerFuncs(add=lambda obj, initial: added.append(obj.name))
            registration = pods.add_event_handler(handler, resync_period=300)
            await factory.wait_for_cache_sync()
            found = pods.lister.by_index("byNode", "node-1")
            await asyncio.wait_for(registration.synced.wait(), 5)
            return [view.name for view in found]

    assert asyncio.run(scenario()) == ["a"]
    assert added == ["a"]


def test_the_same_watch_is_made_once(client, clock):
    """Two controllers that watch the same share one cache; whoever watches something else has an own one."""

    def hide(obj: Any) -> Any:
        return obj

    factory = SharedInformerFactory(client, clock=clock)
    pods = factory.informer("v1", "Pod")

    assert factory.informer("v1", "Pod") is pods
    others = [
        factory.informer("v1", "Pod", namespace="team-a"),
        factory.informer("v1", "Pod", label_selector="app=web"),
        factory.informer("v1", "Pod", field_selector="spec.nodeName=n1"),
        factory.informer("v1", "Pod", transform=hide),
        factory.informer("v1", "ConfigMap"),
    ]
    assert len({id(informer) for informer in [pods, *others]}) == 6
    assert len(client.asked) == 6


def test_defaults_of_the_factory_reach_the_informers(client, clock):
    """Namespace and resync period that are given once hold for every informer that does not say otherwise."""
    factory = SharedInformerFactory(client, namespace="team-a", resync_period=600, clock=clock)
    pods = factory.informer("v1", "Pod")
    secrets = factory.informer("v1", "Secret", namespace="team-b", resync_period=0)

    assert [each["namespace"] for each in client.asked] == ["team-a", "team-b"]
    assert (pods.resync_period, secrets.resync_period) == (600, 0)


def test_indexes_known_before_the_start_cost_no_decoding(client, clock):
    """A field index that is there when the informer starts is read while the bytes come in."""

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            pods = factory.informer("v1", "Pod", indexers={"node": field_index("spec.nodeName")})
            pods.add_indexers({"host": field_index("status.hostIP")})
            await factory.wait_for_cache_sync()
            return pods.indexer.list()[0].layout.positions

    positions = asyncio.run(scenario())
    assert set(positions) == {FieldPath.parse("spec.nodeName"), FieldPath.parse("status.hostIP")}


def test_an_index_can_be_asked_for_twice(client, clock):
    """Two users of a watch may want the same index; the same name for another one is refused."""
    factory = SharedInformerFactory(client, clock=clock)
    factory.informer("v1", "Pod", indexers={"node": field_index("spec.nodeName")})
    factory.informer("v1", "Pod", indexers={"node": field_index("spec.nodeName")})

    with pytest.raises(CacheError, match="'node'"):
        factory.informer("v1", "Pod", indexers={"node": field_index("status.hostIP")})


def test_what_has_not_synced_is_named_with_its_reason(client, clock):
    """After the time limit one reads which caches are missing, and why each of them is (client-go 204)."""

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            factory.informer("v1", "Pod")
            client.fault = Forbidden(403, "Forbidden", "secrets is forbidden")
            factory.informer("v1", "Secret", namespace="team-a")
            waiting = asyncio.create_task(factory.wait_for_cache_sync(timeout=5))
            await clock.advance(6)
            await waiting

    with pytest.raises(NotSynced) as told:
        asyncio.run(scenario())
    assert "Secret" in str(told.value)
    assert "team-a" in str(told.value)
    assert "secrets is forbidden" in str(told.value)
    assert "Pod" not in str(told.value)


def test_waiting_for_nothing_ends_at_once(client, clock):
    """A factory that nobody has asked for an informer has synced (client-go 203)."""

    async def scenario():
        await SharedInformerFactory(client, clock=clock).wait_for_cache_sync(timeout=5)

    asyncio.run(scenario())
    assert client.asked == []


def test_informers_start_when_they_are_asked_for(client, clock):
    """Inside the factory's block an informer runs as soon as there is one, without another call."""

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            await factory.wait_for_cache_sync()
            late = factory.informer("v1", "Pod")
            await clock.settle()
            return late.has_synced

    assert asyncio.run(scenario())


def test_without_a_block_start_starts_what_is_new(client, clock):
    """Started by hand, an informer that came later waits for the next start; the others go on."""

    async def scenario():
        factory = SharedInformerFactory(client, clock=clock)
        pods = factory.informer("v1", "Pod")
        factory.start()
        await clock.settle()
        late = factory.informer("v1", "Secret")
        await clock.settle()
        before = (pods.has_synced, late.has_synced)
        factory.start()
        await clock.settle()
        after = (pods.has_synced, late.has_synced)
        await factory.shutdown()
        return before, after, [source.open_watches for source in client.sources]

    assert asyncio.run(scenario()) == ((True, False), (True, True), [0, 0])


def test_the_end_of_the_block_ends_every_watch(client, clock):
    """When the block is left nothing watches any longer, also if it is left with an error."""
    informers = []

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            informers.append(factory.informer("v1", "Pod"))
            await factory.wait_for_cache_sync()
            raise ValueError("the program's own fault")

    with pytest.raises(ValueError, match="own fault"):
        asyncio.run(scenario())
    assert informers[0].is_stopped
    assert client.sources[0].open_watches == 0


def test_the_last_user_closes_an_informer(client, clock):
    """A watch that nobody uses any longer is closed, and not before; asking again makes a new one."""

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            pods = factory.informer("v1", "Pod")
            factory.informer("v1", "Pod")
            await factory.wait_for_cache_sync()
            factory.release(pods)
            await clock.settle()
            used = client.sources[0].open_watches
            factory.release(pods)
            await clock.settle()
            return used, client.sources[0].open_watches, factory.informer("v1", "Pod") is pods

    assert asyncio.run(scenario()) == (1, 0, False)


def test_an_informer_lingers_for_whoever_comes_back(client, clock):
    """Asked for again before its time is over, an informer goes on without another list."""

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            pods = factory.informer("v1", "Pod")
            await factory.wait_for_cache_sync()
            factory.release(pods, linger=30)
            await clock.advance(20)
            back = factory.informer("v1", "Pod")
            await clock.advance(60)
            kept = back is pods and client.sources[0].open_watches == 1
            factory.release(pods, linger=30)
            await clock.advance(31)
            return kept, client.sources[0].open_watches, pods.is_stopped

    assert asyncio.run(scenario()) == (True, 0, True)
