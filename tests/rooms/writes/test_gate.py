"""The gate: leadership, dry run, limits and retries, and what the ledger keeps of each write."""

import asyncio

import pytest

from declctl.errors import Conflict, Forbidden, NotLeader, ServerError, TooManyRequests, Unreachable
from declctl.objects import GroupVersionKind, ObjectKey
from declctl.runtime.fencing import FencedSender
from declctl.writes import (
    WriteBudget,
    WriteGate,
    WriteOrigin,
    WriteResult,
    WriteTotal,
    WriteVerb,
    document_of,
)
from declctl.writes.gate import ApiWrite
from declctl.writes.ledger import WriteLedger

MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1"}}
PATH = "/api/v1/namespaces/team-a/configmaps/settings"
SLOW_DOWN = "the server is busy"


def throttled(seconds: float | None) -> TooManyRequests:
    return TooManyRequests(429, "TooManyRequests", SLOW_DOWN, retry_after=seconds)


def conflict() -> Conflict:
    return Conflict(409, "Conflict", "somebody was faster")


@pytest.fixture
def apply(scene, scope):
    """Applies a ConfigMap beside the object of the call, while so many seconds pass."""

    def run(obj=MAP, *, seconds: float = 0.0, **more):
        return scene.run(scene.writer().apply(document_of(obj), scope(**more)), seconds=seconds)

    return run


def results(scene) -> list[str]:
    """What became of the writes, as the ledger has it."""
    return [str(record.result) for record in scene.ledger.newest()]


def test_a_write_is_in_the_ledger_with_its_origin(scene, apply) -> None:
    """`declctl why` finds who wrote an object, what for, and which version came of it."""
    written = apply(request_id="r1", causes=("a pod changed",))
    (record,) = scene.ledger.of_object("team-a/settings", kind=GroupVersionKind.of("v1", "ConfigMap"))
    assert (record.verb, record.resource, record.key) == (WriteVerb.APPLY, "configmaps", "team-a/settings")
    assert (
        (record.uid, record.resource_version)
        == (written.uid, written.resource_version)
        == ("uid-of-settings", "101")
    )
    assert record.manager == "declctl/guard/web"
    assert record.origin == WriteOrigin("web", 3, "r1", ("a pod changed",), "team-a/shop")
    assert (record.result, record.retries, record.error) == (WriteResult.SUCCEEDED, 0, "")
    assert scene.ledger.of_object("team-a/settings", uid="another") == ()
    assert scene.ledger.of_object("team-a/other") == ()
    assert scene.ledger.totals() == [WriteTotal("web", "apply", "succeeded", 1)]
    assert scene.written == [written]


def test_the_ledger_is_bounded_and_counts_all(scene, clock) -> None:
    """A controller that runs for months keeps the newest writes, and the sums of all."""
    ledger = WriteLedger(3)
    gate = WriteGate(scene.server, ledger, clock=clock)
    resource = scene.resources["ConfigMap"]

    async def write() -> None:
        for number in range(5):
            key = ObjectKey.of("team-a", f"m{number}")
            await gate.send(ApiWrite(WriteVerb.APPLY, resource, key, body={}), WriteOrigin("web", 1))

    scene.run(write())
    assert [record.key.name for record in ledger.newest()] == ["m2", "m3", "m4"]
    assert [record.key.name for record in ledger.newest(1)] == ["m4"]
    assert [total.count for total in ledger.totals()] == [5]


def test_a_process_that_does_not_lead_sends_nothing(scene, apply) -> None:
    """A follower that calls a handler by mistake changes nothing, and says so."""
    scene.leads = False
    with pytest.raises(NotLeader, match="apply of configmaps team-a/settings was not sent"):
        apply()
    assert scene.server.requests == []
    assert results(scene) == ["not_leader"]


def test_a_lease_that_is_lost_while_a_write_waits_stops_the_write(scene, apply) -> None:
    """Leadership is checked at the first byte of each request, not only before the write waits."""
    server, scene.server = scene.server, FencedSender(scene.server, lambda _: scene.refusal())
    server.errors = [throttled(5)]

    async def lose() -> None:
        scene.leads = False

    server.during = lose
    with pytest.raises(NotLeader):
        apply(seconds=10)
    assert len(server.requests) == 1


def test_a_dry_run_is_checked_by_the_server_and_its_answer_is_kept(scene, scope) -> None:
    """`--dry-run` shows what would be; nothing is stored, so nothing waits for it to come back."""
    writer = scene.factory(dry_run=True).writer("web", 1)
    written = scene.run(writer.apply(document_of(MAP), scope()))
    ((_, _, params, _),) = scene.server.requests
    assert params["dryRun"] == "All"
    assert written.dry_run
    assert [each.obj["data"] for each in scene.ledger.dry_runs()] == [{"a": "1"}]
    assert results(scene) == ["dry_run"]
    assert scene.written == []


@pytest.mark.parametrize(
    ("errors", "reason", "least", "most"),
    [
        ([throttled(3), throttled(4)], "too_many_requests", 7.0, 7.0),
        ([conflict(), conflict()], "conflict", 0.02, 1.0),
    ],
)
def test_what_another_request_mends_is_repeated(scene, apply, errors, reason, least, most) -> None:
    """A busy server says when; after a conflict, the result is the same. The handler notices nothing."""
    scene.server.errors = list(errors)
    assert apply(seconds=8).resource_version == "101"
    (record,) = scene.ledger.newest()
    assert (record.retries, len(scene.server.requests)) == (2, 3)
    assert least <= record.seconds <= most
    assert scene.ledger.retries() == {"too_many_requests": 0, "conflict": 0, reason: 2}


@pytest.mark.parametrize(
    ("answers", "requests"),
    [
        ([throttled(1)] * 9, 6),
        ([throttled(None)], 1),
        ([throttled(300)], 1),
        ([throttled(40), throttled(40)], 2),
        ([conflict()] * 9, 6),
    ],
)
def test_what_is_tried_again_is_not_tried_for_ever(scene, apply, answers, requests) -> None:
    """Six requests and a minute at most: then the handler fails, and is retried with its own back-off."""
    scene.server.errors = list(answers)
    with pytest.raises(type(answers[0])):
        apply(seconds=100)
    assert len(scene.server.requests) == requests
    assert results(scene) == ["conflict" if isinstance(answers[0], Conflict) else "throttled"]


@pytest.mark.parametrize(
    ("error", "precondition", "result"),
    [
        (Unreachable("refused"), {}, "failed"),
        (ServerError(500, "InternalError", "etcd"), {}, "failed"),
        (conflict(), {"uid": "1"}, "conflict"),  # the handler has named the state that it means
        (conflict(), {"resourceVersion": "1"}, "conflict"),
    ],
)
def test_what_no_request_mends_is_the_handlers_retry(scene, apply, error, precondition, result) -> None:
    """Nothing is repeated here: the handler is called again with its back-off."""
    scene.server.errors = [error]
    with pytest.raises(type(error)):
        apply({**MAP, "metadata": {"name": "settings", **precondition}}, seconds=10)
    assert len(scene.server.requests) == 1
    assert results(scene) == [result]
    assert scene.ledger.newest()[0].error == str(error)


RBAC = (
    'configmaps "settings" is forbidden: User "bot" cannot patch resource "configmaps" in API group "" in '
    'the namespace "team-a"'
)
RULE = (
    'Grant it by a Role of the namespace team-a with the rule {apiGroups: [""], resources: ["configmaps"], '
    'verbs: ["create", "patch"]}'
)


@pytest.mark.parametrize(("message", "rule"), [(RBAC, RULE), ("exceeded quota: maps", None)])
def test_a_missing_right_is_named_as_a_rule(scene, apply, message, rule) -> None:
    """The message can be pasted into a Role; a refusal that is not RBAC's stays as it is."""
    scene.server.errors = [Forbidden(403, "Forbidden", message)]
    with pytest.raises(Forbidden) as caught:
        apply()
    assert caught.value.message == (message if rule is None else f"{message}. {rule}")
    assert results(scene) == ["refused"]


def sending(scene, gate: WriteGate, handler: str = "web") -> asyncio.Future[object]:
    """The apply of a ConfigMap, on its way."""
    key = ObjectKey.of("team-a", handler)
    write = ApiWrite(WriteVerb.APPLY, scene.resources["ConfigMap"], key, body={})
    return asyncio.ensure_future(gate.send(write, WriteOrigin(handler, 1)))


async def test_another_rate_is_for_all_writes_from_then_on(scene, clock) -> None:
    """`spec.writes` of a reload holds for the writes that wait, too; the same again gives no new burst."""
    budget = WriteBudget(1, 1, clock=clock)
    gate = WriteGate(scene.server, scene.ledger, clock=clock, budget=budget)
    counts: list[int] = []
    tasks: list[asyncio.Future[object]] = []
    for rate, number in (((1, 1), 3), ((0, 1), 20), ((1, 3), 5), ((1, 3), 1)):
        budget.limit(*rate)
        tasks += [sending(scene, gate) for _ in range(number)]
        await clock.settle()
        counts.append(len(scene.server.requests))
    await clock.advance(3)
    await asyncio.gather(*tasks)
    assert counts == [1, 23, 26, 26]


@pytest.mark.parametrize("waits", ["for a token", "for the answer", "for Retry-After"])
async def test_a_cancelled_write_is_in_the_ledger(scene, clock, waits) -> None:
    """The handler's time is over: the request ends with it, and what became of it is not known."""
    budget = WriteBudget(1, 1, clock=clock)
    if waits == "for a token":
        assert budget.try_take()
    gate = WriteGate(scene.server, scene.ledger, clock=clock, budget=budget)

    async def never() -> None:
        await asyncio.Event().wait()

    if waits == "for the answer":
        scene.server.during = never
    elif waits == "for Retry-After":
        scene.server.errors = [throttled(9)]
    task = sending(scene, gate)
    await clock.settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert results(scene) == ["cancelled"]
    assert len(scene.server.requests) == (0 if waits == "for a token" else 1)


@pytest.mark.parametrize(("awaits", "based_on"), [(False, "50"), (True, "")])
def test_a_write_tells_the_version_that_it_is_based_on(scene, clock, awaits, based_on) -> None:
    """Unless its event has to lead to a call, as that of a new finalizer: it is not recognised then."""
    gate = WriteGate(scene.server, scene.ledger, clock=clock)
    body = {"metadata": {"resourceVersion": "50"}}
    key = ObjectKey.of("team-a", "m")
    write = ApiWrite(WriteVerb.PATCH, scene.resources["ConfigMap"], key, body=body, awaits_event=awaits)
    assert scene.run(gate.send(write, WriteOrigin("web", 1))).based_on == based_on


@pytest.mark.parametrize("may_read", [True, False])
def test_the_live_object_is_read_before_a_write_if_it_is_wanted(scene, clock, may_read) -> None:
    """Without the right to read it, the write is sent all the same."""
    seen = []
    gate = WriteGate(
        scene.server,
        scene.ledger,
        clock=clock,
        wants_live=lambda origin: origin.handler == "web",
        on_written=lambda *noted: seen.append(noted[2]),
    )
    key = ObjectKey.of("team-a", "m")
    write = ApiWrite(WriteVerb.PATCH, scene.resources["ConfigMap"], key, body={"data": {}})
    scene.server.answers["GET", write.path] = {"metadata": {"uid": "u"}}
    if not may_read:
        scene.server.errors.append(Forbidden(403, "Forbidden", "no"))
    scene.run(gate.send(write, WriteOrigin("web", 1)))
    scene.run(gate.send(write, WriteOrigin("other", 1)))
    assert [each is not None for each in seen] == [may_read, False]
    assert [each[0] for each in scene.server.requests] == ["GET", "PATCH", "PATCH"]


def test_writes_of_the_same_content_have_one_digest(scene, clock) -> None:
    """A fight is found by it: the version and the times of transitions are no content."""
    gate = WriteGate(scene.server, scene.ledger, clock=clock, on_written=lambda *_: None)

    def digest(version: str, since: str, status: str) -> int:
        conditions = [{"type": "Ready", "status": status, "lastTransitionTime": since}]
        body = {"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}}
        key = ObjectKey.of("team-a", "m")
        write = ApiWrite(WriteVerb.PATCH_STATUS, scene.resources["Deployment"], key, body=body)
        return scene.run(gate.send(write, WriteOrigin("web", 1))).digest

    assert digest("1", "a", "True") == digest("2", "b", "True") != digest("3", "c", "False")
