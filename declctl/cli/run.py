"""`declctl run`: run a manifest."""

import gc
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from declctl.cli.options import (
    BindOption,
    ContextOption,
    DryRunOption,
    ExecOption,
    KubeconfigOption,
    LogFormat,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    ManifestArgument,
    ObjectsOption,
    OnceOption,
    SandboxOption,
    TimeoutOption,
    WatchOption,
)
from declctl.errors import UsageError

if TYPE_CHECKING:
    from declctl.cli.logging import ControllerName, Screen
    from declctl.runtime.runtime import Front, Runtime
    from declctl.transport import Client


# How long a handler that computes may keep the interpreter from the caches and from other handlers. An event
# has to get hold of it several times on its way: with Python's own 5 ms, and even with 1 ms, a thousand
# changes a second pile up behind a handler that burns a core. A switch takes some µs.
SWITCH_SECONDS = 0.0002
_MUTATION_DETECTOR = "KUBE_CACHE_MUTATION_DETECTOR"


def run(  # noqa: PLR0913 - one parameter for each option of the command line
    manifest: ManifestArgument,
    *,
    watch: WatchOption = None,
    exec_on_restart: ExecOption = False,
    once: OnceOption = False,
    timeout: TimeoutOption = None,
    sandbox: SandboxOption = False,
    objects: ObjectsOption = None,
    dry_run: DryRunOption = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
    admin: BindOption = None,
) -> None:
    """Run a manifest, until SIGTERM or Ctrl-C."""
    _refuse_dry_run(dry_run)
    _refuse_two_clusters(sandbox, objects, kubeconfig or context)
    seconds = _seconds(timeout, once=once)
    _refuse_to_start_again(exec_on_restart, manifest, once=once)
    environment = dict(os.environ)  # before anybody's code has changed it
    folder = Path().absolute() if exec_on_restart else None  # as above
    from declctl.runtime.checking.preflight_pool import PreflightPool

    with ExitStack() as stack:
        children = PreflightPool()
        stack.callback(children.close)
        children.warm()  # it loads what it needs while this process does
        from declctl.cli.logging import (
            ControllerName,
            set_up_logs,
            stderr_screen,
        )  # late: the machinery is loaded from here
        from declctl.kit import SystemClock
        from declctl.runtime.runtime import RunOptions, Runtime

        clock, screen, name = SystemClock(), stderr_screen(), ControllerName()
        log = set_up_logs(screen, form=log_format, level=log_level, clock=clock, controller=name)
        fronts = [_named(name), *_fronts(admin, screen, once=once, log=log)]
        _print_by_lines()
        sys.setswitchinterval(SWITCH_SECONDS)
        options = RunOptions(
            manifest=manifest,
            watch=watch,
            exec_on_restart=exec_on_restart,
            once=once,
            timeout=seconds,
            mutation_detector=_is_set(_MUTATION_DETECTOR),
        )
        connect = _sandbox(stack, objects or [], log) if sandbox else _cluster(kubeconfig, context)
        connect = _then_collect_garbage(connect)
        runtime = Runtime(options, connect=connect, fronts=fronts, children=children, clock=clock, log=log)
        status = runtime.run()
    # A run that has failed is not started again: its supervisor decides.
    if runtime.restarts and not status:
        from declctl.hooks.loader import withdraw_all

        withdraw_all()
        if folder is not None:
            os.chdir(folder)  # paths among the arguments are relative to it
        _become(sys.executable, sys.orig_argv[1:], environment)
    raise typer.Exit(status)


def _become(program: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
    """Start again in this very process: who supervises it sees the same id, and no exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program, [program, *arguments], environment)


def _refuse_to_start_again(asked: bool, manifest: str, *, once: bool) -> None:
    if asked and once:
        raise UsageError("--exec-on-restart is for a process that stays: leave out --once, or it.")
    if asked and manifest == "-":
        raise UsageError("--exec-on-restart can't read a manifest from standard input twice: name a file.")


def _is_set(variable: str) -> bool:
    """Whether an environment variable says true, as client-go reads it; raises UsageError for nonsense."""
    value = os.environ.get(variable, "")
    if value in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if value in ("", "0", "f", "F", "false", "FALSE", "False"):
        return False
    raise UsageError(f"{variable} is {value!r}: write true or false, or unset it.")


def _print_by_lines() -> None:
    """What handlers print is seen at once, through a pipe too, and lines of several threads do not mix.

    Under PYTHONUNBUFFERED, as images have it, `print` writes a line and its end apart, and another thread may
    come between.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True, write_through=False)


def _then_collect_garbage(connect: "Callable[[], Awaitable[Client]]") -> "Callable[[], Awaitable[Client]]":
    """From here on there is some; what was imported for the connection is never looked at again.

    That takes 50 ms off each full collection. To look for garbage first would take those 50 ms and more,
    for half a megabyte. What users wrote is loaded later, and can be collected.
    """

    async def connected() -> "Client":
        client = await connect()
        gc.freeze()
        gc.enable()
        return client

    return connected


def _refuse_dry_run(asked: bool) -> None:
    if asked:
        raise UsageError(
            "This version does not do `declctl run --dry-run` yet; `declctl run --sandbox` runs a manifest "
            "without touching a cluster."
        )


def _refuse_two_clusters(sandbox: bool, objects: list[str] | None, named: str | None) -> None:
    if sandbox and named:
        raise UsageError("--sandbox is a cluster of its own: leave out --kubeconfig and --context, or it.")
    if objects and not sandbox:
        raise UsageError("--objects fills the sandbox: add --sandbox, or create the objects with kubectl.")


def _seconds(timeout: str | None, *, once: bool) -> float:
    """The time limit of --once."""
    if timeout is None:
        return 60.0
    if not once:
        raise UsageError("--timeout limits --once: add --once, or leave it out.")
    return _duration(timeout)


def _duration(text: str) -> float:
    from declctl.manifest.values import BadValue, parse_duration

    try:
        seconds = parse_duration(text)
    except BadValue as error:
        raise UsageError(f"--timeout: {error}; {error.suggestion}.") from error
    if seconds <= 0:
        raise UsageError("--timeout: it must be longer than nothing, such as 60s.")
    return seconds


def _sandbox(stack: ExitStack, files: Sequence[str], log: Any) -> "Callable[[], Awaitable[Client]]":
    from declctl.cli.sandbox import read_objects
    from declctl.sandbox import SandboxThread
    from declctl.transport import Client

    documents = read_objects(files)
    server = stack.enter_context(SandboxThread())
    loaded = server.load(documents)
    number = f"{len(loaded)} object{'' if len(loaded) == 1 else 's'}" if files else "no objects yet"
    log.info(f"sandbox at {server.url}: an API server in this process, with {number}; it ends with it")
    return lambda: Client.from_kubeconfig_dict(server.kubeconfig())


def _cluster(kubeconfig: str | None, context: str | None) -> "Callable[[], Awaitable[Client]]":
    from declctl.transport import Client

    return lambda: Client.connect(kubeconfig=kubeconfig, context=context)


def _named(name: "ControllerName") -> "Front":
    """A runtime that gives the name of its controller to the logs."""

    @asynccontextmanager
    async def front(runtime: "Runtime") -> AsyncGenerator[None, None]:
        name.name = runtime.plan.name
        yield

    return front


def _fronts(admin: str | None, screen: "Screen", *, once: bool, log: Any) -> "Sequence[Front]":
    from declctl.admin import TOKEN_VARIABLE, front
    from declctl.cli.admin_client import parse_admin
    from declctl.cli.logging import progress
    from declctl.kit import SystemClock

    fronts: list[Front] = [progress(screen, SystemClock())] if screen.is_terminal else []
    # A run that ends by itself serves nobody, unless it is told to: it must not fail beside one that stays.
    if admin is not None or not once:
        address = None if admin is None else parse_admin(admin)
        fronts.append(front(address, token=os.environ.get(TOKEN_VARIABLE), log=log))
    return fronts
