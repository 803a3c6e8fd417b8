"""One object by its name: what `ctx.get` reads, and what `ctx.delete` deletes and takes for gone."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.errors import Conflict, Forbidden, InvalidWrite, NotFound, NotLeader, UndeclaredWrite
from declctl.objects import GroupVersionKind
from declctl.objects.plain import plain_view
from declctl.writes import CallScope, DeclaredWrites, propagation_of, reference_to

PATH = "/api/v1/namespaces/team-a/configmaps/settings"
MAP: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "settings", "namespace": "team-a", "uid": "u1", "labels": {"a": "b"}},
    "data": {"size": "3"},
}
OVERTAKEN = Conflict(409, "Conflict", "the UID in the precondition (u1) does not match the UID in record")


def test_an_object_is_read_as_the_server_has_it(scene, scope) -> None:
    """By one request without a version, in the namespace of the call; None if it is not there."""
    writer = scene.writer(declared=DeclaredWrites((GroupVersionKind.of("apps/v1", "Deployment"),)))
    assert scene.run(writer.get(reference_to("v1/ConfigMap", "settings"), scope())) is None
    scene.server.answers["GET", PATH] = MAP
    found = scene.run(writer.get(reference_to("v1/ConfigMap", "settings"), scope()))
    assert (found.key, found.uid, found.labels, found["data"]) == (
        "team-a/settings",
        "u1",
        {"a": "b"},
        MAP["data"],
    )
    with pytest.raises(TypeError):
        found["data"]["size"] = "4"
    assert scene.server.requests == [("GET", PATH, {}, None)] * 2
    assert scene.ledger.newest() == ()
    with pytest.raises(NotFound, match="no Pot"):
        scene.run(writer.get(reference_to("v1/Pot", "x"), scope()))


@given(
    st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(), st.lists, max_leaves=5)
)
def test_a_view_has_all_of_its_object(value: Any) -> None:
    """Also what no cache would have kept in this form."""
    metadata = {"name": "x", "annotations": {"a": "é"}, "uid": "u", "resourceVersion": "7"}
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"v": value}}
    view = plain_view(obj)
    assert view.to_dict() == obj == json.loads(json.dumps(obj))
    assert (view.key, view.resource_version, view.namespace, view.labels) == ("x", "7", None, {})


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({"given": "v1/ConfigMap", "name": "settings"}, {}),
        ({"given": "v1/ConfigMap", "name": "settings", "uid": "u1"}, {"preconditions": {"uid": "u1"}}),
        ({"given": MAP}, {"preconditions": {"uid": "u1"}}),
        ({"given": plain_view(MAP)}, {"preconditions": {"uid": "u1"}}),
        ({"given": {**MAP, "metadata": {"name": "settings"}}}, {}),
    ],
)
def test_a_delete_names_the_uid_that_it_knows(scene, scope, arguments, options) -> None:
    """An object that was made anew under the name is another one."""
    writer = scene.writer()
    assert scene.run(writer.delete(reference_to(**arguments), scope(), propagation="Orphan")) is True
    ((method, path, _, body),) = scene.server.requests
    assert (method, path) == ("DELETE", PATH)
    assert body == {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Orphan", **options}
    (record,) = scene.ledger.newest()
    assert (record.verb, record.result, record.origin.handler) == ("delete", "succeeded", "web")


@pytest.mark.parametrize(
    ("fault", "there", "ended"),
    [
        (NotFound(404, "NotFound", "not there"), None, False),
        (OVERTAKEN, None, False),
        (OVERTAKEN, "u2", False),
        (Conflict(409, "Conflict", "something else is in the way"), "u1", Conflict),
        (Forbidden(403, "Forbidden", "no"), "u1", Forbidden),
    ],
)
def test_what_is_gone_is_deleted(scene, scope, fault, there, ended) -> None:
    """Also if another object has its name by now. Any other refusal is raised."""
    scene.server.errors = [fault]
    if there:
        scene.server.answers["GET", PATH] = {**MAP, "metadata": {**MAP["metadata"], "uid": there}}
    work = scene.writer().delete(reference_to(MAP), scope())
    if ended is False:
        assert scene.run(work) is False
    else:
        with pytest.raises(ended):
            scene.run(work)


def test_a_delete_passes_the_gate(scene, scope) -> None:
    """A kind that is not declared, a process that does not lead, a dry run: as for an apply."""
    declared = DeclaredWrites((GroupVersionKind.of("apps/v1", "Deployment"),))
    with pytest.raises(UndeclaredWrite, match="kind: ConfigMap} to its `applies`"):
        scene.run(scene.writer(declared=declared).delete(reference_to(MAP), scope()))
    scene.leads = False
    with pytest.raises(NotLeader):
        scene.run(scene.writer().delete(reference_to(MAP), scope()))
    scene.leads = True
    assert scene.server.requests == []
    assert scene.run(scene.factory(dry_run=True).writer("web", 1).delete(reference_to(MAP), scope()))
    assert scene.server.requests[0][3]["dryRun"] == ["All"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Deployment", "x"), "'Deployment' is no kind: write it as apps/v1/Deployment, or v1/ConfigMap"),
        (("apps/Deployment", "x"), "'apps/Deployment' is no kind"),
        (("apps/v1 Deployment", "x"), "'apps/v1 Deployment' is no kind"),
        (("v1/ConfigMap",), "the name of the v1/ConfigMap is missing: write kind and name"),
        (("v1/ConfigMap", ""), "the name of the v1/ConfigMap is ''"),
        (("v1/ConfigMap", "x", 3), "the namespace of the v1/ConfigMap is 3"),
        ((MAP, "x"), "give either an object, or kind and name"),
        (({"kind": "ConfigMap", "metadata": {"name": "x"}},), "'None/ConfigMap' is no kind"),
        (({**MAP, "metadata": None},), "the name of the v1/ConfigMap is missing"),
        ((3, "x"), "a int names no object"),
    ],
)
def test_what_names_no_object_is_refused(arguments, message) -> None:
    """At the line of the call; nothing is sent."""
    with pytest.raises(InvalidWrite, match=message):
        reference_to(*arguments)


def test_a_namespace_and_a_propagation_have_to_fit(scene) -> None:
    """The server would answer 404 or 400, which says less."""
    with pytest.raises(
        InvalidWrite, match="propagation is Background, Foreground, Orphan or None, not 'all'"
    ):
        propagation_of("all")
    for reference, message in (
        (reference_to("v1/ConfigMap", "x"), "v1 ConfigMap x needs a namespace"),
        (
            reference_to("rbac.authorization.k8s.io/v1/ClusterRole", "r", "a"),
            "are cluster-scoped: leave it out",
        ),
    ):
        with pytest.raises(InvalidWrite, match=message):
            scene.run(scene.writer().get(reference, CallScope()))
