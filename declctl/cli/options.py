"""Options that several commands share, and commands that are documented but not done by this version."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

import typer

from declctl.errors import UsageError

AdminOption = Annotated[
    str | None,
    typer.Option(
        "--admin",
        metavar="ADDR",
        help="The admin address of the running process. [default: that of the manifest in the current "
        "folder, else 127.0.0.1:8081]",
    ),
]
BindOption = Annotated[
    str | None,
    typer.Option(
        "--admin", metavar="ADDR", help="The admin address, instead of the manifest's; port 0 takes any."
    ),
]
KubeconfigOption = Annotated[
    str | None, typer.Option("--kubeconfig", metavar="FILE", help="The kubeconfig; by default as kubectl.")
]
ContextOption = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="The context of the kubeconfig.")
]
ObjectsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--objects", metavar="FILE", help="Objects (YAML) that the sandbox begins with; may be repeated."
    ),
]
ManifestArgument = Annotated[
    str, typer.Argument(metavar="MANIFEST", help="A file, a folder that holds one Controller, or -.")
]
WatchOption = Annotated[
    bool | None,
    typer.Option("--watch/--no-watch", help="Reload when files change, whatever the manifest says."),
]
ExecOption = Annotated[
    bool,
    typer.Option(
        "--exec-on-restart",
        help="When a reload finds something that needs a new process, drain and become one: same id, "
        "arguments and environment.",
    ),
]
OnceOption = Annotated[bool, typer.Option("--once", help="Sync, deliver, drain, and end.")]
TimeoutOption = Annotated[
    str | None, typer.Option("--timeout", metavar="DURATION", help="How long --once may take. [default: 60s]")
]
SandboxOption = Annotated[
    bool, typer.Option("--sandbox", help="Against an API server in this process; needs no cluster.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Not done by this version.")]
_INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "test": "`declctl run --sandbox --once --objects FILE` runs a manifest without a cluster",
        "tap": "the log of `declctl run --log-level debug` and `declctl status` show what happens",
        "top": "`declctl status` and GET /metrics have the figures",
        "get": "GET /cache/{resource} and /index/{resource}/{index}/{value} read the cache",
        "graph": "`declctl status` lists resources and handlers",
        "trigger": "an edit of the object, such as a label, calls its handlers",
        "requeue": "a resyncPeriod calls handlers again",
        "record": "the log of `declctl run --log-format json` can be kept",
        "replay": "`declctl run --sandbox --objects FILE` runs handlers without a cluster",
        "new": "the folders in examples/ are meant to be copied",
        "generate": "examples/07-in-cluster has a Deployment and a Role to start from",
        "fmt": "any YAML formatter will do",
        "lint": "`declctl validate` reports what is wrong, and warns of traps",
        "migrate": "there is only one version of the manifest",
        "set": "start `declctl run` with --log-level",
        "doctor": "`declctl validate --cluster` checks kinds and permissions",
    }
)
_PLUGINS_INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "show": "`declctl plugins list -o json` has what is known of each",
        "doctor": "`declctl plugins list` says what is wrong with each",
        "docs": "`declctl plugins list` names the hooks of each",
        "install": "plugins are installed with pip",
        "freeze": "`pip freeze` writes versions down",
    }
)
_ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": list[str]()}


class Output(StrEnum):
    """How a command prints what was asked for."""

    TEXT = "text"
    JSON = "json"


class LogFormat(StrEnum):
    """How log lines are written."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least important lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="text for people, json for one document on stdout.")
]
LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="How log lines look.")]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="The least that is logged.")]


def add_to(app: typer.Typer, plugins: typer.Typer) -> None:
    """Add every one of them, hidden from the help."""
    for name, instead in _INSTEAD.items():
        app.command(name, hidden=True, context_settings=_ANYTHING)(_refusal(name, instead))
    for name, instead in _PLUGINS_INSTEAD.items():
        plugins.command(name, hidden=True, context_settings=_ANYTHING)(_refusal(f"plugins {name}", instead))


def _refusal(name: str, instead: str) -> Callable[[], None]:
    def refuse() -> None:
        raise UsageError(f"This version does not do `declctl {name}` yet; {instead}.")

    return refuse
