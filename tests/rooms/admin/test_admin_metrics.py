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
from declctl.workqueue import RateLimitingQueue
from tests.rooms.admin.conftest import LOOPBACK, NOTIFY, PODS

TYPES = {
    "declctl_admin_refused_total": "counter",
    "declctl_build_info": "gauge",
    "declctl_controller_info": "gauge",
    "declctl_generation": "gauge",
    "declctl_generations_alive": "gauge",
    "declctl_reloads_total": "counter",
    "declctl_reload_plan_mismatches_total": "counter",
    "declctl_reload_retries_total": "counter",
    "declctl_reload_seconds": "gauge",
    "declctl_cache_objects": "gauge",
    "declctl_synced": "gauge",
    "declctl_cache_bytes": "gauge",
    "declctl_cache_mutations_total": "counter",
    "declctl_decoded_objects_total": "counter",
    "declctl_unread_objects_total": "counter",
    "declctl_transform_left_out_total": "counter",
    "declctl_frame_ratio": "gauge",
    "declctl_frame_trainings_total": "counter",
    "declctl_frame_dictionaries": "gauge",
    "declctl_lists_total": "counter",
    "declctl_watches_total": "counter",
    "declctl_relist_differences_total": "counter",
    "declctl_watch_events_total": "counter",
    "declctl_event_lag_seconds_bucket": "histogram",
    "declctl_event_lag_seconds_count": "histogram",
    "declctl_event_lag_seconds_sum": "histogram",
    "declctl_handler_duration_seconds_bucket": "histogram",
    "declctl_handler_duration_seconds_count": "histogram",
    "declctl_handler_duration_seconds_sum": "histogram",
    "declctl_handler_results_total": "counter",
    "declctl_handler_unmapped": "gauge",
    "declctl_handler_no_keys_total": "counter",
    "declctl_handler_own_writes_total": "counter",
    "declctl_handler_queue_depth": "gauge",
    "declctl_handler_merged_total": "counter",
    "declctl_handler_dropped_total": "counter",
    "declctl_handler_dead_letters": "gauge",
    "declctl_handler_dead_letters_dropped_total": "counter",
    "declctl_handler_filtered_total": "counter",
    "declctl_handler_cache_lags_total": "counter",
    "declctl_handler_cache_waits_total": "counter",
    "declctl_handler_expression_errors_total": "counter",
    "declctl_handler_slow_expressions_total": "counter",
    "declctl_handler_running": "gauge",
    "declctl_handler_timeouts_total": "counter",
    "declctl_handler_terminal_failures_total": "counter",
    "declctl_handler_finalized_total": "counter",
    "declctl_handler_leftovers": "gauge",
    "declctl_handler_replayed_total": "counter",
    "declctl_zombie_invocations": "gauge",
    "declctl_server_reachable": "gauge",
    "declctl_server_outages_total": "counter",
    "declctl_server_rollbacks_total": "counter",
    "declctl_file_watch_failures_total": "counter",
    "declctl_files_followed": "gauge",
    "declctl_recorded_events_total": "counter",
    "declctl_writes_total": "counter",
    "declctl_write_retries_total": "counter",
    "declctl_leader": "gauge",
    "declctl_plugin_ready": "gauge",
    "rest_client_requests_total": "counter",
    "declctl_plugin_circuit_breaker_open": "gauge",
    "declctl_plugin_circuit_breaker_opened_total": "counter",
    "declctl_plugin_circuit_breaker_trials_total": "counter",
}


@pytest.fixture(name="samples")
def _samples(ask: Callable) -> tuple[dict[str, str], dict[tuple[str, ...], float]]:
    """The types by name, and the values by name and label values."""
    families = list(text_string_to_metric_families(ask("/metrics").text))
    types = {sample.name: family.type for family in families for sample in family.samples}
    values = {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}
    return types, values


@pytest.mark.guarantee("G25")
def test_names_and_types_are_those_of_the_contract(samples):
    """Dashboards and alerts find every metric under its documented name and type, and no others."""
    of_process = {name for name in samples[0] if name.startswith("process_")}  # as the system has them
    assert {name: kind for name, kind in samples[0].items() if name not in of_process} == TYPES


@pytest.mark.client_go("Probes & metrics")
@pytest.mark.parametrize(
    ("sample", "value"),
    [
        (("declctl_generation",), 6),
        (("declctl_plugin_ready", "slack"), 1),
        (("declctl_plugin_ready", "pager"), 0),
        (("declctl_plugin_circuit_breaker_open", "pager"), 1),
        (("declctl_plugin_circuit_breaker_opened_total", "pager"), 2),
        (("declctl_plugin_circuit_breaker_trials_total", "pager"), 3),
        (("declctl_handler_dropped_total", "notify"), 0),
        (("declctl_handler_dropped_total", "audit"), 25),  # a handler that was removed
        (("declctl_generations_alive",), 2),
        (("declctl_reloads_total", "Applied"), 5),
        (("declctl_reloads_total", "Unchanged"), 0),
        (("declctl_reloads_total", "Refused"), 1),
        (("declctl_reload_plan_mismatches_total",), 3),
        (("declctl_reload_retries_total",), 9),
        (("declctl_reload_seconds",), 0.003),
        (("declctl_cache_objects", "pods"), 2),
        (("declctl_cache_bytes", "pods"), 640),
        (("declctl_cache_mutations_total", "pods"), 0),
        (("declctl_decoded_objects_total", "projected", "pods"), 6),
        (("declctl_decoded_objects_total", "whole", "pods"), 3),
        (("declctl_unread_objects_total", "pods"), 1),
        (("declctl_transform_left_out_total", "pods", "dropped"), 4),
        (("declctl_transform_left_out_total", "pods", "failed"), 2),
        (("declctl_frame_ratio", "pods"), 12.5),
        (("declctl_frame_trainings_total", "pods"), 2),
        (("declctl_frame_dictionaries", "pods"), 1),
        (("declctl_lists_total", "pods"), 1),
        (("declctl_watches_total", "pods"), 3),
        (("declctl_relist_differences_total", "pods", "added"), 2),
        (("declctl_relist_differences_total", "pods", "modified"), 30),
        (("declctl_relist_differences_total", "pods", "deleted"), 0),
        (("declctl_watch_events_total", "pods", "ADDED"), 5),
        (("declctl_watch_events_total", "pods", "MODIFIED"), 2),
        (("declctl_handler_results_total", "notify", "succeeded"), 9),
        (("declctl_handler_results_total", "notify", "failed"), 1),
        (("declctl_handler_results_total", "notify", "retried"), 2),
        (("declctl_handler_queue_depth", "notify"), 4),
        (("declctl_handler_running", "notify"), 1),
        (("declctl_handler_timeouts_total", "notify"), 5),
        (("declctl_handler_terminal_failures_total", "notify"), 6),
        (("declctl_handler_merged_total", "notify"), 3),
        (("declctl_handler_filtered_total", "notify"), 2),
        (("declctl_handler_replayed_total", "notify"), 7),
        (("declctl_zombie_invocations",), 1),
        (("declctl_server_reachable",), 0),
        (("declctl_server_outages_total",), 4),
        (("declctl_server_rollbacks_total",), 1),
        (("declctl_file_watch_failures_total",), 7),
        (("declctl_files_followed",), 0),
        (("declctl_recorded_events_total", "posted"), 20),
        (("declctl_recorded_events_total", "repeated"), 7),
        (("declctl_recorded_events_total", "failed"), 3),
        (("declctl_recorded_events_total", "dropped"), 500),
        (("declctl_writes_total", "notify", "succeeded", "apply"), 12),
        (("declctl_writes_total", "notify", "skipped", "patch_status"), 4),
        (("declctl_write_retries_total", "too_many_requests"), 2),
        (("declctl_write_retries_total", "conflict"), 1),
        (("declctl_leader",), 1),
        (("declctl_controller_info", "pod-guard"), 1),
        (("declctl_event_lag_seconds_bucket", "notify", "0.0025", "pods"), 1),
        (("declctl_event_lag_seconds_bucket", "notify", "+Inf", "pods"), 2),
        (("declctl_event_lag_seconds_count", "notify", "pods"), 2),
        (("declctl_event_lag_seconds_sum", "notify", "pods"), 2.002),
        (("declctl_handler_duration_seconds_count", "notify"), 1),
        (("declctl_handler_duration_seconds_bucket", "notify", "0.1"), 0),
        (("declctl_handler_duration_seconds_bucket", "notify", "0.25"), 1),
        (("rest_client_requests_total", "200", "there:6443", "GET"), 31),
        (("rest_client_requests_total", "<error>", "there:6443", "PATCH"), 2),
    ],
)
def test_values_are_those_of_the_status(samples, sample: tuple[str, ...], value: float):
    """Each figure of the status is scraped under its labels."""
    assert samples[1][sample] == value


@pytest.mark.guarantee("G12")
def test_index_functions_that_fail_are_counted(ask: Callable, runtime):
    """By the name that the manifest gives, over all watches and both definitions while one drains."""
    parts = [
        SimpleNamespace(index_faults={"byTeam@h:f#1": (2, "KeyError"), "byTeam@h:f#2": (3, "KeyError")}),
        SimpleNamespace(index_faults={"byTeam@h:f#2": (1, "KeyError")}),
    ]
    runtime.say(resources=[replace(PODS, informers=parts)])
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


def test_the_scraper_chooses_the_format(ask: Callable):
    """A Prometheus that asks for OpenMetrics gets it."""
    answer = ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


@pytest.mark.client_go("Work queue metrics", "Probes & metrics")
def test_the_work_queue_of_a_reconciler_has_client_gos_metrics(runtime) -> None:
    """Dashboards for controllers work: the names and the label are those of client-go."""
    clock = ManualClock()
    queue: RateLimitingQueue[str] = RateLimitingQueue(clock=clock)
    for key in ("a", "b", "c"):
        queue.add(key)
    clock.set(2.0)
    queue.get_nowait()
    queue.retry_after("a", 60.0)
    queue.done("a")
    queue.get_nowait()
    clock.set(3.0)
    runtime.say(handlers=(replace(NOTIFY, workqueue=queue.statistics()), replace(NOTIFY, name="tell")))
    families = list(StatusCollector(runtime.status, {}).collect())
    found = {
        (sample.name, *sample.labels.items()): sample.value
        for family in families
        if family.name.startswith("workqueue_")
        for sample in family.samples
    }
    name = ("name", "notify")
    assert {each[1] for each in found} == {name}
    assert found["workqueue_depth", name] == 1
    assert found["workqueue_adds_total", name] == 3
    assert found["workqueue_retries_total", name] == 1
    assert found["workqueue_unfinished_work_seconds", name] == 3
    assert found["workqueue_longest_running_processor_seconds", name] == 3
    assert found["workqueue_queue_duration_seconds_sum", name] == 4
    assert found["workqueue_queue_duration_seconds_count", name] == 2
    assert found["workqueue_queue_duration_seconds_bucket", name, ("le", "1.0")] == 0
    assert found["workqueue_queue_duration_seconds_bucket", name, ("le", "10.0")] == 2
    assert found["workqueue_work_duration_seconds_bucket", name, ("le", "+Inf")] == 1
    assert {family.type for family in families if family.name.endswith("duration_seconds")} == {"histogram"}


def _scraped(ask: Callable, accept: str) -> str:
    return ask("/metrics", Accept=accept).text


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
    text = _scraped(ask, accept)
    parse = openmetrics_families if ends else text_string_to_metric_families
    samples = {(s.name, *s.labels.values()): s.value for family in parse(text) for s in family.samples}
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
    help_lines = dict(re.findall(r"^# HELP (\S+) (.*)$", _scraped(ask, "text/plain"), re.MULTILINE))
    assert help_lines.items() <= {name: info.help for name, info in known.items()}.items()
    assert help_lines.keys() >= {name for name, info in known.items() if not info.only}
    assert {info.only for info in known.values() if info.name.startswith("workqueue_")} == {
        "of `mode: Reconcile`"
    }
    for family in text_string_to_metric_families(_scraped(ask, "text/plain")):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        # The text format has no type for an info.
        assert family.type == known[name].type.replace("info", "gauge"), name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(known[name].labels), name


def test_both_formats_have_the_same_values(ask: Callable):
    """What a scraper reads does not depend on the format that it asks for."""
    text = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(_scraped(ask, "text/plain"))
        for sample in family.samples
        if not family.name.startswith("process_")
    }
    openmetrics = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in openmetrics_families(_scraped(ask, "application/openmetrics-text; version=1.0.0"))
        for sample in family.samples
        if not family.name.startswith("process_")
    }
    assert text == openmetrics
    assert len(text) > 100


def test_openmetrics_has_units(ask: Callable):
    """A scraper learns that lags are in seconds."""
    families = openmetrics_families(_scraped(ask, "application/openmetrics-text; version=1.0.0"))
    units = {family.name: family.unit for family in families if family.unit}
    assert units["declctl_event_lag_seconds"] == "seconds"
    assert units["declctl_cache_bytes"] == "bytes"


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


def test_no_two_metrics_share_a_sample(ask: Callable):
    """A scrape with a duplicate is thrown away as a whole by Prometheus."""
    lines = [line.rpartition(" ")[0] for line in _scraped(ask, "").splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
