"""/sandbox: faults and the ledger over HTTP, for tests in other processes.

    GET    /sandbox/ledger?verb=list&resource=pods     the requests; DELETE forgets them
    GET    /sandbox/faults                             what is in force; DELETE clears it
    POST   /sandbox/faults {"fault": "refuse", "status": 429, "verb": "list", "times": 2, "retryAfter": 1}

The faults: refuse, delay {seconds}, trickle {seconds}, cut {resource, clean}, cutMidLine, malformedLine,
hugeLine {size}, silence {resource}, speak, compact, bookmark {resource}, withholdInitialEventsEnd {on},
watchList {mode}, expiredWatch {mode}, outage {seconds}.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from declctl.objects import KubeObject
from declctl.sandbox import status
from declctl.sandbox.faults import Faults, Match
from declctl.sandbox.ledger import Ledger

Outage = Callable[[float], None]


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
        retry_after=given.get("retryAfter"),
        reason=given.get("reason", ""),
        message=given.get("message", ""),
    )


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
}
