"""Every hook that a plugin may implement: when it is called, with what, and what an exception means.

A hook takes any subset of its arguments, by name, in any order. A `def` hook runs in a thread, an `async def`
hook on the handlers' loop, one change at a time and in order for each handler; `concurrency` allows more, but
never two for one key. Index functions and transforms are the exception: they stand between the wire and the
cache, so they are called on the machinery's loop and must be quick. While their generation is staged, they
are called in threads.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from declctl.hooks import hookspec
from declctl.objects import Change, ObjectView


@hookspec
def declctl_event(change: Change, obj: ObjectView, old: ObjectView | None, ctx: Any) -> None:
    """Called for every change of an object of the handler's resource, before the hook of the change's type.

    `change` says what happened and why; `obj` is the object after it (of a deletion, the last known state),
    `old` the object before it, None if there was none. `ctx` has the handler's log, memo, listers, client and
    config. The objects are read-only.

    An exception is logged with its traceback, counted, and the change is retried as the handler's `retry` and
    `onFailure` say.
    """


@hookspec
def declctl_added(obj: ObjectView, change: Change, ctx: Any) -> None:
    """Called for an object that was added, or was there at the first sync (`change.initial`).

    The arguments and an exception: as for `declctl_event`.
    """


@hookspec
def declctl_modified(obj: ObjectView, old: ObjectView, change: Change, ctx: Any) -> None:
    """Called for an object that changed, or whose resync is due (then `old` equals `obj`).

    The arguments and an exception: as for `declctl_event`.
    """


@hookspec
def declctl_deleted(obj: ObjectView, change: Change, ctx: Any) -> None:
    """Called for an object that is gone; `obj` is its last known state.

    The arguments and an exception: as for `declctl_event`.
    """


@hookspec
def declctl_reconcile(request: Any, ctx: Any) -> Any:
    """Called for a key that is due, in `mode: Reconcile`; returns None or `Requeue(after=seconds)`."""


@hookspec
def declctl_indexers(
    resource: str,  # noqa: ARG001 - a specification
) -> Mapping[str, Callable[[ObjectView], Iterable[str]]]:
    """Called when a generation is staged: returns the indexes that the plugin adds to a resource, by name.

    `resource` is the resource's name in the manifest. An index function takes an object and returns its
    values; it is called on the machinery's loop, so it must be quick. An exception of an index function keeps
    that object out of that index; it is counted and logged. Never `async def`.
    """
    raise AssertionError("a specification is never called")


@hookspec
def declctl_transform(obj: dict[str, Any], resource: str) -> dict[str, Any] | None:
    """Called before an object enters the cache: returns it, changed or not, or None to keep it out.

    `obj` is the object as a dict, as an earlier transform has returned it; it may be changed in place.
    `resource` is the resource's name in the manifest. Called on the machinery's loop, so it must be quick;
    never `async def`. An exception keeps the object out; it is counted and logged.
    """


@hookspec
def declctl_startup(ctx: Any) -> None:
    """Called once in the life of the process, before the first event. An exception ends the start."""


@hookspec
def declctl_shutdown(ctx: Any) -> None:
    """Called once in the life of the process, when the handlers have stopped. An exception is logged."""


@hookspec
def declctl_prepare(ctx: Any) -> None:
    """Called once in the life of a generation, before it is committed.

    An exception refuses the generation, and the one before goes on.
    """


@hookspec
def declctl_teardown(ctx: Any) -> None:
    """Called once in the life of a generation that was prepared, when it is drained or refused.

    An exception is logged.
    """


@hookspec
def declctl_export_state() -> Any:
    """Called on the old generation while the new one is staged.

    Its result goes to `declctl_import_state` of the new one.
    """


@hookspec
def declctl_import_state(state: Any, from_generation: int) -> None:
    """Called on the new generation with the state that the old one exported.

    `from_generation` is the number of the old one. An exception refuses the new generation.
    """


@hookspec
def declctl_reload(outcome: Any) -> None:
    """Called on the active generation after every attempt to reload, with its outcome.

    An exception is logged.
    """


@hookspec
def declctl_config_schema() -> Mapping[str, Any]:
    """Called when a plugin is loaded: returns the JSON Schema of its `config`.

    An exception refuses the generation, or disables the plugin where the manifest says `onError: Disable`.
    Never `async def`.
    """
    raise AssertionError("a specification is never called")


@hookspec
def declctl_rbac() -> Iterable[Mapping[str, Any]]:
    """Returns the RBAC rules that the plugin needs, for `declctl generate rbac`."""
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
"""Hooks that are specified and that this version does not call, with the advice for a plugin that has one."""

SYNCHRONOUS: Final = frozenset({"declctl_indexers", "declctl_transform", "declctl_config_schema"})
"""Hooks whose caller can't wait: they can't be `async def`."""
