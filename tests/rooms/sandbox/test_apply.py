"""Server-side apply: ownership, removal, conflicts."""

import copy

import pytest

from declctl.errors import SandboxError
from declctl.sandbox.patches import APPLY_PATCH, Patch
from declctl.sandbox.remover import Target, Write
from tests.rooms.sandbox.shapes import config_map, definition, pod, store, widget


def apply(cluster, obj, manager="one", *, force=False):
    metadata = obj["metadata"]
    target = Target(cluster.kind(obj["kind"]), metadata.get("namespace", ""), metadata["name"])
    return cluster.writer.patch(target, Patch(APPLY_PATCH, obj, force=force), Write(manager=manager))[0]


def conflict(call):
    with pytest.raises(Exception, match="Apply failed") as caught:
        call()
    return caught.value


def owners(obj):
    return {(entry["manager"], entry["operation"]) for entry in obj["metadata"].get("managedFields", ())}


def test_apply_creates_and_owns_and_a_second_time_changes_nothing(cluster):
    created = apply(cluster, config_map("a", x="1"))
    (entry,) = created["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("one", "Apply")
    assert entry["fieldsV1"] == {"f:data": {"f:x": {}}}
    assert apply(cluster, config_map("a", x="1")) == created


def test_what_is_no_longer_applied_goes(cluster):
    """A field that the manager leaves out is removed; fields of others stay."""
    apply(cluster, config_map("a", x="1", y="2"))
    apply(cluster, config_map("a", z="3"), "two")
    assert apply(cluster, config_map("a", x="1"))["data"] == {"x": "1", "z": "3"}


def test_a_field_of_another_is_a_conflict(cluster):
    """Changing what somebody else applied is refused with 409 that names manager and field."""
    apply(cluster, config_map("a", x="1"))
    refusal = conflict(lambda: apply(cluster, config_map("a", x="2"), "two"))
    assert refusal.code == 409
    assert refusal.message == 'Apply failed with 1 conflict: conflict with "one": .data.x'
    cause = {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.x"}
    assert refusal.document()["details"] == {"causes": [cause]}
    apply(cluster, config_map("a", x="1", y="1"))
    message = conflict(lambda: apply(cluster, config_map("a", x="2", y="2"), "two")).message
    assert message == 'Apply failed with 2 conflicts: conflicts with "one":\n- .data.x\n- .data.y'


def test_force_takes_over(cluster):
    """With force the field changes hands, and the first manager no longer removes it."""
    apply(cluster, config_map("a", x="1"))
    taken = apply(cluster, config_map("a", x="2"), "two", force=True)
    assert owners(taken) == {("two", "Apply")}
    assert apply(cluster, config_map("a"))["data"] == {"x": "2"}


def test_the_same_value_is_shared(cluster):
    """Two managers that want the same value are no conflict; the field goes when both have left it out."""
    apply(cluster, config_map("a", x="1"))
    apply(cluster, config_map("a", x="1"), "two")
    assert apply(cluster, config_map("a"))["data"] == {"x": "1"}
    assert not apply(cluster, config_map("a"), "two").get("data")


def test_containers_are_owned_by_name(cluster):
    """Two managers can each have a container, and removing one leaves the other."""
    both = pod("a")
    sidecar = copy.deepcopy(both)
    sidecar["spec"]["containers"] = [{"name": "sidecar", "image": "x"}]
    apply(cluster, both)
    merged = apply(cluster, sidecar, "two")
    assert [c["name"] for c in merged["spec"]["containers"]] == ["c", "sidecar"]
    without = copy.deepcopy(sidecar)
    without["spec"]["containers"] = []
    assert [c["name"] for c in apply(cluster, without, "two")["spec"]["containers"]] == ["c"]


def test_an_update_takes_ownership(cluster):
    """Who changes an applied field by an update owns it from then on, and the next apply is in conflict."""
    applied = apply(cluster, config_map("a", x="1", y="1"))
    target = Target(cluster.kind("cm"), "default", "a")
    changed = {**applied, "data": {"x": "2", "y": "1"}}
    updated = cluster.writer.replace(target, changed, Write(manager="kubectl-edit"))
    assert owners(updated) == {("one", "Apply"), ("kubectl-edit", "Update")}
    refusal = conflict(lambda: apply(cluster, config_map("a", x="1", y="1")))
    assert 'conflict with "kubectl-edit" using v1: .data.x' in refusal.message


def test_what_nobody_applied_has_an_owner_too(cluster):
    """The first apply to an object that was created otherwise is in conflict with `before-first-apply`."""
    cluster.create(config_map("a", x="1"))
    assert "before-first-apply" in conflict(lambda: apply(cluster, config_map("a", x="2"))).message


def test_kubectl_may_move_to_the_server_side(cluster):
    """What client-side kubectl apply wrote last is no conflict for server-side kubectl apply."""
    created = config_map("a", x="1")
    last = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"x":"1"}}'
    created["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": last}
    cluster.create(created)
    assert apply(cluster, config_map("a", x="2"), "kubectl")["data"] == {"x": "2"}


def test_custom_lists_merge_as_their_schema_says(cluster):
    """A list of type map in a definition merges by its keys."""
    cluster.create(definition())
    apply(cluster, widget("w", parts=[{"id": "a", "n": 1}]))
    merged = apply(cluster, widget("w", parts=[{"id": "b", "n": 2}]), "two")
    assert [part["id"] for part in merged["spec"]["parts"]] == ["a", "b"]


def test_apply_needs_a_manager(cluster):
    with pytest.raises(Exception, match="fieldManager: Required value: is required for apply patch"):
        apply(cluster, config_map("a"), "")


def test_ownership_can_be_reset(cluster):
    applied = apply(cluster, config_map("a", x="1"))
    applied["metadata"]["managedFields"] = [{}]
    assert "managedFields" not in cluster.update(applied)["metadata"]


def test_custom_kinds_have_no_strategic_merge(cluster):
    """A strategic merge patch of a custom kind is refused with 415, as the real server does."""
    cluster.load([definition(), widget("w")])
    with pytest.raises(SandboxError, match="unknown format - accepted media types"):
        cluster.patch("Widget", "w", {}, media_type="application/strategic-merge-patch+json")


def test_an_apply_that_names_a_uid_creates_nothing():
    """Who means an object that has gone must not get another one."""
    given = config_map("a", x="1")
    given["metadata"]["uid"] = "gone"
    with pytest.raises(Exception, match="uid mismatch: the provided object specified uid gone"):
        apply(store(), given)
