"""The sandbox: an API server in memory behind real HTTP. Its parts meet here.

It keeps its objects while it is stopped, and listens on the same port when it is started again. Plain HTTP,
no authentication: for tests and demos on loopback, never for a network. Web pages in a browser are refused.

`Sandbox` runs on the loop of its caller; `SandboxThread` is the same server on a loop in a thread of its own.
"""

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from aiohttp import web

from declctl.errors import SandboxError
from declctl.kit import AdvancingClock, Clock, Standstill, SystemClock
from declctl.objects import KubeObject
from declctl.sandbox import faults, kinds
from declctl.sandbox.faults import Faults, Ledger
from declctl.sandbox.garbage import GarbageCollector
from declctl.sandbox.history import Backup, StoreEvent
from declctl.sandbox.kinds import ResourceId, ServedKind
from declctl.sandbox.patches import MERGE_PATCH
from declctl.sandbox.server import Api, Intercept
from declctl.sandbox.status import Refusal
from declctl.sandbox.store import Churn, ObjectStore
from declctl.sandbox.watches import Hub

_DEFINITIONS: Final = ("apiextensions.k8s.io", "customresourcedefinitions")
_TURNS: Final = 20  # of the loop: a request that has arrived is answered within these
_T = TypeVar("_T")


class Sandbox:
    """One server. `bookmark_interval` is in seconds.

    With a `seed`, names, uids and the demo repeat themselves. With `garbage_collection`, objects go when
    their owners are gone, in the next turn of the loop. With `shard_selectors`, a LIST or WATCH has the
    objects of its `shardSelector`, as with the feature gate ShardedListAndWatch; otherwise that is ignored.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        bookmark_interval: float = 30.0,
        seed: int | None = None,
        garbage_collection: bool = False,
        shard_selectors: bool = False,
    ) -> None:
        self.clock = clock or SystemClock()
        self._chance = random.Random(seed)
        self._interval = bookmark_interval
        self.store = ObjectStore(clock=self.clock, chance=self._chance)
        self._hub = Hub(self.store.history)
        self.ledger = Ledger()
        self.faults = Faults(self.store.history, self._hub.bookmark)
        self.store.history.subscribe(self._changed)
        self._garbage: GarbageCollector | None = None
        if garbage_collection:
            store = self.store
            self._garbage = GarbageCollector(store.history, store.registry, store.remover, store.writer)
        self._api = Api(
            self.store,
            self._hub,
            faults=self.faults,
            ledger=self.ledger,
            clock=self.clock,
            outage=self._begin_outage,
            shard_selectors=shard_selectors,
        )
        self._runner: web.AppRunner | None = None  # None while the sandbox does not listen
        self._bookmarks: asyncio.Task[None] | None = None  # sends bookmarks while the sandbox listens
        self._outage: asyncio.Task[None] | None = None  # the newest outage, under way or over
        self._address: tuple[str, int] | None = None  # where it listens, or listened last

    @property
    def url(self) -> str:
        """The base URL; raises SandboxError before the first start."""
        if self._address is None:
            raise SandboxError("the sandbox has no URL yet: start it first")
        host, port = self._address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def is_listening(self) -> bool:
        """Whether it accepts connections: between `start` and `stop`, but in an outage."""
        return self._runner is not None

    def intercept(self, intercept: Intercept) -> None:
        """Let each request be answered by `intercept`, unless it returns None."""
        self._api.intercept = intercept

    async def start(self, *, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen and return the base URL. Port 0 means any free one, or the same again after `stop`."""
        if self._runner is not None:
            raise SandboxError(f"the sandbox listens already, on {self.url}")
        if port == 0 and self._address is not None and self._address[0] == host:
            port = self._address[1]
        # A client that leaves an idle watch must end its handler.
        runner = web.AppRunner(
            self._api.application(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await runner.cleanup()
            raise SandboxError(
                f"the sandbox can't listen on {host}:{port}: {error.strerror or error}"
            ) from error
        self._runner = runner
        self._api.host = host.lower()
        self._address = (host, runner.addresses[0][1])
        self._collect_soon()
        self._bookmarks = asyncio.create_task(self._send_bookmarks(), name="sandbox bookmarks")
        return self.url

    async def stop(self) -> None:
        """Cut all watches and stop listening; the objects stay. Stopping twice is harmless."""
        if self._outage is not None and self._outage is not asyncio.current_task():
            self._outage.cancel()
            self._outage = None
        await self._close()

    def load(self, documents: Iterable[KubeObject]) -> list[str]:
        """Create objects; see `ObjectStore.load`."""
        return self.store.load(documents)

    def save(self) -> Backup:
        """A backup of all objects and their history, as a snapshot of etcd is."""
        return self.store.history.save()

    def restore(self, backup: Backup) -> None:
        """Put everything back to a backup, as an operator does with etcd: all watches are cut.

        Versions go back, and are given again to other changes. Definitions of custom kinds stay as they are.
        """
        # As after a restore of etcd: a watch that stayed open would show versions that never were.
        self.faults.cut_watches()
        self.store.history.restore(backup)
        if self._garbage is not None:
            self._garbage.restart()
            self._collect_soon()

    def kubeconfig(self) -> KubeObject:
        """A kubeconfig for this server; context and user are called `sandbox`."""
        name = "sandbox"
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": self.url}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
        }

    async def rest(self) -> Standstill:
        """Answer what has arrived, and send what waits, as far as that needs no time to pass."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        return Standstill((self._api.begun, self._api.ended, self.store.history.version))

    async def churn(self, rate: float) -> None:
        """Make `rate` changes a second to demo pods, until cancelled; raises SandboxError for 0 or less."""
        if rate <= 0:
            raise SandboxError(f"a churn of {rate} changes a second can't be made: give a number above 0")
        demo = Churn(self.store, clock=self.clock, chance=self._chance)
        demo.begin()
        due = self.clock.monotonic()
        while True:
            # A due time instead of a pause: the rate holds, however long a step takes.
            demo.step()
            due += 1 / rate
            await self.clock.sleep(due - self.clock.monotonic())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        if self._bookmarks is not None:
            self._bookmarks.cancel()
        self.faults.cut_watches()
        await runner.cleanup()

    def order(self, fault: KubeObject) -> None:
        """Order a fault, as the body of a POST to /sandbox/faults. Raises SandboxError for a wrong one."""
        try:
            faults.order(self.faults, fault, self._begin_outage)
        except Refusal as refusal:
            raise SandboxError(str(refusal)) from refusal

    def _begin_outage(self, seconds: float) -> None:
        self._outage = asyncio.create_task(self._be_out(seconds), name="sandbox outage")

    async def _be_out(self, seconds: float) -> None:
        host, port = self._address or ("127.0.0.1", 0)
        await self._close()
        await self.clock.sleep(seconds)
        await self.start(host=host, port=port)

    async def _send_bookmarks(self) -> None:
        while True:
            await self.clock.pause(self._interval)
            self._hub.bookmark()

    def _changed(self, resource: ResourceId, change: StoreEvent) -> None:
        self._hub.tell(resource, change)
        if resource == _DEFINITIONS and change.type == "DELETED":
            self._hub.end(kinds.resource_of(change.new.decode()))
        if self._garbage is not None:
            was_idle = self._garbage.is_idle
            self._garbage.changed(resource, change)
            if was_idle:
                self._collect_soon()

    def _collect_soon(self) -> None:
        """Collect in the next turn; what is loaded before the start is looked at when the server starts."""
        if self._garbage is not None and not self._garbage.is_idle and self._runner is not None:
            asyncio.get_running_loop().call_soon(self._garbage.collect)


class _OnLoop:
    """A proxy: reads, sets and calls of its attributes happen on the loop of the sandbox, on the target."""

    def __init__(self, target: object, call: Callable[[Callable[[], Any]], Any]) -> None:
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "_call", call)

    def __getattr__(self, name: str) -> Any:
        value = self._call(lambda: getattr(self._target, name))
        if not callable(value):
            return value
        return lambda *args, **kwargs: self._call(lambda: value(*args, **kwargs))

    def __setattr__(self, name: str, value: object) -> None:
        self._call(lambda: setattr(self._target, name, value))


class SandboxThread:
    """The same server, from any thread. Every method waits until the loop has done what it asks for.

    By default its `clock` is one that a test can advance.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        bookmark_interval: float = 30.0,
        seed: int | None = None,
        garbage_collection: bool = False,
        shard_selectors: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.clock: Clock = AdvancingClock() if clock is None else clock
        self._sandbox = Sandbox(
            clock=self.clock,
            bookmark_interval=bookmark_interval,
            seed=seed,
            garbage_collection=garbage_collection,
            shard_selectors=shard_selectors,
        )
        self._listen = (host, port)
        # Both are None outside of `with`.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._churning: Future[None] | None = None  # of the demo pods, once they change
        # Each access to these two runs on the loop of the sandbox. The cast hides nothing else.
        self.ledger = cast("Ledger", _OnLoop(self._sandbox.ledger, self._call))
        self.faults = cast("Faults", _OnLoop(self._sandbox.faults, self._call))

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox", daemon=True)
        self._thread.start()
        started = False
        try:
            self.start()
            started = True
        finally:
            if not started:
                self._end_loop()
        if isinstance(self.clock, AdvancingClock):
            self.clock.attach(self._rest)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self.clock, AdvancingClock):
            self.clock.detach(self._rest)
        try:
            if self._churning is not None:
                self._churning.cancel()
            self._run(self._sandbox.stop())
        finally:
            self._end_loop()

    @property
    def url(self) -> str:
        """The base URL."""
        return self._sandbox.url

    def kubeconfig(self) -> KubeObject:
        """A kubeconfig for this server."""
        return self._sandbox.kubeconfig()

    def start(self) -> str:
        """Listen (again, on the same port); `with` has already done it."""
        host, port = self._listen
        return self._run(self._sandbox.start(host=host, port=port))

    def stop(self) -> None:
        """Stop listening; the objects stay for the next `start`."""
        self._run(self._sandbox.stop())

    def load(self, documents: Iterable[KubeObject]) -> list[str]:
        """Create objects; see `ObjectStore.load`."""
        return self._call(lambda: self._sandbox.load(documents))

    def churn(self, rate: float) -> None:
        """Make `rate` changes a second to demo pods, until the with statement ends. Returns at once.

        Raises SandboxError for a rate of 0 or less.
        """
        if self._loop is None or rate <= 0:
            raise SandboxError(f"a churn of {rate} changes a second can't be made")
        self._churning = asyncio.run_coroutine_threadsafe(self._sandbox.churn(rate), self._loop)

    def save(self) -> Backup:
        """A backup of all objects and their history."""
        return self._call(self._sandbox.save)

    def restore(self, backup: Backup) -> None:
        """Put everything back to a backup; see `Sandbox.restore`."""
        self._call(lambda: self._sandbox.restore(backup))

    def create(self, obj: KubeObject) -> KubeObject:
        """Create an object."""
        return self._call(lambda: self._sandbox.store.create(obj))

    def update(self, obj: KubeObject) -> KubeObject:
        """Replace an object, status included."""
        return self._call(lambda: self._sandbox.store.update(obj))

    def apply(self, obj: KubeObject, *, manager: str) -> KubeObject:
        """Apply an object, status included; fields of other managers become the manager's."""
        return self._call(lambda: self._sandbox.store.apply(obj, manager=manager))

    def served(self, api_version: str, kind: str) -> ServedKind:
        """The kind of objects that say so; raises SandboxError if there is none."""
        return self._call(lambda: self._sandbox.store.served(api_version, kind))

    def ensure_namespace(self, name: str) -> bool:
        """Create a namespace if it isn't there; says whether it was created."""
        return self._call(lambda: self._sandbox.store.ensure_namespace(name))

    def bookmark(self, *, known: int = 0) -> int:
        """Send bookmarks on all watches now, but for a `known` version; returns the newest version."""

        def send(server: Sandbox) -> int:
            if server.store.version != known:
                server.faults.bookmark()
            return server.store.version

        return self.do(send)

    def do(self, work: Callable[[Sandbox], _T]) -> _T:
        """Call `work` with the server, on its loop; returns its result."""
        return self._call(lambda: work(self._sandbox))

    def order(self, fault: KubeObject) -> None:
        """Order a fault, as the body of a POST to /sandbox/faults. Raises SandboxError for a wrong one."""
        self._call(lambda: self._sandbox.order(fault))

    def patch(
        self,
        kind: str | ServedKind,
        name: str,
        patch: Any,
        *,
        namespace: str = "default",
        media_type: str = MERGE_PATCH,
    ) -> KubeObject:
        """Patch an object, by default with a JSON merge patch."""
        store = self._sandbox.store
        return self._call(lambda: store.patch(kind, name, patch, namespace=namespace, media_type=media_type))

    def delete(self, kind: str | ServedKind, name: str, namespace: str | None = None) -> KubeObject:
        """Delete an object; returns its last state."""
        return self._call(lambda: self._sandbox.store.delete(kind, name, namespace))

    def get(self, kind: str | ServedKind, name: str, namespace: str | None = None) -> KubeObject:
        """One object; raises SandboxError if there is none."""
        return self._call(lambda: self._sandbox.store.get(kind, name, namespace))

    def everything(self) -> list[KubeObject]:
        """All objects of all kinds."""
        return self._call(self._sandbox.store.everything)

    def objects(self, kind: str | ServedKind, namespace: str | None = None) -> list[KubeObject]:
        """All objects of a kind."""
        return self._call(lambda: self._sandbox.store.objects(kind, namespace))

    def _rest(self) -> Standstill:
        return self._run(self._sandbox.rest())

    def _call(self, call: Callable[[], _T]) -> _T:
        async def on_loop() -> _T:
            return call()

        return self._run(on_loop())

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._loop is None:
            work.close()
            raise SandboxError("the sandbox's thread does not run: use it in a with statement")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_loop(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
