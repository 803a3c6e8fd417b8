"""The config: what is refused, what is assumed, and that README.md says the same."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

import json
from typing import Any

import jsonschema
import pytest
import settings_table

import declctl_webhook
from declctl_webhook.settings import Settings, SettingsError, config_schema, seconds, size_bytes

LEAST: dict[str, Any] = {"url": "https://example.com/hook", "spool": {"path": "/spool"}}


def _validate(config: dict[str, Any]) -> None:
    jsonschema.validate(config, declctl_webhook.declctl_config_schema(), jsonschema.Draft202012Validator)


def test_the_schema_is_one_and_is_json() -> None:
    """Declctl refuses a plugin whose schema is none."""
    schema = json.loads(json.dumps(config_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    _validate(LEAST)


def test_every_setting_has_a_description_and_a_default_that_is_allowed() -> None:
    """The table has no gaps, and what is assumed could be written."""
    found = list(settings_table.settings(config_schema()))
    assert len(found) > 40
    for name, field, _ in found:
        assert field["description"].endswith("."), name
        if "default" in field:
            jsonschema.validate(field["default"], field, jsonschema.Draft202012Validator)


def test_the_readme_has_every_setting() -> None:
    """`python tests/settings_table.py` renews it."""
    assert settings_table.table(config_schema()) in settings_table.README.read_text("utf-8")


def test_the_defaults_are_those_of_the_schema() -> None:
    """A config without a value means the same as one with the default."""
    full: dict[str, Any] = json.loads(json.dumps(LEAST))
    for name, field, _ in settings_table.settings(config_schema()):
        if "default" in field and "[]" not in name and not name.startswith("signature"):
            *sections, last = name.split(".")
            place = full
            for section in sections:
                place = place.setdefault(section, {})
            place[last] = field["default"]
    _validate(full)
    assert Settings.of(full) == Settings.of(LEAST)


@pytest.mark.parametrize(
    "more",
    [
        {"url": None},
        {"spool": None},
        {"spool": {}},
        {"spool": {"path": "relative"}},
        {"url": "example.com"},
        {"url": "ftp://example.com"},
        {"url": "https://user:password@example.com/"},
        {"url": "https://example.com/#part"},
        {"headers": {"Authorization": "Bearer x"}},
        {"headers": {"authorization": "Bearer x"}},
        {"headers": {"X-API-Key": "x"}},
        {"headers": {"Cookie": "x"}},
        {"headers": {"ce-id": "x"}},
        {"headers": {"Content-Type": "x"}},
        {"headers": {"webhook-signature": "x"}},
        {"headers": {"a b": "x"}},
        {"headers": {"X-A": "x\r\nX-B: y"}},
        {"headersFrom": [{"name": "X-A"}]},
        {"headersFrom": [{"name": "X-A", "env": "A", "file": "/a"}]},
        {"headersFrom": [{"name": "X-A", "value": "x"}]},
        {"headersFrom": [{"name": "Host", "env": "A"}]},
        {"signature": {}},
        {"signature": {"secretsFrom": []}},
        {"signature": {"secretsFrom": [{"env": "A"}], "secret": "x"}},
        {"mode": "structured"},
        {"timeout": "15"},
        {"timeout": 15},
        {"concurrency": 0},
        {"batch": {"maxBytes": "0Ki"}},
        {"tls": {"certFile": "/a"}},
        {"retry": {"maxAttempts": 3}},
        {"spool": {"path": "/a", "whenFull": "Block"}},
    ],
)
def test_a_config_that_can_not_be_meant_is_refused(more: dict[str, Any]) -> None:
    """A slip in the manifest, or a secret in it, is found by `declctl validate`."""
    config = {name: value for name, value in {**LEAST, **more}.items() if value is not None}
    with pytest.raises(jsonschema.ValidationError):
        _validate(config)


@pytest.mark.parametrize(
    "more",
    [
        {"headers": {"X-Team": "a", "Authorizations": "no credentials"}},
        {"headersFrom": [{"name": "Authorization", "env": "A", "prefix": "Bearer "}]},
        {"url": "http://localhost:8080?x=1"},
        {"timeout": "1m30s", "spool": {"path": "/a", "maxBytes": 65536}},
    ],
)
def test_a_config_that_can_be_meant_is_taken(more: dict[str, Any]) -> None:
    """The patterns refuse no more than they should."""
    _validate({**LEAST, **more})
    Settings.of({**LEAST, **more})


@pytest.mark.parametrize(
    ("text", "expected"), [("500ms", 0.5), ("10s", 10), ("1h30m", 5400), ("1.5s", 1.5), ("0s", 0)]
)
def test_durations(text: str, expected: float) -> None:
    """As in manifests."""
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "10", "s", "10 s", "-1s", "1d", "1s!"])
def test_no_durations(text: str) -> None:
    """A number without a unit is none."""
    with pytest.raises(SettingsError, match="is no duration"):
        seconds(text)


def test_sizes() -> None:
    """Numbers, and Kubernetes quantities."""
    assert [size_bytes(each) for each in (4096, "512Ki", "64Mi", "1Gi", "2k")] == [
        4096,
        2**19,
        2**26,
        2**30,
        2000,
    ]
    with pytest.raises(SettingsError, match="is no size"):
        size_bytes("64 Mi")
