"""The registry that a plugin gets for its metrics (`declctl_metrics`), and the sums of its counters.

Only code with that hook needs this module, which loads prometheus-client.
"""

import re
import threading
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, Summary
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

_OWN: Final = "declctl_"
# What follows `declctl_` in declctl's own metrics. A plugin whose name is such a word, or begins with one,
# has no names with `declctl_`: `plugin-metrics` would have that of a figure.
_OWN_WORDS: Final = frozenset(
    (
        *("admin", "build", "cache", "controller", "decoded", "event", "file", "files"),
        *("frame", "generation", "generations", "handler", "index", "leader", "lists", "plugin"),
        *("recorded", "relist", "reload", "reloads", "schedule", "selected", "server", "sharding"),
        *("slots", "synced", "transform", "unread", "watch", "watches", "write", "writes", "zombie"),
    )
)
# client-go's metrics, of which a later version may have more.
_RESERVED: Final = ("workqueue_", "rest_client_", "leader_election_")
_PROCESS: Final = frozenset(
    f"process_{name}"
    for name in (
        *("virtual_memory_bytes", "resident_memory_bytes", "start_time_seconds"),
        *("cpu_seconds", "open_fds", "max_fds"),
    )
)
_SUFFIXES: Final = {
    "counter": ("_total", "_created"),
    "summary": ("_sum", "_count", "_created"),
    "histogram": ("_bucket", "_sum", "_count", "_created"),
    "gaugehistogram": ("_bucket", "_gcount", "_gsum"),
    "info": ("_info",),
}
# Exactly these, and no class derived from them: what is kept of them refers to no user code.
_COUNTING: Final = (Counter, Histogram, Summary)


def reserved_prefix(plugin: str) -> str:
    """The beginning of the names with `declctl_` of a plugin; empty if declctl has such names itself."""
    word = _word_of(plugin)
    return "" if word.partition("_")[0] in _OWN_WORDS else f"{_OWN}{word}_"


def own_prefixes(plugin: str) -> tuple[str, ...]:
    """The beginnings of names that show whose a metric of a plugin is; the best one first."""
    return tuple(each for each in (reserved_prefix(plugin), f"{_word_of(plugin)}_") if each)


def _word_of(plugin: str) -> str:
    """The name of a plugin as a part of the name of a metric."""
    return re.sub(r"\W", "_", plugin)


class MetricRefused(ValueError):
    """A metric whose name belongs to declctl, or to other code. A ValueError, as prometheus-client raises."""

    def __init__(self, message: str, suggestion: str) -> None:
        super().__init__(message)
        self.suggestion = suggestion  # what to do about it


class MetricsRegistry(CollectorRegistry):
    """The metrics of one plugin, or of one module of handlers. Any thread may use it.

    - `owner`: the name of the plugin, or the module.
    - `taken`: the owner of each name; all registries of a generation share it.
    - `made_by`: the functions that add the metrics.
    - `is_plugin`: an installed plugin may use names that begin with `declctl_` and its own name.

    `register` raises MetricRefused for a name that is not free. So does the constructor of a metric with
    `registry=…`.
    """

    def __init__(
        self,
        owner: str,
        taken: MutableMapping[str, str],
        made_by: tuple[Callable[..., Any], ...],
        *,
        is_plugin: bool = False,
    ) -> None:
        super().__init__(auto_describe=False)  # `register` knows the names already
        self.owner = owner
        self.made_by = made_by
        # Those whose last call has taken too long. They are collected last, so that others have their time.
        self.late: set[Collector] = set()
        self._prefix = reserved_prefix(owner) if is_plugin else ""
        self._taken = taken
        self._names: dict[Collector, frozenset[str]] = {}  # in the order of registration
        self._changing = threading.Lock()  # for the two fields above

    def register(self, collector: Collector) -> None:
        """Add a collector. One without `describe` is collected once for its names."""
        describe = getattr(collector, "describe", None) or collector.collect
        families = list(describe())
        for family in families:
            self.check(family.name)
        names = frozenset[str]().union(*map(sample_names, families))
        with self._changing:
            for name in sorted(names):
                if name in self._taken:
                    raise self._refusal(name)
            super().register(collector)
            self._names[collector] = names
            self._taken.update(dict.fromkeys(names, self.owner))

    def unregister(self, collector: Collector) -> None:
        """Remove a collector. Raises KeyError if it is not registered."""
        with self._changing:
            super().unregister(collector)
            self.late.discard(collector)
            for name in self._names.pop(collector):
                self._taken.pop(name, None)

    def claim(self, taken: MutableMapping[str, str]) -> None:
        """Take its names for one more generation, which has the same code. Raises MetricRefused."""
        with self._changing:
            for names in self._names.values():
                for name in sorted(names):
                    if name in taken:
                        raise _taken_by(name, taken[name])
                    taken[name] = self.owner

    def check(self, name: str) -> None:
        """Raise MetricRefused if the name of a metric is one that declctl has, or may have."""
        if name.startswith(_OWN) and not (self._prefix and name.startswith(self._prefix)):
            advice = f"begin it with {self._prefix}" if self._prefix else f"begin it with anything but {_OWN}"
            raise MetricRefused(f"the name of the metric {name} is one of declctl's own", advice)
        if name.startswith(_RESERVED) or name in _PROCESS:
            raise MetricRefused(
                f"declctl has the metric {name} itself, or may have it",
                "begin it with the name of your plugin",
            )

    def named(self, name: str) -> Collector | None:
        """The collector of a metric; None if there is none."""
        with self._changing:
            return next((each for each, names in self._names.items() if name in names), None)

    @property
    def collectors(self) -> Sequence[Collector]:
        """What is registered, in the order of registration."""
        with self._changing:
            return tuple(self._names)

    def _refusal(self, name: str) -> MetricRefused:
        owner = self._taken[name]
        if owner != self.owner:
            return _taken_by(name, owner)
        return MetricRefused(
            f"the metric {name} is registered twice", "register each metric once in declctl_metrics"
        )


def _taken_by(name: str, owner: str) -> MetricRefused:
    return MetricRefused(
        f"{owner} has a metric {name} already", "give one of them another name, such as one with a prefix"
    )


def sample_names(family: Metric) -> frozenset[str]:
    """The name of a metric, and the names that its samples may have."""
    return frozenset((family.name, *(f"{family.name}{end}" for end in _SUFFIXES.get(family.type, ()))))


class CounterLineage:
    """The counters of the same code in one generation after the other. Any thread may use it.

    Each generation has counters of its own, as its modules are imported anew. A scrape shows their sums: what
    retired code has counted, and what code that drains still counts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # for the fields below; never held while values are collected
        self._members: list[MetricsRegistry] = []  # committed and not retired
        self._ending: list[MetricsRegistry] = []  # retired, and their final values are not in `_retired` yet
        # By name: the sums of retired members. A metric in it is replaced, and never changed.
        self._retired: dict[str, Metric] = {}

    def join(self, registry: MetricsRegistry) -> None:
        """Add the registry of a committed generation. No effect if it is there."""
        with self._lock:
            if registry in self._ending:  # a plugin that is shared comes back
                self._ending.remove(registry)
            if registry not in self._members:
                self._members.append(registry)

    def leave(self, registry: MetricsRegistry) -> None:
        """Remove a registry whose generation is retired. `fold` follows; its values count meanwhile."""
        with self._lock:
            self._members.remove(registry)
            self._ending.append(registry)

    def fold(self, registry: MetricsRegistry) -> None:
        """Keep the final values of a registry instead of it, unless it has joined again. Collects them."""
        finals = [(each, list(each.collect())) for each in _counting(registry)]
        with self._lock:
            if registry not in self._ending:
                return
            self._ending.remove(registry)
            # A collector that other members have too, as a library has made it, is counted there.
            shared = {each for member in (*self._members, *self._ending) for each in member.collectors}
            for family in (each for collector, found in finals if collector not in shared for each in found):
                total = _empty(family)
                _add(total, family)
                if family.name in self._retired:
                    _add(total, self._retired[family.name])
                self._retired[family.name] = total

    def with_others(self, registry: MetricsRegistry, collector: Collector) -> Sequence[Metric]:
        """The metrics of a collector of `registry`, with what other members have counted.

        Calls the collector, which may be user code.
        """
        families = list(collector.collect())
        if type(collector) not in _COUNTING:
            return families
        with self._lock:  # at one moment: a value is with its member, or among the retired ones
            others = [each for each in (*self._members, *self._ending) if each is not registry]
            retired = dict(self._retired)
        for family in families:
            for member in others:
                _add_of(family, member, collector)
            if family.name in retired:
                _add(family, retired[family.name])
        return families


def _counting(registry: MetricsRegistry) -> Iterable[Collector]:
    return (collector for collector in registry.collectors if type(collector) in _COUNTING)


def _add_of(family: Metric, member: MetricsRegistry, but: Collector) -> None:
    """Add the values of another generation's collector of the same metric; it may be the same object."""
    collector = member.named(family.name)
    if collector is None or collector is but or type(collector) not in _COUNTING:
        return
    for other in collector.collect():
        if other.name == family.name:
            _add(family, other)


def _empty(family: Metric) -> Metric:
    return Metric(family.name, family.documentation, family.type, family.unit)


def _add(family: Metric, other: Metric) -> None:
    """Add the values of a metric to another of the same name; nothing if they don't fit."""
    if family.type != other.type or not _same_buckets(family, other):
        return
    places = {_series(sample): place for place, sample in enumerate(family.samples)}
    for sample in other.samples:
        place = places.get(_series(sample))
        if place is None:
            family.samples.append(sample)
            continue
        mine = family.samples[place]
        # The series began with the first of them.
        is_time = sample.name.endswith("_created")
        value = min(mine.value, sample.value) if is_time else mine.value + sample.value
        family.samples[place] = mine._replace(value=value)


def _same_buckets(family: Metric, other: Metric) -> bool:
    """Whether both have the same bounds: sums of different ones would not be cumulative."""
    bounds = [{s.labels["le"] for s in each.samples if "le" in s.labels} for each in (family, other)]
    return bounds[0] == bounds[1] or not all(bounds)


def _series(sample: Sample) -> tuple[str, frozenset[tuple[str, str]]]:
    return sample.name, frozenset(sample.labels.items())
