"""The metrics of a controller that runs, as a scraper reads them."""

from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from declctl.admin.metrics import StatusCollector
from declctl.testing import until

CODE = """
from pathlib import Path

def sees(change):
    pass

async def keys(request, ctx):
    if request.obj is not None and request.name != "copy":
        await ctx.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "copy"}, "data": {}})
"""


def _samples(runs) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    registry.register(StatusCollector(runs.status, {}))
    text = generate_latest(registry).decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()) if value != "+Inf")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("le", "+Inf") == "+Inf"
    }


def test_changes_calls_and_requests_are_measured(rig, config_map) -> None:
    """A change after the start is late by something, in both modes; the first list is not."""
    rig.handler("sees")
    rig.handler("keys", rest="mode: Reconcile")
    runs = rig.run(CODE, objects=[config_map("first")])
    runs.wait_idle()
    before = _samples(runs)
    runs.sandbox.create(config_map("second"))
    until("it is handled", lambda: runs.handler("sees").succeeded >= 3)
    runs.wait_idle()
    after = _samples(runs)
    resource = runs.status().handlers[0].resource
    # The copy that the reconciler wrote was a change, too.
    assert before["declctl_event_lag_seconds_count", "sees", resource] <= 1
    assert after["declctl_event_lag_seconds_count", "sees", resource] >= 2
    assert 0 < after["declctl_event_lag_seconds_sum", "sees", resource] < 30
    assert after["declctl_event_lag_seconds_count", "keys", resource] >= 1
    assert after["declctl_handler_duration_seconds_count", "keys"] >= 2
    assert after["workqueue_queue_duration_seconds_count", "keys"] >= 2
    host = runs.status().server.url.partition("://")[2]
    assert after["rest_client_requests_total", "200", host, "GET"] >= 2  # LIST and WATCH
    assert sum(n for name, n in after.items() if name[0] == "rest_client_requests_total" and "PATCH" in name)
