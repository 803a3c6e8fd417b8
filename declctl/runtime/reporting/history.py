"""What has become of each attempt to change what runs: the newest of them, for `declctl history`."""

from collections import deque
from datetime import datetime
from typing import Any

import msgspec

from declctl.kit import Clock
from declctl.runtime.reloading.outcome import Outcome, Result

_KEPT = 100


class Entry(msgspec.Struct, frozen=True):
    """One attempt, and when it was over."""

    at: datetime
    outcome: Outcome

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        told = self.outcome.document()
        del told["diagnostics"]  # the newest stand in the condition; of all of them there may be many
        return {"time": self.at.strftime("%Y-%m-%dT%H:%M:%SZ"), **told}


class History:
    """The newest 100 attempts; those that came to nothing, as nothing had changed, are not among them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: deque[Entry] = deque(maxlen=_KEPT)

    def add(self, outcome: Outcome) -> None:
        """An attempt is over."""
        if outcome.result is not Result.UNCHANGED:
            self._entries.append(Entry(self._clock.now(), outcome))

    def document(self) -> list[dict[str, Any]]:
        """As JSON has it; the oldest first."""
        return [entry.document() for entry in self._entries]
