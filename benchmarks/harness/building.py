"""Builds the server and the peers in .build/: Go and Rust programs, and environments of Python peers."""

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from harness.faults import PeerUnavailable

BENCHMARKS = Path(__file__).resolve().parents[1]
PEERS = BENCHMARKS / "peers"
BUILD = BENCHMARKS / ".build"
_BUILD_SECONDS = 1800
BASELINE = "4fef174"
"""The commit of declctl that is measured in turns with this one, so that a drift is seen when it begins.

It moves to a newer commit when that one is better in all rows, and not to hide that it is not.
"""


def go(folder: Path, name: str) -> Path:
    """Builds the Go program of a folder. Later builds are fast, as the compiler has a cache."""
    if not folder.is_dir():
        raise PeerUnavailable(f"{folder.relative_to(BENCHMARKS)} is not there")
    made = BUILD / name
    _run([_toolchain("go"), "build", "-o", str(made), "."], folder)
    return made


def cargo(folder: Path, name: str) -> Path:
    """Builds the Rust program of a folder for release."""
    if not folder.is_dir():
        raise PeerUnavailable(f"{folder.relative_to(BENCHMARKS)} is not there")
    target = BUILD / "cargo"
    _run([_toolchain("cargo"), "build", "--release", "--quiet", "--target-dir", str(target)], folder)
    made = target / "release" / name
    if not made.is_file():
        raise PeerUnavailable(f"cargo has made no {name}")
    return made


def python(name: str) -> Path:
    """The interpreter of a peer's own environment, which is built again when its requirements change."""
    requirements = PEERS / f"requirements-{name}.txt"
    home = BUILD / f"venv-{name}"
    interpreter, made_from = home / "bin" / "python", home / "made-from.txt"
    wanted = requirements.read_text()
    if made_from.exists() and made_from.read_text() == wanted:
        return interpreter
    shutil.rmtree(home, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(home)], BENCHMARKS)
    pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "-r", str(requirements)], BENCHMARKS)
    made_from.write_text(wanted)
    return interpreter


def checkout() -> Path:
    """An interpreter that runs the declctl of this checkout, compiled, as pip compiles the other peers."""
    _run(
        [sys.executable, "-m", "compileall", "-q", str(BENCHMARKS.parent / "declctl"), str(PEERS)], BENCHMARKS
    )
    return Path(sys.executable)


def baseline() -> Path:
    """A folder with the package as it was at the baseline commit, compiled."""
    tree = BUILD / f"baseline-{BASELINE}"
    if not tree.is_dir():
        BUILD.mkdir(exist_ok=True)
        archive = BUILD / f"baseline-{BASELINE}.tar"
        words = ["archive", "--output", str(archive), BASELINE, "declctl"]
        _run([_toolchain("git"), *words], BENCHMARKS.parent)
        with tarfile.open(archive) as packed:
            packed.extractall(tree, filter="data")
        archive.unlink()
        _run([sys.executable, "-m", "compileall", "-q", str(tree)], BENCHMARKS)
    return tree


def peer_file(name: str) -> str:
    """The program of a Python peer."""
    return str(PEERS / f"{name}.py")


def _toolchain(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise PeerUnavailable(f"{name} is not installed")
    return found


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False
    )
    if done.returncode != 0:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise PeerUnavailable(
            f"{Path(command[0]).name} failed: {said[-1][:160] if said else done.returncode}"
        )
