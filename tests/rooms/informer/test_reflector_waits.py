"""Watches that are refused: how long they are waited for, and that no list follows."""

from types import SimpleNamespace

import pytest

from declctl.errors import Conflict, Forbidden, ServerError, TooManyRequests, Unreachable
from declctl.informer import ExponentialBackoff
from declctl.transport import ServerHealth
from tests.rooms.informer.reflecting import EXPIRED, bench
from tests.rooms.informer.shapes import pod


@pytest.mark.client_go(120, "Very short watch")
async def test_a_watch_that_ends_at_once_is_waited_for():
    """A server that slams the door is not asked in a circle (client-go 120)."""
    async with bench() as b:
        await b.advance(5)
        for _ in range(3):
            b.source.cut()
            await b.settle()
            b.source.cut()
            await b.settle()
            assert b.figures.state == "BackingOff"
            await b.advance(30)
        assert "brought nothing new" in str(b.faults[0])
        assert b.figures.relists == 0


@pytest.mark.parametrize(
    "fault",
    [
        Unreachable("connection refused"),
        TooManyRequests(429, "TooManyRequests", "slow down"),
        ServerError(503, "ServiceUnavailable", "not now"),
        Forbidden(403, "Forbidden", "pods is forbidden"),
    ],
)
@pytest.mark.client_go(125, 128, "Connection refused / 429 at watch")
async def test_a_refused_watch_is_asked_for_again_from_the_same_version(fault):
    """The waits grow, and a recovering server is not met by lists (client-go 125, 128)."""
    async with bench() as b:
        await b.advance(5)
        b.source.fail_next(fault, times=4)
        b.source.cut()
        await b.settle()
        assert b.figures.state == "BackingOff"
        b.source.add(pod("c"))
        await b.advance(60)
        assert b.names == ["a", "b", "c"]
        assert b.versions() == ["", "2", "2", "2", "2", "2"]
        assert b.source.lists() == []
        assert (b.figures.failures, b.figures.error) == (4, None)
        assert b.figures.waited == pytest.approx(0.8 + 1.6 + 3.2 + 6.4)
        assert b.faults == [fault] * 4


@pytest.mark.client_go(127, "429 inside the stream")
async def test_too_many_requests_twice_is_two_waits():
    """Once as an event, once as an answer: the watch goes on from its version, not before it is wanted."""
    async with bench() as b:
        await b.advance(5)
        b.source.fail_next(TooManyRequests(429, "TooManyRequests", ""))
        b.source.cut(TooManyRequests(429, "TooManyRequests", "", retry_after=7.0))
        await b.advance(6)
        assert b.figures.watches == 1
        await b.advance(10)
        assert (b.figures.back_offs, b.figures.waited) == (2, pytest.approx(7 + 1.6))
        assert b.versions() == ["", "2", "2"]
        assert b.figures.rounds == 1


@pytest.mark.client_go(126, "Custom backoff")
async def test_a_schedule_of_ones_own_is_waited_by():
    """Through the options, which an informer and a factory take as well."""
    own = {"backoff": lambda clock: ExponentialBackoff(clock, first=0.01, longest=0.1)}
    async with bench(watch_list=False, begin=False, **own) as b:
        b.source.fail_next(Unreachable("no"), times=5)
        await b.begin()
        await b.advance(0.24)
        assert b.figures.state == "BackingOff"
        await b.advance(0.02)
        assert b.figures.state == "Watching"
        assert b.figures.waited == pytest.approx(0.25)


@pytest.mark.client_go(129, 146, "500 inside the stream")
async def test_internal_errors_are_waited_out_before_a_list():
    """Five times at one version, in half a minute; a version that moves on, or ten minutes, begin anew."""
    async with bench() as b:
        fault = ServerError(500, "InternalError", "etcd is busy")
        for so_far in (5, 10, 15):
            for _ in range(5):
                b.source.cut(fault)
                await b.advance(61)
            assert (b.figures.relists, b.figures.back_offs) == (0, so_far)
            if so_far == 5:
                b.source.add(pod("c"))
                await b.settle()
            elif so_far == 10:
                await b.advance(600)
        b.source.cut(fault)
        await b.advance(61)
        assert b.figures.relists == 1


@pytest.mark.client_go("Watch error handler", "Other watch errors")
async def test_faults_are_given_to_whoever_wants_them():
    """Each that is waited for, as it is; what needs no wait is none."""
    async with bench() as b:
        conflict = Conflict(409, "Conflict", "what is this")
        b.source.cut(conflict)
        await b.advance(1)
        b.source.cut(EXPIRED)
        await b.advance(2)
        assert b.faults == [conflict, EXPIRED]
        assert b.figures.relists == 2
        b.source.add(pod("c"))
        await b.settle()
        b.source.cut(EXPIRED)
        await b.advance(1)
        assert len(b.faults) == 2


async def _answers(server):
    server.asked += 1
    if server.fault is not None:
        raise server.fault


def _shared(b, **server):
    """The source of a bench says how its server is."""
    there = SimpleNamespace(fault=None, asked=0, **server)
    b.source.health = ServerHealth(lambda: _answers(there), url="https://there", clock=b.clock)
    return there


@pytest.mark.client_go("Run loop")
async def test_a_watch_is_true_soon_after_the_server_is_back_however_long_it_was_away():
    """Ten minutes of outage do not make it wait for half a minute more; it asks nothing meanwhile."""
    async with bench() as b:
        server = _shared(b)
        server.fault = Unreachable("connection refused")
        b.source.fail_next(server.fault, times=1000)
        b.source.cut(server.fault)
        await b.advance(600)
        assert (len(b.source.watches()), b.figures.failures) == (1, 1)
        assert server.asked == 601, "at once, then once a second"
        b.source.add(pod("c"))
        server.fault = None
        b.source.calm()
        await b.advance(3)
        assert b.agrees()
        assert b.figures.waited == pytest.approx(600, abs=5)


@pytest.mark.client_go("Connection refused / 429 at watch")
@pytest.mark.parametrize(
    "refusal", [Forbidden(403, "Forbidden", "no"), TooManyRequests(429, "TooManyRequests", "")]
)
async def test_what_is_refused_waits_for_itself_and_keeps_nobody_else(refusal):
    """A namespace that is forbidden has its own back-off, and no other watch waits for it."""
    async with bench() as b:
        server = _shared(b)
        await b.advance(5)
        b.source.fail_next(refusal, times=4)
        b.source.cut()
        await b.advance(3)
        assert (b.figures.state, server.asked) == ("BackingOff", 0)
        assert not await b.source.health.wait(0)


@pytest.mark.client_go("Run loop")
async def test_a_server_that_refuses_while_it_starts_is_asked_again_soon():
    """Rights that are not there in the first second after a restart are not waited for as after an hour."""
    async with bench() as b:
        server = _shared(b)
        for _ in range(8):  # its own back-off is at half a minute
            b.source.cut(Forbidden(403, "Forbidden", "no"))
            await b.advance(40)
        server.fault = Unreachable("connection refused")
        b.source.fail_next(server.fault, times=1000)
        b.source.cut(server.fault)
        await b.advance(60)
        b.source.calm()
        b.source.fail_next(Forbidden(403, "Forbidden", "no"), times=2)
        server.fault = None
        b.source.add(pod("c"))
        await b.advance(4.5)
        assert b.agrees()
