"""The metrics of the plugin in `/metrics` of declctl. They are those of the process: an edit keeps them."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

REQUEST_SECONDS: Final = Histogram(
    "declctl_webhook_request_duration_seconds",
    "How long the receiver took for a request, whatever its answer; a request without an answer counts too.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0),
    registry=None,
)


class Figures(NamedTuple):
    """What a pipeline has done so far, and its present state."""

    received: int  # events of handlers
    recovered: int  # events that an earlier process has left
    sent: int  # events
    failed_requests: int
    dead_letters: Mapping[str, int]  # by reason
    dropped: Mapping[str, int]  # by reason
    refused: int  # calls of handlers, which declctl repeats
    waiting: int  # events
    oldest: float | None  # Unix time of the oldest event that waits
    spool_bytes: int
    circuit_open: bool


class PipelineCollector(Collector):
    """Reads the figures of the pipeline at each scrape; without a pipeline there are no values."""

    def __init__(
        self, figures: Callable[[], Figures | None], *, now: Callable[[], float] = time.time
    ) -> None:
        self._figures = figures
        self._now = now

    def describe(self) -> Iterable[Metric]:
        """The metrics without values."""
        return self._metrics(None)

    def collect(self) -> Iterable[Metric]:
        """The metrics of this moment. Any thread may call it."""
        return self._metrics(self._figures())

    def _metrics(self, figures: Figures | None) -> Iterable[Metric]:
        received = _counter("received", "Events of handlers, before they are written to the spool.")
        recovered = _counter("recovered", "Events that an earlier process has left in the spool.")
        sent = _counter("sent", "Events that the receiver has taken.")
        failed = _counter("failed_requests", "Requests that have failed, and are repeated.")
        letters = _counter("dead_letters", "Events that were given up and kept, by reason.", "reason")
        dropped = _counter("dropped", "Events that are lost, by reason.", "reason")
        refused = _counter("refused", "Calls of handlers that declctl repeats, as the spool took no event.")
        waiting = _gauge("waiting_events", "Events in the spool that are not delivered.")
        age = _gauge("oldest_event_age_seconds", "The age of the oldest event that waits; 0 without one.")
        size = _gauge("spool_bytes", "The size of the spool on disk.")
        circuit = _gauge("circuit_open", "1 while the receiver takes no events, and is probed.")
        if figures is not None:
            for metric, value in (
                (received, figures.received),
                (recovered, figures.recovered),
                (sent, figures.sent),
                (failed, figures.failed_requests),
                (refused, figures.refused),
                (waiting, figures.waiting),
                (age, 0.0 if figures.oldest is None else max(0.0, self._now() - figures.oldest)),
                (size, figures.spool_bytes),
                (circuit, int(figures.circuit_open)),
            ):
                metric.add_metric((), value)
            for metric, reasons in ((letters, figures.dead_letters), (dropped, figures.dropped)):
                for reason, number in reasons.items():
                    metric.add_metric((reason,), number)
        return received, recovered, sent, failed, letters, dropped, refused, waiting, age, size, circuit


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"declctl_webhook_{name}", text, labels=labels)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"declctl_webhook_{name}", text, labels=())
