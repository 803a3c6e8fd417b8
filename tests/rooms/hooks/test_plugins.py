"""Installed plugins: found without an import, loaded one by one; configs that fit their schemas."""

import importlib
import sys
from pathlib import Path

import pytest

from declctl.errors import EntryPointError
from declctl.hooks.plugin_config import PluginConfigError, check_config
from declctl.hooks.plugins import HOOKSPEC_VERSION, find, installed, load, written_range


@pytest.fixture(name="install")
def _install(tmp_path, monkeypatch):
    """Puts distributions on sys.path, as pip would have."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("DECLCTL_LOAD_PLUGINS", raising=False)
    before = set(sys.modules)

    def make(distribution, version, entries, **modules):
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = [f"{name} = {value}" for name, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(["[declctl]", *lines, ""]))
        for module, source in modules.items():
            (tmp_path / f"{module}.py").write_text(source)
        importlib.invalidate_caches()  # folders are looked through again when they are seen to be younger
        return tmp_path

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refused(call):
    with pytest.raises(EntryPointError) as caught:
        call()
    return caught.value


def test_listing_imports_nothing(install):
    """A plugin that breaks at import is listed like any other."""
    install("dc-slack", "1.2", {"slack": "dc_slack"}, dc_slack="raise RuntimeError('imported')")
    install("dc-audit", "0.3", {"audit": "dc_audit:Audit"})
    ours = [p for p in installed() if p.distribution.startswith("dc-")]
    assert [(p.name, p.distribution, p.version, p.value) for p in ours] == [
        ("audit", "dc-audit", "0.3", "dc_audit:Audit"),
        ("slack", "dc-slack", "1.2", "dc_slack"),
    ]
    assert "dc_slack" not in sys.modules


@pytest.mark.parametrize(
    ("value", "expected"), [("", []), ("slack", ["slack"]), ("audit, slack", ["audit", "slack"])]
)
def test_a_variable_has_the_plugins_that_may_be_loaded(install, value, expected):
    """When a plugin breaks everything, it can be kept out without uninstalling it."""
    install("dc-both", "1.0", {"slack": "dc_a", "audit": "dc_b"})
    assert [p.name for p in installed({"DECLCTL_LOAD_PLUGINS": value})] == expected


@pytest.mark.parametrize(
    ("value", "why", "advice"),
    [
        ("", "no plugin may be loaded (--no-plugins, or an empty DECLCTL_LOAD_PLUGINS)", "remove that"),
        ("audit, pager", "DECLCTL_LOAD_PLUGINS has only audit, pager", "add it to DECLCTL_LOAD_PLUGINS"),
        ("slak", "DECLCTL_LOAD_PLUGINS has only slak", "write slack instead of slak in DECLCTL_LOAD_PLUGINS"),
    ],
)
def test_what_may_not_be_loaded_is_told_as_such(install, monkeypatch, value, why, advice):
    """Not as missing: installing it again would not help."""
    install("dc-slack", "1.2", {"slack": "dc_slack"})
    monkeypatch.setenv("DECLCTL_LOAD_PLUGINS", value)
    error = refused(lambda: find("slack", None))
    assert (error.code, error.message) == ("DCL089", f"the plugin slack is left out: {why}")
    assert error.suggestion == f"to load it, {advice}, and start the process again"


def test_a_misspelled_or_ambiguous_plugin_is_refused(install):
    """Who lists slak is pointed to slack; of two distributions the order of installation does not choose."""
    install("dc-slac", "1.2", {"slackk": "dc_slack"})
    error = refused(lambda: find("slakk", None))
    assert (error.code, error.suggestion) == ("DCL080", 'did you mean "slackk"?')
    install("dc-one", "1.0", {"slack": "dc_one"})
    install("dc-two", "2.0", {"slack": "dc_two"})
    error = refused(lambda: find("slack", None))
    assert error.code == "DCL083"
    assert error.message == "dc-one 1.0 and dc-two 2.0 both have a plugin named slack"


@pytest.mark.parametrize("allowed", [None, ">=1.2,<2", "==1.2.*", "~=1.2"])
def test_a_version_in_the_range_is_found(install, allowed):
    """A release candidate counts if the range has it."""
    install("dc-slack", "1.2.1rc1" if allowed is None else "1.2.1", {"slack": "dc_slack"})
    assert find("slack", allowed).distribution == "dc-slack"


@pytest.mark.parametrize(
    ("version", "allowed"), [("1.2", ">=2"), ("not-a-version", ">=1"), ("1.2", "newest")]
)
def test_a_version_outside_the_range_is_refused(install, version, allowed):
    """Both versions are named; what can't be read is in no range."""
    install("dc-slack", version, {"slack": "dc_slack"})
    error = refused(lambda: find("slack", allowed))
    assert error.code == "DCL081"
    assert error.message == f"slack is installed in version {version}, which is not in {allowed}"


def test_a_module_is_loaded_as_it_is_and_a_class_is_made(install):
    install("dc-kinds", "1.0", {"mod": "dc_kinds", "cls": "dc_kinds:Plugin"}, dc_kinds="class Plugin: ...")
    assert load(find("mod", None)) is sys.modules["dc_kinds"]
    assert type(load(find("cls", None))).__name__ == "Plugin"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise OSError('no token')", "OSError: no token"),
        ("import sys; sys.exit(1)", "SystemExit: 1"),
        ("import not_installed", "No module named 'not_installed'"),
        ("def f(:", "SyntaxError"),
        ("Other = 1", "has no attribute 'Plugin'"),
        ("class Plugin:\n    def __init__(self, url): ...", "missing 1 required positional argument"),
    ],
)
def test_a_broken_plugin_gives_its_reason(install, source, reason):
    """It takes nobody else down, not even with sys.exit."""
    install("dc-broken", "1.0", {"broken": "dc_broken:Plugin"}, dc_broken=source)
    error = refused(lambda: load(find("broken", None)))
    assert error.code == "DCL083"
    assert error.message.startswith("the plugin broken (dc-broken 1.0) can't be loaded: ")
    assert reason in error.message


@pytest.mark.parametrize(
    ("wanted", "does", "advice"),
    [
        (">=2", "supports the hook specification >=2, and this declctl", "upgrade declctl"),
        (">1.1,<2", "supports the hook specification >1.1,<2, and", "upgrade declctl"),
        ("~=1.4", "supports the hook specification ~=1.4, and", "upgrade declctl"),
        ("==2.*", "supports the hook specification ==2.*, and", "upgrade declctl"),
        ("<1", "supports the hook specification <1, and", "pip install --upgrade dc-new"),
        (">=0.3,<0.9", "supports the hook specification", "pip install --upgrade dc-new"),
    ],
)
def test_a_plugin_for_other_hooks_is_refused_before_its_import(install, wanted, does, advice):
    """The message names the plugin, its range and the version of the host; nothing of it has run."""
    source = f"declctl_hookspec_version: str = {wanted!r}\nraise OSError('imported')\n"
    install("dc-new", "1.3", {"new": "dc_new"}, dc_new=source)
    error = refused(lambda: load(find("new", None)))
    assert error.code == "DCL085"
    assert error.message.startswith(f"the plugin new (dc-new 1.3) {does}")
    assert error.message.endswith(f" has {HOOKSPEC_VERSION}")
    assert advice in error.suggestion
    assert "dc_new" not in sys.modules


def test_the_range_of_a_class_and_of_a_submodule_is_read(install):
    """What is not the plugin itself says nothing of it."""
    source = (
        "class Other:\n    declctl_hookspec_version = '>=9'\n"
        "class Plugin:\n    declctl_hookspec_version = '>=2'\n"
    )
    install("dc-kinds", "1.0", {"cls": "dc_kinds:Plugin"}, dc_kinds=source)
    assert written_range(find("cls", None)) == ">=2"
    folder = install("dc-deep", "1.0", {"deep": "dc_deep.inner"})
    (folder / "dc_deep").mkdir()
    (folder / "dc_deep" / "__init__.py").write_text("raise OSError('imported')\n")
    (folder / "dc_deep" / "inner.py").write_text("declctl_hookspec_version = '>=1,<2'\n")
    importlib.invalidate_caches()
    assert written_range(find("deep", None)) == ">=1,<2"
    assert "dc_deep" not in sys.modules


@pytest.mark.parametrize("wanted", ["'>=' + '2'", "str(2) + '.0'", "3", "'whatever'", "'1.0'", "''"])
def test_a_range_that_is_computed_or_wrong_is_refused_after_the_import(install, wanted):
    """What the source does not show as a text, the loaded plugin does. Its author reads what to write."""
    install("dc-new", "1.0", {"new": "dc_new"}, dc_new=f"declctl_hookspec_version = {wanted}")
    error = refused(lambda: load(find("new", None)))
    assert error.code == "DCL085"
    if wanted == "'1.0'":
        assert "declares declctl_hookspec_version = '1.0', which is no range of versions" in error.message
        assert '">=1.0,<2"' in error.suggestion


def test_a_plugin_for_these_hooks_is_loaded(install):
    """A range that has this version is fine, and so is none; loaded code is judged by its own range."""
    install("dc-new", "1.0", {"new": "dc_new"}, dc_new="declctl_hookspec_version = '>=1,<2'")
    install("dc-any", "1.0", {"any": "dc_any"}, dc_any="x = 1")
    assert load(find("new", None)).declctl_hookspec_version == ">=1,<2"
    assert load(find("any", None)).x == 1
    folder = Path(sys.modules["dc_new"].__file__).parent
    plugin = find("new", None)
    loaded = load(plugin)
    (folder / "dc_new.py").write_text("declctl_hookspec_version = '>=2'")
    assert load(plugin) is loaded


def test_the_documentation_has_the_version_of_the_hooks():
    """Authors read in docs/plugins.md which version the page describes."""
    page = (Path(__file__).parents[3] / "docs" / "plugins.md").read_text("utf-8")
    assert f"version **{HOOKSPEC_VERSION}** of the hook specification" in page


SCHEMA = {
    "type": "object",
    "required": ["channel"],
    "additionalProperties": False,
    "properties": {
        "channel": {"type": "string", "pattern": "^#"},
        "limits": {"type": "array", "items": {"type": "integer", "minimum": 1, "multipleOf": 2}},
        "mode": {"enum": ["a", "b"]},
    },
}


def test_a_config_that_fits_passes() -> None:
    """Nothing is said. A value that is in a Secret counts as present; `$schema` chooses another draft."""
    check_config(SCHEMA, {"channel": "#ops", "limits": [2, 4], "mode": "a"})
    token = {"type": "string", "pattern": "^tok", "maxLength": 3}
    schema = {"required": ["token"], "properties": {"token": token}, "additionalProperties": False}
    check_config(schema, {}, known_later=["token"])
    assert [fault.path for fault in faults_of(schema, {}, known_later=["token", "tokne"])] == [("tokne",)]
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 5, "exclusiveMaximum": True}
    assert faults_of(schema, 5)


@pytest.mark.parametrize(
    ("config", "path", "message"),
    [
        ({}, (), "'channel' is a required property"),
        ({"channel": "#a", "chanel": 1}, ("chanel",), "unknown key 'chanel'"),
        ({"channel": 5}, ("channel",), 'this is not of type "string"'),
        ({"channel": "s3cret"}, ("channel",), 'this doesn\'t match the pattern "^#"'),
        ({"channel": "#a", "limits": [2, 0]}, ("limits", 1), "this is less than 1"),
        ({"channel": "#a", "limits": [3]}, ("limits", 0), "this is no multiple of 2"),
        ({"channel": "#a", "mode": "s3cret"}, ("mode",), 'this is none of ["a", "b"]'),
    ],
)
def test_a_config_that_does_not_fit_is_told_with_its_place(config, path, message):
    """The path leads to the line in the manifest; values are not shown, because they may be secret."""
    (fault,) = faults_of(SCHEMA, config)
    assert (fault.path, fault.message) == (path, message)


def test_all_faults_of_a_config_are_told_at_once():
    """Who has made three slips mends three; a missing key is described, a place is written as in Python."""
    config = {"chanel": "#a", "limits": [0, 2, 3], "mode": "c"}
    assert {(fault.path, fault.suggestion) for fault in faults_of(SCHEMA, config)} == {
        ((), None),  # channel is missing
        (("chanel",), 'did you mean "channel"?'),
        (("limits", 0), None),
        (("limits", 2), None),
        (("mode",), None),
    }
    schema = {"required": ["to", "by"], "properties": {"to": {"description": "An address."}, "by": {}}}
    assert [(fault.message, fault.suggestion) for fault in faults_of(schema, {})] == [
        ("'to' is a required property", "add to: An address."),
        ("'by' is a required property", None),
    ]
    schema = {"properties": {"to": {"items": {"properties": {"port": {"type": "integer"}}}}}}
    (fault,) = faults_of(schema, {"to": [{"port": 1}, {"port": None}]})
    assert fault.where == "config.to[1].port"


def test_of_alternatives_the_nearest_says_what_is_wrong():
    """All of its faults: not what an email would need, and not that a value fits none of two schemas."""
    schema = {"properties": {"to": {"anyOf": [{"type": "array"}, {"type": "string", "pattern": "^#"}]}}}
    (fault,) = faults_of(schema, {"to": "ops"})
    assert fault.message == 'this doesn\'t match the pattern "^#"'
    webhook = {"required": ["url"], "additionalProperties": False, "properties": {"url": {}, "tls": {}}}
    email = {"required": ["to", "subject", "sender"], "properties": {"kind": {"const": "email"}}}
    schema = {"properties": {"send": {"oneOf": [webhook, email]}}}
    found = faults_of(schema, {"send": {"urls": 1, "tsl": 2}})
    assert sorted((fault.where, fault.message) for fault in found) == [
        ("config.send", "'url' is a required property"),
        ("config.send", "unknown key 'tsl'"),
        ("config.send", "unknown key 'urls'"),
    ]


def faults_of(schema, config, **more):
    with pytest.raises(PluginConfigError) as caught:
        check_config(schema, config, **more)
    return caught.value.faults


@pytest.mark.parametrize(
    ("schema", "value", "suggestion"),
    [
        ({"enum": ["text", "json"]}, "JOSN", 'did you mean "json"?'),
        ({"enum": ["text", "json"]}, "protobuf", None),
        ({"type": "string"}, 5, "put the value in quotes"),
        ({"type": "string"}, True, "put the value in quotes"),
        ({"type": "integer"}, "5", "remove the quotes"),
        ({"type": ["number", "null"]}, "-0.5", "remove the quotes"),
        ({"type": "boolean"}, "true", "remove the quotes"),
        ({"type": "integer"}, "five", None),
        ({"type": "array"}, "a", "write a list, such as [a, b]"),
        (
            {"minLength": 3, "description": "The channel,\n  with its #."},
            "#",
            "the plugin says of it: The channel, with its #.",
        ),
    ],
)
def test_a_fault_comes_with_what_to_write(schema, value, suggestion):
    """A suggestion shows words of the schema, and never the value."""
    (fault,) = faults_of({"properties": {"it": schema}}, {"it": value})
    assert (fault.where, fault.suggestion) == ("config.it", suggestion)


@pytest.mark.parametrize("schema", [{"type": "strange"}, None, [1], {"$ref": "#/nowhere"}])
def test_a_schema_that_is_none_is_the_plugins_fault(schema):
    with pytest.raises(EntryPointError, match="is not a JSON Schema") as caught:
        check_config(schema, {"a": 1})
    assert caught.value.code == "DCL083"
