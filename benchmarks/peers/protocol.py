"""The peers' side of PROTOCOL.md: arguments, counting, lines out and lines in. Needs nothing but Python.

A peer makes one `Peer`, tells it what it sees, and ends in `serve`, which reads standard input until its end.
"""

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

SENT = "bench/sent"
READS = 200


@dataclass(frozen=True)
class Kind:
    """One kind of the server: how it is asked for, and what its one index is made of."""

    api_version: str
    kind: str
    field_path: str


KINDS = {
    "pods": Kind("v1", "Pod", "spec.nodeName"),
    "configmaps": Kind("v1", "ConfigMap", "metadata.namespace"),
    "secrets": Kind("v1", "Secret", "metadata.namespace"),
    "leases": Kind("coordination.k8s.io/v1", "Lease", "metadata.namespace"),
    "customs": Kind("bench.declctl.dev/v1", "Custom", "metadata.namespace"),
}


def arguments(description: str | None, *, listeners: Sequence[str] = ("none", "sync")) -> argparse.Namespace:
    """The arguments of every peer; `listeners` are those that this one can have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--kind", choices=list(KINDS), default="pods")
    parser.add_argument("--objects", type=int, required=True)
    parser.add_argument("--listener", choices=list(listeners), default="none")
    parser.add_argument("--burn", action="store_true")
    return parser.parse_args()


def say(event: str, **fields: Any) -> None:
    """One line, flushed; safe from any thread."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


class Counter:
    """Counts what a listener is called with, and says so when all of it has come.

    Called by one thread at a time; `expect` may come from another. `sent` reads the annotation of an
    object, as the library has it; `merged` says how many changes were merged before delivery so far.
    """

    def __init__(
        self, objects: int, sent: Callable[[Any], str], merged: Callable[[], int] | None = None
    ) -> None:
        self._objects = objects
        self._sent = sent
        self._merged = merged
        self._added = 0
        self._calls = 0
        self._merged_before = 0
        self._wanted = 0
        self._delays: list[int] | None = None  # nanoseconds, while they are asked for

    def added(self) -> None:
        """A first notification was delivered."""
        self._added += 1
        if self._added == self._objects:
            say("added", objects=self._added)

    def changed(self, obj: Any) -> None:
        """A change was delivered: called first thing."""
        if self._delays is not None:
            now = time.time_ns()
            self._delays.append(now - int(self._sent(obj)))
        self._calls += 1
        if self._calls == self._wanted:
            self._tell()

    def expect(self, changes: int, *, latency: bool) -> None:
        """Count from here, and say so when there were that many."""
        self._merged_before = self._merged() if self._merged else 0
        self._delays = [] if latency else None
        self._calls, self._wanted = 0, changes

    def look(self) -> None:
        """Say so if merged changes make up for the calls that are missing; to be called now and then."""
        if (
            self._merged
            and self._wanted
            and self._calls + self._merged() - self._merged_before >= self._wanted
        ):
            self._tell()

    def _tell(self) -> None:
        changes, self._wanted = self._wanted, 0
        delays, self._delays = self._delays, None
        told: dict[str, Any] = {"changes": changes, "calls": self._calls, "objects": self._objects}
        if delays:
            delays.sort()
            told["p50"] = delays[len(delays) // 2] / 1e6
            told["p99"] = delays[int(len(delays) * 0.99)] / 1e6
            told["most"] = delays[-1] / 1e6
        say("received", **told)


def serve(*, counter: Counter | None, read: Callable[[], int] | None) -> None:
    """Do what standard input says until its end, and then end the process, whatever its threads do."""
    for command, *words in commands():
        match command, words:
            case "expect", [number, *rest] if counter is not None:
                counter.expect(int(number), latency="latency" in rest)
            case "read", _ if read is not None:
                say("read", **timed(read))
            case _:
                pass
    os._exit(0)


def commands() -> Iterator[list[str]]:
    """The lines of standard input as words, until its end."""
    for line in sys.stdin:
        if words := line.split():
            yield words


def timed(read: Callable[[], int]) -> dict[str, Any]:
    """The median time of one read in seconds, of 200."""
    taken: list[float] = []
    values = 0
    for _ in range(READS):
        began = time.perf_counter()
        values = read()
        taken.append(time.perf_counter() - began)
    return {"median": statistics.median(taken), "values": values}


class Burner:
    """Keeps a core busy from its first call on, in the thread that calls, or in one of its own."""

    def __init__(self) -> None:
        self._burns = False

    def burn(self, *_: object) -> None:
        """Never returns the first time; whoever calls it has a thread to give."""
        if not self._burns:
            self._burns = True
            spin()

    def aside(self, *_: object) -> None:
        """The same in a thread of its own, for libraries whose handlers share the thread of the watch."""
        if not self._burns:
            self._burns = True
            threading.Thread(target=spin, daemon=True).start()


def spin() -> None:
    """Compute, for ever."""
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


def value_at(path: str, obj: dict[str, Any]) -> str:
    """The value at a field path of a decoded object; empty if there is none."""
    found: Any = obj
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found or ""
