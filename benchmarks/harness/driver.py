"""Runs a plan: builds the peers, starts servers, runs the peers in turn, and records their figures."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from harness.building import BENCHMARKS, go
from harness.catalogue import CANDIDATES
from harness.faults import MemoryLimitExceeded, PeerExited, PeerUnavailable, TimeLimitExceeded
from harness.machine import machine
from harness.peer import Peer
from harness.plans import Plan, Scenario
from harness.results import Record, Results
from harness.server import Server
from harness.session import STEPS, Session, Sizes

Log = Callable[[str], None]


def run(
    plan: Plan,
    *,
    wanted: Sequence[str],
    before: Results | None,
    keep: Callable[[Results], None],
    log: Log,
) -> Results:
    """Measures the scenarios of a plan. `keep` stores the results after every run.

    `wanted` are the keys of the peers to measure; empty means all. Results in `before` stay if they are not
    measured again. Raises PeerUnavailable if there is no server.
    """
    log("building; the first time takes some minutes")
    program = go(BENCHMARKS / "server", "server")
    results = before or Results(plan.name, time.strftime("%Y-%m-%d"), machine())
    commands = _built(plan, wanted, results, log)
    results.forget([scenario.name for scenario in plan.scenarios], commands)
    with tempfile.TemporaryDirectory() as folder:
        # Scenarios with the same objects share a server.
        for (kind, objects), scenarios in groupby(plan.scenarios, lambda each: (each.kind, each.objects)):
            group = list(scenarios)
            formats = _formats(group, commands)
            with Server(program, kind=kind, objects=objects, folder=Path(folder), formats=formats) as server:
                for scenario in group:
                    for record in _scenario(
                        scenario, commands, server, scenario.sizes or plan.sizes, results.versions, log
                    ):
                        results.records.append(record)
                        keep(results)
    return results


def _built(plan: Plan, wanted: Sequence[str], results: Results, log: Log) -> Mapping[str, Sequence[str]]:
    """The commands of the wanted peers that can be built. The others go into `results.left_out`."""
    commands: dict[str, Sequence[str]] = {}
    for candidate in CANDIDATES:
        needed = any(scenario.takes(candidate) for scenario in plan.scenarios)
        if not needed or (wanted and candidate.key not in wanted):
            continue
        results.peers[candidate.key] = candidate.title
        results.left_out.pop(candidate.key, None)
        try:
            commands[candidate.key] = candidate.command()
        except PeerUnavailable as reason:
            results.left_out[candidate.key] = str(reason)
            log(f"without {candidate.title}: {reason}")
    return commands


def _formats(scenarios: Sequence[Scenario], commands: Mapping[str, Sequence[str]]) -> str:
    taken = [c for c in CANDIDATES if c.key in commands and any(s.takes(c) for s in scenarios)]
    return ",".join(sorted({"json", *(one for candidate in taken for one in candidate.formats)}))


def _scenario(
    scenario: Scenario,
    commands: Mapping[str, Sequence[str]],
    server: Server,
    sizes: Sizes,
    versions: dict[str, str],
    log: Log,
) -> Iterator[Record]:
    """Runs the peers in the order A B C A B C …, so that a machine that becomes slow affects all peers."""
    peers = [c for c in CANDIDATES if c.key in commands and scenario.takes(c)]
    if peers:
        log(f"\n{scenario.name}: {scenario.objects:,} {scenario.kind}, {scenario.says}")
    for number in range(1, scenario.runs + 1):
        for candidate in peers:
            if candidate.slow and number > 1:
                continue
            server.calm()
            if scenario.writes:
                # The peer before has written every status: let the first reconcile of this one write, too.
                server.modify(scenario.objects, rate=0, hot=False, timeout=sizes.limit)
            session, failed = _session(scenario, commands[candidate.key], server, sizes)
            versions.update({candidate.key: session.version} if session.version else {})
            found = {name: round(value, 9) for name, value in session.figures.items()}
            log(f"  {candidate.title}, run {number}: {_summary(found)}{f'; {failed}' if failed else ''}")
            yield Record(scenario.name, scenario.kind, scenario.objects, candidate.key, number, found, failed)


def _session(scenario: Scenario, command: Sequence[str], server: Server, sizes: Sizes) -> tuple[Session, str]:
    """Runs one peer through the steps. Returns its session, and the reason if a step failed."""
    words = [*command, "--kubeconfig", str(server.kubeconfig), "--kind", scenario.kind]
    words += ["--objects", str(scenario.objects), "--listener", scenario.listener]
    with Peer([*words, *(["--burn"] if scenario.burn else [])]) as peer:
        session = Session(peer, server, sizes, writes=scenario.writes)
        for step in scenario.steps:
            try:
                STEPS[step](session)
            except (PeerExited, TimeLimitExceeded, MemoryLimitExceeded) as fault:
                return session, f"{step}: {'ended: ' if isinstance(fault, PeerExited) else ''}{fault}"
    return session, ""


def _summary(found: Mapping[str, float]) -> str:
    shown = (
        "sync_cpu",
        "sync_resident",
        "relist_cpu",
        "added_cpu",
        "flood_cpu",
        "latency_p99",
        "hot_wall",
        "reload_seconds",
    )
    return ", ".join(f"{name} {found[name]:.4g}" for name in shown if name in found)
