"""What the tests of the admin address share: a controller that isn't one, and a way to ask it over HTTP."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace
from prometheus_client import Metric

from declctl.admin import StaticToken, serve
from declctl.errors import UnknownIndex
from declctl.informer import RelistDifferences
from declctl.kit.histogram import Histogram, HistogramFigures
from declctl.manifest import Plan, plan
from declctl.manifest.model import AdminSpec, ControllerSpec, MetricsSpec
from declctl.manifest.values import Address
from declctl.objects import ObjectKey
from declctl.runtime.handling.binding import HandlerStatistics
from declctl.runtime.handling.circuit_breaker import BreakerState, BreakerStatus
from declctl.runtime.handling.dead_letters import DeadLetter, RequeueResult
from declctl.runtime.handling.handler_figures import HANDLER_BOUNDS
from declctl.runtime.handling.plugin_metrics import PluginMetrics
from declctl.runtime.handling.queue_listing import QueueListing
from declctl.runtime.handling.server_warnings import WarningTotal
from declctl.runtime.handling.tap import HandlerTap
from declctl.runtime.log import LogLevelControl
from declctl.runtime.reloading.attempts import RetryStatus
from declctl.runtime.reloading.files import FileWatchStatus
from declctl.runtime.reporting.status import (
    ControllerCondition,
    ControllerStatus,
    DecodingStatus,
    PluginStatus,
    ResourceStatus,
)
from declctl.runtime.reporting.why import WriteExplanation
from declctl.runtime.scheduling.schedules import RunOutcome, ScheduleStatistics, TriggerResult
from declctl.testing import Logged
from declctl.transport import RequestTotal, ServerStatus
from declctl.writes import RecordedEvents, WaitingWrites, WriteTotal

LOOPBACK = Address("127.0.0.1", 0)
EVERYWHERE = Address("0.0.0.0", 0)
GUARDED = [
    *(("GET", path) for path in ("/cache/pods", "/cache/pods/a", "/index/pods/byNode/a")),
    ("POST", "/-/reload"),
]

PODS = ResourceStatus(
    name="pods",
    synced=True,
    objects=2,
    bytes=640,
    lists=1,
    watches=3,
    relists=0,
    relist_differences=RelistDifferences(added=2, modified=30),
    resource_version="88123",
    last_event_age=0.4,
    error=None,
    state="Watching",
    items_listed=2,
    events={"ADDED": 5, "MODIFIED": 2},
    decoding=DecodingStatus(
        objects=9,
        whole=3,
        unexpected=3,
        unread=1,
        dropped=4,
        failed=2,
        last_fault="the transform raised KeyError on a: 'x'",
        frame_ratio=12.5,
        trainings=2,
        dictionaries=1,
    ),
)


def _histogram(*seconds: float) -> HistogramFigures:
    histogram = Histogram(HANDLER_BOUNDS)
    for each in seconds:
        histogram.add(each)
    return histogram.figures()


NOTIFY = HandlerStatistics(
    name="notify",
    generation=6,
    synced=True,
    delivered=12,
    succeeded=9,
    failed=1,
    retried=2,
    merged=3,
    dropped=0,
    filtered=2,
    queued=4,
    running=1,
    zombies=1,
    p95_seconds=0.004,
    last_error="default/<b>: KeyError: 'x'",
    replayed=7,
    timeouts=5,
    terminal_failures=6,
    resource="pods",
    lag=_histogram(0.002, 2.0),
    duration=_histogram(0.2),
)
NIGHTLY = ScheduleStatistics(
    name="nightly",
    generation=6,
    next_run=datetime(2026, 1, 2, 2, tzinfo=UTC),
    last_run=None,
    last_outcome=RunOutcome.FAILED,
    last_success=None,
    last_seconds=0.5,
    succeeded=3,
    failed=2,
    skipped=1,
    running=0,
    zombies=0,
    last_error="KeyError: 'secret'",
    last_error_type="KeyError",
)
BROKEN = BreakerStatus(BreakerState.OPEN, 5, 2, 3, 12.0, "down")
STATUS = ControllerStatus(
    name="pod-guard",
    generation=6,
    bundle_hash="4f2c" * 16,
    ready=True,
    leader=True,
    generations_alive=2,
    conditions=(ControllerCondition("Ready", "True", "Synced", "", datetime(2026, 1, 1, tzinfo=UTC)),),
    resources=(PODS,),
    handlers=(NOTIFY,),
    plugins=(
        PluginStatus("slack", "1.2.0", "Ready"),
        PluginStatus("pager", "0.3", "Suspended", "OSError: down", BROKEN),
    ),
    reloads={"Applied": 5, "Refused": 1},
    last_reload_seconds=0.003,
    reload_plan_mismatches=3,
    removed={"audit": 25},
    server=ServerStatus("https://there:6443", datetime(2026, 1, 1, tzinfo=UTC), "connection refused", 4, 1),
    recorded_events=RecordedEvents(posted=20, repeated=7, failed=3, dropped=500),
    writes=(
        WriteTotal("notify", "apply", "succeeded", 12),
        WriteTotal("notify", "patch_status", "skipped", 4),
    ),
    warning_totals=(WarningTotal("web", "v1 Pod", 7),),
    write_retries={"too_many_requests": 2, "conflict": 1},
    waiting_writes=(WaitingWrites("notify", 300, 6.2),),
    client_requests=(RequestTotal("GET", "200", 31), RequestTotal("PATCH", "<error>", 2)),
    reload_retries=9,
    reload_retry=RetryStatus("Forbidden", 2, 39.96),
    file_watch=FileWatchStatus(7, "Too many open files", "OSError"),
)
HEALTHY = replace(NOTIFY, zombies=0)
# Nothing is wrong: no alarm.
WELL = replace(
    STATUS,
    handlers=(HEALTHY,),
    server=ServerStatus("https://there"),
    plugins=(PluginStatus("slack", "1.2.0", "Ready"),),
    file_watch=FileWatchStatus(),
)


@dataclass
class Cache:
    """A lister over a few objects, with one index."""

    objects: dict[str, SimpleNamespace]

    def get(self, key: str) -> SimpleNamespace | None:
        return self.objects.get(key)

    def keys(self) -> Sequence[ObjectKey]:
        return [view.key for view in self.objects.values()]

    def list(self, *, namespace: str | None = None, selector: str | None = None) -> Sequence[SimpleNamespace]:
        if selector == "((":
            raise ValueError("'((' is no selector")
        return [view for view in self.objects.values() if namespace in (None, view.key.namespace)]

    def by_index(self, name: str, value: str) -> Sequence[SimpleNamespace]:
        self._known(name)
        return [view for view in self.objects.values() if view.body["spec"]["nodeName"] == value]

    def index_values(self, name: str) -> Sequence[str]:
        self._known(name)
        return sorted({view.body["spec"]["nodeName"] for view in self.objects.values()})

    def _known(self, name: str) -> None:
        if name != "byNode":
            raise UnknownIndex(f"there is no index {name!r}; there is: byNode")


def outcome(result: str) -> SimpleNamespace:
    """What became of a reload."""
    document = {"result": result, "generation": 7, "diagnostics": []}
    line = "generation 7: ~handler notify (code), 0 LIST, 3 ms"
    return SimpleNamespace(result=result, line=line, document=lambda: document)


def pod(namespace: str, name: str, node: str) -> SimpleNamespace:
    """An object as a lister gives it."""
    body = {"metadata": {"namespace": namespace, "name": name}, "spec": {"nodeName": node}}
    return SimpleNamespace(body=body, key=ObjectKey.of(namespace, name), to_dict=lambda: body)


class FakeRuntime:
    """A controller that says what it is told to say."""

    def __init__(self) -> None:
        self.now = STATUS
        self.result = "Applied"
        self.trigger_result = TriggerResult.BEGUN
        self.triggered: list[str] = []
        self.told_letters: list[DeadLetter] = []
        self.requeue_results: Mapping[RequeueResult, int] | None = {RequeueResult.REQUEUED: 1}
        self.requeued: list[tuple[str | None, str | None]] = []
        self.told_why: WriteExplanation | Exception | None = None
        self.asked_why: list[tuple[str, str, str]] = []
        self.told_queues: dict[str, QueueListing] = {}
        self.asked_queues: list[tuple[str, int]] = []
        self.log_level: LogLevelControl | None = None
        self.reloads = self.forced = 0
        self.gate: asyncio.Event | None = None
        self.told_running: Any = None
        self.allowed_hosts: tuple[str, ...] = ()
        self.tap = HandlerTap()
        self.plugin_metrics = PluginMetrics(log=Logged())
        self.admin: AdminSpec | None = None  # instead of one with `allowed_hosts`
        self.metrics = MetricsSpec()
        self.declared: dict[str, Any] = {}  # what the manifest declares: resources, handlers
        self.client: Any = None
        attempts = [{"generation": 6, "result": "Applied", "time": "2026-01-01T11:00:00Z"}]
        self.told_history: dict[str, Any] = {"attempts": attempts, "generation": 6, "kept": [5]}
        self.rolled_back: list[int | None] = []
        pods = (pod("team-a", "web-2", "node-1"), pod("default", "web-1", "node-2"))
        self.cache = Cache({str(each.key): each for each in pods})

    @property
    def plan(self) -> Plan:
        admin = self.admin or AdminSpec(allowed_hosts=self.allowed_hosts)
        return plan(ControllerSpec("pod-guard", admin=admin, metrics=self.metrics, **self.declared))

    def status(self) -> ControllerStatus:
        return self.now

    def say(self, **changes: Any) -> None:
        """Change what it says."""
        self.now = replace(self.now, **changes)

    def running(self) -> Any:
        """What runs; a test says what."""
        return self.told_running

    def lister(self, resource: str) -> Cache | None:
        return self.cache if resource == "pods" else None

    async def rollback(self, number: int | None = None) -> SimpleNamespace:
        self.rolled_back.append(number)
        return outcome(self.result)

    def trigger(self, schedule: str) -> TriggerResult:
        self.triggered.append(schedule)
        return self.trigger_result

    def dead_letters(self) -> Sequence[DeadLetter]:
        return self.told_letters

    def requeue(self, handler: str | None, key: str | None) -> Mapping[RequeueResult, int] | None:
        self.requeued.append((handler, key))
        return self.requeue_results

    async def queue(self, handler: str, most: int) -> QueueListing | None:
        self.asked_queues.append((handler, most))
        return self.told_queues.get(handler)

    async def why(self, resource: str, key: str, field: str = "") -> WriteExplanation:
        self.asked_why.append((resource, key, field))
        if isinstance(self.told_why, Exception):
            raise self.told_why
        assert self.told_why is not None
        return self.told_why

    def history(self) -> dict[str, Any]:
        return self.told_history

    async def reload(self, *, asked: bool = True, force: bool = False) -> SimpleNamespace:
        assert asked
        self.reloads += 1
        self.forced += force
        if self.gate is not None:
            await self.gate.wait()
        return outcome(self.result)


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, read whole."""

    status: int
    headers: Mapping[str, str]
    text: str
    json: Any


async def request(
    bound: Address, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> Answer:
    url = f"http://127.0.0.1:{bound.port}{path}"
    headers = {name: value.replace("{port}", str(bound.port)) for name, value in (headers or {}).items()}
    async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers) as response:
        text = await response.text()
        json = await response.json() if response.content_type == "application/json" else None
        return Answer(response.status, response.headers, text, json)


@pytest.fixture(name="runtime")
def _runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture(name="ask")
def _ask(runtime: FakeRuntime) -> Callable[..., Answer]:
    """One request to a server that is started for it."""

    def ask(
        path: str, method: str = "GET", address: Address = LOOPBACK, token: str | None = None, **headers: str
    ) -> Answer:
        async def scenario() -> Answer:
            async with serve(runtime, address, authorizer=StaticToken(token) if token else None) as bound:
                return await request(bound, path, method=method, headers=headers)

        return asyncio.run(scenario())

    return ask


@pytest.fixture(name="http")
def _http() -> Callable[..., object]:
    return request


async def listen(runtime: FakeRuntime, address: Address, **options: Any) -> None:
    """Listen, for tests in which that is refused."""
    async with serve(runtime, address, **options):
        raise AssertionError("it listened")


def values_of(families: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    """The values by name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value for each in families for sample in each.samples
    }


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the server has done its part."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)
