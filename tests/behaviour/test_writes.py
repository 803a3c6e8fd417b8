"""Handlers that write: `def` and `async def`, throttled, refused, cancelled, in a dry run, at the end."""

import asyncio

import pytest

from declctl.sandbox.faults import Match
from declctl.testing import until

HEAD = """
from blackboard import tell as note
def child(obj, name):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"of": obj.name}}
"""
ASYNC = (
    HEAD
    + """
async def tell(change, ctx):
    if change.obj.name == "a":
        written = await ctx.apply(child(change.obj, "made"))
        note("written", str(written.key), written.uid, written.resource_version)
"""
)
SYNC = ASYNC.replace("async def", "def").replace("await ctx.apply", "ctx.sync.apply")


def totals(controller) -> dict:
    """The counts of writes by verb and result."""
    return {(total.verb, total.result): total.count for total in controller.status().writes}


@pytest.mark.parametrize("mode", ["Event", "Reconcile"])
@pytest.mark.parametrize("code", [ASYNC, SYNC], ids=["async", "sync"])
def test_a_hook_writes_and_gets_what_was_written(rig, config_map, sandbox, code, mode) -> None:
    """`await ctx.apply` and `ctx.sync.apply` return the key, the uid and the version of the object.

    It is under the field manager of its handler, and the status counts the write.
    """
    rig.handler("tell", rest=f"mode: {mode}")
    controller = rig.run(code if mode == "Event" else code.replace("change", "request"))
    sandbox.create(config_map("a"))
    until("it is written", lambda: rig.told("written"))
    (made,) = [each for each in sandbox.objects("ConfigMap") if each["metadata"]["name"] == "made"]
    assert rig.told("written")[0][1:] == (
        "default/made",
        made["metadata"]["uid"],
        made["metadata"]["resourceVersion"],
    )
    (entry,) = made["metadata"]["managedFields"]
    assert entry["manager"].endswith("/tell")
    controller.wait_idle()
    assert totals(controller) == {("apply", "succeeded"): 1}
    assert [each["handler"] for each in controller.status().document()["writes"]] == ["tell"]
    # The page draws an arrow for each kind, and for what has called a reconciler.
    (kind,) = controller.status().kind_writes
    assert (kind.handler, str(kind.kind), kind.verb, kind.count) == ("tell", "v1 ConfigMap", "apply", 1)
    assert controller.handler("tell").own_keys >= (mode == "Reconcile")
    assert controller.handler("tell").failed == 0


def test_the_rate_of_writes_changes_with_a_reload(rig, config_map, sandbox) -> None:
    """With one write in 1,000 seconds, the second one would come after the end of the test."""
    rig.handler("tell")
    rig.more = "  writes: {qps: 0.001, burst: 1}\n"
    controller = rig.run(ASYNC.replace('== "a"', 'in "ab"').replace('"made"', 'f"of-{change.obj.name}"'))
    for name in "ab":
        sandbox.create(config_map(name))
    until("the second one waits", lambda: controller.status().waiting_writes)
    rig.more = "  writes: {qps: 0}\n"
    rig.write()
    assert [str(step) for step in controller.reload().steps] == ["~writes"]
    until("the second one is written", lambda: totals(controller).get(("apply", "succeeded")) == 2)


def test_the_timeout_of_a_hook_cancels_its_request(rig, config_map, sandbox) -> None:
    """The server is slow: the call ends at its timeout, and so does the request."""
    rig.handler("tell", rest="timeout: 200ms, retry: {maxAttempts: 1}")
    controller = rig.run(ASYNC)
    sandbox.faults.delay(30, Match("patch", "configmaps"), times=1)
    sandbox.create(config_map("a"))
    until("it is given up", lambda: controller.handler("tell").failed == 1)
    until("the request has ended", lambda: totals(controller) == {("apply", "cancelled"): 1})


MISUSE = (
    HEAD
    + """
def tell(obj, ctx):
    try:
        ctx.apply(child(obj, "made"))  # noqa: DCL097
    except RuntimeError as error:
        note("refused", str(error))
async def tell_async(obj, ctx):
    try:
        ctx.sync.apply(child(obj, "made"))  # noqa: DCL097
    except RuntimeError as error:
        note("refused", str(error))
"""
)


def test_the_wrong_form_for_a_hook_says_which_one_is_right(rig, config_map, sandbox) -> None:
    """A `def` hook would forget to await, and an `async def` hook would block all others."""
    rig.handler("tell")
    rig.handler("tell-async", entry="handlers:tell_async")
    rig.run(MISUSE, objects=[config_map("a")])
    until("both are refused", lambda: len(rig.told("refused")) == 2)
    assert sorted(row[1] for row in rig.told("refused")) == [
        "ctx.apply has to be awaited, so it is for `async def` hooks; a `def` hook has ctx.sync.apply",
        "ctx.sync.apply would block the loop of all `async def` hooks: write `await ctx.apply(…)`",
    ]
    assert sandbox.ledger.count("patch") == 0


MANY = (
    HEAD
    + """
import asyncio
async def tell(obj, ctx):
    if obj.name == "a":
        applies = [ctx.apply(child(obj, f"made-{n}")) for n in range(40)]
        tasks = [asyncio.create_task(each) for each in applies[:20]]
        written = await asyncio.gather(*tasks, *applies[20:])
        note("keys", len({each.key for each in written}))
"""
)


def test_writes_of_one_call_do_not_wait_for_each_other(rig, config_map, sandbox) -> None:
    """Forty writes to a slow server take as long as one."""
    rig.handler("tell")
    rig.run(MANY)
    sandbox.faults.delay(0.5, Match("patch", "configmaps"))
    sandbox.create(config_map("a"))
    until("all are written", lambda: rig.told("keys", 40), timeout=10)


LIFECYCLE = (
    HEAD
    + """
import declctl
@declctl.hookimpl
def declctl_event(change): ...
@declctl.hookimpl
def declctl_prepare(ctx):
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "made"}}
    note("role", str(ctx.sync.apply(role).key))
    try:
        ctx.sync.patch_status(phase="x")
    except declctl.DeclctlError as error:
        note("refused", type(error).__name__, str(error))
"""
)


def test_a_life_cycle_hook_may_apply(rig, sandbox) -> None:
    """It has no object, so it names what it writes, and has no status."""
    rig.handler("tell", entry="handlers")
    rig.run(LIFECYCLE)
    assert rig.told("role") == [("role", "made")]
    ((_, name, message),) = rig.told("refused")
    assert (name, message.rpartition(": ")[2]) == ("InvalidWrite", "a life-cycle hook is about no object")


def test_a_write_after_the_end_of_the_process_is_refused(rig, config_map, sandbox) -> None:
    """A thread of a handler that outlives the process gets an error, and does not hang."""
    from declctl.errors import WriteError
    from declctl.runtime.handling.context import HandlerWrites, SyncWrites
    from declctl.writes import CallScope

    class NoWriter:
        async def apply(self, document, scope, *, force):
            raise AssertionError

    loop = asyncio.new_event_loop()
    loop.close()
    writes = SyncWrites(HandlerWrites(NoWriter(), CallScope("default/a"), loop))
    with pytest.raises(WriteError, match="the write was not sent: the process ends"):
        writes.apply(config_map("made"))


FORGOTTEN = (
    HEAD
    + """
import asyncio
async def tell(obj, ctx):
    if obj.name == "a":
        ctx.apply({**child(obj, "made"), "metadata": {"name": "made", "namespace": "other"}})
        one = ctx.apply(child(obj, "awaited-later"))
        await asyncio.gather(ctx.apply(child(obj, "gathered")), asyncio.wait_for(one, 10))
        note("done")
"""
)


@pytest.mark.parametrize("fails", [False, True])
def test_a_write_that_a_hook_forgets_to_await_is_named(rig, config_map, sandbox, capfd, fails) -> None:
    """The call counts as a success, whatever becomes of the write: the log has the handler and its line."""
    rig.handler("tell")
    controller = rig.run(FORGOTTEN)
    if not fails:
        sandbox.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    sandbox.create(config_map("a"))
    until("the writes that were awaited have ended", lambda: rig.told("done"))
    until("the log says it", lambda: controller.log.find("was not awaited"))
    (line,) = [each for each in controller.log.lines if "was not awaited" in each.event]
    assert line.event.startswith("ctx.apply (")
    assert "handlers.py:8 in tell) was not awaited" in line.event
    assert ("and it has failed: 404" in line.event) == fails
    assert line.fields["handler"] == "tell"
    controller.wait_idle()
    assert "never retrieved" not in capfd.readouterr().err


RECORDS = """
from blackboard import tell as note
class Text(str): pass
def tell(change, ctx):
    note("told", change.obj.name)
    ctx.record_event(change.obj, {reason}, {message})
"""


@pytest.mark.parametrize(
    ("reason", "message", "fault"),
    [
        ('ValueError("x")', '"m"', "TypeError: the reason of an event is a text, not a ValueError"),
        ('"Failed"', 'ValueError("x")', "TypeError: the message of an event is a text, not a ValueError"),
        ('"Failed"', "None", "TypeError: the message of an event is a text, not a NoneType"),
        ('Text("Failed")', '"\\udcff"', None),
    ],
)
def test_what_is_no_event_ends_nothing_but_that_call(rig, config_map, reason, message, fault) -> None:
    """An exception in the place of its text: the call fails, and other objects are told."""
    rig.handler("tell", rest="retry: {maxAttempts: 1}")
    runs = rig.run(RECORDS.format(reason=reason, message=message))
    for name in ("a", "b"):
        runs.sandbox.create(config_map(name))
        until("it is told", lambda name=name: rig.told("told", name))
    runs.wait_idle()
    last = runs.handler("tell").last_error
    assert last == (None if fault is None else f"default/b: {fault}")
    if fault is None:
        until("both are answered", lambda: sum(_counts(runs)) == 2)


def _counts(runs) -> tuple[int, int]:
    figures = runs.status().recorded_events
    return figures.posted, figures.failed
