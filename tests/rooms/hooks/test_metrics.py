"""The registry of a plugin: whose names are whose, and counters that go on with the same code."""

from collections.abc import Iterable

import pytest
from prometheus_client import Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily

from declctl.hooks.metrics import CounterLineage, MetricRefused, MetricsRegistry, reserved_prefix


def registry(
    owner: str = "slack", taken: dict[str, str] | None = None, *, is_plugin: bool = True
) -> MetricsRegistry:
    return MetricsRegistry(owner, {} if taken is None else taken, (), is_plugin=is_plugin)


def values(families: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    """Values by name and label values, without times."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@pytest.mark.parametrize(
    "name", ["declctl_reloads", "declctl_new", "workqueue_mine", "rest_client_requests", "process_open_fds"]
)
def test_names_of_declctl_are_refused(name: str) -> None:
    """No plugin replaces a figure of declctl, nor one that a later version may have."""
    with pytest.raises(MetricRefused, match=name):
        Gauge(name, "mine", registry=registry())


@pytest.mark.parametrize("name", ["declctl_slack_sent", "slack_sent", "jobs", "process_orders"])
def test_names_of_the_plugin_are_as_it_writes_them(name: str) -> None:
    made = registry()
    Gauge(name, "mine", registry=made)
    assert made.get_sample_value(name) == 0.0


def test_files_and_plugins_called_like_figures_have_no_prefix() -> None:
    """A module `slack` beside the manifest is not the plugin slack.

    A plugin named handler gets no figures.
    """
    with pytest.raises(MetricRefused, match="declctl_slack_sent"):
        Gauge("declctl_slack_sent", "mine", registry=registry(is_plugin=False))
    assert reserved_prefix("handler") == reserved_prefix("plugin-metrics") == ""
    assert reserved_prefix("my-chat") == "declctl_my_chat_"
    assert reserved_prefix("handlers2") == "declctl_handlers2_"
    with pytest.raises(MetricRefused, match="declctl_handler_x"):
        Gauge("declctl_handler_x", "mine", registry=registry("handler"))


@pytest.mark.parametrize("other", ["jobs", "jobs_total"])
def test_a_name_of_another_plugin_is_refused(other: str) -> None:
    """Also the name of a sample: both would be one series."""
    taken: dict[str, str] = {}
    Counter("jobs", "first", registry=registry("first", taken))
    with pytest.raises(MetricRefused, match="first has a metric jobs"):
        Gauge(other, "second", registry=registry("second", taken))


def test_a_name_that_was_given_back_is_free() -> None:
    """A plugin that stays keeps its names in another generation, unless new code has taken one."""
    taken: dict[str, str] = {}
    first = registry("first", taken)
    gauge = Gauge("jobs", "first", registry=first)
    with pytest.raises(MetricRefused, match="registered twice"):
        first.register(gauge)
    first.unregister(gauge)
    Gauge("jobs", "second", registry=registry("second", taken))
    assert first.collectors == ()
    kept = registry()
    Gauge("jobs", "mine", registry=kept)
    kept.claim({})
    with pytest.raises(MetricRefused, match="handlers has a metric jobs"):
        kept.claim({"jobs": "handlers"})


def test_a_collector_without_a_description_is_asked_for_its_names() -> None:
    """As by the registry of the process."""

    class Lazy:
        def collect(self):
            yield GaugeMetricFamily("declctl_ready", "mine", value=1)

    with pytest.raises(MetricRefused, match="declctl_ready"):
        registry().register(Lazy())


class Generation:
    """A counter, a histogram and a gauge, as each import of the same code makes them."""

    def __init__(self, lineage: CounterLineage) -> None:
        self.registry = registry()
        self.jobs = Counter("jobs", "x", ["queue"], registry=self.registry)
        self.seconds = Histogram("seconds", "x", buckets=(1.0, 5.0), registry=self.registry)
        self.depth = Gauge("depth", "x", registry=self.registry)
        self._lineage = lineage
        lineage.join(self.registry)

    def shown(self) -> dict[tuple[str, ...], float]:
        return values(
            family
            for collector in self.registry.collectors
            for family in self._lineage.with_others(self.registry, collector)
        )


def retire(lineage: CounterLineage, made: MetricsRegistry) -> None:
    lineage.leave(made)
    lineage.fold(made)


def test_who_comes_back_counts_once() -> None:
    """By a rollback, or by joining before its final values are settled."""
    lineage = CounterLineage()
    first, other = Generation(lineage), Generation(lineage)
    first.jobs.labels("a").inc(2)
    lineage.leave(first.registry)
    lineage.join(first.registry)
    lineage.fold(first.registry)
    assert first.shown()["jobs_total", "a"] == 2
    assert other.shown()["jobs_total", "a"] == 2
    other.jobs.labels("a").inc(3)
    lineage.join(first.registry)
    assert first.shown()["jobs_total", "a"] == 5
    retire(lineage, other.registry)
    assert first.shown()["jobs_total", "a"] == 5


def test_counters_go_on_and_gauges_do_not() -> None:
    """What old code counted, counts while it drains, and has counted at its end: each once."""
    lineage = CounterLineage()
    first = Generation(lineage)
    first.jobs.labels("a").inc(2)
    first.seconds.observe(0.5)
    first.depth.set(7)
    second = Generation(lineage)
    second.jobs.labels("b").inc()
    second.seconds.observe(3.0)
    first.jobs.labels("a").inc()
    draining = second.shown()
    lineage.leave(first.registry)
    assert second.shown() == draining
    lineage.fold(first.registry)
    assert second.shown() == draining
    assert draining["jobs_total", "a"] == 3
    assert draining["jobs_total", "b"] == 1
    assert [draining["seconds_bucket", bound] for bound in ("1.0", "5.0", "+Inf")] == [1, 2, 2]
    assert (draining["seconds_sum",], draining["seconds_count",]) == (3.5, 2)
    assert draining["depth",] == 0
    third = Generation(lineage)
    third.jobs.labels("a").inc()
    retire(lineage, second.registry)
    assert third.shown()["jobs_total", "a"] == 4
    retire(lineage, third.registry)


def test_which_counters_are_added() -> None:
    """One of an installed library is one object in all generations; other buckets are not summed."""
    lineage, counter = CounterLineage(), Counter("jobs", "x", registry=None)
    first, second = registry(), registry()
    for each in (first, second):
        each.register(counter)
        lineage.join(each)
    counter.inc(2)
    assert values(lineage.with_others(second, counter)) == {("jobs_total",): 2}
    retire(lineage, first)
    assert values(lineage.with_others(second, counter)) == {("jobs_total",): 2}
    lineage = CounterLineage()
    first, second = registry(), registry()
    Histogram("seconds", "x", buckets=(1.0,), registry=first).observe(0.5)
    made = Histogram("seconds", "x", buckets=(2.0,), registry=second)
    lineage.join(first)
    lineage.join(second)
    assert values(lineage.with_others(second, made))["seconds_count",] == 0
