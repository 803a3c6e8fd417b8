"""Every hook that a plugin may implement: when it is called, with what, and what a raise means.

A hook takes any subset of its arguments, by name, in any order. `def` runs in a thread, `async def`
on the handlers' loop, one change at a time and in order for each handler; `concurrency` allows
more, but never two for one key. Index functions and transforms are the exception: they stand
between the wire and the cache, so they are called where it is filled and must be quick.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from declctl.hooks import hookspec
from declctl.objects import Change, ObjectView


@hookspec
def declctl_event(change: Change, obj: ObjectView, old: ObjectView | None, ctx: Any) -> None:
    """Something happened to an object of the handler's resource: called for every change.

    A raise is logged with its traceback, counted, and retried as the handler's `retry` and
    `onFailure` say.
    """


@hookspec
def declctl_added(obj: ObjectView, change: Change, ctx: Any) -> None:
    """An object was added, or was there at the first sync (`change.initial`).

    A raise: as for `declctl_event`.
    """


@hookspec
def declctl_modified(obj: ObjectView, old: ObjectView, change: Change, ctx: Any) -> None:
    """An object changed, or its resync is due (then `old` equals `obj`).

    A raise: as for `declctl_event`.
    """


@hookspec
def declctl_deleted(obj: ObjectView, change: Change, ctx: Any) -> None:
    """An object is gone; `obj` is its last known state. A raise: as for `declctl_event`."""


@hookspec
def declctl_reconcile(request: Any, ctx: Any) -> Any:
    """A key wants looking at, in `mode: Reconcile`; returns None or `Requeue(after=seconds)`."""


@hookspec
def declctl_indexers(
    resource: str,  # noqa: ARG001 - a specification
) -> Mapping[str, Callable[[ObjectView], Iterable[str]]]:
    """Called when a generation is staged: the indexes that this plugin adds to a resource, by name.

    An index function that raises keeps that object out of that index; it is counted and told.
    """
    raise AssertionError("a specification is never called")


@hookspec
def declctl_transform(obj: dict[str, Any], resource: str) -> dict[str, Any] | None:
    """Called before an object enters the cache: returns it, changed or not, or None to keep it out.

    It receives what an earlier transform returned. A raise keeps the object out; it is counted and
    told.
    """


@hookspec
def declctl_startup(ctx: Any) -> None:
    """Called once in the life of the process, before the first event. A raise ends the start."""


@hookspec
def declctl_shutdown(ctx: Any) -> None:
    """Called once in the life of the process, when the handlers have stopped. A raise is logged."""


@hookspec
def declctl_prepare(ctx: Any) -> None:
    """Called once in the life of a generation, before it is committed.

    A raise refuses the generation.
    """


@hookspec
def declctl_teardown(ctx: Any) -> None:
    """Called once in the life of a generation that was prepared, when it is drained or refused.

    A raise is logged.
    """


@hookspec
def declctl_export_state() -> Any:
    """Called on the old generation while the new one is staged.

    What it returns goes to `declctl_import_state`.
    """


@hookspec
def declctl_import_state(state: Any, from_generation: int) -> None:
    """Called on the new generation with what the old one exported.

    A raise refuses the new generation.
    """


@hookspec
def declctl_reload(outcome: Any) -> None:
    """Called on the active generation after every attempt to reload. A raise is logged."""


@hookspec
def declctl_config_schema() -> Mapping[str, Any]:
    """Called when a plugin is loaded.

    The JSON Schema of its `config`. A raise disables or refuses the plugin.
    """
    raise AssertionError("a specification is never called")


@hookspec
def declctl_rbac() -> Iterable[Mapping[str, Any]]:
    """The RBAC rules that the plugin needs, for `declctl generate rbac`."""
    raise AssertionError("a specification is never called")


@hookspec
def declctl_commands(app: Any) -> None:
    """Adds commands to the command line; `app` is a typer application."""


@hookspec
def declctl_metrics(registry: Any) -> None:
    """Adds collectors to the metrics; `registry` is a prometheus-client CollectorRegistry."""


NOT_YET: Final[Mapping[str, str]] = MappingProxyType(
    {
        "declctl_reconcile": "reconciling by key comes with `mode: Reconcile`; use declctl_event meanwhile",
        "declctl_rbac": "rules are not generated yet; write the Role by hand meanwhile",
        "declctl_commands": "plugins can't add commands yet; ship a script of your own meanwhile",
        "declctl_metrics": "plugins can't add metrics yet; serve them from the plugin meanwhile",
    }
)
"""Hooks that are specified and that this version does not call: whoever implements one gets this advice."""

SYNCHRONOUS: Final = frozenset({"declctl_indexers", "declctl_transform", "declctl_config_schema"})
"""Hooks that are called where nobody can wait: they can't be `async def`."""
