"""A scope of shards: what is requested, dropped and told while shards come and go."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from declctl.decoding import Projection
from declctl.errors import CacheError, InvalidRequest, ServerError, Unreachable
from declctl.informer import FakeControllerSource, ReflectorOptions
from declctl.informer.scope import ShardScope
from declctl.objects import ChangeReason, EventType
from declctl.objects.shards import Sharding, ShardKey
from tests.rooms.informer.shapes import Informed, Recorder, made, pod, rest

SHARDING = Sharding(2, ShardKey.UID)


def uids(shard: int, number: int) -> list[str]:
    """So many uids of a shard."""
    candidates = (f"{each}-uid" for each in range(1000))
    return [uid for uid in candidates if SHARDING.shard_of(None, uid) == shard][:number]


def scoped(*, of_shard_0: int = 1, of_shard_1: int = 1, **more: Any) -> Informed:
    """An informer with a scope, and pods `zero-0`, … and `one-0`, … of two shards."""
    made = Informed(scope=ShardScope(SHARDING), **more)
    for shard, (name, number) in enumerate((("zero", of_shard_0), ("one", of_shard_1))):
        for position, uid in enumerate(uids(shard, number)):
            made.source.add(pod(f"{name}-{position}", uid=uid))
    return made


def selectors(source: FakeControllerSource) -> Sequence[str]:
    """The shard selector of each request."""
    return [each.shard_selector for each in source.requests]


@pytest.mark.parametrize("filters", [True, False])
@pytest.mark.parametrize("streams", [True, False])
async def test_a_shard_comes_and_leaves(filters: bool, streams: bool):
    """It is listed when it comes and introduced when it opens; when it leaves, nothing was deleted."""
    informed = scoped()
    source, informer, listener = informed.source, informed.informer, informed.listener
    source.filters_shards, source.streams = filters, streams
    async with informed.runs():
        assert (informer.has_synced, source.requests) == (True, [])
        latch = informer.widen({1})
        await informed.rest()
        assert (latch.is_open, informer.indexer.list_keys(), listener.told) == (True, ["demo/one-0"], [])
        informer.open_shards({1})
        assert listener.lines() == ["Added demo/one-0"]
        assert (listener.told[0].initial, listener.told[0].reason) == (True, ChangeReason.INITIAL)
        source.modify(pod("zero-0"))
        source.modify(pod("one-0"))
        source.delete("demo/zero-0")
        await informed.rest()
        assert listener.lines() == ["Added demo/one-0", "Modified demo/one-0"]
        # The version goes on with what is dropped; a server that filters says it by a bookmark.
        assert informer.version_in(None) == ("4" if filters else source.resource_version)
        requests = len(source.requests)
        informer.narrow({1})
        await informed.rest()
        assert (len(informer.indexer), len(source.requests), source.open_watches) == (0, requests, 0)
        assert listener.lines() == ["Added demo/one-0", "Modified demo/one-0"]
        assert set(selectors(source)) == {SHARDING.selector({1}, is_namespaced=True)}
        assert not informer.statistics().relist_differences.added


async def test_a_second_shard_widens_the_requests_and_the_first_is_told_nothing():
    """One LIST of both; the differences that a watch has missed do not count what has come in."""
    informed = scoped(of_shard_1=3)
    informer, listener = informed.informer, informed.listener
    async with informed.runs():
        informer.widen({0})
        await informed.rest()
        informer.open_shards({0})
        latch = informer.widen({1})
        await informed.rest()
        assert (latch.is_open, len(informer.indexer), listener.lines()) == (True, 4, ["Added demo/zero-0"])
        late = Recorder()
        informer.add_listener(late)
        assert late.lines() == ["Added demo/zero-0"]
        informer.resync_now(late)
        assert late.lines() == ["Added demo/zero-0", "Resync demo/zero-0"]
        deferred = Recorder()
        informer.add_listener(deferred, deferred=True)
        informer.open_shards({1})
        await informed.rest()
        assert deferred.faults == []
        assert set(deferred.folded) == set(informed.source.objects)
        informer.narrow({0})
        informed.source.modify(pod("zero-0"))
        await informed.rest()
        assert (len(informer.indexer), informed.source.open_watches) == (3, 1)  # the present watch goes on
        informed.source.cut()
        await informed.clock.advance(40.0)
        one, both = SHARDING.selector({1}, is_namespaced=True), ""
        assert selectors(informed.source)[-1] == one
        assert both in selectors(informed.source)
        assert str(informer.statistics().relist_differences) == "0 added, 0 modified, 0 deleted"


async def test_a_list_that_is_under_way_does_not_count_for_a_shard_that_comes():
    """It may be older than the Lease: the shard waits for the next one, and the others do not."""
    informed = scoped(options=ReflectorOptions(watch_list=False))
    informer, source = informed.informer, informed.source
    source.fail_next(Unreachable("connection refused"), verb="list")
    async with informed.runs():
        first = informer.widen({0})
        await informed.rest()
        answer, list_ = [], source.list

        async def widen_meanwhile(*args: Any, **more: Any) -> Any:
            page = await list_(*args, **more)
            if not answer:
                answer.append(informer.widen({1}))
                source.add(pod("newer", uid=uids(1, 2)[1]))
            else:
                await rest(informed.clock)
                states.append((first.is_open, answer[0].is_open, informer.indexer.list_keys()))
            return page

        states: list[Any] = []
        source.list = widen_meanwhile
        await informed.clock.advance(5.0)
        await informed.rest()
        assert states == [(True, False, ["demo/zero-0"])]
        assert answer[0].is_open
        assert sorted(informer.indexer.list_keys()) == ["demo/newer", "demo/one-0", "demo/zero-0"]


async def test_a_large_shard_is_introduced_in_slices_and_nothing_is_lost_or_doubled():
    """Changes in between are told in their order, and a listener that came for changes hears no Added."""
    informed = scoped(of_shard_0=0, of_shard_1=1)
    informer, source, changes = informed.informer, informed.source, Recorder()
    numbers = (uid for uid in (f"{each}-more" for each in range(10_000)) if SHARDING.shard_of(None, uid) == 1)
    for number, uid in zip(range(1200), numbers, strict=False):
        source.add(pod(f"many-{number}", uid=uid))
    informer.add_listener(changes, initial=False)
    async with informed.runs():
        informer.widen({1})
        await informed.rest()
        informer.open_shards({1})
        assert len(informed.listener.told) == 500
        source.modify(pod("many-7"))
        source.modify(pod("many-1199"))
        source.delete("demo/many-1198")
        await informed.rest()
        assert informed.listener.faults == []
        assert set(informed.listener.folded) == set(source.objects)
        assert changes.lines() == [
            "Modified demo/many-7",
            "Modified demo/many-1199",
            "Deleted demo/many-1198",
        ]
        informer.close_shards({1})
        source.delete("demo/many-1197")
        await informed.rest()
        assert len(changes.told) == 3


async def test_the_status_shows_whether_the_server_filters():
    """Objects outside show that it does not, and are counted; shardInfo shows that it does."""
    informed = scoped(options=ReflectorOptions(watch_list=False))
    informer, source = informed.informer, informed.source
    async with informed.runs():
        informer.widen({1})
        await informed.rest()
        figures = informer.statistics().reflector
        assert (figures.filtered_by_server, figures.items_listed, figures.items_outside) == (False, 1, 1)
        source.modify(pod("zero-0"))
        await informed.rest()
        assert informer.statistics().events == {"OUTSIDE": 1}
        assert informer.version_in(None) == source.resource_version
        source.filters_shards = True
        informer.request_relist()
        await informed.rest()
        figures = informer.statistics().reflector
        assert (figures.filtered_by_server, figures.items_listed, figures.items_outside) == (True, 1, 0)


@pytest.mark.parametrize(
    "fault",
    [
        InvalidRequest(400, "BadRequest", 'unknown query parameter "shardSelector"'),
        ServerError(500, "", "invalid shard selector: no such function"),
    ],
)
@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_refused_shard_selector_is_left_out_from_then_on(fault: Exception, verb: str):
    """The refused request comes again at once without it, and is no fault."""
    informed = scoped(options=ReflectorOptions(watch_list=verb == "watch"))
    informer, source = informed.informer, informed.source
    source.fail_next(fault, verb=verb)
    async with informed.runs():
        informer.widen({1})
        await informed.rest()
        assert informer.indexer.list_keys() == ["demo/one-0"]
        assert [bool(text) for text in selectors(source)][:2] == [True, False]
        assert not any(selectors(source)[1:])
        figures = informer.statistics().reflector
        assert (figures.filtered_by_server, figures.failures) == (False, 0)


async def test_a_narrower_scope_is_no_other_history():
    """The witness of the proof may have left; after a lost connection the watch goes on, without a LIST."""
    informed = scoped()
    informer, source = informed.informer, informed.source
    async with informed.runs():
        informer.widen({0, 1})
        await informed.rest()
        source.modify(pod("one-0"))
        source.cut(Unreachable("reset"))
        await informed.clock.advance(40.0)
        informer.narrow({1})
        source.cut(Unreachable("reset"))
        await informed.clock.advance(40.0)
        figures = informer.statistics().reflector
        assert (figures.rollbacks, figures.lists) == (0, 1)
        # A scope is as a selector: only the witness is compared.
        assert {each.field_selector for each in source.checks()} == {"metadata.name=one-0"}
        assert (figures.state, informer.indexer.list_keys()) == ("Watching", ["demo/zero-0"])


def test_what_is_outside_is_not_decoded_further():
    """No frame and no transform for it; also where it has an odd shape, or is decoded as a whole."""
    seen: list[Any] = []

    def note(obj: Any) -> Any:
        seen.append(obj["metadata"]["name"])
        return obj

    plain = Projection(api_version="v1", kind="Pod")
    for one in (plain, plain.with_transform(note)):
        one.restrict(lambda _, uid: uid == "mine")
        for odd in ({}, {"labels": 7}):
            objects = [pod(name, uid=name, resourceVersion="5", **odd) for name in ("mine", "other")]
            lines = [msgspec.json.encode({"type": "MODIFIED", "object": each}) for each in objects]
            events, fault = one.events(lines)
            assert fault is None
            assert [(each.type, each.resource_version) for each in events] == [
                (EventType.MODIFIED, "5"),
                (EventType.OUTSIDE, "5"),
            ]
            assert events[1].decode_warning == ""
            page = one.page(msgspec.json.encode({"kind": "PodList", "metadata": {}, "items": objects}))
            assert ([each.key for each in page.records], page.outside) == (["demo/mine"], 1)
    assert plain.statistics().objects == 4
    meta = b'{"name":"other","uid":"other","resourceVersion":"5"}'
    broken = b'{"kind":"Pod","apiVersion":"v1","metadata":%b,"spec":{"x":tru}}' % meta
    told = plain.event(b'{"type":"MODIFIED","object":%b}' % broken)
    assert (told.type, told.resource_version, told.decode_warning) == (EventType.OUTSIDE, "5", "")
    odd = msgspec.json.encode({"object": pod("mine", uid="mine", labels=7), "type": "ADDED"})
    assert (plain.event(odd).type, plain.event(odd).decode_warning) == (EventType.ADDED, "")
    # A page of which no object can be used is an error, but not if the others are outside.
    items = b'{"kind":"PodList","metadata":{},"items":[%b,{"metadata":{}}]}' % broken
    assert (len(plain.page(items).skipped), plain.page(items).outside) == (1, 1)
    assert set(seen) == {"mine"}


async def test_misuse_is_refused():
    """Each with a sentence, and nothing has changed."""
    _, plain, _ = made()
    with pytest.raises(CacheError, match="has no scope of shards"):
        plain.widen({0})
    informed = scoped()
    informer = informed.informer
    with pytest.raises(CacheError, match="there is no shard 2: the shards are 0 to 1"):
        informer.widen({0, 2})
    with pytest.raises(CacheError, match="the shard 0 is not listed yet"):
        informer.open_shards({0})
    with pytest.raises(CacheError, match="can't begin with kept objects"):
        informer.begin_with([], "7", whole=True, same_cluster=True)
    with pytest.raises(CacheError, match="RealFIFO"):
        made(scope=ShardScope(SHARDING), queue="DeltaFIFO")
    async with informed.runs():
        await rest(informed.clock)
        assert informed.source.requests == []
