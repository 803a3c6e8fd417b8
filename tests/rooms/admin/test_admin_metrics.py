"""The metrics, under the names and types of the contract."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import Counter, Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from declctl.admin import StaticToken, serve
from declctl.admin.metrics import MetricInfo, StatusCollector, catalog
from declctl.hooks.metrics import MetricRefused, MetricsRegistry
from declctl.kit import ManualClock
from declctl.workqueue import ItemFastSlowRateLimiter, RateLimitingQueue
from tests.rooms.admin.conftest import LOOPBACK, NOTIFY, PODS, values_of

# Each metric with its type, and its values for the status of the tests by the values of its labels.
CONTRACT: dict[str, tuple[str, dict[str, float]]] = {
    "declctl_admin_refused_total": ("counter", {}),
    "declctl_build_info": ("gauge", {}),
    "declctl_controller_info": ("gauge", {"pod-guard": 1}),
    "declctl_generation": ("gauge", {"": 6}),
    "declctl_generations_alive": ("gauge", {"": 2}),
    "declctl_reloads_total": ("counter", {"Applied": 5, "Unchanged": 0, "Refused": 1}),
    "declctl_reload_plan_mismatches_total": ("counter", {"": 3}),
    "declctl_reload_retries_total": ("counter", {"": 9}),
    "declctl_reload_seconds": ("gauge", {"": 0.003}),
    "declctl_cache_objects": ("gauge", {"pods": 2}),
    "declctl_synced": ("gauge", {}),
    "declctl_cache_bytes": ("gauge", {"pods": 640}),
    "declctl_cache_mutations_total": ("counter", {"pods": 0}),
    "declctl_decoded_objects_total": ("counter", {"projected pods": 6, "whole pods": 3}),
    "declctl_unread_objects_total": ("counter", {"pods": 1}),
    "declctl_transform_left_out_total": ("counter", {"pods dropped": 4, "pods failed": 2}),
    "declctl_frame_ratio": ("gauge", {"pods": 12.5}),
    "declctl_frame_trainings_total": ("counter", {"pods": 2}),
    "declctl_frame_dictionaries": ("gauge", {"pods": 1}),
    "declctl_lists_total": ("counter", {"pods": 1}),
    "declctl_watches_total": ("counter", {"pods": 3}),
    "declctl_relist_differences_total": (
        "counter",
        {"pods added": 2, "pods modified": 30, "pods deleted": 0},
    ),
    "declctl_watch_events_total": ("counter", {"pods ADDED": 5, "pods MODIFIED": 2}),
    "declctl_event_lag_seconds_bucket": ("histogram", {"notify 0.0025 pods": 1, "notify +Inf pods": 2}),
    "declctl_event_lag_seconds_count": ("histogram", {"notify pods": 2}),
    "declctl_event_lag_seconds_sum": ("histogram", {"notify pods": 2.002}),
    "declctl_handler_duration_seconds_bucket": ("histogram", {"notify 0.1": 0, "notify 0.25": 1}),
    "declctl_handler_duration_seconds_count": ("histogram", {"notify": 1}),
    "declctl_handler_duration_seconds_sum": ("histogram", {}),
    "declctl_handler_results_total": (
        "counter",
        {"notify succeeded": 9, "notify failed": 1, "notify retried": 2},
    ),
    "declctl_handler_unmapped": ("gauge", {}),
    "declctl_handler_no_keys_total": ("counter", {}),
    "declctl_handler_own_writes_total": ("counter", {}),
    "declctl_handler_queue_depth": ("gauge", {"notify": 4}),
    "declctl_handler_merged_total": ("counter", {"notify": 3}),
    "declctl_handler_dropped_total": ("counter", {"notify": 0, "audit": 25}),  # audit was removed
    "declctl_handler_dead_letters": ("gauge", {}),
    "declctl_handler_dead_letters_dropped_total": ("counter", {}),
    "declctl_handler_filtered_total": ("counter", {"notify": 2}),
    "declctl_handler_cache_lags_total": ("counter", {}),
    "declctl_handler_cache_waits_total": ("counter", {}),
    "declctl_handler_expression_errors_total": ("counter", {}),
    "declctl_handler_invalid_total": ("counter", {}),
    "declctl_handler_previous_bytes": ("gauge", {}),
    "declctl_handler_running": ("gauge", {"notify": 1}),
    "declctl_handler_timeouts_total": ("counter", {"notify": 5}),
    "declctl_handler_oldest_call_seconds": ("gauge", {"notify": 0}),
    "declctl_handler_unhealthy": ("gauge", {"notify CallHangs": 0}),
    "declctl_condition": ("gauge", {"Synced True Ready": 1}),
    "declctl_handler_terminal_failures_total": ("counter", {"notify": 6}),
    "declctl_handler_gone_total": ("counter", {"notify": 0}),
    "declctl_handler_conflicts_total": ("counter", {"notify": 0}),
    "declctl_handler_finalized_total": ("counter", {}),
    "declctl_handler_leftovers": ("gauge", {}),
    "declctl_handler_replayed_total": ("counter", {"notify": 7}),
    "declctl_zombie_invocations": ("gauge", {"": 1}),
    "declctl_server_reachable": ("gauge", {"": 0}),
    "declctl_server_outages_total": ("counter", {"": 4}),
    "declctl_server_rollbacks_total": ("counter", {"": 1}),
    "declctl_file_watch_failures_total": ("counter", {"": 7}),
    "declctl_recorded_events_total": ("counter", {"posted": 20, "repeated": 7, "failed": 3, "dropped": 500}),
    "declctl_writes_total": ("counter", {"notify succeeded apply": 12, "notify skipped patch_status": 4}),
    "declctl_writes_waiting": ("gauge", {"notify": 300}),
    "declctl_server_warnings_total": ("counter", {"web v1 Pod": 7}),
    "declctl_write_retries_total": ("counter", {"too_many_requests": 2, "conflict": 1}),
    "declctl_leader": ("gauge", {"": 1}),
    "declctl_plugin_ready": ("gauge", {"slack": 1, "pager": 0}),
    "rest_client_requests_total": ("counter", {"200 there:6443 GET": 31, "<error> there:6443 PATCH": 2}),
    "declctl_plugin_circuit_breaker_open": ("gauge", {"pager": 1}),
    "declctl_plugin_circuit_breaker_opened_total": ("counter", {"pager": 2}),
    "declctl_plugin_circuit_breaker_trials_total": ("counter", {"pager": 3}),
}


@pytest.fixture(name="samples")
def _samples(ask: Callable) -> tuple[dict[str, str], dict[tuple[str, ...], float]]:
    """The types by name, and the values by name and label values."""
    families = list(text_string_to_metric_families(ask("/metrics").text))
    return {sample.name: each.type for each in families for sample in each.samples}, values_of(families)


@pytest.mark.guarantee("G25")
def test_names_and_types_are_those_of_the_contract(samples):
    """Dashboards and alerts find every metric under its documented name and type, and no others."""
    found = {name: kind for name, kind in samples[0].items() if not name.startswith("process_")}
    assert found == {name: kind for name, (kind, _) in CONTRACT.items()}


@pytest.mark.client_go("Probes & metrics")
@pytest.mark.parametrize("name", [name for name, (_, values) in CONTRACT.items() if values])
def test_values_are_those_of_the_status(samples, name: str):
    """Each figure of the status is scraped under its labels."""
    found = {" ".join(labels): value for (each, *labels), value in samples[1].items() if each == name}
    assert CONTRACT[name][1].items() <= found.items()


@pytest.mark.guarantee("G12")
def test_index_functions_that_fail_are_counted(ask: Callable, runtime):
    """By the name that the manifest gives, over all watches and both definitions while one drains."""
    faults = (
        {"byTeam@h:f#1": (2, "KeyError"), "byTeam@h:f#2": (3, "KeyError")},
        {"byTeam@h:f#2": (1, "KeyError")},
    )
    runtime.say(resources=[replace(PODS, informers=[SimpleNamespace(index_faults=each) for each in faults])])
    assert 'declctl_index_failures_total{index="byTeam",resource="pods"} 6.0' in ask("/metrics").text


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=x",
        "application/openmetrics-text; version=1.\u00e4",
        "text/plain; version=" + "9" * 5000,
        "text/plain; version=; escaping=nonsense",
    ],
)
def test_a_format_that_there_is_not_is_no_fault_of_declctl(ask: Callable, accept: str):
    """A scraper with odd wishes is answered, and nobody is asked to report a fault."""
    assert ask("/metrics", Accept=accept).status in (200, 406)


async def test_what_was_refused_is_counted(runtime, http: Callable):
    """An alert can tell that somebody tries names and tokens."""
    async with serve(runtime, LOOPBACK, authorizer=StaticToken("right")) as bound:
        await http(bound, "/status", headers={"Host": "evil.example"})
        await http(bound, "/status", headers={"Authorization": "Bearer wrong"})
        await http(bound, "/cache/pods")
        text = (await http(bound, "/metrics")).text
    assert 'declctl_admin_refused_total{reason="Host"} 1.0' in text
    assert 'declctl_admin_refused_total{reason="Token"} 2.0' in text
    assert 'declctl_admin_refused_total{reason="Malformed"} 0.0' in text


def test_a_scraper_that_asks_for_openmetrics_gets_it(ask: Callable):
    """The values are the same, and lags are in seconds."""
    answer = ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    families = list(openmetrics_families(answer.text))
    units = {family.name: family.unit for family in families if family.unit}
    assert (units["declctl_event_lag_seconds"], units["declctl_cache_bytes"]) == ("seconds", "bytes")
    text, openmetrics = (
        {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in found
            for sample in family.samples
            if not family.name.startswith("process_")
        }
        for found in (text_string_to_metric_families(ask("/metrics", Accept="text/plain").text), families)
    )
    assert text == openmetrics
    assert len(text) > 100


@pytest.mark.client_go("Work queue metrics", "Probes & metrics")
def test_the_work_queue_of_a_reconciler_has_client_gos_metrics(runtime) -> None:
    """Dashboards for controllers work: the names and the label are those of client-go."""
    clock = ManualClock()
    queue: RateLimitingQueue[str] = RateLimitingQueue(
        clock=clock, limiter=ItemFastSlowRateLimiter(60.0, 60.0, 1)
    )
    for key in ("a", "b", "c"):
        queue.add(key)
    clock.set(2.0)
    queue.get_nowait()
    queue.add_rate_limited("a")
    queue.done("a")
    queue.get_nowait()
    clock.set(3.0)
    runtime.say(handlers=(replace(NOTIFY, workqueue=queue.statistics()), replace(NOTIFY, name="tell")))
    families = [each for each in StatusCollector(runtime.status, {}).collect() if "workqueue" in each.name]
    assert {sample.labels["name"] for each in families for sample in each.samples} == {"notify"}
    expected = {
        ("depth",): 1,
        ("adds_total",): 3,
        ("retries_total",): 1,
        ("unfinished_work_seconds",): 3,
        ("longest_running_processor_seconds",): 3,
        ("queue_duration_seconds_sum",): 4,
        ("queue_duration_seconds_count",): 2,
        ("queue_duration_seconds_bucket", "1.0"): 0,
        ("queue_duration_seconds_bucket", "10.0"): 2,
        ("work_duration_seconds_bucket", "+Inf"): 1,
    }
    found = values_of(families)
    assert {each: found[f"workqueue_{each[0]}", "notify", *each[1:]] for each in expected} == expected
    assert {family.type for family in families if family.name.endswith("duration_seconds")} == {"histogram"}


@pytest.mark.parametrize(
    ("accept", "ends"), [("text/plain", 0), ("application/openmetrics-text", 1)], ids=["text", "OpenMetrics"]
)
def test_metrics_of_plugins_follow_those_of_declctl(ask: Callable, runtime, accept: str, ends: int):
    """In each format it is one whole document, and what is left out is counted in it."""
    registry = MetricsRegistry("slack", {}, (), is_plugin=True)
    Counter("declctl_slack_sent", "Sent.", registry=registry).inc(2)
    Gauge("declctl_slack_broken", "Raises.", registry=registry).set_function(lambda: 1 / 0)
    code: Any = SimpleNamespace(metrics={"slack": registry}, plugins=[])
    runtime.plugin_metrics.commit(code, SimpleNamespace(modules={}, code=""))
    text = ask("/metrics", Accept=accept).text
    samples = values_of((openmetrics_families if ends else text_string_to_metric_families)(text))
    assert text.count("# EOF") == ends
    assert samples["declctl_slack_sent_total",] == 2
    assert ("declctl_slack_broken",) not in samples
    assert samples["declctl_plugin_metrics_failed_total", "slack", "Raised"] == 1
    assert samples["declctl_plugin_metrics_failed_total", "slack", "TimedOut"] == 0
    assert samples["declctl_generation",] == 6


def test_every_metric_of_declctl_is_reserved():
    """No plugin can take a name of this version, whatever the plugin is called."""
    for info in catalog():
        name = info.name.removesuffix("_total") if info.type == "counter" else info.name
        owner = name.removeprefix("declctl_").partition("_")[0]
        with pytest.raises(MetricRefused):
            MetricsRegistry(owner, {}, (), is_plugin=True).check(name)


def test_the_catalog_has_what_is_scraped(ask: Callable):
    """The dashboard, alert rules and the documentation are made from the catalog: it lists each metric."""
    known = {info.name: info for info in catalog()}
    text = ask("/metrics", Accept="text/plain").text
    help_lines = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    assert help_lines.items() <= {name: info.help for name, info in known.items()}.items()
    assert help_lines.keys() >= {name for name, info in known.items() if not info.only}
    # A scrape with a duplicate is thrown away as a whole by Prometheus.
    samples = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) == len(set(samples))
    only = {info.only for info in known.values() if info.name.startswith("workqueue_")}
    assert only == {"of `mode: Reconcile`"}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        # The text format has no type for an info.
        assert family.type == known[name].type.replace("info", "gauge"), name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(known[name].labels), name


# The rules of promlint (prometheus/client_golang, testutil/promlint/validations), which `promtool check
# metrics` applies.
_TYPE_NAMES = ("gauge", "counter", "summary", "histogram")
_ABBREVIATIONS = {"s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"}
_OTHER_UNITS = {
    *("milliseconds", "microseconds", "nanoseconds", "minutes", "hours", "days", "weeks"),
    *("kilobytes", "megabytes", "gigabytes", "kibibytes", "mebibytes", "gibibytes", "bits", "percent"),
}


def _complaints(info: MetricInfo) -> list[str]:
    words = info.name.split("_")
    found = {
        "no help text": not info.help.strip(),
        "its help is no sentence": info.name.startswith("declctl_") and not info.help.endswith("."),
        "its help does not begin like a sentence": not (info.help[:1].isupper() or info.help[:1].isdigit()),
        "its name is not in snake case": not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", info.name),
        "a counter ends in _total": info.type == "counter" and words[-1] != "total",
        "only a counter ends in _total": info.type != "counter" and words[-1] == "total",
        "only an info ends in _info": (info.type == "info") != (words[-1] == "info"),
        "the suffix belongs to a histogram": words[-1] in ("bucket", "count", "sum"),
        "its name has its type": any(word in _TYPE_NAMES for word in words),
        "its unit is abbreviated": any(word in _ABBREVIATIONS for word in words),
        "its unit is no base unit": any(word in _OTHER_UNITS for word in words),
        "the unit comes last": any(
            word in ("seconds", "bytes") for word in words[: -2 if info.type == "counter" else -1]
        ),
        "a histogram has a unit": info.type == "histogram" and words[-1] not in ("seconds", "bytes"),
        "a label is not in snake case": not all(re.fullmatch(r"[a-z][a-z0-9_]*", n) for n in info.labels),
        "a label is reserved": bool({"le", "quantile", "job", "instance"} & set(info.labels)),
        "a label repeats the name": bool(set(info.labels) & {info.name}),
    }
    return [complaint for complaint, holds in found.items() if holds]


def test_each_metric_follows_the_conventions():
    """Promtool has nothing to say about any metric, also of those that most controllers do not have."""
    assert {info.name: _complaints(info) for info in catalog() if _complaints(info)} == {}


@pytest.mark.parametrize(
    ("info", "complaint"),
    [
        (MetricInfo("declctl_lists", "counter", (), "Lists."), "a counter ends in _total"),
        (MetricInfo("declctl_queue_total", "gauge", (), "Keys."), "only a counter ends in _total"),
        (MetricInfo("declctl_lag_ms", "histogram", (), "Lag."), "its unit is abbreviated"),
        (MetricInfo("declctl_seconds_lag", "gauge", (), "Lag."), "the unit comes last"),
        (MetricInfo("declctl_x", "gauge", (), ""), "no help text"),
    ],
)
def test_the_check_of_conventions_finds_faults(info: MetricInfo, complaint: str):
    """A name that promtool would refuse is refused here."""
    assert complaint in _complaints(info)
