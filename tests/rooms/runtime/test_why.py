"""`declctl why`: the owners of fields, and the writes of this process that made them so."""

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from declctl.kit.documents import document_of
from declctl.objects import Cause, FieldPathError, GroupVersionKind, ObjectKey
from declctl.objects.managed_fields import MOST_DIGESTS, applied_fields, owned_fields
from declctl.runtime.reporting.why import explain_object
from declctl.writes import WriteOrigin, WriteRecord, WriteResult, WriteVerb

THEN = datetime(2026, 1, 1, tzinfo=UTC)
WEB, OTHER = "declctl/guard/web", "kubectl-client-side-apply"
CAUSE = Cause("Modified", "webapps", "team-a/shop", "Watch")


def entry(manager: str, fields: dict[str, Any], operation: str = "Apply", **more: str) -> dict:
    head = {"manager": manager, "operation": operation, "time": "2026-01-01T00:00:09Z"}
    return {**head, "fieldsV1": fields, **more}


def obj(*entries: dict) -> dict:
    return {"metadata": {"uid": "u", "resourceVersion": "9", "managedFields": list(entries)}}


def record(version: str, verb: WriteVerb = WriteVerb.APPLY, **more: Any) -> WriteRecord:
    """A write of the handler web; `more` are its fields, and `generation` that of its call."""
    origin = WriteOrigin("web", more.pop("generation", 3), "r1", (CAUSE,), "team-a/shop")
    values: dict[str, Any] = {
        "time": THEN + timedelta(seconds=int(version or 0)),
        "verb": verb,
        "kind": GroupVersionKind.of("apps/v1", "Deployment"),
        "resource": "deployments.apps",
        "key": ObjectKey("team-a/web"),
        "uid": "u",
        "resource_version": version,
        "manager": WEB,
        "origin": origin,
        "result": WriteResult.SUCCEEDED,
        "seconds": 0.01,
        **more,
    }
    return WriteRecord(**values)


def explained(found: dict | None, *records: WriteRecord, field: str = "", managers: dict | None = None):
    return explain_object(
        found,
        records,
        kind="apps/v1 Deployment",
        resource="deployments.apps",
        key="team-a/web",
        managers=managers or {WEB: "web"},
        field=field,
    )


SPEC = {
    "f:spec": {
        "f:replicas": {},
        "f:template": {"f:spec": {"f:containers": {'k:{"name":"a"}': {".": {}, "f:image": {}}}}},
    }
}


def test_a_field_leads_to_its_handler_its_generation_and_the_cause() -> None:
    """Who set the replicas? The handler web, on generation 3, because a web app had changed."""
    found = explained(obj(entry(WEB, SPEC), entry(OTHER, {"f:data": {}}, "Update")), record("7"))
    by_path = {each.path: each for each in found.fields}
    assert set(by_path) == {"spec.replicas", "spec.template.spec.containers[name=a].image", "data"}
    replicas = by_path["spec.replicas"]
    assert (replicas.manager, replicas.operation, replicas.handler) == (WEB, "Apply", "web")
    assert (replicas.write.generation, replicas.write.called_for) == (3, "team-a/shop")
    assert replicas.write.causes == ("Modified webapps team-a/shop (Watch)",)
    other = by_path["data"]
    assert (other.manager, other.handler, other.write) == (OTHER, None, None)


def test_the_write_is_the_newest_one_that_changed_something() -> None:
    """A reconciler applies the same again and again. A write from before is named by its handler."""
    live = obj(entry(WEB, {"f:a": {}}))
    found = explained(
        live,
        record("5", generation=1),
        record("7", generation=2),
        record("7", generation=3),
        record("", generation=4, result=WriteResult.REFUSED, error="no"),
    )
    (owned,) = found.fields
    assert owned.write.generation == 2
    assert [each.result for each in found.writes] == ["succeeded", "succeeded", "succeeded", "refused"]
    (owned,) = explained(live).fields
    assert (owned.handler, owned.write) == ("web", None)


def test_a_status_has_its_own_writes() -> None:
    """A patch of the status does not explain a field of the spec, and an apply no field of the status.

    Writes to an object of the name that was deleted meanwhile explain nothing.
    """
    found = explained(
        obj(
            entry(WEB, {"f:spec": {}}),
            entry(WEB, {"f:status": {"f:phase": {}}}, "Update", subresource="status"),
        ),
        record("4", generation=9, uid="former"),
        record("5", generation=1),
        record("6", WriteVerb.PATCH_STATUS, generation=2),
    )
    generations = {each.path: each.write and each.write.generation for each in found.fields}
    assert generations == {"spec": 1, "status.phase": 2}
    assert [each.resource_version for each in found.writes] == ["5", "6"]


@pytest.mark.parametrize(
    ("field", "paths"),
    [
        ("spec.replicas", ["spec.replicas"]),
        ("spec.template", ["spec.template.spec.containers[name=a].image"]),
        ("spec.template.spec.containers[name=a].image", ["spec.template.spec.containers[name=a].image"]),
        ("spec.template.spec.containers[name=b]", []),
        ("spec.replicas.below", ["spec.replicas"]),
        ("status", []),
        ('metadata.labels["app.kubernetes.io/name"]', ['metadata.labels["app.kubernetes.io/name"]']),
    ],
)
def test_a_field_limits_the_answer(field: str, paths: list[str]) -> None:
    """To the field, those below it, and the owner of one above it."""
    labels = {"f:metadata": {"f:labels": {"f:app.kubernetes.io/name": {}}}}
    assert [each.path for each in explained(obj(entry(WEB, SPEC | labels)), field=field).fields] == paths


@pytest.mark.parametrize("field", ["spec[", "spec..a", "a["])
def test_a_text_that_is_no_field_is_refused(field: str) -> None:
    with pytest.raises(FieldPathError):
        explained(obj(entry(WEB, SPEC)), field=field)


def test_elements_of_lists_are_shown_by_their_keys_values_and_positions() -> None:
    """As the server has them: a map by its keys, a set by its values, an atomic list by positions."""
    fields = {
        "f:ports": {'k:{"port":80,"protocol":"TCP"}': {".": {}}},
        "f:finalizers": {'v:"a/b"': {}},
        "f:args": {"i:0": {}},
    }
    assert list(owned_fields(fields)) == [
        ("ports", "[port=80,protocol=TCP]"),
        ("finalizers", "[=a/b]"),
        ("args", "[0]"),
    ]


def test_an_object_that_is_gone_has_its_writes() -> None:
    """Who deleted it? The ledger knows, if it was this process."""
    found = explained(None, record("5"), record("", WriteVerb.DELETE))
    assert (found.exists, found.fields) == (False, ())
    assert [each.verb for each in found.writes] == ["apply", "delete"]


def test_an_object_without_managed_fields_is_told_apart_from_one_that_is_gone() -> None:
    """A sandbox has loaded it from a file: no server has noted who wrote it."""
    assert [explained(found).has_managers for found in (obj(), obj(entry(WEB, SPEC)), None)] == [
        False,
        True,
        True,
    ]


def test_the_answer_has_no_values() -> None:
    """They may be secrets, and who may read the ledger may not read those."""
    secret = {**obj(entry(WEB, {"f:data": {"f:password": {}}})), "data": {"password": "aHVudGVyMg=="}}
    assert "aHVudGVyMg==" not in json.dumps(document_of(explained(secret, record("7"))))


CREATED = "2026-01-01T00:00:01Z"


def settings(version: int, data: dict[str, str], *, at: int, metadata: dict | None = None) -> dict:
    """A ConfigMap of the handler web, which last changed it `at` so many seconds."""
    fields = {f"f:{name}": {} for name in data}
    owned = entry(WEB, {"f:data": fields}, time=f"2026-01-01T00:00:{at:02}Z")
    return {
        "metadata": {
            "uid": "u",
            "resourceVersion": str(version),
            "creationTimestamp": CREATED,
            "managedFields": [owned],
            **(metadata or {}),
        },
        "data": data,
    }


def wrote(answer: dict, generation: int, *, at: int, verb: WriteVerb = WriteVerb.APPLY) -> WriteRecord:
    since = THEN + timedelta(seconds=at)
    fields = applied_fields(answer, manager=WEB, operation=verb.operation, subresource="", since=since)
    version = answer["metadata"]["resourceVersion"]
    return record(version, verb, generation=generation, fields=fields, time=since)


def generation_of(live: dict, *records: WriteRecord, field: str) -> tuple[int | None, bool]:
    """The generation to which a field leads, and whether that is certain."""
    (owned,) = explained(live, *records, field=field).fields
    return None if owned.write is None else owned.write.generation, owned.exact


def test_a_field_leads_to_the_write_that_changed_it() -> None:
    """Generation 4 has added a field: the one of generation 3 still leads to generation 3."""
    first, second = settings(5, {"const": "1"}, at=1), settings(7, {"const": "1", "extra": "2"}, at=20)
    writes = wrote(first, 3, at=1), wrote(second, 4, at=20), wrote(second, 5, at=40)
    assert generation_of(second, *writes, field="data.const") == (3, True)
    assert generation_of(second, *writes, field="data.extra") == (4, True)
    # Its value is equal to a former one, which another write has replaced meanwhile.
    one, other, again = (settings(v, {"a": a}, at=v) for v, a in ((1, "x"), (20, "y"), (40, "x")))
    writes = wrote(one, 1, at=1), wrote(other, 2, at=20), wrote(again, 3, at=40)
    assert generation_of(again, *writes, field="data.a") == (3, True)


def test_a_write_that_may_have_set_a_field_is_not_certain() -> None:
    """Somebody had changed one of the fields, and the write put it back: which one is not known."""
    one, again = (settings(v, {"a": "x", "b": "y"}, at=v) for v in (1, 20))
    assert generation_of(again, wrote(one, 1, at=1), wrote(again, 2, at=20), field="data.a") == (2, False)
    # Another process has the same name, and wrote after it: that is none of these writes.
    other = settings(30, {"a": "z", "b": "y"}, at=30)
    writes = wrote(one, 1, at=1), wrote(again, 2, at=20)
    assert [each.elsewhere for each in explained(other, *writes).fields] == [True, False]
    may_be_own = (*writes, record("", result=WriteResult.FAILED)), (*writes, wrote(other, 3, at=30))
    assert not any(each.elsewhere for records in may_be_own for each in explained(other, *records).fields)
    earlier = settings(10, {"a": "z"}, at=10)  # read before that write
    assert not explained(earlier, *writes[1:]).fields[0].elsewhere
    # The process has started since: its first write is the newest one, and no more is said of it.
    live = settings(7, {"a": "x"}, at=40)
    assert generation_of(live, wrote(live, 2, at=40), field="data.a") == (2, False)


def test_a_write_that_failed_explains_no_field() -> None:
    """A refused, failed or cancelled write does not take the place of the one that was stored."""
    live = settings(5, {"a": "x"}, at=1)
    failed = [
        record("", generation=9, result=result)
        for result in (WriteResult.FAILED, WriteResult.CANCELLED, WriteResult.REFUSED)
    ]
    assert generation_of(live, wrote(live, 3, at=1), *failed, field="data.a") == (3, True)
    assert generation_of(live, *failed, field="data.a") == (None, False)


def test_a_finalizer_and_a_mark_of_one_manager_lead_to_their_own_writes() -> None:
    """Both are patches of the metadata by the same manager."""
    finalizers = {"f:finalizers": {".": {}, 'v:"a/b"': {}}}

    def live(version: int, metadata: dict, fields: dict) -> dict:
        owned = entry(WEB, {"f:metadata": fields}, "Update", time=f"2026-01-01T00:00:{version:02}Z")
        return settings(version, {}, at=1, metadata={"managedFields": [owned], **metadata})

    first = live(2, {"finalizers": ["a/b"]}, finalizers)
    marked = {"finalizers": ["a/b"], "labels": {"set": "1"}}
    second = live(20, marked, {**finalizers, "f:labels": {".": {}, "f:set": {}}})
    writes = (wrote(first, 1, at=2, verb=WriteVerb.PATCH), wrote(second, 2, at=20, verb=WriteVerb.PATCH))
    assert generation_of(second, *writes, field="metadata.finalizers") == (1, True)
    assert generation_of(second, *writes, field="metadata.labels") == (2, True)


def test_the_memory_of_a_write_is_bounded() -> None:
    """5,000 writes are remembered: 30 fields take less than 250 bytes, and the largest object 1.1 KB."""

    def size(count: int) -> int:
        live = settings(5, {f"k{at}": "v" * 100 for at in range(count)}, at=1)
        fields = wrote(live, 1, at=1).fields
        return sys.getsizeof(fields) + sys.getsizeof(fields.digests)

    assert size(30) < 250
    assert size(MOST_DIGESTS) < 1150
    assert size(MOST_DIGESTS + 1) < 100  # then the fields of this write are not known
    many = settings(5, {f"k{at}": "v" for at in range(MOST_DIGESTS + 1)}, at=1)
    assert generation_of(many, wrote(many, 3, at=1), field="data.k1") == (3, False)


@pytest.mark.parametrize("fields", [None, "x", {"f:data": "x"}, {"k:{": {}}, {"i:x": {}}])
def test_fields_of_another_form_do_not_make_a_write_fail(fields: object) -> None:
    """The server has stored it: then its fields are not known."""
    strange = entry(WEB, fields, time="yesterday")
    live = {"metadata": {"managedFields": [strange]}}
    assert applied_fields(live, manager=WEB, operation="Apply", subresource="", since=THEN) is None


PORTS = {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:name": {}}}
CONTAINERS = {
    'k:{"name":"web"}': {".": {}, "f:image": {}, "f:ports": PORTS},
    'k:{"name":"side"}': {".": {}, "f:image": {}},
}
HTTP = {"containerPort": 80, "name": "http", "protocol": "TCP"}
WEB_CONTAINER = {"name": "web", "image": "w:1", "ports": [HTTP]}
POD = {
    **obj(entry(WEB, {"f:spec": {"f:containers": CONTAINERS}})),
    "spec": {"containers": [{"name": "side", "image": "s:1"}, WEB_CONTAINER], "nodeName": "n"},
}
WEB_PORT = "spec.containers[name=web].ports[containerPort=80,protocol=TCP].name"


@pytest.mark.parametrize(
    ("field", "paths"),
    [
        ("spec.containers[0].image", ["spec.containers[name=side].image"]),
        ("spec.containers[1].image", ["spec.containers[name=web].image"]),
        ("spec.containers[*].image", ["spec.containers[name=side].image", "spec.containers[name=web].image"]),
        ("spec.containers[name=web].ports[containerPort=80]", [WEB_PORT]),
        ("spec.containers[name=web].ports[protocol=TCP,containerPort=80].name", [WEB_PORT]),
        ('spec.containers[name="web"].ports[0]', [WEB_PORT]),
        ("spec.nodeName", []),
    ],
)
def test_elements_are_named_as_users_write_them(field: str, paths: list[str]) -> None:
    """By a position, by `*`, and by some of the keys: nobody knows that a port has two."""
    found = explained(POD, field=field)
    assert ([each.path for each in found.fields], found.has_field) == (paths, True)


@pytest.mark.parametrize(
    ("field", "suggestion"),
    [
        ("spec.nodename", "spec.nodeName"),
        ("spec.containers[name=wbe]", "spec.containers[name=web]"),
        ("spec.containers[2]", ""),
        ("spec.containers[name=web].imag", "spec.containers[name=web].image"),
        ("containers[0].image", "spec.containers[0].image"),
        ("spec.qqq", ""),
        ("spec.nodeName.below", ""),
    ],
)
def test_a_field_that_is_not_there_is_told_apart_from_one_without_an_owner(field, suggestion) -> None:
    """A typing error does not look like a field that no manager owns, and has a suggestion."""
    found = explained(POD, field=field)
    assert (found.has_field, found.suggestion) == (False, suggestion)
