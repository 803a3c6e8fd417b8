"""ListWatch: any pair of functions feeds a reflector."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from declctl.errors import InvalidRequest
from declctl.informer import FilteredListWatch, Indexer, ListWatch, Reflector
from declctl.kit import ManualClock
from declctl.objects import ListOptions, WatchOptions
from tests.rooms.informer.reflecting import bench
from tests.rooms.informer.shapes import fresh_projection, pod, rest

LIST = {
    "kind": "PodList",
    "metadata": {"resourceVersion": "5"},
    "items": [pod("a", uid="u", resourceVersion="4")],
}
EVENT = {"type": "ADDED", "object": pod("b", uid="v", resourceVersion="6")}


def encoded(value):
    return msgspec.json.encode(value)


def decoded_page(value):
    return fresh_projection().page(encoded(value))


def decoded_batch(value):
    return [fresh_projection().event(encoded(value))]


@pytest.mark.client_go("ListFunc/WatchFunc pair")
@pytest.mark.parametrize(
    ("page", "event"),
    [(dict, dict), (encoded, encoded), (decoded_page, decoded_batch)],
    ids=["objects", "bytes", "decoded"],
)
async def test_a_pair_of_functions_feeds_a_reflector(page, event):
    """Whatever form they give objects in."""
    closed = []

    async def list_pods(options):
        return page(LIST)

    async def watch_pods(options):
        if options.send_initial_events:
            raise InvalidRequest(422, "Invalid", "what is that")
        try:
            yield event(EVENT)
            await asyncio.Event().wait()
        finally:
            closed.append(options.resource_version)

    clock, store = ManualClock(), Indexer()
    source = ListWatch(list_pods, watch_pods, projection=fresh_projection(), description="my pods")
    reflector = Reflector(source, store, clock=clock, known=store.get_by_key)
    task = asyncio.create_task(reflector.run())
    await rest(clock)
    assert sorted(store.list_keys()) == ["demo/a", "demo/b"]
    assert reflector.last_sync_resource_version == "6"
    assert reflector.statistics().error is None
    task.cancel()
    await asyncio.wait([task])
    assert closed == ["5"]


@pytest.mark.client_go(161, "ListFunc/WatchFunc pair")
@pytest.mark.parametrize("able", [True, False])
async def test_it_may_say_that_it_streams_no_lists(able):
    """Then it is not asked to."""
    asked = []

    async def list_pods(options):
        return LIST

    async def watch_pods(options):
        asked.append(options.send_initial_events)
        if options.send_initial_events:
            yield {"type": "ADDED", "object": LIST["items"][0]}
            end = {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}
            yield {"type": "BOOKMARK", "object": {"metadata": end}}
        await asyncio.Event().wait()

    clock, store = ManualClock(), Indexer()
    source = ListWatch(list_pods, watch_pods, projection=fresh_projection(), watch_list=able)
    task = asyncio.create_task(Reflector(source, store, clock=clock).run())
    await rest(clock)
    assert store.list_keys() == ["demo/a"]
    task.cancel()
    await asyncio.wait([task])
    assert asked == [able]
    assert ListWatch(list_pods, watch_pods, projection=fresh_projection()).description == "Pod"


def only_web(options):
    return replace(options, label_selector="app=web")


@pytest.mark.client_go("ListFunc/WatchFunc pair")
async def test_options_are_tweaked_for_lists_and_watches():
    """One function for both (client-go's NewFilteredListWatchFromClient)."""
    asked = []

    async def list_pods(options):
        asked.append(options)
        return LIST

    async def watch_pods(options):
        asked.append(options)
        yield EVENT

    source = ListWatch(list_pods, watch_pods, projection=fresh_projection(), tweak_list_options=only_web)
    await source.list(ListOptions(limit=3), known=lambda _: None)
    [[event]] = [batch async for batch in source.watch(WatchOptions(resource_version="5"))]
    assert event.record.key == "demo/b"
    lists, watches = asked
    assert lists == ListOptions(limit=3, label_selector="app=web")
    assert watches == WatchOptions(resource_version="5", label_selector="app=web")


@pytest.mark.client_go("ListFunc/WatchFunc pair")
@pytest.mark.parametrize("able", [True, False])
async def test_a_source_is_asked_with_other_options(able):
    """Pages, fallbacks and semantics stay the source's own."""
    async with bench(begin=False) as b:
        b.source.is_watch_list_semantics_unsupported = lambda: not able
        filtered = FilteredListWatch(b.source, only_web)
        assert filtered.description == "Pod"
        filtered.projection = fresh_projection()
        assert b.source.projection is filtered.projection
        b.reflector.source = filtered
        await b.begin()
        assert b.agrees()
        assert len(b.source.lists()) == (0 if able else 1)
        assert {r.label_selector for r in b.source.requests} == {"app=web"}


@pytest.mark.parametrize("tells", [True, False])
async def test_a_filtered_source_tells_the_progress_that_the_other_one_tells(tells):
    """And one that tells none is asked as ever."""
    heard = []
    async with bench(begin=False) as b:

        async def telling(options, *, known, progress, _list=b.source.list):
            progress()
            return await _list(options, known=known)

        if tells:
            b.source.list = telling
        filtered = FilteredListWatch(b.source, lambda options: options)
        known, progress = b.store.get_by_key, lambda: heard.append("more")
        page = await filtered.list(ListOptions(), known=known, progress=progress)
        assert [record.key for record in page.records] == ["demo/a", "demo/b"]
    assert heard == ["more"] * tells
