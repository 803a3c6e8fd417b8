"""controller-runtime's predicates, as filters of a manifest: which changes lead to a call of a reconciler."""

import pytest

from declctl.manifest.model import FilterSpec
from declctl.objects import ChangeType, Notification
from declctl.runtime.handling.binding import Filter
from declctl.runtime.reconciling.mapping import KeySource
from tests.rooms.runtime.conftest import stored

ADDED, MODIFIED, DELETED, RESYNC = ChangeType
PLAIN = {"generation": 1, "labels": {"app": "web"}, "annotations": {"note": "a"}}
STATES = {  # by what is different from the state before
    "spec": {"generation": 2},
    "labels": {"labels": {"app": "web", "tier": "front"}},
    "annotations": {"annotations": {"note": "b"}},
    "status": {},
}


def record(version, **metadata):
    """A pod with this metadata; its status is its version."""
    head = {"name": "web-0", "namespace": "a", "uid": "u", "resourceVersion": str(version)}
    return stored(head | metadata, status={"seen": version})


def lets(judge, notification):
    source = KeySource("pods", (), frozenset(ChangeType), judge)
    return list(source.keys(notification, lambda _: None).keys) == ["a/web-0"]


def passing(judge):
    """Which of the changes that differ in one way lead to a call."""
    before = record(1, **PLAIN)
    return [
        what
        for what, fields in STATES.items()
        if lets(judge, Notification(MODIFIED, record(2, **(PLAIN | fields)), before))
    ]


def filtering(paths=(), *, labels="", expression="", accepts=None):
    return Filter(FilterSpec(labels, tuple(paths), expression=expression), tuple(ChangeType), accepts)


GENERATION = "old == null || obj.metadata.generation != old.metadata.generation"
LABELS = "old == null || obj.metadata.labels != old.metadata.labels"


@pytest.mark.client_go(309, "Predicates")
@pytest.mark.parametrize(
    ("judge", "changes"),
    [
        (None, ["spec", "labels", "annotations", "status"]),
        (filtering(["metadata.generation"]), ["spec"]),
        (filtering(["metadata.labels"]), ["labels"]),
        (filtering(["metadata.annotations"]), ["annotations"]),
        (filtering(["metadata.generation", "metadata.labels"]), ["spec", "labels"]),
        (filtering(["metadata.annotations['note']"]), ["annotations"]),
        (filtering(["metadata.annotations['other']"]), []),
        (filtering(expression=GENERATION), ["spec"]),
        (filtering(expression=f"({GENERATION}) || ({LABELS})"), ["spec", "labels"]),
        (filtering(expression=f"({GENERATION}) && ({LABELS})"), []),
        (filtering(expression=f"!({GENERATION})"), ["labels", "annotations", "status"]),
        (filtering(["metadata.labels"], labels="app=web"), ["labels"]),
        (filtering(["metadata.labels"], labels="app=api"), []),
        (filtering(labels="tier!=front"), ["spec", "labels", "annotations", "status"]),
        (filtering(accepts=lambda obj: obj["metadata"]["generation"] == 1), list(STATES)),
        (filtering(accepts=lambda obj: "tier" in obj.labels), ["labels"]),
    ],
)
def test_a_modified_passes_if_what_its_filter_names_has_changed(judge, changes):
    """Generation, labels and annotations, alone and together; so does what enters or leaves a filter."""
    assert passing(judge) == changes


@pytest.mark.client_go(309, "Predicates")
@pytest.mark.parametrize("kind", [ADDED, DELETED, RESYNC])
def test_a_change_without_another_state_passes_the_paths(kind):
    """Of an object that comes, goes or is replayed there is nothing to compare: the handler hears of it."""
    judge = filtering(["metadata.generation"], expression=GENERATION)
    change = Notification(kind, record(1, **PLAIN), record(1, **PLAIN) if kind is RESYNC else None)
    assert lets(filtering(["metadata.generation"]), change)
    assert lets(judge, change) is (kind is not RESYNC)
    assert lets(filtering(labels="app=web"), change)
    assert not lets(filtering(labels="app=api"), change)
