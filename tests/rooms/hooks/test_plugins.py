"""Installed plugins: found without being imported, and loaded one by one."""

import importlib
import sys

import pytest

from declctl.errors import EntryPointError
from declctl.hooks.plugins import find, installed, load


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

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refused(call):
    """The fault that a call ends in."""
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
def test_the_rescue_variable_narrows(install, value, expected):
    """When a plugin breaks everything, it can be kept out without uninstalling it."""
    install("dc-both", "1.0", {"slack": "dc_a", "audit": "dc_b"})
    assert [p.name for p in installed({"DECLCTL_LOAD_PLUGINS": value})] == expected


def test_what_the_rescue_variable_keeps_out_is_told_as_such(install, monkeypatch):
    """Not as missing: installing it again would not help."""
    install("dc-slack", "1.2", {"slack": "dc_slack"})
    monkeypatch.setenv("DECLCTL_LOAD_PLUGINS", "")
    error = refused(lambda: find("slack", None))
    assert error.code == "DCL080"
    assert "DECLCTL_LOAD_PLUGINS" in error.message


def test_a_misspelled_plugin_is_told_with_the_nearest(install):
    """Who lists slak is pointed to slack."""
    install("dc-slack", "1.2", {"slack": "dc_slack"})
    error = refused(lambda: find("slak", None))
    assert (error.code, error.suggestion) == ("DCL080", 'did you mean "slack"?')


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
    assert (error.code, error.message) == (
        "DCL081",
        f"slack is installed in version {version}, which is not in {allowed}",
    )


def test_two_distributions_with_one_name_are_refused(install):
    """Which of them would be loaded must not depend on the order of installation."""
    install("dc-one", "1.0", {"slack": "dc_one"})
    install("dc-two", "2.0", {"slack": "dc_two"})
    error = refused(lambda: find("slack", None))
    assert (error.code, error.message) == (
        "DCL083",
        "dc-one 1.0 and dc-two 2.0 both have a plugin named slack",
    )


def test_a_module_is_loaded_as_it_is_and_a_class_is_made(install):
    """Both are plugins."""
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
    assert error.message.startswith("the plugin broken (dc_broken:Plugin) can't be loaded: ")
    assert reason in error.message


@pytest.mark.parametrize("wanted", ["'>=2'", "'whatever'", "3"])
def test_a_plugin_for_other_hooks_is_refused(install, wanted):
    """A plugin may say which version of the hooks it is written for."""
    install("dc-new", "1.0", {"new": "dc_new"}, dc_new=f"declctl_hookspec_version = {wanted}")
    assert refused(lambda: load(find("new", None))).code == "DCL085"


def test_a_plugin_for_these_hooks_is_loaded(install):
    """A range that has this version is fine."""
    install("dc-new", "1.0", {"new": "dc_new"}, dc_new="declctl_hookspec_version = '>=1,<2'")
    assert load(find("new", None)).declctl_hookspec_version == ">=1,<2"
