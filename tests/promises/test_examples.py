"""Every example runs as its README says, against the sandbox."""

import json
import re
import shlex
import subprocess
import sys
from itertools import chain
from pathlib import Path

import packages
import pytest
from markdown import ROOT, blocks
from processes import Declctl, environment, run
from waiting import until

LIBRARY = ROOT / "examples" / "20-library"
EXAMPLES = sorted(folder.parent for folder in (ROOT / "examples").glob("*/manifest.yaml"))


@pytest.fixture(scope="session")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the third-party plugin is installed."""
    return packages.install(packages.CHANGELOG, tmp_path_factory.mktemp("site"))


def _name(folder: Path) -> str:
    return folder.name


def _sandbox_command(folder: Path) -> list[str]:
    """The line of the README that needs no cluster."""
    lines = [
        line
        for block in blocks(folder / "README.md")
        if block.language == "sh"
        for line in block.text.splitlines()
    ]
    (command,) = [line for line in lines if "--sandbox" in line]
    return shlex.split(command, comments=True)


@pytest.mark.thorough
@pytest.mark.parametrize("folder", EXAMPLES, ids=_name)
def test_an_example_is_valid(folder: Path, plugins: dict[str, str]) -> None:
    """`declctl validate` has nothing to say against it, in the folder as a whole as well."""
    command = [sys.executable, "-m", "declctl", "validate", str(folder), str(folder / "manifest.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(**plugins), check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("folder", EXAMPLES, ids=_name)
def test_an_example_prints_what_its_readme_shows(folder: Path, plugins: dict[str, str]) -> None:
    """The command of the README runs, prints every line that is shown there, and ends cleanly."""
    shown = [block.text.splitlines() for block in blocks(folder / "README.md") if block.language == "text"]
    _, run, manifest, *arguments = _sandbox_command(folder)
    assert run == "run"
    arguments = [
        str(ROOT / one) if one.startswith("examples/") else one for one in arguments if one != "--once"
    ]
    with Declctl(ROOT / manifest, *arguments, env=plugins) as declctl:
        declctl.wait_until_synced()
        for line in chain.from_iterable(shown):
            until(f"it prints {line!r}", lambda wanted=line: wanted in declctl.out, seconds=10)
        assert declctl.stop() == 0


@pytest.mark.thorough
def test_the_documents_of_examples_and_plugins_pass(tmp_path: Path) -> None:
    """Each of them has a ControllerTest, which needs no cluster, and nothing beyond the plugins."""
    env = packages.install_all(tmp_path)
    done = run("test", "examples", "plugins", "-j", "2", "-o", "json", cwd=ROOT, seconds=300, **env)
    played = json.loads(done.stdout)["tests"]
    assert [one for one in played if one["outcome"] != "passed"] == []
    folders = {(ROOT / one["file"]).relative_to(ROOT).parts[:2] for one in played}
    assert folders == {each.relative_to(ROOT).parts for each in (*EXAMPLES, *packages.ALL)}


@pytest.mark.parametrize("folder", EXAMPLES, ids=_name)
def test_an_example_is_explained(folder: Path) -> None:
    """Each README says what it shows, how to run it with and without a cluster, and what to edit."""
    text = (folder / "README.md").read_text("utf-8")
    assert "**Edit**" in text or "walk through an edit" in text
    schema = (folder / "manifest.yaml").read_text("utf-8").splitlines()[0].partition("$schema=")[2]
    assert (folder / schema).resolve() == ROOT / "schema" / "declctl.v1alpha1.schema.json"


@pytest.mark.parametrize(
    "file", sorted((ROOT / "examples").glob("*/crd.yaml")), ids=lambda file: file.parent.name
)
def test_the_definitions_of_an_example_are_generated(file: Path) -> None:
    """crd.yaml is what the command prints that stands in the models."""
    (command,) = re.findall(
        r"`declctl (generate crd .*) -o crd.yaml`", (file.parent / "models.py").read_text()
    )
    done = run(*command.split(), cwd=file.parent)
    assert done.stdout == file.read_text("utf-8"), done.stderr


def _ended(arguments: list[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A Python process with these arguments, after its end."""
    command, env = [sys.executable, *arguments], environment()
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd, timeout=60, check=False)


def _readme_line(folder: Path, word: str) -> str:
    """The one command of a README with this word in it, without its comment."""
    lines = [line for block in blocks(folder / "README.md") for line in block.text.splitlines()]
    (command,) = [line for line in lines if word in line]
    return command.partition("#")[0].strip()


@pytest.mark.client_go("Metadata factory", "Dynamic factory")
def test_the_library_example_prints_what_its_readme_shows() -> None:
    """The program runs over a sandbox of its own, prints every line that is shown, and ends with 0."""
    (shown,) = [block.text for block in blocks(LIBRARY / "README.md") if block.language == "text"]
    python, *command = shlex.split(_readme_line(LIBRARY, "--sandbox"))
    assert python == "python"
    done = _ended(command, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown


def test_the_library_examples_unit_test_passes() -> None:
    """Whoever copies it begins with a test that runs."""
    command = _readme_line(LIBRARY, "pytest")
    assert command == f"(cd {LIBRARY.relative_to(ROOT)} && python -m pytest)"
    done = _ended(["-m", "pytest", "-q"], cwd=LIBRARY)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
