"""`onImmutable: Recreate`: what is deleted and made again, and what never is."""

from typing import Any

import pytest

from declctl.errors import Conflict, Forbidden, InvalidRequest, NotFound
from declctl.objects import GroupVersionKind
from declctl.writes import DeclaredWrites, document_of, documents_of
from declctl.writes.apply_set import PART_OF, set_id
from declctl.writes.recreation import without_allocated
from tests.rooms.writes.conftest import make_view

DEPLOYMENT = GroupVersionKind.of("apps/v1", "Deployment")
PATH = "/apis/apps/v1/namespaces/team-a/deployments"
BODY: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {"selector": {"matchLabels": {"app": "new"}}},
}
IMMUTABLE = InvalidRequest(422, "Invalid", "spec.selector: Invalid value: {}: field is immutable")
TAKEN = Conflict(409, "AlreadyExists", "it exists")
GONE = NotFound(404, "NotFound", "it is gone")
OWN = {"manager": "declctl/guard/web", "operation": "Apply", "fieldsV1": {"f:spec": {}}}
CONTROLLER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "controller": True}
PARENT = {
    "apiVersion": "example.dev/v1",
    "kind": "WebApp",
    "name": "shop",
    "uid": "uid-shop",
    "controller": True,
}
MARKED = {PART_OF: set_id(make_view())}
AGAIN = ["PATCH web", "GET web", "POST", "DELETE web", "GET web", "PATCH web"]


def live(*entries: dict, **metadata: Any) -> dict:
    """The object as it stands in the way."""
    return {"metadata": {"name": "web", "uid": "old", "managedFields": [*entries], **metadata}}


def by(manager: str, *fields: str, **more: Any) -> dict:
    """An entry of somebody else."""
    return {
        "manager": manager,
        "operation": "Update",
        "fieldsV1": {f"f:{name}": {} for name in fields},
        **more,
    }


@pytest.fixture
def goes(scene):
    """What is deleted is gone at once."""

    async def goes() -> None:
        if scene.server.requests[-1][0] == "DELETE":
            scene.server.answers["GET", f"{PATH}/web"] = GONE

    scene.server.during = goes


@pytest.fixture
def apply(scene, scope):
    """Applies the Deployment while `there` is in its way; by one writer, so that it remembers."""
    declared = DeclaredWrites((DEPLOYMENT,), recreates=(GroupVersionKind.of("apps/v1beta1", "Deployment"),))
    own = scene.writer(declared=declared)

    def run(there: Any, *errors: Any, body: Any = BODY, writer: Any = own, seconds: float = 0.0) -> Any:
        scene.server.requests.clear()
        scene.server.answers["GET", f"{PATH}/web"] = there
        scene.server.errors = [IMMUTABLE, None, *errors]
        return scene.run(writer.apply(document_of(body), scope()), seconds=seconds)

    return run


def asked(scene) -> list[str]:
    """The requests, without the path of the collection."""
    return [f"{method} {path.removeprefix(PATH).strip('/')}".strip() for method, path in scene.server.sent()]


@pytest.mark.parametrize(
    "there",
    [
        live(OWN, ownerReferences=[PARENT]),
        live(OWN, by("kubectl", "spec"), ownerReferences=[PARENT], labels=MARKED),
        live(OWN),
        live(
            OWN, by("kube-controller-manager", "metadata", "status"), by("hpa", "spec", subresource="scale")
        ),
    ],
)
def test_an_object_of_the_handler_is_made_again(scene, goes, apply, there) -> None:
    """By its uid, after the server has said that it would take the new one; said once."""
    written = apply(there, TAKEN)
    assert asked(scene) == AGAIN
    _, _, check, deleted, _, made = scene.server.requests
    assert check[2]["dryRun"] == "All"
    assert check[3]["spec"] == BODY["spec"]
    assert (deleted[3]["preconditions"], deleted[3]["propagationPolicy"]) == ({"uid": "old"}, "Background")
    assert (written.verb, written.changed, made[3]["spec"]) == ("apply", True, BODY["spec"])
    (line,) = scene.log.events("warning")
    assert line.startswith(
        "web: Deployment team-a/web was deleted and made again (onImmutable: Recreate), as"
    )
    assert "spec.selector" in line


@pytest.mark.parametrize(
    "there",
    [
        live(),
        live(by("kubectl", "spec")),
        live({**OWN, "operation": "Update"}),
        live({**OWN, "manager": "declctl/guard/other"}),
        live(OWN, by("kubectl-create", "spec", "metadata")),
        live(OWN, by("helm", "data")),
        live(OWN, ownerReferences=[{**CONTROLLER, "uid": "another"}]),
        live(OWN, ownerReferences=[{**PARENT, "uid": "another"}]),
        live(OWN, by("other-operator", "spec"), ownerReferences=[PARENT]),
    ],
)
def test_an_object_of_somebody_else_is_never_deleted(scene, apply, there) -> None:
    """The refusal is raised as it came, with the reason."""
    with pytest.raises(
        InvalidRequest, match="field is immutable; it is not made again, as declctl/guard/web has"
    ):
        apply(there)
    assert asked(scene) == AGAIN[:2]


@pytest.mark.parametrize(
    ("errors", "body", "message", "requests"),
    [
        (
            [InvalidRequest(422, "Invalid", "spec.x: Required value")],
            BODY,
            "could not be made: 422 .*spec.x",
            3,
        ),
        ([Forbidden(403, "Forbidden", "exceeded quota")], BODY, "could not be made: .*exceeded quota", 3),
        ([Conflict(409, "Conflict", "no")], BODY, "could not be made", 3),
        ([], {**BODY, "metadata": {"name": "web", "uid": "old"}}, "as the apply names its uid or version", 1),
    ],
)
def test_an_object_that_could_not_be_made_is_never_deleted(
    scene, apply, errors, body, message, requests
) -> None:
    """Of an invalid object, the first refusal says no more than that of an immutable field."""
    with pytest.raises(InvalidRequest, match=message):
        apply(live(OWN), *errors, body=body)
    assert asked(scene) == AGAIN[:requests]


@pytest.mark.parametrize(
    ("spec", "asks"),
    [
        (
            {"clusterIP": "10.0.0.2", "ports": [{"port": 80, "nodePort": 30080}]},
            {"clusterIP": "10.0.0.2", "ports": [{"port": 80}]},
        ),
        (
            {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::2"], "loadBalancerClass": "x"},
            {"loadBalancerClass": "x"},
        ),
        ({"healthCheckNodePort": 31000, "ports": [{"nodePort": 30081}]}, {"ports": [{"nodePort": 30081}]}),
        ({"clusterIP": "None"}, {"clusterIP": "None"}),
        ({}, {}),
    ],
)
def test_ports_and_addresses_that_a_service_holds_itself_keep_it_from_nothing(spec, asks) -> None:
    """The server would find them in use, by the Service that is to be deleted."""
    ports = [{"port": 80, "nodePort": 30080}]
    held = {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": ports, "healthCheckNodePort": 31000}
    body = {"apiVersion": "v1", "kind": "Service", "spec": spec}
    assert without_allocated(body, {"spec": held}) == {**body, "spec": asks}
    assert without_allocated(BODY, {"spec": held}) == BODY


def test_an_object_that_is_refused_as_it_was_made_is_not_made_again(scene, goes, apply) -> None:
    """A webhook that changes the field would have it deleted in each call. Another edit is another thing."""
    made = live(OWN, uid="uid-of-web")
    apply(live(OWN), TAKEN)
    with pytest.raises(InvalidRequest, match="it was made so: somebody else, such as a webhook, changes it"):
        apply(made, TAKEN)
    other = {**BODY, "spec": {"selector": {}}}
    with pytest.raises(InvalidRequest, match="it was made again 0 s ago, and is so once in 60 s at most"):
        apply(made, TAKEN, body=other)
    scene.run(scene.clock.sleep(61), seconds=61)
    apply(made, TAKEN, body=other)
    assert asked(scene) == AGAIN


def test_an_object_that_stays_is_waited_for_and_made_by_a_later_call(scene, apply) -> None:
    """A finalizer holds it. The next call deletes nothing more."""
    held = live(OWN, finalizers=["example.dev/x"])
    with pytest.raises(InvalidRequest, match=r"held by example\.dev/x, and made again by a later call"):
        apply(held, TAKEN, seconds=7)
    assert asked(scene)[:4] == AGAIN[:4]
    assert 6 < len(asked(scene)) < 16
    ends = live(OWN, deletionTimestamp="2026-01-01T00:00:00Z")

    async def goes() -> None:
        if len(scene.server.requests) > 4:
            scene.server.answers["GET", f"{PATH}/web"] = GONE

    scene.server.during = goes
    apply(ends, TAKEN, seconds=1)
    assert asked(scene) == ["PATCH web", "GET web", "POST", "GET web", "GET web", "PATCH web"]


def test_without_the_field_the_refusal_names_it(scene, scope, apply) -> None:
    """It is the default. Any other refusal is raised as it is, whether it is declared or not."""
    writer = scene.writer(declared=DeclaredWrites((DEPLOYMENT,)))
    advice = r"write onImmutable: Recreate for \{apiVersion: apps/v1, kind: Deployment\} in the `applies`"
    with pytest.raises(InvalidRequest, match=advice):
        apply(live(OWN), writer=writer)
    for code, message in ((422, "spec.x: Required value"), (400, "field is immutable")):
        scene.server.errors = [InvalidRequest(code, "Invalid", message)]
        with pytest.raises(InvalidRequest) as caught:
            scene.run(writer.apply(document_of(BODY), scope()))
        assert caught.value.message == message


def test_a_member_of_a_set_is_made_again(scene, goes, scope, view) -> None:
    """Only if it is one of the set, and of this handler."""
    declared = DeclaredWrites((DEPLOYMENT,), recreates=(DEPLOYMENT,))
    obj = view()
    for owner in ("uid-another", "uid-shop"):
        there = live(OWN, labels={PART_OF: set_id(obj)}, ownerReferences=[{**PARENT, "uid": owner}])
        scene.server.answers["GET", f"{PATH}/web"] = there
        scene.server.requests.clear()
        # The mark, the create, the read, the apply, the next read, and the check of the new one.
        scene.server.errors = [None, TAKEN, None, IMMUTABLE, None, TAKEN]
        work = scene.writer(declared=declared).apply_set(obj, documents_of([BODY]), scope(obj))
        if owner != obj.uid:
            with pytest.raises(InvalidRequest, match="it is not made again"):
                scene.run(work)
            continue
        (written,) = scene.run(work).applied
        assert written.obj["metadata"]["labels"] == {PART_OF: set_id(obj)}
        assert scene.server.sent("DELETE") == [("DELETE", f"{PATH}/web")]


def test_a_dry_run_deletes_nothing(scene, scope) -> None:
    """It shows the delete and the object as it would be."""
    declared = DeclaredWrites((DEPLOYMENT,), recreates=(DEPLOYMENT,))
    scene.server.answers["GET", f"{PATH}/web"] = live(OWN)
    scene.server.errors = [IMMUTABLE, None, TAKEN]
    writer = scene.factory(dry_run=True).writer("web", 1, declared=declared)
    written = scene.run(writer.apply(document_of(BODY), scope()))
    assert (written.verb, written.dry_run, written.obj["spec"]) == ("apply", True, BODY["spec"])
    assert scene.server.requests[-1][3]["dryRun"] == ["All"]
    assert scene.server.sent("DELETE")
