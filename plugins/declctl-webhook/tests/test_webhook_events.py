"""The CloudEvent of a change: what a receiver recognises it by, and what it does not get to see."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

import copy
import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from declctl import ChangeReason, ChangeType

from declctl_webhook.events import EventError, EventMaker, event_id, parse_path, projection
from declctl_webhook.settings import Settings

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web-0",
        "namespace": "team-a",
        "uid": "2b4f",
        "resourceVersion": "812",
        "labels": {"app.kubernetes.io/name": "web"},
        "managedFields": [{"manager": "kubectl"}],
    },
    "spec": {"nodeName": "n1", "containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "y:1"}]},
    "status": {"phase": "Running"},
}
SECRET: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Secret",
    "type": "Opaque",
    "metadata": {
        "name": "db",
        "namespace": "team-a",
        "uid": "77aa",
        "resourceVersion": "5",
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": '{"data":{"password":"aHVudGVyMg=="}}',
            "owner": "team-a",
        },
    },
    "data": {"password": "aHVudGVyMg=="},
    "stringData": {"user": "hunter2"},
}


@dataclass(frozen=True)
class View:
    """As much of an ObjectView as the plugin reads."""

    body: dict[str, Any]

    @property
    def name(self) -> str:
        return self.body["metadata"]["name"]

    @property
    def namespace(self) -> str | None:
        return self.body["metadata"].get("namespace")

    @property
    def uid(self) -> str:
        return self.body["metadata"].get("uid", "")

    @property
    def resource_version(self) -> str:
        return self.body["metadata"]["resourceVersion"]

    def to_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.body)


@dataclass(frozen=True)
class Seen:
    """As much of a Change as the plugin reads."""

    type: ChangeType
    obj: View
    old: View | None = None
    reason: ChangeReason = ChangeReason.WATCH
    initial: bool = False
    final_state_unknown: bool = False
    received_at: datetime = datetime(2026, 1, 1, 12, 0, 0, 250, tzinfo=UTC)


ADDED = Seen(ChangeType.ADDED, View(POD))


def _event(change: Seen, **config: Any) -> dict[str, Any]:
    settings = Settings.of({"url": "http://x", "spool": {"path": "/x"}, **config})
    return json.loads(EventMaker(settings.event).event_of(change).body)


def test_an_event_has_the_attributes_of_cloudevents() -> None:
    """A receiver, a broker and a person find their way without our docs."""
    event = _event(
        replace(ADDED, initial=True, reason=ChangeReason.INITIAL), source="https://cluster-1.example"
    )
    data = event.pop("data")
    assert event == {
        "specversion": "1.0",
        "id": "2b4f-812-added",
        "source": "https://cluster-1.example",
        "type": "dev.declctl.object.added",
        "subject": "v1/Pod/team-a/web-0",
        "time": "2026-01-01T12:00:00.000250Z",
        "datacontenttype": "application/json",
        "apiversion": "v1",
        "kind": "Pod",
        "namespace": "team-a",
        "name": "web-0",
        "resourceversion": "812",
        "partitionkey": "v1/Pod/team-a/web-0",
        "reason": "Initial",
        "initial": True,
    }
    assert data["object"]["spec"] == POD["spec"]
    assert "managedFields" not in data["object"]["metadata"]


def test_attribute_names_are_allowed_by_the_specification() -> None:
    """Lower-case letters and digits, at most twenty."""
    names = set(_event(replace(ADDED, final_state_unknown=True, initial=True))) - {"data"}
    assert all(re.fullmatch(r"[a-z0-9]{1,20}", name) for name in names)


def test_the_same_state_has_the_same_id() -> None:
    """A retry, and a process that starts again and finds the object unchanged, repeat an id."""
    later = ADDED.received_at + timedelta(hours=1)
    again = replace(ADDED, initial=True, reason=ChangeReason.INITIAL, received_at=later)
    assert event_id(ADDED) == event_id(again)


def test_different_changes_have_different_ids() -> None:
    """A receiver that skips ids it has seen skips no change."""
    newer = copy.deepcopy(POD)
    newer["metadata"]["resourceVersion"] = "813"
    other = copy.deepcopy(POD)
    other["metadata"]["uid"] = "ffff"
    later = ADDED.received_at + timedelta(microseconds=1)
    left = replace(ADDED, type=ChangeType.DELETED, reason=ChangeReason.OUT_OF_SCOPE)
    resync = replace(ADDED, type=ChangeType.RESYNC, reason=ChangeReason.RESYNC)
    changes = [
        ADDED,
        replace(ADDED, type=ChangeType.MODIFIED, obj=View(newer)),
        replace(ADDED, obj=View(other)),
        replace(ADDED, type=ChangeType.DELETED),
        left,
        replace(left, received_at=later),
        resync,
        replace(resync, received_at=later),
    ]
    assert len({event_id(change) for change in changes}) == len(changes)


def test_an_id_has_no_full_stop() -> None:
    """Standard Webhooks forbids it: id, time and body are joined with one for the signature."""
    odd = copy.deepcopy(POD)
    odd["metadata"] |= {"uid": "", "resourceVersion": "1.2"}
    assert "." not in event_id(replace(ADDED, obj=View(odd)))


def test_the_former_object_comes_with_a_modified_only() -> None:
    """`data.old` for receivers that compare."""
    old = copy.deepcopy(POD)
    old["status"]["phase"] = "Pending"
    change = replace(ADDED, type=ChangeType.MODIFIED, old=View(old))
    assert _event(change, data={"old": True})["data"]["old"]["status"] == {"phase": "Pending"}
    assert "old" not in _event(change)["data"]


@pytest.mark.parametrize("include", ["Object", "Metadata", "Fields"])
@pytest.mark.parametrize("kind", list(ChangeType))
def test_values_of_secrets_are_never_sent(include: str, kind: ChangeType) -> None:
    """Neither the values, nor kubectl's copy of them, in any form, for any type of change; the keys are."""
    change = Seen(kind, View(SECRET), View(SECRET))
    paths = ["data.password", "stringData", "metadata.annotations"]
    event = _event(change, data={"include": include, "paths": paths, "omit": [], "old": True})
    text = json.dumps(event)
    assert "hunter2" not in text
    assert "aHVudGVyMg" not in text
    if include != "Metadata":
        assert event["data"]["object"]["data"] == {"password": None}
    assert event["data"]["object"].get("metadata", {}).get("annotations") == {"owner": "team-a"}


def test_values_of_secrets_are_sent_if_somebody_says_so() -> None:
    """`data.secretValues: true`."""
    event = _event(Seen(ChangeType.ADDED, View(SECRET)), data={"secretValues": True})
    assert event["data"]["object"]["data"] == {"password": "aHVudGVyMg=="}


def test_metadata_alone() -> None:
    """For receivers that only need to know that something has changed."""
    event = _event(ADDED, data={"include": "Metadata"})
    assert set(event["data"]["object"]) == {"apiVersion", "kind", "metadata"}


def test_chosen_fields_keep_their_shape() -> None:
    """`Fields` has the identity of the object, and the paths."""
    paths = ["spec.containers[*].image", "metadata.labels[app.kubernetes.io/name]", "spec.none"]
    event = _event(ADDED, data={"include": "Fields", "paths": paths})
    assert event["data"]["object"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web-0",
            "namespace": "team-a",
            "uid": "2b4f",
            "labels": {"app.kubernetes.io/name": "web"},
        },
        "spec": {"containers": [{"image": "x:1"}, {"image": "y:1"}]},
    }


def test_omitted_fields_are_left_out() -> None:
    """Lists too."""
    omit = ["spec.containers[*].image", "status", "spec.none.deeper", "spec.nodeName.deeper"]
    event = _event(ADDED, data={"omit": omit})
    assert event["data"]["object"]["spec"] == {"nodeName": "n1", "containers": [{"name": "a"}, {"name": "b"}]}
    assert "status" not in event["data"]["object"]


def test_a_projection_of_two_paths_is_one_object() -> None:
    """Paths that share a begin, and one that is the begin of another."""
    obj = {"a": {"b": 1, "c": 2, "d": 3}, "l": [1, {"x": 1}]}
    assert projection(obj, [("a", "b"), ("a", "c")]) == {"a": {"b": 1, "c": 2}}
    assert projection(obj, [("a",), ("a", "c")]) == {"a": obj["a"]}
    assert projection(obj, [("l", "[*]", "x"), ("a", "b", "c")]) == {"l": [{}, {"x": 1}]}


@pytest.mark.parametrize("text", ["", ".", "a..b", "a[", "a[]", "a[b", "a]b", ".a", "a.", "[a]b"])
def test_a_path_that_is_none_is_refused(text: str) -> None:
    """A typing error does not become an event without the field."""
    with pytest.raises(EventError, match="is no field path"):
        parse_path(text)


def test_odd_text_is_sent() -> None:
    """A half of a surrogate pair in an annotation does not keep the event back."""
    odd = copy.deepcopy(POD)
    odd["metadata"]["annotations"] = {"note": "half \ud800, whole €"}
    event = _event(replace(ADDED, obj=View(odd)))
    assert event["data"]["object"]["metadata"]["annotations"]["note"] == "half ?, whole €"


def test_a_cluster_scoped_object_has_no_namespace() -> None:
    """Its subject is shorter, and there is no empty attribute."""
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "uid": "1", "resourceVersion": "1"},
    }
    event = _event(replace(ADDED, obj=View(node)))
    assert event["subject"] == "v1/Node/n1"
    assert "namespace" not in event
