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
from declctl.objects import FieldPath, GroupVersionKind, Resource
from tests.rooms.informer.shapes import Recorder, pod


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


@pytest.mark.client_go("SharedInformerFactory")
def test_the_same_watch_is_made_once(client, clock):
    """Two controllers that watch the same share one cache; whoever watches something else has an own one."""
    factory = SharedInformerFactory(client, clock=clock)
    pods = factory.informer("v1", "Pod")
    assert factory.informer("v1", "Pod") is pods
    assert not Selection(GroupVersionKind("", "v1", "Pod")).metadata_only
    others = [
        factory.informer("v1", "Pod", namespace="team-a"),
        factory.informer("v1", "Pod", label_selector="app=web"),
        factory.informer("v1", "Pod", field_selector="spec.nodeName=n1"),
        factory.informer("v1", "Pod", transform=lambda obj: obj),
        factory.informer("v1", "ConfigMap"),
    ]
    assert len({id(informer) for informer in [pods, *others]}) == 6
    assert len(client.asked) == 6


@pytest.mark.client_go(329, "Options")
def test_defaults_of_the_factory_reach_the_informers(client, clock):
    """What is said of the informer goes before what is said of its kind, and that before the factory's.

    The namespace of the factory is what it is for, not a wall; its name stands before those of its informers.
    """
    custom = {("v1", "Pod"): 60.0, ("apps/v1", "Deployment"): 0.0}
    factory = SharedInformerFactory(
        client, name="billing", namespace="team-a", resync_period=600, custom_resync=custom, clock=clock
    )
    informers = [
        factory.informer("v1", "Pod"),
        factory.informer("apps/v1", "Deployment"),
        factory.informer("v1", "Secret"),
        factory.informer("v1", "Pod", namespace="team-b", resync_period=5),
        factory.informer("v1", "Secret", namespace="", resync_period=0),
    ]
    assert [each["namespace"] for each in client.asked] == ["team-a", "team-a", "team-a", "team-b", None]
    assert [informer.resync_period for informer in informers] == [60, 0, 600, 5, 0]
    assert informers[0].name == "billing: v1 Pod in team-a"


async def test_indexes_known_before_the_start_cost_no_decoding(client, clock):
    """A field index that is there when the informer starts is read while the bytes come in.

    Two users of a watch may want the same index; the same name for another one is refused.
    """
    async with SharedInformerFactory(client, clock=clock) as factory:
        for _ in range(2):
            pods = factory.informer("v1", "Pod", indexers={"node": field_index("spec.nodeName")})
        with pytest.raises(CacheError, match="'node'"):
            factory.informer("v1", "Pod", indexers={"node": field_index("status.hostIP")})
        pods.add_indexers({"host": field_index("status.hostIP")})
        await factory.wait_for_cache_sync()
        positions = pods.indexer.list()[0].layout.positions
    assert set(positions) == {FieldPath.parse("spec.nodeName"), FieldPath.parse("status.hostIP")}


@pytest.mark.client_go(319, 321, "Start", "Lazy informers", "WaitForCacheSync")
async def test_informers_start_when_they_are_asked_for_or_by_hand(client, clock):
    """Inside the factory's block an informer runs as soon as there is one, without another call.

    Started by hand, an informer that came later waits for the next start; the others go on, and it is not
    waited for. Without any it has synced at once (client-go 203).
    """
    async with SharedInformerFactory(client, clock=clock) as factory:
        late = factory.informer("v1", "Pod")
        await clock.settle()
        assert late.has_synced
    factory = SharedInformerFactory(client, clock=clock)
    assert await factory.wait_for_cache_sync(timeout=5)
    pods = factory.informer("v1", "Pod")
    factory.start()
    late = factory.informer("v1", "Secret")
    result = await factory.wait_for_cache_sync(timeout=5)
    await clock.settle()
    assert (dict(result.synced), pods.has_synced, late.has_synced) == ({"v1 Pod": True}, True, False)
    factory.start()
    await clock.settle()
    assert (pods.has_synced, late.has_synced) == (True, True)
    await factory.shutdown()
    assert [source.open_watches for source in client.sources] == [0, 0, 0]


@pytest.mark.client_go("Missing in all", "RemoveInformer", "SharedInformerFactory")
async def test_the_last_user_closes_an_informer(client, clock):
    """A watch that nobody uses any longer is closed, and not before; whoever asks then gets one that runs."""
    async with SharedInformerFactory(client, clock=clock) as factory:
        pods = factory.informer("v1", "Pod")
        factory.informer("v1", "Pod")
        await factory.wait_for_cache_sync()
        factory.release(pods)
        await clock.settle()
        assert client.sources[0].open_watches == 1
        factory.release(pods)
        while not pods.is_stopped:
            await asyncio.sleep(0)
        back = factory.informer("v1", "Pod")
        await factory.wait_for_cache_sync()
        await clock.settle()
        assert (back is pods, back.has_synced, back.is_stopped) == (False, True, False)
        assert [source.open_watches for source in client.sources] == [0, 1]


@pytest.mark.client_go("Missing in all")
async def test_an_informer_lingers_for_whoever_comes_back(client, clock):
    """Asked for again before its time is over, an informer goes on without another list.

    What is released twice, or belongs to another factory, is left alone.
    """
    async with SharedInformerFactory(client, clock=clock) as factory:
        pods = factory.informer("v1", "Pod")
        await factory.wait_for_cache_sync()
        factory.release(SharedInformerFactory(client, clock=clock).informer("v1", "Pod"))
        factory.release(pods)
        factory.release(pods)
        assert factory.informer("v1", "Pod") is pods
        await clock.advance(60)
        factory.release(pods, linger=30)
        await clock.advance(20)
        back = factory.informer("v1", "Pod")
        await clock.advance(60)
        kept = back is pods and client.sources[0].open_watches == 1
        factory.release(pods, linger=30)
        await clock.advance(31)
        assert (kept, client.sources[0].open_watches, pods.is_stopped) == (True, 0, True)


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
async def test_a_transform_holds_for_all_that_do_not_say_otherwise(client, clock):
    """Every object loses its spec before it is cached, but those of the informer that wants it whole."""

    def without_spec(obj: Any) -> Any:
        return {key: value for key, value in obj.items() if key != "spec"}

    async with SharedInformerFactory(client, transform=without_spec, clock=clock) as factory:
        bare = factory.informer("v1", "Pod")
        whole = factory.informer("v1", "Pod", transform=None)
        await factory.wait_for_cache_sync()
        assert ["spec" in informer.lister.list()[0] for informer in (bare, whole)] == [False, True]


@pytest.mark.client_go("Options", "Missing in all")
async def test_how_reflectors_ask_can_be_set_for_all_and_for_one(client, clock):
    """Page sizes reach the lists; a second opinion about the same watch is refused, not ignored."""
    client.streams = False
    options = ReflectorOptions(page_size=7)
    async with SharedInformerFactory(client, options=options, clock=clock) as factory:
        factory.informer("v1", "Pod")
        factory.informer("v1", "Secret", options=ReflectorOptions(page_size=9))
        factory.informer("v1", "Pod", options=ReflectorOptions(page_size=7))
        with pytest.raises(CacheError, match="v1 Pod is watched with other options"):
            factory.informer("v1", "Pod", options=ReflectorOptions(page_size=8))
        await factory.wait_for_cache_sync()
        assert [source.lists()[0].limit for source in client.sources] == [7, 9]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({}, ["Added b", "Added c", "Modified b", "Deleted a", "Added a"]),
        ({"uid_change": "update"}, ["Added b", "Added c", "Modified b", "Modified a"]),
        ({"queue": "DeltaFIFO"}, ["Added b", "Modified b", "Added c", "Deleted a", "Added a"]),
    ],
)
async def test_the_queue_and_how_a_recreated_object_is_told_can_be_chosen(client, clock, how, told):
    """In the order in which it happened, or what is pending of a key together.

    As the delete and the add that they were, or as the update that client-go makes of them.
    """
    heard = Recorder()
    async with SharedInformerFactory(client, clock=clock, **how) as factory:
        factory.informer("v1", "Pod").add_listener(heard)
        await factory.wait_for_cache_sync()
        await clock.settle()
        heard.clear()
        source = client.sources[0]
        source.add(pod("b"))
        source.add(pod("c"))
        source.modify(pod("b"))
        await clock.settle()
        source.modify(pod("a", uid="another"))
        await clock.settle()
    assert [line.replace("demo/", "") for line in heard.lines()] == told


@pytest.mark.client_go("Dynamic factory")
@pytest.mark.parametrize("name", ["deployments.apps", "deployments.v1.apps", "apps/v1/deployments"])
async def test_an_informer_is_had_by_the_name_of_its_resource(client, clock, name):
    """By whatever name, it is the informer of the kind, with the same options as any other."""
    factory = SharedInformerFactory(client, custom_resync={("apps/v1", "Deployment"): 60.0}, clock=clock)
    by_name = await factory.for_resource(name, namespace="team-a")
    assert by_name is factory.informer("apps/v1", "Deployment", namespace="team-a")
    assert by_name.resync_period == 60


@pytest.mark.client_go(231, "Dynamic factory", "Metadata factory")
@pytest.mark.parametrize("streams", [True, False])
async def test_metadata_alone_is_another_watch(client, clock, streams):
    """Who needs no more than names and labels has an informer beside the one of whole objects.

    A server that can stream a list is asked for one; one that can't is listed; either way all sync.
    """
    client.streams = streams
    async with SharedInformerFactory(client, clock=clock) as factory:
        factory.informer("v1", "Pod")
        small = factory.informer("v1", "Pod", metadata_only=True)
        await factory.for_resource("deployments.apps", metadata_only=True)
        result = await factory.wait_for_cache_sync()
    assert dict(result.synced) == dict.fromkeys(
        ("v1 Pod", "v1 Pod metadata", "apps/v1 Deployment metadata"), True
    )
    assert small.indexer.list()[0].layout.kind == "PartialObjectMetadata"
    assert [each["metadata_only"] for each in client.asked] == [False, True, True]
    for source in client.sources:
        assert bool(source.lists()) is not streams
        assert source.watches()[0].send_initial_events


@pytest.mark.client_go("Missing in all")
async def test_an_exclusive_informer_is_shared_with_nobody(client, clock):
    """It has a cache and a watch of its own, and ends when its one user releases it."""
    async with SharedInformerFactory(client, clock=clock) as factory:
        shared = factory.informer("v1", "Pod")
        own = factory.informer("v1", "Pod", exclusive=True)
        other = factory.informer("v1", "Pod", exclusive=True)
        await factory.wait_for_cache_sync()
        factory.release(own)
        await clock.settle()
        still = factory.informer("v1", "Pod") is shared
        assert (len({id(each) for each in (shared, own, other)}), still) == (3, True)
    assert [source.open_watches for source in client.sources] == [0, 0, 0]


@pytest.mark.client_go("WaitForCacheSync")
async def test_an_informer_that_died_is_not_waited_for(client, clock):
    """A fault of the machinery ends the waiting at once, with its name, and comes out of the shutdown."""

    async def broken() -> None:
        raise ZeroDivisionError("as nothing in the machinery may do")

    with pytest.raises(ZeroDivisionError) as told:
        async with SharedInformerFactory(client, clock=clock) as factory:
            factory.informer("v1", "Pod").run = broken
            await factory.wait_for_cache_sync()
    assert isinstance(told.value.__context__, NotSynced)
    assert "v1 Pod" in str(told.value.__context__)
    assert "ZeroDivisionError" in str(told.value.__context__)


@pytest.mark.client_go("Start", "Shutdown")
async def test_after_its_shutdown_a_factory_starts_nothing_until_it_is_entered_again(client, clock):
    """Start does nothing, asking is refused rather than never answered, and entering begins anew."""
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
        assert (requests, pods.has_synced) == (0, True)


@pytest.mark.client_go(338, "Shutdown")
async def test_shutdown_leaves_no_task(client, clock):
    """Whatever an informer is doing: listing, watching, lingering or closing, nothing of it is left."""
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
    assert asyncio.all_tasks() == before
    assert [each.is_stopped for each in informers] == [True] * 3
    assert [source.open_watches for source in client.sources] == [0, 0, 0, 0]


@pytest.mark.client_go("WaitForCacheSync")
async def test_what_another_user_gives_up_does_not_fail_my_wait(client, clock):
    """Their informer is refused, and they release it while I wait: mine has synced."""
    async with SharedInformerFactory(client, clock=clock) as factory:
        mine = factory.informer("v1", "Pod")
        client.fault = Forbidden(403, "Forbidden", "no")
        theirs = factory.informer("v1", "Secret")
        waiting = asyncio.create_task(factory.wait_for_cache_sync(timeout=60))
        await clock.advance(1)
        early = waiting.done()
        cancelled = asyncio.create_task(factory.wait_for_cache_sync())
        await clock.settle()
        cancelled.cancel()  # a program that ends while it waits for caches does not hang
        await asyncio.wait([cancelled])
        assert cancelled.cancelled()
        factory.release(theirs)
        await clock.settle()
        assert (early, dict((await waiting).synced), mine.has_synced) == (False, {"v1 Pod": True}, True)


@pytest.mark.client_go(308, "WaitForCacheSync")
async def test_what_has_not_synced_is_named_with_its_reason(client, clock):
    """After the time limit one reads which caches are missing, and why each of them is (client-go 204).

    In a shared factory one waits for one's own informers: another user's may be refused for ever.
    """
    async with SharedInformerFactory(client, clock=clock) as factory:
        mine = factory.informer("v1", "Pod")
        client.fault = Forbidden(403, "Forbidden", "secrets is forbidden")
        theirs = factory.informer("v1", "Secret", namespace="team-a")
        result = await factory.wait_for_cache_sync(informers=[mine])
        assert dict(result.synced) == {"v1 Pod": True}
        for informers in (None, [mine, theirs]):
            waiting = asyncio.create_task(factory.wait_for_cache_sync(5, informers=informers))
            await clock.advance(6)
            with pytest.raises(NotSynced, match=r"^v1 Secret in team-a .*403.*secrets is forbidden") as told:
                await waiting
            assert "Pod" not in str(told.value)
        stranger = SharedInformerFactory(client, clock=clock).informer("v1", "Node")
        with pytest.raises(CacheError, match="v1 Node is not, or no longer, an informer of this factory"):
            await factory.wait_for_cache_sync(informers=[stranger])


@pytest.mark.client_go("Shutdown")
async def test_an_inner_block_does_not_stop_the_informers_of_the_outer(client, clock):
    """A function that enters the factory it was given leaves it as it was.

    When the outer block is left nothing watches any longer, also if it is left with an error.
    """
    with pytest.raises(ValueError, match="own fault"):
        async with SharedInformerFactory(client, clock=clock) as factory:
            pods = factory.informer("v1", "Pod")
            async with factory as inner:
                secrets = inner.informer("v1", "Secret")
                await inner.wait_for_cache_sync()
            between = pods.is_stopped, secrets.is_stopped
            late = factory.informer("v1", "Service")
            await factory.wait_for_cache_sync()
            raise ValueError("the program's own fault")
    assert between == (False, False)
    assert [source.open_watches for source in client.sources] == [0, 0, 0]
    assert [each.is_stopped for each in (pods, secrets, late)] == [True] * 3


@pytest.mark.client_go(330, "Registering from anywhere", "SharedInformerFactory")
def test_a_program_may_ask_for_informers_before_its_loop_runs(client, clock):
    """As Go programs do in main; one that was released again is not started."""
    factory = SharedInformerFactory(client, clock=clock)
    pods = factory.informer("v1", "Pod")
    factory.release(factory.informer("v1", "Secret"), linger=30)
    added: list[str] = []
    pods.add_indexers({"byNode": field_index("spec.nodeName")})
    registration = pods.add_event_handler(
        ResourceEventHandlerFuncs(add=lambda obj, initial: added.append(obj.name))
    )
    with pytest.raises(
        CacheError, match=r"call start\(\) in a coroutine, or enter the factory by `async with`"
    ):
        factory.start()

    async def scenario():
        async with factory:
            await factory.wait_for_cache_sync()
            await asyncio.wait_for(registration.synced.wait(), 5)
            found = [view.name for view in pods.lister.by_index("byNode", "node-1")]
            return found, [source.open_watches for source in client.sources]

    assert asyncio.run(scenario()) == (["a"], [1, 0])
    assert added == ["a"]


@pytest.mark.client_go("Registering from anywhere")
async def test_a_handler_in_a_thread_may_ask_for_informers_and_release_them(client, clock):
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

    async with SharedInformerFactory(client, clock=clock) as factory:
        pods = factory.informer("v1", "Pod")
        factory.informer("v1", "Pod")
        pods.add_event_handler(ResourceEventHandlerFuncs(add=add))
        await asyncio.to_thread(done.wait, 10)
        await clock.settle()
        assert ([source.open_watches for source in client.sources], pods.is_stopped) == ([1, 0], False)
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
