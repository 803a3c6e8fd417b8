"""`declctl lock` and `generate image`: real pip, and an index that is a folder."""

import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from declctl import __version__
from tests.rooms.cli.conftest import Command

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
    files = {
        f"{module}.py": f"TAG = {tag!r}\n",
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/RECORD": f"{module}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


@pytest.fixture(name="here")
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A manifest with a plugin, and a folder with wheels of it, of what it needs, and of declctl."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (folder / "manifest.yaml").write_text(MANIFEST, "utf-8")
    wheels = folder / "wheels"
    wheels.mkdir()
    wheel(wheels, "declctl", __version__, 'declctl-cel; extra == "cel"', extras=["cel"])
    wheel(wheels, "declctl-cel", "1.0")
    wheel(wheels, "declctl-chat", "1.1")
    wheel(wheels, "declctl-chat", "1.3", "helper>=1")
    wheel(wheels, "declctl-chat", "2.0")
    for arch in ("x86_64", "aarch64"):
        wheel(wheels, "helper", "1.0", tag=f"cp313-cp313-manylinux_2_28_{arch}")
    return folder


LOCK = ("lock", ".", "--no-index", "--find-links", "wheels")


@pytest.fixture(name="locked")
def _locked(declctl: Command) -> Callable[..., str]:
    """Gives the lock that these further arguments lead to."""
    return lambda *arguments: declctl.done(*LOCK, *arguments).out


def test_a_lock_has_versions_in_range_and_the_hashes_of_both_platforms(here, locked):
    """Of declctl, the plugin, and what it needs."""
    text = locked()
    pinned = [line.split()[0] for line in text.splitlines() if "==" in line]
    assert pinned == [f"declctl=={__version__}", "declctl-chat==1.3", "helper==1.0"]
    assert text.count("--hash=sha256:") == 4  # helper has two files
    assert locked() == text
    assert locked("--platform", "linux/amd64").count("--hash=sha256:") == 3


def test_pip_installs_the_lock_and_nothing_else(here, locked):
    """With --require-hashes; a file that somebody has replaced is refused."""
    for path in (here / "wheels").glob("helper-*"):
        path.unlink()
    helper = wheel(here / "wheels", "helper", "1.0")  # for the platform of this test, too
    (here / "requirements.lock").write_text(locked(), "utf-8")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--target", "site"]
    command += ["--disable-pip-version-check", "-r", "requirements.lock"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (here / "site" / "declctl_chat.py").exists()
    helper.write_bytes(helper.read_bytes() + b" ")
    done = subprocess.run([*command, "--upgrade"], capture_output=True, text=True, check=False)
    told = "THESE PACKAGES DO NOT MATCH THE HASHES"
    assert done.returncode == 1
    assert told in done.stderr


def test_expressions_need_the_extra(here, locked):
    """`filter.expression` is evaluated by a package that is optional."""
    text = MANIFEST.replace("pluginRef", "filter: {expression: obj.spec.a == 1}, pluginRef")
    (here / "manifest.yaml").write_text(text, "utf-8")
    assert f"declctl[cel]=={__version__} \\\n" in locked()


def test_the_package_of_a_plugin_may_have_another_name(here, locked, declctl):
    """The manifest names an entry point, and not its package."""
    wheel(here / "wheels", "acme", "1.5")
    assert "acme==1.5" in locked("--package", "chat=acme")
    assert declctl("lock", ".", "--package", "acme").status == 2


def test_an_index_is_written_only_if_it_was_given(here, declctl, monkeypatch):
    """And without a password."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(here / "wheels"))
    assert "://" not in declctl.done("lock", ".").out
    ended = declctl.done("lock", ".", "--index-url", "https://user:secret@packages.invalid/simple")
    assert ended.lines[1] == "--index-url https://packages.invalid/simple"
    assert "secret" not in ended.out


def test_no_solution_is_told_in_a_sentence(here, declctl):
    for path in (here / "wheels").glob("declctl_chat-1.*"):
        path.unlink()
    said = declctl.refused(*LOCK)
    assert said.startswith("declctl: pip finds no packages for linux/amd64: ")
    assert "declctl-chat" in said
    assert declctl("lock", ".", "--platform", "windows").status == 2


def test_a_dockerfile_installs_the_lock_and_ends_as_no_root(here, declctl):
    """On the image of this version."""
    first, *_, last = lines = declctl.done("generate", "image", ".").lines
    assert (first, last) == (f"FROM declctl:{__version__}", "USER 65532:65532")
    (run,) = [line for line in lines if line.startswith("RUN ")]
    assert '"--require-hashes", "-r", "/context/requirements.lock"' in run
    ended = declctl.done("generate", "image", ".", "--image", "mine:1", "--lock", "deploy/lock.txt")
    assert "/context/deploy/lock.txt" in ended.out
    assert declctl("generate", "image", ".", "--lock", "../lock.txt").status == 2


def test_a_manifest_with_errors_is_not_locked(here, declctl):
    (here / "manifest.yaml").write_text(MANIFEST.replace("pods}", "podz}"), "utf-8")
    for command in (("lock", "."), ("generate", "image", ".")):
        declctl.refused(*command, status=1)
