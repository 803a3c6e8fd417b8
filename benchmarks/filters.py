"""The cost of a filter for one object: CEL expressions beside functions of a filter's entry point.

    python benchmarks/filters.py [--objects 5000] [--rounds 5]

The objects are those of a cache, as compressed frames of pods. Every filter makes the same decision.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

import msgspec
from harness.text import Table, plain

from declctl.decoding import Projection
from declctl.manifest.model import FilterSpec
from declctl.manifest.values import EntryPoint
from declctl.objects import ObjectView, Record, field_view
from declctl.runtime.handling.binding import Filter

_EVENTS = ("Added", "Modified", "Deleted", "Resync")
_RUNNING = "obj.status.phase == 'Running'"


def _pod(number: int) -> bytes:
    """A pod of about 4 KB."""
    container = {
        "image": f"registry.example/team/app:{number}",
        "env": [{"name": f"VARIABLE_{n}", "value": f"value-{number}-{n}"} for n in range(20)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [
            {"name": f"volume-{n}", "mountPath": f"/mnt/{n}", "readOnly": True} for n in range(4)
        ],
    }
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    metadata = {"name": f"pod-{number}", "namespace": "demo", "uid": f"uid-{number}", "resourceVersion": "1"}
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**metadata, "labels": {"app": "web"}},
            "spec": {
                "nodeName": f"node-{number % 50}",
                "containers": [{**container, "name": n} for n in "abc"],
            },
            "status": {"phase": "Running" if number % 2 else "Pending", "conditions": conditions},
        }
    )


def _running(obj: ObjectView) -> bool:
    return obj["status"]["phase"] == "Running"


def _whole(obj: ObjectView) -> bool:
    return dict(obj)["status"]["phase"] == "Running"


def _expression(text: str) -> Filter:
    return Filter(FilterSpec(expression=text), _EVENTS)


def _seconds(chosen: Filter, records: Sequence[Record]) -> float:
    began = time.perf_counter()
    passed = sum(chosen.passes(field_view(record)) for record in records)
    took = time.perf_counter() - began
    assert passed == len(records) // 2, "every filter makes the same decision"
    return took


def main() -> None:
    """Print the microseconds of each filter, the median of several rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    projection = Projection(api_version="v1", kind="Pod")
    records = [made for n in range(options.objects) if (made := projection.record(_pod(n))) is not None]
    function = FilterSpec(entry_point=EntryPoint("m", "f"))
    filters = {
        "function of one field": Filter(function, _EVENTS, _running),
        "function of the whole object": Filter(function, _EVENTS, _whole),
        "expression of one field": _expression(_RUNNING),
        "expression of three fields": _expression(
            f"{_RUNNING} && has(obj.metadata.labels.app) && has(obj.kind)"
        ),
        "expression of a list": _expression(f"{_RUNNING} && obj.spec.containers.exists(c, c.name == 'a')"),
        "expression of the whole object": _expression(f"{_RUNNING} && obj != {{}}"),
    }
    rows: list[tuple[str, str]] = []
    for name, chosen in filters.items():
        rounds = [_seconds(chosen, records) for _ in range(options.rounds)]
        rows.append((name, f"{statistics.median(rounds) / len(records) * 1e6:.1f} µs"))
    size = sum(map(len, map(_pod, range(100)))) // 100
    table = Table(f"Filters, {options.objects:,} pods of {size:,} bytes, for each", ("", "measured"), rows)
    sys.stdout.write(f"\n{plain(table)}\n")


if __name__ == "__main__":
    main()
