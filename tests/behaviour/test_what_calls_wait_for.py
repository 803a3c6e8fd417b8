"""No call of any mode begins before the caches that it names have synced, or it is told which one has not."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from declctl.runtime.handling import invocations
from declctl.runtime.scheduling import schedules
from declctl.sandbox.faults import Match
from declctl.testing import until
from tests.behaviour.conftest import let_begin, secret

pytestmark = pytest.mark.thorough

SECRETS = "- {name: secrets, apiVersion: v1, kind: Secret}"
INCLUDES = "includeSnapshotsFrom: [secrets]"
# If the back-off of a call that waits decided, the next call would come in an hour.
RETRY = "retry: {maxAttempts: 2, initialBackoff: 1h, maxBackoff: 1h}"
# By the name of the handler: the function, and its mode.
MODES = {
    "plain": ("on_change", ""),
    "loop": ("on_change_async", ""),
    "keyed": ("on_change", "delivery: Keyed"),
    "resting": ("on_change", "debounce: 30ms"),
    "shared": ("on_change", "queue: {name: slow, concurrency: 1}"),
    "shared-loop": ("on_change_async", "queue: {name: slow}"),
    "shared-key": ("on_key", "mode: Reconcile, queue: {name: slow}"),
    "key": ("on_key", "mode: Reconcile"),
    "key-loop": ("on_key_async", "mode: Reconcile"),
    "key-resting": ("on_key", "mode: Reconcile, debounce: 30ms"),
    "key-finalizing": ("Finalizing", "mode: Reconcile, finalizer: demo.dev/done"),
}
# READ stands for what is read of the Secrets.
CODE = """
import declctl
from blackboard import tell as note

def _seen(ctx):
    note("begun", ctx.handler)
    note("seen", ctx.handler, sorted(each.name for each in READ))

def on_change(obj, ctx): _seen(ctx)
async def on_change_async(obj, ctx): _seen(ctx)
def on_key(request, ctx): _seen(ctx)
async def on_key_async(request, ctx): _seen(ctx)
class Finalizing:
    @declctl.hookimpl
    def declctl_reconcile(self, request, ctx): _seen(ctx)
    @declctl.hookimpl
    def declctl_finalize(self, request, ctx): _seen(ctx)
def on_time(schedule, ctx): _seen(ctx)
"""
BY_LISTER = CODE.replace("READ", 'ctx.listers["secrets"].list()')
BY_SNAPSHOT = CODE.replace("READ", 'ctx.snapshots["secrets"]')
NOTHING = CODE.replace("READ", "()")


def declare(rig: Any, rest: str = "", *, schedule: str = "every: 1s") -> None:
    """Declare a handler of each mode, and a schedule, each with `rest`."""
    rig.handlers = []
    more = f", {rest}" if rest else ""
    for name, (function, mode) in MODES.items():
        parts = ", ".join(filter(None, (mode, RETRY, rest)))
        rig.handler(name, entry=f"handlers:{function}", rest=parts)
    rig.more = f'  schedules: [{{name: tick, {schedule}, entryPoint: "handlers:on_time"{more}}}]\n'


def seen_by(rig: Any) -> dict[str, list[list[str]]]:
    """What the calls have read, by the handler."""
    found: dict[str, list[list[str]]] = {}
    for _, name, read in rig.told("seen"):
        found.setdefault(name, []).append(read)
    return found


def all_called(rig: Any, timeout: float = 30.0) -> None:
    """Return when each handler was called, and the schedule."""
    until("all are called", lambda: len(seen_by(rig)) == len(MODES) + 1, timeout=timeout)


def reads_of(rig: Any) -> set[tuple[str, ...]]:
    """What any call has read."""
    return {tuple(read) for reads in seen_by(rig).values() for read in reads}


def trigger(runs: Any) -> Any:
    """Call the schedule now."""

    async def call() -> str:
        return str(runs.runtime.trigger("tick"))

    return runs.runtime.machinery.submit(call()).result()


@pytest.fixture
def start(rig, config_map):
    """Start it with Secrets in the manifest, over a ConfigMap and two Secrets."""

    def begin(code: str, rest: str = "", policy: str = "", schedule: str = "every: 1s"):
        rig.resources.append(SECRETS)
        rig.reload_policy += policy
        declare(rig, rest, schedule=schedule)
        return rig.start(code, objects=[config_map("m"), secret("a"), secret("b")])

    return begin


EITHER = pytest.mark.parametrize(
    ("code", "rest"), [(BY_LISTER, ""), (BY_SNAPSHOT, INCLUDES)], ids=["listers", "snapshots"]
)


@pytest.mark.client_go(310, 330, 339, "Controller")
@EITHER
def test_no_mode_begins_before_the_first_sync(start, rig, sandbox, code, rest) -> None:
    """One cache is late: changes, keys and times wait for it, and then read all of it."""
    sandbox.faults.refuse(503, Match(resource="secrets"))
    runs = start(code, rest)
    until("the changes wait", lambda: all(runs.handler(name).queued for name in MODES))
    until("the list has failed", lambda: runs.resource("secrets").error)
    until("a time has come", lambda: runs.status().schedules[0].next_run < datetime.now(UTC))
    assert rig.told() == []
    assert runs.condition("Ready").message == "not synced: secrets"
    sandbox.faults.clear()
    all_called(rig, 60.0)
    assert reads_of(rig) == {("a", "b")}


@EITHER
def test_every_mode_waits_and_says_so_while_a_right_is_missing(
    start, rig, sandbox, code, rest, monkeypatch
) -> None:
    """Status and log name the cache and the reason, and the calls come as soon as the right is there."""
    for each in (invocations, schedules):
        monkeypatch.setattr(each, "LONGEST_WAIT_FOR_SYNC", 3600.0)
    sandbox.faults.refuse(403, Match(resource="secrets"), message="secrets is forbidden")
    runs = start(code, rest, policy=", warmTimeout: 30s", schedule="every: 24h")
    let_begin(runs)
    until("all handlers wait", lambda: all(runs.handler(name).retried for name in MODES))
    until("the schedule can be called", lambda: trigger(runs) == "Begun")
    until("the schedule waits", lambda: runs.status().schedules[0].last_error)
    assert seen_by(rig) == {}
    if rest:
        assert rig.told() == []  # a snapshot keeps the whole call from its begin
    why = "secrets has not synced (BackingOff: secrets: 403 Forbidden: secrets is forbidden)"
    for name in MODES:
        figures = runs.handler(name)
        # Adding a finalizer is a call of its own, which reads no cache.
        succeeded = figures.succeeded if name == "key-finalizing" else 0
        assert (figures.failed, figures.succeeded, why in figures.last_error) == (0, succeeded, True), name
    shown = runs.status().document()["schedules"][0]
    assert why in shown["lastError"]
    assert (shown["failed"], shown["succeeded"]) == (0, 0)
    lines = runs.log.events("warning")
    for name in (*MODES, "tick"):
        [line] = [line for line in lines if line.startswith(f"{name} waits")]
        assert why in line
    assert runs.log.events("error") == []
    sandbox.faults.clear()
    all_called(rig, 60.0)
    assert reads_of(rig) == {("a", "b")}


@EITHER
def test_an_edit_that_names_another_resource_waits_for_its_cache(
    rig, config_map, sandbox, code, rest
) -> None:
    """The old code goes on until the new cache has synced; the new code reads all of it."""
    declare(rig)
    runs = rig.run(NOTHING, objects=[config_map("m"), secret("a"), secret("b")])
    all_called(rig)
    runs.wait_idle()
    sandbox.faults.refuse(503, Match(resource="secrets"))
    rig.resources.append(SECRETS)
    declare(rig, rest)
    rig.write(code)
    with ThreadPoolExecutor(1) as threads:
        edit = threads.submit(runs.reload)
        until("the new cache is listed", lambda: sandbox.ledger.count("list", resource="secrets"))
        rig.board.told.clear()
        runs.sandbox.create(config_map("n"))
        all_called(rig)
        assert reads_of(rig) == {()}
        assert not edit.done()
        sandbox.faults.clear()
        assert edit.result(60.0).result == "Applied"
    runs.wait_idle()
    rig.board.told.clear()
    runs.sandbox.create(config_map("o"))
    all_called(rig)
    assert reads_of(rig) == {("a", "b")}


@EITHER
def test_an_edit_that_names_a_cache_that_never_synced_is_told_so(start, rig, sandbox, code, rest) -> None:
    """The resource was in the manifest, unread; from the edit on, calls wait for it, and then read all."""
    sandbox.faults.refuse(403, Match(resource="secrets"), message="secrets is forbidden")
    runs = start(NOTHING, policy=", warmTimeout: 30s")
    let_begin(runs)
    all_called(rig)
    until("no more waits", lambda: not any(runs.handler(n).queued + runs.handler(n).running for n in MODES))
    declare(rig, rest)
    rig.apply(code)
    rig.retired()  # with what the schedule has called
    rig.board.told.clear()
    runs.sandbox.patch("ConfigMap", "m", {"data": {"n": "1"}}, namespace="default")
    until("all wait", lambda: all(runs.handler(name).retried for name in MODES))
    until("the schedule waits", lambda: runs.status().schedules[0].last_error)
    assert seen_by(rig) == {}
    assert all("secrets has not synced" in runs.handler(name).last_error for name in MODES)
    sandbox.faults.clear()
    all_called(rig, 60.0)
    assert reads_of(rig) == {("a", "b")}
