"""pyright and mypy, both strict, on files of an author of handlers."""

import json
import os
import subprocess
import sys
from pathlib import Path

from markdown import ROOT


def author_folder(folder: Path, **files: str) -> Path:
    """A folder with these modules, whose author checks them strictly."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]})
    )
    return folder


def pyright(folder: Path, *files: str) -> set[tuple[str, int]]:
    """The files and lines with errors."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *files]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
        for each in found
        if each["severity"] == "error"
    }


def mypy(folder: Path, *files: str) -> set[tuple[str, int]]:
    """The files and lines with errors."""
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-pretty", *files]
    path = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = [line.split(":") for line in done.stdout.splitlines() if ": error: " in line]
    return {(Path(file).name, int(number)) for file, number, *_ in lines}
