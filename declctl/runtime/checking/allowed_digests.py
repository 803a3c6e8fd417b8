"""The lists of digests that say which bundles may run (`--allowed-digests`, `spec.reload.allowedDigests`).

The authors of a bundle can't edit the list: others add the digests of the bundles that they have reviewed.
The list is read before each import of a bundle, so code that it lacks is never imported.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from declctl.errors import ReloadRefused
from declctl.kit import files as reader

NOT_ALLOWED = "DigestNotAllowed"
"""The reason of a refusal."""

_MOST_BYTES = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def require_allowed(digest: str, lists: Iterable[str | None]) -> None:
    """Raise ReloadRefused unless each of these files has the digest. Blocks for the time of the reads.

    `digest` is `Inputs.bundle_digest`. A file that can't be read, or has a line that is no digest, allows
    nothing. None stands for a list that is not set. An empty name, as of `--allowed-digests "$LIST"` without
    that variable, is a file that can't be read.
    """
    for name in dict.fromkeys(each for each in lists if each is not None):
        allowed = read_list(name)
        if digest not in allowed:
            raise ReloadRefused(
                NOT_ALLOWED,
                f"the digest of the manifest and its handlers, {digest}, is not in {name}: let somebody "
                "review the files and add the digest, or take the edit back",
            )


def read_list(name: str) -> frozenset[str]:
    """The digests of a list: one in each line; empty lines and comments (`#`) are skipped.

    Raises ReloadRefused if the file can't be read, or has a line that is no digest.
    """
    path = Path(name)
    try:
        data = reader.read_in_time(
            path, lambda: reader.read_file(path, most=_MOST_BYTES), name="declctl-digests"
        )
        lines = data.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8"
        message = f"the list of allowed digests, {name or '(an empty name)'}, can't be read: {reason.lower()}"
        raise ReloadRefused(NOT_ALLOWED, message) from error
    found: set[str] = set()
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if text and not _DIGEST.fullmatch(text):
            raise ReloadRefused(
                NOT_ALLOWED, f"{name}:{number}: this is no digest, as `declctl digest` prints it"
            )
        if text:
            found.add(text)
    return frozenset(found)
