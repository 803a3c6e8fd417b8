"""The lists of digests that say which bundles may run (`--allowed-digests`, `spec.reload.allowedDigests`).

The authors of a bundle can't edit the list: others add the digests of the bundles that they have reviewed.
The list is read before each import of a bundle, so code that it lacks is never imported.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from declctl.errors import ReloadRefused
from declctl.kit import files as reader
from declctl.runtime.checking.inputs import Inputs

NOT_ALLOWED = "DigestNotAllowed"
"""The reason of a refusal."""

_MOST_BYTES = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def require_reviewed(inputs: Inputs, lists: Iterable[str | None]) -> None:
    """Raise ReloadRefused unless each of these files has the digest of the inputs. Blocks.

    If there is a list, neither a list nor a file of `spec.admin` may be beside the manifest, where its
    authors write. `lists` are those of `require_allowed`.
    """
    named = [each for each in lists if each is not None]
    if not named:
        return
    folder, admin = inputs.bundle.place, inputs.loaded.controller.admin
    tls = () if admin.tls is None else (admin.tls.cert_file, admin.tls.key_file)
    # A relative path of a list begins at the working folder, one of the manifest at its own.
    files = [*named, *(str(folder / each) for each in (admin.token_file, *tls) if each is not None)]
    folders = reader.places_of(folder)
    for file in files:
        if reader.is_below(file, folders):
            raise ReloadRefused(
                NOT_ALLOWED,
                f"{file} lies in the folder of the manifest, and no digest covers it: whoever may change the "
                "manifest may change it; keep it in another folder",
            )
    require_allowed(inputs.bundle_digest, named)


def require_search_path(folder: Path) -> None:
    """Raise ReloadRefused if Python looks for modules in the folder of a manifest, or below it. Blocks.

    For the start of a process with a list: from then on, no other file of the folder is imported
    (`hooks.reviewed_imports`), but whatever Python has imported before declctl is out of reach.
    """
    folders = reader.places_of(folder)
    for entry in sys.path:
        if reader.is_below(entry, folders):
            raise ReloadRefused(
                NOT_ALLOWED,
                f"Python looks for modules in {entry or '.'}, beside the manifest, and no digest covers what "
                "it finds: start the program `declctl`, not `python -m declctl` in that folder, and keep the "
                "folder out of PYTHONPATH",
            )


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
        # Not `splitlines`, which ends lines, and so comments, at U+2028 and others that no editor shows.
        lines = data.decode("utf-8").split("\n")
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
