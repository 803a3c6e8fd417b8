"""Lists in pages: one after the other, or some of them ahead."""

import asyncio
from contextlib import aclosing

import pytest

from declctl.errors import Expired, MalformedAnswer, ServerError
from declctl.informer import ListPager
from declctl.objects import ListOptions, ListPage
from tests.rooms.informer.shapes import record

EXPIRED = Expired(410, "Expired", "too old")
SEVEN = ListOptions(resource_version="7", resource_version_match="NotOlderThan")


class Server:
    """Objects in pages, at version 7. `expires` is the number of the page that outlives it."""

    def __init__(self, objects, *, expires=0):
        self.records = [record(f"p{n}") for n in range(objects)]
        self.expires = expires
        self.asked = []

    async def page(self, options):
        self.asked.append(options)
        await asyncio.sleep(0)
        if len(self.asked) == self.expires:
            raise EXPIRED
        start = int(options.continue_token or 0)
        end = start + (options.limit or len(self.records) or 1)
        more = str(end) if end < len(self.records) else ""
        return ListPage(self.records[start:end], "7", more, None)

    def pager(self, **more):
        return ListPager(self.page, page_size=10, **more)


async def settle():
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.client_go(212, "Pager")
@pytest.mark.parametrize(("objects", "calls"), [(0, 1), (9, 1), (10, 1), (11, 2), (20, 2), (25, 3)])
def test_every_object_comes_once_and_in_order(objects, calls):
    """One call for each page; it says whether there was more than one."""
    server = Server(objects)
    found = asyncio.run(server.pager().list(ListOptions()))
    assert found.records == server.records
    assert (found.resource_version, found.paged) == ("7", calls > 1)
    assert [options.limit for options in server.asked] == [10] * calls


@pytest.mark.client_go(215)
@pytest.mark.parametrize("match", [None, "Exact", "NotOlderThan"])
def test_a_version_is_asked_for_once(match):
    """A continue token has it: a server refuses both together."""
    server = Server(25)
    options = ListOptions(resource_version="7", resource_version_match=match, label_selector="a=b")
    asyncio.run(server.pager().list(options))
    versions = [(o.resource_version, o.resource_version_match) for o in server.asked]
    assert versions == [("7", match), (None, None), (None, None)]
    assert [o.continue_token for o in server.asked] == [None, "10", "20"]
    assert {o.label_selector for o in server.asked} == {"a=b"}


@pytest.mark.client_go(213, "Pager")
@pytest.mark.parametrize(("page", "full"), [(1, True), (1, False), (2, False), (3, False)])
def test_an_expired_page_is_an_error(page, full):
    """The first one always; a later one unless a full list is wanted then."""
    server = Server(25, expires=page)
    with pytest.raises(Expired):
        asyncio.run(server.pager(full_list_if_expired=full).list(SEVEN))
    assert len(server.asked) == page


@pytest.mark.client_go("Pager")
@pytest.mark.parametrize("page", [2, 3])
def test_a_later_page_that_expires_is_followed_by_a_full_list(page):
    """At the version of the first page, without a limit; nothing comes twice."""
    server = Server(25, expires=page)
    found = asyncio.run(server.pager().list(SEVEN))
    assert (found.records, found.paged) == (server.records, False)
    assert server.asked[-1] == SEVEN


def test_a_full_list_that_is_none_and_pages_that_would_never_end_are_refused():
    """Objects that are on another page would be taken for deleted; the same continue token twice."""
    server = Server(25, expires=2)

    async def page(options):
        answer = await server.page(options)
        return answer if options.limit else ListPage(answer.records[:5], "7", "more", None)

    with pytest.raises(MalformedAnswer, match="one page of several"):
        asyncio.run(ListPager(page, page_size=10).list(SEVEN))

    async def endless(options):
        return ListPage([record("x")], "7", "again", None)

    with pytest.raises(MalformedAnswer, match="same continue token"):
        asyncio.run(ListPager(endless).list(ListOptions()))


def test_without_a_size_there_is_one_page():
    """Nothing is limited; a limit of one's own counts more than the pager's."""
    server = Server(25)
    asyncio.run(ListPager(server.page, page_size=None).list(ListOptions()))
    asyncio.run(server.pager().list(ListOptions(limit=20)))
    assert [options.limit for options in server.asked] == [None, 20, 20]


@pytest.mark.client_go(217, "Pager")
@pytest.mark.parametrize(
    ("buffer", "taken", "asked"), [(0, 1, 2), (0, 2, 3), (1, 1, 3), (10, 1, 5), (0, 5, 5), (10, 5, 5)]
)
async def test_pages_are_fetched_ahead_up_to_the_buffer(buffer, taken, asked):
    """The buffer, and the one that waits for a place in it; whoever leaves early stops it."""
    server = Server(50)
    async with aclosing(server.pager(buffer=buffer).pages(ListOptions())) as pages:
        for _ in range(taken):
            await anext(pages)
            await settle()
        assert len(server.asked) == asked
    await settle()
    assert len(server.asked) == asked
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.client_go("Pager")
async def test_each_object_is_handed_over_until_somebody_raises():
    """In order, all pages asked for once. What it raised is what one gets, and nothing is left behind."""
    server, seen = Server(25), []
    await server.pager().each_list_item(SEVEN, seen.append)
    assert seen == server.records
    assert len(server.asked) == 3

    server, seen = Server(50), []

    def three_only(found):
        seen.append(found)
        if len(seen) == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await server.pager(buffer=0).each_list_item(SEVEN, three_only)
    assert len(seen) == 3
    assert len(server.asked) <= 2
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("fault", [EXPIRED, ServerError(500, "InternalError", "")])
async def test_a_page_that_fails_comes_after_those_before(fault):
    """What was given out can't be taken back: there is no full list in its place."""
    server, seen = Server(25), []

    async def page(options):
        if options.continue_token == "20":
            raise fault
        return await server.page(options)

    with pytest.raises(type(fault)):
        await ListPager(page, page_size=10).each_list_item(SEVEN, seen.append)
    assert seen == server.records[:20]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.client_go("Pager")
def test_cancelling_leaves_no_task():
    async def scenario(steps):
        server = Server(50)
        work = asyncio.create_task(server.pager(buffer=1).each_list_item(SEVEN, lambda _: None))
        for _ in range(steps):
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait([work])
        assert asyncio.all_tasks() == {asyncio.current_task()}

    for steps in range(40):
        asyncio.run(scenario(steps))


@pytest.mark.parametrize("steps", [0, 3, 9])
async def test_leaving_without_a_word_leaves_no_task(steps):
    server = Server(50)
    async for _ in server.pager(buffer=steps).pages(ListOptions()):
        break
    await settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}
