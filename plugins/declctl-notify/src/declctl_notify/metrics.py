"""The metrics of the plugin in `/metrics` of declctl, each with the label `target`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from declctl_notify.channel import ChannelStatistics

SEND_SECONDS: Final = Histogram(
    "declctl_notify_send_duration_seconds",
    "How long one try to send a message took, whatever its result.",
    ("target",),
    buckets=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    registry=None,
)
# By the field of the statistics: the name after `declctl_notify_`, and the help.
_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "taken": ("changes", "Changes that rules have sent to the target."),
    "notified": ("notified_changes", "Changes of which a message has told; above `sent`, they were grouped."),
    "dropped": ("dropped_changes", "Changes of which no message tells."),
    "sent": ("sent", "Messages that were sent."),
    "failed": ("failed", "Tries to send a message that have failed."),
    "lost": ("lost", "Messages that were given up after `maxAttempts`; the next one has their changes."),
    "suppressed": ("rate_limited", "Messages that the rate limit has made a count in the next one."),
}


class ChannelCollector(Collector):
    """Reads the figures of all targets at each scrape."""

    def __init__(self, statistics: Callable[[], Mapping[str, ChannelStatistics]]) -> None:
        self._statistics = statistics

    def describe(self) -> Iterable[Metric]:
        """The metrics without values."""
        return self._metrics({})

    def collect(self) -> Iterable[Metric]:
        """The metrics of this moment. Any thread may call it."""
        return self._metrics(self._statistics())

    def _metrics(self, statistics: Mapping[str, ChannelStatistics]) -> Iterable[Metric]:
        for field, (name, text) in _COUNTERS.items():
            counter = CounterMetricFamily(f"declctl_notify_{name}", text, labels=("target",))
            for target, figures in statistics.items():
                counter.add_metric((target,), getattr(figures, field))
            yield counter
        waiting = GaugeMetricFamily(
            "declctl_notify_waiting_changes", "Changes that wait for a message.", labels=("target",)
        )
        for target, figures in statistics.items():
            waiting.add_metric((target,), figures.waiting)
        yield waiting
