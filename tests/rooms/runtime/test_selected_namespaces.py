"""The namespaces that a selector matches: one informer for all that follow them, and how a namespace left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from declctl.errors import Forbidden
from declctl.informer import FakeControllerSource
from declctl.kit import ManualClock
from declctl.runtime.caching.namespaces import NamespaceSelectors, SelectedNamespaces
from tests.rooms.informer.shapes import rest

FORBIDDEN = Forbidden(403, "Forbidden", "namespaces is forbidden")


def space(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}}


class Cluster:
    """A server of namespaces, all of which match every selector."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.server = FakeControllerSource(api_version="v1", kind="Namespace")
        self.asked: list[dict[str, Any]] = []

    def source(self, gvk: Any, *, projection: Any, **how: Any) -> FakeControllerSource:
        self.asked.append({"kind": str(gvk.kind), **how})
        self.server.projection = projection
        return self.server


class Follower:
    """One that follows the namespaces, and counts how often it is called."""

    def __init__(self, selected: SelectedNamespaces) -> None:
        self.selected = selected
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1

    def join(self) -> None:
        self.selected.join(self)

    def leave(self) -> None:
        self.selected.leave(self)


@asynccontextmanager
async def playing() -> AsyncIterator[tuple[Cluster, NamespaceSelectors]]:
    """A cluster and the selectors of a process, which leave no watch behind."""
    cluster = Cluster()
    async with asyncio.TaskGroup() as tasks:
        yield cluster, NamespaceSelectors(cluster, tasks=tasks, clock=cluster.clock)  # type: ignore[arg-type]
        await rest(cluster.clock)
    assert cluster.server.open_watches == 0


async def test_all_that_follow_a_selector_share_one_watch_of_metadata() -> None:
    """It begins with the first of them, and ends with the last one."""
    async with playing() as (cluster, selectors):
        cluster.server.add(space("a"))
        selected = selectors.of("team=web")
        assert selectors.of("team=web") is selected
        assert selectors.of("team=api") is not selected
        assert (selected.names, cluster.asked) == (None, [])
        first, second = Follower(selected), Follower(selected)
        first.join()
        second.join()
        await rest(cluster.clock)
        assert selected.names == {"a"}
        assert cluster.asked == [{"kind": "Namespace", "label_selector": "team=web", "metadata_only": True}]
        assert cluster.server.open_watches == 1
        before = first.calls, second.calls
        cluster.server.add(space("b"))
        await rest(cluster.clock)
        assert selected.names == {"a", "b"}
        assert first.calls > before[0]
        assert second.calls > before[1]
        first.leave()
        assert selected.names == {"a", "b"}
        second.leave()
        await rest(cluster.clock)
        assert (selected.names, cluster.server.open_watches) == (None, 0)
        # Followed again, it begins anew.
        cluster.server.delete("b")
        first.join()
        await rest(cluster.clock)
        assert selected.names == {"a"}
        first.leave()


async def test_how_a_namespace_left() -> None:
    """Deleted ones had a deletion time, relabelled ones none. What a list does not find may be deleted."""
    async with playing() as (cluster, selectors):
        for name in ("relabelled", "deleted"):
            cluster.server.add(space(name))
        follower = Follower(selected := selectors.of("team=web"))
        follower.join()
        await rest(cluster.clock)
        cluster.server.modify(space("deleted", deletionTimestamp="2026-01-01T00:00:00Z"))
        await rest(cluster.clock)
        assert selected.names == {"relabelled", "deleted"}  # it is there while it terminates
        cluster.server.delete("deleted")
        cluster.server.delete("relabelled")
        await rest(cluster.clock)
        assert selected.names == frozenset()
        assert [selected.was_deleted(name) for name in ("deleted", "relabelled")] == [True, False]
        cluster.server.add(space("deleted"))
        await rest(cluster.clock)
        assert (selected.names, selected.was_deleted("deleted")) == ({"deleted"}, False)
        follower.leave()
    async with playing() as (cluster, selectors):
        cluster.server.add(space("a"))
        follower = Follower(selected := selectors.of("team=web"))
        follower.join()
        await rest(cluster.clock)
        cluster.server.cut()
        cluster.server.delete("a")
        cluster.server.compact()
        await cluster.clock.advance(10)
        assert selected.names == frozenset()
        assert selected.was_deleted("a")
        follower.leave()


async def test_a_fault_is_told_and_the_known_names_stay() -> None:
    """Until the first list the names are not known; later they are those of the last one."""
    async with playing() as (cluster, selectors):
        cluster.server.streams = False
        cluster.server.add(space("a"))
        cluster.server.fail_next(FORBIDDEN, verb="list", times=1000)
        follower = Follower(selected := selectors.of("team=web"))
        follower.join()
        await rest(cluster.clock)
        assert (selected.names, selected.fault) == (None, FORBIDDEN)
        assert follower.calls > 1
        cluster.server.calm()
        await cluster.clock.advance(60)
        assert (selected.names, selected.fault) == ({"a"}, None)
        assert selected.resource_version == cluster.server.resource_version
        cluster.server.fail_next(FORBIDDEN, times=1000)
        cluster.server.cut()
        await cluster.clock.advance(2)
        assert (selected.names, selected.fault) == ({"a"}, FORBIDDEN)
        follower.leave()
        await rest(cluster.clock)
        assert selected.fault is None


async def test_of_many_deleted_namespaces_the_oldest_are_forgotten() -> None:
    """A process that sees namespaces come and go for years does not keep all their names."""
    async with playing() as (cluster, selectors):
        follower = Follower(selected := selectors.of("team=web"))
        follower.join()
        await rest(cluster.clock)
        for number in range(1001):
            cluster.server.add(space(f"n{number}", deletionTimestamp="2026-01-01T00:00:00Z"))
            cluster.server.delete(f"n{number}")
            if not number % 100:
                await rest(cluster.clock)
        await rest(cluster.clock)
        assert [selected.was_deleted(f"n{number}") for number in (0, 1, 1000)] == [False, True, True]
        follower.leave()
