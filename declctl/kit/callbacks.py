"""Calls of user code: callbacks, index functions, transforms, filters and hooks.

Such a function must not be asynchronous where no code awaits it (`refuse_async`, `plain`). Most of its
exceptions are failures of the function; some are meant for the caller (`must_propagate`). If it does not
return, `user_code_place` finds the line at which its thread is.
"""

import asyncio
import inspect
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, NamedTuple

from declctl.kit.garbage import without_collections

_KINDS = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)


def refuse_async(function: object, role: str) -> None:
    """Raise TypeError if `function` is asynchronous, for a function whose result is not awaited.

    `role` is the subject of the message, such as "the transform". A plain function that returns a coroutine
    is recognised only by its result: see `plain`.
    """
    # An object may have an asynchronous `__call__`. The `__call__` of a class is that of its instances.
    call = None if isinstance(function, type) else getattr(function, "__call__", None)  # noqa: B004
    if any(kind(each) for kind in _KINDS for each in (function, call)):
        raise TypeError(f"{role} is called where it cannot be awaited: write `def` instead of `async def`")


def plain(result: Any, role: str) -> Any:
    """Return `result`, the result of a function that must not be asynchronous.

    Raises TypeError for an awaitable or a generator: its code has not run yet, and it counts as true. A
    coroutine is closed, so that Python does not warn about it. `role` is as for `refuse_async`.
    """
    if result is None or result is True or result is False:
        return result  # the common case
    if isinstance(result, CoroutineType | GeneratorType):
        result.close()
    elif not (isinstance(result, AsyncGeneratorType) or inspect.isawaitable(result)):
        return result
    raise TypeError(
        f"{role} returned a {type(result).__name__}, which has done nothing yet and is never awaited: "
        "write a plain function that returns its answer"
    )


class CallGivenUp(BaseException):
    """Ends a thread that runs user code whose call was given up. No `except Exception` catches it."""


def must_propagate(error: BaseException) -> bool:
    """Whether an exception out of a user function is meant for the caller, which has to raise it again.

    True for the cancellation of the running task, for a Ctrl-C in the main thread, for the GeneratorExit of a
    coroutine that is closed, and for CallGivenUp. Every other exception is a failure of the function. That
    includes a CancelledError of another task, SystemExit, and subclasses of BaseException: raised again,
    these would end the task or thread of the caller, most of them silently.
    """
    match error:
        case asyncio.CancelledError():
            task = running_task()
            return task is not None and task.cancelling() > 0
        case KeyboardInterrupt():
            return threading.current_thread() is threading.main_thread()
        case GeneratorExit():
            return running_task() is None
        case CallGivenUp():
            return True
        case _:
            return False


def running_task() -> "asyncio.Task[Any] | None":
    """The task in which the caller runs; None outside of a task."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None


_HOST = f"{Path(__file__).resolve().parents[1]}/"
_STANDARD_LIBRARY = f"{Path(os.__file__).parent}/"
_INSTALLED = "/site-packages/"  # may lie in the folder of the standard library


def frames_of_threads() -> Mapping[int, FrameType]:
    """The innermost frame of each thread, by the identifier of the thread."""
    # Python has no public way to look at the frames of another thread.
    with without_collections():
        return sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


class CodeLine(NamedTuple):
    """A line of a function; its text is `file:line in name`."""

    code: CodeType
    line: int

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line} in {self.code.co_name}"


def user_code_place(thread: int | None) -> str:
    """The outermost function of user code in a thread, as `file:line in name`; empty if there is none.

    The line is the present one of that function. `thread` is the identifier of a thread. From any thread.
    """
    frame = None if thread is None else frames_of_threads().get(thread)
    called: FrameType | None = None
    while frame is not None:  # from the innermost frame outwards
        if _is_user_code(frame.f_code.co_filename):
            called = frame
        frame = frame.f_back
    return "" if called is None else str(CodeLine(called.f_code, called.f_lineno))


def caller() -> CodeLine | None:
    """The line of user code that has called declctl in this thread; None if there is none."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_HOST):
        frame = frame.f_back
    return None if frame is None else CodeLine(frame.f_code, frame.f_lineno)


def _is_user_code(file: str) -> bool:
    if file.startswith((_HOST, "<frozen ")):
        return False
    return _INSTALLED in file or not file.startswith(_STANDARD_LIBRARY)
