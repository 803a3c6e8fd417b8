"""The specification of every hook that a plugin may implement: its call, its arguments, and its exceptions.

A hook takes any subset of its arguments, by name, in any order. A `def` hook runs in a thread, an `async def`
hook on the handlers' loop. A handler is called for one change at a time, in order; with `concurrency` for
more, but never for two of one key. Index functions and transforms process objects before they are cached:
they run on the machinery's loop and must be quick. While their generation is staged, they run in threads.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from declctl.hooks import hookspec
from declctl.objects import Change, ObjectView, Request, Requeue


@hookspec
def declctl_event(change: Change, obj: ObjectView, old: ObjectView | None, ctx: Any) -> None:
    """Called for every change of an object of the handler's resource, before the hook of the change's type.

    - `change`: the type and the reason of the change, and its object.
    - `obj`: the object after the change; for a deletion, the last known state. Read-only.
    - `old`: the object before the change; None unless it is Modified or Resync. Read-only.
    - `ctx`: the handler's log, memo, listers, client and config.

    An exception is logged with its traceback and counted, and the change is retried as `retry` and
    `onFailure` of the handler say.
    """


@hookspec
def declctl_added(obj: ObjectView, change: Change, ctx: Any) -> None:
    """Called for an object that was added, or existed at the first sync (`change.initial`).

    The arguments and an exception: as for `declctl_event`.
    """


@hookspec
def declctl_modified(obj: ObjectView, old: ObjectView, change: Change, ctx: Any) -> None:
    """Called for an object that changed, or whose resync is due (then `old` equals `obj`).

    The arguments and an exception: as for `declctl_event`.
    """


@hookspec
def declctl_deleted(obj: ObjectView, change: Change, ctx: Any) -> None:
    """Called for a deleted object; `obj` is its last known state.

    The arguments and an exception: as for `declctl_event`.
    """


@hookspec
def declctl_reconcile(request: Request, ctx: Any) -> Requeue | None:
    """Called for a key that is due, in `mode: Reconcile`.

    - `request`: the key, the newest state of the object in the cache, and why the key is due.
    - `ctx`: the handler's log, memo, listers, client and config.

    Returns None, or `Requeue(after=seconds)` to be called for the key again. An exception is logged with its
    traceback and counted, and the key is retried with growing delays, as `retry` of the handler says. After a
    `Terminal` it waits for the next change.
    """


@hookspec
def declctl_finalize(request: Request, ctx: Any) -> Requeue | None:
    """Called for an object that is being deleted and has the `finalizer` of the handler.

    It undoes what the deletion of the object and its owner references do not undo.

    - `request`: the key, the newest state of the object, and why the key is due.
    - `ctx`: as for `declctl_reconcile`.

    After it has returned None, the finalizer is removed. A process that ends in between calls it again, as
    does a removal that fails: it must do no harm when it is repeated. Returns `Requeue(after=seconds)` to
    keep the finalizer and be called again. After an exception it is called again with growing delays, without
    an end. After a `Terminal` it waits for the next change of the object.
    """


@hookspec
def declctl_indexers(
    resource: str,  # noqa: ARG001 - a specification
) -> Mapping[str, Callable[[ObjectView], Iterable[str]]]:
    """Called when a generation is staged: returns the indexes that the plugin adds to a resource, by name.

    `resource` is the resource's name in the manifest. An index function takes an object and returns its
    values. It runs on the machinery's loop, so it must be quick. If it raises, the object is not in that
    index; that is counted and logged. Never `async def`. An exception of the hook itself refuses the
    generation.
    """
    raise AssertionError("a specification is never called")


@hookspec
def declctl_transform(obj: dict[str, Any], resource: str) -> dict[str, Any] | None:
    """Called before an object is cached: returns the object, changed or not, or None to drop it.

    `obj` is the object as a dict, as an earlier transform has returned it; it may be changed in place.
    `resource` is the resource's name in the manifest. It runs on the machinery's loop, so it must be quick;
    never `async def`. If it raises, the object is not cached; that is counted and logged.
    """


@hookspec
def declctl_startup(ctx: Any) -> None:
    """Called once in the life of the process, before the first event.

    `ctx` has the plugin's log, memo, listers, client and config. An exception ends the start.
    """


@hookspec
def declctl_shutdown(ctx: Any) -> None:
    """Called once in the life of the process, after the handlers have stopped.

    `ctx` is as for `declctl_startup`. An exception is logged.
    """


@hookspec
def declctl_prepare(ctx: Any) -> None:
    """Called once in the life of a generation, before its commit.

    `ctx` is as for `declctl_startup`. An exception, or more than `warmTimeout`, refuses the generation; the
    one before goes on.
    """


@hookspec
def declctl_teardown(ctx: Any) -> None:
    """Called once in the life of a prepared generation, after it is drained or refused.

    `ctx` is as for `declctl_startup`. An exception is logged.
    """


@hookspec
def declctl_export_state() -> Any:
    """Called on the old generation while the new one is staged: returns any state.

    The result is passed to `declctl_import_state` of the new generation. An exception refuses that
    generation.
    """


@hookspec
def declctl_import_state(state: Any, from_generation: int) -> None:
    """Called on the new generation with the state that the old one exported.

    `from_generation` is the number of the old one. An exception refuses the new generation.
    """


@hookspec
def declctl_reload(outcome: Any) -> None:
    """Called on the active generation after every attempt to reload.

    `outcome` has the result of the attempt, its reason and its steps. An exception is logged.
    """


@hookspec
def declctl_config_schema() -> Mapping[str, Any]:
    """Called when a plugin is loaded: returns the JSON Schema of its `config`.

    An exception refuses the generation or, with `onError: Disable`, disables the plugin. Never `async def`.
    """
    raise AssertionError("a specification is never called")


@hookspec
def declctl_check_config(
    config: Mapping[str, Any],  # noqa: ARG001 - a specification
    resources: Sequence[str],  # noqa: ARG001 - a specification
) -> Iterable[Mapping[str, Any]]:
    """Called by `declctl validate` and `doctor`, in a child process: returns what is wrong in a config.

    - `config`: the plugin's config, which its schema has accepted.
    - `resources`: the names of the resources of the manifest.

    A list; each fault is a mapping of `path` (a list of keys and positions in the config, perhaps empty),
    `message`, and perhaps `suggestion`, and `severity`, which is `error` by default, or `warning` for what
    may be right where the process runs. No message shows a value, which may be a secret. It may read files,
    and neither uses a network nor changes anything. A process that runs does not call it: `declctl_prepare`
    refuses there. An exception refuses the manifest or, with `onError: Disable`, disables the plugin. Never
    `async def`.
    """
    raise AssertionError("a specification is never called")


@hookspec
def declctl_rbac() -> Iterable[Mapping[str, Any]]:
    """Called by `declctl generate`, in a child process: returns the RBAC rules that the code needs.

    Each is a PolicyRule (`apiGroups`, `resources`, `verbs`, perhaps `resourceNames`, or `nonResourceURLs`
    and `verbs`), perhaps with `namespaces`, a list of names or `["*"]` for the whole cluster, and with
    `reason`, a text for `--explain`. Without `namespaces` they hold where the resources of its handlers are.
    Never `async def`.
    """
    raise AssertionError("a specification is never called")


@hookspec
def declctl_commands(app: Any) -> None:
    """Called by the command line, never in a process that runs: adds commands to `declctl PLUGIN …`.

    `app` is a typer application of the plugin's own. It is called for installed plugins alone, when the help
    of declctl is asked for, or one of the plugin's commands. An exception is a warning on stderr. Never
    `async def`.
    """


@hookspec
def declctl_metrics(registry: Any) -> None:
    """Called when code is loaded: adds collectors to `registry`, a prometheus-client CollectorRegistry.

    They are in `/metrics` while a generation with this code is active. It is called once for each import of
    the code; an installed plugin that stays keeps its registry. Collectors are collected in a thread, with a
    time limit. A name that declctl or other code has raises a ValueError. An exception refuses the generation
    or, with `onError: Disable`, disables the plugin. Never `async def`.
    """


SYNCHRONOUS: Final = frozenset(
    {
        "declctl_indexers",
        "declctl_transform",
        "declctl_config_schema",
        "declctl_check_config",
        "declctl_rbac",
        "declctl_commands",
        "declctl_metrics",
    }
)
"""Hooks whose caller can't await: they can't be `async def`."""
