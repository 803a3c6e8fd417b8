"""Whether a server can be reached: one question for all who wait."""

import asyncio
from itertools import pairwise

import pytest

from declctl.errors import Forbidden, ServerError, Unreachable
from declctl.kit import ManualClock
from declctl.transport.health import ServerHealth


class Server:
    """It answers, or not; remembers when it was asked."""

    def __init__(self, clock):
        self.clock = clock
        self.fault = None
        self.asked = []

    async def answer(self):
        self.asked.append(self.clock.monotonic())
        if self.fault is not None:
            raise self.fault


def bench(fault=None, *, jitter=0.5):
    clock = ManualClock(jitter=jitter)
    server = Server(clock)
    server.fault = fault
    return clock, server, ServerHealth(server.answer, url="https://there", clock=clock)


async def waiting(health, clock, seconds, ended):
    returned = await health.wait(seconds)
    ended.append((clock.monotonic(), returned))


REFUSED = Unreachable("https://there can't be reached: connection refused.")


@pytest.mark.client_go("Run loop", "Connection refused / 429 at watch")
@pytest.mark.parametrize("fault", [REFUSED, ServerError(503, "ServiceUnavailable", "no healthy upstream")])
async def test_after_an_outage_of_minutes_all_watches_go_on_within_two_seconds(fault):
    """180 of them, whatever they had still to wait; while the server was away it was asked by one."""
    clock, server, health = bench(fault)
    ended, began = [], clock.now()
    health.suspect()
    tasks = [asyncio.create_task(waiting(health, clock, 0.8 + number / 3, ended)) for number in range(180)]
    await clock.advance(150)
    assert ended == []
    status = health.status()
    assert (status.unreachable_since, status.error, status.outages) == (began, str(fault), 1)
    assert len(server.asked) == 101, "once every second and a half"
    server.fault = None
    back = clock.monotonic()
    await clock.advance(4)
    await asyncio.gather(*tasks)
    moments = [moment - back for moment, _ in ended]
    assert max(moments) <= 1.5 + 2.0
    assert all(returned for _, returned in ended)
    for second in range(4):
        assert sum(second <= moment < second + 1 for moment in moments) <= 100
    assert (health.status().unreachable_since, health.status().error) == (None, None)


async def test_a_server_that_is_there_leaves_everybody_to_their_own_wait():
    """One request of somebody fails: the others are not held up, and it waits as long as it would."""
    clock, server, health = bench()
    ended = []
    health.suspect()
    tasks = [asyncio.create_task(waiting(health, clock, wait, ended)) for wait in (0, 0.8, 30)]
    await clock.advance(60)
    await asyncio.gather(*tasks)
    assert ended == [(1000.0, False), (1000.8, False), (1030.0, False)]
    assert (len(server.asked), health.status().outages) == (1, 0)


async def test_a_refusal_shows_that_the_server_is_there():
    """Who may not ask for the version is answered all the same."""
    clock, _, health = bench(Forbidden(403, "Forbidden", "no"))
    health.suspect()
    await clock.advance(1)
    assert (await health.wait(0), health.status().outages) == (False, 0)


async def test_a_server_is_asked_once_a_second_at_most_however_many_suspect_it():
    clock, server, health = bench()
    for _ in range(100):
        health.suspect()
        await clock.advance(0.1)
    assert all(later - earlier >= 1 for earlier, later in pairwise(server.asked))


async def test_one_watch_alone_does_not_wait_for_its_turn():
    """The spread grows with those who wait."""
    clock, server, health = bench(REFUSED, jitter=0.0)
    ended = []
    health.suspect()
    task = asyncio.create_task(waiting(health, clock, 50, ended))
    await clock.advance(10.5)
    server.fault = None
    await clock.advance(0.5)
    await task
    assert ended == [(1011.0, True)]


async def test_an_outage_that_begins_again_before_ones_turn_is_waited_for():
    """A server that comes and goes is not asked by those whose turn comes when it is gone again."""
    clock, server, health = bench(REFUSED)
    ended = []
    health.suspect()
    tasks = [asyncio.create_task(waiting(health, clock, 1, ended)) for _ in range(100)]
    await clock.advance(3.1)
    server.fault = None
    await clock.advance(2.0)
    first = len(ended)
    assert 0 < first < 100
    server.fault = REFUSED
    health.suspect()
    await clock.advance(60)
    assert len(ended) == first
    assert health.status().outages == 2
    server.fault = None
    await clock.advance(4)
    await asyncio.gather(*tasks)


async def test_a_server_that_never_answers_is_given_up_on_and_asked_again():
    """A question without an answer is none: it does not keep everybody waiting for ever."""
    clock, server, health = bench(TimeoutError())
    health.suspect()
    await clock.advance(3)
    assert health.status().error == "https://there did not answer within 5 s."
    assert len(server.asked) == 3
    await health.close()


async def test_closing_leaves_nobody_waiting_and_no_task():
    clock, _, health = bench(REFUSED)
    health.suspect()
    ended = []
    task = asyncio.create_task(waiting(health, clock, 1, ended))
    await clock.advance(5)
    await health.close()
    await task
    health.suspect()
    await clock.settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_stray_cancellation_in_the_question_keeps_nobody_waiting():
    """The login of somebody else's configuration may raise what it likes: watches go on all the same."""
    clock, _, health = bench(asyncio.CancelledError())
    ended = []
    health.suspect()
    task = asyncio.create_task(waiting(health, clock, 0, ended))
    await clock.advance(2)
    assert [returned for _, returned in ended] == [False]
    await task
    await health.close()
