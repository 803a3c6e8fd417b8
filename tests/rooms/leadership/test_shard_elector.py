"""The shell of the elections of shards: what it asks the server, and what the owner of the shards hears."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self

import pytest

from declctl.errors import DeclctlError, Forbidden
from declctl.kit import ManualClock
from declctl.leadership import ShardCallbacks, ShardElector, SharingLeases
from declctl.leadership.elector import LeaseVerb
from declctl.objects import KubeObject
from declctl.objects.shards import Sharding
from tests.rooms.leadership.sharing_world import LABEL, TIMES, LeaseServer

LEASES = "/apis/coordination.k8s.io/v1/namespaces/team/leases"
VERBS = {"POST": LeaseVerb.CREATE, "PUT": LeaseVerb.UPDATE, "GET": LeaseVerb.GET}


class LeaseClient:
    """The requests of a client, answered by a server in memory; `under_way` has the most at one moment."""

    def __init__(self, server: LeaseServer) -> None:
        self.server = server
        self.silent = False  # no answer is given
        self.refusals: dict[str, DeclctlError] = {}  # by method
        self.malformed: Any = None  # the answer to a LIST
        self.under_way = self.most = 0

    async def request_json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] = {},
        body: KubeObject | Sequence[KubeObject] | None = None,
        content_type: str = "application/json",
    ) -> KubeObject:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(0)
            if self.silent:
                await asyncio.Event().wait()
            if method in self.refusals:
                raise self.refusals[method]
            if method == "GET" and path == LEASES:
                assert params == {"labelSelector": "declctl.dev/sharding=app"}
                if self.malformed is not None:
                    return self.malformed
                return {"items": [each.lease for each in self.server.list().values()]}
            name = body["metadata"]["name"] if method == "POST" else path.removeprefix(f"{LEASES}/")
            return self.server.apply(VERBS[method], name, body)
        finally:
            self.under_way -= 1


class Shards:
    """An elector on a manual clock. Its owner drains what leaves, and what is lost, if `drains`."""

    def __init__(
        self, server: LeaseServer, clock: ManualClock, *, name: str = "me", shards: int = 16
    ) -> None:
        self.client = LeaseClient(server)
        self.clock = clock
        self.heard: list[tuple[str, int]] = []
        self.why = ""
        self.drains = True
        self.elector = ShardElector(
            SharingLeases(self.client, namespace="team", name="app"),
            Sharding(shards),
            times=TIMES,
            clock=clock,
            identity=name,
            callbacks=ShardCallbacks(
                on_gained=lambda shard: self.heard.append(("gained", shard)),
                on_leaving=lambda shard: self.leave("leaving", shard),
                on_lost=lambda shard, why: self.leave("lost", shard, why),
            ),
        )

    def leave(self, what: str, shard: int, why: str = "") -> None:
        self.heard.append((what, shard))
        self.why = why
        if self.drains:
            asyncio.get_running_loop().call_soon(self.elector.drained, shard)

    @property
    def writable(self) -> list[int]:
        return [shard for shard in range(16) if self.elector.may_write(shard)]

    async def __aenter__(self) -> Self:
        self.task = asyncio.ensure_future(self.elector.run())
        await self.clock.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            await self.clock.advance(0.1)
            await self.clock.settle()


async def test_two_processes_share_and_one_hands_over_at_its_end():
    """The second one gets half; when the first ends, all of it, at once; `end` says that all is free."""
    server, clock = LeaseServer(), ManualClock()
    async with Shards(server, clock) as first:
        await first.pass_time(2)
        assert first.writable == list(range(16))
        assert {lease.lease["metadata"]["labels"] == LABEL for lease in server.leases.values()} == {True}
        async with Shards(server, clock, name="other") as second:
            await second.pass_time(12)
            assert (len(first.writable), len(second.writable)) == (8, 8)
            status = first.elector.status()
            assert (status.members, status.given_back, status.error) == (2, 8, None)
            assert {each.holder for each in status.shards} == {"me", "other"}
            ending = asyncio.ensure_future(first.elector.end(timeout=10))
            await second.pass_time(5)
            assert await ending
            assert first.task.done()
            assert second.writable == list(range(16))


async def test_an_end_has_its_time():
    """A shard that is not drained keeps its Lease, which ends by itself; the process is not held up."""
    server, clock = LeaseServer(), ManualClock()
    async with Shards(server, clock, shards=2) as shards:
        await shards.pass_time(2)
        shards.drains = False
        ending = asyncio.ensure_future(shards.elector.end(timeout=5))
        await shards.pass_time(5.2)
        assert await ending is False
        assert shards.writable == [0, 1]


async def test_a_server_that_is_silent_costs_the_shards_and_no_loop():
    """Requests are given up after half of the deadline; each shard is lost at its deadline, with why."""
    server, clock = LeaseServer(), ManualClock()
    async with Shards(server, clock) as shards:
        await shards.pass_time(3)
        shards.client.silent = True
        await shards.pass_time(11)
        assert shards.writable == []
        assert sum(what == "lost" for what, _ in shards.heard) == 16
        assert "no renewal has succeeded for 10 s (the last error: no answer after 5" in shards.why
        assert "no answer after" in (shards.elector.status().error or "")
        shards.client.silent = False
        await shards.pass_time(20)
        assert shards.writable == list(range(16))
        assert shards.elector.status().error is None
    assert shards.client.under_way == 0


async def test_requests_are_bounded():
    """Also with more Leases to renew than requests may be under way."""
    server, clock = LeaseServer(), ManualClock()
    async with Shards(server, clock, shards=60) as shards:
        await shards.pass_time(30)
        assert sum(map(shards.elector.may_write, range(60))) == 60
        assert shards.client.most <= 16


@pytest.mark.parametrize(("method", "verb"), [("GET", "list"), ("POST", "create")])
async def test_a_right_that_is_missing_is_named(method, verb):
    """403: the status has the rule that somebody has to add, with the names of the Leases."""
    async with Shards(LeaseServer(), ManualClock()) as shards:
        shards.client.refusals = {method: Forbidden(403, "Forbidden", "leases is forbidden")}
        await shards.pass_time(5)
        error = shards.elector.status().error or ""
        assert "a Role of namespace team needs the rule" in error
        assert "app-member-0 to -15, app-shard-0 to -15" in error
        assert f"it lacks {verb}" in error
        shards.client.refusals = {}
        await shards.pass_time(8)
        assert shards.writable == list(range(16))


@pytest.mark.parametrize(
    "answer", [{}, {"items": 3}, {"items": [7]}, {"items": [{"metadata": {"name": "app-shard-0"}}]}]
)
async def test_a_list_that_breaks_the_protocol_is_a_fault(answer):
    """Nothing is taken by it, and nothing ends."""
    async with Shards(LeaseServer(), ManualClock()) as shards:
        shards.client.malformed = answer
        await shards.pass_time(5)
        assert (shards.elector.status().error or "").startswith("list of the leases of team: ")
        assert not shards.heard
        assert not shards.task.done()
