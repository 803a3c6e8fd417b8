"""Objects that have left the scope of a handler: found, watched, queued, and forgotten at the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from declctl.errors import Forbidden, NotFound, StatusError
from declctl.informer import FakeControllerSource
from declctl.kit import Latch, ManualClock
from declctl.manifest.plan import WatchKey
from declctl.objects import ChangeType, GroupVersionKind, Notification
from declctl.runtime.reconciling.finalizers import HandlerFinalizer
from declctl.runtime.reconciling.leftovers import HandlerLeftovers, Leftovers
from declctl.testing import Logged
from tests.rooms.runtime.conftest import make_record

NAME = "example.dev/x"
KIND = GroupVersionKind.of("v1", "ConfigMap")


def config_map(name: str, namespace: str, *finalizers: str, deleted: bool = False) -> dict[str, Any]:
    """One, which may be on its way out."""
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "finalizers": [*finalizers]}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def finalizer_of(name: str = NAME, *, may_leave: bool = True) -> HandlerFinalizer:
    """A finalizer that writes nothing."""
    writes = lambda scope: pytest.fail("nothing is written here")  # noqa: E731
    return HandlerFinalizer(name, KIND, writes, reads_first=False, dry_run=False, may_leave=may_leave)


class Scene:
    """A server with objects of two namespaces, and a handler of one of them."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.clock, self.log = ManualClock(), Logged()
        self.servers: dict[str, FakeControllerSource] = {}
        self.listed: list[str | None] = []  # the namespaces whose metadata were listed
        self.faults: list[Exception] = []  # of the next lists of metadata
        self.in_scope: set[str] = set()  # the keys in the caches of the handler
        self.queued: list[str] = []
        self.synced = Latch("own")
        self.gone: list[str] = []
        self.slot = SimpleNamespace(
            name="x",
            is_open=lambda key, uid: True,
            add_leftover=lambda change: self.queued.append(change.key),
            object_gone=lambda change: self.gone.append(change.key),
        )
        self.parts = Leftovers(self, tasks, self.clock, self.log)  # type: ignore[arg-type]
        self.leftovers = HandlerLeftovers(self.slot, finalizer_of(), self.parts)  # type: ignore[arg-type]

    def server(self, namespace: str) -> FakeControllerSource:
        return self.servers.setdefault(namespace, FakeControllerSource(api_version="v1", kind="ConfigMap"))

    def source(self, gvk: Any, *, namespace: str, projection: Any, metadata_only: bool, **_: Any) -> Any:
        """A list of metadata, or the watch of a namespace."""
        if not metadata_only:
            self.server(namespace).projection = projection
            return self.server(namespace)
        self.listed.append(namespace)
        scene = self

        class Source:
            async def list(self, options: Any, *, known: Any) -> Any:
                if scene.faults:
                    raise scene.faults.pop(0)
                servers = [each for name, each in scene.servers.items() if namespace in (None, name)]
                found = [msgspec.json.encode(obj) for server in servers for obj in server.objects.values()]
                records = map(projection.record, found)
                return SimpleNamespace(records=[each for each in records if each], continue_token="")

        return Source()

    def begin(self, *watches: WatchKey, may_leave: bool = True, name: str = NAME) -> None:
        informer = SimpleNamespace(synced=self.synced)
        informers = [
            SimpleNamespace(identity=SimpleNamespace(watch=watch), informer=informer) for watch in watches
        ]
        self.slot.binding = SimpleNamespace(
            own_informers=informers, read=lambda key: key if key in self.in_scope else None
        )
        self.leftovers.begin(finalizer_of(name, may_leave=may_leave))

    async def rest(self, seconds: float = 0.0) -> None:
        """Let everything happen that happens in so many seconds."""
        for _ in range(5):
            await self.clock.settle()
        await self.clock.advance(seconds)
        for _ in range(5):
            await self.clock.settle()

    @property
    def watched(self) -> set[str]:
        """The namespaces with an open watch."""
        return {name for name, server in self.servers.items() if server.open_watches}


IN_A = WatchKey("v1", "ConfigMap", "a")


@asynccontextmanager
async def playing(*, synced: bool = True) -> AsyncIterator[Scene]:
    """A scene; nothing runs after `close`."""
    async with asyncio.TaskGroup() as tasks:
        scene = Scene(tasks)
        if synced:
            scene.synced.open()
        yield scene
        scene.leftovers.close()
    assert scene.watched == set()


async def test_only_namespaces_with_leftovers_are_watched_until_none_is_left() -> None:
    """One list of metadata at the start; a deleted leftover is queued, and later nothing is watched."""
    async with playing(synced=False) as scene:
        scene.server("a").add(config_map("in", "a", NAME))
        scene.server("b").add(config_map("left", "b", NAME))
        scene.server("b").add(config_map("never", "b"))
        scene.server("c").add(config_map("never", "c", "other.dev/x"))
        scene.in_scope = {"a/in"}
        scene.begin(IN_A)
        await scene.rest()
        assert scene.listed == [], "objects of an unsynced cache would count as leftovers"
        scene.synced.open()
        await scene.rest()
        assert (scene.listed, scene.watched, scene.leftovers.count) == ([None], {"b"}, 1)
        assert scene.leftovers.get("b/left") is not None
        assert scene.leftovers.get("b/never") is None
        assert scene.queued == []
        scene.server("b").modify(config_map("left", "b", NAME, deleted=True))
        await scene.rest()
        assert scene.queued == ["b/left"]
        scene.server("b").delete("b/left")
        await scene.rest(200.0)
        assert (scene.watched, scene.leftovers.count) == (set(), 0)
        assert scene.listed == [None]


def deleted(name: str, version: int) -> Notification:
    """The Deleted of an object of the namespace a, in the cache of the handler."""
    record = make_record(name, namespace="a", uid=f"uid-{name}", version=version)
    return Notification(ChangeType.DELETED, record, received_at=0)


async def test_a_key_is_due_only_if_its_object_is_gone() -> None:
    """Until it is known whether the object lives on outside of the scope, nobody is told that it is gone."""
    async with playing() as scene:
        scene.begin(IN_A)
        scene.server("a").add(config_map("lives", "a", NAME))
        scene.leftovers.object_left(deleted("lives", 1))
        scene.leftovers.object_left(deleted("gone", 1))
        assert (scene.leftovers.is_undecided("a/gone"), scene.gone) == (True, [])
        await scene.rest()
        assert scene.gone == ["a/gone"]
        # The watch may be behind the cache of the handler: the object is there, at an older version.
        scene.server("a").add(config_map("later", "a", NAME))
        await scene.rest()
        scene.leftovers.object_left(deleted("later", 1000))
        await scene.rest()
        assert (scene.leftovers.is_undecided("a/later"), scene.gone) == (True, ["a/gone"])
        for _ in range(1000):
            scene.server("a").modify(config_map("lives", "a", NAME))
        scene.server("a").delete("a/later")
        await scene.rest()
        assert (scene.leftovers.is_undecided("a/later"), scene.gone) == (False, ["a/gone", "a/later"])


async def test_an_object_that_leaves_later_starts_the_watch_of_its_namespace() -> None:
    """Also when nothing was left before; if it is gone, the watch ends by itself."""
    async with playing() as scene:
        scene.begin(IN_A)
        scene.server("a")
        await scene.rest()
        assert scene.watched == set()
        scene.server("a").add(config_map("m", "a", NAME))
        scene.leftovers.object_left(deleted("m", 1))
        assert scene.leftovers.is_undecided("a/m")
        await scene.rest()
        assert (scene.watched, scene.leftovers.count) == ({"a"}, 1)
        assert (scene.leftovers.is_undecided("a/m"), scene.gone) == (False, [])
        # It comes back: the handler's own cache has it again.
        scene.in_scope = {"a/m"}
        await scene.rest(200.0)
        assert scene.watched == set()


@pytest.mark.parametrize(
    "change",
    [
        lambda scene: scene.begin(IN_A, WatchKey("v1", "ConfigMap", "b")),
        lambda scene: scene.begin(IN_A, name="example.dev/y"),
    ],
)
async def test_another_scope_is_looked_at_again(change) -> None:
    """An edit of namespaces or of the finalizer; any other edit sends no request."""
    async with playing() as scene:
        for _ in range(2):
            scene.begin(IN_A)
            await scene.rest()
        assert scene.listed == [None]
        change(scene)
        await scene.rest()
        assert scene.listed == [None, None]


async def test_the_whole_cluster_has_no_leftovers() -> None:
    async with playing() as scene:
        scene.begin(WatchKey("v1", "ConfigMap"), may_leave=False)
        await scene.rest(1000.0)
        assert scene.listed == []


async def test_without_the_right_the_namespaces_of_the_handler_are_looked_at() -> None:
    """Those that it has had, too; the log says what cannot be found."""
    async with playing() as scene:
        scene.server("b").add(config_map("left", "b", NAME))
        scene.server("z").add(config_map("unknown", "z", NAME))
        scene.in_scope = {"b/left"}
        scene.faults = [Forbidden(403, "Forbidden", "no")]
        scene.begin(WatchKey("v1", "ConfigMap", "b"))
        await scene.rest()
        assert (scene.listed, scene.watched) == ([None, "b"], set())
        scene.listed.clear()
        scene.in_scope.clear()
        scene.faults = [Forbidden(403, "Forbidden", "no")]
        scene.begin(IN_A)
        await scene.rest()
        assert scene.listed == [None, "a", "b"]
        assert scene.watched == {"b"}
        assert scene.log.find("grant list of ConfigMap in the whole cluster") is not None


async def test_a_server_that_fails_is_asked_again() -> None:
    """With a growing wait, and one line in the log; a kind that is not served has no objects."""
    async with playing() as scene:
        scene.server("b").add(config_map("left", "b", NAME))
        scene.faults = [StatusError(500, "InternalError", "no")] * 3
        scene.begin(IN_A)
        await scene.rest()
        assert scene.watched == set()
        for _ in range(3):
            await scene.rest(10.0)
        assert (scene.listed, scene.watched) == ([None] * 4, {"b"})
        assert len([text for text in scene.log.events("warning") if "not known yet" in text]) == 1
        scene.faults = [NotFound(404, "NotFound", "no such kind")]
        scene.begin(IN_A, WatchKey("v1", "ConfigMap", "c"))
        await scene.rest(100.0)
        assert len(scene.listed) == 5
