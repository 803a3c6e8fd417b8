"""`declctl why`: the owners of fields, and the writes of this process that made them so."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from declctl.objects import Cause, FieldPathError, GroupVersionKind, ObjectKey
from declctl.runtime.reporting.why import explain_object, owned_fields
from declctl.writes import WriteOrigin, WriteRecord, WriteResult, WriteVerb

THEN = datetime(2026, 1, 1, tzinfo=UTC)
WEB, OTHER = "declctl/guard/web", "kubectl-client-side-apply"
CAUSE = Cause("Modified", "webapps", "team-a/shop", "Watch")


def entry(manager: str, fields: dict[str, Any], operation: str = "Apply", subresource: str = "") -> dict:
    """One entry of metadata.managedFields."""
    below = {"subresource": subresource} if subresource else {}
    return {
        "manager": manager,
        "operation": operation,
        "time": "2026-01-01T00:00:09Z",
        "fieldsV1": fields,
        **below,
    }


def obj(*entries: dict) -> dict:
    """An object with these managed fields."""
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
    """The answer about the object."""
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
    assert replicas.write is not None
    assert (replicas.write.generation, replicas.write.called_for) == (3, "team-a/shop")
    assert replicas.write.causes == ("Modified webapps team-a/shop (Watch)",)
    other = by_path["data"]
    assert (other.manager, other.handler, other.write) == (OTHER, None, None)


def test_the_write_is_the_newest_one_that_changed_something() -> None:
    """A reconciler applies the same again and again: the answer has the call that made the difference."""
    found = explained(
        obj(entry(WEB, {"f:a": {}})),
        record("5", generation=1),
        record("7", generation=2),
        record("7", generation=3),
        record("", generation=4, result=WriteResult.REFUSED, error="no"),
    )
    (owned,) = found.fields
    assert owned.write is not None
    assert owned.write.generation == 2
    assert [each.result for each in found.writes] == ["succeeded", "succeeded", "succeeded", "refused"]


def test_a_status_has_its_own_writes() -> None:
    """A patch of the status does not explain a field of the spec, and an apply no field of the status."""
    found = explained(
        obj(entry(WEB, {"f:spec": {}}), entry(WEB, {"f:status": {"f:phase": {}}}, "Update", "status")),
        record("5", generation=1),
        record("6", WriteVerb.PATCH_STATUS, generation=2),
    )
    generations = {each.path: each.write and each.write.generation for each in found.fields}
    assert generations == {"spec": 1, "status.phase": 2}


def test_a_write_from_before_is_named_by_its_handler() -> None:
    """The ledger does not have it: the process has started since. The field manager still says who it was."""
    (owned,) = explained(obj(entry(WEB, {"f:a": {}}))).fields
    assert (owned.handler, owned.write) == ("web", None)


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
    """And not taken for a field that nobody owns."""
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
    assert (found.exists, found.fields, [each.verb for each in found.writes]) == (
        False,
        (),
        ["apply", "delete"],
    )


def test_writes_of_another_object_of_the_name_are_left_out() -> None:
    """It was deleted and created again."""
    found = explained(obj(entry(WEB, {"f:a": {}})), record("5", uid="former"), record("8"))
    assert [each.resource_version for each in found.writes] == ["8"]


def test_the_answer_has_no_values() -> None:
    """They may be secrets, and who may read the ledger may not read those."""
    secret = {**obj(entry(WEB, {"f:data": {"f:password": {}}})), "data": {"password": "aHVudGVyMg=="}}
    from declctl.kit.documents import document_of

    assert "aHVudGVyMg==" not in json.dumps(document_of(explained(secret, record("7"))))
