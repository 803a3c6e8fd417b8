"""The line of a change, and what the manifest may ask for."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest
from declctl import Change, ChangeType, ObjectKey

import declctl_changelog
from declctl_changelog.lines import Settings, line_of


@dataclass(frozen=True)
class Told:
    """As much of a Change as the plugin reads."""

    type: ChangeType
    obj: dict[str, Any] = field(default_factory=dict[str, Any])
    old: dict[str, Any] | None = None
    final_state_unknown: bool = False
    resource: str = "pods"
    key: ObjectKey = field(default_factory=lambda: ObjectKey.of("demo", "web-1"))
    received_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)


def _line(change: Told, **settings: Any) -> str | None:
    return line_of(cast("Change", change), Settings(**settings))


_OLD = {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 1}, "status": {"phase": "Pending"}}
_NEW = {
    "metadata": {"resourceVersion": "2"},
    "spec": {"replicas": 3},
    "status": {"phase": "Running", "ip": "::1"},
}
_MODIFIED = Told(ChangeType.MODIFIED, _NEW, _OLD)


@pytest.mark.parametrize("kind", [ChangeType.ADDED, ChangeType.DELETED])
def test_what_came_and_went_is_named(kind: ChangeType) -> None:
    """A new or deleted object is shown with its resource and key."""
    assert _line(Told(kind)) == f"{kind} pods demo/web-1"


def test_what_changed_is_told_up_to_a_limit() -> None:
    """A line stays readable: the first differences are shown, the others counted."""
    expected = "Modified pods demo/web-1  spec.replicas: 1 → 3, status.phase: Pending → Running (+1 more)"
    assert _line(_MODIFIED, max_changes=2) == expected


def test_a_resync_says_nothing() -> None:
    """A replay of the cache does not fill the log with changes that were none."""
    assert _line(Told(ChangeType.RESYNC, _NEW, _NEW)) is None


def test_a_delete_that_was_missed_says_so() -> None:
    """A reader sees that the last state of the object is not known."""
    assert (
        _line(Told(ChangeType.DELETED, final_state_unknown=True))
        == "Deleted pods demo/web-1 (while nobody watched)"
    )


def test_a_change_of_ignored_fields_is_still_counted() -> None:
    """Every change has a line, even where nothing in it is worth telling."""
    line = _line(_MODIFIED, ignore=("spec", "status", "metadata"))
    assert line == "Modified pods demo/web-1  nothing that is shown here"


def test_long_values_are_cut() -> None:
    """A certificate in a field does not fill the screen."""
    line = _line(Told(ChangeType.MODIFIED, {"data": {"a": "x" * 500}}, {"data": {"a": "y\ny"}}))
    assert line == f"Modified pods demo/web-1  data.a: y\\ny → {'x' * 59}…"


def test_json_has_both_sides() -> None:
    """A program reads the same change, whole values and all."""
    assert json.loads(_line(_MODIFIED, format="json", max_changes=1) or "") == {
        "time": "2026-01-01T00:00:00.000+00:00",
        "type": "Modified",
        "resource": "pods",
        "key": "demo/web-1",
        "changes": [{"path": "spec.replicas", "old": 1, "new": 3}],
        "more": 2,
    }


def test_the_hook_prints_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The line goes to stdout, as the config says."""
    context = SimpleNamespace(config={"maxChanges": 1})
    declctl_changelog.declctl_event(cast("Change", _MODIFIED), context)
    assert capsys.readouterr().out == "Modified pods demo/web-1  spec.replicas: 1 → 3 (+2 more)\n"


@pytest.mark.parametrize(
    "config", [{"maxChanges": 0}, {"format": "xml"}, {"ignore": "spec"}, {"unknown": 1}, {"ignore": [""]}]
)
def test_a_config_that_can_not_be_meant_is_refused(config: dict[str, Any]) -> None:
    """A slip in the manifest is found by `declctl validate`, not at the first change."""
    schema = declctl_changelog.declctl_config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config, schema)


def test_the_defaults_of_the_schema_are_those_of_the_code() -> None:
    """What the schema says of defaults is what happens without a config."""
    fields = declctl_changelog.declctl_config_schema()["properties"]
    defaults = {name: field["default"] for name, field in fields.items()}
    assert Settings.of(defaults) == Settings.of({})
