"""Dead letters: events that the receiver has refused, or that have become too old, one JSON object a line.

`dead-letters.jsonl` is renamed to `dead-letters.old.jsonl` when it has its size, so that both together are
bounded. `declctl-webhook requeue` renames a file to `requeue-….jsonl`: the process that has the spool reads
it, and sends its events again.
"""

import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from declctl_webhook.events import Json

FILE: Final = "dead-letters.jsonl"
OLD_FILE: Final = "dead-letters.old.jsonl"
_REQUEUE: Final = "requeue-*.jsonl"


class DeadLetters:
    """Writes the files of one folder. One thread uses it."""

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._folder = folder

    def write(
        self, event: bytes, *, reason: str, status: int | None, text: str, attempts: int, at: datetime
    ) -> None:
        """Append an event with the reason. Blocks. Raises OSError; then nothing was written."""
        document = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "reason": reason,
            "status": status,
            "answer": text,
            "attempts": attempts,
            "event": json.loads(event),
        }
        line = (
            json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
        )
        path = self._folder / FILE
        # Opened for each line: `requeue` may have renamed it.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(file).st_size
            written = os.write(file, line)
            if written < len(line):  # the disk is full: half a line would hide the next one
                os.ftruncate(file, size)
                raise OSError(28, "No space left on device", str(path))
        finally:
            os.close(file)
        if size + len(line) >= self.max_bytes:
            path.replace(self._folder / OLD_FILE)

    def requeued(self) -> list[Path]:
        """The files whose events are to be sent again, the oldest first. Blocks."""
        return sorted(self._folder.glob(_REQUEUE))


def letters(path: Path) -> Iterator[dict[str, Any] | None]:
    """The dead letters of a file; None for a line that is none. Blocks. Raises OSError."""
    with path.open("rb") as file:
        for line in file:
            yield _letter(line)


def _letter(line: bytes) -> dict[str, Any] | None:
    try:
        letter: Json = json.loads(line)
        event = letter["event"]
        return letter if isinstance(event["id"], str) and isinstance(event["subject"], str) else None
    except (ValueError, TypeError, KeyError):
        return None


def event_body(letter: dict[str, Any]) -> bytes:
    """The event of a dead letter, as the spool has it."""
    return json.dumps(letter["event"], ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def requeue(folder: Path, *, at: datetime) -> list[Path]:
    """Rename the files of dead letters, so that the process that has the spool sends their events again.

    Returns the new names. Raises OSError.
    """
    renamed: list[Path] = []
    stamp = at.strftime("%Y%m%dT%H%M%S%f")
    for number, name in enumerate((OLD_FILE, FILE)):  # the older letters first
        path = folder / name
        if path.exists():
            renamed.append(path.rename(folder / f"requeue-{stamp}-{number}.jsonl"))
    return renamed
