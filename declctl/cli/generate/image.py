"""`declctl generate image`: a Dockerfile that adds the packages of a lock to the image of declctl."""

import json
from pathlib import Path, PurePosixPath

from declctl import __version__
from declctl.cli.report import inputs_of
from declctl.cli.terminal import block, line
from declctl.errors import UsageError
from declctl.runtime.checking.check import check


def show_dockerfile(manifest: str, *, at: Path | None, image: str | None, lock: str) -> None:
    """Print the Dockerfile. `lock` is the path of the lock, below the folder in which the image is built.

    The manifest is read `at` a path. Raises typer.Exit for a manifest with errors, and UsageError for a path
    elsewhere.
    """
    inputs = inputs_of(check(manifest, at=at, in_child=False))
    path = PurePosixPath(lock)
    if path.is_absolute() or ".." in path.parts or not lock.isprintable():
        raise UsageError(
            "--lock is a path below the folder in which the image is built, such as its default."
        )
    if not inputs.loaded.controller.plugins:
        line("declctl: the manifest has no plugins: the image of declctl is enough", err=True)
    install = [
        "python",
        "-m",
        "pip",
        "install",
        "--no-cache-dir",
        "--require-hashes",
        "-r",
        f"/context/{path}",
    ]
    block(
        f"FROM {image or f'declctl:{__version__}'}\n"
        "USER 0\n"
        f"RUN --mount=type=bind,target=/context {json.dumps(install)}\n"
        "USER 65532:65532\n"
    )
