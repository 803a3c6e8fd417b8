"""One elector and one lease: who takes it when, who keeps it, and who stops acting."""

import asyncio
from datetime import UTC, datetime

import pytest

from declctl.errors import Conflict, Forbidden, NotFound, ServerError, TooManyRequests, Unreachable
from declctl.kit import ManualClock
from declctl.leadership import LeaderElector, LeaseTimes, new_identity
from declctl.leadership.elector import Election
from tests.rooms.leadership.scene import TIMES, Leases, Scene

OTHER = {"holderIdentity": "other", "leaseDurationSeconds": 15, "leaseTransitions": 3}
SHORT = {**OTHER, "leaseDurationSeconds": 3}
BROKEN = ServerError(500, "InternalError", "etcd")


def busy(seconds):
    return TooManyRequests(429, "TooManyRequests", "busy", retry_after=seconds)


@pytest.mark.client_go(263, "Election loop")
async def test_a_lease_that_is_not_there_is_created():
    """The first process leads at once, with no transition; the lease says since when (client-go 263)."""
    async with Scene() as s:
        assert s.leads
        assert s.heard == ["started", "leader me"] or s.heard == ["leader me", "started"]
        assert s.leases.spec == {
            "holderIdentity": "me",
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-01-01T00:00:00.000000Z",
            "renewTime": "2026-01-01T00:00:00.000000Z",
            "leaseTransitions": 0,
        }
        assert s.leases.lease["metadata"]["name"] == "app"


@pytest.mark.client_go(264)
@pytest.mark.parametrize(
    "spec", [{}, {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 3}]
)
async def test_a_lease_that_nobody_holds_is_taken_at_once(spec):
    """A lease without a holder, also one that was just released (client-go 264)."""
    async with Scene(Leases(spec)) as s:
        assert s.leads
        assert s.leases.spec["leaseTransitions"] == spec.get("leaseTransitions", 0) + 1


@pytest.mark.client_go(265, "Expiry by local clock")
@pytest.mark.parametrize(
    ("spec", "seconds", "transitions"),
    [
        ({**SHORT, "renewTime": "2026-01-01T00:00:00.000000Z"}, 3, 4),
        ({**SHORT, "renewTime": "1999-01-01T00:00:00Z"}, 3, 4),
        ({**SHORT, "renewTime": "2050-01-01T00:00:00Z"}, 3, 4),
        ({"holderIdentity": "other"}, 15, 1),
        ({"holderIdentity": "other", "leaseDurationSeconds": -3}, 15, 1),
        ({"holderIdentity": "other", "leaseDurationSeconds": "soon", "leaseTransitions": "many"}, 15, 1),
        ({"holderIdentity": "other", "leaseDurationSeconds": True, "acquireTime": 7, "renewTime": []}, 15, 1),
    ],
)
async def test_a_lease_of_another_process_is_taken_when_its_time_is_over(spec, seconds, transitions):
    """Its own 3 s count, from our first look, whatever time stands in it (client-go 265).

    A malformed lease has our duration. client-go takes it at once; its holder may well act.
    """
    async with Scene(Leases(spec)) as s:
        await s.clock.advance(seconds - 0.1)
        assert not s.leads
        await s.clock.advance(0.2)
        assert s.leads
        assert s.leases.spec["leaseTransitions"] == transitions
        assert s.heard == ["leader other", "leader me", "started"]


@pytest.mark.client_go(268, 274, "Fast path")
async def test_the_leader_renews_without_a_read():
    """Get, create, then one update each 2 s; the name and the transitions stay (client-go 268, 274).

    So do labels, and fields of the spec that this version does not know (client-go 277). A lease that was
    deleted is made anew, and the leader goes on leading.
    """
    async with Scene() as s:
        await s.clock.advance(6.5)
        assert s.leases.calls == ["get", "create", "update", "update", "update"]
        assert s.leases.spec["leaseTransitions"] == 0
        assert s.leases.spec["acquireTime"] < s.leases.spec["renewTime"]
        # Somebody writes it, one renewal fails: it is read and written once, and the fast path goes on.
        s.leases.calls.clear()
        s.leases.put(**s.leases.spec, strategy="OldestEmulationVersion")
        s.leases.lease["metadata"]["labels"] = {"team": "a"}
        await s.clock.advance(4)
        assert s.leases.calls == ["update", "get", "update", "update"]
        assert s.leases.spec["strategy"] == "OldestEmulationVersion"
        assert s.leases.lease["metadata"]["labels"] == {"team": "a"}
        s.leases.lease = None
        await s.clock.advance(2)
        assert s.leads
        assert s.leases.spec["holderIdentity"] == "me"
        assert s.heard.count("started") == 1


@pytest.mark.parametrize("turns", range(1, 12))
async def test_a_cancellation_ends_an_election_at_any_moment(turns):
    """Also when an answer has just come: else a process that ends would wait for the election for ever."""
    clock = ManualClock()
    task = asyncio.ensure_future(LeaderElector(Leases(), times=TIMES, clock=clock, identity="me").run())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await clock.settle()
    assert task.cancelled()


async def test_the_leader_stops_at_its_deadline_while_the_server_is_silent():
    """10 s after the last renewal that was sent, whatever requests are under way; `run` says why.

    After SIGSTOP for 11 s the first look says no, before any request has failed.
    """
    async with Scene() as s:
        s.clock.set(11)  # nothing of the process ran meanwhile
        assert not s.leads
    async with Scene() as s:
        await s.clock.advance(3)  # the renewal of second 2
        s.leases.held = True
        await s.clock.advance(8.9)
        assert s.leads
        await s.clock.advance(0.2)
        assert not s.leads
        why = await s.task
        assert why.startswith("no renewal has succeeded for 10 s (the last error: no answer after")
        assert s.heard[-1] == f"stopped: {why}"


async def test_the_deadline_counts_from_the_sending():
    """An answer that comes late buys no time: another process counts from the change on the server."""
    async with Scene() as s:
        await s.clock.advance(1)
        assert s.elector.deadline == 1010
        slow, update = asyncio.Event(), s.leases.update

        async def late(lease):
            stored = await update(lease)
            await slow.wait()
            return stored

        s.leases.update = late
        await s.clock.advance(4)  # sent in second 2
        s.leases.held = True  # the next renewal is not answered
        slow.set()
        await s.clock.settle()
        assert s.elector.deadline == 1012


def test_a_late_answer_does_not_continue_a_term():
    """A process was stopped during a renewal: its answer is there, and the term is over all the same."""
    leases, wall = Leases(), datetime(2026, 1, 1, tzinfo=UTC)
    election = Election("me", TIMES, namespace="team", name="app", random=lambda: 0.0)
    assert election.step(0.0, wall) is not None
    election.failed(0.0, NotFound(404, "NotFound", "none"))
    created = election.step(0.0, wall)
    assert created is not None
    assert created.lease is not None
    leases.put(**created.lease["spec"])
    election.answered(0.1, leases.lease)
    assert election.is_leading
    renewal = election.step(9.0, wall)
    assert renewal is not None
    leases.put(**renewal.lease["spec"])
    # Stopped from second 9 to 12: `may_write` has been false since 10. The lease is still ours.
    election.answered(12.0, leases.lease)
    assert [event.name for event, _ in election.take_events()][-2:] == ["STOPPED_LEADING", "STARTED_LEADING"]


async def test_a_lease_that_disappears_keeps_its_time_for_those_who_have_seen_it():
    """Its holder may still act: a follower waits for the rest of the time, and creates it then."""
    leases = Leases(OTHER)
    async with Scene(leases) as s:
        leases.lease = None
        await s.clock.advance(14.9)
        assert not s.leads
        await s.clock.advance(2)
        assert s.leads


@pytest.mark.parametrize(
    ("faults", "seconds"),
    [([BROKEN] * 3, 9.5), ([Unreachable("refused")] * 3, 9.5), ([busy(1.0)] * 3, 9.5), ([busy(60.0)], 30)],
)
async def test_faults_are_outlived_until_the_deadline(faults, seconds):
    """Three failed requests cost the leader nothing but time.

    The server asks for a minute; the leader tries before its 10 s are over.
    """
    async with Scene() as s:
        s.leases.faults = list(faults)
        await s.clock.advance(seconds)
        assert s.leads
        assert s.elector.status().error is None
        assert s.heard.count("started") == 1


async def test_an_answer_that_is_lost_may_have_taken_effect():
    """The update was applied, its answer was lost: the lease is read, and renewed from its new version."""
    async with Scene() as s:
        s.leases.deaf = True
        await s.clock.advance(3)
        s.leases.deaf = False
        s.leases.calls.clear()
        await s.clock.advance(5)
        assert s.leases.calls[:2] == ["get", "update"]
        assert s.leads
        assert s.leases.spec["leaseTransitions"] == 0


async def test_retry_after_is_respected():
    """A follower asks a server that is busy no sooner than it wants."""
    leases = Leases()
    leases.faults = [busy(7.0)]
    async with Scene(leases) as s:
        await s.clock.advance(6.9)
        assert leases.calls == ["get"]
        await s.clock.advance(0.2)
        assert s.leads


async def test_a_missing_right_is_named():
    """403: the status has the rule that somebody has to add, and the verb that it lacks."""
    leases = Leases()
    leases.faults = [NotFound(404, "NotFound", "none"), Forbidden(403, "Forbidden", "leases is forbidden")]
    async with Scene(leases) as s:
        status = s.elector.status()
        assert not status.leading
        assert status.state == "Waiting"
        assert status.error is not None
        assert "apiGroups: [coordination.k8s.io], resources: [leases]" in status.error
        assert "namespace team" in status.error
        assert "lacks create" in status.error
        await s.clock.advance(5)  # the right is there now
        assert s.elector.status().error is None


@pytest.mark.parametrize(
    "answer", [{}, {"metadata": {}}, {"metadata": {"resourceVersion": ""}}, {"metadata": 3}]
)
async def test_an_answer_without_a_version_is_a_fault(answer):
    """An update without a version would overwrite the lease of anybody: none is sent."""
    leases = Leases(OTHER)
    leases.spoil = lambda _: answer
    async with Scene(leases) as s:
        await s.clock.advance(60)
        assert set(leases.calls) == {"get"}
        assert "no resource version" in (s.elector.status().error or "")


@pytest.mark.client_go(270, 271, "ReleaseOnCancel")
async def test_a_release_frees_the_lease_at_once():
    """Read again, then an empty holder with one second; a conflict is retried (client-go 270, 271)."""
    async with Scene() as s:
        await s.clock.advance(5)
        await s.stop()
        s.leases.calls.clear()
        s.leases.faults = [None, Conflict(409, "Conflict", "labelled meanwhile")]
        release = asyncio.ensure_future(s.elector.release(timeout=10))
        await s.clock.settle()
        assert not s.leads
        assert s.heard[-1] == "stopped: the lease is released"
        await s.clock.advance(1)
        assert await release
        assert s.leases.calls == ["get", "update", "get", "update"]
        assert s.leases.spec["holderIdentity"] == ""
        assert s.leases.spec["leaseDurationSeconds"] == 1
        async with Scene(s.leases, identity="next") as other:
            assert other.leads


@pytest.mark.client_go(272)
@pytest.mark.parametrize("how", ["held", "deaf"])
async def test_a_release_during_a_request_frees_the_lease(how):
    """A cancelled renewal may have been applied or not: the lease is free after it (client-go 272)."""
    async with Scene() as s:
        setattr(s.leases, how, True)
        await s.clock.advance(3)
        await s.stop()
        setattr(s.leases, how, False)
        assert await s.elector.release(timeout=10)
        assert s.leases.spec["holderIdentity"] == ""
        assert s.heard.count("stopped: the lease is released") == 1


async def test_a_release_leaves_the_lease_of_another_process_alone():
    """And a process that never wrote sends nothing at all."""
    leases = Leases(OTHER)
    async with Scene(leases) as s:
        await s.stop()
        leases.calls.clear()
        assert await s.elector.release(timeout=10)
        assert leases.calls == []
    leases.lease = None
    async with Scene(leases) as s:
        await s.stop()
        leases.put(**OTHER)
        assert await s.elector.release(timeout=10)
        assert leases.spec == OTHER


async def test_a_release_does_not_wait_for_ever():
    """A server that is away keeps no process alive: the lease ends by itself."""
    async with Scene() as s:
        await s.stop()
        s.leases.held = True
        release = asyncio.ensure_future(s.elector.release(timeout=3))
        await s.clock.advance(3.1)
        assert await release is False
        s.leases.calls.clear()
        assert (await s.elector.release(timeout=0), s.leases.calls) == (False, [])  # no time is no request


@pytest.mark.client_go("OnNewLeader")
async def test_every_new_leader_is_announced_once():
    """Each holder by its name, also this process; a renewal is no news. The status has it, and its time."""
    leases = Leases({**OTHER, "acquireTime": "2025-12-31T23:00:00.500000Z"})
    async with Scene(leases) as s:
        status = s.elector.status()
        assert (status.leading, status.holder, status.state) == (False, "other", "Following")
        assert status.since is not None
        assert status.since.isoformat() == "2025-12-31T23:00:00.500000+00:00"
        assert (status.transitions, status.lease, status.identity) == (3, "team/app", "me")
        await s.clock.advance(4)
        leases.put(**{**OTHER, "holderIdentity": "third", "leaseDurationSeconds": 3})
        await s.clock.advance(9)
        heard = [line for line in s.heard if line.startswith("leader")]
        assert heard == ["leader other", "leader third", "leader me"]


async def test_followers_don_t_ask_in_step():
    """With the largest jitter a follower waits for 2.2 periods; the end of the lease is not slept through."""
    leases = Leases(OTHER)
    async with Scene(leases, jitter=1.0) as s:
        await s.clock.advance(4.3)
        assert leases.calls == ["get"]
        await s.clock.advance(0.2)
        assert leases.calls == ["get", "get"]
        await s.clock.advance(10.6)  # in second 15, and not at the next poll in second 17.6
        assert s.leads


@pytest.mark.client_go(273, "Config validation")
@pytest.mark.parametrize(
    ("times", "why"),
    [
        ((15, 15, 2), "must be longer than renew_deadline"),
        ((10, 15, 2), "must be longer than renew_deadline"),
        ((15, 10, 9), "1.2 times"),
        ((15, 2.4, 2), "1.2 times"),
        ((15, 10, 0), "longer than nothing"),
        ((-1, -2, -3), "longer than nothing"),
    ],
)
def test_times_that_contradict_each_other_are_refused(times, why):
    """At construction, with a sentence (client-go 273)."""
    with pytest.raises(ValueError, match=why):
        LeaseTimes(*times)


def test_identities_are_unique():
    """Of two electors in one process, too. An empty one means that nobody holds the lease (client-go 273)."""
    assert new_identity() != new_identity()
    with pytest.raises(ValueError, match="identity"):
        LeaderElector(Leases(), times=TIMES, clock=ManualClock(), identity="")


@pytest.mark.client_go(275)
async def test_may_write_is_asked_from_other_threads_during_renewals():
    """Handlers ask in threads while the loop renews: always yes until the deadline (client-go 275)."""
    async with Scene() as s:

        async def ask():
            return [await asyncio.to_thread(s.elector.may_write) for _ in range(50)]

        asking = asyncio.ensure_future(ask())
        while not asking.done():
            await s.clock.advance(0.5)
        assert await asking == [True] * 50
