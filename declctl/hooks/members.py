"""Which functions of a module or an object are marked as hook implementations."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from declctl.hooks import faults
from declctl.hooks.bundle import Bundle
from declctl.hooks.markers import PROJECT
from declctl.hooks.signatures import ARGUMENTS

_MARK = f"{PROJECT}_impl"


@dataclass(frozen=True, slots=True)
class Member:
    """One function that implements a hook, with the options of its mark; without a mark, none."""

    name: str
    hook: str
    function: Callable[..., Any]
    options: dict[str, Any]


def members_of(plugin: object) -> list[Member]:
    """The marked functions of a plugin, in the order in which they are defined."""
    members: list[Member] = []
    for name, function in _functions(plugin):
        options = getattr(function, _MARK, None)
        if isinstance(options, dict):
            members.append(Member(name, options.get("specname") or name, function, options))
    return members


def member_of_function(function: Callable[..., Any]) -> Member:
    """A function that is an entry point by itself: without a mark it is `declctl_event`."""
    name = getattr(function, "__name__", "function")
    options = getattr(function, _MARK, None)
    if not isinstance(options, dict):
        return Member(name, "declctl_event", function, {})
    return Member(name, options.get("specname") or name, function, options)


def check_marks(plugin: object, bundle: Bundle) -> None:
    """Raise EntryPointError for a function with a hook's name and no mark: it would never be called."""
    functions = [(plugin.__name__, plugin)] if inspect.isfunction(plugin) else _functions(plugin)
    for name, function in functions:
        if name in ARGUMENTS and not isinstance(getattr(function, _MARK, None), dict):
            raise faults.of_function(
                function,
                f"{name} has the name of a hook, and is not marked as one",
                code=faults.NO_HOOK,
                suggestion="put @declctl.hookimpl above it, or give it another name",
                bundle=bundle,
            )


def marked(members: list[Member]) -> object:
    """An object with the marked functions and nothing else, for pluggy to look through.

    It equals itself only: pluggy takes plugins that are equal for one and the same.
    """
    return _Marked({member.name: member.function for member in members if member.options})


class _Marked:
    def __init__(self, functions: dict[str, Callable[..., Any]]) -> None:
        self.__dict__.update(functions)


def _functions(plugin: object) -> list[tuple[str, Callable[..., Any]]]:
    """The functions and methods of a plugin; properties are not asked for."""
    found: list[tuple[str, Callable[..., Any]]] = []
    for name in _names(plugin):
        if isinstance(inspect.getattr_static(plugin, name, None), property):
            continue
        value: Any = getattr(plugin, name, None)
        if inspect.isroutine(value):
            found.append((name, value))
    return found


def _names(plugin: object) -> list[str]:
    if isinstance(plugin, ModuleType):
        return list(vars(plugin))
    bases = [kind for kind in reversed(type(plugin).__mro__) if kind is not object]
    return list(
        dict.fromkeys(name for holder in (*bases, plugin) for name in getattr(holder, "__dict__", {}))
    )
