"""What hooks take, read once from their specifications, and whether a function fits one."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from declctl.errors import EntryPointError
from declctl.hooks import faults, specs
from declctl.hooks.bundle import Bundle
from declctl.hooks.calling import Implementation

_PREFIX = "declctl_"
_ELSEWHERE: Final[Mapping[str, tuple[str, str]]] = {
    **{name: ("obj", f'obj["{name}"]') for name in ("spec", "status", "metadata")},
    **{name: ("obj", f"obj.{name}") for name in ("name", "namespace", "uid", "labels", "annotations")},
    **{name: ("ctx", f"ctx.{name}") for name in ("log", "memo", "listers", "client", "config")},
    **{name: ("change", f"change.{name}") for name in ("key", "type", "reason")},
    "meta": ("obj", 'obj["metadata"]'),
    "logger": ("ctx", "ctx.log"),
}
"""The parameter and the expression for what other frameworks pass as a parameter."""


def _arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    name: _arguments(function) for name, function in vars(specs).items() if name.startswith(_PREFIX)
}
"""The arguments of every hook, in the order of its specification."""


def implementation(hook: str, plugin: str, function: Callable[..., Any], bundle: Bundle) -> Implementation:
    """The function as an implementation of the hook.

    A parameter with a default of its own may have any name; `**kwargs` takes every argument. Raises
    EntryPointError where the function takes what the hook doesn't give, or can't be called as the
    hook is.
    """
    is_async = _is_async(function)
    _check_kind(hook, function, bundle, is_async=is_async)
    return Implementation(hook, plugin, function, _taken(hook, function, bundle), is_async)


def _taken(hook: str, function: Callable[..., Any], bundle: Bundle) -> tuple[str, ...]:
    known = ARGUMENTS[hook]
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin tells nobody what it takes: it gets everything
        return known
    taken: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            taken += [name for name in known if name not in taken]
        elif parameter.kind is parameter.VAR_POSITIONAL:
            continue
        elif parameter.name in known and parameter.kind is not parameter.POSITIONAL_ONLY:
            taken.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise _unknown(hook, function, parameter, bundle)
    return tuple(taken)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object may be called asynchronously, too
    )


def _check_kind(hook: str, function: Callable[..., Any], bundle: Bundle, *, is_async: bool) -> None:
    name = getattr(function, "__name__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        message = f"{name} is a generator: calling it for {hook} would do nothing"
        advice = "remove the `yield`"
    elif is_async and hook in specs.SYNCHRONOUS:
        message = f"{name} is asynchronous, and {hook} is called where nobody can wait for it"
        advice = "write `def` instead of `async def`"
    else:
        return
    raise faults.of_function(function, message, code=faults.WRONG_KIND, suggestion=advice, bundle=bundle)


def _unknown(
    hook: str, function: Callable[..., Any], parameter: inspect.Parameter, bundle: Bundle
) -> EntryPointError:
    known = ARGUMENTS[hook]
    listed = ", ".join(known) or "no arguments"
    name = getattr(function, "__name__", repr(function))
    message = f"{name} takes {parameter.name!r}, which {hook} does not give"
    suggestion = f"{_instead_of(parameter.name, known)}{hook} gives {listed}"
    if parameter.name in known:
        message = f"{name} takes {parameter.name!r} by position only, and hooks are given arguments by name"
        suggestion = "remove the `/` from its parameters"
    return faults.of_parameter(function, parameter.name, message, suggestion, bundle)


def _instead_of(name: str, known: tuple[str, ...]) -> str:
    """What to write for a parameter that a hook does not give: the beginning of a sentence, or nothing."""
    parameter, read = _ELSEWHERE.get(name, ("", ""))
    if parameter in known:
        return f'write "{parameter}" and read {read}; '
    near = faults.closest(name, known)
    if near is not None and near[0] == name[0]:
        return f'did you mean "{near}"? '
    # Likely the kind of the object, such as pod; or what another framework calls it, such as body.
    return 'write "obj" for the object, whatever its kind; ' if "obj" in known else ""
