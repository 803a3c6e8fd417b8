"""The children of isolated handlers, in the parent: who is started, and what a call in one is.

An `IsolatedHook` stands for each hook function of an isolated handler, so that its calls are those of any
`def` hook, in the threads of workers. It takes a child, sends the call, and serves the child until the result
is there. At the timeout of the handler, and when calls have to end, the child is killed and its thread goes
on.
"""

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from declctl.errors import ReloadRefused
from declctl.hooks.calls import (
    CHILD_TRACEBACK,
    ChildTraceback,
    EventTarget,
    HookTarget,
    Implementation,
    ReconcileTarget,
    identity_text,
)
from declctl.hooks.registry import ARGUMENTS
from declctl.manifest.model import IsolationMode
from declctl.manifest.plan import HandlerPlan
from declctl.objects import Change, Request, Requeue
from declctl.runtime.checking.declaration import Declaration
from declctl.runtime.checking.preflight_pool import ForkServerProcess, timeval
from declctl.runtime.handling.binding import IsolationStatistics
from declctl.runtime.handling.context import CallElsewhere, Context
from declctl.runtime.handling.invocation import CallTimedOut, ran_longer_than
from declctl.runtime.isolation.parent.answers import CallOfChild
from declctl.runtime.isolation.parent.child_process import ChildProcess, ProcessLost
from declctl.runtime.isolation.protocol import (
    CANCEL,
    LENGTH,
    MOST_BYTES,
    Ask,
    Begin,
    Call,
    Done,
    Loaded,
    Raised,
    Tell,
    error_from,
    sendable,
)
from declctl.runtime.log import Log

MODULE = "declctl.runtime.isolation.template"
"""The module of the process that children are forked from."""

_THREAD = "declctl-isolation"

_MOST_TIMES = 2  # a child that takes so many times its `maxMemory` ends amid its call
FIRST_DELAY = 0.1  # seconds before a child that has crashed is replaced; twice as many each further time
_LONGEST_DELAY = 10.0


class ProcessRegistry:
    """The processes of isolated handlers of all generations: how many have ended, and which have to end.

    From any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}  # by handler: processes that have ended, by cause
        self._last: dict[str, tuple[str, str]] = {}  # by handler: the last end, and its cause
        self.open: set[IsolatedHandlers] = set()  # those that have begun, until they are closed

    def count(self, handler: str, cause: str, text: str) -> None:
        """Count the end of a process. `cause` is one word, `text` a sentence."""
        with self._lock:
            self._counts.setdefault(handler, Counter())[cause] += 1
            self._last[handler] = (text, cause)

    def statistics(self, handler: str, children: Sequence[ChildProcess]) -> IsolationStatistics:
        """The figures of a handler that has these children."""
        processes = tuple(child.statistics() for child in children)
        with self._lock:
            counts = dict(self._counts.get(handler, {}))
            return IsolationStatistics(processes, counts, *self._last.get(handler, (None, None)))

    def close(self) -> None:
        """End all processes. Blocks until they are gone."""
        for each in tuple(self.open):
            each.close("declctl ends")


class Template:
    """The process that has imported the code of the isolated handlers of a generation. From any thread.

    If it ends, the next `fork` has the code imported again, with the same result: `hooks` are those of the
    generation, by handler.
    """

    def __init__(
        self, declaration: Declaration, hooks: Mapping[str, Sequence[str]], *, limit: float, log: Log
    ) -> None:
        self._declaration = declaration
        self._hooks = hooks
        self._limit = limit  # seconds for the import
        self._log = log
        self._lock = threading.Lock()  # guards the fields below
        self._import: Future[ForkServerProcess] | None = None  # done when children can be forked
        self._process: ForkServerProcess | None = None
        self._closed = False

    def start(self, until: float | None = None, stop: "Future[str] | None" = None) -> ForkServerProcess:
        """The process, after its import of the code. Blocks.

        Raises ReloadRefused, ProcessLost after `close` and when `stop` is done, RuntimeError without a
        thread, and TimeoutError at the monotonic time `until`: the import goes on for the next call.
        """
        with self._lock:
            if self._closed:
                raise ProcessLost("the generation of its code has ended")
            if self._import is None:
                started: Future[ForkServerProcess] = Future()
                threading.Thread(target=self._run, args=(started,), name=_THREAD, daemon=True).start()
                self._import = started
            started = self._import
        left = None if until is None else max(0.0, until - time.monotonic())
        awaited: list[Future[Any]] = [started] if stop is None else [started, stop]
        wait(awaited, left, FIRST_COMPLETED)
        if stop is not None and stop.done():
            raise ProcessLost(stop.result())
        return started.result(0)

    def fork(self, until: float | None, stop: "Future[str]") -> ChildProcess:
        """A new child. Raises ProcessLost, and TimeoutError as `start` does."""
        for _ in range(2):
            try:
                process = self.start(until, stop)
                with self._lock:
                    if process is not self._process:
                        continue  # another call has found that it has ended
                    with suppress(ConnectionError):
                        return ChildProcess(*process.fork(), parent=process.pid)
            except TimeoutError:
                raise
            except (OSError, RuntimeError, ReloadRefused) as fault:
                raise ProcessLost(f"no process can be started: {fault}") from fault
            process.kill()  # it has ended, and what its import has started ends, too
            self._forget(process)
        raise ProcessLost("no process can be started: the one that has imported the code ends at once")

    def close(self) -> None:
        """End the process and all its children. Blocks until they are gone."""
        with self._lock:
            self._closed = True
            started, process = self._import, self._process
            if process is not None and started is not None and not started.done():
                process.kill()
        if started is not None:
            wait([started])
            if started.exception() is None:
                self._forget(started.result())

    def _forget(self, process: ForkServerProcess) -> None:
        """End what is left of a process; the next `start` begins another."""
        with self._lock:
            if self._process is process:
                self._import = self._process = None
        process.close()

    def _run(self, started: "Future[ForkServerProcess]") -> None:
        """Start the process, and have the code imported."""
        process: ForkServerProcess | None = None
        try:
            process = ForkServerProcess(MODULE, output=None)
            with self._lock:
                self._process = process
                if self._closed:
                    process.kill()
            self._have_imported(process.control)
        except BaseException as fault:  # noqa: BLE001 - raised by `start`
            if process is not None:
                process.kill()
                process.close()
            with self._lock:  # no other one was started until now
                self._import = self._process = None
            started.set_exception(fault)
        else:
            started.set_result(process)

    def _have_imported(self, control: socket.socket) -> None:
        """Tell the process what to import, and wait for that. Raises ReloadRefused."""
        declared = msgspec.msgpack.encode((self._limit, self._declaration))
        try:
            control.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(self._limit))
            control.sendall(LENGTH.pack(len(declared)) + declared)
            (size,) = LENGTH.unpack(control.recv(LENGTH.size, socket.MSG_WAITALL))
            loaded = control.recv(min(size, MOST_BYTES), socket.MSG_WAITALL)
            found = msgspec.msgpack.decode(loaded, type=Loaded)
        except BlockingIOError:
            message = f"importing the code of isolated handlers took longer than {self._limit:g} s"
            raise ReloadRefused("ImportTimeout", message) from None
        except (OSError, struct.error, msgspec.MsgspecError):
            message = "importing the code of isolated handlers ended their process"
            raise ReloadRefused("ImportFailed", message) from None
        if found.faults:
            raise ReloadRefused("ImportFailed", f"in the process of isolated handlers: {found.faults[0]}")
        if other := [name for name, hooks in self._hooks.items() if found.hooks.get(name) != hooks]:
            raise ReloadRefused(
                "ImportFailed",
                f"{other[0]}: its code has other hooks in its own process than in this one: its import must "
                "not depend on the process",
            )
        if found.threads:
            self._log.warning(
                f"importing the code of isolated handlers has started {found.threads} threads, which the "
                "processes of the handlers do not have: start them in the first call"
            )


class HandlerChildren:
    """The children of one handler in one generation (`Isolation`). From any thread."""

    def __init__(
        self, plan: HandlerPlan, begin: Begin, template: Template, registry: ProcessRegistry
    ) -> None:
        self._plan = plan
        self._begin = begin
        self._template = template
        self._registry = registry
        self._changed = threading.Condition()  # guards all fields below
        self._idle: list[ChildProcess] = []  # the newest call last
        self._busy: set[ChildProcess] = set()
        self._crashes = 0  # in a row
        self._not_before = 0.0  # monotonic seconds: the next start
        self._stop: Future[str] = Future()  # done when no call may begin or go on any more: why

    def hooks(self, target: HookTarget) -> HookTarget:
        """The target with an `IsolatedHook` for each of its functions."""
        hooks = {id(each): self._hook(i, each) for i, each in enumerate(target.implementations)}
        if isinstance(target, ReconcileTarget):
            return ReconcileTarget(
                tuple(hooks[id(each)] for each in target.reconciling),
                tuple(hooks[id(each)] for each in target.finalizing),
                disabled=target.disabled,
            )
        return EventTarget(tuple(hooks.values()), disabled=target.disabled)

    def _hook(self, position: int, implementation: Implementation) -> Implementation:
        return Implementation(
            implementation.hook,
            implementation.plugin,
            IsolatedHook(self, position, implementation.function),
            ARGUMENTS[implementation.hook],
            is_async=False,
            rank=implementation.rank,
        )

    def stop_calls(self, why: str) -> None:
        """End the calls that run, with their processes, and begin none any more."""
        with self._changed:
            if not self._stop.done():
                self._stop.set_result(why)
            self._changed.notify_all()  # a call that waits for a process ends, too
            for child in self._busy:
                child.kill(why)

    def stop_call(self, key: str, why: str) -> None:
        """End the call for one key, with its process."""
        with self._changed:
            for child in self._busy:
                if child.key == key:
                    child.kill(why)

    def close(self, why: str) -> None:
        """End all processes, and start none any more."""
        self.stop_calls(why)
        with self._changed:
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()

    def statistics(self) -> IsolationStatistics:
        """The figures of this moment."""
        with self._changed:
            children = sorted((*self._busy, *self._idle), key=lambda child: child.started)
        return self._registry.statistics(self._plan.name, children)

    def call(self, position: int, arguments: Mapping[str, Any]) -> object:
        """Call a hook in a child; returns its result, raises its exception.

        Raises CallTimedOut, and ProcessLost with the cause. The delay after a crash is not in the timeout.
        """
        context: Context = arguments["ctx"]
        here = context.for_other_process()
        change, request = _sendable(arguments.get("change")), _sendable(arguments.get("request"))
        self._rest()
        timeout = self._plan.timeout
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                child = self._take(until)
            except TimeoutError:
                raise _failed(
                    CallTimedOut(f"no process was ready: {ran_longer_than(timeout or 0)}"), ""
                ) from None
            try:
                if not child.calls:
                    child.begin(self._begin, until)
                child.calls += 1
                child.key = context.origin.key
                child.begin_call(Call(child.calls, position, change, request, here.log_level), until)
                result = self._serve(child, until, here)
            except ProcessLost as lost:
                failure = self._lost(child, lost)
                # One that has ended while it was idle has cost nothing yet.
                if child.has_call or child.killed or child.calls <= 1:
                    raise failure from None
            except TimeoutError:
                raise self._late(child, timeout or 0) from None
            except BaseException as fault:
                # It has sent what can't be used: nothing that it sends is trusted any more.
                child.kill(f"{type(fault).__name__} in the process of declctl")
                child.close()
                self._remove(child, "Protocol", child.killed, is_crash=True)
                raise
            else:
                break
        self._give_back(child)
        if isinstance(result, Raised):
            raise error_from(result.failure)
        return None if request is None else _result(result)

    def _lost(self, child: ChildProcess, lost: ProcessLost) -> Exception:
        """Remove a child that is gone; returns the failure of its call."""
        place = child.place
        cause, text = child.close()
        text = str(lost) or text
        if place:
            text += f", at {place}"
        cause = "Memory" if child.is_too_large else cause
        self._remove(child, cause, text, is_crash=cause != "Killed" and (child.has_call or not child.calls))
        return _failed(ProcessLost(f"its process (pid {child.pid or 'not known'}) has ended: {text}"), place)

    def _late(self, child: ChildProcess, timeout: float) -> Exception:
        """End a child whose call has exceeded its timeout; returns the failure of the call."""
        child.ask_stack()
        place = child.place
        message = f"{ran_longer_than(timeout)}{f', at {place}' if place else ''}; its process was ended"
        child.kill(message)
        child.close()
        self._remove(child, "Timeout", message)
        return _failed(CallTimedOut(message), place)

    def _serve(self, child: ChildProcess, until: float | None, call: CallElsewhere) -> Done | Raised:
        """Answer the questions of a child until its call has ended."""
        served = CallOfChild(call)
        look = None if self._plan.isolation.max_memory is None else lambda: self._look(child)
        try:
            while True:
                message = child.receive(until, look)
                if isinstance(message, Done | Raised):
                    served.keep(message.memo)
                    return message
                if isinstance(message, Tell):
                    served.log(message)
                elif not isinstance(message, Ask):
                    raise ProcessLost("its process has sent a message out of turn")
                elif message.call != child.calls:
                    pass  # of something that has outlived an earlier call
                elif message.name == CANCEL:
                    served.cancel(message.number)
                else:
                    child.answer(message.number, served.answer(message), until)
        except BaseException:
            served.cancel()
            raise  # after a call that has ended by itself, writes go on

    def _look(self, child: ChildProcess) -> None:
        """Kill a child that takes far too much memory amid its call."""
        most, used = self._plan.isolation.max_memory, child.resident_bytes()
        if most is not None and used > _MOST_TIMES * most:
            child.is_too_large = True
            child.kill(f"it took {_mib(used)} amid a call, and its maxMemory is {_mib(most)}")

    def _rest(self) -> None:
        """Wait for the delay after a crash, unless a child is idle."""
        with self._changed:
            while not self._idle and not self._stop.done():
                seconds = self._not_before - time.monotonic()
                if seconds <= 0:
                    break
                self._changed.wait(seconds)

    def _take(self, until: float | None) -> ChildProcess:
        """A child for a call: one that is idle, or a new one. Raises ProcessLost and TimeoutError."""
        with self._changed:
            if self._stop.done():
                raise ProcessLost(self._stop.result())
            if self._idle:
                child = self._idle.pop()
                self._busy.add(child)
                return child
        try:
            child = self._template.fork(until, self._stop)
        except ProcessLost:
            self._crashed()
            raise
        with self._changed:
            self._busy.add(child)
            if self._stop.done():
                child.kill(self._stop.result())
        return child

    def _give_back(self, child: ChildProcess) -> None:
        """Keep a child for the next call, unless it has made enough of them, or takes too much memory."""
        limits, cause, text = self._plan.isolation, "", ""
        if limits.max_calls is not None and child.calls >= limits.max_calls:
            cause, text = "Calls", f"it has made its {child.calls:,} calls (maxCalls)"
        elif limits.max_memory is not None and (used := child.resident_bytes()) > limits.max_memory:
            cause, text = (
                "Memory",
                f"it took {_mib(used)}, more than its maxMemory of {_mib(limits.max_memory)}",
            )
        with self._changed:
            if self._crashes:
                self._crashes, self._not_before = 0, 0.0
                self._changed.notify_all()
            if not cause and not child.killed:
                self._busy.discard(child)
                self._idle.append(child)
                return
        child.close()
        self._remove(child, cause or "Killed", text or child.killed)

    def _remove(self, child: ChildProcess, cause: str, text: str, *, is_crash: bool = False) -> None:
        """Forget a child that has ended, and count it."""
        with self._changed:
            self._busy.discard(child)
        if is_crash:
            self._crashed()
        self._registry.count(self._plan.name, cause, f"pid {child.pid}: {text}")

    def _crashed(self) -> None:
        with self._changed:
            delay = min(FIRST_DELAY * 2**self._crashes, _LONGEST_DELAY)
            self._crashes = min(self._crashes + 1, 16)
            self._not_before = time.monotonic() + delay


class IsolatedHook:
    """Stands for a hook function whose calls are made in a child."""

    def __init__(self, children: HandlerChildren, position: int, function: Callable[..., Any]) -> None:
        self._children = children
        self._position = position
        # By it, a retry knows the hooks of another generation.
        self.__qualname__ = getattr(function, "__qualname__", repr(function))

    def __call__(self, **arguments: Any) -> object:
        """Call the hook. Raises what it raises, CallTimedOut and ProcessLost."""
        return self._children.call(self._position, arguments)


class IsolatedHandlers:
    """The children of all isolated handlers of a generation, and the process that they are forked from.

    `start` and `close` block; all else is cheap.
    """

    def __init__(
        self,
        template: Template,
        by_handler: Mapping[str, HandlerChildren],
        declaration: Declaration,
        registry: ProcessRegistry,
    ) -> None:
        self._template = template
        self._by_handler = by_handler
        self._registry = registry
        self.declaration = declaration  # of the generation

    def of(self, handler: str) -> HandlerChildren | None:
        """The children of a handler; None if it is not isolated."""
        return self._by_handler.get(handler)

    def start(self) -> None:
        """Have the code imported. Raises ReloadRefused."""
        self._registry.open.add(self)
        self._template.start()

    def close(self, why: str) -> None:
        """End all processes, also amid `start`. Blocks until they are gone."""
        for children in self._by_handler.values():
            children.close(why)
        self._template.close()
        self._registry.open.discard(self)


def isolated_handlers(  # noqa: PLR0913 - what a generation is made of
    handlers: Sequence[HandlerPlan],
    targets: Mapping[str, HookTarget],
    declaration: Declaration,
    *,
    number: int,
    resources: Sequence[str],
    dry_run: bool,
    limit: float,
    registry: ProcessRegistry,
    log: Log,
) -> IsolatedHandlers | None:
    """The isolated handlers of a generation, not started yet; None if there are none.

    `limit` is for the import of their code, in seconds.
    """
    isolated = [each for each in handlers if is_isolated(each) and not targets[each.name].disabled]
    if not isolated:
        return None
    hooks = {each.name: [*map(identity_text, targets[each.name].implementations)] for each in isolated}
    template = Template(declaration_of(declaration, hooks), hooks, limit=limit, log=log)
    children: dict[str, HandlerChildren] = {}
    for each in isolated:
        snapshots = list(each.include_snapshots_from)
        begin = Begin(each.name, each.resource, number, list(resources), snapshots, dry_run)
        children[each.name] = HandlerChildren(each, begin, template, registry)
    return IsolatedHandlers(template, children, declaration, registry)


def is_isolated(handler: HandlerPlan) -> bool:
    """Whether the hooks of a handler are called in processes of their own."""
    return handler.isolation.mode is IsolationMode.PROCESS


def declaration_of(declaration: Declaration, handlers: Container[str]) -> Declaration:
    """The part of a declaration that the hooks of these handlers need; they may read any resource."""
    uses = ("handler", "reconciler", "finalizer")
    entries = tuple(
        each
        for each in declaration.entries
        if each.use == "type" or (each.use in uses and each.name in handlers)
    )
    named = {each.plugin for each in entries}
    plugins = tuple(each for each in declaration.plugins if each.name in named)
    return replace(declaration, entries=entries, plugins=plugins)


def _sendable(subject: Any) -> Any:
    """A change or a request whose objects are sent as JSON."""
    if isinstance(subject, Change):
        old = None if subject.old is None else sendable(subject.old)
        return replace(subject, obj=sendable(subject.obj), old=old)
    if isinstance(subject, Request):
        obj, previous = (None if each is None else sendable(each) for each in (subject.obj, subject.previous))
        return replace(subject, obj=obj, previous=previous)
    return subject


def _result(done: Done) -> object:
    """What a reconciler has returned. A value of another type is one of a class with the same name."""
    if done.wrong:
        return type(done.wrong[:100], (), {})()
    return None if done.after is None else Requeue(done.after)


def _failed(error: Exception, place: str) -> Exception:
    """The error of a call whose process has ended, without the lines of declctl that have found it."""
    setattr(error, CHILD_TRACEBACK, ChildTraceback(f"{type(error).__name__}: {error}\n", place))
    return error


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
