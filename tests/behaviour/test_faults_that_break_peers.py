"""Faults at which other clients lose objects, storm the server or die: over real HTTP, against the sandbox.

Clocks run faster than the sun, so that the back-off and the deadlines are those of production.
"""

import asyncio

import pytest

from declctl.errors import Forbidden, ServerError, StatusError
from declctl.informer import (
    FakeControllerSource,
    ReflectorOptions,
    SharedIndexInformer,
)
from declctl.kit import ManualClock
from declctl.sandbox import Sandbox
from declctl.sandbox.faults import Match
from tests.behaviour.library import cluster, config_map, eventually, ticking

HOUR = 3600.0


@pytest.mark.client_go("Watch answers 403 or 500 for a while")
@pytest.mark.parametrize(
    "fault", [Forbidden(403, "Forbidden", "no"), ServerError(500, "InternalError", "oh")]
)
async def test_a_watch_that_is_refused_for_an_hour_costs_two_requests_a_minute(fault: StatusError):
    """Back-off ends at half a minute: the server is left alone, and its recovery is noticed soon."""
    clock, server = ManualClock(), FakeControllerSource(kind="ConfigMap")
    server.add(config_map("a"))
    informer = SharedIndexInformer(server, name="maps", clock=clock)
    task = asyncio.create_task(informer.run())
    await clock.advance(1.0)
    server.fail_next(fault, times=10_000)
    server.cut()
    asked = len(server.requests)
    await clock.advance(HOUR)
    asked = len(server.requests) - asked
    assert HOUR / 30 <= asked <= 3 * HOUR / 30  # a list that succeeds may be among them
    assert [record.key for record in informer.indexer.list()] == ["default/a"]
    server.calm()
    server.add(config_map("b"))
    await clock.advance(30.0)
    assert len(informer.indexer) == 2
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.client_go("A delete that is missed across 410")
@pytest.mark.parametrize("streams", ["on", "invalid"])
@pytest.mark.parametrize("told_as", ["event", "status"])
async def test_a_delete_behind_a_forgotten_history_is_told_as_a_tombstone(streams, told_as):
    """The watch was away when an object went, and the server has forgotten it: everybody learns of it."""
    async with cluster() as it:
        it.faults.watch_list, it.faults.expired_watch = streams, told_as
        it.put("stays", colour="red")
        it.put("goes", colour="red")
        await it.synced()
        it.forget(lambda: it.delete("goes"))
        await eventually(lambda: it.told.tombstones == ["goes"])
        await it.same()
        assert it.told.names("delete") == ["goes"]
        assert [obj.name for obj in it.informer.lister.by_index("colour", "red")] == ["stays"]
        assert sorted(it.told.names("add")) == ["goes", "somebody-else", "stays"]


@pytest.mark.thorough
@pytest.mark.client_go("More than 500 objects, with an expired continue token")
async def test_pages_that_outlive_their_version_become_one_whole_list():
    """1,200 objects in pages of 500, and the history goes between two of them: the cache is complete."""
    sandbox, names = Sandbox(clock=(clock := ManualClock())), [f"m{number:04}" for number in range(1200)]
    async with cluster(sandbox=sandbox, options=ReflectorOptions(page_size=500)) as it:
        it.faults.watch_list = "invalid"
        it.sandbox.load(config_map(name) for name in names)
        await it.synced()
        listed = len(it.asked("list"))
        it.faults.delay(1.0, Match(verb="list"))
        it.forget(lambda: it.delete(names[0]))
        await eventually(lambda: len(it.asked("list")) == listed + 1)
        await clock.advance(1.0)
        await eventually(lambda: len(it.asked("list")) == listed + 2)  # the second page waits
        it.delete(names[-1])
        it.put("late")
        it.faults.compact()
        async with ticking(clock):
            await it.same()
        first, second, whole = it.asked("list")[listed:]
        assert (first["limit"], "continue" in second, "limit" in whole) == ("500", True, False)
        assert len(it.cached()) == 1200
        assert sorted(it.told.tombstones) == [names[0], names[-1]]
        assert len(it.told.names("add")) == 1202


async def test_a_list_over_a_slow_network_is_waited_for():
    """Twelve minutes for one answer: as long as it goes on coming, nobody begins it anew."""
    clock = ManualClock()
    async with cluster(clock=clock, sandbox=Sandbox(clock=clock)) as it:
        for name in "abcdefgh":
            it.put(name, text="x" * 200)
        it.faults.watch_list = "invalid"
        it.faults.trickle(100.0, Match(verb="list"))
        it.start()
        for _ in range(7):
            await eventually(lambda: it.figures().last_event_age == 0.0)
            assert not it.informer.has_synced
            await clock.advance(100.0)
        await it.registration.synced.wait()
        await it.same()
        assert len(it.asked("list")) == 1
        assert it.figures().failures == 0


@pytest.mark.client_go("An initial stream that is cut before its end")
@pytest.mark.parametrize("clean", [True, False])
async def test_an_initial_stream_that_breaks_off_is_begun_again(clean):
    """Five objects came and the end did not: nobody hears of half a cache, then of all that is there now."""
    async with cluster() as it:
        for name in "abcde":
            it.put(name)
        it.faults.withhold_initial_events_end = True
        it.start()
        await eventually(lambda: it.figures().items_listed == 5)
        assert (it.told.lines, it.cached(), it.informer.has_synced) == ([], {}, False)
        it.delete("a")
        it.faults.withhold_initial_events_end = False
        it.faults.cut_watches(clean=clean)
        await it.registration.synced.wait()
        assert sorted(it.told.initial) == ["b", "c", "d", "e"]
        assert len(it.told.lines) == 4
        it.put("f")
        await it.same()


@pytest.mark.client_go("An expired version")
@pytest.mark.parametrize("told_as", ["event", "status"])
async def test_an_expired_version_is_asked_for_once(told_as):
    """After a 410 everything is asked for and compared: what has not changed is not told again."""
    async with cluster() as it:
        it.faults.expired_watch = told_as
        for name in "abc":
            it.put(name)
        await it.synced()
        version = it.informer.last_sync_resource_version
        it.told.lines.clear()
        it.forget(lambda: it.put("b", new="yes"))
        await it.watching()
        await it.same()
        resumed = [w for w in it.asked("watch") if w.get("resourceVersion") == version]
        assert len([w for w in resumed if "sendInitialEvents" not in w]) == 1
        assert it.told.names("update") == ["b"]
        assert it.told.names("add") == ["somebody-else"]
        assert it.lists() == 2


@pytest.mark.client_go("An end bookmark that never comes")
async def test_a_stream_that_never_says_that_it_is_complete_is_given_up_for_a_list():
    """The server streams everything and not its end: after a deadline it is listed, and all is seen."""
    async with cluster() as it:
        for name in "abc":
            it.put(name)
        it.faults.withhold_initial_events_end = True
        began = it.clock.monotonic()
        await it.synced()
        assert it.clock.monotonic() - began < 300.0
        assert len(it.asked("list")) == 1
        assert sorted(it.told.initial) == ["a", "b", "c"]
        it.put("d")
        await it.same()
