"""`explain` and `schema`."""

import json
from collections.abc import Callable

import pytest


def test_explain_shows_type_default_and_fields(declctl: Callable):
    """A field is explained with its type, whether a reload changes it, and the fields below it."""
    ended = declctl("explain", "spec.handlers.retry")
    assert ended.status == 0
    assert ended.out.startswith("spec.handlers.retry  <mapping>\n")
    assert "Changes: live, by a reload" in ended.out
    assert "\n  maxAttempts     whole number  " in ended.out


def test_explain_shows_a_default_as_it_is_written(declctl: Callable):
    """Defaults are shown as a person writes them."""
    assert "Default: 64Mi" in declctl("explain", "spec.handlers.bufferBytes").out


def test_explain_says_what_needs_a_restart(declctl: Callable):
    """Who edits admin.bindAddress is told that a reload won't do."""
    assert "need a new process" in declctl("explain", "spec.admin.bindAddress").out


def test_explain_of_an_unknown_field_suggests_one(declctl: Callable):
    """A misspelled path ends with 2 and names the field that is meant."""
    ended = declctl("explain", "spec.handlers.retri")
    assert ended.status == 2
    assert 'did you mean "retry"?' in ended.err


@pytest.mark.parametrize("arguments", [[], ["--kind", "Controller"], ["--kind", "ControllerTest"]])
def test_schema_is_one_json_document(declctl: Callable, arguments: list[str]):
    """The schema can be piped into an editor or a validator."""
    ended = declctl("schema", *arguments)
    assert ended.status == 0
    assert json.loads(ended.out)["$schema"].startswith("https://json-schema.org/")
    assert ended.err == ""


def test_an_unknown_kind_is_a_usage_error(declctl: Callable):
    """`--kind Controler` ends with 2 and names the kind that is meant."""
    ended = declctl("schema", "--kind", "Controler")
    assert ended.status == 2
    assert "Controller" in ended.err
