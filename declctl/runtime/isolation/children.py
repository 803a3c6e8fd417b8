"""The children of isolated handlers, in the parent: who is started, and what a call in one is.

An `IsolatedHook` stands for each hook function of an isolated handler, so that its calls are those of any
`def` hook, in the threads of workers. It takes a child, sends the call, and serves the child until the result
is there. At the timeout of the handler, and when calls have to end, the child is killed and its thread goes
on.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

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
from declctl.objects import Change, ChangeType, Request, Requeue
from declctl.objects.record import record_of
from declctl.runtime.checking.declaration import Declaration
from declctl.runtime.checking.preflight_pool import ForkServerProcess
from declctl.runtime.handling.binding import IsolationStatistics
from declctl.runtime.handling.context import CallElsewhere, HandlerContext
from declctl.runtime.handling.invocation import CallTimedOut, ran_longer_than
from declctl.runtime.isolation.child_process import ChildEnded, ChildProcess
from declctl.runtime.isolation.parent_context import CallOfChild
from declctl.runtime.isolation.protocol import (
    CANCEL,
    LENGTH,
    MOST_BYTES,
    Ask,
    Begin,
    Call,
    Done,
    Loaded,
    Pending,
    Raised,
    Tell,
    WireChange,
    WireRequest,
    encoded,
    error_from,
    wire_causes,
    wire_object,
    wire_view,
)
from declctl.runtime.log import Log

MODULE = "declctl.runtime.isolation.template"
"""The module of the process that children are forked from."""

_MOST_TIMES = 2  # a child that takes so many times its `maxMemory` ends amid its call
FIRST_DELAY = 0.1  # seconds before a child that has crashed is replaced; twice as many each further time
_LONGEST_DELAY = 10.0
_RESYNC = ChangeType.RESYNC


class ChildEnds:
    """How many children of each handler have ended, by cause, since this process started. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}  # by handler
        self._last: dict[str, tuple[str, str]] = {}  # by handler: the last end, and its cause

    def add(self, handler: str, cause: str, text: str) -> None:
        """Count the end of a child. `cause` is one word, `text` a sentence."""
        with self._lock:
            self._counts.setdefault(handler, Counter())[cause] += 1
            self._last[handler] = (text, cause)

    def statistics(self, handler: str, children: Sequence[ChildProcess]) -> IsolationStatistics:
        """The figures of a handler that has these children."""
        processes = tuple(child.statistics() for child in children)
        with self._lock:
            ends = dict(self._counts.get(handler, {}))
            return IsolationStatistics(processes, ends, *self._last.get(handler, (None, None)))


class Template:
    """The process that has imported the code of the isolated handlers of a generation. From any thread."""

    def __init__(self, declaration: Declaration, *, limit: float) -> None:
        self._declaration = declaration
        self._limit = limit  # seconds for the import
        self._lock = threading.Lock()
        self._process: ForkServerProcess | None = None
        self._closed = False

    def start(self) -> Loaded:
        """Import the code. Blocks. Raises ReloadRefused."""
        with self._lock:
            return self._start()

    def fork(self) -> ChildProcess:
        """A new child. If the process has ended, another takes its place. Raises ChildEnded."""
        with self._lock:
            try:
                for _ in range(2):
                    if self._closed:
                        raise ChildEnded("the generation of its code has ended")
                    if self._process is None or self._process.is_over:
                        self._start()
                    assert self._process is not None
                    try:
                        return ChildProcess(*self._process.fork(), parent=self._process.pid)
                    except ConnectionError:  # it has ended just now
                        self._end()
            except (OSError, ReloadRefused) as fault:
                raise ChildEnded(f"no process can be started: {fault}") from fault
        raise ChildEnded("no process can be started: the one that has imported the code ends at once")

    def close(self) -> None:
        """End the process and all its children. Blocks until they are gone."""
        with self._lock:
            self._closed = True
            self._end()

    def _start(self) -> Loaded:
        self._end()
        process = self._process = ForkServerProcess(MODULE, output=None)
        control, body = process.control, msgspec.msgpack.encode(self._declaration)
        try:
            control.settimeout(self._limit)
            control.sendall(LENGTH.pack(len(body)) + body)
            data = b""
            until = time.monotonic() + self._limit
            size = None
            while size is None or len(data) < LENGTH.size + size:
                control.settimeout(max(0.001, until - time.monotonic()))
                if not (part := control.recv(1 << 20)):
                    raise ConnectionError
                data += part
                if size is None and len(data) >= LENGTH.size:
                    size = min(LENGTH.unpack_from(data)[0], MOST_BYTES)
            loaded = msgspec.msgpack.decode(data[LENGTH.size :], type=Loaded)
        except TimeoutError:
            self._end()
            message = f"importing the code of isolated handlers took longer than {self._limit:g} s"
            raise ReloadRefused("ImportTimeout", message) from None
        except (OSError, msgspec.MsgspecError):
            self._end()
            raise ReloadRefused(
                "ImportFailed", "importing the code of isolated handlers ended their process"
            ) from None
        control.settimeout(None)
        if loaded.faults:
            self._end()
            raise ReloadRefused("ImportFailed", f"in the process of isolated handlers: {loaded.faults[0]}")
        return loaded

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()


class HandlerChildren:
    """The children of one handler in one generation (`Isolation`). From any thread."""

    def __init__(self, plan: HandlerPlan, begin: Begin, template: Template, ends: ChildEnds) -> None:
        self._plan = plan
        self._begin = begin
        self._template = template
        self._ends = ends
        self._changed = threading.Condition()  # guards all fields below
        self._idle: list[ChildProcess] = []  # the newest call last
        self._busy: set[ChildProcess] = set()
        self._crashes = 0  # in a row
        self._not_before = 0.0  # monotonic seconds: the next start
        self._closed = ""  # why
        self._ended = 0  # how often `end_calls` was called
        self._why = ""  # of the last time

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

    def end_calls(self, why: str) -> None:
        """End the calls that run, with their processes."""
        with self._changed:
            self._ended += 1
            self._why = why
            self._changed.notify_all()  # a call that waits for a process ends, too
            for child in self._busy:
                child.kill(why)

    def close(self, why: str) -> None:
        """End all processes, and start none any more."""
        with self._changed:
            self._closed = why
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        self.end_calls(why)
        for child in idle:
            child.close()

    def statistics(self) -> IsolationStatistics:
        """The figures of this moment."""
        with self._changed:
            children = sorted((*self._busy, *self._idle), key=lambda child: child.started)
        return self._ends.statistics(self._plan.name, children)

    def call(self, position: int, arguments: Mapping[str, Any]) -> object:
        """Call a hook in a child; returns its result, raises its exception.

        Raises CallTimedOut, and ChildEnded with the cause.
        """
        context: HandlerContext = arguments["ctx"]
        here = context.for_other_process()
        subject = arguments.get("change") or arguments["request"]
        child, timeout = self._take(), self._plan.timeout
        until = None if timeout is None else time.monotonic() + timeout
        try:
            child.calls += 1
            child.send(encoded(Call(child.calls, position, _wire(subject), here.log_level)), until)
            result = self._serve(child, until, here)
        except ChildEnded as end:
            place = child.place
            cause, text = child.close()
            text = str(end) or text
            if place:
                text += f", at {place}"
            cause = "Memory" if child.is_too_large else cause
            self._end(child, cause, text, is_crash=cause != "Killed")
            raise _failed(ChildEnded(f"its process (pid {child.pid}) has ended: {text}"), place) from None
        except TimeoutError:
            assert timeout is not None
            child.ask_stack()
            place = child.place
            where = f", at {place}" if place else ""
            message = f"{ran_longer_than(timeout)}{where}; its process was ended"
            child.kill(message)
            child.close()
            self._end(child, "Timeout", message)
            raise _failed(CallTimedOut(message), place) from None
        except BaseException as fault:
            # It has sent what can't be used: nothing that it sends is trusted any more.
            child.kill(f"{type(fault).__name__} in the process of declctl")
            child.close()
            self._end(child, "Protocol", child.killed, is_crash=True)
            raise
        self._give_back(child)
        if isinstance(result, Raised):
            raise error_from(result.failure)
        return _result(result, subject)

    def _serve(self, child: ChildProcess, until: float | None, call: CallElsewhere) -> Done | Raised:
        """Answer the questions of a child until its call has ended."""
        served: CallOfChild | None = None
        pending: dict[int, Pending] = {}  # writes and requests under way
        look = None if self._plan.isolation.max_memory is None else lambda: self._look(child)
        try:
            while True:
                message = child.receive(until, look)
                if served is None and not isinstance(message, Done):
                    served = CallOfChild(call)
                if isinstance(message, Ask):
                    assert served is not None
                    if message.call != child.calls:
                        continue  # something has outlived an earlier call
                    if message.name == CANCEL:
                        if (found := pending.get(message.given[0])) is not None:
                            found.future.cancel()
                        continue
                    self._answer(child, served, message, pending, until)
                elif isinstance(message, Tell):
                    assert served is not None
                    served.log(message)
                elif isinstance(message, Done | Raised):
                    if message.memo is not None:
                        (served or CallOfChild(call)).keep(message.memo)
                    return message
                else:
                    raise ChildEnded("its process has sent a message out of turn")
        finally:
            for found in tuple(pending.values()):
                found.future.cancel()

    @staticmethod
    def _answer(
        child: ChildProcess,
        served: CallOfChild,
        question: Ask,
        pending: dict[int, Pending],
        until: float | None,
    ) -> None:
        try:
            found = served.answer(question.name, question.given)
        except Exception as error:  # noqa: BLE001 - the child raises it

            def failed(error: Exception = error) -> Any:
                raise error

            child.answer(question.number, failed, until)
            return
        if isinstance(found, Pending):
            pending[question.number] = found
            found.future.add_done_callback(lambda _: pending.pop(question.number, None))
            child.answer_later(question.number, found)
        else:
            child.answer(question.number, lambda: found, until)

    def _look(self, child: ChildProcess) -> None:
        """Kill a child that takes far too much memory amid its call."""
        most, used = self._plan.isolation.max_memory, child.resident_bytes()
        if most is not None and used > _MOST_TIMES * most:
            child.is_too_large = True
            child.kill(f"it took {_mib(used)} amid a call, and its maxMemory is {_mib(most)}")

    def _take(self) -> ChildProcess:
        """A child for a call: one that is idle, or a new one. Raises ChildEnded."""
        child, ended = self._idle_child()
        if child is None:
            try:
                child = self._template.fork()
            except ChildEnded:
                self._crashed()
                raise
        with self._changed:
            self._busy.add(child)
            if self._closed or self._ended != ended:
                child.kill(self._closed or self._why)
        if not child.has_begun:
            try:
                child.begin(self._begin)
            except (ChildEnded, TimeoutError):
                cause, text = child.close()
                self._end(child, cause, text, is_crash=True)
                raise ChildEnded(f"its process could not begin: {text}") from None
        return child

    def _idle_child(self) -> tuple[ChildProcess | None, int]:
        """A child that is idle, or None if another may be started; and how often calls were ended before.

        Waits after a crash. Raises ChildEnded if calls have to end meanwhile.
        """
        with self._changed:
            ended = self._ended
            while not self._closed and self._ended == ended:
                if self._idle:
                    return self._idle.pop(), ended
                wait = self._not_before - time.monotonic()
                if wait <= 0:
                    return None, ended
                self._changed.wait(wait)
            raise ChildEnded(self._closed or self._why)

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
            self._crashes = 0
            self._not_before = 0.0
            if not cause and not self._closed and not child.killed:
                self._busy.discard(child)
                self._idle.append(child)
                return
        child.close()
        self._end(child, cause or "Killed", text or child.killed or self._closed)

    def _end(self, child: ChildProcess, cause: str, text: str, *, is_crash: bool = False) -> None:
        with self._changed:
            self._busy.discard(child)
            is_closed = bool(self._closed)
        if is_crash:
            self._crashed()
        if is_closed:
            return  # nothing is replaced
        self._ends.add(self._plan.name, cause, f"pid {child.pid}: {text}")

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
        """Call the hook. Raises what it raises, CallTimedOut and ChildEnded."""
        return self._children.call(self._position, arguments)


class IsolatedHandlers:
    """The children of all isolated handlers of a generation. `close` blocks; all else is cheap."""

    def __init__(
        self, template: Template, by_handler: Mapping[str, HandlerChildren], again: Declaration
    ) -> None:
        self._template = template
        self._by_handler = by_handler
        self.declaration = again

    def of(self, handler: str) -> HandlerChildren | None:
        """The children of a handler; None if it is not isolated."""
        return self._by_handler.get(handler)

    def close(self, why: str) -> None:
        """End all processes. Blocks until they are gone."""
        for children in self._by_handler.values():
            children.close(why)
        self._template.close()


def start_isolated(  # noqa: PLR0913 - what a generation is made of
    handlers: Sequence[HandlerPlan],
    targets: Mapping[str, HookTarget],
    declaration: Declaration,
    *,
    number: int,
    resources: Sequence[str],
    dry_run: bool,
    limit: float,
    ends: ChildEnds,
    log: Log,
) -> IsolatedHandlers | None:
    """Import the code of the isolated handlers of a generation in a process; None if there are none. Blocks.

    `limit` is for the import, in seconds. Raises ReloadRefused.
    """
    isolated = [each for each in handlers if is_isolated(each) and not targets[each.name].disabled]
    if not isolated:
        return None
    own = declaration_of(declaration, {each.name for each in isolated})
    template = Template(own, limit=limit)
    try:
        loaded = template.start()
        for each in isolated:
            here = [identity_text(i) for i in targets[each.name].implementations]
            if loaded.hooks.get(each.name) != here:
                raise ReloadRefused(
                    "ImportFailed",
                    f"{each.name}: its code has other hooks in its own process than in this one: its import "
                    "must not depend on the process",
                )
    except BaseException:
        template.close()
        raise
    if loaded.threads:
        log.warning(
            f"importing the code of isolated handlers has started {loaded.threads} threads, which the "
            "processes of the handlers do not have: start them in the first call"
        )
    children = {
        each.name: HandlerChildren(
            each,
            Begin(each.name, number, list(resources), list(each.include_snapshots_from), dry_run),
            template,
            ends,
        )
        for each in isolated
    }
    return IsolatedHandlers(template, children, declaration)


def is_isolated(handler: HandlerPlan) -> bool:
    """Whether the hooks of a handler are called in processes of their own."""
    return handler.isolation.mode is IsolationMode.PROCESS


def declaration_of(declaration: Declaration, handlers: set[str]) -> Declaration:
    """The part of a declaration that the hooks of these handlers need."""
    uses = ("handler", "reconciler", "finalizer")
    entries = tuple(each for each in declaration.entries if each.use in uses and each.name in handlers)
    named = {each.plugin for each in entries}
    plugins = tuple(each for each in declaration.plugins if each.name in named)
    return msgspec.structs.replace(declaration, entries=entries, plugins=plugins)


def _wire(subject: Change | Request) -> WireChange | WireRequest:
    if isinstance(subject, Request):
        return WireRequest(
            str(subject.key), wire_view(subject.obj), subject.attempt, wire_causes(subject.causes), subject.id
        )
    record, old = record_of(subject.obj), subject.old
    is_same = old is not None and record_of(old) is record
    return WireChange(
        subject.type,
        subject.resource,
        wire_object(record),
        None if is_same else wire_view(old),
        is_same,
        subject.initial,
        subject.final_state_unknown,
        subject.reason,
        subject.generation,
        subject.received,
    )


def _result(done: Done, subject: Change | Request) -> object:
    """What the hook has returned. A value of another type is one of a class with the same name."""
    if isinstance(subject, Change):
        return None
    if done.wrong:
        return type(done.wrong[:100], (), {})()
    return None if done.after is None else Requeue(done.after)


def _failed(error: Exception, place: str) -> Exception:
    """The error of a call whose process has ended, without the lines of declctl that have found it."""
    setattr(error, CHILD_TRACEBACK, ChildTraceback(f"{type(error).__name__}: {error}\n", place))
    return error


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
