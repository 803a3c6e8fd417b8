"""`declctl digest`: the digest by which a review allows files to run."""

from pathlib import Path

from declctl.cli.terminal import line
from declctl.errors import ManifestErrors
from declctl.runtime.checking.allowed_digests import require_reviewed
from declctl.runtime.checking.check import read_files
from declctl.runtime.checking.inputs import InputFiles


def print_digest(manifest: str, *, at: Path | None, allowed: str | None) -> None:
    """Print the digest of a manifest and its handlers, which are read `at` a path, on stdout.

    Raises ManifestErrors for files that have errors, and ReloadRefused if `allowed`, a list of digests, lacks
    the digest.
    """
    checked = read_files(InputFiles(manifest, at=at))
    if checked.inputs is None:
        raise ManifestErrors(checked.errors)
    line(checked.inputs.bundle_digest)
    require_reviewed(checked.inputs, [allowed])
