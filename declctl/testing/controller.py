"""A whole controller in the test's process: the runtime in threads, over an API server in memory.

Also what a test of one needs: a wait that has an end, and a log whose lines can be read again.
"""

import asyncio
import atexit
import logging
import os
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, MutableMapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog

from declctl.errors import UsageError
from declctl.informer.stores.lister import Lister
from declctl.kit import Clock
from declctl.objects import KubeObject
from declctl.objects.differences import Mutation
from declctl.runtime.checking.preflight_pool import PreflightPool
from declctl.runtime.handling.binding import HandlerStatistics
from declctl.runtime.reloading.changes import Outcome
from declctl.runtime.reporting.status import Condition, ControllerStatus, ResourceStatus
from declctl.runtime.runtime import RunOptions, Runtime
from declctl.sandbox import SandboxThread
from declctl.transport import Client

T = TypeVar("T")

_PAUSE_SECONDS = 0.01
_FIRST_PAUSE_SECONDS = 0.001  # most of what a test waits for comes within some milliseconds
_LOOK_SECONDS = 5.0
_TURNS = 20  # of the machinery's loop: what the reflector has read is in the caches by then


def until(
    what: str, condition: Callable[[], T], *, timeout: float = 10.0, every: float = _PAUSE_SECONDS
) -> T:
    """The first true value of `condition`, asked for at most `timeout` seconds.

    The pauses between two calls grow from a millisecond to `every` seconds. Raises AssertionError that names
    `what` was waited for and the last value.
    """
    deadline = time.monotonic() + timeout
    pause = min(_FIRST_PAUSE_SECONDS, every)
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}; last: {value!r}")
        time.sleep(pause)
        pause = min(2 * pause, every)
    return value


@dataclass(frozen=True, slots=True)
class Line:
    """One line. `level` is debug, info, warning, error or critical; `event` is the sentence.

    `fields` has what it was bound with as well; of an exception the text is in `traceback`.
    """

    level: str
    event: str
    fields: Mapping[str, Any]


class Logged:
    """A structured logger whose lines can be read again. From any thread; what is bound shares the lines."""

    def __init__(self, lines: list[Line] | None = None, **bound: Any) -> None:
        self.lines: list[Line] = [] if lines is None else lines
        self._bound = bound

    def info(self, event: str, **fields: Any) -> None:
        """Keep a line."""
        self._keep("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Keep a line."""
        self._keep("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Keep a line."""
        self._keep("error", event, fields)

    def bind(self, **fields: Any) -> "Logged":
        """The same log with more fields."""
        return Logged(self.lines, **{**self._bound, **fields})

    def user_logger(self) -> Any:
        """A structlog logger, as `ctx.log` is one, whose lines of all levels are kept here."""
        return structlog.wrap_logger(
            None,
            processors=[
                structlog.stdlib.add_log_level,
                structlog.processors.StackInfoRenderer(),
                structlog.processors.format_exc_info,
                self._keep_entry,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        )

    def events(self, level: str | None = None) -> list[str]:
        """The sentences, of one level or of all."""
        return [line.event for line in tuple(self.lines) if level in (None, line.level)]

    def find(self, words: str) -> Line | None:
        """The first line whose sentence contains these words."""
        return next((line for line in tuple(self.lines) if words in line.event), None)

    def _keep(self, level: str, event: str, fields: Mapping[str, Any]) -> None:
        self.lines.append(Line(level, event, {**self._bound, **fields}))

    def _keep_entry(self, _logger: object, _method: str, entry: MutableMapping[str, Any]) -> Any:
        fields = dict(entry)
        if "exception" in fields:
            fields["traceback"] = fields.pop("exception")
        self._keep(fields.pop("level"), str(fields.pop("event")), fields)
        raise structlog.DropEvent  # nothing is to be written anywhere else


def inherited_by_children() -> object:
    """The current folder and the environment, without what pytest sets for each phase of a test."""
    folder = None
    with suppress(FileNotFoundError):  # a test has removed it
        folder = Path.cwd()
    return folder, {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


class SharedPreflightPool(PreflightPool):
    """The children of all pre-flights of a process that runs tests. They are forked from one process.

    To load that process takes longer than all else that a short test does. So it stays from test to test, and
    ends with the process that runs the tests. Another one is begun where `inherited` gives another value: a
    test has changed the environment or the current folder.
    """

    def __init__(self, inherited: Callable[[], object] = inherited_by_children) -> None:
        super().__init__(inherited)
        atexit.register(super().close)

    def close(self) -> None:
        """Does nothing: each child has ended with its pre-flight, and the next test needs the process."""


_CHILDREN = SharedPreflightPool()


class ControllerUnderTest:
    """A controller that runs from `start` to `stop`; use it in a with statement.

    `log` keeps the lines of declctl, and those that handlers write with `ctx.log`.
    `manifest` is a file or a folder; a text of several lines is taken for the manifest itself, for
    controllers without handler files. Without a `sandbox` it makes one of its own, and fills it
    with `objects`. Files are only watched if `watch` says so: a test asks with `reload`. A handler
    that changed an object which it shares with others (`cache: {mode: Objects}`) fails the test at the
    end of the with statement.
    """

    def __init__(
        self,
        manifest: str | Path,
        *,
        objects: Iterable[KubeObject] = (),
        sandbox: SandboxThread | None = None,
        watch: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.log = Logged()
        self._stack = ExitStack()
        self._manifest = manifest
        self._objects = list(objects)
        self._own_sandbox = sandbox is None
        self.sandbox = SandboxThread() if sandbox is None else sandbox
        self._watch = watch
        self._clock = clock
        self._runtime: Runtime | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._result: int | None = None
        self._error: BaseException | None = None

    def start(self, timeout: float = 30.0) -> Self:
        """Start, and return when the first generation runs; its caches may still be filling.

        Raises what the start raises, such as ManifestErrors.
        """
        if self._own_sandbox:
            self._stack.enter_context(self.sandbox)
        self.sandbox.load(self._objects)
        kubeconfig = self.sandbox.kubeconfig()
        self._runtime = Runtime(
            RunOptions(manifest=self._path(), watch=self._watch, mutation_detector=True),
            connect=lambda: Client.from_kubeconfig_dict(kubeconfig),
            fronts=[self._front],
            children=_CHILDREN,
            clock=self._clock,
            log=self.log,
            user_log=self.log.user_logger(),
        )
        self._thread = threading.Thread(target=self._run, name="controller under test", daemon=True)
        self._thread.start()
        try:
            until("the first generation runs", self._has_begun, timeout=timeout)
            if self._error is not None:
                raise self._error
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, timeout: float = 30.0) -> int:
        """Drain and end, as SIGTERM does; returns the exit status. Stopping twice is harmless.

        Raises AssertionError if it hasn't ended after `timeout` seconds.
        """
        runtime, thread = self._runtime, self._thread
        try:
            if runtime is not None and thread is not None and thread.is_alive():
                runtime.stop()
                # A controller that hangs fails its own test instead of the next one.
                thread.join(timeout)
                if thread.is_alive():
                    raise AssertionError(f"the controller has not ended within {timeout:g} s")
        finally:
            self._stack.close()
        return self._result or 0

    def reload(self, timeout: float = 30.0, *, force: bool = False) -> Outcome:
        """Make what the files say now the next generation, or say why not.

        With `force` there is a new generation although nothing has changed that the bundle reads.
        """
        return self.on_machinery(self.runtime.reload(asked=True, force=force), timeout)

    def wait_ready(self, timeout: float = 10.0) -> None:
        """Return when it is ready: every cache has been filled."""
        until("the controller is ready", lambda: self.status().ready, timeout=timeout)

    def wait_idle(self, timeout: float = 10.0) -> None:
        """Return when every change that the sandbox holds has been dealt with by every handler.

        Changes that back off, and calls that run, are waited for. Raises AssertionError that names
        what is left.
        """
        deadline = time.monotonic() + timeout
        version = self._version()
        until(
            f"all caches have seen version {version} of the sandbox and all handlers are done",
            lambda: self.on_machinery(self._at_rest(version), max(0.1, deadline - time.monotonic())),
            timeout=timeout,
        )

    def status(self) -> ControllerStatus:
        """What the controller says of itself, between two steps of its machinery, as anybody else sees it."""
        runtime = self.runtime
        try:
            return self.on_machinery(_called(runtime.status), _LOOK_SECONDS)
        except (UsageError, RuntimeError, CancelledError, TimeoutError):
            return runtime.status()  # the machinery has not begun, has ended, or stands still

    def condition(self, kind: str) -> Condition:
        """A condition of the status; raises KeyError if there is none of that type."""
        found = next((c for c in self.status().conditions if c.type == kind), None)
        if found is None:
            raise KeyError(f"no condition {kind}")
        return found

    def handler(self, name: str) -> HandlerStatistics:
        """The figures of a handler; raises KeyError."""
        found = next((h for h in self.status().handlers if h.name == name), None)
        if found is None:
            raise KeyError(f"no handler {name}")
        return found

    def resource(self, name: str) -> ResourceStatus:
        """The figures of a resource; raises KeyError."""
        found = next((r for r in self.status().resources if r.name == name), None)
        if found is None:
            raise KeyError(f"no resource {name}")
        return found

    def lister(self, resource: str) -> Lister:
        """The live cache of a resource; raises KeyError."""
        lister = self.runtime.lister(resource)
        if lister is None:
            raise KeyError(f"no resource {resource}")
        return lister

    @property
    def mutations(self) -> Sequence[Mutation]:
        """What handlers have changed in objects that they share with others; it was put right."""
        return () if self._runtime is None else self._runtime.mutations

    @property
    def runtime(self) -> Runtime:
        """The runtime itself; raises UsageError before the start."""
        if self._runtime is None:
            raise UsageError("the controller has not been started: use it in a with statement")
        return self._runtime

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        # A test that has failed already says more than this would.
        if kind is None and self.mutations:
            told = "\n".join(f"  {mutation}" for mutation in self.mutations)
            raise AssertionError(f"a handler changed objects of the cache, which others read:\n{told}")

    def _path(self) -> str:
        if isinstance(self._manifest, Path) or "\n" not in self._manifest:
            return str(self._manifest)
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="declctl-test-"))
        path = Path(folder) / "manifest.yaml"
        path.write_text(self._manifest, "utf-8")
        return str(path)

    def _run(self) -> None:
        try:
            self._result = self.runtime.run()
        except BaseException as error:  # noqa: BLE001 - raised again where the test waits
            self._error = error

    def _has_begun(self) -> bool:
        if self._error is not None or self._result is not None:
            return True
        return self._loop is not None and self.status().generation > 0

    @asynccontextmanager
    async def _front(self, _: Runtime) -> AsyncGenerator[None]:
        self._loop = asyncio.get_running_loop()
        yield

    def on_machinery(self, work: Any, timeout: float) -> Any:
        """Run a coroutine on the machinery loop; returns its result within `timeout` seconds."""
        if self._loop is None:
            work.close()
            raise UsageError("the controller has not been started: use it in a with statement")
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the controller has ended")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def _version(self) -> int:
        """The newest version of the sandbox; bookmarks tell it to watches that have no events.

        It is read first: a change between the two would be waited for, and no bookmark would tell it.
        """
        version = self.sandbox.faults.history.version
        # A watch without events learns of the version by a bookmark only.
        self.sandbox.faults.bookmark()
        return version

    async def _at_rest(self, version: int) -> bool:
        if not self._is_idle(version):
            return False
        # What a watch has read may still be on its way to the cache: look again some turns later.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        return self._is_idle(version)

    def _is_idle(self, version: int) -> bool:
        return not self.runtime.unfinished() and all(
            r.resource_version.isdecimal() and int(r.resource_version) >= version
            for r in self.runtime.status().resources
        )


async def _called(call: Callable[[], T]) -> T:
    return call()


@contextmanager
def running(
    manifest: str | Path,
    *,
    objects: Iterable[KubeObject] = (),
    sandbox: SandboxThread | None = None,
    watch: bool = False,
) -> Generator[ControllerUnderTest]:
    """A controller that has started, and is stopped in the end; see `ControllerUnderTest`."""
    with ControllerUnderTest(manifest, objects=objects, sandbox=sandbox, watch=watch) as controller:
        yield controller
