"""Lists: at which version, in which pages, and what is done when they fail."""

import asyncio
import gc
import secrets
import tracemalloc

import msgspec
import pytest
from msgspec.structs import replace

from declctl.errors import WatchSilent
from declctl.objects import status_error
from tests.rooms.informer.reflecting import EXPIRED, Bench, bench
from tests.rooms.informer.shapes import fresh_projection, pod


@pytest.mark.client_go(123, 131, "Pagination policy")
async def test_a_server_that_does_not_stream_is_listed_in_pages():
    """The first LIST is at any version; the watch begins at the version of the list."""
    async with bench(streams=False, objects=[f"p{n}" for n in range(10)], page_size=4) as b:
        assert len(b.names) == 10
        assert [r.limit for r in b.source.lists()] == [4, 4, 4]
        assert b.versions("list") == ["0", None, None]
        assert [bool(r.continue_token) for r in b.source.lists()] == [False, True, True]
        assert b.versions()[-1] == "10"
        assert (b.figures.lists, b.figures.pages, b.figures.items_listed) == (1, 3, 10)
        assert b.figures.error is None


@pytest.mark.client_go(132, 134, 135, "Expired on first try", "Pagination policy", "Relist RV")
async def test_a_list_that_expires_is_made_at_the_most_recent_version():
    """First none older than what was seen, then whatever there is: the cache does not go back in time.

    A relist that the watch cache can answer has no limit, which would send it to the storage; what is read
    there in any case comes in pages.
    """
    async with bench(streams=False) as b:
        b.source.cut(EXPIRED)
        await b.advance(1)
        assert b.figures.relists == 1
        b.source.fail_next(EXPIRED, verb="list")
        b.source.cut(EXPIRED)
        await b.advance(2)
        assert b.figures.relists == 2
        b.source.add(pod("c"))
        await b.settle()
        b.source.cut(EXPIRED)
        await b.advance(4)
        asked = [(r.resource_version, r.resource_version_match, r.limit) for r in b.source.lists()]
    again = ("2", "NotOlderThan", None)
    assert asked == [("0", None, 500), again, again, (None, None, 500), ("3", "NotOlderThan", None)]


TOO_LARGE = [
    {"reason": "Timeout", "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}},
    {"reason": "Timeout", "details": {"causes": [{"message": "Too large resource version"}]}},
    {"reason": "Timeout", "message": "Timeout: Too large resource version: 20, current: 10"},
]


@pytest.mark.client_go(137, "Too-large-RV detection")
async def test_a_version_that_is_too_large_is_dropped():
    """After a restore of etcd the old version means nothing; however the server says so, and to what."""
    async with bench(streams=False) as b:
        for form in TOO_LARGE:
            b.source.fail_next(status_error({"code": 504, **form}), verb="list")
            b.source.add(pod(f"at-{b.source.resource_version}"))
            await b.settle()
            b.source.cut(EXPIRED)
            await b.advance(1)
            assert b.agrees()
        assert b.versions("list") == ["0", "3", None, "4", None, "5", None]
        assert b.figures.failures == 0
        for form in TOO_LARGE:
            b.source.cut(status_error({"code": 504, **form}))
            await b.advance(10)
        assert b.versions("list")[7:] == [None] * 3


@pytest.mark.client_go(133, "Pagination policy")
@pytest.mark.parametrize(
    ("watch_cache", "asked"),
    [(False, [("0", 500), (None, 500), ("501", 500), (None, 500)]), (True, [("0", 500), ("501", None)])],
)
async def test_a_server_that_answers_any_version_in_pages_is_asked_for_pages(watch_cache, asked):
    """It has no watch cache, and shall not have to write everything at once."""
    async with bench(streams=False, objects=[f"p{n}" for n in range(501)], begin=False) as b:
        b.source.watch_cache = watch_cache
        await b.begin()
        b.source.cut(EXPIRED)
        await b.advance(1)
        assert [(r.resource_version, r.limit) for r in b.source.lists()] == asked
        assert b.agrees()


@pytest.mark.client_go(141, "Page memory")
@pytest.mark.parametrize("compressed", [True, False])
def test_one_object_of_a_page_does_not_hold_the_page(compressed):
    """Sixteen megabytes of JSON are gone when one small object of them is kept."""
    filler = "x" * 1000 if compressed else secrets.token_hex(500)
    items = [pod(f"p{n}", uid=f"u{n}", resourceVersion="1", annotations={"a": filler}) for n in range(8000)]
    projection = fresh_projection()
    tracemalloc.start()
    try:
        body = msgspec.json.encode({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items})
        assert tracemalloc.get_traced_memory()[0] > len(body)
        kept = projection.page(body).records[17]
        del body
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
        assert kept.key == "demo/p17"
    finally:
        tracemalloc.stop()


@pytest.mark.client_go(136, "More than 500 objects, with an expired continue token")
async def test_pages_that_expire_are_followed_by_one_whole_list():
    """At the version asked for first, without a limit."""
    async with bench(streams=False, objects=["p0"], page_size=4) as b:
        for n in range(1, 10):
            b.source.add(pod(f"p{n}"))
        await b.settle()

        async def compacted_after_a_page(options, *, known, _list=b.source.list, **_):
            page = await _list(options, known=known)
            b.source.compact()
            return page

        b.source.list = compacted_after_a_page
        b.source.cut(EXPIRED)
        await b.advance(1)
        asked = [(r.resource_version, r.limit, bool(r.continue_token)) for r in b.source.lists()]
        assert asked == [("0", 4, False), ("10", 4, False), (None, 4, True), ("10", None, False)]
        assert b.agrees()
        assert (b.figures.relists, b.figures.items_listed) == (1, 10)


@pytest.mark.client_go("Stop during list")
@pytest.mark.parametrize(("heard", "seconds"), [(False, 19), (True, 119)])
async def test_a_list_that_hangs_is_given_up(heard, seconds):
    """Two minutes after the last that was heard of it, and not before: no question is open for ever."""
    async with bench(streams=False, begin=False) as b:
        more, never = asyncio.Event(), asyncio.Event()

        async def hangs(options, *, known, progress, _list=b.source.list):
            b.source.list = _list
            await more.wait()
            progress()
            await never.wait()

        b.source.list = hangs
        await b.begin()
        await b.advance(100)
        if heard:
            more.set()
        await b.advance(seconds)
        assert b.faults == []
        await b.advance(1)
        assert [type(fault) for fault in b.faults] == [WatchSilent]
        await b.advance(2)
        assert b.names == ["a", "b"]


async def test_a_long_list_lives_as_long_as_it_goes_on_coming():
    """Ten minutes over a slow network are no fault; a source says that more has come if it can."""
    async with bench(streams=False, begin=False) as b:
        arrived = asyncio.Semaphore(0)

        async def slow(options, *, known, progress, _list=b.source.list):
            for _ in range(6):
                await arrived.acquire()
                progress()
            return await _list(options, known=known)

        b.source.list = slow
        await b.begin()
        for _ in range(6):
            await b.advance(100)
            arrived.release()
            await b.settle()
            assert b.figures.last_event_at == b.clock.monotonic()
        assert (b.names, b.faults, b.figures.lists) == (["a", "b"], [], 1)


@pytest.mark.client_go("Stop during list")
@pytest.mark.parametrize("when", ["at once", "later"])
async def test_stopping_during_a_list_discards_it(when):
    """It ends at once, without a fault, and nothing of the list is told."""
    async with bench(streams=False, begin=False) as b:
        answer = asyncio.Event()

        async def slow(options, *, known, _list=b.source.list):
            await answer.wait()
            return await _list(options, known=known)

        b.source.list = slow
        await b.begin()
        if when == "later":
            answer.set()
        await b.stop()
        assert b.task.cancelled()
        assert (b.names, b.faults) == ([], [])
        assert asyncio.all_tasks() == {asyncio.current_task()}


def versionless(b: Bench) -> None:
    """From now on LISTs have no version, as those of some aggregated APIs."""

    async def listed(options, *, known, _list=b.source.list):
        page = await _list(options, known=known)
        return replace(page, resource_version="")

    b.source.list = listed


@pytest.mark.client_go("List without a version")
async def test_a_server_that_lists_without_a_version_is_synced_and_followed():
    """Such servers exist (aggregated APIs): the cache fills, follows changes, and notices what is gone.

    A watch from no version is not resumed from what it began with: that is all that there is, in no order,
    and what is deleted while it is away would stay for ever.
    """
    async with bench(streams=False, begin=False, watch_list=False) as b:
        versionless(b)
        await b.begin()
        assert (b.names, b.figures.error) == (["a", "b"], None)
        assert b.reflector.last_sync_resource_version == ""
        await b.advance(5)
        b.source.cut()
        b.source.delete("demo/a")
        await b.settle()
        assert b.names == ["b"]
        assert (b.figures.lists, b.versions()) == (2, ["", ""])
        b.source.modify(pod("b"))
        await b.settle()
        assert b.reflector.last_sync_resource_version == "4", "a live event can be resumed from"
        b.source.add(pod("c"))
        await b.settle()
        assert b.names == ["b", "c"]
        b.source.cut()
        b.source.delete("demo/b")
        await b.advance(60)
        assert b.agrees()


async def test_watches_that_end_at_once_are_not_a_circle_where_lists_have_no_version():
    """Each list and watch after such an end waits longer than the one before."""
    async with bench(streams=False, begin=False, watch_list=False) as b:
        versionless(b)
        b.source.slams = True
        await b.begin()
        await b.advance(30)
        assert b.names == ["a", "b"]
        assert b.figures.lists < 12
        assert b.figures.back_offs == b.figures.lists


async def test_a_list_without_a_version_is_a_fault_where_others_had_one():
    """A broken answer of a server that has versions does not empty the cache."""
    async with bench(streams=False, watch_list=False) as b:
        b.source.body = b'{"kind":"PodList","metadata":{},"items":[]}'
        b.source.compact()
        b.source.add(pod("c"))
        b.source.cut(EXPIRED)
        await b.advance(1)
        assert "no resource version" in b.figures.error
        assert b.names == ["a", "b"]
        b.source.calm()
        await b.advance(60)
        assert b.agrees()
