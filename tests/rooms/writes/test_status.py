"""The status: merged conditions, observed generations, times of transitions, few requests."""

import asyncio
import dataclasses
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from msgspec.structs import replace

from declctl.errors import Conflict, InvalidWrite, NoStatusSubresource, NotFound, ObjectGone
from declctl.kit.secret_values import secret_values
from declctl.objects import Condition, GroupVersionKind
from declctl.writes import (
    CallScope,
    DeclaredWrites,
    document_of,
    documents_of,
    object_of,
    status_arguments,
    status_change,
)
from declctl.writes.status import StatusChange

PATH = "/apis/example.dev/v1/namespaces/team-a/webapps/shop"
READY = {"type": "Ready", "status": "True", "reason": "Running"}
NOW, BEFORE = "2026-01-01T00:00:00Z", "2025-12-31T00:00:00Z"


@pytest.fixture
def patch(scene, scope):
    """Writes a status of an object by the controller of its kind, a writer that stays the same."""
    writer = scene.writer(declared=DeclaredWrites(status=True))

    def run(obj, conditions=(), *, seconds: float = 0.0, **fields):
        where = scope(obj)
        work = writer.patch_status(status_change(where, conditions, fields), where)
        return scene.run(work, seconds=seconds)

    return run


def condition(kind: str = "Ready", status: str = "True", **more) -> dict:
    """A condition as the server has it."""
    return {
        "type": kind,
        "status": status,
        "reason": "Running",
        "message": "",
        "observedGeneration": 7,
        "lastTransitionTime": BEFORE,
        **more,
    }


def bodies(scene) -> list[dict]:
    return [body["status"] for method, _, _, body in scene.server.requests if method == "PATCH"]


def test_a_condition_and_fields_are_sent_with_what_the_api_conventions_ask_for(scene, patch, view) -> None:
    """The handler says what it knows; the generation and the time are filled in."""
    written = patch(view(), [READY], phase="Running")
    ((method, path, params, body),) = scene.server.requests
    assert (method, path, params) == ("PATCH", f"{PATH}/status", {"fieldManager": "declctl/guard/web"})
    assert scene.server.content_types == ["application/merge-patch+json"]
    assert body["metadata"] == {"uid": "uid-shop", "resourceVersion": "50"}
    assert body["status"] == {
        "observedGeneration": 7,
        "phase": "Running",
        "conditions": [condition(lastTransitionTime=NOW)],
    }
    assert (written.key, written.resource_version, written.changed) == ("team-a/shop", "101", True)


def test_nothing_is_sent_when_nothing_changes(scene, patch, view) -> None:
    """A controller that reconciles for ever writes nothing for ever; the result has the whole object."""
    status = {"observedGeneration": 7, "phase": "Running", "conditions": [condition()]}
    written = patch(view(status=status), [READY], phase="Running")
    assert scene.server.requests == []
    assert written.obj == view(status=status).to_dict()
    assert (written.changed, written.resource_version, written.key) == (False, "50", "team-a/shop")
    assert [str(record.result) for record in scene.ledger.newest()] == ["skipped"]
    assert scene.written == []


def test_own_writes_are_known_before_the_cache_has_them(scene, patch, view) -> None:
    """A second call with the old object of the cache sends nothing, and a newer object counts again."""
    stored = patch(view(), [READY], phase="Running")
    known = patch(view(), [READY], phase="Running")
    assert known.obj["kind"] == "WebApp"  # so that an Event can be recorded about it
    assert known.obj["metadata"]["resourceVersion"] == stored.resource_version
    assert known.obj["status"] == stored.obj["status"]
    assert len(scene.server.requests) == 1
    patch(view(metadata={"resourceVersion": "102"}, status={}), [READY], phase="Running")
    assert len(scene.server.requests) == 2


def test_a_field_that_the_server_drops_is_not_sent_again(scene, patch, view) -> None:
    """A schema without observedGeneration prunes it: the same patch would go on for ever."""
    pruned = {"metadata": {"uid": "uid-shop", "resourceVersion": "101"}, "status": {"phase": "Running"}}
    scene.server.answers["PATCH", f"{PATH}/status"] = pruned
    patch(view(), phase="Running")
    patch(view(metadata={"resourceVersion": "101"}, status={"phase": "Running"}), phase="Running")
    assert len(scene.server.requests) == 1


def test_the_time_of_a_transition_moves_with_the_status_alone(scene, patch, view) -> None:
    """Alerts on `not Ready for 10 minutes` depend on it."""
    obj = view(status={"observedGeneration": 7, "conditions": [condition()]})
    patch(obj, [{**READY, "reason": "StillRunning"}])
    patch(obj, [{**READY, "status": "False"}])
    (same,), (moved,) = (body["conditions"] for body in bodies(scene))
    assert (same["reason"], same["lastTransitionTime"]) == ("StillRunning", BEFORE)
    assert (moved["status"], moved["lastTransitionTime"]) == ("False", NOW)


def test_conditions_of_others_stay(scene, patch, view) -> None:
    """Conditions are merged by type; the list is sent as a whole, with the version that it was made from."""
    others = condition("Synced", lastProbeTime=BEFORE)
    patch(view(status={"conditions": [others]}), [READY])
    assert bodies(scene)[0]["conditions"] == [others, condition(lastTransitionTime=NOW)]


def test_a_condition_that_was_written_meanwhile_is_not_lost(scene, patch, view) -> None:
    """Another controller was faster: the object is read, and its condition stays."""
    others = condition("Synced")
    scene.server.errors = [Conflict(409, "Conflict", "the object has been modified")]
    scene.server.answers["GET", PATH] = {
        "metadata": {"uid": "uid-shop", "resourceVersion": "77"},
        "status": {"conditions": [others]},
    }
    patch(view(), [READY], seconds=1.0)
    assert scene.server.sent() == [("PATCH", f"{PATH}/status"), ("GET", PATH), ("PATCH", f"{PATH}/status")]
    last = scene.server.requests[-1][3]
    assert last["metadata"]["resourceVersion"] == "77"
    assert last["status"]["conditions"] == [others, condition(lastTransitionTime=NOW)]
    assert scene.ledger.retries()["conflict"] == 1


def test_conflicts_end(scene, patch, view) -> None:
    """After six patches the handler fails, and is retried with its back-off."""
    scene.server.answers["PATCH", f"{PATH}/status"] = Conflict(409, "Conflict", "modified")
    scene.server.answers["GET", PATH] = {"metadata": {"uid": "uid-shop", "resourceVersion": "77"}}
    times: list[float] = []

    async def note() -> None:
        if scene.server.requests[-1][0] == "PATCH":
            times.append(scene.clock.monotonic())

    scene.server.during = note
    with pytest.raises(Conflict):
        patch(view(), [READY], seconds=60.0)
    pauses = [round(later - earlier, 3) for earlier, later in pairwise(times)]
    assert pauses == [0.01, 0.02, 0.04, 0.08, 0.16]  # else the others of a crowd meet again and again


@pytest.mark.parametrize("handlers", [1, 12], ids=["one hook that gathers", "many handlers"])
def test_calls_for_one_object_wait_for_each_other(scene, scope, view, handlers) -> None:
    """Fifty conditions at once: each is written by one request, and none is lost."""
    state = {"metadata": {"uid": "uid-shop", "resourceVersion": "50"}, "status": {}}

    async def store(method, path, *, params, body=None, content_type=""):
        scene.server.requests.append((method, path, params, body))
        await scene.clock.settle()
        if body["metadata"]["resourceVersion"] != state["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "modified")
        version = str(int(state["metadata"]["resourceVersion"]) + 1)
        state.update(metadata={"uid": "uid-shop", "resourceVersion": version}, status=body["status"])
        return dict(state)

    async def gather() -> None:
        factory, where = scene.factory(), scope(view())
        writers = [factory.writer(f"h{number}", 1) for number in range(handlers)]
        changes = [status_change(where, [{**READY, "type": f"T{number}"}], {}) for number in range(50)]
        await asyncio.gather(*(writers[n % handlers].patch_status(c, where) for n, c in enumerate(changes)))

    scene.server.request_json = store
    scene.run(gather())
    assert len(scene.server.requests) == 50
    assert len(state["status"]["conditions"]) == 50


@pytest.mark.parametrize(
    ("code", "uid", "below", "fault", "said"),
    [
        (409, "uid-2", ["status"], ObjectGone, "WebApp team-a/shop has been deleted and created again"),
        (404, None, ["status"], ObjectGone, "not found"),
        (404, "uid-shop", [], NoStatusSubresource, "have no status subresource"),
        (404, "uid-shop", ["status"], NotFound, "refused"),
    ],
)
def test_only_an_object_that_is_gone_ends_its_call(scene, patch, view, code, uid, below, fault, said) -> None:
    """A 404 may also mean that its definition has lost the subresource, or that the server is not ready."""

    async def change() -> None:
        scene.resources["WebApp"] = replace(scene.resources["WebApp"], subresources=frozenset(below))

    scene.server.during = change
    scene.server.errors = [Conflict(409, "Conflict", "") if code == 409 else NotFound(404, "", "refused")]
    if uid is not None:
        scene.server.answers["GET", PATH] = {"metadata": {"uid": uid, "resourceVersion": "77"}}
    with pytest.raises((NotFound, NoStatusSubresource), match=said) as raised:
        patch(view(), [READY], seconds=1.0)
    assert type(raised.value) is fault
    assert len(scene.server.sent("PATCH")) == 1


def test_fields_are_merged_and_removed(scene, patch, view) -> None:
    """As a JSON merge patch: only what changes is sent, and None removes."""
    status = {"observedGeneration": 7, "phase": "Running", "nodes": {"a": 1, "b": 2}, "count": 1}
    patch(view(status=status), phase=None, nodes={"b": 2}, missing=None, count=True)
    assert bodies(scene) == [{"phase": None, "count": True}]


def test_an_object_without_a_generation_gets_none(scene, patch, view) -> None:
    """Kinds that do not count their spec have nothing to observe."""
    patch(view(metadata={"generation": None}), [READY])
    assert bodies(scene) == [{"conditions": [{**READY, "message": "", "lastTransitionTime": NOW}]}]


def test_a_kind_without_a_status_subresource_is_named(scene, patch, view) -> None:
    """The server would answer 404 as if the object was missing; the definition is looked up again before."""
    why = "configmaps have no status subresource: add `subresources"
    with pytest.raises(NoStatusSubresource, match=why):
        patch(view(kind="ConfigMap"), [READY])
    assert scene.forgotten == [GroupVersionKind.of("v1", "ConfigMap")]
    assert scene.server.requests == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"status": "True", "reason": "A"}, "a condition needs a type, such as Ready; it is None"),
        (
            {**READY, "status": "Yes"},
            "the status of the condition Ready is True, False or Unknown, not 'Yes'",
        ),
        ({**READY, "type": "Re ady"}, "'Re ady' is no type of a condition: it is one CamelCase word"),
        ({**READY, "type": "T" * 317}, "is no type of a condition"),
        ({**READY, "reason": "R" * 1025}, "the reason of the condition Ready has 1,025 characters"),
        (
            {**READY, "lastTransitionTime": "nope"},
            "lastTransitionTime of the condition Ready is 'nope': leave",
        ),
        ({**READY, "lastTransitionTime": "2026-13-01T00:00:00Z"}, "lastTransitionTime of the condition"),
        ({**READY, "lastTransitionTime": None}, "lastTransitionTime of the condition Ready is None"),
        ({**READY, "observedGeneration": "7"}, "observedGeneration of the condition Ready is '7': leave"),
        ({**READY, "reason": "not running"}, "the condition Ready needs a reason, one CamelCase word"),
        ({**READY, "message": 3}, "the message of the condition Ready is a text, not a int"),
        ({**READY, "mesage": "x"}, "a condition has no field 'mesage': did you mean message?"),
        ("Ready", "a condition is a declctl.Condition, or a dict with type, status and reason, not a str"),
    ],
)
def test_a_condition_that_is_none_is_refused_with_advice(scope, given, message) -> None:
    with pytest.raises(InvalidWrite) as caught:
        status_change(scope(), [given], {})
    assert message in str(caught.value)


def test_conditions_may_have_booleans_and_no_type_twice(scope) -> None:
    """`status=True` is what Python has for it."""
    assert status_change(scope(), [{**READY, "status": True}], {}).conditions[0]["status"] == "True"
    with pytest.raises(InvalidWrite, match="the condition Ready is given twice"):
        status_change(scope(), [READY, READY], {})
    with pytest.raises(InvalidWrite, match="conditions is a list of conditions"):
        status_change(scope(), READY, {})


class Status(msgspec.Struct, kw_only=True, rename="camel"):
    """The status of a web app, as an author types it."""

    observed_generation: int = 0
    ready_replicas: int = 0
    addresses: dict[str, str] = {}
    failure: str | None = None
    conditions: list[Condition] = []


@dataclasses.dataclass
class PlainStatus:
    """The same by the standard library."""

    readyReplicas: int  # noqa: N815
    conditions: Sequence[Condition] = ()


def typed(where: CallScope, *given, **more) -> StatusChange:
    conditions, fields, is_whole = status_arguments(
        given[0] if given else (), more.pop("conditions", None), more
    )
    return status_change(where, conditions, fields, is_whole=is_whole)


def test_a_typed_status_is_written_as_a_whole(scene, scope, view) -> None:
    """All its fields; what a map in it has no more is removed. What the type does not have stays."""
    writer = scene.writer(declared=DeclaredWrites(status=True))
    there = {
        "addresses": {"a": "1", "b": "2"},
        "failure": "no",
        "other": 1,
        "conditions": [condition("Synced")],
    }
    where = scope(view(status=there))
    ready = Condition(type="Ready", status="True", reason="Running")
    status = Status(ready_replicas=3, addresses={"a": "3"}, conditions=[ready])
    scene.run(writer.patch_status(typed(where, status), where))
    assert bodies(scene) == [
        {
            "observedGeneration": 7,
            "readyReplicas": 3,
            "addresses": {"a": "3", "b": None},
            "failure": None,
            "conditions": [condition("Synced"), condition(lastTransitionTime=NOW)],
        }
    ]
    for conditions in ([ready], [READY]):
        plain = typed(where, PlainStatus(3, conditions))
        assert plain == typed(where, conditions, readyReplicas=3) or plain.is_whole
        assert (plain.fields, plain.conditions[0]["status"]) == ({"readyReplicas": 3}, "True")


def test_conditions_that_were_read_are_written_as_they_were_meant(scene, scope, view, patch) -> None:
    """One of another controller may be newer by now, and lack a reason; a changed copy gets its own time."""
    synced = {"type": "Synced", "status": "True", "lastProbeTime": None}  # no reason: it may not be written
    obj = view(status={"conditions": [synced, condition(observedGeneration=5)]})
    others, ready = msgspec.convert(obj["status"]["conditions"], list[Condition])
    where = scope(obj)
    assert typed(where, Status(conditions=[others, ready])).conditions == []
    (changed,) = typed(where, Status(conditions=[others, replace(ready, status="False")])).conditions
    patch(obj, [changed])
    patch(obj, [replace(ready, message="x")])
    first, second = (body["conditions"][1] for body in bodies(scene))
    assert first == condition(status="False", lastTransitionTime=NOW)
    assert second == condition(message="x", lastTransitionTime=NOW)


@pytest.mark.parametrize(
    ("given", "more", "message"),
    [
        (Status(), {"phase": "x"}, "a Status is the whole status, with its conditions: give no further"),
        ([READY], {"conditions": [READY]}, "the conditions are given twice"),
        (Condition(type="Ready", status="True"), {}, r"write \[Condition\(…\)\]"),
        ([Condition(type="Ready", status="True")], {}, "reason, one CamelCase word such as .*; it has none"),
        ([Condition(type="Ready", status="True", reason="no word")], {}, "needs a reason, one CamelCase"),
        (PlainStatus(object(), []), {}, "a PlainStatus can't be encoded: .*give its fields types that"),
    ],
)
def test_a_typed_status_that_can_not_be_written_is_refused(scope, given, more, message) -> None:
    with pytest.raises(InvalidWrite, match=message):
        typed(scope(), given, **more)


def test_a_call_without_an_object_has_no_status(scene) -> None:
    """A life-cycle hook, or an object that is gone."""
    why = r"ctx.patch_status writes the object of the call.*a life-cycle hook"
    with pytest.raises(InvalidWrite, match=why):
        status_change(CallScope(), [READY], {})
    with pytest.raises(InvalidWrite, match="team-a/shop is gone"):
        status_change(CallScope("team-a/shop"), [READY], {})


def _state(status: dict, version: str = "60") -> dict:
    """The object as the server answers, with this status."""
    return {"metadata": {"uid": "uid-shop", "resourceVersion": version}, "status": status}


@pytest.mark.parametrize("way", ["apply_set", "apply"])
def test_a_write_of_the_object_before_its_status_is_no_conflict(scene, scope, view, way) -> None:
    """`apply_set` marks the parent, which gets a newer version: the patch of the status names that one."""
    writer, obj = scene.writer(), view()
    where, others = scope(obj), condition("Synced")
    scene.server.answers["PATCH", PATH] = _state({"conditions": [others]})
    if way == "apply_set":
        child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
        scene.run(writer.apply_set(obj, documents_of([child]), where))
    else:
        own = {"apiVersion": "example.dev/v1", "kind": "WebApp", "metadata": {"name": "shop"}}
        scene.run(writer.apply(document_of(own), where))
    scene.run(writer.patch_status(status_change(where, [READY], {}), where))
    last = scene.server.requests[-1][3]
    assert last["metadata"] == {"uid": "uid-shop", "resourceVersion": "60"}
    assert last["status"]["conditions"] == [others, condition(lastTransitionTime=NOW)]
    assert scene.ledger.retries()["conflict"] == 0


def test_the_version_of_an_older_answer_is_not_taken(scene, scope, view) -> None:
    """A status that was written after the parent was marked stays the known one."""
    writer, obj = scene.writer(), view()
    where = scope(obj)
    scene.run(writer.patch_status(status_change(where, [], {"phase": "Running"}), where))  # version 101
    scene.server.answers["PATCH", PATH] = _state({}, "90")
    own = {"apiVersion": "example.dev/v1", "kind": "WebApp", "metadata": {"name": "shop"}}
    scene.run(writer.apply(document_of(own), where))
    scene.run(writer.patch_status(status_change(where, [], {"phase": "Running"}), where))
    assert [path for _, path in scene.server.sent("PATCH")].count(f"{PATH}/status") == 1


def test_a_child_does_not_change_what_is_known_of_the_object(scene, scope, view) -> None:
    """Only writes of the object of the call count: the version of a child is another object's."""
    writer, obj = scene.writer(), view()
    where = scope(obj)
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    scene.run(writer.apply(document_of(child), where))
    scene.run(writer.patch_status(status_change(where, [], {"phase": "Running"}), where))
    assert scene.server.requests[-1][3]["metadata"]["resourceVersion"] == "50"


def test_a_write_reads_the_object_by_a_view_of_its_own(scope, view) -> None:
    """The hook goes on with its view in another thread while the request is made: views are not shared."""
    obj = view()
    where = scope(obj)
    own = object_of(where, "patch_status")
    assert own is not obj
    assert own == obj
    assert status_change(where, [], {}).obj is not obj


def test_a_status_that_the_cache_lacks_is_read_before(scene, scope, view) -> None:
    """With `MetadataOnly` or a dropped status, conditions of others would be lost otherwise."""
    others = condition("Synced")
    scene.server.answers["GET", PATH] = _state({"conditions": [others]}, "50")
    writer, where = scene.writer(declared=DeclaredWrites(lacks_status=True)), scope(view())
    for _ in range(2):
        scene.run(writer.patch_status(status_change(where, [READY], {}), where))
    # The second call finds nothing to change in what the first one has written, and reads nothing.
    assert scene.server.sent() == [("GET", PATH), ("PATCH", f"{PATH}/status")]
    assert bodies(scene)[0]["conditions"] == [others, condition(lastTransitionTime=NOW)]


@pytest.mark.parametrize("reads_first", [False, True], ids=["cached", "read"])
def test_a_status_that_is_no_object_is_refused(scene, scope, view, reads_first) -> None:
    """A CustomResourceDefinition with `status: {type: string}`: the message says what to do."""
    scene.server.answers["GET", PATH] = {**_state({}), "kind": "WebApp", "status": "Running"}
    writer = scene.writer(declared=DeclaredWrites(lacks_status=reads_first))
    obj = view() if reads_first else view(status="Running")
    why = r"the status of this WebApp is no object.*write it by ctx\.client"
    with pytest.raises(InvalidWrite, match=why):
        scene.run(writer.patch_status(status_change(scope(obj), [READY], {}), scope(obj)))
    # A write of the object itself, such as the mark of a set, is no fault of the status.
    scene.server.answers["PATCH", PATH] = {**_state({}), "status": "Running"}
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    scene.run(writer.apply_set(obj, documents_of([child]), scope(obj)))
    assert scene.server.sent("PATCH")[0] == ("PATCH", PATH)


def test_conditions_that_are_no_list_are_refused(scene, patch, view) -> None:
    """Some kinds have a map of conditions, which a list would replace."""
    obj = view(status={"conditions": {"Ready": "True"}})
    with pytest.raises(InvalidWrite, match=r"status\.conditions of this WebApp is no list"):
        patch(obj, [READY])
    assert patch(obj, phase="Running").changed


def test_messages_have_no_value_of_a_secret_and_data_stays(scene, patch, view) -> None:
    """A message is for people, who may read no Secrets. A program needs the other fields as they are."""
    secret_values.remember({"stringData": {"token": "mark-of-a-status"}})
    said, hidden = "not mark-of-a-status", "not (hidden)"
    parts = {"message": said, "host": said, "steps": [{"message": said}, said]}
    patch(view(), [condition(message=said)], message=said, parts=parts)
    assert bodies(scene)[0] == {
        "observedGeneration": 7,
        "conditions": [condition(message=hidden)],
        "message": hidden,
        "parts": {"message": hidden, "host": said, "steps": [{"message": hidden}, said]},
    }


def test_the_longest_condition_is_written(scene, patch, view) -> None:
    """A message with a long text of an error is cut, and the handler does not fail because of it."""
    given = {
        "type": f"example.dev/{'T' * 304}",
        "status": "True",
        "reason": "R" * 1024,
        "message": "é" * 40_000,
        "lastTransitionTime": "2026-01-31T12:00:00.5+01:00",
        "observedGeneration": 3,
    }
    patch(view(), [given])
    assert bodies(scene)[0]["conditions"] == [{**given, "message": "é" * 32768}]


@pytest.mark.parametrize("declared", [None, True], ids=["not declared", "declared"])
def test_the_observed_generation_of_another_controller_is_left_alone(scene, scope, view, declared) -> None:
    """Tools wait by this field for the controller of an Argo Rollout: a guard of it must not set it."""
    writer = scene.writer(declared=DeclaredWrites(status=declared))
    obj = view(status={"observedGeneration": 6})
    scene.run(writer.patch_status(status_change(scope(obj), [READY], {}), scope(obj)))
    (status,) = bodies(scene)
    assert status.get("observedGeneration") == (7 if declared else None)
    assert [each["observedGeneration"] for each in status["conditions"]] == [7]
