"""Faults at which other clients lose objects, storm the server or die: over real HTTP, against the sandbox.

Clocks run faster than the sun, so that the back-off and the deadlines are those of production.
"""

import asyncio
import threading
from typing import Any

import pytest

from declctl.errors import Forbidden, ServerError, StatusError
from declctl.informer import (
    FakeControllerSource,
    ReflectorOptions,
    ResourceEventHandlerFuncs,
    SharedIndexInformer,
)
from declctl.kit import ManualClock
from declctl.objects import ObjectView
from declctl.sandbox import Sandbox
from declctl.sandbox.faults import Match
from tests.behaviour.library import cluster, config_map, eventually, ticking

HOUR = 3600.0
WATCHES = Match(verb="watch", resource="configmaps")


@pytest.mark.thorough
@pytest.mark.client_go("Watch answers 403 or 500 for a while")
@pytest.mark.parametrize("status", [403, 500])
async def test_a_watch_that_is_refused_for_a_while_is_asked_for_more_and_more_seldom(status):
    """The cache stays, the fault is told, the waits grow, and afterwards everything is seen."""
    async with cluster() as it:
        it.put("a")
        await it.synced()
        began = it.clock.monotonic()
        it.faults.refuse(status, WATCHES, times=6)
        it.faults.cut_watches()
        await eventually(lambda: it.figures().error is not None)
        it.put("b")
        assert list(it.cached()) == ["a"]
        await it.watching()
        await it.same()
        assert it.told.names("add") == ["a", "b"]
        waited = it.clock.monotonic() - began
        # Six waits from 0.8 s on, each twice the one before, and up to a half less by chance.
        assert waited > (0.8 + 1.6 + 3.2 + 6.4 + 12.8 + 25.6) / 2
        assert it.figures().failures <= 8


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


@pytest.mark.client_go("An object that fails typed validation")
async def test_an_object_that_a_typed_client_refuses_is_kept_as_it_came():
    """A pod whose containers are null, listed and watched: it is in the cache, and so is what follows."""

    def pod(name: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": None},
        }

    async with cluster(kind="Pod") as it:
        it.sandbox.store.create(pod("listed"))
        await it.synced()
        it.sandbox.store.create(pod("watched"))
        it.sandbox.store.create({**pod("good"), "spec": {"containers": []}})
        await eventually(lambda: it.told.names("add") == ["listed", "watched", "good"])
        for name in ("listed", "watched"):
            assert it.informer.lister.get(f"default/{name}")["spec"]["containers"] is None
        assert it.figures().failures == 0
        assert it.lists() == 1


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


@pytest.mark.client_go("A half-open watch")
async def test_a_watch_that_says_nothing_is_resumed_without_a_list():
    """The connection is there and nothing comes: after `idle_timeout` it goes on from where it was."""
    async with cluster(options=ReflectorOptions(idle_timeout=30.0)) as it:
        it.put("a")
        await it.synced()
        watches, version = len(it.asked("watch")), it.informer.last_sync_resource_version
        it.faults.silence()
        it.put("b")
        await eventually(lambda: len(it.asked("watch")) > watches)
        it.faults.speak()
        await it.same()
        assert it.asked("watch")[watches]["resourceVersion"] == version
        assert it.figures().idle_closes >= 1
        assert it.told.names("add") == ["a", "b"]
        assert it.lists() == 1


@pytest.mark.client_go("A slow handler")
async def test_a_handler_that_blocks_holds_up_nobody_else():
    """One handler hangs in its first call: the cache and the others are current; it hears it all later."""
    gate, heard = threading.Event(), []

    def hang(obj: ObjectView, initial: bool) -> None:
        gate.wait(20.0)
        heard.append(obj.name)

    async with cluster() as it:
        it.put("a")
        slow = it.informer.add_event_handler(ResourceEventHandlerFuncs(add=hang))
        try:
            await it.synced()
            names = [f"m{number}" for number in range(50)]
            for name in names:
                it.put(name)
            await it.same()
            await eventually(lambda: it.told.names("add") == ["a", *names])
            assert (heard, slow.has_synced) == ([], False)
        finally:
            gate.set()
        await slow.synced.wait()
        await eventually(lambda: heard == ["a", *names])


@pytest.mark.client_go("A handler that edits its object")
async def test_what_a_handler_does_to_an_object_nobody_else_sees():
    """An object refuses edits; what is inside, and every copy, is the own one of whoever reads it."""
    refused: list[str] = []

    def edit(obj: ObjectView, initial: bool) -> None:
        whole: Any = obj
        for what, name in ((whole, "spec"), (whole.labels, "app"), (whole.annotations, "note")):
            try:
                what[name] = "edited"
            except TypeError as error:
                refused.append(str(error))
        for body in (whole, whole.to_dict()):
            body["data"]["colour"] = "edited"
            body["metadata"]["ownerReferences"][0]["name"] = "edited"
            body["metadata"]["ownerReferences"].append("edited")

    async with cluster() as it:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": "u-1"}
        obj = config_map("a", colour="red")
        obj["metadata"]["ownerReferences"] = [owner]
        stored = it.sandbox.store.create(obj)
        seen: list[dict[str, Any]] = []
        it.informer.add_event_handler(ResourceEventHandlerFuncs(add=edit))
        look = ResourceEventHandlerFuncs(add=lambda obj, initial: seen.append(obj.to_dict()))
        it.informer.add_event_handler(look)
        await it.synced()
        await eventually(lambda: len(refused) == 3 and seen)
        assert seen == [stored]
        assert it.informer.lister.get("default/a").to_dict() == stored
        assert [o.name for o in it.informer.lister.by_index("colour", "red")] == ["a"]


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


async def test_two_megabytes_in_one_object_are_an_object_like_any_other():
    """An object that is larger than any buffer comes whole, by LIST and by WATCH."""
    much = "x" * 2_000_000
    async with cluster() as it:
        it.put("listed", much=much)
        await it.synced()
        it.put("watched", much=much)
        it.put("small")
        await eventually(lambda: it.told.names("add") == ["listed", "watched", "small"])
        for name in ("listed", "watched"):
            assert it.informer.lister.get(f"default/{name}")["data"]["much"] == much
        assert it.figures().failures == 0


async def test_a_line_that_is_no_event_is_counted_and_survived():
    """Half a line, rubbish, and an event of nothing: each costs a back-off, and no object."""
    async with cluster() as it:
        it.put("a")
        await it.synced()
        failures = 0
        for number, rubbish in enumerate([b"{", b"null", b'{"type":"ADDED","object":{}}', b"\xff\xfe"]):
            for stream in it.faults.streams:
                stream.inject(rubbish + b"\n")
            it.put(f"after-{number}")
            await eventually(lambda: it.figures().failures > failures)  # noqa: B023 - it waits here
            await it.watching()
            await it.same()
            failures = it.figures().failures
        assert it.told.names("add") == ["a", *(f"after-{number}" for number in range(4))]
        assert it.told.tombstones == []


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_status_where_objects_were_asked_for_empties_no_cache(verb):
    """The answer is 200 and holds a Status: it is a fault like any other, and not an empty list."""
    async with cluster() as it:
        it.faults.watch_list = "invalid"
        it.put("a")
        await it.synced()
        it.faults.refuse(200, Match(verb=verb, resource="configmaps"), times=3)
        it.forget(lambda: it.put("b"))
        await eventually(lambda: it.figures().failures >= 2)
        assert "a" in it.cached()
        await it.watching()
        await it.same()
        assert (it.told.names("delete"), it.told.tombstones) == ([], [])
