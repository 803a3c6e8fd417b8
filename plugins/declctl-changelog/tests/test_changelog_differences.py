"""What changed between two objects."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

from typing import Any

import pytest

from declctl_changelog.differences import UNSET, differences, parse_path, written


def _told(old: dict[str, Any], new: dict[str, Any], *ignore: str) -> list[tuple[str, Any, Any]]:
    found = differences(old, new, ignore=[parse_path(path) for path in ignore])
    return [(written(one.path), one.old, one.new) for one in found]


def test_each_field_that_differs_is_told_once_spec_first() -> None:
    """A reader sees what was wanted before what came of it."""
    old = {"status": {"phase": "Pending"}, "metadata": {"labels": {"a": "1"}}, "spec": {"replicas": 1}}
    new = {"status": {"phase": "Running"}, "metadata": {"labels": {"a": "2"}}, "spec": {"replicas": 3}}
    assert _told(old, new) == [
        ("spec.replicas", 1, 3),
        ("metadata.labels.a", "1", "2"),
        ("status.phase", "Pending", "Running"),
    ]


def test_fields_that_came_or_went_are_unset_on_the_other_side() -> None:
    """A field that was not there is shown as unset, not as null."""
    assert _told({"spec": {"a": 1}}, {"spec": {"b": None}}) == [("spec.b", UNSET, None), ("spec.a", 1, UNSET)]


def test_items_with_names_are_compared_by_name() -> None:
    """A container put in front does not look like a change of those behind it."""
    old = {"spec": {"containers": [{"name": "web", "image": "a"}]}}
    new = {"spec": {"containers": [{"name": "log", "image": "c"}, {"name": "web", "image": "b"}]}}
    assert _told(old, new) == [
        ("spec.containers[log]", UNSET, {"name": "log", "image": "c"}),
        ("spec.containers[web].image", "a", "b"),
    ]


def test_conditions_are_compared_by_type() -> None:
    """Conditions that changed places are no change."""
    ready, done = {"type": "Ready", "status": "True"}, {"type": "Done", "status": "False"}
    assert _told({"status": {"c": [ready, done]}}, {"status": {"c": [done, ready]}}) == []


def test_lists_of_values_are_compared_whole() -> None:
    """A list of plain values is one field."""
    assert _told({"spec": {"args": ["a"]}}, {"spec": {"args": ["a", "b"]}}) == [
        ("spec.args", ["a"], ["a", "b"])
    ]


def test_lists_of_nameless_items_are_compared_by_place() -> None:
    """Items without a name are shown by their number."""
    old, new = {"spec": {"rules": [{"port": 1}]}}, {"spec": {"rules": [{"port": 2}]}}
    assert _told(old, new) == [("spec.rules[0].port", 1, 2)]


@pytest.mark.parametrize(
    "ignored", ["spec", "spec.containers", "spec.containers[*].image", "spec.containers[web].image"]
)
def test_what_is_below_an_ignored_path_is_not_told(ignored: str) -> None:
    """Noise that somebody named is left out, and nothing else."""
    old = {"spec": {"containers": [{"name": "web", "image": "a"}]}, "status": {"phase": "A"}}
    new = {"spec": {"containers": [{"name": "web", "image": "b"}]}, "status": {"phase": "B"}}
    assert _told(old, new, ignored) == [("status.phase", "A", "B")]


def test_names_with_dots_stand_in_brackets() -> None:
    """A label key can be read, and written into `ignore`, without guessing where it ends."""
    old = {"metadata": {"labels": {"app.kubernetes.io/name": "a"}}}
    new = {"metadata": {"labels": {"app.kubernetes.io/name": "b"}}}
    path = "metadata.labels[app.kubernetes.io/name]"
    assert _told(old, new) == [(path, "a", "b")]
    assert _told(old, new, path) == []
