"""`declctl doctor`: whether declctl can work here, with this manifest and this cluster.

Checks of this machine are in `host_checks`. Here are those of the manifest, the plugins, the addresses
and the cluster, and the order of all. Each check has a time limit: what hangs, such as a network mount, a
proxy or a credential plugin, is one failed check. The rights are those that `validate --cluster` asks for.
"""

import asyncio
import errno
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from declctl.admin.authorization import token_in
from declctl.cli.admin_client import AdminAddress, ask, reachable
from declctl.cli.host_checks import (
    Check,
    CheckState,
    check_descriptors,
    check_inotify,
    check_memory,
    check_mount,
    check_notices,
    check_packages,
    check_python,
    failed,
    memory_limit,
    ok,
    skipped,
    warning,
)
from declctl.cli.manifest_argument import is_config_map, manifest_folder
from declctl.cli.options import time_limit
from declctl.cli.report import BLOCKING_ADVICE, blocking, count
from declctl.cli.terminal import has_colour, line, painted, print_json
from declctl.cli.undeclared import with_undeclared_writes
from declctl.cli.validate import ask_about, number_of
from declctl.errors import ApiError, ServerError, UsageError
from declctl.kit.hosts import is_loopback
from declctl.kit.text import one_line
from declctl.kit.tokens import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, fits_header
from declctl.manifest import Diagnostic, Plan, plan
from declctl.manifest.model import AdminAuthorization, AdminSpec
from declctl.manifest.values import Address
from declctl.objects import GroupVersionKind
from declctl.objects.shards import ShardKey
from declctl.runtime.checking.check import CheckResult, check
from declctl.runtime.checking.declaration import ListedPlugin
from declctl.runtime.checking.preflight import list_plugins
from declctl.runtime.checking.preflight_pool import PreflightPool
from declctl.runtime.threads import in_thread
from declctl.transport import Client

T = TypeVar("T")
SECONDS = 10.0  # for each check
_PLUGIN_SECONDS = 60.0  # for all plugins: each is imported in a child
_ASK_SECONDS = 2.0  # for the running process, which may not be there
_SLOW_SECONDS = 1.0  # of one answer of the API server
_SKEW_SECONDS, _LARGE_SKEW_SECONDS = 3.0, 60.0
_SHORT_TOKEN = 16  # characters
_MOUNTINFO = Path("/proc/self/mountinfo")
_MANIFEST = "manifest.yaml"
_ADMIN_ADDRESS, _METRICS_ADDRESS = "admin address", "metrics address"
_WAYS_OUT = {
    _ADMIN_ADDRESS: "spec.admin.bindAddress or with --admin",
    _METRICS_ADDRESS: "spec.metrics.bindAddress",
}
_COLOURS = {
    CheckState.OK: "\x1b[32m",
    CheckState.WARNING: "\x1b[33m",
    CheckState.FAILED: "\x1b[1;31m",
    CheckState.SKIPPED: "\x1b[2m",
}
_PLAIN = "\x1b[0m"


def examine(
    manifest: str | None,
    children: PreflightPool,
    *,
    kubeconfig: str | None,
    context: str | None,
    timeout: str | None,
    as_json: bool,
) -> int:
    """Make all checks, and print them; returns 1 if one has failed, else 0.

    `manifest` None stands for that of the current folder; without one, its checks are skipped. `timeout` is
    the time limit of each check, as a duration; None for 10 s. Raises UsageError for a text that is none.
    """
    seconds = SECONDS if timeout is None else time_limit(timeout, example="10s")
    if manifest is None and Path(_MANIFEST).is_file():
        manifest = "."
    with ExitStack() as files:
        checks = asyncio.run(_all_checks(manifest, children, kubeconfig, context, seconds, files))
    counts = {state: sum(each.state is state for each in checks) for state in CheckState}
    if as_json:
        document = {str(state): number for state, number in counts.items()}
        print_json({"checks": msgspec.to_builtins(checks), **document})
    else:
        _print(checks)
        line()
        line(", ".join(f"{number} {state}" for state, number in counts.items() if number))
    return int(counts[CheckState.FAILED] > 0)


def _print(checks: Sequence[Check]) -> None:
    width = max(len(each.name) for each in checks)
    colour = has_colour(sys.stdout)
    for each in checks:
        state = f"{each.state:<8}"
        # Painted by parts: what was found may come from a server or a file.
        painted(f"{_COLOURS[each.state]}{state}{_PLAIN}" if colour else state)
        line(f" {each.name:<{width}}  {each.found}")
        indent = " " * (width + 11)
        if each.meaning:
            line(f"{indent}means: {each.meaning}")
        if each.advice:
            line(f"{indent}do:    {each.advice}")


async def limited(name: str, work: Awaitable[T], seconds: float) -> T | Check:
    """What `work` returns; a failed check if it takes longer than `seconds`, or meets a fault of its own."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        return failed(
            name,
            f"it has not ended within {seconds:g} s",
            meaning="what it waits for does not answer: a mount, a proxy, a credential plugin or a server",
            advice="see what hangs there; --timeout gives each check more time",
        )
    except Exception as error:  # noqa: BLE001 - one broken check must not hide the others
        return failed(
            name,
            f"the check itself failed: {type(error).__name__}: {error}",
            meaning="it is not known whether this works",
            advice="if the message is no fault of this machine, please report it",
        )


async def _all_checks(
    manifest: str | None,
    children: PreflightPool,
    kubeconfig: str | None,
    context: str | None,
    seconds: float,
    files: ExitStack,
) -> list[Check]:
    """All checks, in the order in which they are shown. `files` keeps the copy of a ConfigMap."""
    named = manifest or ""

    async def here(name: str, call: Callable[[], Check]) -> Check:
        # In a daemon thread: a mount that hangs keeps neither the other checks nor the end waiting.
        return await limited(name, in_thread(call, name="declctl-doctor"), seconds)

    checked: CheckResult | Check | None = None
    if manifest is not None:
        # As long as the import in the child may take, and the limit for reading files.
        limit = max(seconds, _PLUGIN_SECONDS)

        def read_it() -> CheckResult | Check:
            try:
                at = files.enter_context(manifest_folder(named, kubeconfig, context))
            except UsageError as error:
                return failed(
                    "manifest",
                    str(error),
                    meaning="`declctl run` of it ends with exit status 2",
                    advice="see the checks of credentials and cluster; a path names a file or a folder",
                )
            checked = check(named, at=at, checks_configs=True, children=children)
            return with_undeclared_writes(checked)

        reading = in_thread(read_it, name="declctl-doctor")
        checked = await limited("manifest", reading, limit)
    read = checked if isinstance(checked, CheckResult) else None
    inputs = None if read is None else read.inputs
    controller = None if inputs is None else inputs.loaded.controller
    checks = [
        await here("python", check_python),
        await here("packages", check_packages),
        await here(
            "descriptors",
            partial(check_descriptors, 0 if controller is None else len(plan(controller).watches)),
        ),
        await here("memory", lambda: check_memory(memory_limit())),
        await here("inotify", check_inotify),
        await here("notices", check_notices),
        skipped("manifest", "none is named, and the current folder has none")
        if checked is None
        else check_manifest(checked)
        if isinstance(checked, CheckResult)
        else checked,
    ]
    if is_config_map(named):
        checks.append(skipped("mount", f"{named} is not mounted: `declctl run` follows it by a watch"))
    elif manifest is not None and manifest != "-":
        checks.append(await here("mount", lambda: _mount(named)))
    listing = in_thread(partial(list_plugins, children.begin), name="declctl-doctor")
    plugins = await limited("plugins", listing, max(seconds, _PLUGIN_SECONDS))
    used = frozenset(() if controller is None else (each.name for each in controller.plugins))
    checks += [plugins] if isinstance(plugins, Check) else check_plugins(plugins, used)
    admin = AdminSpec() if controller is None else controller.admin
    root = Path()  # where relative paths of the manifest begin
    if inputs is not None:
        root = inputs.bundle.place if is_config_map(named) else Path(inputs.bundle.root)
    checks.append(await here("token", partial(check_token, admin, root, os.environ)))
    name = None if controller is None else controller.name
    checks.append(await here(_ADMIN_ADDRESS, partial(check_address, admin, name)))
    if controller is not None and (metrics := controller.metrics.bind_address) is not None:
        own = partial(check_metrics_address, admin, metrics, controller.name)
        checks.append(await here(_METRICS_ADDRESS, own))
    checks += await check_cluster(read, kubeconfig=kubeconfig, context=context, seconds=seconds)
    return checks


def check_manifest(checked: CheckResult) -> Check:
    """Whether `declctl validate` accepts the manifest and its handlers."""
    if checked.errors:
        more = len(checked.errors) - 1
        return failed(
            "manifest",
            f"{checked.errors[0]}" + (f" (and {number_of(more, 'more error')})" if more else ""),
            meaning="declctl run and reloads refuse it",
            advice="declctl validate shows all faults, with their places",
        )
    assert checked.inputs is not None
    controller = checked.inputs.loaded.controller
    resources, handlers = len(controller.resources), len(controller.handlers)
    parts = f"{controller.name}: {number_of(resources, 'resource')}, {number_of(handlers, 'handler')}"
    if checked.diagnostics:
        return warning(
            "manifest",
            f"{parts}; {count(checked.diagnostics)}",
            meaning="it runs, and something in it may surprise",
            advice="declctl validate shows the warnings, with their places",
        )
    return ok("manifest", parts)


def _mount(manifest: str) -> Check:
    try:
        mountinfo = _MOUNTINFO.read_text("utf-8", "replace")
    except OSError:
        mountinfo = ""  # a system without /proc
    try:
        Path(manifest).stat()
    except OSError as error:
        return failed(
            "mount",
            f"{manifest} can't be looked at: {error.strerror}",
            meaning="no edit of it is noticed, and it can't be read",
            advice="check the path, and the rights on its folder",
        )
    return check_mount(Path(manifest), mountinfo)


def check_plugins(listed: Sequence[ListedPlugin], used: frozenset[str]) -> Iterator[Check]:
    """Whether the installed plugins can be loaded: failed for one that the manifest uses, else a warning."""
    broken = [each for each in listed if each.reason is not None]
    for each in broken:
        judge = failed if each.name in used else warning
        meaning = "the manifest uses it, and is refused" if each.name in used else "no manifest can use it"
        yield judge(
            "plugins",
            f"{each.name} {each.version} ({each.distribution}) can't be loaded: {each.reason}",
            meaning=meaning,
            advice="install a version of it that fits, or remove it: pip uninstall " + each.distribution,
        )
    for name in sorted(used - {each.name for each in listed}):
        yield failed(
            "plugins",
            f"{name} is not installed here, or may not be loaded",
            meaning="the manifest uses it, and is refused",
            advice="install it with pip into the environment of declctl; see also DECLCTL_LOAD_PLUGINS",
        )
    if not broken:
        names = ", ".join(f"{each.name} {each.version}" for each in listed)
        yield ok("plugins", names or "none is installed")


def check_token(admin: AdminSpec, root: Path, environ: Mapping[str, str]) -> Check:
    """Whether the token of the process can be used, and whether its address needs one. Reads its file.

    A relative `tokenFile` begins at `root`, the folder of the manifest.
    """
    address, remote = admin.bind_address, not is_loopback(admin.bind_address.host)
    given, file = environ.get(TOKEN_VARIABLE, "").strip(), environ.get(TOKEN_FILE_VARIABLE, "")
    if given and file:
        return failed(
            "token",
            f"both {TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE} are set",
            meaning="`declctl run` and the commands that talk to it end with exit status 2",
            advice="unset one of them",
        )
    # In the order of `declctl run`: the environment comes before the manifest.
    if not given and not file and admin.authorization is AdminAuthorization.KUBERNETES:
        return ok("token", "the API server reviews the tokens of clients (spec.admin.authorization)")
    if not given and (file or admin.token_file):
        return _token_file(Path(file) if file else root / str(admin.token_file))
    if given and not fits_header(given):
        return failed(
            "token",
            f"{TOKEN_VARIABLE} has characters that no header can carry",
            meaning="no client can send it, so that reads and reloads are refused",
            advice="use letters and digits, such as those of `openssl rand -hex 32`",
        )
    if given and len(given) < _SHORT_TOKEN:
        return warning(
            "token",
            f"{TOKEN_VARIABLE} has {len(given)} characters",
            meaning="a short token can be guessed",
            advice="use a longer one, such as that of `openssl rand -hex 32`",
        )
    if given:
        return ok("token", f"{TOKEN_VARIABLE} is set; requests that show objects or change state need it")
    if remote:
        return warning(
            "token",
            f"{TOKEN_VARIABLE} is not set, and the admin address {address} is not loopback",
            meaning="status shows no texts, and reads of caches and reloads are refused",
            advice=f"start `declctl run` with {TOKEN_VARIABLE} set, or bind the address to 127.0.0.1",
        )
    return ok("token", "none is set, and none is needed on loopback: each user of this machine may ask")


def _token_file(path: Path) -> Check:
    try:
        found = token_in(path)
    except (OSError, ValueError) as error:
        return failed(
            "token",
            f"the token file {path} can't be used: {getattr(error, 'strerror', None) or error}",
            meaning="every token is refused until it can be read",
            advice="check the path, the mount and the rights; the file has the token and nothing else",
        )
    if len(found) < _SHORT_TOKEN:
        return warning(
            "token",
            f"the token in {path} has {len(found)} characters",
            meaning="a short token can be guessed",
            advice="use a longer one, such as that of `openssl rand -hex 32`",
        )
    return ok("token", f"it is in {path}, and may be replaced at any time")


def check_address(admin: AdminSpec, name: str | None) -> Check:
    """Who answers at the admin address; if nobody does, whether it can be listened on. Blocks."""
    address = admin.bind_address
    if not address.port:
        return ok(_ADMIN_ADDRESS, f"{address}: any free port is taken, and the log names it")
    if admin.tls is not None:
        return _with_tls(address)
    target = AdminAddress(reachable(address))
    try:
        answer = ask(target, "GET", "/status", timeout=_ASK_SECONDS)
    except UsageError as nobody:
        return _free(address, str(nobody))
    there = answer.document.get("name")
    if not isinstance(there, str):
        return warning(
            _ADMIN_ADDRESS,
            f"what answers at {target} refuses to say who it is (HTTP {answer.status})",
            meaning="it may be the process of this manifest, or another program",
            advice=f"set {TOKEN_VARIABLE}, or name another address in spec.admin.bindAddress",
        )
    if name is not None and there != name:
        return failed(
            _ADMIN_ADDRESS,
            f"{there} runs at {address}, and this manifest is that of {name}",
            meaning=f"`declctl run` of {name} can't listen there, and commands reach {there}",
            advice="name another address in spec.admin.bindAddress",
        )
    found = f"{there} generation {answer.document.get('generation')} runs at {target}"
    if blocked := blocking(answer.document):
        return warning(_ADMIN_ADDRESS, found, meaning=blocked, advice=BLOCKING_ADVICE)
    return ok(_ADMIN_ADDRESS, found)


def check_metrics_address(admin: AdminSpec, metrics: Address, name: str) -> Check:
    """Which process answers at the metrics address; if none does, whether it can be listened on. Blocks."""
    check = _METRICS_ADDRESS
    if not metrics.port:
        return ok(check, f"{metrics}: any free port is taken, and the log names it")
    if admin.bind_address.covers(metrics):
        return ok(check, f"{metrics} is served by the admin address {admin.bind_address}")
    if admin.tls is not None:
        return _with_tls(metrics, check)
    target = AdminAddress(reachable(metrics), controller=name)
    try:
        # Any path but that of the metrics is refused, with the name of the controller.
        ask(target, "GET", "/", timeout=_ASK_SECONDS)
    except UsageError:
        # The message is about commands and --admin, which this address is not for.
        return _free(metrics, f"it does not answer as {name}", check)
    return ok(check, f"{name} serves its metrics at {target}")


def _with_tls(address: Address, check: str = _ADMIN_ADDRESS) -> Check:
    """Whether something listens at an address with HTTPS, which is not asked who it is."""
    try:
        socket.create_connection((reachable(address).host, address.port), timeout=_ASK_SECONDS).close()
    except OSError as error:
        return _free(address, str(error), check)
    who = "; `declctl status` says who" if check == _ADMIN_ADDRESS else ""
    return ok(check, f"something listens at {address}, by HTTPS{who}")


def _free(address: Address, why: str, check: str = _ADMIN_ADDRESS) -> Check:
    """Whether an address without an answer can be listened on."""
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address.host, address.port))
    except OSError as error:
        used = error.errno == errno.EADDRINUSE
        return failed(
            check,
            f"{address} is in use by another program: {why}"
            if used
            else f"{address} can't be listened on: {error.strerror or error}",
            meaning="`declctl run` ends with exit status 2",
            advice=f"name another address in {_WAYS_OUT[check]}; port 0 takes any",
        )
    return ok(check, f"{address} is free: nothing runs there now")


async def check_cluster(
    read: CheckResult | None, *, kubeconfig: str | None, context: str | None, seconds: float
) -> Sequence[Check]:
    """The configuration, the answer, the clock and the rights at the cluster. Each step may take `seconds`.

    After a step that has failed, the steps that need it are skipped.
    """

    async def connected() -> Client | Check:
        try:
            return await Client.connect(kubeconfig=kubeconfig, context=context)
        except UsageError as error:
            return failed(
                "credentials",
                str(error),
                meaning="no request to a cluster can be made; --sandbox works without one",
                advice="set KUBECONFIG or --context, or run in a pod with a service account",
            )

    client = await limited("credentials", connected(), seconds)
    if isinstance(client, Check):
        return [
            client,
            *(
                skipped(name, "there are no credentials for a cluster")
                for name in ("cluster", "clock", "rights")
            ),
        ]
    try:
        checks = [_credentials(client)]
        answer = await limited("cluster", _answer(client), seconds)
        checks.append(answer)
        if answer.state is CheckState.FAILED:
            return [*checks, *(skipped(name, "the cluster does not answer") for name in ("clock", "rights"))]
        checks.append(await limited("clock", _clock(client), seconds))
        # A review for each right: many namespaces take a while.
        rights = await limited("rights", _rights(read, client), max(seconds, _PLUGIN_SECONDS))
        checks += [rights] if isinstance(rights, Check) else rights
        if read is not None and read.inputs is not None:
            planned = plan(read.inputs.loaded.controller)
            if planned.sharding is not None:
                checks.append(await limited("slots", _slots(planned, client), seconds))
        return checks
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await client.close()


def _credentials(client: Client) -> Check:
    who = client.identity
    source = "the service account of this pod" if who.in_cluster else f"context {who.context or '-'}"
    return ok("credentials", f"{source}, server {who.server}, user {who.user or '-'}")


async def _answer(client: Client) -> Check:
    began = time.monotonic()
    try:
        version = await client.version()
        first = time.monotonic() - began
        # The first answer includes TLS and the login; the second one is what a watch or a write waits for.
        began = time.monotonic()
        await client.version()
    except (ApiError, UsageError) as error:
        return failed(
            "cluster",
            str(error),
            meaning="no object can be listed, watched or written",
            advice="check the address, proxies and certificates: kubectl version asks the same",
        )
    took = time.monotonic() - began
    times = f"the first answer took {first * 1000:.0f} ms, the next {took * 1000:.0f} ms"
    found = f"{version or 'a server without a version'}; {times}"
    if took > _SLOW_SECONDS:
        return warning(
            "cluster",
            found,
            meaning="each write waits that long, and so does the start of each watch",
            advice="see what is between here and the API server, or whether it is overloaded",
        )
    return ok("cluster", found)


async def _clock(client: Client) -> Check:
    before = datetime.now(UTC)
    theirs = await client.server_time()
    if theirs is None:
        return skipped("clock", "the answer of the API server has no date")
    after = datetime.now(UTC)
    # The date has whole seconds, so that on average it is half a second behind.
    skew = (theirs - before).total_seconds() + 0.5 - (after - before).total_seconds() / 2
    return judge_skew(skew)


def judge_skew(skew: float) -> Check:
    """The difference of two clocks in seconds; positive if that of the API server is ahead."""
    where = "ahead" if skew > 0 else "behind"
    found = f"the clock of the API server is {abs(skew):.0f} s {where}"
    advice = "synchronise the clocks: chrony or systemd-timesyncd on both machines"
    if abs(skew) <= _SKEW_SECONDS:
        return ok("clock", "that of the API server and this one differ by less than 3 s")
    if abs(skew) <= _LARGE_SKEW_SECONDS:
        return warning(
            "clock",
            found,
            meaning="ages, schedules and times of logs do not match the cluster",
            advice=advice,
        )
    return failed(
        "clock",
        found,
        meaning="certificates and tokens count as expired, or as not valid yet",
        advice=advice,
    )


async def _slots(planned: Plan, client: Client) -> Check:
    """Whether the API server sends to each process the objects of its slots alone."""
    assert planned.sharding is not None
    watch = next((each.key for each in planned.watches if each.key.sharded), None)
    parts = f"{planned.sharding.slots} slots"
    if watch is None:
        return ok("slots", f"{parts}, and no resource is sharded: the process with slot 0 handles all")
    if planned.sharding.by is ShardKey.NAMESPACE:
        return ok("slots", f"{parts} by namespace: each process receives all objects, and keeps its own")
    kind = await client.discover(GroupVersionKind.of(watch.api_version, watch.kind))
    try:
        # A server that reads selectors refuses this one for each kind; others ignore it, and say nothing.
        await client.request_json(
            "GET", kind.path(watch.namespace), params={"limit": "1", "shardSelector": "x"}
        )
    except ServerError as refusal:
        if "shard selector" in refusal.message:
            return ok("slots", f"{parts} by uid: the API server sends to each process those of its slots")
        raise
    return warning(
        "slots",
        f"{parts} by uid, and the API server sends all objects to each process",
        meaning="each process drops those of other slots unread: memory and calls are shared, traffic is not",
        advice="if you run the API server, enable its feature gate ShardedListAndWatch (alpha since 1.36)",
    )


async def _rights(read: CheckResult | None, client: Client) -> Sequence[Check]:
    if read is None or read.inputs is None:
        return [skipped("rights", "they depend on the manifest, which could not be read")]
    found = await ask_about(read, client, namespace=client.identity.namespace)
    if not found.faults:
        return [ok("rights", "the user may do all that the manifest needs, and the cluster has its kinds")]
    return [_right(fault) for fault in found.faults]


def _right(fault: Diagnostic) -> Check:
    judge = failed if fault.severity == "error" else warning
    return judge(
        "rights",
        one_line(f"{fault.message} ({fault.file}:{fault.line})"),
        meaning="the handlers that need it fail, or receive nothing",
        advice=fault.suggestion or f"declctl explain {fault.code} tells more",
    )
