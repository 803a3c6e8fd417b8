"""The status of kinds of Kubernetes: another controller writes it, and its conditions have fewer fields."""

import json

import pytest

from declctl.decoding import Projection
from declctl.objects import GroupVersionKind, ObjectView, Resource
from declctl.writes import status_change

GUARDED = {"type": "example.dev/Guarded", "status": "True", "reason": "Spread", "message": "on 2 nodes"}
NOW, BEFORE = "2026-01-01T00:00:00Z", "2025-12-31T00:00:00Z"
STORED = {**GUARDED, "lastUpdateTime": None, "lastTransitionTime": BEFORE}
AVAILABLE = {"type": "Available", "status": "True", "lastUpdateTime": BEFORE, "lastTransitionTime": BEFORE}


@pytest.fixture
def patch(scene, scope):
    """Writes a status by a writer that stays the same."""
    writer = scene.writer()

    def run(obj, *conditions, **fields):
        where = scope(obj)
        return scene.run(writer.patch_status(status_change(where, conditions, fields), where))

    return run


@pytest.fixture
def deployment(scene):
    """A Deployment of generation 7, or an object of another kind, as the cache has it."""

    def of(status: dict, api_version: str = "apps/v1", kind: str = "Deployment"):
        gvk = GroupVersionKind.of(api_version, kind)
        scene.resources[kind] = Resource(gvk, f"{kind.lower()}s", True, subresources=frozenset({"status"}))
        metadata = {"name": "shop", "namespace": "team-a", "uid": "uid-shop", "generation": 7}
        metadata["resourceVersion"] = "50"
        body = {"apiVersion": api_version, "kind": kind, "metadata": metadata, "status": status}
        record = Projection(api_version=api_version, kind=kind).record(json.dumps(body).encode())
        assert record is not None
        return ObjectView(record)

    return of


def sent(scene) -> list[dict]:
    return [body["status"] for method, _, _, body in scene.server.requests if method == "PATCH"]


@pytest.mark.parametrize(
    ("api_version", "kind"), [("apps/v1", "Deployment"), ("networking.k8s.io/v1", "Ingress"), ("v1", "Pod")]
)
def test_the_generation_that_its_own_controller_has_observed_is_not_touched(
    scene, patch, deployment, api_version, kind
) -> None:
    """`kubectl rollout status` would call a rollout successful that has not begun."""
    patch(deployment({"observedGeneration": 6, "conditions": [AVAILABLE]}, api_version, kind), GUARDED)
    (status,) = sent(scene)
    assert status == {
        "conditions": [AVAILABLE, {**GUARDED, "observedGeneration": 7, "lastTransitionTime": NOW}]
    }


def test_a_handler_may_name_the_field(scene, patch, deployment) -> None:
    """One that replaces the controller of a kind."""
    patch(deployment({"observedGeneration": 6}), observedGeneration=7)
    assert sent(scene) == [{"observedGeneration": 7}]


@pytest.mark.parametrize("message", ["on 2 nodes", ""])
def test_a_condition_that_is_there_without_a_generation_is_not_sent_again(
    scene, patch, deployment, message
) -> None:
    """The server drops the field of such kinds: each call after a change of the others would send it."""
    stored = {name: value for name, value in {**STORED, "message": message}.items() if value != ""}
    done = patch(deployment({"conditions": [stored, AVAILABLE]}), {**GUARDED, "message": message})
    assert (sent(scene), done.changed) == ([], False)


def test_a_condition_that_says_something_else_is_sent(scene, patch, deployment) -> None:
    """With the time of its last transition, and the fields that the kind has beside ours."""
    patch(deployment({"conditions": [STORED]}), {**GUARDED, "message": "on 3 nodes"})
    (condition,) = sent(scene)[0]["conditions"]
    assert condition == {**STORED, "message": "on 3 nodes", "observedGeneration": 7}


def test_an_older_generation_is_replaced(scene, patch, deployment) -> None:
    """Kinds whose conditions have the field, such as a PodDisruptionBudget, keep it current."""
    stored = {**STORED, "observedGeneration": 6}
    patch(deployment({"conditions": [stored]}, "policy/v1", "PodDisruptionBudget"), GUARDED)
    assert sent(scene)[0]["conditions"] == [{**stored, "observedGeneration": 7}]


def test_a_status_that_the_server_leaves_as_it_is_has_not_changed(scene, patch, deployment) -> None:
    """It answers with the version that it had: all that differed were fields that the kind does not have."""
    metadata = {"uid": "uid-shop", "resourceVersion": "50"}
    path = "/apis/apps/v1/namespaces/team-a/deployments/shop/status"
    scene.server.answers["PATCH", path] = {"metadata": metadata, "status": {"replicas": 1}}
    assert not patch(deployment({"replicas": 1}), unknown=1).changed
    assert len(sent(scene)) == 1
