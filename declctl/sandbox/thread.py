"""The sandbox on a loop in a thread of its own: for synchronous tests, and where a loop has other work."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from declctl.errors import SandboxError
from declctl.kit import Clock
from declctl.objects import KubeObject
from declctl.sandbox.faults import Faults
from declctl.sandbox.history import Backup
from declctl.sandbox.ledger import Ledger
from declctl.sandbox.patches import MERGE_PATCH
from declctl.sandbox.sandbox import Sandbox

_T = TypeVar("_T")


class _OnLoop:
    """Whatever is asked of this is asked of the target, on the loop of the sandbox."""

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
    """The same server, from any thread. Every method waits until the loop has done what it asks for."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        bookmark_interval: float = 30.0,
        seed: int | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._sandbox = Sandbox(clock=clock, bookmark_interval=bookmark_interval, seed=seed)
        self._listen = (host, port)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._churn: asyncio.Task[None] | None = None
        # These two are used on the loop of the sandbox, whichever thread asks; the cast hides nothing but
        # that.
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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._shut())
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

    def patch(
        self, kind: str, name: str, patch: Any, *, namespace: str = "default", media_type: str = MERGE_PATCH
    ) -> KubeObject:
        """Patch an object, by default with a JSON merge patch."""
        store = self._sandbox.store
        return self._call(lambda: store.patch(kind, name, patch, namespace=namespace, media_type=media_type))

    def delete(self, kind: str, name: str, namespace: str | None = None) -> KubeObject:
        """Delete an object; returns its last state."""
        return self._call(lambda: self._sandbox.store.delete(kind, name, namespace))

    def objects(self, kind: str, namespace: str | None = None) -> list[KubeObject]:
        """All objects of a kind."""
        return self._call(lambda: self._sandbox.store.objects(kind, namespace))

    def start_churn(self, rate: float) -> None:
        """Make `rate` changes a second to demo pods until the thread ends."""

        async def begin() -> None:
            self._churn = asyncio.create_task(self._sandbox.churn(rate), name="sandbox churn")

        self._run(begin())

    async def _shut(self) -> None:
        if self._churn is not None:
            self._churn.cancel()
        await self._sandbox.stop()

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
