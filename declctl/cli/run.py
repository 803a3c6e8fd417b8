"""`declctl run`: a runtime with its logs, its cluster and its admin address."""

import asyncio
import gc
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from declctl.cli.admin_client import parse_admin
from declctl.cli.logging import (
    OWN_LOGGER,
    ControllerName,
    Screen,
    change_level,
    progress,
    set_up_logs,
    stderr_screen,
)
from declctl.cli.manifest_argument import is_config_map
from declctl.cli.options import time_limit
from declctl.errors import UsageError
from declctl.hooks.loader import withdraw_all
from declctl.kit import Clock, SystemClock
from declctl.kit.files import folder_of
from declctl.manifest import Plan
from declctl.manifest.values import Address, BadValue, parse_quantity
from declctl.runtime.checking.preflight_pool import PreflightPool
from declctl.runtime.ending import end_process_after
from declctl.runtime.log import Log, LogLevelControl
from declctl.runtime.recorder import MakeRecorder
from declctl.runtime.runtime import Front, RunOptions, Runtime, WhyNotStart
from declctl.transport import Client
from declctl.writes import OnWritten

if TYPE_CHECKING:  # most runs read files
    from declctl.runtime.config_map import ConfigMapFolder

# How long a handler that computes may keep the interpreter from the caches and from other handlers. An event
# has to get hold of it several times on its way: with Python's own 5 ms, and even with 1 ms, a thousand
# changes a second pile up behind a handler that burns a core. A switch takes some µs.
SWITCH_SECONDS = 0.0002
_RECORD_SIZE = "256Mi"  # of the recording, by default
_ONCE_SECONDS = 60.0  # the time limit of --once, by default
_LEAST_SECONDS = 0.3  # for the end of the process after that of the runtime
_MUTATION_DETECTOR = "KUBE_CACHE_MUTATION_DETECTOR"

Connect = Callable[[], Awaitable[Client]]
"""Opens the client of a run."""


def run_manifest(  # noqa: PLR0913 - one parameter for each option of the command line
    manifest: str,
    *,
    children: PreflightPool,
    watch: bool | None,
    exec_on_restart: bool,
    once: bool,
    timeout: str | None,
    sandbox: bool,
    objects: Sequence[str],
    churn: float,
    kubeconfig_out: str | None,
    dry_run: bool,
    allowed_digests: str | None,
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    log_format: str,
    log_level: str,
    admin: str | None,
    record: str | None,
    record_size: str | None,
    is_process: bool,
) -> tuple[int, bool]:
    """Run a manifest to its end: the exit status, and whether a new process is asked for.

    The parameters are the options of the command; imports are checked in `children`. With `is_process`, the
    process ends afterwards, in what is left of the grace period. Raises UsageError.
    """
    seconds = _ONCE_SECONDS if timeout is None else time_limit(timeout, example="60s")
    clock, screen, name = SystemClock(), stderr_screen(), ControllerName()
    log = set_up_logs(screen, form=log_format, level=log_level, clock=clock, controller=name)
    log = log.bind(logger=OWN_LOGGER)
    _print_by_lines()
    sys.setswitchinterval(SWITCH_SECONDS)
    options = RunOptions(
        manifest=manifest,
        watch=watch,
        exec_on_restart=exec_on_restart,
        once=once,
        timeout=seconds,
        dry_run=dry_run,
        keeps_state=not (once or dry_run or sandbox),
        allowed_digests=allowed_digests,
        # No other process can act on the objects of a sandbox.
        namespace=namespace or ("default" if sandbox else None),
        mutation_detector=_is_set(_MUTATION_DETECTOR),
        log_level=LogLevelControl(log_level, change_level),
    )
    with ExitStack() as stack:
        if sandbox:
            is_file = manifest != "-" and not is_config_map(manifest)
            is_followed = is_file and watch is not False and not (once or objects)
            connect = _sandbox(stack, manifest, objects, churn, kubeconfig_out, log, is_followed=is_followed)
        else:
            connect = _cluster(kubeconfig, context)
        folder = _config_map(stack, manifest, connect, log)
        if folder is not None:
            options = replace(options, at=folder.path, followed=folder.status)
        fronts = [_named(name), *_fronts(options, admin, screen, log), _collecting_garbage()]
        runtime = Runtime(
            options,
            connect=connect,
            fronts=fronts,
            children=children,
            clock=clock,
            log=log,
            on_dry_run=_printer() if dry_run else None,
            why_not_start=_next_start(_folder_of(options), admin),
            recorder=None if record is None else _recorder(record, record_size, manifest, clock, log),
        )
        return (_run_to_the_end(runtime, log) if is_process else runtime.run()), runtime.restarts


def _run_to_the_end(runtime: Runtime, log: Log) -> int:
    """Run; then the process has what is left of its grace period, whatever threads of the user's code do."""
    status, is_at_once = 1, False
    try:
        return runtime.run()
    except SystemExit as ended:  # a second signal
        status, is_at_once = cast("int", ended.code), True
        raise
    finally:
        left = 0.0 if is_at_once else runtime.seconds_left
        end_process_after(max(left, _LEAST_SECONDS), status, log)


def _recorder(record: str, size: str | None, manifest: str, clock: Clock, log: Log) -> MakeRecorder:
    """Records to a file. Raises UsageError for a size that is none, or too small."""
    from declctl.recording.writer import LEAST_BYTES  # late: most runs are not recorded
    from declctl.runtime.recording import FileRecorder

    try:
        number = parse_quantity(_RECORD_SIZE if size is None else size)
    except BadValue as error:
        raise UsageError(f"--record-size: {error}; {error.suggestion}.") from error
    if number < LEAST_BYTES:
        raise UsageError(
            f"--record-size: {size} is too small for a recording: write 1Mi or more, such as 256Mi."
        )
    return partial(FileRecorder, Path(record), size=number, manifest=manifest, clock=clock, log=log)


def _printer() -> OnWritten:
    from declctl.cli.dry_run import DryRunPrinter  # late: yaml costs the start of every run

    return DryRunPrinter()


def replace_process(
    program: str, arguments: Sequence[str], *, environment: Mapping[str, str], folder: Path | None
) -> None:
    """Replace this process by a new one in `folder`. Its id stays: a supervisor sees no exit."""
    withdraw_all()
    if folder is not None:
        os.chdir(folder)  # paths among the arguments are relative to it
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program, [program, *arguments], environment)


def _is_set(variable: str) -> bool:
    """The value of a boolean environment variable, as client-go reads it; else UsageError."""
    value = os.environ.get(variable, "")
    if value in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if value in ("", "0", "f", "F", "false", "FALSE", "False"):
        return False
    raise UsageError(f"{variable} is {value!r}: write true or false, or unset it.")


def _print_by_lines() -> None:
    """Write each line that a handler prints at once and whole, also into a pipe.

    Under PYTHONUNBUFFERED, which images set, `print` writes a line and its end separately, and lines of
    several threads mix.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True, write_through=False)


def _collecting_garbage() -> Front:
    """The last front: it turns the garbage collector on, which never looks at what was imported before.

    That makes each full collection 50 ms shorter. A collection before the freeze would take more than 50 ms
    and free half a megabyte. Code of users is loaded later and can be collected.
    """

    @asynccontextmanager
    async def front(_: Runtime) -> AsyncGenerator[None, None]:
        gc.freeze()
        gc.enable()
        yield

    return front


def _sandbox(
    stack: ExitStack,
    manifest: str,
    files: Sequence[str],
    churn: float,
    kubeconfig_out: str | None,
    log: Any,
    *,
    is_followed: bool,
) -> Connect:
    # Late: a run in a cluster has no sandbox.
    from declctl.cli.sandbox import (
        DefinitionsInSandbox,
        objects_beside,
        of_unchecked_rules,
        read_objects,
        refuse_to_overwrite,
        write_kubeconfig,
    )
    from declctl.sandbox import SandboxThread

    if kubeconfig_out is not None:
        refuse_to_overwrite(Path(kubeconfig_out))
    documents = read_objects(files) if files else objects_beside(manifest)
    server = stack.enter_context(SandboxThread(garbage_collection=True))
    loaded = server.load(documents)
    if is_followed:
        folder = folder_of(Path(manifest)).absolute()  # handlers may change the working folder of the process
        stack.enter_context(DefinitionsInSandbox(folder, load=server.load, log=log).following())
    # Definitions beside the manifest are checked with it (DCL126).
    if files and (text := of_unchecked_rules(documents)) is not None:
        log.warning(text)
    number = f"{len(loaded)} object{'' if len(loaded) == 1 else 's'}" if loaded else "no objects yet"
    if churn:
        server.churn(churn)
        number = "demo pods that change" if not loaded else f"{number} and demo pods that change"
    if kubeconfig_out is not None:
        write_kubeconfig(Path(kubeconfig_out), server.kubeconfig())
    log.info(f"sandbox at {server.url}: an API server in this process, with {number}; it ends with it")
    return lambda: Client.from_kubeconfig_dict(server.kubeconfig())


def _config_map(stack: ExitStack, manifest: str, connect: Connect, log: Any) -> "ConfigMapFolder | None":
    """The folder that follows a ConfigMap, if `manifest` names one."""
    if not is_config_map(manifest):
        return None
    from declctl.runtime.config_map import ConfigMapFolder, config_map_of  # late: most runs read files

    return stack.enter_context(ConfigMapFolder(*config_map_of(manifest), connect=connect, log=log))


def _cluster(kubeconfig: str | None, context: str | None) -> Connect:
    return lambda: Client.connect(kubeconfig=kubeconfig, context=context)


def _named(name: ControllerName) -> Front:
    """A runtime that gives the name of its controller to the logs."""

    @asynccontextmanager
    async def front(runtime: Runtime) -> AsyncGenerator[None, None]:
        name.name = runtime.plan.name
        name.generation = lambda: runtime.generation
        yield

    return front


def _fronts(options: RunOptions, admin: str | None, screen: Screen, log: Any) -> Sequence[Front]:
    fronts: list[Front] = [progress(screen, SystemClock())] if screen.is_terminal else []
    # With --once there is no admin address unless --admin names one: the port may belong to another run.
    if admin is not None or not options.once:
        fronts.append(_admin(options, None if admin is None else parse_admin(admin), log))
    return fronts


def _admin(options: RunOptions, address: Address | None, log: Any) -> Front:
    """The admin server. It is loaded while the API server answers the first requests."""

    @asynccontextmanager
    async def serving(runtime: Runtime) -> AsyncGenerator[None, None]:
        # In a thread, as it takes a quarter of a second of CPU.
        await asyncio.to_thread(import_module, "declctl.admin")
        from declctl.admin import from_environment, front

        given = from_environment(os.environ, log)
        path = None if options.manifest == "-" else _absolute(options.manifest)
        served = front(address, given=given, folder=_folder_of(options), manifest=path, log=log)
        async with served(runtime):
            yield

    return serving


def _next_start(folder: Path, admin: str | None) -> WhyNotStart:
    """Checks whether a new process could serve its addresses; `admin` is that of the command line."""
    address = None if admin is None else parse_admin(admin)

    async def why_not(now: Plan, wanted: Plan) -> str | None:
        from declctl.admin import why_not_served  # late: it is loaded by now, unless nothing is served

        return await why_not_served(now, wanted, folder=folder, address=address)

    return why_not


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - links are kept, as they may be moved


def _folder_of(options: RunOptions) -> Path:
    """The folder of the manifest, where its relative paths begin."""
    path = options.at or Path(options.manifest)
    return Path() if options.manifest == "-" else folder_of(path)
