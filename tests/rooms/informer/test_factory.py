"""SharedInformerFactory: one informer for each distinct watch."""

import asyncio
import dataclasses
import threading
from typing import Any

import pytest

from declctl.decoding import Projection
from declctl.errors import CacheError, Forbidden, NotSynced
from declctl.informer import (
    FakeControllerSource,
    ReflectorOptions,
    ResourceEventHandlerFuncs,
    Selection,
    SharedInformerFactory,
    field_index,
)
from declctl.kit import ManualClock
from declctl.objects import FieldPath, GroupVersionKind, Resource
from tests.rooms.informer.shapes import pod


class FakeClient:
    """Gives a source for each watch, and remembers what was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.sources: list[FakeControllerSource] = []
        self.fault: Exception | None = None
        self.streams = True

    async def find_resource(self, name: str) -> Resource:
        assert name in ("deployments.apps", "deployments.v1.apps", "apps/v1/deployments")
        return Resource(GroupVersionKind("apps", "v1", "Deployment"), "deployments", namespaced=True)

    def source(self, gvk: GroupVersionKind, *, projection: Projection, **scope: Any) -> FakeControllerSource:
        self.asked.append({"kind": gvk.kind, **scope})
        source = FakeControllerSource(kind=gvk.kind, projection=projection)
        source.streams = self.streams
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


@pytest.mark.client_go("SharedInformerFactory")
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


@pytest.mark.client_go("Options")
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


@pytest.mark.client_go(308, "WaitForCacheSync")
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


@pytest.mark.client_go("WaitForCacheSync")
def test_waiting_for_nothing_ends_at_once(client, clock):
    """A factory that nobody has asked for an informer has synced (client-go 203)."""

    async def scenario():
        await SharedInformerFactory(client, clock=clock).wait_for_cache_sync(timeout=5)

    asyncio.run(scenario())
    assert client.asked == []


@pytest.mark.client_go(321, "Start", "Lazy informers")
def test_informers_start_when_they_are_asked_for(client, clock):
    """Inside the factory's block an informer runs as soon as there is one, without another call."""

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            await factory.wait_for_cache_sync()
            late = factory.informer("v1", "Pod")
            await clock.settle()
            return late.has_synced

    assert asyncio.run(scenario())


@pytest.mark.client_go(319, "Start")
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


@pytest.mark.client_go("Shutdown")
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


@pytest.mark.client_go("Missing in all", "RemoveInformer")
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


@pytest.mark.client_go("Missing in all")
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


@pytest.mark.client_go(329, "Options")
def test_a_kind_may_have_a_resync_period_of_its_own(client, clock):
    """What is said of the informer goes before what is said of its kind, and that before the factory's."""
    custom = {("v1", "Pod"): 60.0, ("apps/v1", "Deployment"): 0.0}
    factory = SharedInformerFactory(client, resync_period=600, custom_resync=custom, clock=clock)

    periods = [
        factory.informer("v1", "Pod").resync_period,
        factory.informer("apps/v1", "Deployment").resync_period,
        factory.informer("v1", "Secret").resync_period,
        factory.informer("v1", "Pod", namespace="team-a", resync_period=5).resync_period,
    ]
    assert periods == [60, 0, 600, 5]


@pytest.mark.client_go("Options")
def test_what_is_asked_for_can_be_tweaked(client, clock):
    """The tweak sees every selection, with its kind, and what it makes of it is asked of the server."""

    def only_ours(asked: Selection) -> Selection:
        if asked.gvk.kind == "Secret":
            return asked
        return dataclasses.replace(asked, label_selector="team=a")

    factory = SharedInformerFactory(client, tweak_list_options=only_ours, clock=clock)
    pods = factory.informer("v1", "Pod")
    factory.informer("v1", "Secret")

    assert [each["label_selector"] for each in client.asked] == ["team=a", ""]
    assert factory.informer("v1", "Pod", label_selector="team=a") is pods
    assert "team=a" in pods.name


@pytest.mark.client_go(332, "Options")
def test_a_transform_holds_for_all_that_do_not_say_otherwise(client, clock):
    """Every object loses its spec before it is cached, but those of the informer that wants it whole."""

    def without_spec(obj: Any) -> Any:
        return {key: value for key, value in obj.items() if key != "spec"}

    async def scenario():
        async with SharedInformerFactory(client, transform=without_spec, clock=clock) as factory:
            bare = factory.informer("v1", "Pod")
            whole = factory.informer("v1", "Pod", transform=None)
            await factory.wait_for_cache_sync()
            return ["spec" in informer.lister.list()[0] for informer in (bare, whole)]

    assert asyncio.run(scenario()) == [False, True]


@pytest.mark.client_go("Options", "Missing in all")
def test_how_reflectors_ask_can_be_set_for_all_and_for_one(client, clock):
    """Page sizes reach the lists; a second opinion about the same watch is refused, not ignored."""
    client.streams = False

    async def scenario():
        options = ReflectorOptions(page_size=7)
        async with SharedInformerFactory(client, options=options, clock=clock) as factory:
            factory.informer("v1", "Pod")
            factory.informer("v1", "Secret", options=ReflectorOptions(page_size=9))
            factory.informer("v1", "Pod", options=ReflectorOptions(page_size=7))
            with pytest.raises(CacheError, match="v1 Pod is watched with other options"):
                factory.informer("v1", "Pod", options=ReflectorOptions(page_size=8))
            await factory.wait_for_cache_sync()
            return [source.lists()[0].limit for source in client.sources]

    assert asyncio.run(scenario()) == [7, 9]


@pytest.mark.client_go("Options")
def test_the_name_of_the_factory_stands_before_its_informers(client, clock):
    """Two factories in one program are told apart in logs and messages."""
    factory = SharedInformerFactory(client, name="billing", namespace="team-a", clock=clock)

    assert factory.informer("v1", "Pod").name == "billing: v1 Pod in team-a"


@pytest.mark.parametrize(("how", "told"), [({}, ["delete", "add"]), ({"uid_change": "update"}, ["update"])])
def test_how_a_recreated_object_is_told_can_be_chosen(client, clock, how, told):
    """As the delete and the add that they were, or as the update that client-go makes of them."""
    heard: list[str] = []

    async def add(obj: Any, initial: bool) -> None:
        heard.append("add")

    async def update(old: Any, new: Any) -> None:
        heard.append("update")

    async def delete(obj: Any) -> None:
        heard.append("delete")

    async def scenario():
        async with SharedInformerFactory(client, clock=clock, **how) as factory:
            pods = factory.informer("v1", "Pod")
            pods.add_event_handler(ResourceEventHandlerFuncs(add, update, delete))
            await factory.wait_for_cache_sync()
            await clock.settle()
            heard.clear()
            client.sources[0].modify(pod("a", uid="another"))
            await clock.settle()

    asyncio.run(scenario())
    assert heard == told


@pytest.mark.parametrize(
    ("how", "told"),
    [({}, ["add b", "add c", "update b"]), ({"queue": "DeltaFIFO"}, ["add b", "update b", "add c"])],
)
def test_the_queue_can_be_chosen(client, clock, how, told):
    """In the order in which it happened, or what is pending of a key together."""
    heard: list[str] = []

    async def add(obj: Any, initial: bool) -> None:
        heard.append(f"add {obj.name}")

    async def update(old: Any, new: Any) -> None:
        heard.append(f"update {new.name}")

    async def scenario():
        async with SharedInformerFactory(client, clock=clock, **how) as factory:
            factory.informer("v1", "Pod").add_event_handler(ResourceEventHandlerFuncs(add, update))
            await factory.wait_for_cache_sync()
            await clock.settle()
            heard.clear()
            source = client.sources[0]
            source.add(pod("b"))
            source.add(pod("c"))
            source.modify(pod("b"))
            await clock.settle()

    asyncio.run(scenario())
    assert heard == told


def test_all_namespaces_can_be_watched_beside_the_factorys_one(client, clock):
    """The namespace of the factory is what it is for, not a wall."""
    factory = SharedInformerFactory(client, namespace="team-a", clock=clock)
    factory.informer("v1", "Pod", namespace="")

    assert client.asked[0]["namespace"] is None


@pytest.mark.client_go("Dynamic factory")
@pytest.mark.parametrize("name", ["deployments.apps", "deployments.v1.apps", "apps/v1/deployments"])
def test_an_informer_is_had_by_the_name_of_its_resource(client, clock, name):
    """By whatever name, it is the informer of the kind, with the same options as any other."""

    async def scenario():
        factory = SharedInformerFactory(client, custom_resync={("apps/v1", "Deployment"): 60.0}, clock=clock)
        by_name = await factory.for_resource(name, namespace="team-a")
        return by_name is factory.informer("apps/v1", "Deployment", namespace="team-a"), by_name.resync_period

    assert asyncio.run(scenario()) == (True, 60)


@pytest.mark.client_go("Metadata factory")
def test_metadata_alone_is_another_watch(client, clock):
    """Who needs no more than names and labels has an informer beside the one of whole objects."""

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            whole = factory.informer("v1", "Pod")
            small = factory.informer("v1", "Pod", metadata_only=True)
            await factory.wait_for_cache_sync()
            again = await factory.for_resource("deployments.apps", metadata_only=True)
            return whole is small, small.name, again.name, small.indexer.list()[0].layout.kind

    names = asyncio.run(scenario())
    assert names == (
        False,
        "v1 Pod metadata",
        "apps/v1 Deployment metadata",
        "PartialObjectMetadata",
    )
    assert [each["metadata_only"] for each in client.asked] == [False, True, True]


@pytest.mark.client_go(231, "Dynamic factory", "Metadata factory")
@pytest.mark.parametrize("streams", [True, False])
def test_caches_sync_with_and_without_streaming_lists(client, clock, streams):
    """A server that can stream a list is asked for one; one that can't is listed; either way it syncs."""
    client.streams = streams

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            await factory.for_resource("deployments.apps")
            factory.informer("v1", "Pod", metadata_only=True)
            return await factory.wait_for_cache_sync()

    result = asyncio.run(scenario())
    assert dict(result.synced) == {"apps/v1 Deployment": True, "v1 Pod metadata": True}
    for source in client.sources:
        assert bool(source.lists()) is not streams
        assert source.watches()[0].send_initial_events


@pytest.mark.client_go("Missing in all")
def test_an_exclusive_informer_is_shared_with_nobody(client, clock):
    """It has a cache and a watch of its own, and ends when its one user releases it."""

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            shared = factory.informer("v1", "Pod")
            own = factory.informer("v1", "Pod", exclusive=True)
            other = factory.informer("v1", "Pod", exclusive=True)
            await factory.wait_for_cache_sync()
            factory.release(own)
            await clock.settle()
            still = factory.informer("v1", "Pod") is shared
            return len({id(each) for each in (shared, own, other)}), still

    assert asyncio.run(scenario()) == (3, True)
    assert [source.open_watches for source in client.sources] == [0, 0, 0]


@pytest.mark.client_go("Missing in all")
def test_releasing_too_often_takes_nobody_elses_informer(client, clock):
    """What is released twice, or belongs to another factory, is left alone."""

    async def scenario():
        stranger = SharedInformerFactory(client, clock=clock).informer("v1", "Pod")
        async with SharedInformerFactory(client, clock=clock) as factory:
            pods = factory.informer("v1", "Pod")
            factory.release(stranger)
            factory.release(pods)
            factory.release(pods)
            back = factory.informer("v1", "Pod")
            await clock.advance(60)
            return back is pods, pods.is_stopped

    assert asyncio.run(scenario()) == (True, False)


@pytest.mark.client_go("WaitForCacheSync")
def test_only_started_informers_are_waited_for(client, clock):
    """What nobody has started yet holds up nobody."""

    async def scenario():
        factory = SharedInformerFactory(client, clock=clock)
        factory.informer("v1", "Pod")
        factory.start()
        factory.informer("v1", "Secret")
        result = await factory.wait_for_cache_sync(timeout=5)
        await factory.shutdown()
        return dict(result.synced)

    assert asyncio.run(scenario()) == {"v1 Pod": True}


@pytest.mark.client_go("WaitForCacheSync")
def test_waiting_can_be_cancelled(client, clock):
    """A program that ends while it waits for caches does not hang."""
    client.fault = Forbidden(403, "Forbidden", "no")

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            factory.informer("v1", "Pod")
            waiting = asyncio.create_task(factory.wait_for_cache_sync())
            await clock.settle()
            waiting.cancel()
            await asyncio.wait([waiting])
            return waiting.cancelled()

    assert asyncio.run(scenario())


@pytest.mark.client_go("WaitForCacheSync")
def test_an_informer_that_died_is_not_waited_for(client, clock):
    """A fault of the machinery ends the waiting at once, with its name, and comes out of the shutdown."""

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            pods = factory.informer("v1", "Pod")
            pods.run = broken
            await factory.wait_for_cache_sync()

    async def broken() -> None:
        raise ZeroDivisionError("as nothing in the machinery may do")

    with pytest.raises(ZeroDivisionError) as told:
        asyncio.run(scenario())
    assert isinstance(told.value.__context__, NotSynced)
    assert "v1 Pod" in str(told.value.__context__)
    assert "ZeroDivisionError" in str(told.value.__context__)


@pytest.mark.client_go("Start", "Shutdown")
def test_after_its_shutdown_a_factory_starts_nothing_until_it_is_entered_again(client, clock):
    """Start does nothing, asking is refused rather than never answered, and entering begins anew."""

    async def scenario():
        factory = SharedInformerFactory(client, clock=clock)
        factory.informer("v1", "Pod")
        await factory.shutdown()
        factory.start()
        await clock.settle()
        requests = len(client.sources[0].requests)
        with pytest.raises(CacheError, match="shut down"):
            factory.informer("v1", "Pod")
        assert not (await factory.wait_for_cache_sync()).synced
        async with factory:
            pods = factory.informer("v1", "Pod")
            await factory.wait_for_cache_sync()
            return requests, pods.has_synced

    assert asyncio.run(scenario()) == (0, True)


@pytest.mark.client_go(338, "Shutdown")
def test_shutdown_leaves_no_task(client, clock):
    """Whatever an informer is doing: listing, watching, lingering or closing, nothing of it is left."""

    async def scenario():
        before = asyncio.all_tasks()
        factory = SharedInformerFactory(client, clock=clock)
        informers = [factory.informer("v1", kind) for kind in ("Pod", "Secret", "Service")]
        factory.start()
        await factory.wait_for_cache_sync()
        factory.release(informers[0], linger=30)
        factory.release(informers[1])
        factory.informer("v1", "Node")
        factory.start()
        await factory.shutdown()
        await factory.shutdown()
        return asyncio.all_tasks() - before, [each.is_stopped for each in informers]

    assert asyncio.run(scenario()) == (set(), [True, True, True])
    assert [source.open_watches for source in client.sources] == [0, 0, 0, 0]


@pytest.mark.client_go("SharedInformerFactory")
def test_a_stopped_informer_is_not_given_out_again(client, clock):
    """Whoever asks while an informer is closing gets one that will run."""

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            pods = factory.informer("v1", "Pod")
            await factory.wait_for_cache_sync()
            factory.release(pods)
            while not pods.is_stopped:
                await asyncio.sleep(0)
            back = factory.informer("v1", "Pod")
            await factory.wait_for_cache_sync()
            await clock.settle()
            return back is pods, back.has_synced, back.is_stopped

    assert asyncio.run(scenario()) == (False, True, False)


@pytest.mark.client_go("WaitForCacheSync")
def test_what_another_user_gives_up_does_not_fail_my_wait(client, clock):
    """Their informer is refused, and they release it while I wait: mine has synced."""

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            mine = factory.informer("v1", "Pod")
            client.fault = Forbidden(403, "Forbidden", "no")
            theirs = factory.informer("v1", "Secret")
            waiting = asyncio.create_task(factory.wait_for_cache_sync(timeout=60))
            await clock.advance(1)
            early = waiting.done()
            factory.release(theirs)
            await clock.settle()
            return early, dict((await waiting).synced), mine.has_synced

    assert asyncio.run(scenario()) == (False, {"v1 Pod": True}, True)


@pytest.mark.client_go("WaitForCacheSync")
def test_one_waits_for_ones_own_informers_in_a_shared_factory(client, clock):
    """Another user's informer may be refused for ever; of what is asked for, what is missing is named."""

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            mine = factory.informer("v1", "Pod")
            client.fault = Forbidden(403, "Forbidden", "no")
            theirs = factory.informer("v1", "Secret")
            synced = dict((await factory.wait_for_cache_sync(informers=[mine])).synced)
            waiting = asyncio.create_task(factory.wait_for_cache_sync(5, informers=[mine, theirs]))
            await clock.advance(6)
            with pytest.raises(NotSynced, match=r"^v1 Secret has not synced .*403"):
                await waiting
            stranger = SharedInformerFactory(client, clock=clock).informer("v1", "Node")
            with pytest.raises(CacheError, match="v1 Node is not, or no longer, an informer of this factory"):
                await factory.wait_for_cache_sync(informers=[stranger])
            return synced

    assert asyncio.run(scenario()) == {"v1 Pod": True}


@pytest.mark.client_go("Shutdown")
def test_an_inner_block_does_not_stop_the_informers_of_the_outer(client, clock):
    """A function that enters the factory it was given leaves it as it was."""

    async def scenario():
        async with SharedInformerFactory(client, clock=clock) as factory:
            pods = factory.informer("v1", "Pod")
            async with factory as inner:
                secrets = inner.informer("v1", "Secret")
                await inner.wait_for_cache_sync()
            between = pods.is_stopped, secrets.is_stopped
            late = factory.informer("v1", "Service")
            await factory.wait_for_cache_sync()
        return between, [each.is_stopped for each in (pods, secrets, late)]

    assert asyncio.run(scenario()) == ((False, False), [True, True, True])


@pytest.mark.client_go("Registering from anywhere", "SharedInformerFactory")
def test_a_program_may_ask_for_informers_before_its_loop_runs(client, clock):
    """As Go programs do in main; one that was released again is not started."""
    factory = SharedInformerFactory(client, clock=clock)
    pods = factory.informer("v1", "Pod")
    factory.release(factory.informer("v1", "Secret"), linger=30)
    added: list[str] = []
    registration = pods.add_event_handler(
        ResourceEventHandlerFuncs(add=lambda obj, initial: added.append(obj.name))
    )
    with pytest.raises(
        CacheError, match="call start\\(\\) in a coroutine, or enter the factory by `async with`"
    ):
        factory.start()

    async def scenario():
        async with factory:
            await factory.wait_for_cache_sync()
            await asyncio.wait_for(registration.synced.wait(), 5)
            return [source.open_watches for source in client.sources]

    assert asyncio.run(scenario()) == [1, 0]
    assert added == ["a"]


@pytest.mark.client_go("Registering from anywhere")
def test_a_handler_in_a_thread_may_ask_for_informers_and_release_them(client, clock):
    """What it asks for is done on the factory's loop, and the watch that nobody uses any more is closed."""
    found: list[Any] = []
    done = threading.Event()

    def add(obj: Any, initial: bool) -> None:
        try:
            secrets = factory.informer("v1", "Secret")
            found.append(secrets)
            factory.start()
            factory.release(pods)
            factory.release(secrets)
            factory.release(secrets)
        except BaseException as fault:  # it would be logged, and the test go on
            found.append(fault)
        done.set()

    async def scenario():
        nonlocal factory, pods
        async with SharedInformerFactory(client, clock=clock) as factory:
            pods = factory.informer("v1", "Pod")
            factory.informer("v1", "Pod")
            pods.add_event_handler(ResourceEventHandlerFuncs(add=add))
            await asyncio.to_thread(done.wait, 10)
            await clock.settle()
            return [source.open_watches for source in client.sources], pods.is_stopped

    factory: Any = None
    pods: Any = None
    assert asyncio.run(scenario()) == ([1, 0], False)
    [secrets] = found
    assert secrets.is_stopped


def test_a_release_that_cannot_be_done_changes_nothing(client, clock):
    """The loop has ended without a shutdown: it is told, and the informer is still the caller's."""
    factory = SharedInformerFactory(client, clock=clock)
    pods = factory.informer("v1", "Pod")

    async def scenario():
        factory.start()
        await factory.wait_for_cache_sync()

    asyncio.run(scenario())
    for _ in range(2):
        with pytest.raises(CacheError, match="v1 Pod does not run any longer: nothing can be released"):
            factory.release(pods)
