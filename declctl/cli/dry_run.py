"""The diffs that `declctl run --dry-run` prints: live objects, and what handlers would make of them.

They are those of `kubectl diff`: YAML with sorted keys, without the fields that only the server sets. The
values of Secrets are not shown.
"""

import copy
import difflib
from typing import Any

import yaml

from declctl.cli.terminal import block
from declctl.kit.secret_values import hide_last_applied
from declctl.objects import KubeObject
from declctl.writes import WriteOrigin, WriteVerb, Written

_OF_THE_SERVER = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink")
_MASK, _MASK_BEFORE, _MASK_AFTER = "***", "*** (before)", "*** (after)"
_MOST_REMEMBERED = 10_000  # diffs that are not printed again


class DryRunPrinter:
    """Prints the diff of each write of a dry run on stdout; equal diffs of one object are printed once."""

    def __init__(self) -> None:
        # By field manager and object: the digest of the diff that was printed last.
        self._printed: dict[tuple[str, str], int] = {}

    def __call__(self, written: Written, origin: WriteOrigin, live: KubeObject | None) -> None:
        """Print what a write would change of the `live` object, which is None if there is none."""
        text = diff(written, origin, live)
        place = origin.handler, f"{written.verb} {written.kind} {written.key}"
        if self._printed.get(place, hash("")) == hash(text):
            return
        if len(self._printed) >= _MOST_REMEMBERED:
            self._printed.clear()
        self._printed[place] = hash(text)
        if text:
            block(f"{text}\n")


def diff(written: Written, origin: WriteOrigin, live: KubeObject | None) -> str:
    """The unified diff from the live object to that which the write would leave; empty if they are equal."""
    what = f"{written.kind} {written.key}"
    after = None if written.verb is WriteVerb.DELETE else written.obj
    before, after = _shown(live), _shown(after)
    if written.kind.kind == "Secret" and not written.kind.group:
        _mask(before, after)
    lines = difflib.unified_diff(
        _lines(before),
        _lines(after),
        f"{what} (live)" if before is not None else "/dev/null",
        f"{what} ({written.verb} by {origin.handler})" if after is not None else "/dev/null",
        lineterm="",
    )
    return "\n".join(lines)


def _shown(obj: KubeObject | None) -> KubeObject | None:
    """A copy without the fields that only the server sets."""
    if obj is None:
        return None
    found = copy.deepcopy(obj)
    metadata: Any = found.get("metadata")
    for name in _OF_THE_SERVER if isinstance(metadata, dict) else ():
        metadata.pop(name, None)
    return found


def _mask(before: KubeObject | None, after: KubeObject | None) -> None:
    """Replace the values of a Secret; the masks tell whether a value changes."""
    for obj in (before, after):
        hide_last_applied(obj or {})
    for field in ("data", "stringData"):
        old, new = (dict((obj or {}).get(field) or {}) for obj in (before, after))
        for name in old.keys() | new.keys():
            changes = name in old and name in new and old[name] != new[name]
            for obj, values, mask in ((before, old, _MASK_BEFORE), (after, new, _MASK_AFTER)):
                if obj is not None and name in values:
                    obj[field][name] = mask if changes else _MASK


def _lines(obj: KubeObject | None) -> list[str]:
    if obj is None:
        return []
    return yaml.safe_dump(obj, sort_keys=True, allow_unicode=True).splitlines()
