"""A session with one running peer: steps, each of which adds figures."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from harness.faults import TimeLimitExceeded
from harness.peer import Peer
from harness.processes import Figures
from harness.server import Server

_HEED_SECONDS = 0.3  # until a peer has read a line; the protocol has no answer to `expect`
_QUIET_SECONDS = 1.0
_QUIET_CPU = 0.1  # the most seconds of CPU within the quiet seconds
_QUIET_BYTES = 64 * 1024  # the most bytes within them, which are bookmarks
_LOOK_SECONDS = 0.1
_WRITTEN_SECONDS = 0.02  # between two questions whether all statuses are written
_RELOAD_AFTER = 2.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the steps, and the time limit of each. Times are in seconds, rates in events a second."""

    settle: float = 5.0
    flood: int = 20_000
    paced: int = 10_000
    rate: int = 1_000
    hot: int = 50_000
    hot_rate: int = 5_000
    limit: float = 600.0


class Session:
    """One run of one peer, with its `figures` and its `version`.

    CPU and wall times are in seconds, memory in megabytes, latencies in milliseconds.
    """

    def __init__(self, peer: Peer, server: Server, sizes: Sizes, *, writes: bool = False) -> None:
        """With `writes`, the peer writes a status for each change: changes are over when all are written."""
        self.figures: dict[str, float] = {}
        self.version = ""
        self._peer = peer
        self._server = server
        self._sizes = sizes
        self._writes = writes
        self._before = server.stats()
        self._listed_bytes = 0

    def sync(self) -> None:
        """From the start of the process until the cache has all objects."""
        line = self._peer.wait("synced", self._sizes.limit)
        self.version = str(line.said["version"])
        stats = self._server.stats()
        self._listed_bytes = stats["bytes"] - self._before["bytes"]
        self._put(
            sync_lists=sum(stats[name] - self._before[name] for name in ("lists", "streams")),
            sync_cpu=line.then.cpu,
            sync_wall=line.then.at - self._peer.began,
            sync_resident=line.then.resident,
            sync_peak=line.then.peak,
        )

    def settle(self) -> None:
        """Waits some seconds, in which garbage is collected and memory is released."""
        time.sleep(self._sizes.settle)
        then = self._peer.now()
        self._put(settled_cpu=then.cpu, settled_resident=then.resident, settled_peak=then.peak)

    def read(self) -> None:
        """Reads one value of the index."""
        self._peer.send("read")
        said = self._peer.wait("read", self._sizes.limit).said
        self._put(read_seconds=said["median"], read_values=said["values"])

    def relist(self) -> None:
        """Expires all versions: the peer lists all objects again, without changes."""
        self._peer.reset_peak()
        before = self._peer.now()
        after = self._expired()
        self._put(
            relist_cpu=after.cpu - before.cpu,
            relist_wall=after.at - before.at,
            relist_resident=after.resident,
            relist_peak=after.peak,
        )

    def added(self) -> None:
        """From the start of the process until the listener has received all objects."""
        line = self._peer.wait("added", self._sizes.limit)
        self._put(added_cpu=line.then.cpu, added_wall=line.then.at - self._peer.began)

    def flood(self) -> None:
        """Changes as fast as the peer takes them."""
        before, _, received = self._changes(self._sizes.flood, rate=0)
        took = received.at - before.at
        self._put(
            flood_cpu=(received.cpu - before.cpu) / self._sizes.flood, flood_rate=self._sizes.flood / took
        )

    def latency(self) -> None:
        """Changes at a steady rate: the delay until the handler is called."""
        before, said, received = self._changes(self._sizes.paced, rate=self._sizes.rate, latency=True)
        self._put(
            latency_cpu=(received.cpu - before.cpu) / self._sizes.paced,
            latency_p50=said["p50"],
            latency_p99=said["p99"],
            latency_most=said["most"],
        )

    def hot(self) -> None:
        """Many changes of one object: whether all are delivered, and the growth of memory."""
        self._peer.reset_peak()
        before, said, received = self._changes(self._sizes.hot, rate=self._sizes.hot_rate, hot=True)
        self._put(
            hot_before=before.resident,
            hot_peak=received.peak,
            hot_after=received.resident,
            hot_told=said["changes"],
            hot_merged=max(0, said["changes"] - said.get("calls", said["changes"])),
            hot_wall=received.at - before.at,
            hot_cpu=(received.cpu - before.cpu) / self._sizes.hot,
        )

    def unchanged(self) -> None:
        """A relist without changes: whether the listener receives a notification."""
        self._peer.send("expect 1")
        time.sleep(_HEED_SECONDS)
        self._expired()
        self._put(unchanged_told=float(self._peer.has_line("received")))

    def reload(self) -> None:
        """Edits the handlers while changes come: the delay of the changes."""
        timer = threading.Timer(_RELOAD_AFTER, self._peer.send, ["reload"])
        timer.start()
        _, said, _ = self._changes(self._sizes.paced, rate=self._sizes.rate, latency=True)
        outcome = self._peer.wait("reloaded", self._sizes.limit).said
        self._put(
            reload_seconds=outcome["seconds"],
            reload_lists=outcome["lists"],
            reload_p99=said["p99"],
            reload_most=said["most"],
        )

    def _put(self, **found: float) -> None:
        self.figures.update(found)

    def _changes(
        self, count: int, *, rate: int, hot: bool = False, latency: bool = False
    ) -> tuple[Figures, Mapping[str, float], Figures]:
        self._peer.send(f"expect {count}{' latency' if latency else ''}")
        time.sleep(_HEED_SECONDS)
        before, written = self._peer.now(), self._server.stats()["statuses"]
        limit = self._sizes.limit + (count / rate if rate else 0)
        ordering = threading.Thread(target=self._order, args=(count, rate, hot, limit), daemon=True)
        ordering.start()
        line = self._peer.wait("received", limit)
        ordering.join(limit)
        then = self._written(written + count) if self._writes else line.then
        return before, line.said, then

    def _written(self, statuses: int) -> Figures:
        """Waits until the server has stored so many statuses; returns the figures of that time."""
        deadline = time.monotonic() + self._sizes.limit
        while time.monotonic() < deadline:
            self._peer.watch()
            if self._server.stats()["statuses"] >= statuses:
                return self._peer.now()
            time.sleep(_WRITTEN_SECONDS)
        raise TimeLimitExceeded(f"> {self._sizes.limit:.0f} s")

    def _order(self, count: int, rate: int, hot: bool, limit: float) -> None:
        with contextlib.suppress(OSError):  # the wait for the peer has its own limit and error
            self._server.modify(count, rate=rate, hot=hot, timeout=limit)

    def _expired(self) -> Figures:
        """Expires all versions; returns the figures at the time when the peer is idle after the relist."""
        wanted = self._server.stats()["bytes"] + self._listed_bytes // 2
        self._server.expire()
        deadline = time.monotonic() + self._sizes.limit
        busy, sent = self._peer.now(), 0
        while time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            self._peer.watch()
            now, total = self._peer.now(), self._server.stats()["bytes"]
            if total - sent > _QUIET_BYTES or now.cpu - busy.cpu > _QUIET_CPU:
                busy, sent = now, total
            elif total >= wanted and now.at - busy.at > _QUIET_SECONDS:
                return Figures(busy.at, now.cpu, now.resident, now.peak)
        raise TimeLimitExceeded(f"> {self._sizes.limit:.0f} s")


STEPS: Mapping[str, Callable[[Session], None]] = MappingProxyType(
    {
        step.__name__: step
        for step in (
            Session.sync,
            Session.settle,
            Session.read,
            Session.relist,
            Session.added,
            Session.flood,
            Session.latency,
            Session.hot,
            Session.unchanged,
            Session.reload,
        )
    }
)
