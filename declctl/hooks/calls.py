"""The calls of hooks and filters. All exceptions of user code become one kind of error.

Functions are called synchronously or asynchronously, in the thread or on the loop of the caller, which
`runtime` chooses. An exception is shown as a sentence with its line, or as a traceback.
"""

import asyncio
import linecache
import re
import threading
import traceback
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from contextvars import Context, ContextVar
from pathlib import Path
from types import CoroutineType, TracebackType
from typing import Any, NamedTuple, NoReturn, cast

import msgspec

from declctl.errors import DeclctlError, FilterFailed, HandlerFailed, MappingFailed
from declctl.kit.callbacks import must_propagate
from declctl.kit.secret_values import secret_values
from declctl.kit.text import exception_text
from declctl.objects import ChangeType, ObjectView

NAMESPACE = "_declctl_gen"
"""The package under which generations live; messages show names without it."""

_PRIVATE_NAME = re.compile(rf"\b{NAMESPACE}\.g\w+\.")
CHILD_TRACEBACK = "child_traceback"
"""The attribute of an exception that a hook has raised in a child process: a `ChildTraceback`."""

_MACHINERY = ("declctl", "importlib", "_frozen_importlib", "_frozen_importlib_external")
_LAST_FRAMES = 4  # of `end_of_traceback`
_LONGEST_END = 2000  # its characters
_HOST = f"{Path(__file__).resolve().parents[1]}/"
_HOOKS_BY_TYPE: Mapping[ChangeType, tuple[str, ...]] = {
    ChangeType.ADDED: ("declctl_event", "declctl_added"),
    ChangeType.MODIFIED: ("declctl_event", "declctl_modified"),
    ChangeType.RESYNC: ("declctl_event", "declctl_modified"),
    ChangeType.DELETED: ("declctl_event", "declctl_deleted"),
}


class ChildTraceback(NamedTuple):
    """Where an exception was raised in a child process, as this process has no frames of it."""

    text: str  # as `readable_traceback`
    place: str  # as `place_of`


class Implementation(msgspec.Struct, frozen=True):
    """One function of user code that implements a hook.

    `parameters` are the arguments of the hook that the function takes, by name. `rank` is the order among the
    implementations of one hook: 0 for `tryfirst`, 2 for `trylast`, else 1.
    """

    hook: str
    plugin: str
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    is_async: bool
    rank: int = 1


def identity_text(implementation: Implementation) -> str:
    """Hook, plugin and function, the same in each process that has loaded the code."""
    function = implementation.function
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{implementation.hook} of {without_prefix(implementation.plugin)}: {name}"


class HookTarget:
    """The implementations that one handler calls. `disabled` says why nothing is called, or is empty.

    (A plugin with `onError: Disable` that could not be loaded.)
    """

    def __init__(self, implementations: tuple[Implementation, ...], *, disabled: str = "") -> None:
        self.implementations = tuple(sorted(implementations, key=lambda i: i.rank))
        self.disabled = disabled
        self.all_async = bool(implementations) and all(i.is_async for i in implementations)


class EventTarget(HookTarget):
    """The implementations that a handler calls for each type of change, in order.

    `declctl_event` comes before the hook of the type; within one hook, ranks count.
    """

    def __init__(self, implementations: tuple[Implementation, ...], *, disabled: str = "") -> None:
        super().__init__(implementations, disabled=disabled)
        self._by_type = {
            kind: tuple(i for hook in hooks for i in self.implementations if i.hook == hook)
            for kind, hooks in _HOOKS_BY_TYPE.items()
        }

    def select(self, kind: ChangeType) -> tuple[Implementation, ...]:
        """The implementations for changes of a type."""
        return self._by_type[kind]


class ReconcileTarget(HookTarget):
    """The implementations of a reconciler: for keys, and for deleted objects with its finalizer."""

    def __init__(
        self,
        reconciling: tuple[Implementation, ...],
        finalizing: tuple[Implementation, ...] = (),
        *,
        disabled: str = "",
    ) -> None:
        super().__init__((*reconciling, *finalizing), disabled=disabled)
        self.reconciling = HookTarget(reconciling).implementations
        self.finalizing = HookTarget(finalizing).implementations


class HookCall:
    """A call of a hook while it runs. `arguments` are None after its end."""

    __slots__ = ("arguments",)

    def __init__(self, arguments: Mapping[str, object]) -> None:
        self.arguments: Mapping[str, object] | None = arguments


_NO_CALL = HookCall({})
# A variable of the context, so that tasks and threads (`asyncio.to_thread`) of the call have it, too. A
# context may outlive the call, as that of a timer does: therefore the end of the call empties the HookCall,
# which would keep the code of its generation.
_CURRENT: ContextVar[HookCall] = ContextVar("hook_call", default=_NO_CALL)


def current_arguments() -> Mapping[str, object] | None:
    """The arguments of the call of a hook that this code is part of; None or empty without one.

    A thread that the hook has started by itself is part of no call.
    """
    return _CURRENT.get().arguments


def is_of_call(context: Context) -> bool:
    """Whether a context is that of a call of a hook, or was made in one, which may have ended."""
    return context.get(_CURRENT, _NO_CALL) is not _NO_CALL


def call(implementation: Implementation, arguments: Mapping[str, object]) -> Any:
    """Call a synchronous implementation with the arguments that it takes; returns its result.

    Raises HandlerFailed for every exception of the function, SystemExit included, and for a function that
    returns a coroutine, because that function has done nothing yet. A KeyboardInterrupt in the main thread is
    Ctrl-C and passes.
    """
    running = HookCall(arguments)
    before = _CURRENT.set(running)
    try:
        result = implementation.function(**{name: arguments[name] for name in implementation.parameters})
    except BaseException as error:
        if _is_ctrl_c(error):
            raise
        raise _failure(implementation, error) from error
    finally:
        _CURRENT.reset(before)
        running.arguments = None
    if type(result) is CoroutineType:
        result.close()
        raise HandlerFailed(
            f"{implementation.hook} of {implementation.plugin} returned a coroutine, which is never awaited: "
            "declare it with `async def`"
        )
    return result


async def call_async(implementation: Implementation, arguments: Mapping[str, object]) -> Any:
    """Call an asynchronous implementation and await it; returns its result.

    Raises HandlerFailed for every exception of the function. That includes a CancelledError without a
    cancellation from outside, a KeyboardInterrupt outside of the main thread, and subclasses of
    BaseException: they would end the caller's task or the whole loop. A cancellation of the running task is
    raised.
    """
    rest, result = begin_async(implementation, arguments)
    return result if rest is None else await rest


def begin_async(
    implementation: Implementation, arguments: Mapping[str, object]
) -> tuple[Awaitable[Any] | None, Any]:
    """Run an asynchronous implementation up to its first wait.

    Returns the rest of the call, to be awaited at once in the same task; or None and the result, if the
    function has ended without a wait. Then it has cost no more than a call. Raises as `call_async` does.
    """
    before = _CURRENT.get()
    running = HookCall(arguments)
    _CURRENT.set(running)
    waits = False
    try:
        called = _called(implementation, arguments)
        if type(called) is not CoroutineType:
            waits = True
            return _until_end(implementation, called, running, before), None
        try:
            waits_for = called.send(None)
        except StopIteration as end:
            return None, end.value
        except BaseException as error:  # noqa: BLE001 - it is raised again, as it is or as a failure
            _raise(implementation, error)
        waits = True
        return _until_end(implementation, _resumed(called, waits_for), running, before), None
    finally:
        if not waits:
            _end(running, before)


def _end(running: HookCall, before: HookCall) -> None:
    running.arguments = None
    _CURRENT.set(before)


async def _until_end(
    implementation: Implementation, called: Awaitable[Any], running: HookCall, before: HookCall
) -> Any:
    try:
        return await called
    except BaseException as error:  # noqa: BLE001 - as above
        _raise(implementation, error)
    finally:
        _end(running, before)


def _called(implementation: Implementation, arguments: Mapping[str, object]) -> Awaitable[Any]:
    try:
        return implementation.function(**{name: arguments[name] for name in implementation.parameters})
    except BaseException as error:  # noqa: BLE001 - as above
        _raise(implementation, error)


def _raise(implementation: Implementation, error: BaseException) -> NoReturn:
    if must_propagate(error):
        raise error
    raise _failure(implementation, error) from error


@types.coroutine
def _resumed(begun: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Continue a coroutine that has begun and waits.

    Its futures are passed to the loop, and their results to the coroutine (PEP 380).
    """
    while True:
        try:
            sent = yield waits_for
        except BaseException as thrown:  # noqa: BLE001 - the coroutine decides what the loop's exception does
            step, value = begun.throw, thrown
        else:
            step, value = begun.send, sent
        try:
            waits_for = step(value)
        except StopIteration as end:
            return end.value


def _failure(implementation: Implementation, error: BaseException) -> HandlerFailed:
    return HandlerFailed(f"{implementation.hook} of {implementation.plugin} raised {describe(error)}")


def cancelled_by_itself(implementation: Implementation, error: asyncio.CancelledError) -> HandlerFailed:
    """The failure of a call that has ended by a cancellation of its task, of which user code is the cause.

    For the caller that owns the task, and knows that it has not cancelled it.
    """
    cause = asyncio.CancelledError("code that it calls has cancelled its task")
    failure = _failure(implementation, cause)
    # The line at which the call has waited is in the traceback.
    failure.__cause__ = cause.with_traceback(error.__traceback__)
    return failure


def _is_ctrl_c(error: BaseException) -> bool:
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


class Predicate:
    """A checked function of one object, as a filter; made by `registry.predicate`.

    The truth of its result counts, as for Python's `filter`.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._function = function

    def __call__(self, obj: ObjectView) -> bool:
        """Whether the filter accepts the object. Raises FilterFailed for every exception of the function."""
        try:
            result = self._function(obj)
            if type(result) is not CoroutineType:
                return bool(result)
        except BaseException as error:
            if _is_ctrl_c(error):
                raise
            raise FilterFailed(f"the filter {self.name} raised {describe_with_place(error)}") from error
        result.close()
        raise FilterFailed(f"the filter {self.name} returned a coroutine, which is never awaited")


class KeyFunction:
    """A checked function from an object to keys, for `mapTo`; made by `registry.key_function`."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function

    def __call__(self, obj: ObjectView) -> list[object]:
        """What the function returns for an object: a list, or one value.

        Raises MappingFailed if it raises, or returns something else. The values should be keys or names. The
        caller looks at each, as one that is none must not keep the others away.
        """
        try:
            result = self._function(obj)
            if result is None:
                return []
            if isinstance(result, str | bytes):
                return [result]
            if isinstance(result, Iterable):
                return list(cast("Iterable[object]", result))
        except BaseException as error:
            if _is_ctrl_c(error):
                raise
            raise MappingFailed(f"the mapping {self._name} raised {describe_with_place(error)}") from error
        kind = type(result).__name__
        raise MappingFailed(
            f"the mapping {self._name} returned a value of type {kind}: return a list of keys"
        )


def describe(error: BaseException) -> str:
    """Type and text of an exception, with the module names that users know: `KeyError: 'team'`."""
    text = exception_text(error)
    name = type(error).__name__
    return without_prefix(f"{name}: {text}" if text else name)


def describe_with_place(error: BaseException) -> str:
    """As `describe`, with the line of user code: `KeyError: 'team' (handlers.py:7)`."""
    place = place_of(error)
    return f"{describe(error)} ({place})" if place else describe(error)


def without_prefix(text: str) -> str:
    """A text without the private prefixes of module names."""
    return _PRIVATE_NAME.sub("", text)


def place_of(error: BaseException) -> str:
    """The line of user code that raised, such as `handlers.py:7`; empty if there is none.

    This is the innermost line in a handler file; for an installed plugin, the innermost line outside of
    declctl.
    """
    if isinstance(known := getattr(error, CHILD_TRACEBACK, None), ChildTraceback):
        return known.place
    # A syntax error is in the file itself; the traceback only has its import.
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno or 1}"
    private, other = "", ""
    for trace in _entries(error.__traceback__):
        frame = trace.tb_frame
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(f"{NAMESPACE}."):
            private = f"{frame.f_code.co_filename}:{trace.tb_lineno}"
        elif not _is_machinery(trace):
            other = f"{frame.f_code.co_filename}:{trace.tb_lineno}"
    return private or other


def _is_machinery(trace: TracebackType) -> bool:
    """Whether a frame belongs to declctl or to Python's import."""
    module = str(trace.tb_frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] in _MACHINERY


class SourceLines:
    """The source lines of one generation, for tracebacks; they stay correct when a file is edited.

    Python's `linecache` has one text for each name. Generations have different texts under the same name, so
    the lines are put there just before they are shown.
    """

    def __init__(self) -> None:
        self._entries: dict[str, tuple[int, None, list[str], str]] = {}  # by name, in the form of linecache

    def add(self, name: str, text: str) -> None:
        """Add a text, and show it under the name from now on."""
        self._entries[name] = (len(text), None, [f"{line}\n" for line in text.split("\n")], name)
        self.show(name)

    def show(self, name: str) -> None:
        """Show the text of this generation again, if it has one of that name."""
        if name in self._entries:
            linecache.cache[name] = self._entries[name]

    def remove(self) -> None:
        """Remove the texts from linecache, unless another generation shows its own by now."""
        for name, entry in self._entries.items():
            if linecache.cache.get(name) is entry:
                del linecache.cache[name]


def readable_traceback(error: BaseException) -> str:
    """The traceback of an exception of user code, from the first frame outside of declctl.

    An error that declctl raises ends at the line of the user that has led to it: its text says the rest. The
    lines are those of the generation that raised, also if the files have changed.
    """
    cause = error.__cause__ if isinstance(error, HandlerFailed) and error.__cause__ is not None else error
    if isinstance(known := getattr(cause, CHILD_TRACEBACK, None), ChildTraceback):
        return secret_values.hide(known.text)
    try:
        _show_lines_of(cause)
        shown = traceback.TracebackException.from_exception(cause)
        _leave_out_host(shown, cause)
        return secret_values.hide("".join(shown.format()))
    except BaseException:  # noqa: BLE001 - user code: an exception may be broken; then its lines are shown
        head, what = "Traceback (most recent call last):\n", f"{describe(cause)}\n"
        return "".join([head, *traceback.format_tb(cause.__traceback__), what])


def _leave_out_host(shown: traceback.TracebackException, error: BaseException) -> None:
    """Remove frames of declctl above those of user code, and below them if declctl has raised on purpose."""
    stack = shown.stack
    users = [at for at, frame in enumerate(stack) if not frame.filename.startswith(_HOST)]
    is_ours = isinstance(error, DeclctlError)
    if is_ours:  # without a frame of the user, its text says all: a finalizer was not written, for example
        del stack[users[-1] + 1 if users else 0 :]
    del stack[: users[0] if users else -1]
    for name in ("__cause__", "__context__"):
        inner, its_error = getattr(shown, name), getattr(error, name)
        if inner is None:
            continue
        if is_ours and all(frame.filename.startswith(_HOST) for frame in inner.stack):
            setattr(shown, name, None)  # how declctl has found it
        else:
            _leave_out_host(inner, its_error)
    if isinstance(error, BaseExceptionGroup):
        for inner, its_error in zip(shown.exceptions or (), error.exceptions, strict=False):
            _leave_out_host(inner, its_error)


def end_of_traceback(error: BaseException) -> str:
    """The last frames of an exception outside of declctl and of Python's import, and its type and text.

    It is short enough to stand below a fault: some frames, and at most 2000 characters.
    """
    frames = [trace for trace in _entries(error.__traceback__) if not _is_machinery(trace)]
    try:
        _show_lines_of(error)
        last = traceback.StackSummary.extract((t.tb_frame, t.tb_lineno) for t in frames[-_LAST_FRAMES:])
        text = "".join([*last.format(), *traceback.format_exception_only(error)])
    except BaseException:  # noqa: BLE001 - user code: an exception may be broken
        text = describe(error)
    return without_prefix(text).rstrip()[-_LONGEST_END:]


def _show_lines_of(error: BaseException) -> None:
    """Show the lines of all generations in the traceback of an exception, its causes and its group."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        # Causes may form a ring.
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        waiting += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions
        for trace in _entries(current.__traceback__):
            frame = trace.tb_frame
            lines = getattr(frame.f_globals.get("__loader__"), "lines", None)
            if isinstance(lines, SourceLines):
                lines.show(frame.f_code.co_filename)


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
