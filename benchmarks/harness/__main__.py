"""`python -m harness`: measure, print the tables, and store the figures."""

import argparse
import sys
from dataclasses import replace

from harness.bar import judged
from harness.building import BUILD
from harness.catalogue import BASE, CANDIDATES
from harness.command_line import measure_command_line
from harness.driver import run
from harness.faults import PeerUnavailable
from harness.plans import Plan, full, quick
from harness.results import Results
from harness.tables import tables
from harness.text import plain

RESULTS = BUILD / "results.json"


def main() -> int:
    """Measures, and returns the exit status: 2 if nothing could be measured."""
    options = _arguments()
    plan = _plan(options)
    before = Results.read(RESULTS) if options.add and RESULTS.exists() else None
    BUILD.mkdir(exist_ok=True)
    try:
        results = run(
            plan, wanted=options.peers, before=before, keep=lambda each: each.write(RESULTS), log=_log
        )
        if not options.only or "command-line" in options.only:
            measure_command_line(results, runs=plan.command_line)
    except PeerUnavailable as reason:
        _log(f"nothing was measured: {reason}")
        return 2
    results.write(RESULTS)
    bars = [judged(results)] if results.of("cache", BASE) else []
    for table in [*tables(results), *bars]:
        sys.stdout.write(f"\n{plain(table)}\n")
    _log(f"\nfigures: {RESULTS}; `python -m harness.report` writes them into docs/")
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    chosen = {"quick": quick, "full": full}[options.plan]
    sizes = {"objects": options.objects, "runs": options.runs}
    plan = chosen(**{name: value for name, value in sizes.items() if value})
    if options.only:
        plan = replace(plan, scenarios=[one for one in plan.scenarios if one.name in options.only])
    return plan


def _log(line: str) -> None:
    sys.stderr.write(line + "\n")


def _arguments() -> argparse.Namespace:
    names = list(dict.fromkeys([*(one.name for one in full().scenarios), "command-line"]))
    keys = [candidate.key for candidate in CANDIDATES]
    parser = argparse.ArgumentParser(prog="python -m harness", description=__doc__)
    parser.add_argument("plan", nargs="?", choices=["quick", "full"], default="quick")
    parser.add_argument("--objects", type=int, help="the number of objects, where the plan has its default")
    parser.add_argument("--runs", type=int, help="the number of runs, where the plan has its default")
    parser.add_argument("--peers", nargs="+", choices=keys, default=[], metavar="PEER", help=", ".join(keys))
    parser.add_argument(
        "--only", nargs="+", choices=names, default=[], metavar="SCENARIO", help=", ".join(names)
    )
    parser.add_argument("--add", action="store_true", help="keep the results that are not measured again")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
