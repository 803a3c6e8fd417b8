"""What hooks take, read once from their specifications, and whether a function fits one."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from declctl.hooks import faults, specs
from declctl.hooks.bundle import Bundle
from declctl.hooks.calling import Implementation

_PREFIX = "declctl_"


def _arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    name: _arguments(function) for name, function in vars(specs).items() if name.startswith(_PREFIX)
}
"""The arguments of every hook, in the order of its specification."""


def implementation(hook: str, plugin: str, function: Callable[..., Any], bundle: Bundle) -> Implementation:
    """The function as an implementation of the hook; raises EntryPointError where it takes what the hook has not.

    A parameter with a default of its own may have any name; `**kwargs` takes every argument.
    """
    known = ARGUMENTS[hook]
    taken: list[str] = []
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin tells nobody what it takes: it gets everything
        return Implementation(hook, plugin, function, known, is_async=False)
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            taken += [name for name in known if name not in taken]
        elif parameter.kind is parameter.VAR_POSITIONAL:
            continue
        elif parameter.name in known and parameter.kind is not parameter.POSITIONAL_ONLY:
            taken.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise _unknown(hook, function, parameter.name, bundle)
    return Implementation(hook, plugin, function, tuple(taken), inspect.iscoroutinefunction(function))


def _unknown(hook: str, function: Callable[..., Any], parameter: str, bundle: Bundle) -> Exception:
    known = ARGUMENTS[hook]
    near = faults.closest(parameter, known)
    listed = ", ".join(known) or "no arguments"
    name = getattr(function, "__name__", repr(function))
    return faults.of_parameter(
        function,
        parameter,
        f"{name} takes {parameter!r}, which {hook} does not give",
        f'did you mean "{near}"? {hook} gives {listed}' if near else f"{hook} gives {listed}",
        bundle,
    )
