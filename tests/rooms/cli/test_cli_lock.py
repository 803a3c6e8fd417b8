"""`declctl lock` and `generate image`: real pip, and an index that is a folder."""

import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from declctl import __version__
from declctl.cli.main import status_of as main

pytestmark = pytest.mark.thorough  # pip runs

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: guard}
spec:
  plugins: [{name: chat, version: ">=1.2,<2"}]
  resources: [{name: pods, apiVersion: v1, kind: Pod}]
  handlers: [{name: h, resourceRef: {name: pods}, pluginRef: {name: chat}}]
"""


def wheel(
    folder: Path, name: str, version: str, *needs: str, tag: str = "py3-none-any", extras: Sequence[str] = ()
) -> Path:
    """A wheel with one module that has its name."""
    module = name.replace("-", "_")
    path = folder / f"{module}-{version}-{tag}.whl"
    info = f"{module}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {each}" for each in needs]
    metadata += [f"Provides-Extra: {each}" for each in extras]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}.py", f"TAG = {tag!r}\n")
        archive.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")
        archive.writestr(
            f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: {tag}\n"
        )
        archive.writestr(
            f"{info}/RECORD", f"{module}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A manifest with a plugin, and a folder with wheels of it, of what it needs, and of declctl."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "manifest.yaml").write_text(MANIFEST, "utf-8")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "declctl", __version__, 'declctl-cel; extra == "cel"', extras=["cel"])
    wheel(wheels, "declctl-cel", "1.0")
    wheel(wheels, "declctl-chat", "1.1")
    wheel(wheels, "declctl-chat", "1.3", "helper>=1")
    wheel(wheels, "declctl-chat", "2.0")
    for arch in ("x86_64", "aarch64"):
        wheel(wheels, "helper", "1.0", tag=f"cp313-cp313-manylinux_2_28_{arch}")
    return tmp_path


def locked(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The lock."""
    assert main(["lock", ".", "--no-index", "--find-links", "wheels", *arguments]) == 0
    return capsys.readouterr().out


def test_a_lock_has_versions_in_range_and_the_hashes_of_both_platforms(here, capsys):
    """Of declctl, the plugin, and what it needs."""
    text = locked(capsys)
    pinned = [line.split()[0] for line in text.splitlines() if "==" in line]
    assert pinned == [f"declctl=={__version__}", "declctl-chat==1.3", "helper==1.0"]
    assert text.count("--hash=sha256:") == 4  # helper has two files
    assert locked(capsys) == text
    assert locked(capsys, "--platform", "linux/amd64").count("--hash=sha256:") == 3


def test_pip_installs_the_lock_and_nothing_else(here, capsys):
    """With --require-hashes; a file that somebody has replaced is refused."""
    for path in (here / "wheels").glob("helper-*"):
        path.unlink()
    helper = wheel(here / "wheels", "helper", "1.0")  # for the platform of this test, too
    (here / "requirements.lock").write_text(locked(capsys), "utf-8")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--target", "site"]
    command += ["--disable-pip-version-check", "-r", "requirements.lock"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (here / "site" / "declctl_chat.py").exists()
    helper.write_bytes(helper.read_bytes() + b" ")
    done = subprocess.run([*command, "--upgrade"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr


def test_expressions_need_the_extra(here, capsys):
    """`filter.expression` is evaluated by a package that is optional."""
    text = MANIFEST.replace("pluginRef", "filter: {expression: obj.spec.a == 1}, pluginRef")
    (here / "manifest.yaml").write_text(text, "utf-8")
    assert f"declctl[cel]=={__version__} \\\n" in locked(capsys)


def test_the_package_of_a_plugin_may_have_another_name(here, capsys):
    """The manifest names an entry point, and not its package."""
    wheel(here / "wheels", "acme", "1.5")
    assert "acme==1.5" in locked(capsys, "--package", "chat=acme")
    assert main(["lock", ".", "--package", "acme"]) == 2


def test_an_index_is_written_only_if_it_was_given(here, capsys, monkeypatch):
    """And without a password."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(here / "wheels"))
    assert main(["lock", "."]) == 0
    assert "://" not in capsys.readouterr().out
    url = "https://user:secret@packages.invalid/simple"
    assert main(["lock", ".", "--index-url", url]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[1] == "--index-url https://packages.invalid/simple"
    assert "secret" not in text


def test_no_solution_is_told_in_a_sentence(here, capsys):
    """With the platform and what pip says."""
    for path in (here / "wheels").glob("declctl_chat-1.*"):
        path.unlink()
    assert main(["lock", ".", "--no-index", "--find-links", "wheels"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("declctl: pip finds no packages for linux/amd64: ")
    assert "declctl-chat" in said
    assert main(["lock", ".", "--platform", "windows"]) == 2


def test_a_dockerfile_installs_the_lock_and_ends_as_no_root(here, capsys):
    """On the image of this version."""
    assert main(["generate", "image", "."]) == 0
    first, *_, last = text = capsys.readouterr().out.splitlines()
    assert first == f"FROM declctl:{__version__}"
    assert last == "USER 65532:65532"
    (run,) = [line for line in text if line.startswith("RUN ")]
    assert '"--require-hashes", "-r", "/context/requirements.lock"' in run
    assert main(["generate", "image", ".", "--image", "mine:1", "--lock", "deploy/lock.txt"]) == 0
    assert "/context/deploy/lock.txt" in capsys.readouterr().out
    assert main(["generate", "image", ".", "--lock", "../lock.txt"]) == 2


def test_a_manifest_with_errors_is_not_locked(here, capsys):
    """Its faults are shown."""
    (here / "manifest.yaml").write_text(MANIFEST.replace("pods}", "podz}"), "utf-8")
    assert main(["lock", "."]) == 1
    assert main(["generate", "image", "."]) == 1
    assert capsys.readouterr().out == ""
