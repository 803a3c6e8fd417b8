"""User functions: how they are called, and where a thread is in one that does not return.

They must not be asynchronous, and some of their exceptions are failures.
"""

import asyncio
import inspect
import sys
import sysconfig
import threading
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any

_KINDS = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)


def refuse_async(function: object, role: str) -> None:
    """Raise TypeError if `function` is asynchronous: it is called where nobody awaits it.

    `role` says what the function is for, as the subject of a sentence. A function that only returns a
    coroutine can't be recognised before it is called: `plain` is for those.
    """
    # An object may be called asynchronously, too; a class is called to make one.
    call = None if isinstance(function, type) else getattr(function, "__call__", None)  # noqa: B004
    if any(kind(each) for kind in _KINDS for each in (function, call)):
        raise TypeError(f"{role} is called where nobody can await it: write `def` instead of `async def`")


def plain(result: Any, role: str) -> Any:
    """The result of a function that must not be asynchronous.

    Raises TypeError for an awaitable or a generator, which has done nothing yet and counts as true. A
    coroutine is closed, so that Python does not warn of it.
    """
    if result is None or result is True or result is False:
        return result  # what nearly all of them return
    if isinstance(result, CoroutineType | GeneratorType):
        result.close()
    elif not (isinstance(result, AsyncGeneratorType) or inspect.isawaitable(result)):
        return result
    raise TypeError(
        f"{role} returned a {type(result).__name__}, which has done nothing yet and nobody awaits: "
        "write a plain function that returns its answer"
    )


class CallGivenUp(BaseException):
    """Ends the thread of user code whose call is given up. No `except Exception` stops it."""


def must_propagate(error: BaseException) -> bool:
    """Whether an exception out of a user function is meant for the caller, which has to raise it again.

    True for the cancellation of the running task, for a person's Ctrl-C in the main thread, for the
    GeneratorExit of a coroutine that is closed, and for CallGivenUp. Everything else is a failure of the
    function, also a CancelledError that it got from something of its own, SystemExit, and classes that derive
    from BaseException: let through, they would end the task or thread of the caller, most of them silently.
    """
    match error:
        case asyncio.CancelledError():
            task = _current_task()
            return task is not None and task.cancelling() > 0
        case KeyboardInterrupt():
            return threading.current_thread() is threading.main_thread()
        case GeneratorExit():
            return _current_task() is None
        case CallGivenUp():
            return True
        case _:
            return False


def _current_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None


_HOST = f"{Path(__file__).resolve().parents[1]}/"
_STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}/"
_INSTALLED = "/site-packages/"  # may lie in the folder of the standard library


def user_code_place(thread: int | None) -> str:
    """The function of user code that a thread has called first, as `file:line in name`; empty if in none.

    The line is the one that the function is at. `thread` is the identifier of a thread; from any thread.
    """
    # There is no other way to look at a thread.
    frame = None if thread is None else sys._current_frames().get(thread)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    called: FrameType | None = None
    while frame is not None:  # outwards: what user code has called in its turn is its own business
        if _is_user_code(frame.f_code.co_filename):
            called = frame
        frame = frame.f_back
    if called is None:
        return ""
    return f"{called.f_code.co_filename}:{called.f_lineno} in {called.f_code.co_name}"


def _is_user_code(file: str) -> bool:
    if file.startswith((_HOST, "<frozen ")):
        return False
    return _INSTALLED in file or not file.startswith(_STANDARD_LIBRARY)
