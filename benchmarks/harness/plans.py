"""The plans: scenarios, each with its objects, its steps and its peers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.catalogue import BEFORE, CANDIDATES, ISOLATED, KINDS, OURS, Candidate
from harness.session import Sizes

_ALL = tuple(candidate.key for candidate in CANDIDATES if candidate.key not in (BEFORE, ISOLATED))
_RUNTIMES = (*OURS, "client-go", "client-go-json", "client-go-dynamic", "kube-rs")
_VARIANTS = ("client-go-json", "kube-rs-streaming")  # other modes of peers that are measured anyway
_SLOW = tuple(candidate.key for candidate in CANDIDATES if candidate.slow)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Runs of several peers in turn, each in its own process. A peer has `runs` runs; a slow one has one."""

    name: str
    says: str
    objects: int
    steps: Sequence[str]
    peers: Sequence[str]
    kind: str = "pods"
    listener: str = "none"
    burn: bool = False
    runs: int = 1
    sizes: Sizes | None = None  # None for those of the plan

    @property
    def writes(self) -> bool:
        """Whether its peers write a status for each change."""
        return self.listener == "reconcile-status"

    def takes(self, candidate: Candidate) -> bool:
        """Whether a peer is part of the scenario, and is able to run it."""
        able = self.kind in candidate.kinds and self.listener in candidate.listeners
        return able and candidate.key in self.peers


@dataclass(frozen=True, slots=True)
class Plan:
    """Scenarios, and their common sizes. `command_line` is the number of runs of each command."""

    name: str
    sizes: Sizes
    scenarios: Sequence[Scenario]
    command_line: int


def quick(objects: int = 20_000, runs: int = 1) -> Plan:
    """A plan of some minutes with all peers. Slow peers have fewer steps."""
    sizes = Sizes(settle=2, flood=5_000, paced=3_000, hot=15_000, limit=60)
    less = replace(sizes, flood=1_000)
    listen = ("sync", "added", "flood", "latency")
    fast = tuple(peer for peer in _ALL if peer not in (*_SLOW, *_VARIANTS))
    scenarios = (
        Scenario("cache", _CACHE, objects, ("sync", "settle", "read", "relist"), fast, runs=runs),
        Scenario("cache", _CACHE, objects, ("sync", "settle", "read"), _SLOW),
        Scenario("sync", _SYNC, objects, listen, fast, listener="sync", runs=runs),
        Scenario("sync", _SYNC, objects, listen[:-1], _SLOW, listener="sync", sizes=less),
        Scenario("async", _ASYNC, objects, listen, (*OURS, BEFORE), listener="async", runs=runs),
        *_behaviour(objects, (*OURS, "client-go", "kube-rs")),
        *_reconciling(objects, runs=runs),
    )
    return Plan("quick", sizes, scenarios, command_line=3)


def full(objects: int = 100_000, runs: int = 3) -> Plan:
    """A plan of some hours with all figures of docs/reference/figures.md."""
    cache, listen = ("sync", "settle", "read", "relist"), ("sync", "added", "flood", "latency")
    scenarios = (
        Scenario("cache", _CACHE, objects, cache, _ALL, runs=runs),
        Scenario("sync", _SYNC, objects, listen, _ALL, listener="sync", runs=runs),
        Scenario("async", _ASYNC, objects, listen, (*_ALL, BEFORE), listener="async", runs=runs),
        *_behaviour(objects, _ALL, runs=runs),
        *_reconciling(objects, runs=runs),
        *(
            Scenario("sizes", _SIZES, size, ("sync", "settle", "read"), OURS)
            for size in (1_000, 10_000, 100_000, 1_000_000)
        ),
        *(
            Scenario(
                "kinds",
                _KINDS,
                min(objects, 20_000),
                ("sync", "settle", "read"),
                _RUNTIMES,
                kind=kind,
                runs=runs,
            )
            for kind in KINDS
        ),
    )
    return Plan("full", Sizes(), scenarios, command_line=9)


def _reconciling(objects: int, *, runs: int) -> tuple[Scenario, ...]:
    """The scenarios of reconcilers. Each object changes once at most in a step: so no change is merged."""
    objects = min(objects, 10_000)
    sizes = Sizes(settle=2, flood=objects, paced=min(objects, 2_000), rate=200)
    return tuple(
        Scenario(
            listener,
            says,
            objects,
            ("sync", "added", "settle", "flood", "latency"),
            ("declctl-run", "controller-runtime", "kopf", "kopf-update"),
            kind="customs",
            listener=listener,
            runs=runs,
            sizes=sizes,
        )
        for listener, says in (
            ("reconcile", "a reconciler that has nothing to do"),
            ("reconcile-status", "a reconciler that writes the status of each changed object"),
        )
    )


_CACHE = "one index, no handler; then a relist in which nothing has changed"
_SYNC = "the same with one handler, a plain function"
_ASYNC = "the same with one handler, a coroutine"
_SIZES = "how it grows"
_KINDS = "other kinds of object"


def _behaviour(objects: int, peers: Sequence[str], *, runs: int = 1) -> tuple[Scenario, ...]:
    """The scenarios of a listener under load, and of reloads."""
    listens = ("sync", "added")
    return (
        Scenario(
            "burning",
            "a second handler keeps a core busy",
            objects,
            (*listens, "latency"),
            (*peers, ISOLATED),
            listener="sync",
            burn=True,
            runs=runs,
        ),
        Scenario(
            "hot",
            "one Lease changes again and again",
            1_000,
            (*listens, "settle", "hot"),
            peers,
            kind="leases",
            listener="sync",
            runs=runs,
        ),
        Scenario(
            "unchanged", "a relist, with a handler", 1_000, (*listens, "unchanged"), peers, listener="sync"
        ),
        Scenario(
            "reload",
            "handlers are edited while changes come",
            min(objects, 20_000),
            (*listens, "latency", "reload"),
            ("declctl-run",),
            listener="sync",
            runs=runs,
        ),
    )
