"""What became of an attempt to reload."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from declctl.manifest import Diagnostic, render_json
from declctl.runtime.changes import Step, summary


class Result(StrEnum):
    """How an attempt ended."""

    APPLIED = "Applied"
    UNCHANGED = "Unchanged"
    REFUSED = "Refused"
    ROLLED_BACK = "RolledBack"  # the generation before runs again, under a new number
    SUPERSEDED = "Superseded"  # given up before its commit: the files had changed again


class Outcome(msgspec.Struct, frozen=True):
    """One attempt. `generation` is the one that runs after it; `seconds` is from the read to the commit.

    `lists` and `watches` are the LISTs and WATCHes that were made until the commit, and `unplanned` says in
    words where these are others than the plan had; `reason` is a CamelCase word.
    """

    result: Result
    generation: int
    bundle_hash: str
    reason: str = ""
    message: str = ""
    seconds: float = 0.0
    steps: Sequence[Step] = ()
    lists: int = 0
    diagnostics: Sequence[Diagnostic] = ()
    watches: int = 0
    unplanned: Sequence[str] = ()

    @property
    def line(self) -> str:
        """The attempt on one line: `generation 7: ~handler notify (code), 0 LIST, 3 ms`."""
        if self.result is Result.REFUSED:
            return f"reload refused, generation {self.generation} goes on: {self.message}"
        if self.result is Result.SUPERSEDED:
            took = f"{self.seconds * 1000:.0f} ms"
            return f"reload of {self.bundle_hash[:12]} given up after {took}: files have changed again"
        if self.result is Result.UNCHANGED:
            return f"generation {self.generation}: {summary(self.steps)}"
        took = f"{self.seconds * 1000:.0f} ms"
        if self.result is Result.ROLLED_BACK:
            return f"generation {self.generation}: {self.message}, {self.lists} LIST, {took}"
        line = f"generation {self.generation}: {summary(self.steps)}, {self.lists} LIST, {took}"
        return f"{line}; not as planned: {'; '.join(self.unplanned)}" if self.unplanned else line

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "result": str(self.result),
            "generation": self.generation,
            "bundleHash": self.bundle_hash,
            "reason": self.reason,
            "message": self.message,
            "seconds": round(self.seconds, 6),
            "changes": [str(step) for step in self.steps],
            "lists": self.lists,
            "watches": self.watches,
            "unplanned": list(self.unplanned),
            "diagnostics": render_json(self.diagnostics),
        }
