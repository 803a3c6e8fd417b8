"""WATCH: which changes a watcher sees, as which events, and in which bytes.

A watcher has an outbox of lines. Watchers with equal subscriptions share one filter run for each change, and
those with the same form share the encoded bytes. A `WatchStream` takes the lines from the outbox, writes them
to the connection, and obeys the orders of `Faults`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal

import msgspec
from aiohttp import web

from declctl.kit import Clock
from declctl.objects import KubeObject
from declctl.sandbox import status
from declctl.sandbox.faults import Faults, WatchOrders
from declctl.sandbox.history import EtcdHistory, Stored, StoreEvent
from declctl.sandbox.kinds import ResourceId, ServedKind
from declctl.sandbox.lists import ListQuery, ObjectFilter, check_reached
from declctl.sandbox.requests import AnyForm

EventName = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
_LAST_BOOKMARK_SECONDS: Final = 2.0  # before the end of a watch
_LONGEST_OUTBOX: Final = 200_000  # lines; a client that is further behind is cut off, as the real server does


@dataclass(frozen=True, slots=True)
class Subscription:
    """The kind, the filter and the form of a watch. Equal subscriptions get equal lines."""

    kind: ServedKind
    selection: ObjectFilter
    form: AnyForm


Written = dict[tuple[EventName, str, AnyForm], bytes]


class Watcher:
    """One watch: its lines wait in an outbox until the stream takes them.

    `wake` is called when lines are waiting, and when the watch ends.
    """

    def __init__(self, subscription: Subscription, *, bookmarks: bool, wake: Callable[[], None]) -> None:
        self.subscription = subscription
        self.ended = False
        self.after = 0  # changes up to this version are left out, as by a watch cache
        self.bookmarks = bookmarks  # whether the client allows them
        self._wake = wake
        # Lines before those of the outbox. Each is written when it is taken: the copies of a large cluster
        # for all its watchers would fill the memory.
        self._backlog: Iterator[bytes] = iter(())
        self._outbox: deque[bytes] = deque()

    def begin(self, backlog: Iterable[bytes]) -> None:
        """Set the lines that come before those of the outbox; at most once."""
        self._backlog = iter(backlog)
        self._wake()

    def put(self, text: bytes) -> None:
        """Queue a line. A watch with too many waiting lines ends."""
        self._outbox.append(text)
        # A client that does not read must not fill the memory of the process.
        if len(self._outbox) > _LONGEST_OUTBOX:
            self.ended = True
        self._wake()

    def take(self, size: int = 1 << 20) -> bytes:
        """The waiting lines, up to the one with which they pass `size` bytes; empty if none waits."""
        pieces: list[bytes] = []
        for text in self._waiting():
            pieces.append(text)
            size -= len(text)
            if size <= 0:
                break
        return b"".join(pieces)

    def _waiting(self) -> Iterator[bytes]:
        yield from self._backlog
        while self._outbox:
            yield self._outbox.popleft()

    def end(self) -> None:
        """No more events: the stream is closed when the outbox is empty."""
        self.ended = True
        self._wake()


def line(event: EventName, body: bytes) -> bytes:
    """One watch event, with its line break."""
    return b'{"type":"%s","object":%s}\n' % (event.encode(), body)


def error_line(refusal: status.Refusal) -> bytes:
    """A refusal that comes when the stream is already open."""
    return line("ERROR", msgspec.json.encode(refusal.document()))


def seen(change: StoreEvent, subscription: Subscription, written: Written | None = None) -> bytes | None:
    """The line that a subscription gets for a change; None if the change does not concern it.

    An object that stops matching is DELETED, with its old content under the new version; one that starts
    matching is ADDED. `written` holds the lines of this change, so that each is encoded once only.
    """
    # Cheapest first: most changes in a large cluster are in another namespace.
    selection = subscription.selection
    if not selection.covers(change.new):
        return None
    before = change.old is not None and selection.selects(change.old)
    after = change.type != "DELETED" and selection.selects(change.new)
    if change.type == "DELETED":
        return _encoded("DELETED", change.new, subscription, written) if before else None
    if after:
        return _encoded("MODIFIED" if before else "ADDED", change.new, subscription, written)
    if before and change.old is not None:
        return _encoded("DELETED", change.old.as_of(change.version), subscription, written)
    return None


def _encoded(event: EventName, stored: Stored, subscription: Subscription, written: Written | None) -> bytes:
    kind, form = subscription.kind, subscription.form
    key = (event, kind.api_version, form)
    text = written.get(key) if written is not None else None
    if text is None:
        text = line(event, form.item(kind, stored))
        if written is not None:
            written[key] = text
    return text


class Hub:
    """The open watches of a server. The history calls `tell` with every change, in order."""

    def __init__(self, history: EtcdHistory) -> None:
        self._history = history
        # The open watches: those of equal subscriptions together, as they get the same lines.
        self._watchers: dict[ResourceId, dict[Subscription, list[Watcher]]] = {}

    def open(self, watcher: Watcher, options: ListQuery, *, initial_end: bool = True) -> None:
        """Start a watch: queue the changes that it has missed, then each new one. Refused with 410 or 504.

        `initial_end` False withholds the bookmark that ends the initial events.
        """
        subscription = watcher.subscription
        if options.initial_events:
            check_reached(self._history, options.version)
        if options.initial_events or (options.version in (None, 0) and options.initial_events is None):
            end = [self._bookmark(subscription, initial_end=True)]
            wanted = options.initial_events and options.bookmarks and initial_end
            watcher.begin(chain(self._initial(subscription), end if wanted else ()))
        elif options.version:
            # The server may not have reached this version yet: changes up to it are left out.
            watcher.after = options.version
            missed = self._history.collection(subscription.kind.resource).since(options.version)
            watcher.begin(text for change in missed if (text := seen(change, subscription)) is not None)
        self._watchers.setdefault(subscription.kind.resource, {}).setdefault(subscription, []).append(watcher)

    def close(self, watcher: Watcher) -> None:
        """Forget a watch; closing twice is harmless."""
        groups = self._watchers.get(watcher.subscription.kind.resource, {})
        group = groups.get(watcher.subscription, [])
        if watcher in group:
            group.remove(watcher)
        if not group:
            groups.pop(watcher.subscription, None)

    def tell(self, resource: ResourceId, change: StoreEvent) -> None:
        """Queue a change for each watcher that it concerns."""
        written: Written = {}
        for subscription, group in self._watchers.get(resource, {}).items():
            text = seen(change, subscription, written)
            if text is not None:
                for watcher in tuple(group):
                    if change.version > watcher.after:
                        watcher.put(text)

    def bookmark(self, resource: str | None = None) -> int:
        """Send a bookmark to every watch that allows them (of one resource, by its plural).

        Returns how many got one.
        """
        count = 0
        for subscription, watcher in self._all(resource):
            if watcher.bookmarks:
                watcher.put(self._bookmark(subscription, initial_end=False))
                count += 1
        return count

    def bookmark_of(self, watcher: Watcher) -> None:
        """Send one watch a bookmark, if it allows them."""
        if watcher.bookmarks:
            watcher.put(self._bookmark(watcher.subscription, initial_end=False))

    def end(self, resource: ResourceId) -> None:
        """End every watch of a resource that is served no more."""
        for group in tuple(self._watchers.get(resource, {}).values()):
            for watcher in tuple(group):
                watcher.end()

    def count(self, resource: str | None = None) -> int:
        """How many watches are open (of one resource, by its plural)."""
        return sum(1 for _ in self._all(resource))

    def _all(self, resource: str | None) -> list[tuple[Subscription, Watcher]]:
        return [
            (subscription, watcher)
            for (_, plural), groups in self._watchers.items()
            if resource in (None, plural)
            for subscription, group in groups.items()
            for watcher in group
        ]

    def _initial(self, subscription: Subscription) -> Iterable[bytes]:
        snapshot = self._history.collection(subscription.kind.resource).present(self._history.version)
        selection, form, kind = subscription.selection, subscription.form, subscription.kind
        # The list is made now and encoded later: the snapshot is valid until the next change only.
        selected = [stored for stored in snapshot.within(selection.namespace) if selection.matches(stored)]
        return (line("ADDED", form.item(kind, stored)) for stored in selected)

    def _bookmark(self, subscription: Subscription, *, initial_end: bool) -> bytes:
        metadata: KubeObject = {"resourceVersion": str(self._history.version)}
        if initial_end:
            metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
        return line("BOOKMARK", subscription.form.bookmark(subscription.kind, metadata))


_HALF_A_LINE: Final = b'{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"na'


class WatchStream:
    """One open watch. `run` ends with the watch."""

    def __init__(
        self, request: web.Request, resource: str, faults: Faults, headers: Mapping[str, str]
    ) -> None:
        self._headers = headers
        self.orders = WatchOrders(resource)
        self._request = request
        self._faults = faults  # asked before each write whether the resource is silent

    async def run(
        self, watcher: Watcher, clock: Clock, *, timeout: float, bookmark: Callable[[Watcher], None]
    ) -> web.StreamResponse:
        """Send until the watcher ends, the client leaves, or `timeout` seconds have passed.

        `bookmark` is called two seconds before the timeout, as kube-apiserver sends one then.
        """
        response = web.StreamResponse(
            headers={
                "Content-Type": "application/json",
                "Cache-Control": "no-cache, private",
                **self._headers,
            }
        )
        response.enable_chunked_encoding()
        self._faults.streams.append(self.orders)
        timer = asyncio.create_task(
            _expire(watcher, clock, timeout, bookmark), name=f"watch timeout of {self.orders.resource}"
        )
        try:
            await response.prepare(self._request)
            while await self._send(response, watcher):
                await self.orders.awake.wait()
                self.orders.awake.clear()
        except ConnectionError:
            self._close_socket()  # the client left: there is no one to send the rest to
        finally:
            timer.cancel()
            self._faults.streams.remove(self.orders)
        return response

    async def _send(self, response: web.StreamResponse, watcher: Watcher) -> bool:
        """Send the waiting lines; returns whether the watch goes on."""
        orders = self.orders
        while orders.injected and not orders.ending:
            await response.write(orders.injected.popleft())
        while not orders.ending and not self._faults.is_silent(orders.resource):
            text = watcher.take()
            if not text:
                break
            await response.write(text)
        if orders.ending == "mid line":
            await response.write(_HALF_A_LINE)
        if orders.ending in ("hard", "mid line"):
            self._close_socket()
        if orders.ending:
            return False
        # A silent server does not end the answer either.
        return not watcher.ended or self._faults.is_silent(orders.resource)

    def _close_socket(self) -> None:
        transport = self._request.transport
        if transport is not None:
            transport.close()


async def _expire(
    watcher: Watcher, clock: Clock, seconds: float, bookmark: Callable[[Watcher], None]
) -> None:
    ends = clock.monotonic() + seconds
    if seconds >= _LAST_BOOKMARK_SECONDS:
        await clock.pause(seconds - _LAST_BOOKMARK_SECONDS)
        bookmark(watcher)
    await clock.pause(ends - clock.monotonic())
    watcher.end()
