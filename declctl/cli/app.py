"""The command line: the arguments and options of each command, and the function that does it.

Each command imports its modules when it is called, so that `declctl --help` and shell completion load only
the parser. A command returns its exit status; None counts as 0.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Protocol, runtime_checkable

import typer

from declctl.cli.plugin_commands import COMPLETION, CommandGroup
from declctl.cli.terminal import block, line
from declctl.cli.version import version
from declctl.errors import UsageError

if TYPE_CHECKING:
    from declctl.cli.generate.objects import Place
    from declctl.cli.generate.rights import KubeconfigChoice, PlannedController

_BENCH_OBJECTS, _BENCH_HANDLERS = 5000, 4

# Documented commands that this version does not have, each with an alternative.
_INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "fmt": "any YAML formatter will do",
        "lint": "`declctl validate` reports what is wrong, and warns of traps",
        "migrate": "there is only one version of the manifest",
        "set": "start `declctl run` with --log-level",
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
_READ_THE_CACHE = "GET /cache/{resource} and /index/{resource}/{index}/{value} read the cache"
_GET_INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "cache": _READ_THE_CACHE,
        "index": _READ_THE_CACHE,
        "snapshot": _READ_THE_CACHE,
        "handlers": "`declctl status` lists handlers",
    }
)


class Output(StrEnum):
    """How a command prints what was asked for, and how log lines are written."""

    TEXT = "text"
    JSON = "json"


class Report(StrEnum):
    """How `validate` prints faults."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


class GraphFormat(StrEnum):
    """How `graph` prints the graph of a manifest."""

    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"
    JSON = "json"


class LogLevel(StrEnum):
    """The least important lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_Completion = Callable[[str], list[tuple[str, str]]]


def _completing(name: str) -> _Completion:
    """The function of that name in `completion`, which is imported when a shell asks for candidates."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        from declctl.cli import completion

        function: _Completion = getattr(completion, name)
        return function(incomplete)

    return complete


def _complete_contexts(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    from declctl.cli.completion import contexts

    return contexts(ctx.params.get("kubeconfig"), incomplete)


_ManifestArgument = Annotated[
    str,
    typer.Argument(
        metavar="MANIFEST",
        help="A file, a folder that holds one Controller, -, or configmap/NAMESPACE/NAME of the cluster.",
    ),
]
_ChurnOption = Annotated[
    float,
    typer.Option("--churn", metavar="RATE", min=0.0, help="Changes a second to demo pods of the sandbox."),
]
_AdminOption = Annotated[
    str | None,
    typer.Option(
        "--admin",
        metavar="ADDR|NAME|PID",
        help="The running process: its admin address, the name of its controller, or its id. [default: the "
        "process of the manifest in the current folder, else the only one that runs, else 127.0.0.1:8081]",
    ),
]
_KubeconfigOption = Annotated[
    str | None, typer.Option("--kubeconfig", metavar="FILE", help="The kubeconfig; by default as kubectl.")
]
_ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="The context of the kubeconfig.",
        autocompletion=_complete_contexts,
    ),
]
_ObjectsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--objects", metavar="FILE", help="Objects (YAML) that the sandbox begins with; may be repeated."
    ),
]
_RunObjectsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--objects",
        metavar="FILE",
        help="Objects (YAML) that the sandbox begins with; may be repeated. Without it, those are the "
        "CustomResourceDefinitions beside the manifest, and the files of a folder `sandbox` there.",
    ),
]
_OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="text for people, json for one document on stdout.")
]

_LinesOption = Annotated[
    Output, typer.Option("--output", "-o", help="text for people, json for a document in each line.")
]
_NoPluginsOption = Annotated[
    bool,
    typer.Option(
        "--no-plugins",
        help="Load no plugin: those of the manifest are left out with a warning, and their handlers are not "
        "called. DECLCTL_LOAD_PLUGINS=a,b loads these alone.",
    ),
]

app = typer.Typer(
    name="declctl",
    cls=CommandGroup,
    help="Kubernetes controllers that are declared, not programmed.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,  # plain help: rich would cost each command a third of its time
    pretty_exceptions_enable=False,  # errors become sentences in main
    context_settings={"help_option_names": ["-h", "--help"]},
)
_plugins = typer.Typer(help="Installed plugins.", no_args_is_help=True, rich_markup_mode=None)
_get = typer.Typer(help="Read a running process.", no_args_is_help=True, rich_markup_mode=None)
_finalizers = typer.Typer(
    help="Finalizers of handlers, on the objects of a cluster.", no_args_is_help=True, rich_markup_mode=None
)
_state = typer.Typer(
    help="The folder of spec.state: what a process keeps for the next one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_bench = typer.Typer(help="Measure on this machine.", no_args_is_help=True, rich_markup_mode=None)
_new = typer.Typer(help="Write files to start from.", no_args_is_help=True, rich_markup_mode=None)
_generate = typer.Typer(
    help="Print what brings a manifest into a cluster.", no_args_is_help=True, rich_markup_mode=None
)


def _show_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


def _leave_plugins_out(asked: bool) -> None:
    if asked:
        _load_no_plugins()


@app.callback()
def declctl(
    *,
    _no_plugins: Annotated[
        bool,
        typer.Option(
            "--no-plugins",
            help="Load no installed plugin (as DECLCTL_LOAD_PLUGINS='').",
            callback=_leave_plugins_out,
            is_eager=True,  # before the help, which has the commands of plugins
        ),
    ] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Say the version and end.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Kubernetes controllers that are declared, not programmed."""


def _load_no_plugins() -> None:
    # An environment variable, because the child process of the pre-flight has to know it too.
    os.environ["DECLCTL_LOAD_PLUGINS"] = ""


@app.command()
def run(  # noqa: PLR0913 - one parameter for each option of the command line
    invoked: typer.Context,
    manifest: Annotated[
        str,
        typer.Argument(
            metavar="MANIFEST",
            help="A file, a folder that holds one Controller, -, or configmap/NAMESPACE/NAME, which is read "
            "from the cluster and followed.",
        ),
    ],
    *,
    watch: Annotated[
        bool | None,
        typer.Option("--watch/--no-watch", help="Reload when files change, whatever the manifest says."),
    ] = None,
    exec_on_restart: Annotated[
        bool,
        typer.Option(
            "--exec-on-restart",
            help="When a reload finds something that needs a new process, drain and become one: same id, "
            "arguments and environment.",
        ),
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Sync, deliver, drain, and end.")] = False,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="DURATION", help="How long --once may take. [default: 60s]"),
    ] = None,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Against an API server in this process; needs no cluster.")
    ] = False,
    objects: _RunObjectsOption = None,
    churn: _ChurnOption = 0.0,
    kubeconfig_out: Annotated[
        str | None,
        typer.Option(
            "--kubeconfig-out",
            metavar="FILE",
            help="Where to write a kubeconfig of the sandbox, for kubectl.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Write nothing: the server checks what handlers write, and the differences are printed.",
        ),
    ] = False,
    allowed_digests: Annotated[
        str | None,
        typer.Option(
            "--allowed-digests",
            metavar="FILE",
            help="Only manifests run whose digest is in this file, one in each line (declctl digest).",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAMESPACE",
            help="The namespace of this process: of its Lease, and of the Secrets of its plugins. By default "
            "that of its pod, or of the ConfigMap that it follows. Objects are watched as the manifest says.",
        ),
    ] = None,
    kubeconfig: _KubeconfigOption = None,
    context: _ContextOption = None,
    log_format: Annotated[Output, typer.Option("--log-format", help="How log lines look.")] = Output.TEXT,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="The least that is logged.")
    ] = LogLevel.INFO,
    admin: Annotated[
        str | None,
        typer.Option(
            "--admin", metavar="ADDR", help="The admin address, instead of the manifest's; port 0 takes any."
        ),
    ] = None,
    record: Annotated[
        str | None,
        typer.Option(
            "--record",
            metavar="FILE",
            help="What the process sees and does, for `declctl replay`; values of Secrets are hidden.",
        ),
    ] = None,
    record_size: Annotated[
        str | None,
        typer.Option(
            "--record-size",
            metavar="SIZE",
            help="The most bytes of FILE and FILE.1, in which the older half is kept. [default: 256Mi]",
        ),
    ] = None,
    no_plugins: _NoPluginsOption = False,
) -> int:
    """Run a manifest, until SIGTERM or Ctrl-C."""
    if no_plugins:
        _load_no_plugins()
    if sandbox and (kubeconfig or context):
        raise UsageError("--sandbox is a cluster of its own: leave out --kubeconfig and --context, or it.")
    if objects and not sandbox:
        raise UsageError("--objects fills the sandbox: add --sandbox, or create the objects with kubectl.")
    if churn and not sandbox:
        raise UsageError("--churn changes pods of the sandbox: add --sandbox, or leave it out.")
    if kubeconfig_out is not None and not sandbox:
        raise UsageError("--kubeconfig-out is that of a sandbox: add --sandbox, or leave it out.")
    if churn and once:
        raise UsageError("--churn goes on for ever, and --once waits for rest: leave one of them out.")
    if timeout is not None and not once:
        raise UsageError("--timeout limits --once: add --once, or leave it out.")
    if record_size is not None and record is None:
        raise UsageError("--record-size limits --record: add --record FILE, or leave it out.")
    if exec_on_restart and once:
        raise UsageError("--exec-on-restart is for a process that stays: leave out --once, or it.")
    if exec_on_restart and manifest == "-":
        raise UsageError("--exec-on-restart can't read a manifest from standard input twice: name a file.")
    # For a new process: the present values, before user code can change them.
    environment, folder = dict(os.environ), Path().absolute() if exec_on_restart else None
    from declctl.runtime.checking.preflight_pool import PreflightPool

    with closing(PreflightPool()) as children:
        children.warm()  # the child loads what it needs while this process loads the machinery
        from declctl.cli.run import replace_process, run_manifest

        status, restarts = run_manifest(
            manifest,
            children=children,
            watch=watch,
            exec_on_restart=exec_on_restart,
            once=once,
            timeout=timeout,
            sandbox=sandbox,
            objects=objects or [],
            churn=churn,
            kubeconfig_out=kubeconfig_out,
            dry_run=dry_run,
            allowed_digests=allowed_digests,
            namespace=namespace,
            kubeconfig=kubeconfig,
            context=context,
            log_format=log_format,
            log_level=log_level,
            admin=admin,
            record=record,
            record_size=record_size,
            is_process=bool(invoked.obj),
        )
    # A failed run is not started again: its supervisor decides.
    if restarts and not status:
        replace_process(sys.executable, sys.orig_argv[1:], environment=environment, folder=folder)
    return status


@app.command()
def validate(
    manifests: Annotated[
        list[str],
        typer.Argument(metavar="MANIFEST...", help="Files, folders, -, or configmap/NAMESPACE/NAME."),
    ],
    *,
    output: Annotated[
        Report,
        typer.Option("--output", "-o", help="text on stderr; json or github (workflow commands) on stdout."),
    ] = Report.TEXT,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster", help="Also ask the cluster whether it has the kinds and allows to watch them."
        ),
    ] = False,
    crds: Annotated[
        list[str] | None,
        typer.Option(
            "--crds",
            metavar="FILE",
            help="CustomResourceDefinitions (YAML) to compare with the classes of the manifests, besides "
            "those beside them; may be repeated.",
        ),
    ] = None,
    kubeconfig: _KubeconfigOption = None,
    context: _ContextOption = None,
    no_plugins: _NoPluginsOption = False,
) -> int:
    """Check manifests; the handlers are imported in a child process, as a reload does."""
    if no_plugins:
        _load_no_plugins()
    if not cluster:
        _refuse_unused_cluster(kubeconfig, context, *manifests, asked_by="--cluster")
    from declctl.runtime.checking.preflight_pool import PreflightPool

    with closing(PreflightPool()) as children:
        children.warm()  # as in `run`
        from declctl.cli.validate import check_all, check_in_cluster, print_faults

        checked = check_all(manifests, children, kubeconfig, context, definitions=crds or ())
    faults = [fault for one in checked for fault in one.diagnostics]
    notes: Mapping[str, Sequence[str]] = {}
    # After the files: faults of the manifest need no cluster.
    if cluster:
        in_cluster = check_in_cluster(checked, kubeconfig, context)
        faults += in_cluster.faults
        notes = in_cluster.notes
    print_faults(faults, checked, form=output, notes=notes)
    return int(any(fault.severity == "error" for fault in faults))


@app.command("test", epilog="Example: declctl test examples")
def play_tests(  # noqa: PLR0913 - one parameter for each option
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH...]", help="Documents, or folders with them; by default the current folder."
        ),
    ] = None,
    *,
    chosen: Annotated[
        list[str] | None,
        typer.Option(
            "-k", metavar="TEXT", help='Only tests with this in their names, or "not TEXT"; may be repeated.'
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs", "-j", metavar="N", min=0, help="Processes that play tests; 0 for one for each CPU."
        ),
    ] = 1,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Also write a report as JUnit has it.")
    ] = None,
    output: _OutputOption = Output.TEXT,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster", help="On the cluster of the kubeconfig: each test in a namespace of its own."
        ),
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help="With --cluster: how long each step is waited for. [default: 30s]",
        ),
    ] = None,
    kubeconfig: _KubeconfigOption = None,
    context: _ContextOption = None,
) -> int:
    """Play the ControllerTest documents at and below some places, over an API server in memory.

    It exits 1 if a test failed, and 2 if a document is wrong or none was found.
    """
    if not cluster:
        _refuse_unused_cluster(kubeconfig, context, asked_by="--cluster")
        if timeout is not None:
            raise UsageError("--timeout is for tests on a cluster: add --cluster.")
    from declctl.cli.test import PlayOptions, run_tests

    return run_tests(
        places or [Path()],
        PlayOptions(
            chosen=chosen or (),
            jobs=jobs,
            junit=junit,
            as_json=output is Output.JSON,
            on_cluster=cluster,
            timeout=timeout,
            kubeconfig=kubeconfig,
            context=context,
        ),
    )


@app.command(epilog="Example: declctl fuzz --manifest examples/09-custom-resource-operator --runs 50")
def fuzz(
    handler: Annotated[
        str | None,
        typer.Argument(
            metavar="[HANDLER]", help="Lives are about the objects of this handler; by default of all."
        ),
    ] = None,
    *,
    manifest: Annotated[
        str,
        typer.Option(
            "--manifest", metavar="MANIFEST", help="A file or a folder; by default the current folder."
        ),
    ] = ".",
    runs: Annotated[int, typer.Option("--runs", metavar="N", min=1, help="How many lives there are.")] = 200,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            help="The same number, with the same --runs, draws the same lives. [default: another one]",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="NAME=REASON",
            help="An invariant that need not hold (converges, declared, idempotent, finalized, collected, "
            "applies); foreign: nobody else edits children. May be repeated.",
        ),
    ] = None,
    objects: Annotated[
        list[str] | None,
        typer.Option(
            "--objects",
            metavar="FILE",
            help="Objects (YAML) to begin with, and examples; by default those of the folder sandbox beside "
            "the manifest. May be repeated.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the document to a file.")
    ] = None,
) -> int:
    """Let random lives of objects happen to a controller, and print the shortest one that it does not stand.

    Objects are made, edited and deleted, others edit their children, writes fail, the controller ends and
    starts again. What must hold afterwards is in docs/fuzzing.md. It exits 1 with a ControllerTest document
    if a life has broken it.
    """
    from declctl.cli.fuzz import search

    return search(
        manifest,
        handler,
        runs=runs,
        seed=seed,
        allow=allow or (),
        objects=objects or (),
        output=output,
    )


@app.command(epilog="Example: declctl doctor examples/01-hello --context staging")
def doctor(
    manifest: Annotated[
        str | None,
        typer.Argument(
            metavar="[MANIFEST]",
            help="A file, a folder, -, or configmap/NAMESPACE/NAME; by default that of the current folder.",
        ),
    ] = None,
    *,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="DURATION", help="How long each check may take. [default: 10s]"),
    ] = None,
    output: _OutputOption = Output.TEXT,
    kubeconfig: _KubeconfigOption = None,
    context: _ContextOption = None,
) -> int:
    """Check whether declctl can work here: Python, packages, limits, files, plugins, address and cluster.

    Each check is ok, a warning, failed or skipped, with its meaning and what to do. It exits 1 if a check
    failed, else 0. Nothing is changed, and the only requests to the cluster are reads and access reviews.
    """
    from declctl.runtime.checking.preflight_pool import PreflightPool

    with closing(PreflightPool()) as children:
        children.warm()  # as in `run`
        from declctl.cli.doctor import examine

        return examine(
            manifest,
            children,
            kubeconfig=kubeconfig,
            context=context,
            timeout=timeout,
            as_json=output is Output.JSON,
        )


@app.command()
def digest(
    manifest: _ManifestArgument,
    *,
    allowed: Annotated[
        str | None,
        typer.Option(
            "--allowed",
            metavar="FILE",
            help="Exit with 1 unless this list has the digest, as --allowed-digests of run would refuse it.",
        ),
    ] = None,
    kubeconfig: _KubeconfigOption = None,
    context: _ContextOption = None,
) -> None:
    """Print the digest of a manifest and its handler files, for lists of what may run.

    It is the same on each machine. No code is imported. Files of configFrom are not part of it, and neither
    are installed packages.
    """
    _refuse_unused_cluster(kubeconfig, context, manifest)
    from declctl.cli.digest import print_digest
    from declctl.cli.manifest_argument import manifest_folder

    with manifest_folder(manifest, kubeconfig, context) as at:
        print_digest(manifest, at=at, allowed=allowed)


@app.command()
def plan(
    manifest: _ManifestArgument,
    *,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="running|MANIFEST",
            help="What to compare with: the process that runs, or a manifest; by default, nothing.",
        ),
    ] = None,
    output: _OutputOption = Output.TEXT,
    kubeconfig: _KubeconfigOption = None,
    context: _ContextOption = None,
    admin: _AdminOption = None,
) -> int:
    """Say what a manifest would change, and what decodes objects; exits 2 for changes, 0 for none.

    It exits 1 for faults. How many objects there are is asked of the running process, if there is one.
    """
    _refuse_unused_cluster(kubeconfig, context, manifest, against or "")
    from declctl.cli.plan import show_plan

    return show_plan(
        manifest,
        against=against,
        as_json=output is Output.JSON,
        admin=admin,
        cluster=(kubeconfig, context),
    )


@app.command(epilog="Example: declctl graph examples/09-custom-resource-operator -o mermaid")
def graph(
    manifest: Annotated[
        str,
        typer.Argument(
            metavar="[MANIFEST]",
            help="A file, a folder, -, or configmap/NAMESPACE/NAME; by default that of the current folder.",
        ),
    ] = ".",
    *,
    output: Annotated[
        GraphFormat,
        typer.Option("--output", "-o", help="A tree for people, Mermaid or DOT for pages, or JSON."),
    ] = GraphFormat.TEXT,
    kubeconfig: _KubeconfigOption = None,
    context: _ContextOption = None,
) -> None:
    """Show what a manifest connects: resources, informers, indexes, handlers, and what they write.

    Of the cluster it needs nothing but a ConfigMap that is named. It imports no handler: reads and writes
    that the manifest does not declare are not in it. It exits 1 if the manifest has faults.
    """
    _refuse_unused_cluster(kubeconfig, context, manifest)
    from declctl.cli.graph import show_graph
    from declctl.cli.manifest_argument import manifest_folder

    with manifest_folder(manifest, kubeconfig, context) as at:
        show_graph(manifest, str(output), at=at)


@app.command()
def status(*, output: _OutputOption = Output.TEXT, admin: _AdminOption = None) -> None:
    """Say how a running process is doing."""
    from declctl.cli.remote import show_status

    show_status(admin, as_json=output is Output.JSON)


@app.command(epilog="Example: declctl top --interval 5s")
def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="One sample, and end.")] = False,
    interval: Annotated[
        str | None,
        typer.Option(
            "--interval",
            metavar="DURATION",
            help="The time between two reads. [default: 2s; 1s for one sample]",
        ),
    ] = None,
    output: _OutputOption = Output.TEXT,
    admin: _AdminOption = None,
) -> int:
    """Show the load of a running process, live: handlers, caches, the last reload, the leader.

    With --once, with -o json and without a terminal it prints one sample. It exits 0, also at Ctrl-C, and 2
    if no process answers.
    """
    from declctl.cli.top import show_top

    return show_top(admin, once=once, interval=interval, as_json=output is Output.JSON)


@app.command()
def reload(
    *,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the outcome, or only ask for the reload.")
    ] = True,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Make all code anew although no file has changed that the bundle reads."
        ),
    ] = False,
    output: _OutputOption = Output.TEXT,
    admin: _AdminOption = None,
) -> int:
    """Make a running process read its files again.

    It exits 0 if they are what runs then, 1 if they were refused, 2 if no process answers, 3 for a fault in
    declctl. If they change meanwhile, the newer ones count. With --no-wait, 0 says no more than that the
    order was given. Data files that handlers read by themselves are not noticed: use --force after an edit
    of one. Code that fails in its probation is taken back later: `declctl status` and `history`
    say so.
    """
    from declctl.cli.remote import give_order

    query = f"wait={'true' if wait else 'false'}{'&force=true' if force else ''}"
    return give_order(f"/-/reload?{query}", admin, as_json=output is Output.JSON)


@app.command()
def rollback(
    generation: Annotated[
        int | None,
        typer.Argument(metavar="[N]", help="Its number; by default the one that was live before.", min=1),
    ] = None,
    *,
    output: _OutputOption = Output.TEXT,
    admin: _AdminOption = None,
) -> int:
    """Let an earlier generation run again.

    The files of the three generations that were live before are kept, of fewer if they are large: `declctl
    history` marks them. It exits 0 if the generation runs, 1 if it is not kept or can't take over, 2 if no
    process answers. The files on disk are not tried again until they change.
    """
    from declctl.cli.remote import give_order

    query = "" if generation is None else f"?generation={generation}"
    return give_order(f"/-/rollback{query}", admin, as_json=output is Output.JSON)


@app.command()
def trigger(
    schedule: Annotated[
        str,
        typer.Argument(
            metavar="SCHEDULE",
            help="The name of the schedule.",
            autocompletion=_completing("schedules"),
        ),
    ],
    *,
    output: _OutputOption = Output.TEXT,
    admin: _AdminOption = None,
) -> int:
    """Let a running process call the function of a schedule now.

    It exits 0 if the call has begun, 2 if it has not: no process answers, there is no such schedule, or its
    last call has not returned. The times of the schedule stay as they are.
    """
    from urllib.parse import quote

    from declctl.cli.remote import give_order

    return give_order(f"/-/trigger?schedule={quote(schedule)}", admin, as_json=output is Output.JSON)


@app.command()
def why(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RESOURCE/KEY",
            help="An object, such as deployments.apps/default/web: a resource of the manifest or of the "
            "cluster, and a key.",
            autocompletion=_completing("objects"),
        ),
    ],
    field: Annotated[
        str | None,
        typer.Argument(metavar="[FIELD]", help="One field, such as spec.replicas; by default all fields."),
    ] = None,
    *,
    output: _OutputOption = Output.TEXT,
    admin: _AdminOption = None,
) -> int:
    """Say which handler wrote the fields of an object, and what caused that call.

    The API server knows the manager of each field. A running process remembers its newest 5,000 writes: the
    handler, the generation, and what the call was for. Values of fields are not shown. Exit status: 1 if the
    object does not have the field.
    """
    from declctl.cli.why import show_reasons

    return show_reasons(what, field, admin, as_json=output is Output.JSON)


@app.command(epilog="Example: declctl tap notify --namespace demo --failed")
def tap(  # noqa: PLR0913 - as in `run`
    of: Annotated[
        str | None,
        typer.Argument(
            metavar="[HANDLER|RESOURCE]",
            help="Only calls of this handler, or because of this resource; by default of all handlers.",
            autocompletion=_completing("handlers_and_resources"),
        ),
    ] = None,
    *,
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="Only objects of this namespace.",
            autocompletion=_completing("namespaces"),
        ),
    ] = "",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Only objects of this name; * and ? stand for any.")
    ] = "",
    handler: Annotated[
        str,
        typer.Option(
            "--handler",
            metavar="NAME",
            help="Only calls of this handler.",
            autocompletion=_completing("handlers"),
        ),
    ] = "",
    failed: Annotated[bool, typer.Option("--failed", help="Only calls that failed, or are overdue.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="End after so many calls.")
    ] = None,
    output: _LinesOption = Output.TEXT,
    admin: _AdminOption = None,
) -> int:
    """Show the calls of a running process, live: changes, paths that changed, outcomes, and reloads.

    Values of objects are not shown. It exits 0 at Ctrl-C and when the process ends, 2 if no process answers,
    if it has no such handler or resource, or if the connection is lost.
    """
    from declctl.cli.tap import show_tap

    chosen = {"namespace": namespace, "name": name, "handler": handler, "failed": "true" if failed else ""}
    return show_tap(of, admin, chosen=chosen, count=count, as_json=output is Output.JSON)


@app.command()
def requeue(
    letter: Annotated[
        str | None,
        typer.Argument(
            metavar="[HANDLER[/KEY]]",
            help="A handler, or one key of it, such as notify/default/web-0.",
            autocompletion=_completing("handlers"),
        ),
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="The dead letters of all handlers.")] = False,
    output: _OutputOption = Output.TEXT,
    admin: _AdminOption = None,
) -> int:
    """Queue again what handlers have given up (`declctl get deadletters`).

    A change is delivered as it was, with its object of that time; a reconciler reads the newest state. It
    exits 0 if the letters are queued, 2 if they are not: no process answers, there is no such letter, or a
    newer change of the key goes first. With several letters, those are left out.
    """
    if (letter is None) != every:
        raise UsageError("Name a handler or HANDLER/KEY, or write --all, and not both.")
    from urllib.parse import urlencode

    from declctl.cli.remote import give_order

    handler, slash, key = (letter or "").partition("/")
    query = {"all": "true"} if every else {"handler": handler, **({"key": key} if slash else {})}
    return give_order(f"/-/requeue?{urlencode(query)}", admin, as_json=output is Output.JSON)


@app.command()
def loglevel(
    level: Annotated[LogLevel, typer.Argument(metavar="LEVEL", help="The least that is logged from now on.")],
    *,
    duration: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="Set back the level of the start after this time, such as 10m; 24h at most.",
        ),
    ] = None,
    output: _OutputOption = Output.TEXT,
    admin: _AdminOption = None,
) -> int:
    """Change what a running process logs: its own lines, those of ctx.log, and those of libraries.

    A reload keeps the level. A new process begins with that of `--log-level`.
    """
    from urllib.parse import urlencode

    from declctl.cli.remote import give_order

    query = {"level": str(level), **({"for": duration} if duration is not None else {})}
    return give_order(f"/-/loglevel?{urlencode(query)}", admin, as_json=output is Output.JSON)


@app.command()
def history(*, output: _OutputOption = Output.TEXT, admin: _AdminOption = None) -> None:
    """List what became of each attempt to reload a running process, the oldest first."""
    from declctl.cli.remote import show_history

    show_history(admin, as_json=output is Output.JSON)


@app.command("replay")
def replay_command(  # noqa: PLR0913 - one parameter for each option of the command line
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The recording of `declctl run --record FILE`.")
    ],
    manifest: Annotated[
        str | None,
        typer.Argument(
            metavar="[MANIFEST]", help="The code that runs; by default that of then, which the recording has."
        ),
    ] = None,
    *,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="TIME", help="Where to end: a time, or one since the begin, such as 10m."
        ),
    ] = None,
    speed: Annotated[
        float,
        typer.Option(
            "--speed", metavar="N", min=0.0, help="So many times as fast as it was; 0 is as fast as possible."
        ),
    ] = 0.0,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Compare the calls for one key alone.")
    ] = None,
    handler: Annotated[
        str | None, typer.Option("--handler", metavar="NAME", help="Compare the calls of one handler alone.")
    ] = None,
    log_level: Annotated[
        LogLevel | None,
        typer.Option("--log-level", help="The least that is logged. [default: nothing is]"),
    ] = None,
    output: _OutputOption = Output.TEXT,
) -> int:
    """Run code on a recording, without a cluster, and compare its calls and writes with those of then.

    Ends with 0 if nothing differs, with 1 if something does, and with 2 for what can't be replayed.
    """
    from declctl.cli.replay import replay_recording

    return replay_recording(
        file,
        manifest,
        until=until,
        speed=speed,
        key=key,
        handler=handler,
        log_level="critical" if log_level is None else log_level,
        as_json=output is Output.JSON,
    )


@app.command()
def sandbox(
    *,
    objects: _ObjectsOption = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes any free port.")] = 0,
    kubeconfig_out: Annotated[
        str | None,
        typer.Option(
            "--kubeconfig-out",
            metavar="FILE",
            help="Where to write its kubeconfig; by default a temporary file.",
        ),
    ] = None,
    churn: _ChurnOption = 0.0,
) -> None:
    """Serve a Kubernetes API from memory, until Ctrl-C."""
    from declctl.cli.sandbox import serve

    serve(objects or [], port=port, kubeconfig_out=kubeconfig_out, churn=churn)


@app.command()
def explain(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH|CODE|REASON",
            help="Such as spec.handlers.retry, DCL012, CacheLags or Degraded.",
            autocompletion=_completing("explanations"),
        ),
    ] = "",
) -> None:
    """Describe a field of the manifest, an error code, or a condition and its reasons.

    Of a field it says type, default, whether a reload changes it, and an example. Of a code and of a reason
    it says what is wrong and what to do, as docs/reference/errors.md does.
    """
    from declctl.cli.describe import show_explanation

    show_explanation(path)


@app.command()
def schema(
    kind: Annotated[
        str | None, typer.Option("--kind", help="Of one kind alone: Controller or ControllerTest.")
    ] = None,
    plugins: Annotated[
        bool,
        typer.Option("--plugins", help="With the schemas of the configs of installed plugins, for editors."),
    ] = False,
) -> None:
    """Print the JSON Schema of manifests."""
    from declctl.cli.describe import show_schema

    show_schema(kind, with_plugins=plugins)


app.command()(version)


@_plugins.command("list")
def list_plugins(*, output: _OutputOption = Output.TEXT) -> None:
    """List installed plugins, their hooks, and what is wrong with those that can't be used.

    Each is imported in a child process. A plugin that hangs, or ends the process, is a line of the list.
    """
    from declctl.cli.describe import show_plugins

    show_plugins(as_json=output is Output.JSON)


@_get.command("deadletters")
def get_dead_letters(*, output: _OutputOption = Output.TEXT, admin: _AdminOption = None) -> None:
    """List what handlers with onFailure: DeadLetter have given up.

    With -o json, each has the end of its traceback. `declctl requeue` queues them again.
    """
    from declctl.cli.remote import show_dead_letters

    show_dead_letters(admin, as_json=output is Output.JSON)


@_get.command("queue")
def get_queue(
    handler: Annotated[
        str,
        typer.Argument(
            metavar="HANDLER", help="The name of a handler.", autocompletion=_completing("handlers")
        ),
    ],
    *,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1000, help="How many items are shown at most.")
    ] = 100,
    output: _OutputOption = Output.TEXT,
    admin: _AdminOption = None,
) -> None:
    """List what waits for a handler, in the order in which it will be handed out.

    The running calls come first. Values of objects are not shown.
    """
    from declctl.cli.remote import show_queue

    show_queue(handler, admin, limit=limit, as_json=output is Output.JSON)


@_bench.callback()  # a group of one command would be that command
def _of_bench() -> None:
    """Measure on this machine."""


@_bench.command("reload")
def bench_reload(
    *,
    manifest: Annotated[
        str | None,
        typer.Option(
            "--manifest",
            metavar="FILE",
            help="A manifest whose handlers are run, or a folder that holds one; by default one of its own.",
        ),
    ] = None,
    objects: Annotated[
        int, typer.Option("--objects", metavar="N", min=1, help="How many objects there are.")
    ] = _BENCH_OBJECTS,
    samples: Annotated[
        list[str] | None,
        typer.Option(
            "--samples",
            metavar="FILE",
            help="Objects (YAML) that the N are copies of; of any other kind they are little but metadata. "
            "May be repeated.",
        ),
    ] = None,
    handlers: Annotated[
        int | None,
        typer.Option(
            "--handlers",
            metavar="N",
            min=1,
            max=1000,
            help="How many handlers its own manifest has. [default: 4]",
        ),
    ] = None,
    output: _OutputOption = Output.TEXT,
) -> None:
    """Compare a restart with a reload: the same edit of the same handlers, made both ways.

    It takes about half a minute, needs no cluster and touches none: the API server is one in memory. Of a
    manifest with handlers of your own a copy is run, and edited.
    """
    if manifest is not None and handlers is not None:
        raise UsageError("--handlers is for the manifest that bench has: leave it out, or --manifest.")
    from declctl.cli.bench import compare_restart_with_reload

    compare_restart_with_reload(
        manifest,
        handlers=handlers or _BENCH_HANDLERS,
        objects=objects,
        samples=samples or [],
        as_json=output is Output.JSON,
    )


@_new.command("operator")
def new_operator(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the controller, such as preview.")],
    folder: Annotated[
        str | None, typer.Argument(metavar="[FOLDER]", help="Where to write; by default a folder NAME.")
    ] = None,
    *,
    group: Annotated[
        str, typer.Option("--group", metavar="GROUP", help="The API group of the custom resource.")
    ] = "example.dev",
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="KIND", help="Its kind; by default NAME in CamelCase."),
    ] = None,
    plural: Annotated[
        str | None,
        typer.Option("--plural", metavar="PLURAL", help="Its plural; by default as in English."),
    ] = None,
) -> None:
    """Write an operator of a custom resource: types, handlers, manifest, definition, sample and tests.

    No file is overwritten: if one exists, it is named, nothing is written, and the exit status is 2.
    """
    from declctl.cli.new import new_operator as write

    write(name, folder, group=group, kind=kind, plural=plural)


@_new.command("manifest")
def new_manifest(
    folder: Annotated[
        str, typer.Argument(metavar="[FOLDER]", help="Where to write; by default the current folder.")
    ] = ".",
    *,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Of the controller; by default that of the folder."),
    ] = None,
    resource: Annotated[
        str,
        typer.Option(
            "--resource",
            metavar="RESOURCE",
            help="What to watch: such as pods or deployments.apps, or example.dev/v1/WebApp of a custom "
            "resource.",
        ),
    ] = "pods",
) -> None:
    """Write manifest.yaml and handlers.py, which print each change of a resource.

    No file is overwritten: if one exists, it is named, nothing is written, and the exit status is 2.
    """
    from declctl.cli.new import new_manifest as write

    write(folder, name=name, resource=resource)


@_new.command("handler")
def new_handler(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of the handler; the file is named for it.")
    ],
    *,
    resource: Annotated[
        str | None,
        typer.Option(
            "--resource",
            metavar="RESOURCE",
            help="As for `declctl new manifest`; by default the first resource of the manifest.",
        ),
    ] = None,
) -> None:
    """Write a file with a handler beside the manifest in the current folder.

    What has to be added to the manifest is printed on stdout; the manifest itself is not changed. No file
    is overwritten.
    """
    from declctl.cli.new import new_handler as write

    write(name, resource=resource)


@_new.command("plugin")
def new_plugin(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Of the plugin in manifests; the package is declctl-NAME."),
    ],
    folder: Annotated[
        str | None, typer.Argument(metavar="[FOLDER]", help="Where to write; by default declctl-NAME.")
    ] = None,
) -> None:
    """Write a package with a plugin: a hook, its config, tests, and a workflow that runs the tests.

    No file is overwritten: if one exists, it is named, nothing is written, and the exit status is 2.
    """
    from declctl.cli.new import new_plugin as write

    write(name, folder)


def _add_refusals(group: typer.Typer, instead: Mapping[str, str], *, prefix: str) -> None:
    """Add documented commands that this version does not have, hidden from the help."""
    anything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": list[str]()}
    for name, advice in instead.items():
        refusal = UsageError(f"This version does not do `declctl {prefix}{name}` yet; {advice}.")
        group.command(name, hidden=True, context_settings=anything)(_raising(refusal))


def _raising(error: UsageError) -> Callable[[], None]:
    def refuse() -> None:
        raise error

    return refuse


_HandlerOption = Annotated[
    str | None,
    typer.Option(
        "--handler",
        metavar="NAME",
        help="Of this handler only; by default of all.",
        autocompletion=_completing("handlers"),
    ),
]


_AllKindsOption = Annotated[
    bool,
    typer.Option(
        "--all-kinds",
        help="Look at every kind that the server has, for what handlers of a controller of this name have "
        "added; not only at those of the manifest.",
    ),
]


@_finalizers.command("list")
def list_finalizers(
    manifest: _ManifestArgument,
    *,
    handler: _HandlerOption = None,
    all_kinds: _AllKindsOption = False,
    output: _OutputOption = Output.TEXT,
    kubeconfig: _KubeconfigOption = None,
    context: _ContextOption = None,
    admin: _AdminOption = None,
) -> int:
    """List the objects of the cluster that have a finalizer of a manifest, or of its running process.

    Finalizers that the manifest does not have any more are found, too: by the managers of the fields.
    """
    from declctl.cli.finalizers import show_finalizers

    cluster = (kubeconfig, context)
    return show_finalizers(
        manifest,
        handler=handler,
        as_json=output is Output.JSON,
        all_kinds=all_kinds,
        cluster=cluster,
        admin=admin,
    )


@_finalizers.command("release")
def release_finalizers(
    manifest: _ManifestArgument,
    *,
    handler: _HandlerOption = None,
    all_kinds: _AllKindsOption = False,
    yes: Annotated[bool, typer.Option("--yes", help="Release without a question.")] = False,
    kubeconfig: _KubeconfigOption = None,
    context: _ContextOption = None,
    admin: _AdminOption = None,
) -> int:
    """Remove the finalizers of a manifest, or of its running process, from all objects that have them.

    declctl_finalize is not called: what it would clean up stays. It is for the end of a controller, and for
    an edit that removes a finalizer. It exits 0 if no object that was looked at has it any more, 1 if the
    answer was no, 2 if nothing could be done.
    """
    from declctl.cli.finalizers import release_finalizers as release

    cluster = (kubeconfig, context)
    return release(manifest, handler=handler, yes=yes, all_kinds=all_kinds, cluster=cluster, admin=admin)


_StateFolderArgument = Annotated[str, typer.Argument(metavar="PATH", help="The folder of spec.state.")]


@_state.command("inspect")
def inspect_state(folder: _StateFolderArgument, *, output: _OutputOption = Output.TEXT) -> int:
    """Say what is in the folder of spec.state: of which process it is, and which caches it has.

    A process may be writing it. It exits 1 if there is no state that this declctl can read.
    """
    from declctl.cli.state import show_state

    return show_state(folder, as_json=output is Output.JSON)


@_state.command("clear")
def clear_state(folder: _StateFolderArgument) -> None:
    """Remove what the folder of spec.state has: the next process lists everything.

    It is refused while a process has the folder.
    """
    from declctl.cli.state import clear_state as clear

    clear(folder)


_NamespaceOption = Annotated[
    str,
    typer.Option("--namespace", "-n", metavar="NAMESPACE", help="The namespace in which the process runs."),
]
_NameOption = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Of the objects; by default that of the controller."),
]
_DefinitionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--crds",
        metavar="FILE",
        help="CustomResourceDefinitions (YAML) of the kinds that Kubernetes does not have; may be repeated.",
    ),
]
_ClusterOption = Annotated[
    bool,
    typer.Option(
        "--cluster", help="Ask the cluster of the kubeconfig for the names of kinds, instead of --crds."
    ),
]


@_generate.command("rbac")
def generate_rbac(  # noqa: PLR0913 - one parameter for each option of the command line
    manifest: _ManifestArgument,
    *,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Say above each rule why it is there, with the line of the manifest."),
    ] = False,
    name: _NameOption = None,
    namespace: _NamespaceOption = "default",
    crds: _DefinitionsOption = None,
    cluster: _ClusterOption = False,
    kubeconfig: _KubeconfigOption = None,
    context: _ContextOption = None,
) -> None:
    """Print a ServiceAccount, and Roles of the rights that a manifest needs and no others.

    For `kubectl apply --server-side -f -`. The handlers are imported in a child process, as `validate` does.
    """
    from declctl.cli.generate.rbac import show_rbac

    asked = _cluster_of(manifest, kubeconfig, context, asked=cluster, definitions=crds)
    planned, place = _planned(manifest, crds, asked, (kubeconfig, context), name=name, namespace=namespace)
    show_rbac(planned, place, explain=explain)


@_generate.command("deploy")
def generate_deploy(  # noqa: PLR0913 - one parameter for each option of the command line
    manifest: _ManifestArgument,
    *,
    image: Annotated[
        str | None,
        typer.Option("--image", metavar="IMAGE", help="The image of declctl. [default: declctl:VERSION]"),
    ] = None,
    plugin_image: Annotated[
        str | None,
        typer.Option(
            "--plugin-image",
            metavar="IMAGE",
            help="An image whose folder /plugins has installed packages; an init container copies them.",
        ),
    ] = None,
    kustomize: Annotated[
        str | None,
        typer.Option(
            "--kustomize", metavar="DIR", help="Write files and a kustomization into a folder, for overlays."
        ),
    ] = None,
    service_monitor: Annotated[
        bool, typer.Option("--service-monitor", help="Add a Service and a ServiceMonitor for Prometheus.")
    ] = False,
    alerts: Annotated[
        bool,
        typer.Option("--alerts", help="Add the alerts of `declctl generate alerts` as a PrometheusRule."),
    ] = False,
    create_namespace: Annotated[
        bool,
        typer.Option("--create-namespace", help="Add the namespace of the process, if the cluster lacks it."),
    ] = False,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            min=0,
            help="The number of processes, with spec.sharding or spec.leaderElection. "
            "[default: 2 with one of them, else 1]",
        ),
    ] = None,
    tls_secret: Annotated[
        str | None,
        typer.Option(
            "--tls-secret",
            metavar="SECRET",
            help="The Secret whose keys tls.crt and tls.key are the files of spec.admin.tls.",
        ),
    ] = None,
    token_secret: Annotated[
        str | None,
        typer.Option(
            "--token-secret",
            metavar="SECRET",
            help="The Secret whose key `token` is the file of spec.admin.tokenFile or, without one, "
            "DECLCTL_ADMIN_TOKEN.",
        ),
    ] = None,
    allowed_digests: Annotated[
        str | None,
        typer.Option(
            "--allowed-digests",
            metavar="CONFIGMAP",
            help="The ConfigMap whose key `digests` lists what may run, for `declctl run --allowed-digests`.",
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="A variable of the container; may be repeated."),
    ] = None,
    egress: Annotated[
        list[str] | None,
        typer.Option(
            "--egress",
            metavar="CIDR[:PORT]",
            help="What the process may reach beside DNS, such as the API server; may be repeated. "
            "[default: everything]",
        ),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="DIR=SECRET",
            help="Mount a Secret: its keys are files of the folder, such as for a plugin; may be repeated.",
        ),
    ] = None,
    writable: Annotated[
        list[str] | None,
        typer.Option(
            "--writable",
            metavar="DIR[=SIZE]",
            help="A folder that the process may write to, an emptyDir of at most SIZE; may be repeated.",
        ),
    ] = None,
    name: _NameOption = None,
    namespace: _NamespaceOption = "default",
    crds: _DefinitionsOption = None,
    cluster: _ClusterOption = False,
    kubeconfig: _KubeconfigOption = None,
    context: _ContextOption = None,
) -> None:
    """Print everything that runs a manifest in a cluster: files, rights, Deployment and policies.

    For `kubectl apply --server-side -f -`. The pod meets the pod security standard restricted. An edit of the
    files is a reload; only fields that take effect at the next start replace the pod.
    """
    from declctl.cli.generate.deploy import DeployOptions, egress_rules, generate_deployment, variables_of
    from declctl.cli.generate.volumes import volume_options

    volumes = volume_options(
        tls_secret=tls_secret,
        token_secret=token_secret,
        allowed_digests=allowed_digests,
        secrets=secret or [],
        writable=writable or [],
    )
    options = DeployOptions(
        image,
        plugin_image,
        service_monitor,
        alerts,
        create_namespace=create_namespace,
        replicas=replicas,
        variables=variables_of(env or []),
        egress=egress_rules(egress or []),
        volumes=volumes,
    )
    asked = _cluster_of(manifest, kubeconfig, context, asked=cluster, definitions=crds)
    planned, place = _planned(manifest, crds, asked, (kubeconfig, context), name=name, namespace=namespace)
    generate_deployment(planned, place, options, kustomize=kustomize)


@_generate.command("crd")
def generate_crd(
    classes: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:CLASS...",
            help="Classes that @declctl.custom_resource decorates; other versions of their kinds are found "
            "in their modules.",
        ),
    ],
    *,
    manifest: Annotated[
        Path | None,
        typer.Option(
            "--manifest", metavar="PATH", help="A manifest, or its folder, beside which the modules are."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file.")
    ] = None,
) -> None:
    """Print the CustomResourceDefinition of classes. Their modules are imported in a child process."""
    from declctl.cli.generate.crd import show_definitions
    from declctl.kit.files import folder_of

    place = manifest or Path()
    show_definitions(classes, folder=folder_of(place), output=output)


@_generate.command("types")
def generate_types(
    kinds: Annotated[
        list[str], typer.Argument(metavar="KIND...", help="Such as apps/v1/Deployment, or v1/Pod.")
    ],
    *,
    crds: _DefinitionsOption = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Take the schemas of the cluster of the kubeconfig.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file.")
    ] = None,
    kubeconfig: _KubeconfigOption = None,
    context: _ContextOption = None,
) -> None:
    """Print classes for the objects of kinds that others have made, for the `type` of a resource.

    The kinds of Kubernetes are known without a cluster; of which fields are required, only a cluster knows.
    """
    if (kubeconfig or context) and not cluster:
        raise UsageError("--kubeconfig and --context are for --cluster: add it, or leave them out.")
    if cluster and crds:
        raise UsageError("--crds says what --cluster asks: leave one of them out.")
    from declctl.cli.generate.types import TypeSource, show_types

    source = TypeSource(tuple(crds or ()), cluster, kubeconfig, context)
    show_types(kinds, source, output=output)


@_generate.command("alerts")
def generate_alerts(
    *,
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="Of the controller, which is the job of Prometheus."),
    ] = "declctl",
    namespace: _NamespaceOption = "default",
    plain: Annotated[
        bool,
        typer.Option("--plain", help="A file for rule_files of Prometheus, instead of a PrometheusRule."),
    ] = False,
    runbook: Annotated[
        str | None,
        typer.Option("--runbook", metavar="URL", help="Where people on call find docs/operations.md."),
    ] = None,
) -> None:
    """Print alerts: not ready, edits that are not live, calls that hang or fail, no leader, and more."""
    from declctl.cli.generate.alerts import RUNBOOK, show_alerts

    show_alerts(job=name, namespace=namespace, runbook=runbook or RUNBOOK, plain=plain)


@_generate.command("image")
def generate_image(
    manifest: _ManifestArgument,
    *,
    image: Annotated[
        str | None,
        typer.Option("--image", metavar="IMAGE", help="The image to begin with. [default: declctl:VERSION]"),
    ] = None,
    lock: Annotated[
        str,
        typer.Option(
            "--lock", metavar="FILE", help="What `declctl lock` has printed, in the folder of the build."
        ),
    ] = "requirements.lock",
    kubeconfig: _KubeconfigOption = None,
    context: _ContextOption = None,
) -> None:
    """Print a Dockerfile that installs the packages of a lock, by their hashes, on the image of declctl."""
    _refuse_unused_cluster(kubeconfig, context, manifest)
    from declctl.cli.generate.image import show_dockerfile
    from declctl.cli.manifest_argument import manifest_folder

    with manifest_folder(manifest, kubeconfig, context) as at:
        show_dockerfile(manifest, at=at, image=image, lock=lock)


@app.command()
def lock(  # noqa: PLR0913 - as in `run`
    manifest: _ManifestArgument,
    *,
    index_url: Annotated[
        str | None,
        typer.Option("--index-url", metavar="URL", help="The index of packages; by default that of pip."),
    ] = None,
    find_links: Annotated[
        list[str] | None,
        typer.Option("--find-links", metavar="DIR", help="A folder with wheels; may be repeated."),
    ] = None,
    no_index: Annotated[
        bool, typer.Option("--no-index", help="Ask no index: --find-links has all packages.")
    ] = False,
    python: Annotated[
        str, typer.Option("--python", metavar="VERSION", help="The Python of the image.")
    ] = "3.13",
    platform: Annotated[
        list[str] | None,
        typer.Option(
            "--platform",
            metavar="PLATFORM",
            help="linux/amd64 or linux/arm64; may be repeated. [default: both]",
        ),
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option(
            "--package",
            metavar="PLUGIN=PACKAGE",
            help="The package of a plugin, if it is neither installed here nor called declctl-PLUGIN; may "
            "be repeated.",
        ),
    ] = None,
    kubeconfig: _KubeconfigOption = None,
    context: _ContextOption = None,
) -> None:
    """Print the packages of a manifest's plugins and of declctl, with versions and hashes.

    For `pip install --require-hashes -r`, and for `declctl generate image`. pip finds the versions, and
    installs nothing.
    """
    _refuse_unused_cluster(kubeconfig, context, manifest)
    from declctl.cli.lock import PLATFORMS, PackageSource, show_lock
    from declctl.cli.manifest_argument import manifest_folder

    pairs = [each.partition("=") for each in package or ()]
    if not all(name and value for name, _, value in pairs):
        raise UsageError("--package is PLUGIN=PACKAGE, such as --package slack=acme-declctl-slack.")
    with manifest_folder(manifest, kubeconfig, context) as at:
        show_lock(
            manifest,
            at=at,
            source=PackageSource(index_url, find_links or [], no_index),
            python=python,
            platforms=platform or PLATFORMS,
            plugins={name: value for name, _, value in pairs},
        )


def _refuse_unused_cluster(
    kubeconfig: str | None, context: str | None, *manifests: str, asked_by: str = ""
) -> None:
    """Raise UsageError for --kubeconfig or --context if no manifest is a ConfigMap, which they are for.

    `asked_by` is another option of the command that they are for.
    """
    from declctl.cli.manifest_argument import is_config_map

    if (kubeconfig or context) and not any(map(is_config_map, manifests)):
        raise UsageError(
            f"--kubeconfig and --context are for {asked_by}{' and ' if asked_by else ''}a manifest "
            f"configmap/NAMESPACE/NAME: {f'add {asked_by}' if asked_by else 'name one'}, or leave them out."
        )


def _planned(
    manifest: str,
    definitions: list[str] | None,
    cluster: "KubeconfigChoice | None",
    config_maps_of: tuple[str | None, str | None],
    *,
    name: str | None,
    namespace: str,
) -> "tuple[PlannedController, Place]":
    """What `generate rbac` and `generate deploy` print objects of.

    `config_maps_of`: kubeconfig and context of the cluster from which a ConfigMap is read. Raises typer.Exit
    for a manifest with errors, and UsageError.
    """
    from declctl.cli.generate.objects import place_of
    from declctl.cli.generate.rights import planned_controller
    from declctl.cli.manifest_argument import manifest_folder

    with manifest_folder(manifest, *config_maps_of) as at:
        planned = planned_controller(
            manifest, at=at, definitions=definitions or [], cluster=cluster, namespace=namespace
        )
    return planned, place_of(name, namespace, planned.plan.name)


def _cluster_of(
    manifest: str,
    kubeconfig: str | None,
    context: str | None,
    *,
    asked: bool,
    definitions: list[str] | None,
) -> "KubeconfigChoice | None":
    """The cluster that is asked for kinds; None for none. Raises UsageError for options that contradict."""
    if not asked:
        _refuse_unused_cluster(kubeconfig, context, manifest, asked_by="--cluster")
    if asked and definitions:
        raise UsageError("--crds says what --cluster asks: leave one of them out.")
    if not asked:
        return None
    from declctl.cli.generate.rights import KubeconfigChoice

    return KubeconfigChoice(kubeconfig, context)


app.add_typer(_plugins, name="plugins")
app.add_typer(_generate, name="generate")
app.add_typer(_finalizers, name="finalizers")
app.add_typer(_state, name="state")
app.add_typer(_get, name="get")
app.add_typer(_bench, name="bench")
app.add_typer(_new, name="new")
_add_refusals(app, _INSTEAD, prefix="")
_add_refusals(_plugins, _PLUGINS_INSTEAD, prefix="plugins ")
_add_refusals(_get, _GET_INSTEAD, prefix="get ")


def invoke(arguments: Sequence[str], *, is_process: bool = False) -> int:
    """Run the command that `arguments` name, and return its exit status. `is_process` as in `status_of`.

    Faults of the arguments are printed here, because typer would print control characters of the command line
    unescaped. Raises the exceptions of the command, and SystemExit.
    """
    if not os.environ.get(COMPLETION, "").isprintable():
        raise UsageError(f"{COMPLETION} asks for no completion: unset it, or install completion again.")
    try:
        status = app(args=list(arguments), prog_name="declctl", standalone_mode=False, obj=is_process)
    except typer.Abort:
        line("Aborted!", err=True)
        return 1
    except Exception as error:
        if not isinstance(error, _WrongUsage):
            raise
        _show(error)
        return error.exit_code
    return status if isinstance(status, int) else 0


@runtime_checkable
class _WrongUsage(Protocol):
    """The part of typer's usage errors that is used. The module of their classes depends on the version."""

    exit_code: int

    def format_message(self) -> str: ...


def _show(error: _WrongUsage) -> None:
    """Print usage, a hint and the message, as typer does, with the user's text on one line."""
    context: typer.Context | None = getattr(error, "ctx", None)
    message = error.format_message()
    if context is not None:
        # The help, as the answer to a command line without arguments. It begins with the usage; to make the
        # whole of it again would import plugins.
        if message.startswith(context.get_usage()):
            block(f"{message}\n", err=True)
            return
        block(f"{context.get_usage()}\nTry '{context.command_path} -h' for help.\n\n", err=True)
    line(f"Error: {message}", err=True)
