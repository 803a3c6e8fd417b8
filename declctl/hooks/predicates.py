"""Predicates: functions that a manifest names to say yes or no to an object."""

import inspect
import threading
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from declctl.errors import FilterFailed
from declctl.hooks import faults
from declctl.hooks.bundle import Bundle
from declctl.objects import ObjectView


class Predicate:
    """A checked function of one object, behind a gate: whatever it raises comes out as one error.

    What it returns counts as Python's `filter` counts it.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._function = function

    def __call__(self, obj: ObjectView) -> bool:
        """Whether the object is wanted; raises FilterFailed, which says who raised what."""
        try:
            result = self._function(obj)
            if type(result) is not CoroutineType:
                return bool(result)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            raise FilterFailed(f"the filter {self.name} raised {faults.told_with_place(error)}") from error
        result.close()
        raise FilterFailed(f"the filter {self.name} returned a coroutine, which nobody awaits")


def predicate(name: str, function: Callable[..., Any], bundle: Bundle) -> Predicate:
    """The function that an entry point names, as a filter.

    Raises EntryPointError, located at the function, where it is asynchronous, a generator or a class,
    or can't be called with one object.
    """
    called = getattr(function, "__name__", name)
    if inspect.isclass(function):
        message, advice = f"{called} is a class, and a filter is a function", "write module:function"
    elif _is_async(function):
        message = f"{called} is asynchronous, and a filter is called where nobody can wait for it"
        advice = "write `def` instead of `async def`"
    elif inspect.isgeneratorfunction(function):
        message, advice = (
            f"{called} is a generator: calling it decides nothing",
            "write `return`, not `yield`",
        )
    elif not _takes_one(function):
        message = f"{called} can't be called with one argument, and a filter is given the object alone"
        raise faults.of_function(
            function,
            message,
            code=faults.UNKNOWN_PARAMETER,
            suggestion=f"write def {called}(obj)",
            bundle=bundle,
        )
    else:
        return Predicate(name, function)
    raise faults.of_function(function, message, code=faults.WRONG_KIND, suggestion=advice, bundle=bundle)


def _is_async(function: Callable[..., Any]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - an object may be called asynchronously, too
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return any(kind(each) for kind in kinds for each in (function, call))


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin tells nobody what it takes
        return True
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True
