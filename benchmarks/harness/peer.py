"""A peer, as the driver sees it: lines from it, each with the figures of the moment in which it came."""

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

from harness.faults import Ended, TooLarge, TooLong
from harness.processes import Figures, available, figures, reset_peak

_LOOK_SECONDS = 0.2
_LAST_SECONDS = 5.0
_SHARE_OF_MEMORY = 0.85  # of what the machine has left when a peer starts


@dataclass(frozen=True, slots=True)
class Line:
    """What a peer said, and what it had used by then."""

    said: Mapping[str, Any]
    then: Figures


class Peer:
    """A process that speaks the protocol, while it is entered. `began` is when it was started."""

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
        with contextlib.suppress(ProcessLookupError):  # the group: it may have children of its own
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        stdout.close()
        self._errors.close()

    def now(self) -> Figures:
        """The figures of this moment. Raises Ended."""
        try:
            return figures(self._measured)
        except ProcessLookupError:
            raise Ended(self._last_words()) from None

    def reset_peak(self) -> None:
        """Begin to measure the peak of memory anew."""
        reset_peak(self._measured)

    def send(self, line: str) -> None:
        """Say something to it. Raises Ended if it is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Ended(self._last_words()) from None

    def wait(self, event: str, timeout: float) -> Line:
        """The next line of this event. Raises TooLong after `timeout` seconds, Ended, and TooLarge."""
        deadline = time.monotonic() + timeout
        while True:
            with self._news:
                if not self._lines[event]:
                    self._news.wait(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
                if self._lines[event]:
                    return self._lines[event].popleft()
            self.watch()
            if time.monotonic() >= deadline:
                raise TooLong(f"> {timeout:.0f} s")

    def heard(self, event: str) -> bool:
        """Whether there is a line of this event that nobody has waited for."""
        with self._news:
            return bool(self._lines[event])

    def watch(self) -> None:
        """Raise Ended or TooLarge, if that is so."""
        if (resident := self.now().resident) > self._most:
            raise TooLarge(f"> {resident / 1000:.0f} GB")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            try:
                said = json.loads(text)
                if said["event"] == "process":
                    self._measured = said["pid"]
                line = Line(said, figures(self._measured))
            except (ValueError, TypeError, KeyError, ProcessLookupError):
                continue  # it is no line of the protocol, or the last of a process that ends
            with self._news:
                self._lines[said["event"]].append(line)
                self._news.notify_all()

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        status = self._process.poll()
        return lines[-1][:200] if lines else f"it ended with status {status}"
