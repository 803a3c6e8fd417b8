"""From wheels to an edited config of somebody's own plugin, in an environment without a checkout."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import jsonschema
import pytest
import yaml
from processes import Declctl, environment
from waiting import until

ROOT = Path(__file__).parents[2]


class CleanEnvironment:
    """A virtual environment with wheels of declctl and its plugins.

    What declctl depends on is that of the tests, by a path: a test must not need a package index.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(self._home)], check=True, timeout=120)
        self.python = str(self._home / "bin" / "python")
        # A path in a .pth file is no site folder: the checkout that is installed there is not seen.
        site = next(self._home.glob("lib/python*/site-packages"))
        (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", "utf-8")

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """What a command of the environment prints; it has to succeed."""
        done = subprocess.run(
            [str(self._home / "bin" / command[0]), *command[1:]],
            cwd=cwd or self._folder,
            env={**environment(), "PYTHONPATH": "", "SOURCE_DATE_EPOCH": "1700000000"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def install(self, source: Path) -> None:
        """Build the wheel of a folder, and install it as `pip install dist/*.whl` does."""
        dist = self._folder / "dist" / source.name
        self.run("python", "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist), cwd=source)
        wheels = [str(wheel) for wheel in dist.glob("*.whl")]
        self.run("python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", *wheels)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """It has declctl and the plugins of this repository."""
    made = CleanEnvironment(tmp_path_factory.mktemp("clean"))
    for source in (ROOT, *(file.parent for file in sorted(ROOT.glob("plugins/*/pyproject.toml")))):
        made.install(source)
    return made


def test_the_commands_of_the_readme_work_after_pip_install(clean: CleanEnvironment, tmp_path: Path) -> None:
    """Nothing of the checkout is imported, an operator reconciles its sample, and changes are printed."""
    where = clean.run("python", "-c", "import declctl; print(declctl.__file__)")
    assert str(ROOT) not in where
    clean.run("declctl", "new", "operator", "preview", "--group", "acme.dev", cwd=tmp_path)
    with Declctl(
        tmp_path / "preview", "--sandbox", python=clean.python, env={"PYTHONPATH": os.devnull}
    ) as declctl:
        until("it is reconciled", lambda: any("0 of 2 replicas are ready" in line for line in declctl.err))
        assert declctl.stop() == 0
    clean.run("declctl", "new", "manifest", "hello", cwd=tmp_path)
    with Declctl(
        tmp_path / "hello", "--sandbox", "--churn", "20", python=clean.python, env={"PYTHONPATH": os.devnull}
    ) as declctl:
        until("changes are printed", lambda: any("Modified pods demo/" in line for line in declctl.out))
        assert declctl.stop() == 0


def test_somebodys_own_plugin_from_its_template_to_a_live_edit_of_its_config(
    clean: CleanEnvironment, tmp_path: Path
) -> None:
    """`declctl new plugin`, its wheel, its config as editors complete and check it, an edit while it runs."""
    clean.run("declctl", "new", "plugin", "herald", cwd=tmp_path)
    package = next(path.parent for path in tmp_path.glob("*/pyproject.toml"))
    clean.install(package)
    clean.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=package)

    clean.run("declctl", "new", "manifest", "guard", cwd=tmp_path)
    manifest = tmp_path / "guard" / "manifest.yaml"
    document = yaml.safe_load(manifest.read_text("utf-8"))
    document["spec"]["plugins"] = [{"name": "herald", "config": {"message": "seen"}}]
    handler = document["spec"]["handlers"][0]
    del handler["entryPoint"]
    handler["pluginRef"] = {"name": "herald"}
    manifest.write_text(yaml.safe_dump(document), "utf-8")

    schema = json.loads(clean.run("declctl", "schema", "--plugins"))
    editor = jsonschema.Draft202012Validator(schema)
    assert not list(editor.iter_errors(document))
    document["spec"]["plugins"][0]["config"] = {"mesage": "seen"}
    (fault,) = editor.iter_errors(document)
    assert list(fault.absolute_path) == ["spec", "plugins", 0, "config"]
    assert list(fault.schema["properties"]) == ["message"], "what an editor offers"

    with Declctl(
        manifest, "--sandbox", "--churn", "20", python=clean.python, env={"PYTHONPATH": os.devnull}
    ) as declctl:
        until("it speaks", lambda: any(" seen " in line for line in declctl.err))
        document["spec"]["plugins"][0]["config"] = {"message": "noticed"}
        manifest.write_text(yaml.safe_dump(document), "utf-8")
        until("it says what it is told to", lambda: any(" noticed " in line for line in declctl.err))
        assert any("generation 2:" in line and "0 LIST" in line for line in declctl.err)
        assert declctl.resource("pods")["lists"] == 1
        assert declctl.stop() == 0
