"""Replicas that share shards: who holds what, what moves, and never two that may write for one shard.

They fail if one of these lines of `declctl/leadership/sharing.py` is changed (tried by hand):

- a Lease that has changed is not timed anew, or all others count as dead without a recent LIST;
- a lost shard is not taken again after `drained`, or may be written before it;
- two terms of a shard write the same times;
- another sharding is no fault;
- the quota of all is rounded up, or the shards that were held longest are given back;
- a take is forgotten at the end, or refused ones are tried without a limit.
"""

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declctl.errors import Forbidden, TooManyRequests
from declctl.leadership.elector import LeaseVerb
from declctl.leadership.sharing import ShardEvent, ShardState
from declctl.objects.shards import Sharding, ShardKey
from tests.rooms.leadership.sharing_world import TIMES, Faults, Replica, World

CALM = Faults()


def started(world: World, count: int) -> World:
    """So many replicas, which share all shards."""
    for number in range(count):
        world.start(f"r{number}", offset=1000.0 * number)
    world.until(lambda: world.is_balanced)
    world.run(10)
    assert world.is_balanced
    return world


def test_a_process_that_is_alone_has_all_shards_at_once():
    """Within two seconds of its start; each Lease names it, and notes the sharding."""
    world = World(16)
    alone = world.start("me")
    assert world.until(lambda: alone.held == set(range(16))) < 2
    assert set(world.server.holders("shard").values()) == {"me"}
    assert world.server.holders("member") == {0: "me"}
    assert {each.note for each in world.server.leases.values()} == {"16 by Namespace"}
    status = alone.core.status(alone.now)
    assert (status.member, status.members, status.quota, status.gained) == (0, 1, 16, 16)
    assert {(each.state, each.holder) for each in status.shards} == {(ShardState.HELD, "me")}


@pytest.mark.parametrize(
    ("replicas", "shards"), [(2, 16), (3, 16), (7, 16), (16, 16), (5, 4), (20, 64), (1, 1)]
)
def test_loads_differ_by_one_at_most_and_nothing_moves_in_calm(replicas, shards):
    """Also with more replicas than shards: the rest waits, and has no number."""
    world = started(World(shards), replicas)
    moves = world.moves
    world.run(120)
    assert world.moves == moves
    assert world.is_balanced
    assert all(event is not ShardEvent.LOST for each in world.replicas for event, _, _ in each.heard)
    assert len(world.server.holders("member")) == min(replicas, shards)


@pytest.mark.parametrize("seed", range(5))
def test_replicas_that_start_together_move_nothing(seed):
    """The first one waits a second for others, so no shard is taken only to be given back."""
    world = World(16, seed=seed)
    for name in ("a", "b", "c"):
        world.start(name)
        world.run(0.1)
    world.until(lambda: world.is_balanced)
    world.run(5)
    assert world.moves == 16


@pytest.mark.parametrize("replicas", [1, 2, 3, 5, 15])
def test_a_replica_that_joins_moves_its_share_only(replicas):
    """At most ceil(slots/N) shards move, and a running call keeps its shard until it has ended."""
    world = started(World(16), replicas)
    moves = world.moves
    world.start("new", offset=77.0)
    world.until(lambda: world.is_balanced)
    world.run(30)
    assert world.is_balanced
    assert world.moves - moves <= ceil(16 / (replicas + 1))


def test_a_shard_that_leaves_is_held_until_it_is_drained():
    """Its calls may write for as long as they take: the Lease is renewed meanwhile, and nobody takes it.

    What was gained last goes first.
    """
    world = World(2)
    slow = world.start("slow", drains=60.0)
    world.until(lambda: slow.held == {0, 1})
    world.start("new")
    world.run(50)
    leaving = [shard for event, shard, _ in slow.heard if event is ShardEvent.LEAVING]
    gained = [shard for event, shard, _ in slow.heard if event is ShardEvent.GAINED]
    assert leaving == gained[-1:]
    assert world.loads == [2, 0]
    assert slow.core.status(slow.now).shards[leaving[0]].state is ShardState.LEAVING
    world.run(20)
    assert world.loads == [1, 1]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rates", [(1.0, 1.0, 1.0), (1.0, 0.9, 1.1)])
def test_the_shards_of_a_dead_replica_are_held_again_in_time(seed, rates):
    """After kill -9: within the lease duration and five seconds, and no other shard moves."""
    world = World(16, seed=seed)
    for number, rate in enumerate(rates):
        world.start(f"r{number}", rate=rate, offset=1000.0 * number)
    world.until(lambda: world.is_balanced)
    world.run(10 + seed / 3)
    first, moves, theirs = world.replicas[0], world.moves, world.replicas[0].held
    first.dead = True
    assert world.until(lambda: sum(world.loads) == 16) <= (TIMES.lease_duration + 5) / min(rates)
    world.run(20)
    assert world.is_balanced
    assert world.moves - moves == len(theirs)


def test_the_end_of_a_replica_frees_its_shards_one_by_one():
    """SIGTERM: others take each shard when it is drained, and a slow one does not hold up the rest."""
    world = started(World(16), 3)
    leaver, moves, theirs = world.replicas[0], world.moves, len(world.replicas[0].held)
    leaver.drains = 1e9
    leaver.core.begin_end()
    leaver.turn()
    world.run(3)
    assert {event for event, _, _ in leaver.heard[-theirs:]} == {ShardEvent.LEAVING}
    assert sorted(world.server.holders("member").values()) == ["r1", "r2"]
    slow, *rest = sorted(leaver.held)
    for shard in rest:
        leaver.drain(shard)
    world.run(5)
    assert world.server.holders("shard")[slow] == "r0"
    assert sum(world.loads) == 16
    assert not leaver.core.is_ended
    leaver.drain(slow)
    world.run(5)
    assert leaver.core.is_ended
    assert sum(world.loads[1:]) == 16
    assert world.moves - moves == theirs


def test_a_process_that_ends_at_once_leaves_nothing_behind():
    """A take whose answer comes after the end is given back, though its owner never heard of it."""
    for milliseconds in range(0, 1500, 7):
        world = World(4)
        hasty = world.start("hasty", drains=0.0)
        world.run(milliseconds / 1000)
        hasty.core.begin_end()
        hasty.turn()
        world.until(lambda ends=hasty.core: ends.is_ended, most=20, step=0.01)
        assert world.server.holders("shard") == world.server.holders("member") == {}


def test_a_replica_that_was_stopped_finds_its_shards_lost():
    """SIGSTOP for 30 s: others have its shards, it writes for none, and they are shared again."""
    world = started(World(16), 3)
    frozen, theirs = world.replicas[1], set(world.replicas[1].held)
    frozen.stopped = True
    world.run(11)
    assert not any(map(frozen.may_write, range(16)))
    world.run(19)
    assert sum(world.loads) == 16
    frozen.cont()
    lost = {shard: text for event, shard, text in frozen.heard if event is ShardEvent.LOST}
    assert lost.keys() == theirs
    assert "no renewal has succeeded for 10 s" in lost[min(theirs)]
    world.until(lambda: world.is_balanced)


def test_a_lost_shard_is_not_taken_again_before_it_is_drained():
    """A call of the earlier term still runs: it must not write because this process holds the shard anew."""
    world = World(2)
    alone = world.start("me", drains=40.0)
    world.until(lambda: alone.held == {0, 1})
    alone.cut_off = True
    world.run(15)
    alone.cut_off = False
    world.run(20)
    assert world.loads == [0]
    assert {each.state for each in alone.core.status(alone.now).shards} == {ShardState.LOST}
    world.run(30)
    assert world.loads == [2]


def test_a_renewal_that_is_answered_too_late_gives_no_shard_back():
    """A process was stopped while it renewed: what it has lost stays lost until it is drained."""
    world = World(1)
    alone = world.start("me", drains=5.0)
    world.until(lambda: world.loads == [1])
    alone.latency = 2.0
    world.run(2.5)  # the renewal is under way
    alone.stopped = True
    world.run(8.5)
    alone.cont()
    assert alone.lost == {0}
    assert not alone.may_write(0)
    alone.latency = 0.01
    world.run(10)
    assert world.loads == [1]


def test_a_shard_that_is_taken_again_is_renewed_for_all_to_see():
    """The wall clock of its holder stands still: with the same times, nobody would notice the new term."""
    world = World(1)
    frozen = world.start("frozen", wall_rate=0.0)
    world.until(lambda: world.loads == [1])
    frozen.cut_off = True  # before the first renewal
    other = world.start("other", offset=500.0)
    world.until(lambda: frozen.lost == {0})
    frozen.cut_off = False
    world.until(lambda: frozen.may_write(0), step=0.01)
    frozen.cut_off = True  # for the whole second term
    world.until(lambda: other.may_write(0))  # the world checks that `frozen` may not


def test_a_replica_whose_number_has_gone_gives_its_shards_back():
    """Somebody frees its member Lease, and a replica that had none is faster: there is one number too few."""
    world = started(World(2), 3)
    loser = next(each for each in world.replicas if each.held)
    spare = next(each for each in world.replicas if not each.held)
    name = next(f"app-member-{n}" for n, who in world.server.holders("member").items() if who == loser.name)
    world.server.store({**world.server.leases[name].lease, "spec": {"holderIdentity": ""}})
    denied = Forbidden(403, "Forbidden", "leases is forbidden")
    loser.refusal = lambda request: denied if "-member-" in request.name else None
    world.run(5)
    loser.refusal = lambda _: None
    world.run(10)
    assert (loser.held, len(spare.held)) == (set(), 1)
    assert world.is_balanced


def test_another_sharding_stops_all_taking():
    """What is held stays, and the fault says who has what. When the others are gone, their notes go."""
    world = started(World(16), 2)
    other = Sharding(32, ShardKey.UID)
    new = world.start("new", note=other)
    world.run(30)
    assert (new.held, world.loads[:2]) == (set(), [8, 8])
    assert "holds the lease team/app-" in (new.core.fault or "")
    assert "16 by Namespace, and this process has 32 by UID" in (new.core.fault or "")
    assert all(each.core.fault is None for each in world.replicas[:2])
    for each in world.replicas[:2]:
        each.core.begin_end()
        each.turn()
    world.until(lambda: len(new.held) == 32)
    assert new.core.fault is None
    assert {each.note for each in world.server.leases.values() if each.record.holder} == {"32 by UID"}


def test_leases_that_are_deleted_by_hand_are_made_again():
    """All at once: their holders create them at the next renewal, and nothing moves."""
    world = started(World(16), 3)
    moves = world.moves
    for name in list(world.server.leases):
        world.delete(name)
    world.run(30)
    assert world.is_balanced
    assert world.moves == moves


def test_leases_without_their_label_are_found_all_the_same():
    """Somebody removes the label of free Leases: a LIST does not show them, and a create is refused."""
    world = World(4)
    for name in [f"app-shard-{shard}" for shard in range(4)] + ["app-member-0"]:
        world.server.store({"metadata": {"name": name}, "spec": {"holderIdentity": ""}})
    world.start("me")
    world.run(20)
    assert world.loads == [4]
    assert world.server.unlabelled == {"app-member-0"}


def test_a_missing_right_is_told_and_the_rest_goes_on():
    """403 for one Lease: its shard is free, `status` says since when; the others are shared."""
    world = World(4)
    one = world.start("me")
    denied = Forbidden(403, "Forbidden", "leases is forbidden")
    one.refusal = lambda request: denied if request.name == "app-shard-2" else None
    world.run(20)
    assert one.held == {0, 1, 3}
    assert one.core.error(one.now) == (LeaseVerb.CREATE, "app-shard-2", denied)
    status = one.core.status(one.now)
    assert status.shards[2].state is ShardState.FREE
    assert status.shards[2].free_seconds == pytest.approx(20, abs=1)
    one.refusal = lambda _: None
    world.run(5)
    assert one.held == {0, 1, 2, 3}
    assert one.core.error(one.now) is None


def test_a_replica_that_can_take_nothing_does_not_stop_the_others():
    """Its quota stays free, and is not passed to and fro. It does not ask for each shard again and again."""
    world = World(64)
    asked: list[str] = []

    def refuse(request):
        if "-shard-" not in request.name:
            return None
        asked.append(request.name)
        return Forbidden(403, "Forbidden", "leases is forbidden")

    world.start("stuck").refusal = refuse
    world.start("well")
    world.run(30)
    moves = world.moves
    assert world.loads == [0, 32]
    asked.clear()
    world.run(60)
    assert world.moves == moves
    assert 25 < len(asked) < 31 * 8


def test_a_server_that_is_busy_is_asked_no_sooner_than_it_wants():
    """429 for a LIST, with Retry-After: the next one waits, and shards are renewed meanwhile."""
    world = World(4)
    one = world.start("me")
    world.until(lambda: world.loads == [4])
    asked: list[float] = []

    def refuse(request):
        if request.own is not None:
            return None
        asked.append(world.true)
        return TooManyRequests(429, "TooManyRequests", "later", retry_after=7.0)

    one.refusal = refuse
    world.run(30)
    assert 3 <= len(asked) <= 5
    assert world.loads == [4]


def test_the_requests_of_a_calm_replica_are_few():
    """One LIST, and one update for each Lease that it holds, each retry period; no Lease is read alone."""
    world = started(World(16), 3)
    world.server.requests.clear()
    world.run(60)
    requests = world.server.requests
    assert requests.keys() == {"list", "update"}
    assert requests["list"] <= 3 * 31
    assert requests["update"] <= 19 * 31


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["stop", "cont", "cut", "mend", "kill", "start", "end", "delete", "slow", "storm", "calm"]
        ),
        st.integers(0, 30),
        st.sampled_from([0.0, 0.3, 1.0, 3.0, 8.0, 20.0]),
    ),
    max_size=25,
)
RATES = [0.84, 1.0, 1.2, 0.9, 1.1]


def start_any(world: World) -> None:
    number = len(world.replicas)
    world.start(
        f"r{number}",
        rate=RATES[number % 5],
        offset=1000.0 * number,
        wall_rate=[1.0, 0.0, -1.0][number % 3],
        drains=[0.0, 0.5, 6.0][number % 3],
    )


def disturb(world: World, what: str, which: int) -> None:
    """One fault, or its end."""
    match what:
        case "start" if len(world.living) < 6:
            start_any(world)
        case "storm":
            world.faults = Faults(lost=0.15, answer_lost=0.15, error=0.1, busy=0.05)
        case "calm":
            world.faults = CALM
        case "delete" if names := sorted(world.server.leases):
            world.delete(names[which % len(names)])
        case _ if world.living:
            disturb_one(world.living[which % len(world.living)], what, which)


def disturb_one(replica: Replica, what: str, which: int) -> None:
    match what:
        case "stop":
            replica.stopped = True
        case "cont":
            replica.cont()
        case "cut" | "mend":
            replica.cut_off = what == "cut"
        case "kill":
            replica.dead = True
        case "end":
            replica.core.begin_end()
            replica.turn()
        case "slow":
            replica.latency = [0.01, 0.5, 3.0, 5.5][which % 4]


@given(steps=STEPS, seed=st.integers(0, 1000), count=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_never_two_may_write_for_one_shard_whatever_happens(steps, seed, count):
    """The world checks it after each answer. When faults stop, all is shared again, and nothing moves."""
    world = World(8, seed=seed)
    for _ in range(count):
        start_any(world)
    for what, which, seconds in steps:
        disturb(world, what, which)
        world.run(seconds)
    world.faults = CALM
    for each in world.living:
        each.cut_off, each.latency = False, 0.01
        if each.stopped:
            each.cont()
    # Those that end have to come to their end, too.
    world.run(45)
    for each in world.living:
        each.dead = each.core.is_ended
    if not world.living:
        start_any(world)
    world.run(30)
    assert world.is_balanced, world.loads
    moves = world.moves
    world.run(30)
    assert (world.is_balanced, world.moves) == (True, moves)
