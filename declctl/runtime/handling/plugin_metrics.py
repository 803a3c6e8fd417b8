"""The metrics of plugins and handler files (`declctl_metrics`), as a scrape reads them.

The metrics of the active generation are shown. Counters of code that has not changed go on over generations.
Collectors may be user code: each scrape collects them in threads, with a time limit, and what fails is left
out and counted.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from declctl.hooks.calls import describe, describe_with_place
from declctl.runtime.checking.inputs import Inputs
from declctl.runtime.checking.loaded_code import LoadedCode
from declctl.runtime.log import Log
from declctl.runtime.threads import in_thread

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.registry import Collector

    from declctl.hooks.metrics import CounterLineage, MetricsRegistry

T = TypeVar("T")
Encode = Callable[[Sequence["Metric"]], T]
"""Writes metrics in the format of a scrape. Called in threads."""
SCRAPE_SECONDS: Final = 2.0
"""The time that all collectors of a scrape have together. Prometheus waits for 10 s by default."""


class ScrapeFault(StrEnum):
    """Why a collector is not in the answer to a scrape."""

    RAISED = "Raised"
    TIMED_OUT = "TimedOut"  # in this scrape, or in an earlier one whose call has not returned yet
    REFUSED = "Refused"  # a name that belongs to declctl or to other code, or a sample that can't be written


class _Reading(Generic[T]):
    """One scrape of one registry: written by its thread, read by the loop when the time is over too."""

    def __init__(self, registry: "MetricsRegistry", lineage: "CounterLineage") -> None:
        self.registry = registry
        self._lineage = lineage
        # Of each collector: the names that its samples may have, and its metrics, encoded.
        self.collected: list[tuple[frozenset[str], T]] = []
        self.faults: list[tuple[ScrapeFault, str]] = []
        self.running: Collector | None = None  # the collector that is called now

    def run(self, encode: Encode[T], running: "dict[Any, str]") -> None:
        """Collect and encode. `running` has the collectors whose calls have not returned, by name.

        Collectors that took too long at the last scrape come last.
        """
        from declctl.hooks.metrics import MetricRefused

        late = frozenset(self.registry.late)
        for collector in sorted(self.registry.collectors, key=late.__contains__):
            name = type(collector).__name__
            if collector in running:
                what = f"{name}.collect has not returned since an earlier scrape"
                self.faults.append((ScrapeFault.TIMED_OUT, what))
                continue
            running[collector] = name
            self.running = collector
            try:
                families = self._lineage.with_others(self.registry, collector)
            except BaseException as error:  # noqa: BLE001 - user code: counted and logged
                what = f"{name}.collect raised {describe_with_place(error)}"
                self.faults.append((ScrapeFault.RAISED, what))
                continue
            finally:
                self.running = None
                del running[collector]
            try:
                self.collected.append((_names_of(families, self.registry), encode(families)))
            except MetricRefused as refused:
                self.faults.append((ScrapeFault.REFUSED, f"{refused}: {refused.suggestion}"))
            except Exception as error:  # noqa: BLE001 - values of user code that can't be written
                what = f"what {name}.collect gives can't be written: {describe_with_place(error)}"
                self.faults.append((ScrapeFault.REFUSED, what))


class PluginMetrics:
    """The metrics of the active generation's code. Used on the machinery loop.

    - `seconds`: the time that all collectors of a scrape have together.
    """

    def __init__(self, *, log: Log, seconds: float = SCRAPE_SECONDS) -> None:
        self._log = log
        self._seconds = seconds
        self._codes: list[LoadedCode] = []  # committed and not retired, each once; the last one is active
        self._lineages: dict[MetricsRegistry, CounterLineage] = {}  # of the registries of `_codes`
        # The same by plugin or module, and the version or digest of its code.
        self._known: WeakValueDictionary[tuple[str, str], CounterLineage] = WeakValueDictionary()
        self._one_scrape = asyncio.Lock()  # at a time: a call of another one is not one that hangs
        self._running: dict[Any, str] = {}  # collectors whose calls have not returned; threads write it
        self._faults: Counter[tuple[str, ScrapeFault]] = Counter()  # by plugin or module
        self._logged: dict[str, str] = {}  # the last logged fault, by plugin or module

    @property
    def owners(self) -> Sequence[str]:
        """The plugins and modules with metrics, in the order of the manifest."""
        return tuple(self._codes[-1].metrics) if self._codes else ()

    @property
    def faults(self) -> Mapping[str, Mapping[ScrapeFault, int]]:
        """How often a collector was left out of a scrape, by plugin or module, and by reason."""
        return {owner: {each: self._faults[owner, each] for each in ScrapeFault} for owner in self.owners}

    def commit(self, code: LoadedCode, inputs: Inputs) -> None:
        """Show the metrics of this code from now on. Calls no user code."""
        if code in self._codes:  # a rollback
            self._codes.remove(code)
        self._codes.append(code)
        for owner, registry in code.metrics.items():
            if registry not in self._lineages:
                from declctl.hooks.metrics import CounterLineage

                known = self._known.setdefault((owner, _stamp(owner, code, inputs)), CounterLineage())
                self._lineages[registry] = known
            self._lineages[registry].join(registry)

    async def retire(self, code: LoadedCode) -> None:
        """Forget code, but for what its counters have counted. No effect for code that was not committed."""
        if code not in self._codes:
            return
        self._codes.remove(code)
        used = {registry for other in self._codes for registry in other.metrics.values()}
        for registry in code.metrics.values():
            if registry in used:  # of an installed plugin that stays
                continue
            lineage = self._lineages.pop(registry)
            lineage.leave(registry)
            if lineage not in self._lineages.values():  # it is forgotten with its last member
                continue
            try:
                await asyncio.to_thread(lineage.fold, registry)  # there may be many series
            except RuntimeError:  # the system has no thread left; the retirement has to go on
                lineage.fold(registry)

    async def scrape(self, encode: Encode[T]) -> list[T]:
        """What `encode` makes of the metrics of each collector, in the order of the manifest.

        `encode` is called in threads, as collectors are. What is not there in time, raises or has a name of
        others is left out, counted and logged.
        """
        async with self._one_scrape:
            registries = self._codes[-1].metrics.values() if self._codes else ()
            readings = [_Reading[T](registry, self._lineages[registry]) for registry in registries]
            return await self._read(readings, encode) if readings else []

    async def _read(self, readings: Sequence[_Reading[T]], encode: Encode[T]) -> list[T]:
        tasks = [
            asyncio.ensure_future(
                in_thread(
                    partial(each.run, encode, self._running),
                    name="declctl-scrape",
                    what=f"the metrics of {each.registry.owner}",
                )
            )
            for each in readings
        ]
        await asyncio.wait(tasks, timeout=self._seconds)
        found: list[T] = []
        owners: dict[str, str] = {}  # by the name of a sample
        for reading, task in zip(readings, tasks, strict=True):
            owner, late = reading.registry.owner, reading.registry.late
            faults = list(reading.faults)
            if not task.done():
                task.cancel()
                collector = reading.running
                if collector is not None:
                    late.add(collector)
                name = self._running.get(collector)
                what = "the scrape" if name is None else f"{name}.collect"
                faults.append((ScrapeFault.TIMED_OUT, f"{what} took longer than {self._seconds:g} s"))
            elif (error := task.exception()) is not None:  # no thread could be started
                faults.append((ScrapeFault.RAISED, f"nothing could be collected: {describe(error)}"))
            else:
                late.intersection_update(tuple(self._running))
            for names, result in tuple(reading.collected):
                # Only for names that a collector has not told when it was registered.
                other = next((owners[name] for name in sorted(names) if name in owners), None)
                if other is not None:
                    faults.append((ScrapeFault.REFUSED, f"{other} has a metric of the same name"))
                    continue
                owners |= dict.fromkeys(names, owner)
                found.append(result)
            self._note(owner, faults)
        return found

    def _note(self, owner: str, faults: Sequence[tuple[ScrapeFault, str]]) -> None:
        """Count faults, and log them if they are not those of the last scrape."""
        self._faults.update((owner, fault) for fault, _ in faults)
        text = "; ".join(what for _, what in faults)
        before = self._logged.get(owner, "")
        # Once for each trouble: a scrape comes every few seconds.
        if text and not before:
            self._log.warning(f"metrics of {owner} are left out of /metrics: {text}", plugin=owner)
        elif before and not text:
            self._log.info(f"all metrics of {owner} are in /metrics again", plugin=owner)
        self._logged[owner] = text


def _stamp(owner: str, code: LoadedCode, inputs: Inputs) -> str:
    """What is the same as long as the code is: the version of a plugin, or a digest of the handler files."""
    version = next((plugin.version for plugin in code.plugins if plugin.name == owner), None)
    if version is not None:
        return version
    return inputs.modules.get(owner.partition(":")[0], inputs.code)


def _names_of(families: Sequence["Metric"], registry: "MetricsRegistry") -> frozenset[str]:
    """The names that the samples of metrics may have.

    Raises MetricRefused for a name that is not free, and for a sample whose name is not one of its metric: it
    may be that of another.
    """
    from declctl.hooks.metrics import MetricRefused, sample_names

    names: frozenset[str] = frozenset()
    for family in families:
        registry.check(family.name)
        allowed = sample_names(family)
        for sample in family.samples:
            if sample.name not in allowed:
                message = f"the metric {family.name} has a sample {sample.name}"
                raise MetricRefused(message, "name it as its metric")
        names |= allowed
    return names
