"""The metrics of plugins and handler files (`declctl_metrics`), as a scrape reads them.

The metrics of the active generation are shown. Counters of code that has not changed go on over generations.
Collectors may be user code: each scrape collects them in threads, with a time limit, and what fails is left
out and counted.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

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
SCRAPE_SECONDS: Final = 2.0
"""The time that all collectors of a scrape have together. Prometheus waits for 10 s by default."""


class ScrapeFault(StrEnum):
    """Why a collector is not in the answer to a scrape."""

    RAISED = "Raised"
    TIMED_OUT = "TimedOut"  # in this scrape, or in an earlier one whose call has not returned yet
    REFUSED = "Refused"  # a name that belongs to declctl or to other code, or a sample that can't be written


class _Collected(NamedTuple, Generic[T]):
    """What one collector has given."""

    names: frozenset[str]
    result: T


class _Reading(Generic[T]):
    """One scrape of one registry: written by its thread, read by the loop when the time is over too."""

    def __init__(self, registry: "MetricsRegistry", lineage: "CounterLineage") -> None:
        self.registry = registry
        self._lineage = lineage
        self.collected: list[_Collected[T]] = []
        self.faults: list[tuple[ScrapeFault, str]] = []
        self.running: Collector | None = None  # the collector that is called now

    def run(self, encode: Callable[[Sequence["Metric"]], T], running: "dict[Any, str]") -> None:
        """Collect and encode. `running` has the collectors whose calls have not returned, by name.

        Collectors that took too long at the last scrape come last.
        """
        from declctl.hooks.metrics import MetricRefused, sample_names

        late = frozenset(self.registry.late)
        for collector in sorted(self.registry.collectors, key=late.__contains__):
            name = type(collector).__name__
            if collector in running:
                self.faults.append(
                    (ScrapeFault.TIMED_OUT, f"{name}.collect has not returned since an earlier scrape")
                )
                continue
            running[collector] = name
            self.running = collector
            try:
                families = self._lineage.with_others(self.registry, collector)
            except BaseException as error:  # noqa: BLE001 - user code: counted and logged
                self.faults.append(
                    (ScrapeFault.RAISED, f"{name}.collect raised {describe_with_place(error)}")
                )
                continue
            finally:
                self.running = None
                del running[collector]
            try:
                names = [sample_names(family) for family in families]
                for family in families:
                    self.registry.check(family.name)
                    _check_samples(family)
                self.collected.append(_Collected(frozenset[str]().union(*names), encode(families)))
            except MetricRefused as refused:
                self.faults.append((ScrapeFault.REFUSED, f"{refused}: {refused.suggestion}"))
            except Exception as error:  # noqa: BLE001 - values of user code that can't be written
                self.faults.append(
                    (
                        ScrapeFault.REFUSED,
                        f"what {name}.collect gives can't be written: {describe_with_place(error)}",
                    )
                )


class PluginMetrics:
    """The metrics of the active generation's code. Used on the machinery loop.

    - `seconds`: the time that all collectors of a scrape have together.
    """

    def __init__(self, *, log: Log, seconds: float = SCRAPE_SECONDS) -> None:
        self._log = log
        self._seconds = seconds
        self._active: LoadedCode | None = None
        self._codes: list[LoadedCode] = []  # committed and not retired, each once
        # By plugin or module, and the version or digest of its code. Those without members are removed.
        self._lineages: dict[tuple[str, str], CounterLineage] = {}
        self._stamps: dict[int, tuple[str, str]] = {}  # the key of a registry's lineage, by its identity
        self._one_scrape = asyncio.Lock()  # at a time: a call of another one is not one that hangs
        self._running: dict[Any, str] = {}  # collectors whose calls have not returned; threads write it
        self._faults: dict[str, Counter[ScrapeFault]] = {}  # by plugin or module
        self._logged: dict[str, str] = {}  # the last logged fault, by plugin or module

    @property
    def owners(self) -> Sequence[str]:
        """The plugins and modules with metrics, in the order of the manifest."""
        return () if self._active is None else tuple(self._active.metrics)

    @property
    def faults(self) -> Mapping[str, Mapping[ScrapeFault, int]]:
        """How often a collector was left out of a scrape, by plugin or module, and by reason."""
        return {
            owner: {fault: self._faults_of(owner)[fault] for fault in ScrapeFault} for owner in self.owners
        }

    def commit(self, code: LoadedCode, inputs: Inputs) -> None:
        """Show the metrics of this code from now on. Calls no user code."""
        self._active = code
        if code not in self._codes:
            self._codes.append(code)
        for owner, registry in code.metrics.items():
            if id(registry) not in self._stamps:
                self._stamps[id(registry)] = (owner, _stamp(owner, code, inputs))
            self._lineage(registry).join(registry)

    async def retire(self, code: LoadedCode) -> None:
        """Forget code, but for what its counters have counted. No effect for code that was not committed."""
        if code not in self._codes:
            return
        self._codes.remove(code)
        if self._active is code:  # the process ends
            self._active = None
        used = {id(registry) for other in self._codes for registry in other.metrics.values()}
        for registry in code.metrics.values():
            if id(registry) in used:  # of an installed plugin that stays
                continue
            lineage = self._lineage(registry)
            lineage.leave(registry)
            stamp = self._stamps.pop(id(registry))
            if lineage.is_empty:
                del self._lineages[stamp]
                continue
            try:
                await asyncio.to_thread(lineage.fold, registry)  # there may be many series
            except RuntimeError:  # the system has no thread left; the retirement has to go on
                lineage.fold(registry)

    async def scrape(self, encode: Callable[[Sequence["Metric"]], T]) -> list[T]:
        """What `encode` makes of the metrics of each collector, in the order of the manifest.

        `encode` is called in threads, as collectors are. What is not there in time, raises or has a name of
        others is left out, counted and logged.
        """
        async with self._one_scrape:
            code = self._active
            return [] if code is None or not code.metrics else await self._scrape(code, encode)

    async def _scrape(self, code: LoadedCode, encode: Callable[[Sequence["Metric"]], T]) -> list[T]:
        readings = [_Reading[T](registry, self._lineage(registry)) for registry in code.metrics.values()]
        tasks = [asyncio.ensure_future(self._read(reading, encode)) for reading in readings]
        await asyncio.wait(tasks, timeout=self._seconds)
        found: list[T] = []
        names: dict[str, str] = {}
        for reading, task in zip(readings, tasks, strict=True):
            owner = reading.registry.owner
            faults = list(reading.faults)
            late = reading.registry.late
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
            for each in tuple(reading.collected):
                # Only for names that a collector has not told when it was registered.
                other = next((names[name] for name in sorted(each.names) if name in names), None)
                if other is not None:
                    faults.append((ScrapeFault.REFUSED, f"{other} has a metric of the same name"))
                    continue
                names |= dict.fromkeys(each.names, owner)
                found.append(each.result)
            self._note(owner, faults)
        return found

    async def _read(self, reading: _Reading[T], encode: Callable[[Sequence["Metric"]], T]) -> None:
        owner = reading.registry.owner
        await in_thread(
            lambda: reading.run(encode, self._running),
            name="declctl-scrape",
            what=f"the metrics of {owner}",
        )

    def _note(self, owner: str, faults: Sequence[tuple[ScrapeFault, str]]) -> None:
        """Count faults, and log them if they are not those of the last scrape."""
        for fault, _ in faults:
            self._faults_of(owner)[fault] += 1
        text = "; ".join(what for _, what in faults)
        before = self._logged.get(owner, "")
        # Once for each trouble: a scrape comes every few seconds.
        if text and not before:
            self._log.warning(f"metrics of {owner} are left out of /metrics: {text}", plugin=owner)
        elif before and not text:
            self._log.info(f"all metrics of {owner} are in /metrics again", plugin=owner)
        self._logged[owner] = text

    def _faults_of(self, owner: str) -> Counter[ScrapeFault]:
        return self._faults.setdefault(owner, Counter())

    def _lineage(self, registry: "MetricsRegistry") -> "CounterLineage":
        from declctl.hooks.metrics import CounterLineage

        return self._lineages.setdefault(self._stamps[id(registry)], CounterLineage())


def _stamp(owner: str, code: LoadedCode, inputs: Inputs) -> str:
    """What is the same as long as the code is: the version of a plugin, or a digest of the handler files."""
    version = next((plugin.version for plugin in code.plugins if plugin.name == owner), None)
    if version is not None:
        return version
    return inputs.modules.get(owner.partition(":")[0], inputs.code)


def _check_samples(family: "Metric") -> None:
    """Raise MetricRefused for a sample whose name is not one of its metric: it may be that of another."""
    from declctl.hooks.metrics import MetricRefused, sample_names

    allowed = sample_names(family)
    for sample in family.samples:
        if sample.name not in allowed:
            raise MetricRefused(
                f"the metric {family.name} has a sample {sample.name}", "name it as its metric"
            )
