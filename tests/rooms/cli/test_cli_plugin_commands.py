"""The commands of plugins: `declctl PLUGIN …`, loaded late, and never in the way of declctl's own."""

import sys
from collections.abc import Callable

import pytest

GOOD = """
import sys
from pathlib import Path
import declctl
Path("imported").write_text("yes")
print("noise at import")

@declctl.hookimpl
def declctl_commands(app):
    @app.command()
    def post(channel: str = "general") -> None:
        '''Post a message.'''
        print(f"posted to {channel}")

    @app.command()
    def fail() -> None:
        '''Fail.'''
        raise OSError("no network")

    @app.command()
    def leave(how: str) -> bool:
        '''End in one way or another.'''
        if how != "true":
            sys.exit({"zero": 0, "seven": 7, "none": None, "text": "no such channel"}[how])
        return True
"""
CALLBACK = """
import declctl
import typer

@declctl.hookimpl
def declctl_commands(app):
    @app.callback()
    def slack(status: int = 0) -> None:
        '''Talk to Slack.'''
        if status:
            raise typer.Exit(status)

    @app.command()
    def post() -> None:
        '''Post a message.'''
"""
SILENT = "import declctl\n@declctl.hookimpl\ndef declctl_event(change): ...\n"


@pytest.fixture(name="slack")
def _slack(install: Callable) -> None:
    install("slack", GOOD)


def test_a_command_of_a_plugin_runs(declctl, slack, install):
    """Below the name of the plugin, with its options; the others may be slow or broken."""
    assert declctl.done("slack", "post", "--channel", "ops").out == "posted to ops\n"
    install("broken", "declctl_commands = 1/0\n")
    ended = declctl("slack", "post")
    assert ended.out == "posted to general\n"
    assert "broken" not in ended.err


def test_the_help_has_them_in_a_group_of_their_own(declctl, slack, install):
    """Who asks for help sees what is installed; a plugin without commands is not in it."""
    install("silent", SILENT)
    out = declctl.done("--help").out
    own, _, plugins = out.partition("Commands of plugins:\n")
    assert plugins.split(maxsplit=1)[0] == "slack"
    assert "silent" not in out
    assert "validate" in own
    assert "Commands of the plugin slack (declctl_test_slack 1.2.0)." in plugins
    below = declctl("slack", "--help").out
    assert ("Post a message." in below, "declctl slack" in below) == (True, True)
    # A long name leaves the texts of the help, of declctl's commands, too.
    install("s" * 60, GOOD)
    assert "Check manifests;" in declctl("--help").out


def test_a_callback_of_the_plugin_has_its_help_and_options(declctl, install):
    """As in any typer application; an exit status of a command is that of declctl."""
    install("slack", CALLBACK)
    assert "Talk to Slack." in declctl("--help").out
    assert [declctl("slack", "--status", status, "post").status for status in ("7", "0")] == [7, 0]


@pytest.mark.parametrize(
    "line", ["--version", "version", "validate .", "explain DCL001", "validate --help", "nonsense"]
)
def test_commands_of_declctl_import_no_plugin(declctl, slack, line):
    """Their time does not grow with what is installed."""
    declctl(*line.split())
    assert "declctl_test_slack" not in sys.modules


def test_a_plugin_cannot_take_a_command_of_declctl(declctl, install):
    """Also one that this version does not have yet: the name is declctl's."""
    install("version", GOOD)
    install("lint", GOOD)
    assert declctl("version").out.startswith("declctl ")
    assert "does not do `declctl lint` yet" in declctl.refused("lint")
    ended = declctl("--help")
    assert "the commands of the plugin version are left out: declctl has a command of this name" in ended.err
    assert "Commands of plugins" not in ended.out


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("declctl_commands = 1/0\n", "ZeroDivisionError"),
        (GOOD.replace("(app):", "(app):\n    raise OSError('no')"), "OSError: no"),
        (GOOD.replace("channel: str", "channel: complex"), "typer can't read them"),
        ("import declctl\n@declctl.hookimpl\ndef declctl_commands(app): ...\n", "declctl_commands adds none"),
        (f"declctl_hookspec_version = '>=7,<8'\n{GOOD}", "supports the hook specification >=7,<8"),
    ],
    ids=["import", "hook", "typer", "none", "version"],
)
def test_a_broken_plugin_is_a_line_on_stderr(declctl, slack, install, source, words):
    """The rest works, and so do other plugins; who asks for the broken one reads why it is not there."""
    install("broken", source)
    ended = declctl.done("--help")
    assert "validate" in ended.out
    assert "slack" in ended.out.partition("Commands of plugins:")[2]
    (line,) = [line for line in ended.err.splitlines() if line != "noise at import"]
    assert line.startswith("warning: the commands of the plugin broken are left out: ")
    assert words in line
    said = declctl.refused("broken", "post")
    assert (words in said, "No such command 'broken'" in said) == (True, True)


def test_an_exception_of_a_command_is_a_fault_of_the_plugin(declctl, slack):
    """Nobody reports it to declctl."""
    said = declctl.refused("slack", "fail", status=1)
    assert "OSError: no network" in said
    plugin = "a command of the plugin slack (declctl_test_slack 1.2.0) has failed."
    assert said.endswith(f"\ndeclctl: {plugin} Please report it to its authors.\n")
    assert "No such option" in declctl.refused("slack", "post", "--chanel", "x")


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [("zero", 0, ""), ("seven", 7, ""), ("none", 0, ""), ("true", 0, ""), ("text", 1, "no such channel\n")],
)
def test_a_command_ends_as_one_of_any_typer_application(declctl, slack, how, status, said):
    """By `sys.exit`, whose text is printed; what a function returns is no exit status."""
    ended = declctl("slack", "leave", how)
    assert (ended.status, ended.err.removeprefix("noise at import\n")) == (status, said)


@pytest.mark.parametrize("variable", ["", "other"])
def test_plugins_are_left_out_as_asked(declctl, slack, monkeypatch, variable):
    """`DECLCTL_LOAD_PLUGINS` counts for commands, too; --no-plugins before the command and the help."""
    monkeypatch.setenv("DECLCTL_LOAD_PLUGINS", variable)
    assert "slack" not in declctl("--help").out
    assert "the plugin slack is left out" in declctl.refused("slack", "post")
    assert "declctl_test_slack" not in sys.modules
    monkeypatch.setenv("DECLCTL_LOAD_PLUGINS", "slack")
    assert "slack" in declctl("--help").out
    assert "slack" not in declctl.done("--no-plugins", "--help").out
    monkeypatch.setenv("DECLCTL_LOAD_PLUGINS", "slack")
    assert "is left out: no plugin may be loaded" in declctl("--no-plugins", "slack", "post").err


@pytest.mark.parametrize(
    ("line", "found"),
    [("declctl sl", ["slack"]), ("declctl slack po", ["post"]), ("declctl vali", ["validate"])],
)
def test_a_shell_completes_them(complete, slack, install, line, found):
    """The name of the plugin, and its commands; a broken plugin says nothing in the middle of the line."""
    install("slow", "declctl_commands = 1/0\n")
    ended = complete(line)
    assert ended.out.split() == found
    assert "left out" not in ended.err
