"""A whole controller in the test's process: the runtime in threads, over an API server in memory.

`until` waits for a condition, for a limited time. `Logged` is a logger whose lines a test can read.
"""

import asyncio
import atexit
import contextlib
import inspect
import logging
import os
import re
import tempfile
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, MutableMapping, Sequence
from concurrent.futures import CancelledError, wait
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import structlog

from declctl import codes
from declctl.errors import DeclctlError, UsageError
from declctl.hooks.calls import is_of_call
from declctl.informer.stores.lister import Lister
from declctl.kit import AdvancingClock, Clock, Standstill
from declctl.kit.files import folder_of
from declctl.kit.pending import ItemState
from declctl.manifest.definition_files import definitions_beside
from declctl.objects import KubeObject
from declctl.objects.differences import Mutation
from declctl.runtime.checking.inputs import InputFiles
from declctl.runtime.checking.preflight_pool import PreflightPool
from declctl.runtime.handling.binding import HandlerStatistics
from declctl.runtime.handling.plugin_metrics import SCRAPE_SECONDS
from declctl.runtime.handling.tap import TapFilter, TapListener, TapMark, TapOutcome, TappedCall
from declctl.runtime.recorder import MakeRecorder
from declctl.runtime.recording import FileRecorder
from declctl.runtime.reloading.changes import Outcome
from declctl.runtime.reporting.status import ControllerCondition, ControllerStatus, ResourceStatus
from declctl.runtime.runtime import RunOptions, Runtime
from declctl.sandbox import SandboxThread
from declctl.transport import Client

if TYPE_CHECKING:
    from prometheus_client import Metric

T = TypeVar("T")

WAIT_SECONDS = 30.0  # a failing test may wait: on a busy machine, what comes at once takes seconds
_RECORD_BYTES = 256 << 20
_DEFINITION = "CustomResourceDefinition"
_OF_DEFINITIONS = re.compile(
    rf"\b({codes.NO_DEFINITION}|{codes.OTHER_DEFINITION}|{codes.REFUSED_RULE}|{codes.UNCHECKED_RULES}): "
)
_PAUSE_SECONDS = 0.01
_FIRST_PAUSE_SECONDS = 0.001  # most conditions of tests become true within some milliseconds
LOOK_SECONDS = 5.0  # the longest wait for the machinery loop
_END_LOOK_SECONDS = 0.05  # between two looks of a waiting call whether the controller has ended
_MOST_LOOKED_AT = 1000  # keys of a handler with a loop
_MOST_KEYS = 3  # of each handler, that an error names
_PATIENCE_SECONDS = 1.0  # of this machine, for which an advance waits for a call that does nothing to be seen
_STILL_LOOKS = 15  # of milliseconds, that find the same: the calls that run wait for the clock
_TURNS = 20  # of the machinery loop: after these, events that the reflector has read are in the caches


class DefinitionWarning(UserWarning):
    """A definition beside a manifest is not that of its class or has a broken rule, or none can be made."""


def until(
    what: str, condition: Callable[[], T], *, timeout: float = WAIT_SECONDS, every: float = _PAUSE_SECONDS
) -> T:
    """Wait until a condition is true. Blocks the calling thread.

    - `what`: names the condition in the error.
    - `condition`: called again and again, in the calling thread.
    - `timeout`: the longest wait, in seconds. It is generous, so that a busy machine fails no test.
    - `every`: the longest pause between two calls, in seconds. Pauses grow from a millisecond to this.

    Returns the first true value of `condition`. Raises AssertionError with the last value after `timeout`.
    """
    __tracebackhide__ = True  # pytest shows the line of the test that waits
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
    """One line of a log."""

    level: str  # debug, info, warning, error or critical
    event: str  # the message
    fields: Mapping[str, Any]  # with the bound fields; `traceback` has the text of an exception
    by_handler: bool = False  # a handler or a hook has written it with `ctx.log`, and not declctl


class Logged:
    """A structured logger whose lines a test can read. Used by any thread.

    `lines` has all lines, the oldest first. Loggers that `bind` returns share them. `user_logger()` is a
    `ctx.log` for a test that calls a handler itself.
    """

    def __init__(self, lines: list[Line] | None = None, **bound: Any) -> None:
        self.lines: list[Line] = [] if lines is None else lines
        self._bound = bound  # fields of each line

    def debug(self, event: str, **fields: Any) -> None:
        """Add a line of level debug."""
        self._keep("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Add a line of level info."""
        self._keep("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Add a line of level warning."""
        self._keep("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Add a line of level error."""
        self._keep("error", event, fields)

    def bind(self, **fields: Any) -> "Logged":
        """A logger with more fields, which adds to the same `lines`."""
        return Logged(self.lines, **{**self._bound, **fields})

    def user_logger(self) -> Any:
        """A structlog logger for `ctx.log`, which adds lines of all levels here."""
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
        """The messages of all lines, or of those with one `level`, the oldest first."""
        return [line.event for line in tuple(self.lines) if level in (None, line.level)]

    def of(self, handler: str | None = None, *, level: str | None = None) -> list[Line]:
        """The lines that handlers have written with `ctx.log`, the oldest first: no line of declctl.

        - `handler`: the lines of this handler of the manifest, by its name; None: of all.
        - `level`: `debug`, `info`, `warning`, `error` or `critical`; None: of all.

        A hook of the life cycle has the name of its plugin or entry point as `handler`.
        """
        return [
            line
            for line in tuple(self.lines)
            if line.by_handler
            and handler in (None, line.fields.get("handler"))
            and level in (None, line.level)
        ]

    def find(self, words: str) -> Line | None:
        """The first line whose message contains `words`; None if there is none."""
        return next((line for line in tuple(self.lines) if words in line.event), None)

    def _keep(self, level: str, event: str, fields: Mapping[str, Any], *, by_handler: bool = False) -> None:
        self.lines.append(Line(level, event, {**self._bound, **fields}, by_handler))

    def _keep_entry(self, _logger: object, _method: str, entry: MutableMapping[str, Any]) -> Any:
        fields = dict(entry)
        if "exception" in fields:
            fields["traceback"] = fields.pop("exception")
        self._keep(fields.pop("level"), str(fields.pop("event")), fields, by_handler=True)
        raise structlog.DropEvent  # the line is kept, and not written


def inherited_by_children() -> object:
    """The current folder and the environment, without pytest's variable for the phase of a test."""
    folder = None
    with suppress(FileNotFoundError):  # a test has removed it
        folder = Path.cwd()
    return folder, {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


class SharedPreflightPool(PreflightPool):
    """The pre-flight pool of all tests in a process.

    The load of the fork server takes longer than a short test. So it stays from test to test, and ends with
    the process that runs the tests. A new one is started if a test has changed the environment or the current
    folder (`inherited`).
    """

    def __init__(self, inherited: Callable[[], object] = inherited_by_children) -> None:
        super().__init__(inherited)
        atexit.register(super().close)

    def close(self) -> None:
        """Does nothing: each child ends with its pre-flight, and the next test needs the server."""


CHILDREN = SharedPreflightPool()
"""The pre-flight pool of all controllers under test in this process."""


class HandlerCall(NamedTuple):
    """One call of a handler that has ended, or is not waited for any longer."""

    handler: str
    key: str
    outcome: TapOutcome
    error: str  # hidden for a Secret
    error_type: str
    retry_in: float | None  # seconds
    cause: str  # what it was called for


class CallRecorder(TapListener):
    """Remembers all calls of handlers; what a filter has held back is no call. Any thread reads `calls`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(TapFilter(), loop)
        self.calls: list[HandlerCall] = []  # the oldest first

    def add(self, item: TappedCall | TapMark) -> None:
        """Remember a call."""
        if isinstance(item, TappedCall) and item.outcome is not TapOutcome.FILTERED:
            error = (
                "(hidden: the object is a Secret)" if item.error and item.subject.is_secret else item.error
            )
            subject = item.subject
            cause = ", ".join(map(str, subject.causes)) or f"{subject.type} {subject.reason}".rstrip()
            self.calls.append(
                HandlerCall(
                    item.handler, item.key, item.outcome, error, item.error_type, item.retry_in, cause
                )
            )


class HostedController(ABC):
    """A controller in threads of this process, over any API server; what all stages of tests share.

    - `manifest`: a file or a folder; a text of several lines is the manifest itself, without handler files.
    - `watch`: reload when files change.
    - `clock`: the clock of the controller.
    - `namespace`: of the process, where the manifest names none.
    - `records`: remember all calls of handlers, for `calls`.
    - `files`: what reads the manifest instead.

    `log` has the lines of declctl, and those that handlers write with `ctx.log`. Methods are called by the
    thread of the test.
    """

    def __init__(
        self,
        manifest: str | Path,
        *,
        clock: Clock,
        watch: bool = False,
        namespace: str = "default",
        records: bool = False,
        files: InputFiles | None = None,
    ) -> None:
        self._files = files
        self._keeps_state = False
        self.shares = True  # with other controllers, if the manifest says so
        self._records = records
        self._recorder: CallRecorder | None = None  # set when the controller has begun
        self.log = Logged()
        self.clock = clock
        self._stack = ExitStack()
        self._manifest = manifest
        self._watch = watch
        self._namespace = namespace
        self.patience = _PATIENCE_SECONDS  # seconds of this machine, for calls that do not wait for the clock
        self._slow: Mapping[object, int] = {}  # slots, … → calls that `advance` does not wait for
        self._watches = 0  # that were open when it was at rest last
        self._seen = 0  # the version that all caches had then; 0 if it is not known
        self._runtime: Runtime | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._result: int | None = None
        self._error: BaseException | None = None

    def make_recorder(self) -> MakeRecorder | None:
        """What makes the recorder of the process; None, the default, for none."""
        return None

    @abstractmethod
    async def connect(self) -> Client:
        """A client of the API server, which the controller closes. On the machinery loop."""

    def newest_version(self, *, known: int = 0) -> int | None:  # noqa: ARG002 - for servers that have one
        """The newest version of the API server; None if it is not known. Watches are woken up to it.

        They are not woken if it is `known`: all caches had it.
        """
        return None

    def start(self, timeout: float = 30.0) -> Self:
        """Start the controller, and wait until the first generation is active. Its caches may lack objects.

        Gives DefinitionWarning at the line of the test for what the log says of definitions. Raises the
        exception of the start, or AssertionError after `timeout` seconds. A fault of the user,
        such as ManifestErrors, comes without the calls that have found it.
        """
        __tracebackhide__ = True
        options = RunOptions(
            self._path(),
            watch=self._watch,
            namespace=self._namespace,
            files=self._files,
            keeps_state=self._keeps_state,
            shares=self.shares,
            mutation_detector=True,
        )
        self._runtime = Runtime(
            options,
            connect=self.connect,
            fronts=[self._front],
            children=CHILDREN,
            clock=self.clock,
            log=self.log,
            user_log=self.log.user_logger(),
            recorder=self.make_recorder(),
        )
        self._thread = threading.Thread(target=self._run, name="controller under test", daemon=True)
        self._thread.start()
        try:
            until("the first generation runs", self._has_begun, timeout=timeout, every=_FIRST_PAUSE_SECONDS)
            if isinstance(self._error, DeclctlError):
                raise self._error.with_traceback(None) from None
            if self._error is not None:
                raise self._error
            self._warn_of_definitions()
        except BaseException:
            self.stop()
            raise
        if isinstance(self.clock, AdvancingClock):
            self.clock.attach(self._rest)
        return self

    def stop(self, timeout: float = 30.0) -> int:
        """Drain and end, as SIGTERM does; returns the exit status. A second call has no effect.

        Raises AssertionError if the controller has not ended after `timeout` seconds.
        """
        runtime, thread = self._runtime, self._thread
        if isinstance(self.clock, AdvancingClock):
            self.clock.detach(self._rest)
        try:
            if runtime is not None and thread is not None and thread.is_alive():
                runtime.stop()
                until = time.monotonic() + timeout
                while thread.is_alive() and time.monotonic() < until:
                    thread.join(_END_LOOK_SECONDS)
                    # It waits for calls as `run` does, and the time of a clock that stands would not be over.
                    if isinstance(self.clock, AdvancingClock) and self._has_waiting_call():
                        self.clock.step(_PATIENCE_SECONDS)
                # A controller that hangs fails its own test instead of the next one.
                if thread.is_alive():
                    raise AssertionError(f"the controller has not ended within {timeout:g} s")
        finally:
            self._stack.close()
        return self._result or 0

    def reload(self, timeout: float = 30.0, *, force: bool = False) -> Outcome:
        """Reload the files, as `declctl reload`, and return the outcome, which may be a refusal.

        `force` makes a new generation also of unchanged files. Raises TimeoutError after `timeout` seconds.
        """
        return self.on_machinery(self.runtime.reload(asked=True, force=force), timeout)

    def advance(self, seconds: float) -> None:
        """Move the time of the controller and of its sandbox ahead; what becomes due meanwhile runs.

        Retries, requeues, schedules, leases, resyncs and watches get their turns at their times, in order,
        and `ctx.now()` is that time. Returns when the calls that were due have ended. A call that takes more
        than a second of this machine is not waited for. Its `timeout` goes by the time of this machine, too.

        Raises UsageError with a clock that the test has given, which the test moves itself. Raises
        AssertionError if there is always something to do, without any time passing.
        """
        __tracebackhide__ = True
        self._moved(lambda clock: clock.advance(seconds, timeout=WAIT_SECONDS))

    def _moved(self, move: Callable[[AdvancingClock], T]) -> T:
        __tracebackhide__ = True
        if not isinstance(self.clock, AdvancingClock):
            raise UsageError("the controller has a clock of the test: move that one")
        try:
            return move(self.clock)
        except TimeoutError as late:
            raise AssertionError(f"{late} while time was advanced: {self._what_is_left(0)}") from None

    def step(self, seconds: float) -> float:
        """As `advance`, but no further than to the next due time; returns how far it went, in seconds."""
        __tracebackhide__ = True
        return self._moved(lambda clock: clock.step(seconds, timeout=WAIT_SECONDS))

    def rest(self) -> None:
        """Wait until all has been done that needs no time to pass: calls, writes, Events.

        What backs off, or is due later, stays so if the clock stands (`AdvancingClock(stands=True)`). Raises
        as `advance`.
        """
        __tracebackhide__ = True
        self.advance(0)

    def wait_ready(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait until every cache has synced.

        Raises AssertionError with those that have not, and why, after `timeout` seconds.
        """
        __tracebackhide__ = True
        self._until("ready", lambda: self.status().ready, timeout)

    @property
    def calls(self) -> Sequence[HandlerCall]:
        """All calls of handlers that have ended, the oldest first; empty without `records`."""
        return () if self._recorder is None else tuple(self._recorder.calls)

    def status(self) -> ControllerStatus:
        """The status, as in `GET /status`, taken on the machinery loop."""
        runtime = self.runtime
        try:
            return self.on_machinery(_called(runtime.status), LOOK_SECONDS)
        except (UsageError, RuntimeError, TimeoutError):
            return runtime.status()  # the machinery loop does not run, or is blocked

    def condition(self, kind: str) -> ControllerCondition:
        """The condition of a type, such as `Reloaded`; raises KeyError if there is none."""
        found = next((c for c in self.status().conditions if c.type == kind), None)
        if found is None:
            raise KeyError(f"no condition {kind}")
        return found

    def handler(self, name: str) -> HandlerStatistics:
        """The figures of a handler by its name; raises KeyError if there is none."""
        found = next((h for h in self.status().handlers if h.name == name), None)
        if found is None:
            raise KeyError(f"no handler {name}")
        return found

    def resource(self, name: str) -> ResourceStatus:
        """The figures of a resource by its name in the manifest; raises KeyError if there is none."""
        found = next((r for r in self.status().resources if r.name == name), None)
        if found is None:
            raise KeyError(f"no resource {name}")
        return found

    def metrics(self) -> dict[str, float]:
        """The metrics that plugins and handler files add (`declctl_metrics`): values by their series.

        A series is written as in Prometheus, with its labels in the order of their names:
        `jobs_total{queue="a",result="done"}`. Times at which series began (`…_created`) are left out. Raises
        AssertionError if a collector has failed.
        """
        metrics = self.runtime.plugin_metrics
        before = metrics.faults
        found = self.on_machinery(metrics.scrape(_series_of), SCRAPE_SECONDS + LOOK_SECONDS)
        lines = [line for line in self.log.events("warning") if "left out of /metrics" in line]
        assert metrics.faults == before, lines[-1] if lines else "a collector has failed"
        return {name: value for part in found for name, value in part.items()}

    def lister(self, resource: str) -> Lister:
        """The lister of a resource by its name in the manifest; raises KeyError if there is none."""
        lister = self.runtime.lister(resource)
        if lister is None:
            raise KeyError(f"no resource {resource}")
        return lister

    @property
    def mutations(self) -> Sequence[Mutation]:
        """The changes that handlers have made to shared objects, and that were undone."""
        return () if self._runtime is None else self._runtime.mutations

    @property
    def runtime(self) -> Runtime:
        """The runtime; raises UsageError before the start."""
        if self._runtime is None:
            raise UsageError("the controller has not been started: use it in a with statement")
        return self._runtime

    def __enter__(self) -> Self:
        __tracebackhide__ = True
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        # If the test has failed, its own error is more useful.
        if kind is None and self.mutations:
            lines = "\n".join(f"  {mutation}" for mutation in self.mutations)
            raise AssertionError(f"a handler changed objects of the cache, which others read:\n{lines}")

    def _path(self) -> str:
        if isinstance(self._manifest, Path) or "\n" not in self._manifest:
            return str(self._manifest)
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="declctl-test-"))
        path = Path(folder) / "manifest.yaml"
        path.write_text(self._manifest, "utf-8")
        self._manifest = path
        return str(path)

    def _warn_of_definitions(self) -> None:
        """Give warnings of definitions to pytest, which shows no log of a test that passes."""
        for line in tuple(self.log.lines):
            if line.level == "warning" and not line.by_handler and _OF_DEFINITIONS.search(line.event):
                advice = line.fields.get("suggestion")
                text = f"{line.event}; {advice}" if advice else line.event
                warnings.warn(text, DefinitionWarning, stacklevel=_level_of_caller())

    def _run(self) -> None:
        try:
            self._result = self.runtime.run()
        except BaseException as error:  # noqa: BLE001 - raised again where the test waits
            self._error = error

    def _has_begun(self) -> bool:
        if self._error is not None or self._result is not None:
            return True
        return self._loop is not None and self.runtime.generation > 0

    @asynccontextmanager
    async def _front(self, runtime: Runtime) -> AsyncGenerator[None]:
        if self._records:
            self._recorder = CallRecorder(asyncio.get_running_loop())
            runtime.tap.listeners = (*runtime.tap.listeners, self._recorder)
        self._loop = asyncio.get_running_loop()
        yield

    def on_machinery(self, work: Any, timeout: float) -> Any:
        """Run a coroutine on the machinery loop, and return its result. From any other thread.

        Raises the exception of the coroutine, TimeoutError after `timeout` seconds, UsageError before the
        start, and RuntimeError if the controller ends before the coroutine does.
        """
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            work.close()
            raise UsageError("the controller has not been started: use it in a with statement")
        try:
            called = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:  # the loop is closed
            work.close()
            raise RuntimeError("the controller has ended") from None
        # A loop that closes drops the calls that are scheduled: their futures are never done.
        deadline = time.monotonic() + timeout
        while not wait([called], min(_END_LOOK_SECONDS, max(0.0, deadline - time.monotonic()))).done:
            if (loop.is_closed() or not thread.is_alive()) and not called.done():
                if loop.is_closed():
                    work.close()
                raise RuntimeError("the controller ended before it could do what the test asked for")
            if time.monotonic() >= deadline:
                break
        try:
            return called.result(0)
        except CancelledError:  # the end of the machinery cancels the tasks of its loop
            raise RuntimeError(
                "the call was cancelled before it was done, as all are when the controller ends"
            ) from None

    def _until(self, state: str, condition: Callable[[], bool], timeout: float, version: int = 0) -> None:
        """As `until`; the error says what is not done."""
        __tracebackhide__ = True
        try:
            until(state, condition, timeout=timeout)
        except AssertionError:
            raise AssertionError(f"not {state} within {timeout:g} s: {self._what_is_left(version)}") from None

    def _what_is_left(self, version: int) -> str:
        try:
            return self.on_machinery(self._left(version), LOOK_SECONDS)
        except TimeoutError:
            return f"its machinery loop has not answered for {LOOK_SECONDS:g} s"

    async def _left(self, version: int) -> str:
        """What is not done, in words: caches and handlers with their last errors, and the next keys."""
        parts = [unfinished] if (unfinished := self.runtime.unfinished()) else []
        status = self.runtime.status()
        for resource in status.resources:
            if resource.synced and not _has_seen(resource.resource_version, version):
                why = f" ({resource.error})" if resource.error else ""
                seen = f"version {resource.resource_version} of {version}"
                parts.append(f"{resource.name} has seen {seen}{why}")
        for handler in status.handlers:
            found = await self.runtime.queue(handler.name, _MOST_KEYS)
            for item in () if found is None else found.items:
                failed = f" (failed attempts: {item.attempts}, {item.last_error_type})"
                parts.append(f"{handler.name} {item.key} is {item.state}{failed if item.attempts else ''}")
            parts += [f"write loop: {each}" for each in (() if found is None else found.write_loops)]
        return "; ".join(parts) or "it was busy, and is done now"

    def _rest(self) -> Standstill:
        """Wait until caches have all changes, and what can be called now is done; for a second at most.

        Calls that run are waited for as long as `patience` says, unless one of them may wait for the clock.
        """
        begin, first = time.monotonic(), None
        still, looks, known = 0, 0, self._seen  # `still`: looks in a row that have found the same
        while True:
            # A watch that was opened since the last look has had no bookmark: the next one is for it, too.
            version, known = self.newest_version(known=known), 0
            try:
                rest, busy, running = self.on_machinery(self._work(version), LOOK_SECONDS)
            except RuntimeError:  # it has ended
                return Standstill(None)
            self._slow = {part: min(number, busy.get(part, 0)) for part, number in self._slow.items()}
            if all(number <= self._slow.get(part, 0) for part, number in busy.items()):
                self._note_rest()
                self._seen = version or 0
                return rest
            still, looks = still + 1 if rest.figures == first else 0, looks + 1
            waits = running and self._has_waiting_call()
            limit = self.patience if running and not waits else _PATIENCE_SECONDS
            # On a busy machine a second may be a few looks, and each lets all loops have their turns.
            late = looks > _STILL_LOOKS and time.monotonic() >= begin + limit
            if late or (waits and still >= _STILL_LOOKS):
                if rest.figures == first:  # user code takes its time, or nothing can be called yet
                    self._slow = busy
                    self._note_rest()
                return rest
            first = rest.figures if first is None or not still else first
            time.sleep(_FIRST_PAUSE_SECONDS)

    def _note_rest(self) -> None:
        self._watches = self._open_watches()

    def _has_waiting_call(self) -> bool:
        """Whether something that a call has begun sleeps on the clock, or its API server does."""
        return isinstance(self.clock, AdvancingClock) and self.clock.has_sleep(
            lambda context, loop: loop is not self._loop or is_of_call(context)
        )

    def _open_watches(self) -> int:
        client = self.runtime.client
        return 0 if client is None else client.statistics().open_watches

    async def _work(self, version: int | None) -> tuple[Standstill, Mapping[object, int], int]:
        """Let happen what is due.

        Returns when more is due; what runs or can run now, by its place; and the number of calls that run.
        """
        parts = self.runtime.parts
        for slot in parts.slots.all():
            slot.wake()  # workers wait by the time of this machine
        due = parts.schedules.look()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        busy: dict[object, int] = {parts.attempts: int(parts.attempts.is_busy)}
        # Caches may have synced, and handlers not begun. One that is no leader may never begin.
        busy[parts.schedules] = parts.writing.candidate is None and not parts.schedules.has_started
        # Renewals are answered before time goes on: it would come to their deadlines.
        replica = parts.writing.replica
        busy["sharding"] = 0 if replica is None else replica.under_way
        # A watch that has ended is opened again first: it would count as silent, as no bookmark can reach it.
        busy[parts.caches] = max(0, self._watches - self._open_watches())
        for name, seen in parts.observer.seen_versions().items():
            busy[name] = version is not None and not _has_seen(seen, version)
        figures: list[object] = []
        running = 0
        for slot in parts.slots.all():
            queue, seconds = slot.queue.statistics(), slot.queue.next_due()
            busy[slot] = queue.running + (seconds == 0)
            running += queue.running
            due = min(due, seconds or float("inf"))
            figures.append(queue)
        for each in parts.schedules.statistics():
            busy[each.name, "schedule"] = each.running
            running += each.running
            figures.append((each.succeeded, each.failed, each.running))
        busy["events"] = parts.writing.recorder.waiting
        return Standstill(figures, due), busy, running


class ControllerUnderTest(HostedController):
    """A controller that runs from `start` to `stop`; use it in a with statement.

    - `manifest`: a file or a folder; a text of several lines is the manifest itself, without handler files.
    - `objects`: loaded into the sandbox before the start, after the CustomResourceDefinitions beside the
      manifest.
    - `sandbox`: the API server, by default a new one that ends with the controller.
    - `watch`: reload when files change. By default a test calls `reload`.
    - `clock`: the clock of the controller and its new sandbox, by default one that `advance` can move ahead.
      A controller over a given `sandbox` goes by the clock of that, and raises UsageError for another one.
    - `records`: remember all calls of handlers, for `calls`.
    - `record`: a file for what it sees and does, which `declctl replay` reads; None, the default, for none.
    - `record_size`: the most bytes of that file and of the segment before, `FILE.1`.
    - `files`: what reads the manifest instead; the definitions beside it are not loaded then.
    - `keeps_state`: use the folder of `state`, as `declctl run` does; a controller that is started afterwards
      begins with the caches of this one.

    `log` has the lines of declctl, and those that handlers write with `ctx.log`. Methods are called by the
    thread of the test. If a handler changes an object that others share (`cache: {mode: Objects}`), the with
    statement raises AssertionError at its end.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each thing that a test may choose
        self,
        manifest: str | Path,
        *,
        objects: Iterable[KubeObject] = (),
        sandbox: SandboxThread | None = None,
        watch: bool = False,
        clock: Clock | None = None,
        records: bool = False,
        record: str | Path | None = None,
        record_size: int = _RECORD_BYTES,
        files: InputFiles | None = None,
        keeps_state: bool = False,
    ) -> None:
        self._record, self._record_size = record, record_size
        self._objects = list(objects)
        self._own_sandbox = sandbox is None
        self.sandbox = SandboxThread(clock=clock) if sandbox is None else sandbox
        super().__init__(manifest, clock=self.sandbox.clock, watch=watch, records=records, files=files)
        self._keeps_state = keeps_state
        if clock not in (None, self.clock):
            raise UsageError("the sandbox has another clock: give it this one, as SandboxThread(clock=…)")

    async def connect(self) -> Client:
        """A client of the sandbox."""
        return await Client.from_kubeconfig_dict(self.sandbox.kubeconfig(), clock=self.clock)

    def make_recorder(self) -> MakeRecorder | None:
        """Records to the file of `record`."""
        if self._record is None:
            return None
        path, manifest = Path(self._record), str(self._manifest)
        return partial(
            FileRecorder, path, size=self._record_size, manifest=manifest, clock=self.clock, log=self.log
        )

    def newest_version(self, *, known: int = 0) -> int:
        """The newest version of the sandbox; a bookmark brings it to each watch, unless it is `known`."""
        return self.sandbox.bookmark(known=known)

    def start(self, timeout: float = 30.0) -> Self:
        """Load the objects, start the controller, and wait until the first generation is active.

        Its caches may lack objects. Raises the exception of the start, or AssertionError after `timeout`
        seconds. A fault of the user, such as ManifestErrors, comes without the calls that have found it.
        """
        __tracebackhide__ = True
        if self._own_sandbox:
            self._stack.enter_context(self.sandbox)
        definitions = self._definitions(Path(self._path())) if self._files is None else ()
        self.sandbox.load([*definitions, *self._objects])
        return super().start(timeout)

    def wait_idle(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait until every handler has handled every change that is in the sandbox now.

        Also waits for changes that back off, and for running calls. After `timeout` seconds, raises
        AssertionError with the handlers and resources that are not done, their keys and their last errors; at
        once, if a key waits as its writes lead to its next call.
        """
        __tracebackhide__ = True
        deadline = time.monotonic() + timeout
        version, loops = self.sandbox.faults.history.version, False

        def is_over() -> bool:
            nonlocal loops
            # A watch without events gets to the version by a bookmark only. One that has been opened since
            # the last look has had none.
            self.sandbox.faults.bookmark()
            try:
                left = max(0.1, deadline - time.monotonic())
                at_rest, loops = self.on_machinery(self._at_rest(version), left)
                return at_rest or loops
            except TimeoutError:  # its loop is busy
                return False

        self._until("idle", is_over, timeout, version)
        if loops:
            raise AssertionError(f"it will not be idle: {self._what_is_left(version)}")

    def _definitions(self, path: Path) -> list[KubeObject]:
        """The definitions beside the manifest that neither the sandbox has nor the test gives."""
        given = [*self._objects, *self.sandbox.objects(_DEFINITION)]
        known = {each["metadata"]["name"] for each in given if each.get("kind") == _DEFINITION}
        found = definitions_beside(folder_of(path))
        return [each for each in found if each["metadata"]["name"] not in known]

    async def _at_rest(self, version: int) -> tuple[bool, bool]:
        """Whether all is handled; and if not, whether a key waits as its writes lead to its next call."""
        if not self._is_idle(version):
            return False, self._has_waiting_loop()
        # Events that a watch has read may not be in the cache yet: look again some turns later.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        return self._is_idle(version), False

    def _has_waiting_loop(self) -> bool:
        slots = self.runtime.parts.slots
        return any(
            item.state is ItemState.WRITE_LOOP
            for name in {each.handler for each in slots.write_loops()}
            if (slot := slots.get(name)) is not None
            for item in slot.queue.snapshot(_MOST_LOOKED_AT)[1]
        )

    def _is_idle(self, version: int) -> bool:
        seen = self.runtime.parts.observer.seen_versions().values()
        return not self.runtime.unfinished() and all(_has_seen(each, version) for each in seen)


def _level_of_caller() -> int:
    """The `stacklevel` of a warning by the caller of this function, for the first line outside of here."""
    frame, level = inspect.currentframe(), 0
    ours = (str(Path(__file__).parent), contextlib.__file__)
    while frame is not None and frame.f_code.co_filename.startswith(ours):
        frame, level = frame.f_back, level + 1
    return level


def _has_seen(seen: str, version: int) -> bool:
    """Whether caches that have seen a version have everything up to another one of the sandbox."""
    return seen.isdecimal() and int(seen) >= version


def _series_of(families: Iterable["Metric"]) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


async def _called(call: Callable[[], T]) -> T:
    return call()


def running(
    manifest: str | Path,
    *,
    objects: Iterable[KubeObject] = (),
    sandbox: SandboxThread | None = None,
    watch: bool = False,
    clock: Clock | None = None,
    record: str | Path | None = None,
    record_size: int = _RECORD_BYTES,
) -> ControllerUnderTest:
    """A controller for a with statement, stopped at its end. Parameters as of `ControllerUnderTest`."""
    return ControllerUnderTest(
        manifest,
        objects=objects,
        sandbox=sandbox,
        watch=watch,
        clock=clock,
        record=record,
        record_size=record_size,
    )
