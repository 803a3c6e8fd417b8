"""What a config may say, and what the README says of it."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import declctl_notify
from declctl_notify.settings import SCHEMA, Settings, SettingsFault, seconds_of

README = Path(__file__).parents[1] / "README.md"
TARGET = {"name": "team", "urlFrom": {"env": "TEAM_URL"}}
RULE = {"name": "all", "targets": ["team"]}


def _config(*, target: dict[str, Any] | None = None, rule: dict[str, Any] | None = None, **more: Any) -> Any:
    return {"targets": [{**TARGET, **(target or {})}], "rules": [{**RULE, **(rule or {})}], **more}


def _is_valid(config: Any) -> bool:
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(config)


def test_the_schema_is_one() -> None:
    """Declctl refuses a plugin whose schema is none."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert _is_valid(_config())


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"targets": [TARGET]},
        _config(target={"urlFrom": {}}),
        _config(target={"urlFrom": {"env": "A", "file": "/b"}}),
        _config(target={"urlFrom": {"env": "json://user:password@host"}}),
        _config(target={"urlFrom": {"file": "relative"}}),
        _config(target={"url": "json://host"}),
        _config(rule={"events": ["Changed"]}),
        _config(rule={"targets": []}),
        _config(rule={"groupWait": "10"}),
        _config(rule={"groupWait": 10}),
        _config(rule={"severity": "fatal"}),
        _config(defaults={"when": "true"}),
        _config(initialSync="Always"),
    ],
)
def test_a_config_that_can_not_be_meant_is_refused(config: Any) -> None:
    """A slip is found by `declctl validate`. A URL in the manifest is one: it would be a secret there."""
    assert not _is_valid(config)


def test_rules_inherit_defaults() -> None:
    """`defaults` hold for each rule that does not say otherwise."""
    defaults = {"targets": ["team"], "severity": "warning", "groupWait": "1m30s"}
    config = {"targets": [TARGET], "rules": [{"name": "all", "severity": "critical"}], "defaults": defaults}
    assert _is_valid(config)
    (rule,) = Settings.of(config).rules
    assert (rule.targets, rule.severity) == (("team",), "critical")
    assert (rule.group_wait, rule.group_interval) == (90.0, 300.0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (_config(rule={"targets": ["other"]}), "the rule all has the target other, .* known: team"),
        ({"targets": [TARGET], "rules": [{"name": "all"}]}, "the rule all has no targets"),
        (_config(rule={"title": "{{ obj."}), "title of the rule all can't be read: .*line 1"),
        (_config(rule={"body": "{% if x %}"}), "body of the rule all can't be read"),
        (_config(rule={"when": "obj.status.phase = 'x'"}), "when of the rule all can't be read"),
        (_config(rule={"fingerprint": "{{ a"}), "fingerprint of the rule all can't be read"),
        (_config(rule={"groupBy": ["a b"]}), "groupBy of the rule all can't be read"),
        ({"targets": [TARGET, TARGET], "rules": [RULE]}, "targets: two have the name team"),
        ({"targets": [TARGET], "rules": [RULE, RULE]}, "rules: two have the name all"),
        (_config(target={"rateLimit": {"interval": "0s"}}), "interval has to be longer"),
    ],
)
def test_faults_that_a_schema_can_not_find_name_their_place(config: Any, message: str) -> None:
    """A generation with such a config is refused with a sentence that says where to look."""
    assert _is_valid(config)
    with pytest.raises(SettingsFault, match=message):
        Settings.of(config)


def test_a_resource_that_the_manifest_lacks_is_named() -> None:
    """A rule that could never match is a slip."""
    settings = Settings.of(_config(rule={"resources": ["pods", "nodes"]}))
    settings.check_resources(["pods", "nodes", "jobs"])
    with pytest.raises(SettingsFault, match="the rule all has the resource nodes; the manifest has: pods"):
        settings.check_resources(["pods"])


def _faults(config: Any, *resources: str) -> list[tuple[list[str | int], str]]:
    """Path and message of each fault that `declctl validate` shows."""
    found = declctl_notify.declctl_check_config(config, resources)
    return [(fault["path"], fault["message"]) for fault in found]


def test_validate_shows_all_faults_at_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of templates, expressions and names: each with its field, and not only the first."""
    monkeypatch.setenv("TEAM_URL", "json://localhost/hook")
    rules = [
        {**RULE, "title": "{{ obj."},
        {**RULE, "name": "two", "when": "a = b"},
        {**RULE, "name": "three", "targets": ["other"]},
        {**RULE, "name": "four", "resources": ["nodes"]},
        {**RULE, "name": "all"},
    ]
    config = _config(target={"rateLimit": {"interval": "0s"}}, rules=rules)
    assert _is_valid(config)
    found = _faults(config, "pods")
    assert [path for path, _ in found] == [
        ["targets", 0, "rateLimit", "interval"],
        ["rules", 4, "name"],
        ["rules", 0, "title"],
        ["rules", 1, "when"],
        ["rules", 2, "targets"],
        ["rules", 3, "resources"],
    ]
    assert "the manifest has: pods" in found[-1][1]


def test_a_template_of_the_defaults_has_its_place_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule does not have the field."""
    monkeypatch.setenv("TEAM_URL", "json://localhost/hook")
    assert [path for path, _ in _faults(_config(defaults={"targets": ["team"], "body": "{% if"}))] == [
        ["defaults", "body"]
    ]


@pytest.mark.parametrize(
    ("url", "severity"),
    [
        (None, "warning"),
        ("no-service://s3cr3t", "error"),
        ("mailto://", "error"),
        ("json://localhost/hook", None),
    ],
)
def test_a_url_that_apprise_can_not_read_is_found_without_a_request(
    monkeypatch: pytest.MonkeyPatch, url: str | None, severity: str | None
) -> None:
    """One that is not there may be there where the process runs. No part of a URL is shown."""
    monkeypatch.delenv("TEAM_URL", raising=False)
    if url is not None:
        monkeypatch.setenv("TEAM_URL", url)
    found = list(declctl_notify.declctl_check_config(_config(), ()))
    assert [fault["severity"] for fault in found] == ([severity] if severity else [])
    assert all(fault["path"] == ["targets", 0, "urlFrom"] for fault in found)
    assert not any("s3cr3t" in str(fault) for fault in found)
    assert list(declctl_notify.declctl_check_config(_config(dryRun=True), ())) == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("10s", 10.0), ("1h30m", 5400.0), ("1.5h", 5400.0), ("0s", 0.0)]
)
def test_durations_have_the_form_of_the_manifest(text: str, seconds: float) -> None:
    """Durations are written as everywhere in a manifest."""
    assert _is_valid(_config(sendTimeout=text))
    assert seconds_of(text) == seconds


def _rows(schema: dict[str, Any], prefix: str = "") -> list[str]:
    """The rows of the README's table: one for each setting, in the order of the schema."""
    rows: list[str] = []
    for name, field in schema["properties"].items():
        path = f"{prefix}{name}"
        nested = field["items"] if field.get("type") == "array" else field
        rows.append(f"| `{path}` | {_default(field, name in schema['required'])} | {field['description']} |")
        if nested.get("type") == "object":
            mark = "[]" if field.get("type") == "array" else ""
            own = {n: f for n, f in nested["properties"].items() if path != "rules" or n not in _POLICY}
            rows += _rows({**nested, "properties": own}, f"{path}{mark}.")
    return rows


_POLICY = SCHEMA["properties"]["defaults"]["properties"]


def _default(field: dict[str, Any], required: bool) -> str:
    if required:
        return "required"
    if "default" not in field:
        return ""
    default = field["default"]
    if isinstance(default, list):
        return f"`[{', '.join(default)}]`"
    if isinstance(default, str) and "\n" in default:
        return "see below"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def test_the_readme_has_every_setting() -> None:
    """The table of the README is that of the schema. On a failure, its rows are in the message."""
    table = "\n".join(_rows(SCHEMA))
    assert table in README.read_text("utf-8"), f"write this table into README.md:\n{table}"


def test_the_examples_of_the_readme_are_valid() -> None:
    """Each manifest that can be copied from the README has a config that the plugin reads."""
    blocks = re.findall(r"```yaml\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    manifests = [
        made for block in blocks for made in yaml.safe_load_all(block) if made.get("kind") == "Controller"
    ]
    assert manifests
    for manifest in manifests:
        (plugin,) = manifest["spec"]["plugins"]
        jsonschema.validate(plugin["config"], SCHEMA)
        settings = Settings.of(plugin["config"])
        settings.check_resources([one["name"] for one in manifest["spec"]["resources"]])
