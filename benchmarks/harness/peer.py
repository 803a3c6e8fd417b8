"""A peer process for the driver: its lines, each with the figures of the process when the line arrived."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from harness.faults import MemoryLimitExceeded, PeerExited, TimeLimitExceeded
from harness.processes import Figures, available, figures, reset_peak

_LOOK_SECONDS = 0.2
_LAST_SECONDS = 5.0
_SHARE_OF_MEMORY = 0.85  # of the memory that is available when a peer starts


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a peer (`said`), and the figures of the process at that time (`then`)."""

    said: Mapping[str, Any]
    then: Figures


class Peer:
    """A process that speaks the protocol, from enter to exit. `began` is its start on the monotonic clock."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._environment = {**os.environ, **(environment or {})}
        self._lines: defaultdict[str, deque[Line]] = defaultdict(deque)
        self._news = threading.Condition()
        self._most = available() * _SHARE_OF_MEMORY
        self.began = 0.0

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile("w+")
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=self._environment,
            start_new_session=True,
        )
        self._measured = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_SECONDS)
        with contextlib.suppress(ProcessLookupError):  # the group, as the peer may have children
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        stdout.close()
        self._errors.close()

    def now(self) -> Figures:
        """The current figures. Raises PeerExited."""
        try:
            return figures(self._measured)
        except ProcessLookupError:
            raise PeerExited(self._last_line()) from None

    def reset_peak(self) -> None:
        """Resets the peak of memory to the current size."""
        reset_peak(self._measured)

    def send(self, line: str) -> None:
        """Sends a line to the peer. Raises PeerExited if the process has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerExited(self._last_line()) from None

    def wait(self, event: str, timeout: float) -> Line:
        """The next line of this event. Raises TimeLimitExceeded after `timeout` seconds.

        Raises PeerExited and MemoryLimitExceeded as `watch` does.
        """
        deadline = time.monotonic() + timeout
        while True:
            with self._news:
                if not self._lines[event]:
                    self._news.wait(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
                if self._lines[event]:
                    return self._lines[event].popleft()
            self.watch()
            if time.monotonic() >= deadline:
                raise TimeLimitExceeded(f"> {timeout:.0f} s")

    def has_line(self, event: str) -> bool:
        """Whether a line of this event has arrived that `wait` has not returned yet."""
        with self._news:
            return bool(self._lines[event])

    def watch(self) -> None:
        """Raises PeerExited if the process has ended, and MemoryLimitExceeded if it is too large."""
        if (resident := self.now().resident) > self._most:
            raise MemoryLimitExceeded(f"> {resident / 1000:.0f} GB")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            try:
                said = json.loads(text)
                if said["event"] == "process":
                    self._measured = said["pid"]
                line = Line(said, figures(self._measured))
            except (ValueError, TypeError, KeyError, ProcessLookupError):
                continue  # not a line of the protocol, or the process has ended
            with self._news:
                self._lines[said["event"]].append(line)
                self._news.notify_all()

    def _last_line(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        status = self._process.poll()
        return lines[-1][:200] if lines else f"it ended with status {status}"
