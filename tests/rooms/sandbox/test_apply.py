"""Server-side apply, as its rules read. Histories at random are in test_ownership.py."""

import random

import pytest

from declctl.kit import ManualClock
from declctl.sandbox.patches import APPLY_PATCH, Patch
from declctl.sandbox.remover import Target, Write
from declctl.sandbox.store import ObjectStore
from tests.rooms.sandbox.shapes import config_map, store


def apply(cluster, obj, manager="one", *, force=False):
    metadata = obj["metadata"]
    target = Target(cluster.kind(obj["kind"]), metadata.get("namespace", ""), metadata["name"])
    return cluster.writer.patch(target, Patch(APPLY_PATCH, obj, force=force), Write(manager=manager))[0]


def test_apply_creates_and_owns_and_a_second_time_changes_nothing():
    clock = ManualClock()
    cluster = ObjectStore(clock=clock, chance=random.Random(7))
    created = apply(cluster, config_map("a", x="1"))
    (entry,) = created["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("one", "Apply")
    assert entry["fieldsV1"] == {"f:data": {"f:x": {}}}
    clock.set(60.0)  # the time of an entry is that of its last change
    assert apply(cluster, config_map("a", x="1")) == created
    (entry,) = apply(cluster, config_map("a", y="1"))["metadata"]["managedFields"]
    assert entry["fieldsV1"] == {"f:data": {"f:y": {}}}


def test_apply_needs_a_manager(cluster):
    with pytest.raises(Exception, match="fieldManager: Required value: is required for apply patch"):
        apply(cluster, config_map("a"), "")


def test_an_apply_that_names_a_uid_creates_nothing():
    """Who means an object that has gone must not get another one."""
    given = config_map("a", x="1")
    given["metadata"]["uid"] = "gone"
    with pytest.raises(Exception, match="uid mismatch: the provided object specified uid gone"):
        apply(store(), given)
