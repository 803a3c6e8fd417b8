"""Strategic merge patch, as kubectl apply, edit, label and set image send it."""

import pytest

from declctl.sandbox.patches import strategic_merge
from declctl.sandbox.status import Refusal


def containers(*names):
    return {"spec": {"containers": [{"name": name, "image": f"{name}:1"} for name in names]}}


def test_containers_merge_by_name():
    """A new image for one container leaves the others, and the order, alone."""
    patch = {"spec": {"containers": [{"name": "b", "image": "b:2"}]}}
    merged = strategic_merge(containers("a", "b"), patch)
    assert [c["image"] for c in merged["spec"]["containers"]] == ["a:1", "b:2"]


def test_an_element_can_be_deleted():
    """`$patch: delete` takes the container of that name away."""
    merged = strategic_merge(
        containers("a", "b"), {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}
    )
    assert [c["name"] for c in merged["spec"]["containers"]] == ["b"]


def test_a_list_or_map_can_be_replaced():
    """`$patch: replace` takes nothing over from what was there."""
    patch = {
        "spec": {
            "containers": [{"$patch": "replace"}, {"name": "c"}],
            "strategy": {"$patch": "replace", "x": 1},
        }
    }
    target = {"spec": {**containers("a")["spec"], "strategy": {"y": 2}}}
    assert strategic_merge(target, patch) == {"spec": {"containers": [{"name": "c"}], "strategy": {"x": 1}}}


def test_retain_keys_drops_the_others():
    """`$retainKeys` keeps only the fields that it names, as kubectl does for a changed update strategy."""
    target = {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}
    patch = {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}
    assert strategic_merge(target, patch) == {"strategy": {"type": "Recreate"}}


def test_values_can_be_deleted_from_a_set():
    """`$deleteFromPrimitiveList` removes one finalizer, and new ones are added to those that are there."""
    target = {"metadata": {"finalizers": ["a", "b"]}}
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}}
    assert strategic_merge(target, patch) == {"metadata": {"finalizers": ["b", "c"]}}


def test_the_order_of_elements_can_be_set():
    """`$setElementOrder` orders what it names; what it doesn't name stays behind its neighbour."""
    patch = {
        "spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "b"}]}
    }
    merged = strategic_merge(containers("a", "x", "b"), patch)
    assert [c["name"] for c in merged["spec"]["containers"]] == ["b", "a", "x"]


def test_container_ports_merge_by_port():
    """Ports of a container are told apart by containerPort, those of a service by port."""
    target = {"containers": [{"name": "c", "ports": [{"containerPort": 80}, {"containerPort": 81}]}]}
    patch = {"containers": [{"name": "c", "ports": [{"containerPort": 81, "name": "x"}]}]}
    ports = strategic_merge(target, patch)["containers"][0]["ports"]
    assert ports == [{"containerPort": 80}, {"containerPort": 81, "name": "x"}]
    service = {"type": "ClusterIP", "ports": [{"port": 80}]}
    assert strategic_merge(service, {"ports": [{"port": 81}]})["ports"] == [{"port": 80}, {"port": 81}]


def test_lists_without_a_key_are_replaced():
    """Arguments and tolerations are replaced as a whole."""
    assert strategic_merge({"args": ["a"]}, {"args": ["b"]}) == {"args": ["b"]}
    target = {"tolerations": [{"key": "a"}]}
    assert strategic_merge(target, {"tolerations": [{"key": "b"}]}) == {"tolerations": [{"key": "b"}]}


def test_null_deletes():
    """A null takes a label away."""
    assert strategic_merge({"labels": {"a": "1", "b": "2"}}, {"labels": {"a": None}}) == {
        "labels": {"b": "2"}
    }


def test_an_element_needs_its_key():
    """An element without its merge key is refused with 400 and the name of the key."""
    with pytest.raises(Refusal, match="does not contain declared merge key: name"):
        strategic_merge(containers("a"), {"spec": {"containers": [{"image": "x"}]}})


def test_a_directive_must_be_one():
    """An unknown directive is refused with 400."""
    with pytest.raises(Refusal, match="unknown patch type found: dance"):
        strategic_merge({}, {"$patch": "dance"})
