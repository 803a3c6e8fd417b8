"""`declctl plugins list`, with packages on the path."""

import pytest

from tests.rooms.cli.conftest import Command

GOOD = "import declctl\n\n@declctl.hookimpl\ndef declctl_event(change):\n    return None\n"


def listed(declctl: Command, *arguments: str) -> dict[str, dict[str, object]]:
    """The plugins that are listed as JSON, by name."""
    ended = declctl.done(*arguments, "plugins", "list", "-o", "json")
    return {plugin["name"]: plugin for plugin in ended.document}


def test_a_plugin_is_listed_with_its_hooks(declctl, install):
    """Who installed a plugin sees that it is found, in which version, and what it listens to."""
    install("good", GOOD)
    nothing = dict.fromkeys(("reason", "hookspec", "traceback", "config_schema"))
    names = {"name": "good", "distribution": "declctl_test_good", "version": "1.2.0"}
    assert listed(declctl)["good"] == {**names, "hooks": ["declctl_event"], "state": "Ready", **nothing}
    head, *rows = declctl("plugins", "list").lines
    assert head.split() == ["PLUGIN", "DISTRIBUTION", "VERSION", "HOOKSPEC", "STATE", "HOOKS", "REASON"]
    assert ["good", "declctl_test_good", "1.2.0", "any", "Ready"] in [row.split()[:5] for row in rows]


def test_a_plugin_is_listed_with_the_hooks_that_it_is_for(declctl, install):
    """The range that a plugin declares is shown, also of one that is refused because of it."""
    install("good", f"declctl_hookspec_version = '>=1,<2'\n{GOOD}")
    install("newer", f"from declctl import NotThereYet\ndeclctl_hookspec_version = '>=7,<8'\n{GOOD}")
    found = {name: (each["hookspec"], each["state"]) for name, each in listed(declctl).items()}
    assert (found["good"], found["newer"]) == ((">=1,<2", "Ready"), (">=7,<8", "Quarantined"))
    assert "supports the hook specification >=7,<8, and this declctl" in str(
        listed(declctl)["newer"]["reason"]
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("1/0\n", "ZeroDivisionError"),
        ("raise SystemExit(3)\n", "SystemExit"),
        (GOOD.replace("declctl_event", "declctl_evnt"), "there is no hook 'declctl_evnt'"),
        (GOOD.replace("(change)", "(chnage)"), "chnage"),
    ],
)
def test_a_broken_plugin_is_quarantined_and_the_others_are_listed(declctl, install, source, reason):
    """One broken plugin takes neither the others nor the command line down."""
    install("broken", source)
    install("good", GOOD)
    plugins = listed(declctl)
    assert (plugins["broken"]["state"], plugins["good"]["state"]) == ("Quarantined", "Ready")
    assert reason in str(plugins["broken"]["reason"])


def test_below_the_table_is_why_a_plugin_is_quarantined(declctl, install, folder, monkeypatch):
    """The whole reason, which the width of a terminal would cut, and the end of the traceback."""
    install("broken", "x = 1\n1/0\n")
    install("good", GOOD)
    shown = declctl("plugins", "list").out
    module = folder / "site" / "declctl_test_broken.py"
    broken = "the plugin broken (declctl_test_broken 1.2.0) can't be loaded"
    assert f"\n\n{broken}: ZeroDivisionError: division by zero ({module}:2)\n" in shown
    assert f'    File "{module}", line 2, in <module>\n' in shown
    assert shown.endswith("  ZeroDivisionError: division by zero\n")
    plugins = listed(declctl)
    assert str(plugins["broken"]["traceback"]).endswith("ZeroDivisionError: division by zero")
    assert plugins["good"]["traceback"] is None
    # --no-plugins is the way out when a plugin breaks everything.
    monkeypatch.setenv("DECLCTL_LOAD_PLUGINS", "good")  # put back what --no-plugins sets
    assert listed(declctl, "--no-plugins") == {}
