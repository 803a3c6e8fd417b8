"""A scrape of user code: what raises, hangs or is wrong is left out and named; the rest is served."""

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from declctl.hooks.metrics import MetricsRegistry
from declctl.runtime.handling.plugin_metrics import PluginMetrics
from declctl.testing import Logged

INPUTS: Any = SimpleNamespace(modules={"handlers": "1"}, code="2")


class Code:
    def __init__(self, **metrics: MetricsRegistry) -> None:
        self.metrics = metrics
        self.plugins: list[Any] = []


class Made:
    """A collector that gives what a test says; it raises an exception, and calls a function."""

    def __init__(self, *given: Any) -> None:
        self._given = given

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> list[Metric]:
        found: list[Any] = [each() if callable(each) else each for each in self._given]
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return found


def gauge(name: str, value: Any = 1.0, series: str = "") -> Metric:
    """A gauge with one value, which may be of any type, and maybe a sample with the name of another one."""
    made = GaugeMetricFamily(name, "x", value=0.0)
    (sample,) = made.samples
    made.samples[:] = [sample._replace(name=each, value=value) for each in (name, series) if each]
    return made


def code(*collectors: Any, owner: str = "handlers", **others: Any) -> Any:
    """Loaded code with these collectors of one module, and those of others."""
    taken: dict[str, str] = {}
    registries = {}
    for name, found in {owner: collectors, **others}.items():
        registries[name] = MetricsRegistry(name, taken, ())
        for each in found:
            registries[name].register(each)
    return Code(**registries)


def encoded(families: Sequence[Metric]) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Made(*families))
    return generate_latest(registry).decode()


class Scraped:
    def __init__(self, *codes: Any, seconds: float = 5.0) -> None:
        self.log = Logged()
        self.metrics = PluginMetrics(log=self.log, seconds=seconds)
        for each in codes:
            self.metrics.commit(each, INPUTS)

    def __call__(self) -> str:
        return asyncio.run(self.scrape())

    async def scrape(self) -> str:
        return "".join(await self.metrics.scrape(encoded))

    def faults(self, owner: str = "handlers") -> dict[str, int]:
        return {str(fault): count for fault, count in self.metrics.faults[owner].items() if count}


async def no_thread(*_: object, **__: object) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("bad", "reason", "words"),
    [
        (ZeroDivisionError("by me"), "Raised", "ZeroDivisionError: by me"),
        (SystemExit(3), "Raised", "SystemExit"),
        (gauge("declctl_ready"), "Refused", "declctl_ready is one of declctl's own"),
        (gauge("bad", series="declctl_ready"), "Refused", "declctl_ready"),  # a second series of that name
        (gauge("bad", "many"), "Refused", "can't be written"),
        (gauge("bad", None), "Refused", "can't be written"),
    ],
)
def test_a_bad_collector_takes_no_other_with_it(bad: Any, reason: str, words: str) -> None:
    """One is left out; it is counted at each scrape, and told once."""
    scraped = Scraped(code(Made(gauge("first")), Made(bad), Made(gauge("last"))))
    for _ in range(2):
        text = scraped()
        assert "first 1.0" in text
        assert "last 1.0" in text
        assert "bad" not in text
        assert "declctl_ready" not in text
    assert scraped.faults() == {reason: 2}
    (line,) = scraped.log.events("warning")
    assert line.startswith("metrics of handlers are left out of /metrics: ")
    assert words in line


def test_two_owners_of_a_name_are_not_both_shown() -> None:
    """Names that are not known before a scrape: the first in the manifest counts."""
    scraped = Scraped(code(Made(gauge("same", 1.0)), second=[Made(gauge("same", 2.0))]))
    text = scraped()
    assert "same 1.0" in text
    assert "same 2.0" not in text
    assert scraped.faults("second") == {"Refused": 1}
    assert "handlers has a metric of the same name" in scraped.log.events("warning")[0]


def test_what_works_again_is_told() -> None:
    """Who has read that metrics are missing reads that they are back."""
    broken = [True]
    scraped = Scraped(code(Made(lambda: OSError("away") if broken[0] else gauge("mine"))))
    assert "mine" not in scraped()
    broken[0] = False
    assert "mine 1.0" in scraped()
    assert scraped.log.events("info") == ["all metrics of handlers are in /metrics again"]


async def test_a_collector_that_hangs_is_left_out_until_it_returns() -> None:
    """The loop goes on, other collectors and modules are served, and there is one stuck thread, not many."""
    gate, entered, calls = threading.Event(), threading.Event(), []

    def hang() -> Metric:
        calls.append(1)
        entered.set()
        gate.wait(20)
        return gauge("slow")

    scraped = Scraped(
        code(Made(gauge("before")), Made(hang), Made(gauge("behind")), second=[Made(gauge("other"))]),
        seconds=0.2,
    )
    first = asyncio.create_task(scraped.scrape())
    await asyncio.to_thread(entered.wait, 10)
    turns = 0
    while not first.done():  # the loop is free all the time
        turns += 1
        await asyncio.sleep(0.01)
    assert turns > 1
    text = await first
    assert "before 1.0" in text
    assert "other 1.0" in text
    assert "slow" not in text
    # The hanging call is not made again, and no other collector waits for it any more.
    assert "behind 1.0" in await scraped.scrape()
    assert len(calls) == 1
    assert scraped.faults() == {"TimedOut": 2}
    gate.set()
    while "slow 1.0" not in await scraped.scrape():
        await asyncio.sleep(0.01)
    assert "Made.collect took longer than 0.2 s" in scraped.log.events("warning")[0]


async def test_a_collector_that_is_always_slow_keeps_others_from_one_scrape_only() -> None:
    """The next scrapes collect it last."""
    gate, slow = threading.Event(), threading.Event()
    slow.set()

    def linger() -> Metric:
        if slow.is_set():
            gate.wait(20)
        return gauge("slow")

    scraped = Scraped(code(Made(linger), Made(gauge("behind"))), seconds=0.5)
    for expected in (False, True, True):
        gate.clear()
        text = await scraped.scrape()
        assert ("slow" in text, "behind 1.0" in text) == (False, expected)
        gate.set()
        for thread in [each for each in threading.enumerate() if each.name == "declctl-scrape"]:
            await asyncio.to_thread(thread.join, 10)
    slow.clear()
    for _ in range(2):
        text = await scraped.scrape()
        assert ("slow 1.0" in text, "behind 1.0" in text) == (True, True)
    assert scraped.faults() == {"TimedOut": 3}


def test_a_scrape_without_a_thread_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process at its limit of threads says that metrics are missing."""
    scraped = Scraped(code(Made(gauge("mine"))))
    with monkeypatch.context() as limited:
        limited.setattr("declctl.runtime.handling.plugin_metrics.in_thread", no_thread)
        assert scraped() == ""
    assert scraped.faults() == {"Raised": 1}
    (line,) = scraped.log.events("warning")
    assert "nothing could be collected: RuntimeError: can't start new thread" in line
    assert "mine 1.0" in scraped()


async def test_two_scrapers_at_once_get_all() -> None:
    """A call that another scrape is making is not one that hangs."""
    scraped = Scraped(code(Made(gauge("mine"))))
    assert all("mine 1.0" in text for text in (await asyncio.gather(*(scraped.scrape() for _ in range(5)))))
    assert scraped.faults() == {}


def counting() -> tuple[Any, Counter]:
    counter = Counter("jobs", "x", registry=None)
    return code(counter), counter


def test_the_active_code_is_shown_with_what_the_same_code_has_counted() -> None:
    """Also after the end of the old code. A counter of other code begins at zero."""
    scraped = Scraped()
    first, before = counting()
    second, after = counting()
    scraped.metrics.commit(first, INPUTS)
    before.inc(2)
    scraped.metrics.commit(second, INPUTS)
    after.inc()
    assert "jobs_total 3.0" in scraped()
    asyncio.run(scraped.metrics.retire(first))
    assert "jobs_total 3.0" in scraped()
    inputs: Any = SimpleNamespace(modules={"handlers": "edited"}, code="2")
    scraped.metrics.commit(counting()[0], inputs)
    assert "jobs_total 0.0" in scraped()
    scraped.metrics.commit(Code(), INPUTS)
    assert (scraped(), scraped.metrics.owners) == ("", ()), "at the commit, and not when it has drained"


def test_code_is_forgotten_without_a_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has counted stays, and its generation can be retired."""
    first, before = counting()
    before.inc(2)
    scraped = Scraped(first, counting()[0])
    with monkeypatch.context() as limited:
        limited.setattr(asyncio, "to_thread", no_thread)
        asyncio.run(scraped.metrics.retire(first))
    assert "jobs_total 2.0" in scraped()


def test_a_registry_that_two_generations_have_is_kept_by_the_second() -> None:
    """An installed plugin is one object: the end of the old generation ends nothing of it."""
    first, counter = counting()
    counter.inc(2)
    scraped = Scraped(first, Code(**first.metrics))
    asyncio.run(scraped.metrics.retire(first))
    assert "jobs_total 2.0" in scraped()
