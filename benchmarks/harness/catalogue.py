"""The peers: their names, commands and abilities."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.building import BASELINE, PEERS, baseline, cargo, checkout, go, peer_file, python

KINDS = ("pods", "configmaps", "secrets", "leases", "customs")
TYPED = ("pods", "configmaps", "secrets", "leases")
RECONCILERS = ("reconcile", "reconcile-status")
BASE, RUN, BEFORE, ISOLATED = "declctl", "declctl-run", "baseline", "declctl-run-isolated"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A peer that may be measured. `command` builds it, or raises PeerUnavailable.

    A `slow` peer is measured once where others are measured several times. `gives` describes the objects in
    its cache. `formats` are the formats that the server prepares for it.
    """

    key: str
    title: str
    command: Callable[[], Sequence[str]]
    gives: str
    listeners: Sequence[str] = ("none", "sync")
    kinds: Sequence[str] = KINDS
    formats: Sequence[str] = ("json",)
    slow: bool = False


def _declctl(name: str) -> Callable[[], Sequence[str]]:
    return lambda: [str(checkout()), peer_file(name)]


def _baseline() -> Sequence[str]:
    return ["env", f"PYTHONPATH={baseline()}", *_declctl("declctl_run")()]


def _client_go(mode: str) -> Callable[[], Sequence[str]]:
    return lambda: [str(go(PEERS / "go" / "client_go", "client-go")), "--mode", mode]


def _controller_runtime() -> Sequence[str]:
    return [str(go(PEERS / "go" / "controller_runtime", "controller-runtime"))]


def _kube_rs(mode: str) -> Callable[[], Sequence[str]]:
    return lambda: [str(cargo(PEERS / "kube_rs", "kube_rs")), "--mode", mode]


def _python(environment: str, name: str) -> Callable[[], Sequence[str]]:
    return lambda: [str(python(environment)), peer_file(name)]


CANDIDATES = (
    Candidate(
        BASE,
        "declctl",
        _declctl("declctl_library"),
        "compressed JSON, decoded when a handler reads it; no types",
        listeners=("none", "sync", "async"),
    ),
    Candidate(
        "declctl-run",
        "declctl run",
        _declctl("declctl_run"),
        "the same, with the manifest, the admin address and reloads",
        listeners=("none", "sync", "async", *RECONCILERS),
    ),
    Candidate(
        ISOLATED,
        "declctl run, the computing handler isolated",
        lambda: [*_declctl("declctl_run")(), "--mode", "isolated"],
        "the same",
        listeners=("sync",),
    ),
    Candidate(
        BEFORE,
        f"declctl run at {BASELINE}",
        _baseline,
        "as it was then",
        listeners=("none", "sync", "async"),
    ),
    Candidate(
        "client-go",
        "client-go, typed, protobuf",
        _client_go("typed-protobuf"),
        "decoded Go structs",
        kinds=TYPED,
        formats=("json", "protobuf"),
    ),
    Candidate(
        "client-go-json",
        "client-go, typed, JSON",
        _client_go("typed-json"),
        "the same, for servers or types without protobuf",
        kinds=TYPED,
    ),
    Candidate(
        "client-go-dynamic",
        "client-go, dynamic",
        _client_go("dynamic"),
        "decoded maps of any kind",
    ),
    Candidate(
        "controller-runtime",
        "controller-runtime",
        _controller_runtime,
        "decoded Go structs, and a framework for controllers around them",
        listeners=RECONCILERS,
        kinds=("customs",),
    ),
    Candidate("kube-rs", "kube-rs", _kube_rs("paged"), "decoded Rust structs"),
    Candidate(
        "kube-rs-streaming",
        "kube-rs, streaming lists",
        _kube_rs("streaming"),
        "the same, by the setting that takes less CPU",
    ),
    Candidate(
        "official",
        "official informer",
        _python("official", "official"),
        "decoded typed models",
        kinds=TYPED,
        slow=True,
    ),
    Candidate(
        "kopf",
        "kopf",
        _python("kopf", "kopf_peer"),
        "dicts, and a framework for operators around them",
        listeners=("none", "sync", "async", *RECONCILERS),
        slow=True,
    ),
    Candidate(
        "kopf-update",
        "kopf, on.update",
        lambda: [*_python("kopf", "kopf_peer")(), "--mode", "update"],
        "the same",
        listeners=RECONCILERS,
        kinds=("customs",),
        slow=True,
    ),
    Candidate(
        "kr8s",
        "kr8s",
        _python("kr8s", "kr8s_peer"),
        "decoded objects with attributes",
        listeners=("none", "sync", "async"),
        slow=True,
    ),
    Candidate(
        "lightkube",
        "lightkube",
        _python("lightkube", "lightkube_peer"),
        "decoded typed structs",
    ),
)
OURS = (BASE, RUN)
