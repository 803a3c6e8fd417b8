"""`declctl plugins list`, with packages on the path."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = "import declctl\n\n@declctl.hookimpl\ndef declctl_event(change):\n    return None\n"


@pytest.fixture(name="install")
def _install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a package with one plugin on the path, as pip would."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))  # plugins are imported in a child

    def install(name: str, source: str) -> None:
        module = f"declctl_test_{name}"
        (folder / f"{module}.py").write_text(source)
        info = folder / f"{module}-1.2.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2.0\n")
        (info / "entry_points.txt").write_text(f"[declctl]\n{name} = {module}\n")
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


def listed(declctl: Callable, *arguments: str) -> dict[str, dict[str, object]]:
    """The plugins that are listed as JSON, by name."""
    ended = declctl(*arguments, "plugins", "list", "-o", "json")
    assert ended.status == 0
    return {plugin["name"]: plugin for plugin in json.loads(ended.out)}


def test_a_plugin_is_listed_with_its_hooks(declctl: Callable, install: Callable):
    """Who installed a plugin sees that it is found, in which version, and what it listens to."""
    install("good", GOOD)
    assert listed(declctl)["good"] == {
        "name": "good",
        "distribution": "declctl_test_good",
        "version": "1.2.0",
        "hooks": ["declctl_event"],
        "state": "Ready",
        "reason": None,
        "hookspec": None,
        "traceback": None,
        "config_schema": None,
    }


def test_a_plugin_is_listed_with_the_hooks_that_it_is_for(declctl: Callable, install: Callable):
    """The range that a plugin declares is shown, also of one that is refused because of it."""
    install("good", f"declctl_hookspec_version = '>=1,<2'\n{GOOD}")
    install("newer", f"from declctl import NotThereYet\ndeclctl_hookspec_version = '>=7,<8'\n{GOOD}")
    plugins = listed(declctl)
    assert (plugins["good"]["hookspec"], plugins["good"]["state"]) == (">=1,<2", "Ready")
    assert (plugins["newer"]["hookspec"], plugins["newer"]["state"]) == (">=7,<8", "Quarantined")
    assert "supports the hook specification >=7,<8, and this declctl" in str(plugins["newer"]["reason"])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("1/0\n", "ZeroDivisionError"),
        ("raise SystemExit(3)\n", "SystemExit"),
        (GOOD.replace("declctl_event", "declctl_evnt"), "there is no hook 'declctl_evnt'"),
        (GOOD.replace("(change)", "(chnage)"), "chnage"),
    ],
)
def test_a_broken_plugin_is_quarantined_and_the_others_are_listed(
    declctl: Callable, install: Callable, source: str, reason: str
):
    """One broken plugin takes neither the others nor the command line down."""
    install("broken", source)
    install("good", GOOD)
    plugins = listed(declctl)
    assert plugins["broken"]["state"] == "Quarantined"
    assert reason in str(plugins["broken"]["reason"])
    assert plugins["good"]["state"] == "Ready"


def test_below_the_table_is_why_a_plugin_is_quarantined(declctl: Callable, install: Callable, folder: Path):
    """The whole reason, which the width of a terminal would cut, and the end of the traceback."""
    install("broken", "x = 1\n1/0\n")
    install("good", GOOD)
    shown = declctl("plugins", "list").out
    module = folder / "declctl_test_broken.py"
    reason = (
        "the plugin broken (declctl_test_broken 1.2.0) can't be loaded: "
        f"ZeroDivisionError: division by zero ({module}:2)"
    )
    assert f"\n\n{reason}\n" in shown
    assert f'    File "{module}", line 2, in <module>\n' in shown
    assert shown.endswith("  ZeroDivisionError: division by zero\n")
    assert listed(declctl)["broken"]["traceback"].endswith("ZeroDivisionError: division by zero")
    assert listed(declctl)["good"]["traceback"] is None


def test_no_plugins_loads_none(declctl: Callable, install: Callable, monkeypatch: pytest.MonkeyPatch):
    """--no-plugins is the way out when a plugin breaks everything."""
    monkeypatch.setenv("DECLCTL_LOAD_PLUGINS", "good")  # put back what --no-plugins sets
    install("good", "1/0\n")
    assert listed(declctl, "--no-plugins") == {}


def test_the_table_has_a_line_for_each(declctl: Callable, install: Callable):
    """People get a table."""
    install("good", GOOD)
    lines = declctl("plugins", "list").out.splitlines()
    assert lines[0].split() == ["PLUGIN", "DISTRIBUTION", "VERSION", "HOOKSPEC", "STATE", "HOOKS", "REASON"]
    assert any(line.split()[:5] == ["good", "declctl_test_good", "1.2.0", "any", "Ready"] for line in lines)
