"""Exit statuses, and what a person sees when something goes wrong."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from declctl.cli import app as commands
from declctl.errors import ManifestErrors, SandboxError, Unreachable, UsageError
from declctl.manifest import Diagnostic

FAULT = Diagnostic("m.yaml", 3, 2, "DCL012", "unknown field", suggestion="remove it", source_line="  x: 1")


def raising(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(commands, "app", fail)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        # A missing cluster is told in a sentence, without a traceback.
        (UsageError("No cluster is configured."), 2, "declctl: No cluster is configured.\n"),
        (Unreachable("connection refused"), 2, None),
        (SandboxError("objects.yaml:3: no kind"), 1, None),
        # A fault of the manifest is shown where it stands, in plain text when stderr is no terminal.
        (
            ManifestErrors([FAULT]),
            1,
            "m.yaml:3:2: error DCL012: unknown field\n  3 |   x: 1\n    |  ^\n  help: remove it\n",
        ),
        (RuntimeError("oh"), 3, None),
        (ExceptionGroup("tasks", [ExceptionGroup("more", [UsageError("No cluster.")])]), 2, None),
        (ExceptionGroup("tasks", [UsageError("a"), RuntimeError("b")]), 3, None),
    ],
)
def test_each_error_has_its_exit_status(monkeypatch, declctl, error, status, said):
    """Scripts can tell a fault of their input from a missing cluster and from a bug."""
    raising(monkeypatch, error)
    err = declctl.refused("anything", status=status)
    assert said is None or err == said


def test_an_internal_error_asks_for_a_report(monkeypatch, declctl):
    """A bug shows its traceback, says that it is one, and what to do."""
    raising(monkeypatch, RuntimeError("oh"))
    said = declctl("anything").err
    for words in ("RuntimeError: oh", "Please report it", "declctl version"):
        assert words in said


@pytest.mark.parametrize("arguments", ["--nonsense", "nonsense", "run", "run m --log-level x"])
def test_wrong_usage_ends_with_2(declctl, arguments):
    """A misspelled command or option is a usage error that names what is wrong."""
    assert "Error" in declctl.refused(*arguments.split())


def test_help_needs_no_command(declctl):
    """`declctl --help` lists the commands that there are, and hides those that are not done yet."""
    out = declctl.done("--help").out
    for name in ("run", "validate", "status", "reload", "sandbox", "explain", "schema", "version", "plugins"):
        assert f"  {name} " in out
    assert "  record " not in out


def test_a_closed_pipe_is_quiet():
    """`declctl schema | head -1` ends without a word about a broken pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "declctl", "schema"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


@pytest.mark.parametrize(
    ("command", "allowed"), [("version", set()), ("--help", {"typer", "asyncio"})], ids=["version", "help"]
)
def test_what_answers_at_once_imports_nothing_heavy(command, allowed):
    """No client, parser or machinery for `version`; for the help, the parser alone: shells complete by it."""
    heavy = {"kubernetes", "aiohttp", "jsonschema", "typer", "rich", "structlog", "yaml", "asyncio"}
    program = (
        f"import sys; from declctl.cli.main import status_of; status = status_of([{command!r}]);"
        f"print(sorted({heavy - allowed} & set(sys.modules)), status)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, *_, last = done.stdout.splitlines()
    assert last == "[] 0"
    assert command != "version" or first.startswith("declctl ")


@pytest.mark.parametrize("way", [["version"], ["--version"], ["--no-plugins", "version"]])
def test_version_is_said_in_every_way(declctl, way, monkeypatch):
    """The version and the Python are on one line of stdout, however one asks."""
    monkeypatch.setenv("DECLCTL_LOAD_PLUGINS", "x")  # put back what --no-plugins sets
    out = declctl.done(*way).out
    assert out.startswith("declctl ")
    assert f"Python {sys.version_info[0]}.{sys.version_info[1]}" in out


_WITHOUT_HOME = """\
import os, pwd, sys

def unknown(number):
    raise KeyError(f"getpwuid(): uid not found: {number}")

pwd.getpwuid = unknown
sys.argv = ["declctl", "validate", "--cluster", sys.argv[1]]
from declctl.cli.main import main
main()
"""


def test_a_user_without_a_home_is_served(tmp_path):
    """The numeric user of a pod is in no /etc/passwd; without HOME the official client can't be imported."""
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text("apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: x}\nspec: {}\n")
    config = tmp_path / "config"
    config.write_text("{kind: Config, apiVersion: v1, clusters: [], users: [], contexts: []}")
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}
    environment["KUBECONFIG"] = str(config)
    command = [sys.executable, "-c", _WITHOUT_HOME, str(manifest)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("declctl: "), done.stderr  # of the kubeconfig, which names no cluster


_FIRST_PROCESS = """\
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == "MODULE":
            assert os.getpid() == 1
            os.kill(1, signal.SIGTERM)

sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["run", "nothing.yaml"]
runpy.run_module("declctl", run_name="__main__", alter_sys=True)
"""


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="a process 1 of its own needs root, and unshare of util-linux",
)
@pytest.mark.parametrize("module", ["declctl.cli", "typer", "declctl.runtime.runtime"])
def test_the_first_process_of_a_container_can_be_ended_in_each_import(module):
    """The kernel keeps SIGTERM from process 1 without a handler: a deleted pod would stay."""
    program = _FIRST_PROCESS.replace("MODULE", module)
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")
