"""A declctl plugin: sends changes of objects as CloudEvents 1.0 over HTTP.

The hooks write an event for each change to a spool on disk, and a thread sends it. The parts, from the change
to the receiver:

| module | what it does |
|---|---|
| `settings` | the config: schema, defaults, where secrets are read |
| `config_check` | what `declctl validate` finds in a config beyond its schema |
| `events` | a change becomes a CloudEvent |
| `spool` | events on disk |
| `backlog` | which events may be sent now: in order for each object |
| `sender`, `circuit` | when they are sent, repeated, given up |
| `messages` | content modes and signatures |
| `endpoint` | HTTP |
| `dead_letters` | events that were given up |
| `pipeline` | all of that in one process, over reloads |
| `metrics` | what `/metrics` of declctl shows of it |
| `commands` | `declctl webhook status`, `dead-letters`, `requeue` |

It imports only public names of declctl.
"""

from collections.abc import Mapping
from typing import Any

from declctl import Change, hookimpl

from declctl_webhook.config_check import config_faults
from declctl_webhook.metrics import REQUEST_SECONDS, PipelineCollector
from declctl_webhook.pipeline import Context, Lifetimes
from declctl_webhook.settings import config_schema

__all__ = [
    "declctl_check_config",
    "declctl_commands",
    "declctl_config_schema",
    "declctl_event",
    "declctl_metrics",
    "declctl_prepare",
    "declctl_reload",
    "declctl_shutdown",
    "declctl_teardown",
]

declctl_hookspec_version = ">=1.1,<2"
lifetimes = Lifetimes()


@hookimpl
def declctl_config_schema() -> dict[str, Any]:
    """The JSON Schema of `config`."""
    return config_schema()


@hookimpl
def declctl_check_config(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What is wrong beyond the schema, for `declctl validate`. No request is made, and nothing is written."""
    return [fault.document() for fault in config_faults(config)]


@hookimpl
def declctl_prepare(ctx: Context) -> None:
    """Check the secrets and files of a config, and open the spool for the first one."""
    lifetimes.prepare(ctx)


@hookimpl
def declctl_event(change: Change, ctx: Context) -> None:
    """Write the event of a change to the spool."""
    lifetimes.event(change, ctx)


@hookimpl
def declctl_reload(outcome: Any) -> None:
    """Use the settings of the generation that runs now."""
    lifetimes.reloaded(outcome.generation)


@hookimpl
def declctl_teardown(ctx: Context) -> None:
    """End a config that no generation has any more."""
    lifetimes.tear_down(ctx)


@hookimpl
def declctl_shutdown() -> None:
    """Send what waits, as long as the config allows, and leave the rest in the spool."""
    lifetimes.shut_down()


@hookimpl
def declctl_metrics(registry: Any) -> None:
    """What became of events, how many wait, and how long the receiver takes."""
    registry.register(PipelineCollector(lambda: lifetimes.figures))
    registry.register(REQUEST_SECONDS)


@hookimpl
def declctl_commands(app: Any) -> None:
    """`declctl webhook …`: looks into a spool, and sends dead letters again."""
    from declctl_webhook.commands import add_commands  # late: a process that runs has no command line

    add_commands(app)
