"""Streaming lists: one watch that begins with everything, and what is done where that does not work."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from declctl.decoding import Projection
from declctl.informer import FakeControllerSource, supports_watch_list
from declctl.objects import WatchOptions
from tests.rooms.informer.reflecting import EXPIRED, bench
from tests.rooms.informer.shapes import pod


@pytest.mark.client_go(123, "WatchList (streaming list)", "Initial list")
def test_one_stream_brings_everything_and_goes_on_as_a_watch():
    """A server that streams lists is asked once: no LIST, one WATCH (client-go 123)."""

    async def scenario():
        async with bench() as b:
            b.source.add(pod("c"))
            await b.settle()
            assert b.names == ["a", "b", "c"]
            assert b.source.lists() == []
            [watch] = b.source.watches()
            assert watch.send_initial_events
            assert 300 <= watch.timeout_seconds <= 600
            assert (b.figures.state, b.figures.lists, b.figures.watches, b.figures.relists) == (
                "Watching",
                1,
                1,
                0,
            )

    asyncio.run(scenario())


@pytest.mark.client_go(147)
def test_nothing_is_stored_before_everything_is_there():
    """A stream that has not said that it is complete leaves the cache empty (client-go 147)."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.ends_initial_events = False
            await b.begin()
            assert b.names == []
            assert b.figures.items_listed == 2

    asyncio.run(scenario())


@pytest.mark.client_go(152)
def test_changes_during_a_stream_are_part_of_it():
    """What is modified or deleted before the end is stored as it is then (client-go 152)."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.ends_initial_events = False
            await b.begin()
            b.source.modify(pod("a", node="n1"))
            b.source.delete("demo/b")
            await b.settle()
            assert b.figures.items_listed == 1

    asyncio.run(scenario())


@pytest.mark.client_go(148, 160, "WatchList opt-out")
@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("able", [True, False])
def test_streams_are_asked_for_where_we_want_them_and_the_source_can_do_them(wanted, able):
    """Else it is LIST, then WATCH."""

    async def scenario():
        async with bench(begin=False, watch_list=wanted) as b:
            b.source.is_watch_list_semantics_unsupported = lambda: not able
            await b.begin()
            assert b.names == ["a", "b"]
            [watch] = b.source.watches()
            assert watch.send_initial_events == (wanted and able)
            assert b.versions("list") == ([] if wanted and able else ["0"])
            assert watch.resource_version == ("" if wanted and able else "2")
            assert b.figures.failures == 0

    asyncio.run(scenario())


class Says:
    """Something that says whether it can't stream lists."""

    def __init__(self, unsupported):
        self.unsupported = unsupported

    def is_watch_list_semantics_unsupported(self):
        return self.unsupported


@pytest.mark.client_go(161)
@pytest.mark.parametrize(
    ("source", "supported"),
    [
        (Says(False), True),
        (Says(True), False),
        (FakeControllerSource(), True),
        (object(), True),
        (None, True),
    ],
)
def test_a_source_supports_streaming_lists_unless_it_says_otherwise(source, supported):
    """Who says nothing is asked, and refuses if it can't."""
    assert supports_watch_list(source) == supported


@pytest.mark.client_go(147)
def test_stopping_before_a_stream_is_complete_leaves_the_store_empty():
    """What was seen of it is never shown, and the version from which a watch would go on is not touched."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.ends_initial_events = False
            await b.begin()
            b.source.add(pod("c"))
            await b.settle()
            await b.stop()
            assert b.names == []
            assert b.reflector.last_sync_resource_version == ""
            assert not b.store.last_store_sync_resource_version

    asyncio.run(scenario())


@pytest.mark.client_go(158, "RV tracking")
@pytest.mark.parametrize(
    ("objects", "ends", "version"), [((), False, ""), (("a", "b"), False, ""), (("a", "b"), True, "2")]
)
def test_the_version_counts_from_the_end_of_a_stream_on(objects, ends, version):
    """What a stream begins with comes in no order: no watch can be resumed from there."""

    async def scenario():
        async with bench(objects=objects, begin=False) as b:
            b.source.ends_initial_events = ends
            await b.begin()
            assert b.reflector.last_sync_resource_version == version

    asyncio.run(scenario())


@pytest.mark.client_go(157)
@pytest.mark.parametrize("word", ["false", "True", "", "no"])
def test_a_bookmark_that_does_not_say_true_ends_no_stream(word):
    """The annotation alone is not enough."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.ends_initial_events = False
            await b.begin()
            metadata = {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": word}}
            b.source.tell(msgspec.json.encode({"type": "BOOKMARK", "object": {"metadata": metadata}}))
            await b.settle()
            assert (b.names, b.figures.state) == ([], "Streaming")
            metadata["annotations"]["k8s.io/initial-events-end"] = "true"
            b.source.tell(msgspec.json.encode({"type": "BOOKMARK", "object": {"metadata": metadata}}))
            await b.settle()
            assert (b.names, b.figures.state) == (["a", "b"], "Watching")
            assert b.reflector.last_sync_resource_version == "9"

    asyncio.run(scenario())


@pytest.mark.client_go(152, "WatchList (streaming list)")
def test_what_changes_before_the_end_of_a_stream_is_stored_as_it_is_then():
    """One replacement, with the last state of everything, and without what is gone."""

    async def scenario():
        async with bench(begin=False) as b:
            b.source.ends_initial_events = False
            await b.begin()
            b.source.modify(pod("a", node="n1"))
            b.source.delete("demo/b")
            b.source.add(pod("c"))
            metadata = {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}
            b.source.tell(msgspec.json.encode({"type": "BOOKMARK", "object": {"metadata": metadata}}))
            await b.settle()
            assert b.agrees()
            assert b.figures.events == {}

    asyncio.run(scenario())


@pytest.mark.client_go(143)
@pytest.mark.parametrize("streams", [True, False])
def test_a_transform_runs_once_for_each_object(streams):
    """Where client-go transforms again what it replaces, a transform need not be idempotent here."""
    calls = []
    transform = Projection(
        api_version="v1", kind="Pod", transform=lambda obj: calls.append(obj["metadata"]["name"]) or obj
    )

    async def scenario():
        async with bench(streams=streams, projection=transform) as b:
            b.source.add(pod("c"))
            await b.settle()
            assert calls == ["a", "b", "c"]
            b.source.cut(EXPIRED)
            await b.advance(1)
            assert b.figures.relists == 1
            assert calls == ["a", "b", "c"]

    asyncio.run(scenario())


@pytest.mark.client_go("List→WatchList option conversion")
@pytest.mark.parametrize("page_size", [None, 1])
def test_a_stream_has_neither_limit_nor_pages(page_size):
    """However lists are asked for; it says only from which version on its objects may be."""

    async def scenario():
        async with bench(page_size=page_size) as b:
            b.source.cut(EXPIRED)
            await b.advance(1)
            first, again = b.source.watches()
            assert again == replace(first, resource_version="2")
            assert first == WatchOptions(resource_version="", timeout_seconds=300, send_initial_events=True)
            assert b.source.lists() == []
            assert b.agrees()

    asyncio.run(scenario())
