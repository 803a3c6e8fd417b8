"""Faults on demand, and the ledger of requests: what a test orders, and what a test counts.

A rule changes how requests are answered, until it is used up or cleared. An order changes the open watches at
once. This module decides; `server` and `watches` obey. Tests in other processes use HTTP:

    GET    /sandbox/ledger?verb=list&resource=pods     the requests; DELETE forgets them
    GET    /sandbox/faults                             what is in force; DELETE clears it
    POST   /sandbox/faults {"fault": "refuse", "status": 429, "verb": "list", "times": 2, "retryAfter": 1}

The faults: refuse, lose, delay {seconds}, trickle {seconds}, cut {resource, clean}, cutMidLine,
malformedLine, hugeLine {size}, silence {resource}, speak, compact, bookmark {resource},
withholdInitialEventsEnd {on}, watchList {mode}, expiredWatch {mode}, outage {seconds}, clear.

A rule is for requests with its `verb`, `resource` and `namespace`. The verb `write` stands for all that
change objects other than Events and Leases. A rule with `skip` leaves so many of them alone first.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NamedTuple

from declctl.objects import KubeObject
from declctl.sandbox import status
from declctl.sandbox.history import EtcdHistory
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
_WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_NO_WRITES: Final = frozenset({"events", "leases"})  # that `write` leaves out
Outage = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One request. `resource` is the plural, with a subresource behind a slash (`pods/status`).

    `verb` is one of list, watch, get, create, update, patch, delete, deletecollection; `namespace` and `name`
    are empty where there is none; `time` is in seconds on the server's monotonic clock; `connection` numbers
    the TCP connections from 1.
    """

    verb: str
    resource: str
    namespace: str
    name: str
    params: Mapping[str, str]
    time: float
    connection: int
    user_agent: str

    def document(self) -> KubeObject:
        """As JSON."""
        return {**asdict(self), "params": dict(self.params)}


class Ledger:
    """The requests since the start, or since the last `clear`: the newest 200,000."""

    def __init__(self) -> None:
        # Bounded: a sandbox that runs for days must not fill the memory.
        self._requests: deque[LedgerEntry] = deque(maxlen=200_000)

    def record(self, request: LedgerEntry) -> None:
        """Add a request."""
        self._requests.append(request)

    def requests(
        self, verb: str | None = None, *, resource: str | None = None, namespace: str | None = None
    ) -> tuple[LedgerEntry, ...]:
        """The requests that match all given arguments; `namespace` "" means those without one."""
        return tuple(
            request
            for request in self._requests
            if verb in (None, request.verb)
            and resource in (None, request.resource)
            and namespace in (None, request.namespace)
        )

    def count(
        self, verb: str | None = None, *, resource: str | None = None, namespace: str | None = None
    ) -> int:
        """How many match."""
        return len(self.requests(verb, resource=resource, namespace=namespace))

    def clear(self) -> None:
        """Forget all requests."""
        self._requests.clear()


@dataclass(slots=True, eq=False)
class WatchOrders:
    """What an open watch is to do at the next opportunity: `Faults` orders it, the stream obeys.

    `resource` is the plural of what it watches.
    """

    resource: str
    ending: Literal["", "clean", "hard", "mid line"] = ""  # how the watch is cut; empty if it is not
    injected: deque[bytes] = field(default_factory=deque[bytes])  # lines that are no event of any object
    awake: asyncio.Event = field(default_factory=asyncio.Event)  # set when there is something to send or do

    def wake(self) -> None:
        """Look again whether something may be sent."""
        self.awake.set()

    def cut(self, ending: Literal["clean", "hard", "mid line"]) -> None:
        """End it: with the end of the answer, by closing the socket, or so with half an event before."""
        self.ending = ending
        self.wake()

    def inject(self, text: bytes) -> None:
        """Send these bytes as a line."""
        self.injected.append(text)
        self.wake()


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests a rule is for; a field that is None matches all of them."""

    verb: str | None = None
    resource: str | None = None
    namespace: str | None = None

    def fits(self, verb: str, resource: str, namespace: str) -> bool:
        """Whether a request matches."""
        if self.verb == "write":
            of_verb = verb in _WRITES and resource not in _NO_WRITES
        else:
            of_verb = self.verb in (None, verb)
        return of_verb and self.resource in (None, resource) and self.namespace in (None, namespace)


@dataclass(slots=True)
class Rule:
    """One rule, for `times` requests after `skip` others; with None until it is cleared.

    `latency` (before an answer) and `pause` (between its parts) are in seconds; `hits` counts the requests so
    far.
    """

    match: Match
    refusal: Refusal | None = None
    latency: float = 0.0
    pause: float = 0.0
    lost: bool = False  # the request is done, and its answer is not sent
    times: int | None = None
    skip: int = 0
    hits: int = 0

    @property
    def spent(self) -> bool:
        """Whether it has applied to as many requests as it was made for."""
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
            "lost": self.lost,
            "skip": self.skip,
            "times": self.times,
            "hits": self.hits,
        }


class RequestFault(NamedTuple):
    """What happens to one request."""

    wait: float = 0.0  # seconds before its answer
    refusal: Refusal | None = None
    lost: bool = False  # it is done, and the connection ends without an answer


@dataclass(slots=True)
class Faults:
    """The rules in force and the watches that are open.

    Not safe for threads: call it on the loop of the server.

    `watch_list`: served ("on"), refused with 422 ("invalid"), or not understood ("ignored").
    `expired_watch`: a watch from a compacted version gets its 410 as an ERROR event, or as the HTTP status.
    `withhold_initial_events_end`: the bookmark that ends the initial events never comes.
    """

    history: EtcdHistory
    send_bookmarks: Callable[[str | None], int]
    rules: list[Rule] = field(default_factory=list[Rule])
    watch_list: WatchListMode = "on"
    expired_watch: ExpiredWatch = "event"
    withhold_initial_events_end: bool = False
    # Those of the open watches; each `WatchStream` adds and removes its own.
    streams: list[WatchOrders] = field(default_factory=list[WatchOrders])
    # The plurals on whose watches nothing is sent; None stands for all.
    _silent: set[str | None] = field(default_factory=set[str | None])

    def refuse(
        self, code: int, match: Match = Match(), *, times: int | None = None, skip: int = 0,
        retry_after: int | None = None, reason: str = "", message: str = "",
    ) -> Rule:  # fmt: skip
        """Answer matching requests with this status; `retry_after` is in seconds (1 by default for 429)."""
        reason = reason or _REASONS.get(code, "InternalError")
        if code == 429 and retry_after is None:
            retry_after = 1
        refusal = Refusal(
            code, reason, message or f"the sandbox was told to answer {code}", retry_after=retry_after
        )
        return self._add(Rule(match, refusal=refusal, times=times, skip=skip))

    def lose(self, match: Match = Match(), *, times: int | None = None, skip: int = 0) -> Rule:
        """Do what matching requests ask for, and end their connections without an answer."""
        return self._add(Rule(match, lost=True, times=times, skip=skip))

    def delay(self, seconds: float, match: Match = Match(), *, times: int | None = None) -> Rule:
        """Answer matching requests this much later."""
        return self._add(Rule(match, latency=seconds, times=times))

    def trickle(self, seconds: float, match: Match = Match(), *, times: int | None = None) -> Rule:
        """Answer matching LISTs bit by bit, with so many seconds before each part but the first."""
        return self._add(Rule(match, pause=seconds, times=times))

    def meet(self, verb: str, resource: str, namespace: str) -> RequestFault:
        """What happens to a request. Counts a hit for each rule that applies."""
        wait, refusal, lost = 0.0, None, False
        for rule in self._fitting(verb, resource, namespace):
            # A pause is for answers (`pace`). Of two refusals one is sent; the other waits for a request.
            if rule.skip and not rule.pause:
                rule.skip -= 1
                continue
            if rule.pause or (refusal and (rule.refusal or rule.lost)):
                continue
            rule.hits += 1
            wait += rule.latency
            refusal = refusal or rule.refusal
            lost = lost or rule.lost
        self._drop_spent()
        return RequestFault(wait, refusal, lost)

    def pace(self, resource: str, namespace: str) -> float:
        """Seconds between the parts of the answer to a LIST; 0 for an answer as a whole.

        Counts a hit for each rule that applies.
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
        return self._order(resource, lambda stream: stream.cut("clean" if clean else "hard"))

    def cut_mid_line(self, resource: str | None = None) -> int:
        """Send half an event to all watches and close the socket. Returns how many."""
        return self._order(resource, lambda stream: stream.cut("mid line"))

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
        """End the silence; the events that were held back are sent."""
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
        """Back to normal: no rules, no silence, WatchList served."""
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

    def _order(self, resource: str | None, order: Callable[[WatchOrders], None]) -> int:
        concerned = [stream for stream in self.streams if resource in (None, stream.resource)]
        for stream in concerned:
            order(stream)
        return len(concerned)


def ledger_document(ledger: Ledger, params: Mapping[str, str]) -> KubeObject:
    """The requests that match the query, and how many there are."""
    found = ledger.requests(
        params.get("verb"), resource=params.get("resource"), namespace=params.get("namespace")
    )
    return {"count": len(found), "requests": [request.document() for request in found]}


def order(faults: Faults, given: Any, outage: Outage) -> KubeObject:
    """Do what a POST to /sandbox/faults asks for.

    Refused with 400 if there is no such fault, or if a field has a wrong value.
    """
    name = given.get("fault") if isinstance(given, dict) else None
    act = _FAULTS.get(name) if isinstance(name, str) else None
    if act is None and name != "outage":
        known = ", ".join(sorted([*_FAULTS, "outage"]))
        raise status.bad_request(f"there is no fault {name!r}: give one of {known} as the field 'fault'")
    try:
        if act is not None:
            return {"fault": name, "watches": act(faults, given), **faults.document()}
        outage(float(given.get("seconds", 0)))
    except (KeyError, TypeError, ValueError) as error:
        raise status.bad_request(f"the fault {name!r} can't be ordered like this: {error}") from error
    return {"fault": name}


def _match(given: KubeObject) -> Match:
    return Match(given.get("verb"), given.get("resource"), given.get("namespace"))


def _refuse(faults: Faults, given: KubeObject) -> None:
    faults.refuse(
        int(given["status"]),
        _match(given),
        times=given.get("times"),
        skip=int(given.get("skip", 0)),
        retry_after=given.get("retryAfter"),
        reason=given.get("reason", ""),
        message=given.get("message", ""),
    )


def _lose(faults: Faults, given: KubeObject) -> None:
    faults.lose(_match(given), times=given.get("times"), skip=int(given.get("skip", 0)))


def _delay(faults: Faults, given: KubeObject) -> None:
    faults.delay(float(given["seconds"]), _match(given), times=given.get("times"))


def _trickle(faults: Faults, given: KubeObject) -> None:
    faults.trickle(float(given["seconds"]), _match(given), times=given.get("times"))


def _withhold(faults: Faults, given: KubeObject) -> None:
    faults.withhold_initial_events_end = bool(given.get("on", True))


def _watch_list(faults: Faults, given: KubeObject) -> None:
    if given["mode"] not in ("on", "invalid", "ignored"):
        raise ValueError("mode is on, invalid or ignored")
    faults.watch_list = given["mode"]


def _expired_watch(faults: Faults, given: KubeObject) -> None:
    if given["mode"] not in ("event", "status"):
        raise ValueError("mode is event or status")
    faults.expired_watch = given["mode"]


_FAULTS: Final[Mapping[str, Callable[[Faults, KubeObject], int | None]]] = {
    "refuse": _refuse,
    "lose": _lose,
    "delay": _delay,
    "trickle": _trickle,
    "cut": lambda faults, given: faults.cut_watches(given.get("resource"), clean=bool(given.get("clean"))),
    "cutMidLine": lambda faults, given: faults.cut_mid_line(given.get("resource")),
    "malformedLine": lambda faults, given: faults.malformed_line(given.get("resource")),
    "hugeLine": lambda faults, given: faults.huge_line(int(given["size"]), given.get("resource")),
    "silence": lambda faults, given: faults.silence(given.get("resource")),
    "speak": lambda faults, _: faults.speak(),
    "compact": lambda faults, _: faults.compact(),
    "bookmark": lambda faults, given: faults.bookmark(given.get("resource")),
    "withholdInitialEventsEnd": _withhold,
    "watchList": _watch_list,
    "expiredWatch": _expired_watch,
    "clear": lambda faults, _: faults.clear(),
}
