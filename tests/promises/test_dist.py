"""make dist, for somebody who installs declctl without a checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from markdown import ROOT

pytestmark = pytest.mark.thorough  # packages are built and installed


def _build(source: Path, target: Path) -> dict[str, bytes]:
    """Build sdist and wheel as make dist does, and return their bytes by name."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(target)],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        check=True,
        timeout=50,
    )
    return {file.name: file.read_bytes() for file in target.iterdir() if file.suffix in {".whl", ".gz"}}


def test_two_builds_are_the_same_bytes(tmp_path: Path) -> None:
    """Who builds the packages again can compare them with the published ones."""
    for source in (ROOT, *(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))):
        first = _build(source, tmp_path / source.name / "first")
        assert len(first) == 2
        assert first == _build(source, tmp_path / source.name / "second")


def test_the_wheel_of_each_plugin_has_its_types(tmp_path: Path) -> None:
    """A type checker reads the annotations of an installed plugin."""
    for file in ROOT.glob("plugins/*/pyproject.toml"):
        _build(file.parent, tmp_path)
        module = file.parent.name.replace("-", "_")
        names = zipfile.ZipFile(next(tmp_path.glob(f"{module}-*.whl"))).namelist()
        assert f"{module}/py.typed" in names


def test_the_wheel_runs_without_the_checkout(tmp_path: Path) -> None:
    """The wheel has what declctl reads at run time, and the installed package prints its version."""
    _build(ROOT, tmp_path)
    wheel = next(tmp_path.glob("*.whl"))
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"declctl/errors.md", "declctl/py.typed", "_declctl_gen.py"} <= names
    target = tmp_path / "installed"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
    ]
    subprocess.run([*pip, str(wheel)], check=True, timeout=60, capture_output=True)
    example = str(ROOT / "examples/02-indexers")
    objects = str(ROOT / "examples/02-indexers/objects.yaml")
    assert "0.1.0" in _declctl(target, "version")
    assert "neighbours is valid" in _declctl(target, "validate", example)
    assert "runs on node-1" in _declctl(target, "run", example, "--sandbox", "--objects", objects, "--once")
    assert _declctl(target, "explain", "DCL012")


def _declctl(installed: Path, *arguments: str) -> str:
    """Run the installed declctl outside of the checkout, and return its output."""
    return subprocess.run(
        [sys.executable, "-m", "declctl", *arguments],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
