"""A source in memory: it does what an API server does, so that tests on it mean something."""

import asyncio

import pytest

from declctl.errors import Expired, InvalidRequest, MalformedAnswer, TooLargeResourceVersion
from declctl.informer import FakeControllerSource
from declctl.objects import EventType, ListOptions, WatchOptions
from tests.rooms.informer.shapes import fresh_projection, pod


def source(*names):
    made = FakeControllerSource(projection=fresh_projection())
    for name in names:
        made.add(pod(name))
    return made


async def keys(made, options):
    page = await made.list(options, known=lambda key: None)
    return [r.key for r in page.records], page


async def heard(made, options, *, batches):
    """What the first batches of a watch say, after the one that says that it is open."""
    watch = made.watch(options)
    found = [await anext(watch) for _ in range(batches + 1)]
    await watch.aclose()
    assert found[0] == ()
    return [f"{e.type} {e.record.key if e.record else ''}".strip() for batch in found[1:] for e in batch]


def test_objects_get_versions_and_uids():
    """As a server gives them: a new version for each change, a new uid for each life."""
    made = source()
    first = made.add(pod("a"))["metadata"]
    changed = made.modify(pod("a", node="n1"))["metadata"]
    made.delete("demo/a")
    again = made.add(pod("a"))["metadata"]
    assert [first["resourceVersion"], changed["resourceVersion"], again["resourceVersion"]] == ["1", "2", "4"]
    assert first["uid"] == changed["uid"] != again["uid"]
    assert made.objects["demo/a"]["metadata"] == again
    assert made.resource_version == "4"
    with pytest.raises(KeyError):
        made.delete("demo/nobody")
    again["name"] = made.objects["demo/a"]["metadata"]["name"] = "what one gets is a copy"
    assert made.objects["demo/a"]["metadata"]["name"] == "a"


async def test_pages_come_from_one_moment():
    """What happens between two pages is not in the second (client-go 215)."""
    made = source("a", "b", "c")
    first, page = await keys(made, ListOptions(limit=2))
    made.add(pod("d"))
    second, last = await keys(made, ListOptions(limit=2, continue_token=page.continue_token))
    assert first + second == ["demo/a", "demo/b", "demo/c"]
    assert (page.resource_version, last.resource_version, last.continue_token) == ("3", "3", "")


async def test_what_was_compacted_is_expired():
    """A watch replays what happened since any version that was not compacted; so do lists and tokens."""
    made = source("a", "b")
    made.delete("demo/a")
    options = WatchOptions(resource_version="1")
    assert await heard(made, options, batches=1) == ["ADDED demo/b", "DELETED demo/a"]
    made.add(pod("c"))
    _, page = await keys(made, ListOptions(limit=1))
    made.compact()
    with pytest.raises(Expired):
        await heard(made, options, batches=1)
    for asked in (
        ListOptions(resource_version="2", resource_version_match="Exact"),
        ListOptions(continue_token=page.continue_token),
    ):
        with pytest.raises(Expired):
            await keys(made, asked)


async def test_initial_events_end_with_a_bookmark():
    made = source("a")
    watch = made.watch(WatchOptions(send_initial_events=True))
    assert await anext(watch) == ()
    added, end = await anext(watch)
    assert (added.type, end.initial_events_end, end.resource_version) == (EventType.ADDED, True, "1")
    made.modify(pod("a"))
    [changed] = await anext(watch)
    assert changed.type is EventType.MODIFIED
    made.advance()  # what happened elsewhere: versions go on though no object of the kind changes
    made.bookmark()
    [bookmark] = await anext(watch)
    assert (bookmark.type, bookmark.resource_version) == (EventType.BOOKMARK, "3")
    assert not bookmark.initial_events_end
    await watch.aclose()
    assert made.open_watches == 0


async def test_lists_are_at_the_version_that_was_asked_for():
    """Any, none older than one, or exactly one; what has not come yet is too large."""
    made = source("a", "b")
    made.modify(pod("a", node="n1"))
    made.delete("demo/b")
    for version, match, found, at in (
        (None, None, ["demo/a"], "4"),
        ("0", None, ["demo/a"], "4"),
        ("2", "NotOlderThan", ["demo/a"], "4"),
        ("2", None, ["demo/a"], "4"),
        ("2", "Exact", ["demo/a", "demo/b"], "2"),
        ("1", "Exact", ["demo/a"], "1"),
    ):
        options = ListOptions(resource_version=version, resource_version_match=match)
        told, page = await keys(made, options)
        assert (told, page.resource_version) == (found, at)
    exact, page = await keys(made, ListOptions(resource_version="2", limit=1))
    assert (exact, page.resource_version) == (["demo/a"], "2")  # a limit with a version is exact
    for match in (None, "Exact", "NotOlderThan"):
        with pytest.raises(TooLargeResourceVersion):
            await keys(made, ListOptions(resource_version="9", resource_version_match=match))
    with pytest.raises(TooLargeResourceVersion):
        await heard(made, WatchOptions(resource_version="9", send_initial_events=True), batches=0)


@pytest.mark.parametrize(
    "options",
    [
        ListOptions(resource_version_match="Exact"),
        ListOptions(resource_version="0", resource_version_match="Exact"),
        ListOptions(resource_version="zebra"),
        ListOptions(continue_token="2-1", resource_version="2"),
        ListOptions(continue_token="2-1", resource_version_match="NotOlderThan"),
    ],
)
def test_what_no_server_allows_is_refused(options):
    with pytest.raises(InvalidRequest):
        asyncio.run(keys(source("a"), options))


@pytest.mark.parametrize(("watch_cache", "found"), [(True, 3), (False, 2)])
async def test_a_watch_cache_ignores_the_limit_of_a_list_at_any_version(watch_cache, found):
    """As API servers do; a watch at any version begins with what is there, without a word that it is all."""
    made = source("a", "b", "c")
    made.watch_cache = watch_cache
    told, _ = await keys(made, ListOptions(resource_version="0", limit=2))
    assert len(told) == found
    told = await heard(made, WatchOptions(resource_version="0"), batches=1)
    assert told == ["ADDED demo/a", "ADDED demo/b", "ADDED demo/c"]


@pytest.mark.parametrize("repair", ["modify", "delete"])
async def test_a_corrupt_object_is_listed_and_streamed_as_it_is(repair):
    made = source("a", "b")
    made.corrupt("demo/b", b"null")
    assert (await keys(made, ListOptions()))[1].skipped
    with pytest.raises(MalformedAnswer):
        await heard(made, WatchOptions(send_initial_events=True), batches=1)
    made.modify(pod("b")) if repair == "modify" else made.delete("demo/b")
    assert not (await keys(made, ListOptions()))[1].skipped
