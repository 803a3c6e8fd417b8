"""The commands of plugins: `declctl PLUGIN …`, loaded late, and never in the way of declctl's own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
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


@pytest.fixture(name="install")
def _install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a package with one plugin on the path, as pip would."""
    site = folder / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))

    def install(name: str, source: str = GOOD) -> None:
        module = f"declctl_test_{name}"
        (site / f"{module}.py").write_text(source)
        info = site / f"{module}-1.2.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2.0\n")
        (info / "entry_points.txt").write_text(f"[declctl]\n{name} = {module}\n")
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


def test_a_command_of_a_plugin_runs(declctl: Callable, install: Callable):
    """Below the name of the plugin, with its options, and nothing of its import on stdout."""
    install("slack")
    ended = declctl("slack", "post", "--channel", "ops")
    assert (ended.status, ended.out) == (0, "posted to ops\n")
    assert declctl("slack", "post").out == "posted to general\n"


def test_the_help_has_them_in_a_group_of_their_own(declctl: Callable, install: Callable):
    """Who asks for help sees what is installed; a plugin without commands is not in it."""
    install("slack")
    install("silent", SILENT)
    ended = declctl("--help")
    assert (ended.status, "silent" in ended.out) == (0, False)
    own, _, plugins = ended.out.partition("Commands of plugins:\n")
    assert "validate" in own
    assert plugins.split(maxsplit=1)[0] == "slack"
    assert "Commands of the plugin slack (declctl_test_slack 1.2.0)." in plugins
    below = declctl("slack", "--help").out
    assert "Post a message." in below
    assert "declctl slack" in below


def test_a_long_name_of_a_plugin_leaves_the_texts_of_the_help(declctl: Callable, install: Callable):
    """Of declctl's commands, too."""
    install("s" * 60)
    assert "Check manifests;" in declctl("--help").out


def test_a_callback_of_the_plugin_has_its_help_and_options(declctl: Callable, install: Callable):
    """As in any typer application; an exit status of a command is that of declctl."""
    install("slack", CALLBACK)
    assert "Talk to Slack." in declctl("--help").out
    assert declctl("slack", "--status", "7", "post").status == 7
    assert declctl("slack", "post").status == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["version"],
        ["validate", "."],
        ["explain", "DCL001"],
        ["validate", "--help"],
        ["nonsense"],
    ],
)
def test_commands_of_declctl_import_no_plugin(declctl: Callable, install: Callable, arguments: list[str]):
    """Their time does not grow with what is installed."""
    install("slack")
    declctl(*arguments)
    assert "declctl_test_slack" not in sys.modules


def test_one_plugin_is_imported_for_its_command(declctl: Callable, install: Callable):
    """The others may be slow or broken."""
    install("slack")
    install("broken", "declctl_commands = 1/0\n")
    ended = declctl("slack", "post")
    assert (ended.status, "broken" in ended.err) == (0, False)


def test_a_plugin_cannot_take_a_command_of_declctl(declctl: Callable, install: Callable):
    """Also one that this version does not have yet: the name is declctl's."""
    install("version")
    install("lint")
    assert declctl("version").out.startswith("declctl ")
    ended = declctl("lint")
    assert (ended.status, "does not do `declctl lint` yet" in ended.err) == (2, True)
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
def test_a_broken_plugin_is_a_line_on_stderr(declctl: Callable, install: Callable, source: str, words: str):
    """The rest works, and so do other plugins; who asks for the broken one reads why it is not there."""
    install("broken", source)
    install("slack")
    ended = declctl("--help")
    assert ended.status == 0
    assert "validate" in ended.out
    assert "slack" in ended.out.partition("Commands of plugins:")[2]
    (line,) = [line for line in ended.err.splitlines() if line != "noise at import"]
    assert line.startswith("warning: the commands of the plugin broken are left out: ")
    assert words in line
    ended = declctl("broken", "post")
    assert (ended.status, words in ended.err, "No such command 'broken'" in ended.err) == (2, True, True)


def test_an_exception_of_a_command_is_a_fault_of_the_plugin(declctl: Callable, install: Callable):
    """Nobody reports it to declctl."""
    install("slack")
    ended = declctl("slack", "fail")
    assert ended.status == 1
    assert "OSError: no network" in ended.err
    assert ended.err.splitlines()[-1] == (
        "declctl: a command of the plugin slack (declctl_test_slack 1.2.0) has failed. Please report it to "
        "its authors."
    )
    ended = declctl("slack", "post", "--chanel", "x")
    assert (ended.status, "No such option" in ended.err) == (2, True)


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [("zero", 0, ""), ("seven", 7, ""), ("none", 0, ""), ("true", 0, ""), ("text", 1, "no such channel\n")],
)
def test_a_command_ends_as_one_of_any_typer_application(
    declctl: Callable, install: Callable, how: str, status: int, said: str
):
    """By `sys.exit`, whose text is printed; what a function returns is no exit status."""
    install("slack")
    ended = declctl("slack", "leave", how)
    assert ended.status == status
    assert ended.err.removeprefix("noise at import\n") == said


@pytest.mark.parametrize("variable", ["", "other"])
def test_plugins_are_left_out_as_asked(
    declctl: Callable, install: Callable, monkeypatch: pytest.MonkeyPatch, variable: str
):
    """`DECLCTL_LOAD_PLUGINS` counts for commands, too."""
    install("slack")
    monkeypatch.setenv("DECLCTL_LOAD_PLUGINS", variable)
    assert "slack" not in declctl("--help").out
    ended = declctl("slack", "post")
    assert (ended.status, "the plugin slack is left out" in ended.err) == (2, True)
    assert "declctl_test_slack" not in sys.modules


def test_no_plugins_leaves_their_commands_out(
    declctl: Callable, install: Callable, monkeypatch: pytest.MonkeyPatch
):
    """Before the command, and before the help."""
    install("slack")
    monkeypatch.setenv("DECLCTL_LOAD_PLUGINS", "slack")  # restored at the end of the test
    assert "slack" in declctl("--help").out
    ended = declctl("--no-plugins", "--help")
    assert (ended.status, "slack" in ended.out) == (0, False)
    monkeypatch.setenv("DECLCTL_LOAD_PLUGINS", "slack")
    assert "is left out: no plugin may be loaded" in declctl("--no-plugins", "slack", "post").err


@pytest.mark.parametrize(
    ("line", "found"),
    [("declctl sl", ["slack"]), ("declctl slack po", ["post"]), ("declctl vali", ["validate"])],
)
def test_a_shell_completes_them(install: Callable, folder: Path, line: str, found: list[str]):
    """The name of the plugin, and its commands; a broken plugin says nothing in the middle of the line."""
    install("slack")
    install("slow", "declctl_commands = 1/0\n")
    words = line.split()
    asked = {"_DECLCTL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "declctl"],
        env={**os.environ, **asked},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == found
    assert "left out" not in done.stderr
