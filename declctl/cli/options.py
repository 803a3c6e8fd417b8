"""Options that several commands share, and the types that typer reads them by."""

from enum import StrEnum
from typing import Annotated

import typer


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
LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="How log lines look.")]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="The least that is logged.")]
