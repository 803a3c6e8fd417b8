"""The one gate to foreign code.

Everything that a plugin or a handler file has written is called here, and whatever it raises comes
out as one error.
"""

import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CoroutineType
from typing import Any

from declctl.errors import HandlerFailed
from declctl.hooks import faults
from declctl.hooks.finding import show_lines_of
from declctl.objects import ChangeType

_HOST = f"{Path(__file__).resolve().parents[1]}/"
_HOOKS_BY_TYPE: Mapping[ChangeType, tuple[str, ...]] = {
    ChangeType.ADDED: ("declctl_event", "declctl_added"),
    ChangeType.MODIFIED: ("declctl_event", "declctl_modified"),
    ChangeType.RESYNC: ("declctl_event", "declctl_modified"),
    ChangeType.DELETED: ("declctl_event", "declctl_deleted"),
}


@dataclass(frozen=True, slots=True)
class Implementation:
    """One function of foreign code that implements a hook, and the arguments that it takes, by name.

    `rank` orders the implementations of one hook: 0 for `tryfirst`, 2 for `trylast`, else 1.
    """

    hook: str
    plugin: str
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    is_async: bool
    rank: int = 1


class EventTarget:
    """What one handler calls for a change: for each type its implementations, in their order.

    `declctl_event` comes before the hook of the type; within one hook, ranks count. `disabled` says why
    nothing is called at all (`onError: Disable`); it is empty otherwise.
    """

    def __init__(self, implementations: tuple[Implementation, ...], *, disabled: str = "") -> None:
        self.implementations = implementations
        self.disabled = disabled
        self.all_async = bool(implementations) and all(i.is_async for i in implementations)
        ordered = sorted(implementations, key=lambda i: i.rank)
        self._by_type = {
            kind: tuple(i for hook in hooks for i in ordered if i.hook == hook)
            for kind, hooks in _HOOKS_BY_TYPE.items()
        }

    def select(self, kind: ChangeType) -> tuple[Implementation, ...]:
        """The implementations that hear of changes of that type."""
        return self._by_type[kind]


def call(implementation: Implementation, arguments: Mapping[str, object]) -> Any:
    """Call a synchronous implementation with the arguments that it takes; returns what it returns.

    Raises HandlerFailed from whatever it raises, SystemExit included; only the KeyboardInterrupt of
    the main thread passes, which is a person's. A function that returns a coroutine has done
    nothing yet, so that is a failure too.
    """
    try:
        result = implementation.function(**{name: arguments[name] for name in implementation.parameters})
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        raise failed(implementation, error) from error
    if type(result) is CoroutineType:
        result.close()
        raise HandlerFailed(
            f"{implementation.hook} of {implementation.plugin} returned a coroutine, which nobody awaits: "
            "declare it with `async def`"
        )
    return result


def readable_traceback(error: BaseException) -> str:
    """The traceback of what foreign code raised, from the first frame that is not the host's.

    Its lines are those of the generation that raised, whatever stands in the files by now.
    """
    cause = error.__cause__ if isinstance(error, HandlerFailed) and error.__cause__ is not None else error
    trace = cause.__traceback__
    while (
        trace is not None
        and trace.tb_frame.f_code.co_filename.startswith(_HOST)
        and trace.tb_next is not None
    ):
        trace = trace.tb_next
    try:
        show_lines_of(cause)
        return "".join(traceback.format_exception(type(cause), cause, trace))
    except Exception:  # noqa: BLE001 - foreign code: an exception may be broken, and then its lines are shown
        head, what = "Traceback (most recent call last):\n", f"{faults.told(cause)}\n"
        return "".join([head, *traceback.format_tb(trace), what])


def failed(implementation: Implementation, error: BaseException) -> HandlerFailed:
    """What comes out of the gate when foreign code raised."""
    return HandlerFailed(f"{implementation.hook} of {implementation.plugin} raised {faults.told(error)}")
