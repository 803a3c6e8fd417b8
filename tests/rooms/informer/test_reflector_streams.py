"""Streaming lists: one watch that begins with everything, and what is done where that does not work."""

import msgspec
import pytest
from msgspec.structs import replace

from declctl.informer import FakeControllerSource, supports_watch_list
from declctl.informer.reflector.faults import Deadline
from declctl.informer.reflector.lists import initial_events
from declctl.informer.reflector.statistics import ReflectorMetrics
from declctl.objects import EventType, WatchEvent, WatchOptions
from tests.rooms.informer.reflecting import EXPIRED, bench
from tests.rooms.informer.shapes import pod, record


@pytest.mark.client_go(123, "WatchList (streaming list)", "Initial list")
async def test_one_stream_brings_everything_and_goes_on_as_a_watch():
    """A server that streams lists is asked once: no LIST, one WATCH (client-go 123).

    The check of consistency, which costs a LIST of everything from the server's storage, is off.
    """
    async with bench() as b:
        b.source.add(pod("c"))
        await b.settle()
        assert b.names == ["a", "b", "c"]
        assert b.source.lists() == []
        [watch] = b.source.watches()
        assert watch.send_initial_events
        assert 300 <= watch.timeout_seconds <= 600
        assert (b.figures.state, b.reflector.last_sync_resource_version) == ("Watching", "3")
        assert (b.figures.lists, b.figures.watches, b.figures.relists) == (1, 1, 0)


async def test_a_stream_counts_what_it_has_brought_so_far(clock):
    """From nothing on, also after a longer list; the last batch counts, too."""
    metrics, seen = ReflectorMetrics(lambda: "Pod"), list[int]()
    metrics.counts.items_listed = 7

    async def batches():
        for names, ends in (("ab", False), ("c", True)):
            seen.append(metrics.counts.items_listed)
            added = [WatchEvent(EventType.ADDED, record(name)) for name in names]
            yield [*added, *([WatchEvent(EventType.BOOKMARK, None, "9", initial_events_end=True)] * ends)]

    async with Deadline(clock, idle=30, what="the streaming list") as deadline:
        records, version, rest = await initial_events(batches(), deadline, metrics)
    assert (len(records), version, rest) == (3, "9", [])
    assert [*seen, metrics.counts.items_listed] == [0, 2, 3]


@pytest.mark.client_go(148, 160, "WatchList opt-out")
@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("able", [True, False])
async def test_streams_are_asked_for_where_we_want_them_and_the_source_can_do_them(wanted, able):
    """Else it is LIST, then WATCH."""
    async with bench(begin=False, watch_list=wanted) as b:
        b.source.is_watch_list_semantics_unsupported = lambda: not able
        await b.begin()
        assert b.names == ["a", "b"]
        [watch] = b.source.watches()
        assert watch.send_initial_events == (wanted and able)
        assert b.versions("list") == ([] if wanted and able else ["0"])
        assert watch.resource_version == ("" if wanted and able else "2")
        assert b.figures.failures == 0


class Says:
    def __init__(self, unsupported):
        self.unsupported = unsupported

    def is_watch_list_semantics_unsupported(self):
        return self.unsupported


@pytest.mark.client_go(161)
@pytest.mark.parametrize("source", [Says(False), Says(True), FakeControllerSource(), object(), None])
def test_a_source_supports_streaming_lists_unless_it_says_otherwise(source):
    """Who says nothing is asked, and refuses if it can't."""
    assert supports_watch_list(source) is not (isinstance(source, Says) and source.unsupported)


@pytest.mark.client_go(147, 152, 157, 158, "WatchList (streaming list)", "RV tracking")
@pytest.mark.parametrize("word", ["false", "True", "", "no"])
async def test_a_bookmark_that_does_not_say_true_ends_no_stream(word):
    """The annotation alone is not enough, and before the end nothing is stored.

    What changes meanwhile counts as it is then: it is one replacement, with the last state of everything, and
    without what is gone. What a stream begins with comes in no order: no watch can be resumed from there.
    """
    async with bench(begin=False) as b:

        def bookmark(version, end):
            metadata = {"resourceVersion": version, "annotations": {"k8s.io/initial-events-end": end}}
            b.source.tell(msgspec.json.encode({"type": "BOOKMARK", "object": {"metadata": metadata}}))

        b.source.ends_initial_events = False
        await b.begin()
        bookmark("9", word)
        await b.settle()
        assert (b.names, b.figures.state, b.figures.items_listed) == ([], "Streaming", 2)
        b.source.modify(pod("a", node="n1"))
        b.source.delete("demo/b")
        await b.settle()
        assert b.figures.items_listed == 1
        assert b.reflector.last_sync_resource_version == b.store.last_store_sync_resource_version == ""
        b.source.add(pod("c"))
        bookmark("7", "true")
        await b.settle()
        assert (b.names, b.figures.state, b.figures.events) == (["a", "c"], "Watching", {})
        assert b.agrees()
        assert b.reflector.last_sync_resource_version == "7"


@pytest.mark.client_go("List→WatchList option conversion")
@pytest.mark.parametrize("page_size", [None, 1])
async def test_a_stream_has_neither_limit_nor_pages(page_size):
    """However lists are asked for; it says only from which version on its objects may be."""
    async with bench(page_size=page_size) as b:
        before = b.store.get_by_key("demo/a")
        b.source.cut(EXPIRED)
        await b.advance(1)
        assert b.store.get_by_key("demo/a") is before, "a relist does not hold everything twice"
        first, again = b.source.watches()
        assert again == replace(first, resource_version="2")
        assert first == WatchOptions(resource_version="", timeout_seconds=300, send_initial_events=True)
        assert b.source.lists() == []
        assert b.agrees()
