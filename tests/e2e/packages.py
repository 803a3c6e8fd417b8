"""The plugins, installed with pip."""

import importlib.util
import subprocess
import sys
from pathlib import Path

PLUGINS = Path(__file__).parents[2] / "plugins"
ALL = CHANGELOG, NOTIFY, WEBHOOK = tuple(
    PLUGINS / f"declctl-{name}" for name in ("changelog", "notify", "webhook")
)


def install_all(folder: Path) -> dict[str, str]:
    """Install all packages into a folder; returns the environment with them, and what their tests need."""
    for package in ALL:
        env = install(package, folder / "site")
    return {**env, "NOTIFY_URL": "json://127.0.0.1:9/", "WEBHOOK_SPOOL": str(folder / "spool")}


def install(package: Path, folder: Path) -> dict[str, str]:
    """Install a package into a folder; returns the environment that has it."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if importlib.util.find_spec("hatchling") is not None:
        command.append("--no-build-isolation")
    command += ["--target", str(folder), str(package)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {"PYTHONPATH": str(folder)}
