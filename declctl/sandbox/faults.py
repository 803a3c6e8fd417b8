"""Faults on demand: what a real cluster does on a bad day, when a test asks for it.

Rules change how requests are answered until they are used up or cleared; orders do something to the open
watches at once. This module decides; `server` and `streams` obey.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from declctl.objects import KubeObject
from declctl.sandbox.history import History
from declctl.sandbox.status import Refusal

WatchListMode = Literal["on", "invalid", "ignored"]
ExpiredWatch = Literal["event", "status"]
_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Stream(Protocol):
    """What can be done to an open watch."""

    @property
    def resource(self) -> str:
        """The plural of what it watches."""
        ...

    def cut(self, *, clean: bool) -> None:
        """End it: with the end of the answer if `clean`, else by closing the socket."""
        ...

    def cut_mid_line(self) -> None:
        """Send half an event, then close the socket."""
        ...

    def inject(self, text: bytes) -> None:
        """Send these bytes as a line."""
        ...

    def wake(self) -> None:
        """Look again whether something may be sent."""
        ...


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests a rule is about; None matches every one."""

    verb: str | None = None
    resource: str | None = None
    namespace: str | None = None

    def fits(self, verb: str, resource: str, namespace: str) -> bool:
        """Whether a request is one of them."""
        return (
            self.verb in (None, verb)
            and self.resource in (None, resource)
            and self.namespace in (None, namespace)
        )


@dataclass(slots=True)
class Rule:
    """One rule. `times` None lasts until it is cleared; `latency` and `pause` are in seconds.

    `pause` is that between the parts of an answer. `hits` counts the requests that it met.
    """

    match: Match
    refusal: Refusal | None = None
    latency: float = 0.0
    pause: float = 0.0
    times: int | None = None
    hits: int = 0

    @property
    def spent(self) -> bool:
        """Whether it has met as many requests as it was made for."""
        return self.times is not None and self.hits >= self.times

    def document(self) -> KubeObject:
        """As JSON."""
        return {
            "verb": self.match.verb,
            "resource": self.match.resource,
            "namespace": self.match.namespace,
            "status": self.refusal.code if self.refusal else None,
            "latency": self.latency,
            "pause": self.pause,
            "times": self.times,
            "hits": self.hits,
        }


@dataclass(slots=True)
class Faults:
    """The rules in force and the watches that are open.

    Not safe for threads: call it on the loop of the server.

    `watch_list`: served ("on"), refused with 422 ("invalid"), or not understood ("ignored").
    `expired_watch`: a watch from a compacted version gets its 410 as an ERROR event, or as the HTTP status.
    `withhold_initial_events_end`: the bookmark that ends the initial events never comes.
    """

    history: History
    send_bookmarks: Callable[[str | None], int]
    rules: list[Rule] = field(default_factory=list[Rule])
    watch_list: WatchListMode = "on"
    expired_watch: ExpiredWatch = "event"
    withhold_initial_events_end: bool = False
    streams: list[Stream] = field(default_factory=list[Stream])
    _silent: set[str | None] = field(default_factory=set[str | None])

    def refuse(
        self, code: int, match: Match = Match(), *, times: int | None = None, retry_after: int | None = None,
        reason: str = "", message: str = "",
    ) -> Rule:  # fmt: skip
        """Answer matching requests with this status; `retry_after` is in seconds (1 by default for 429)."""
        reason = reason or _REASONS.get(code, "InternalError")
        if code == 429 and retry_after is None:
            retry_after = 1
        refusal = Refusal(
            code, reason, message or f"the sandbox was told to answer {code}", retry_after=retry_after
        )
        return self._add(Rule(match, refusal=refusal, times=times))

    def delay(self, seconds: float, match: Match = Match(), *, times: int | None = None) -> Rule:
        """Answer matching requests this much later."""
        return self._add(Rule(match, latency=seconds, times=times))

    def trickle(self, seconds: float, match: Match = Match(), *, times: int | None = None) -> Rule:
        """Answer matching LISTs bit by bit, with so many seconds before each part but the first."""
        return self._add(Rule(match, pause=seconds, times=times))

    def meet(self, verb: str, resource: str, namespace: str) -> tuple[float, Refusal | None]:
        """What befalls a request: seconds to wait, and a refusal if there is one.

        Counts the rules that it meets.
        """
        wait, refusal = 0.0, None
        for rule in self._fitting(verb, resource, namespace):
            if rule.pause or (refusal and rule.refusal):
                continue
            rule.hits += 1
            wait += rule.latency
            refusal = refusal or rule.refusal
        self._drop_spent()
        return wait, refusal

    def pace(self, resource: str, namespace: str) -> float:
        """Seconds between the parts of the answer to a LIST; 0 for an answer in one go.

        Counts the rules that it meets.
        """
        met = [rule for rule in self._fitting("list", resource, namespace) if rule.pause]
        for rule in met:
            rule.hits += 1
        self._drop_spent()
        return sum(rule.pause for rule in met)

    def would_refuse(self, verb: str, resource: str, namespace: str) -> bool:
        """Whether such a request would be forbidden now; for access reviews, without counting."""
        return any(
            rule.refusal is not None
            and rule.refusal.code == 403
            and rule.match.fits(verb, resource, namespace)
            for rule in self.rules
        )

    def cut_watches(self, resource: str | None = None, *, clean: bool = False) -> int:
        """End all watches (of one resource): by closing the socket, or politely if `clean`.

        Returns how many.
        """
        return self._order(resource, lambda stream: stream.cut(clean=clean))

    def cut_mid_line(self, resource: str | None = None) -> int:
        """Send half an event to all watches and close the socket. Returns how many."""
        return self._order(resource, lambda stream: stream.cut_mid_line())

    def malformed_line(self, resource: str | None = None) -> int:
        """Send a line that is no JSON to all watches. Returns how many."""
        return self._order(
            resource, lambda stream: stream.inject(b'{"type":"MODIFIED","object":{"metadata":\n')
        )

    def huge_line(self, size: int, resource: str | None = None) -> int:
        """Send all watches a bookmark with an annotation of `size` bytes. Returns how many."""
        metadata = b'{"resourceVersion":"%d","annotations":{"huge":"%s"}}' % (
            self.history.version,
            b"x" * size,
        )
        text = b'{"type":"BOOKMARK","object":{"metadata":%s}}\n' % metadata
        return self._order(resource, lambda stream: stream.inject(text))

    def silence(self, resource: str | None = None) -> None:
        """Watches are accepted, but nothing is sent on them any more, not even bookmarks, until `speak`."""
        self._silent.add(resource)

    def speak(self) -> None:
        """End the silence; what was held back is sent."""
        self._silent.clear()
        for stream in tuple(self.streams):
            stream.wake()

    def is_silent(self, resource: str) -> bool:
        """Whether a watch of this resource must not send."""
        return bool(self._silent & {None, resource})

    def bookmark(self, resource: str | None = None) -> int:
        """Send bookmarks now. Returns how many."""
        return self.send_bookmarks(resource)

    def compact(self) -> int:
        """Forget all history: every version but the present one is answered with 410.

        Returns the present version.
        """
        return self.history.compact()

    def clear(self) -> None:
        """Back to a good day: no rules, no silence, WatchList served whole."""
        self.rules.clear()
        self.watch_list = "on"
        self.expired_watch = "event"
        self.withhold_initial_events_end = False
        self.speak()

    def document(self) -> KubeObject:
        """What is in force, as JSON."""
        return {
            "rules": [rule.document() for rule in self.rules],
            "silent": sorted(str(resource or "*") for resource in self._silent),
            "watchList": self.watch_list,
            "expiredWatch": self.expired_watch,
            "withholdInitialEventsEnd": self.withhold_initial_events_end,
            "openWatches": len(self.streams),
        }

    def _fitting(self, verb: str, resource: str, namespace: str) -> list[Rule]:
        return [rule for rule in self.rules if not rule.spent and rule.match.fits(verb, resource, namespace)]

    def _drop_spent(self) -> None:
        self.rules = [rule for rule in self.rules if not rule.spent]

    def _add(self, rule: Rule) -> Rule:
        self.rules.append(rule)
        return rule

    def _order(self, resource: str | None, order: Callable[[Stream], None]) -> int:
        concerned = [stream for stream in self.streams if resource in (None, stream.resource)]
        for stream in concerned:
            order(stream)
        return len(concerned)
