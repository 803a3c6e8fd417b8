"""PROTOCOL.md for Python peers: arguments, counters, and the lines of standard input and output.

A peer makes a `Counter`, calls it for each notification, and ends in `serve`, which reads standard input
until its end. Only the standard library is needed.
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
    """One kind of the server, and the field of its index."""

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


def arguments(
    description: str | None, *, listeners: Sequence[str] = ("none", "sync"), modes: Sequence[str] = ()
) -> argparse.Namespace:
    """Parses the arguments of a peer. It supports these `listeners`, and `modes`, the first by default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--kind", choices=list(KINDS), default="pods")
    parser.add_argument("--objects", type=int, required=True)
    parser.add_argument("--listener", choices=list(listeners), default="none")
    parser.add_argument("--burn", action="store_true")
    if modes:
        parser.add_argument("--mode", choices=list(modes), default=modes[0])
    return parser.parse_args()


def say(event: str, **fields: Any) -> None:
    """Prints one line of JSON, flushed. Any thread may call it."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


class Counter:
    """Counts the notifications of a listener, and prints a line when all have come.

    One thread at a time calls it; `expect` may come from another thread. `sent` reads the annotation of an
    object of the library. `merged` returns the number of changes that were merged before delivery.
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
        self._delays: list[int] | None = None  # nanoseconds; None without `latency`

    def added(self) -> None:
        """Counts a first notification."""
        self._added += 1
        if self._added == self._objects:
            say("added", objects=self._added)

    def changed(self, obj: Any, called: int | None = None) -> None:
        """Counts a change. A listener calls it before all other work.

        A reconciler calls it after its write, with the time at which it was `called` (`time.time_ns`).
        """
        if self._delays is not None:
            now = time.time_ns() if called is None else called
            self._delays.append(now - int(self._sent(obj)))
        self._calls += 1
        if self._calls == self._wanted:
            self._report()

    def expect(self, changes: int, *, latency: bool) -> None:
        """Starts a new count; after `changes` changes, a line is printed."""
        self._merged_before = self._merged() if self._merged else 0
        self._delays = [] if latency else None
        self._calls, self._wanted = 0, changes

    def look(self) -> None:
        """Prints the line if calls and merged changes together reach the count. To be called periodically."""
        if (
            self._merged
            and self._wanted
            and self._calls + self._merged() - self._merged_before >= self._wanted
        ):
            self._report()

    def _report(self) -> None:
        changes, self._wanted = self._wanted, 0
        delays, self._delays = self._delays, None
        fields: dict[str, Any] = {"changes": changes, "calls": self._calls, "objects": self._objects}
        if delays:
            delays.sort()
            fields["p50"] = delays[len(delays) // 2] / 1e6
            fields["p99"] = delays[int(len(delays) * 0.99)] / 1e6
            fields["most"] = delays[-1] / 1e6
        say("received", **fields)


class Reconciliations:
    """Counts an object once for a reconciler, and then each change at the first call that sees it."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._seen: dict[str, str] = {}  # the last `bench/sent` of each object

    def knows(self, key: str, sent: str) -> bool:
        """Whether this state of an object was counted: then there is nothing to do."""
        return self._seen.get(key) == sent

    def count(self, key: str, obj: Any, sent: str, called: int) -> None:
        """Counts a state, after its writes. `called` is the begin of the call (`time.time_ns`)."""
        is_first = key not in self._seen
        self._seen[key] = sent
        if is_first:
            self._counter.added()
        else:
            self._counter.changed(obj, called)


def serve(*, counter: Counter | None, read: Callable[[], int] | None) -> None:
    """Executes the commands of standard input until its end, and then ends the process."""
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
    """Keeps a core busy from the first call on, in the calling thread or in a thread of its own."""

    def __init__(self) -> None:
        self._burns = False

    def burn(self, *_: object) -> None:
        """Blocks the calling thread for ever at the first call; later calls return."""
        if not self._burns:
            self._burns = True
            spin()

    def burn_in_thread(self, *_: object) -> None:
        """Starts a thread that burns, for libraries whose handlers share the thread of the watch."""
        if not self._burns:
            self._burns = True
            threading.Thread(target=spin, daemon=True).start()


def spin() -> None:
    """Computes for ever."""
    number = 0
    while True:
        number = (number * 31 + 7) % 1_000_003


def value_at(path: str, obj: dict[str, Any]) -> str:
    """The value at a field path of a decoded object; empty if there is none."""
    found: Any = obj
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found or ""
