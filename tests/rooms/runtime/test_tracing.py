"""Traces: the spans of a call, by the SDK's exporter in memory. Without a provider there are none."""

import subprocess
import sys
from types import SimpleNamespace

import opentelemetry.trace as api
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from declctl.kit.secret_values import secret_values
from declctl.manifest.model import RetrySpec
from declctl.objects import GroupVersionKind, ObjectKey
from declctl.runtime.tracing import TracedCall, current_ids, look_for_provider, tracing
from declctl.writes import WriteVerb, Written
from tests.rooms.runtime.conftest import implementation


class Spans:
    """The spans that have ended."""

    def __init__(self, exporter):
        self._exporter = exporter

    @property
    def all(self):
        return list(self._exporter.get_finished_spans())

    def named(self, name):
        return [span for span in self.all if span.name == name]

    def one(self, name):
        (span,) = self.named(name)
        return span

    def children(self, parent):
        """The names of the spans below a span."""
        return [s.name for s in self.all if s.parent and s.parent.span_id == parent.context.span_id]


@pytest.fixture
def spans(monkeypatch):
    """A provider that exports to memory, for one test."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(api, "_TRACER_PROVIDER", provider)
    look_for_provider()
    yield Spans(exporter)
    provider.shutdown()


def _own_span(change) -> None:
    with api.get_tracer("mine").start_as_current_span("mine"):
        pass


async def _own_span_async(change) -> None:
    _own_span(change)


def test_an_event_a_hook_and_spans_of_its_own_are_one_trace(bench, added, spans, clock) -> None:
    """`process pods`, from the receipt on; below it the hook; below that what user code makes."""
    slot = bench.slot(_own_span)
    slot.add_all([change := added("a")])
    clock.set(2.0)
    bench.work()
    event, hook, mine = spans.one("process pods"), spans.one("declctl_event notify"), spans.one("mine")
    assert event.parent is None
    assert (spans.children(event), spans.children(hook)) == ([hook.name], [mine.name])
    assert event.kind is api.SpanKind.CONSUMER
    assert event.attributes["declctl.handler.name"] == "notify"
    assert event.attributes["declctl.event.id"] == f"uid-default-a@{change.record.resource_version}"
    assert event.attributes["declctl.event.type"] == "Added"
    assert event.attributes["k8s.namespace.name"] == "default"
    assert (event.status.status_code, event.attributes["declctl.attempt"]) == (api.StatusCode.UNSET, 1)
    # It begins when the cache took the change in, so that it shows how long the change has waited.
    assert 2.0 <= (hook.start_time - event.start_time) / 1e9 < 60.0


@pytest.mark.parametrize("worker", ["a thread", "a task"])
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "beside a def hook"])
def test_spans_of_async_hooks_are_children_too(bench, spans, mixed, worker) -> None:
    """An `async def` hook runs on a loop of its own, and a `def` hook of a task in a thread."""
    functions = [_own_span_async, *([implementation(_own_span, hook="declctl_added")] if mixed else [])]
    slot = bench.slot(*functions, adds="a")
    if worker == "a task":
        bench.loop.submit(slot.work_async(slot.queue.take())).result(10)
    else:
        bench.work()
    hooks = ["declctl_added notify", "declctl_event notify"][not mixed :]
    assert sorted(spans.children(spans.one("process pods"))) == hooks
    for hook in hooks:
        assert spans.children(spans.one(hook)) == ["mine"]


def test_a_failure_is_an_error_of_its_spans_and_its_retry_has_a_link(bench, added, spans, clock, log) -> None:
    """The exception of user code, not ours around it; the next attempt is another trace that leads back."""
    tries = []

    def fails(change) -> None:
        tries.append(change)
        if len(tries) == 1:
            raise KeyError("team")

    bench.slot(fails, retry=RetrySpec(initial_backoff=1.0, max_backoff=1.0), adds="a")
    bench.work()
    clock.set(1.0)
    bench.work()
    first, second = spans.named("process pods")
    hook, _ = spans.named("declctl_event notify")
    assert (first.status.status_code, first.attributes["error.type"]) == (api.StatusCode.ERROR, "KeyError")
    assert hook.status.description == "'team'"
    (event,) = hook.events
    assert event.attributes["exception.type"] == "KeyError"
    assert first.events == ()  # the exception is recorded once
    (link,) = second.links
    assert (link.context.span_id, link.attributes["declctl.link.reason"]) == (first.context.span_id, "retry")
    assert second.context.trace_id != first.context.trace_id
    assert second.attributes["declctl.attempt"] == 2
    failure = next(line for line in log.lines if line.level == "error")
    assert failure.fields["trace_id"] == f"{first.context.trace_id:032x}"


def test_spans_have_no_values_of_secrets(bench, added, spans) -> None:
    """A collector of traces has other readers: neither hooks nor writes give it a value."""
    secret_values.remember({"stringData": {"a": "value-of-a-traced-secret"}})

    def fails(change) -> None:
        raise ValueError("value-of-a-traced-secret")

    async def write() -> None:
        raise ValueError("value-of-a-traced-secret")

    bench.slot(fails).add_all([added("a")])
    bench.work()
    traces = tracing()
    with pytest.raises(ValueError, match="traced-secret"):
        bench.loop.submit(traces.write("apply", write(), {})).result(10)
    for name in ("process pods", "declctl_event notify", "apply"):
        assert spans.one(name).status.description == "(hidden)"
    texts = [text for span in spans.all for event in span.events for text in event.attributes.values()]
    assert texts.count("(hidden)") == 2
    assert not any("value-of-a-traced-secret" in str(text) for text in texts)


def test_a_change_that_is_left_out_has_no_span(bench, added, spans) -> None:
    """A filter that keeps most changes away does not fill the store of traces."""
    bench.slot(implementation(_own_span, hook="declctl_deleted"), adds="a")
    bench.work()
    assert spans.all == []


def test_log_lines_in_a_hook_have_the_ids_of_its_span(bench, added, spans) -> None:
    """`trace_id` and `span_id` lead from a line to the trace."""
    seen = []
    bench.slot(lambda change: seen.append(current_ids()), adds="a")
    bench.work()
    hook = spans.one("declctl_event notify")
    assert seen == [{"trace_id": f"{hook.context.trace_id:032x}", "span_id": f"{hook.context.span_id:016x}"}]
    assert current_ids() == {}


def _call(**more) -> TracedCall:
    facts = {"handler": "h", "generation": 1, "resource": "r", "event_id": "u@1", "attempt": 1}
    return TracedCall(**{**facts, "kind": None, "namespace": None, "name": "n", "uid": "u", **more})


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (("", "Pod"), "k8s.pod.name"),
        (("apps", "StatefulSet"), "k8s.statefulset.name"),
        (("autoscaling", "HorizontalPodAutoscaler"), "k8s.hpa.name"),
        (("shop.example", "Job"), "declctl.object.name"),  # not the Job of Kubernetes
        (("", "ConfigMap"), "declctl.object.name"),
        (None, "declctl.object.name"),
    ],
)
def test_names_of_attributes_are_those_of_the_semantic_conventions(kind, name) -> None:
    """Where the conventions have a name for a kind; others are no invention below `k8s`."""
    attributes = _call(kind=kind).attributes()
    assert attributes[name] == "n"
    assert [each for each in attributes if each.startswith("k8s.")] == [
        each for each in (name, name.replace("name", "uid")) if each.startswith("k8s.")
    ]


def _written(version: str) -> Written:
    kind = GroupVersionKind.of("apps/v1", "Deployment")
    return Written(WriteVerb.APPLY, kind, ObjectKey("a/web"), "uid-1", version)


def test_an_event_that_a_write_has_led_to_has_a_link_to_it(bench, spans) -> None:
    """From what a handler sees back to the handler that wrote it."""
    traces = tracing()

    async def work() -> Written:
        return _written("7")

    bench.loop.submit(traces.write("apply", work(), {"declctl.event.id": "x@1"})).result(10)
    write = spans.one("apply")
    assert write.kind is api.SpanKind.CLIENT
    assert write.attributes["k8s.deployment.name"] == "web"
    assert write.attributes["declctl.event.id"] == "x@1"
    traces.begin(_call(), events=["uid-1@6", "uid-1@7"]).end([])
    (link,) = spans.one("process r").links
    assert (link.context.span_id, link.attributes["declctl.link.reason"]) == (write.context.span_id, "cause")


def test_the_writes_that_are_remembered_are_bounded(bench, spans) -> None:
    """A controller that writes for a year keeps the newest thousand."""
    traces = tracing()

    async def work() -> SimpleNamespace:
        return SimpleNamespace(applied=tuple(_written(str(number)) for number in range(1500)))

    bench.loop.submit(traces.write("apply_set", work(), {})).result(10)
    assert spans.one("apply_set").attributes["declctl.write.objects"] == 1500
    traces.begin(_call(), events=[f"uid-1@{number}" for number in range(1500)]).end([])
    # The SDK keeps 128 links of a span; the oldest write is forgotten, the newest is not.
    traces.begin(_call(resource="old"), events=["uid-1@499"]).end([])
    traces.begin(_call(resource="new"), events=["uid-1@500"]).end([])
    assert (spans.one("process old").links, len(spans.one("process new").links)) == ((), 1)


def test_without_a_provider_nothing_is_made_and_one_that_comes_late_is_found(bench, monkeypatch) -> None:
    """The API may be imported; a hook `declctl_startup` may configure it, for the first call of a handler."""
    assert tracing() is None
    slot = bench.slot(lambda change: None, adds="a")
    bench.work()
    assert slot.statistics().succeeded == 1
    provider = TracerProvider()
    monkeypatch.setattr(api, "_TRACER_PROVIDER", provider)
    look_for_provider()
    assert tracing() is not None
    provider.shutdown()


def test_without_the_package_nothing_is_imported() -> None:
    """OpenTelemetry is no dependency: declctl does not import it, even where it is installed."""
    code = (
        "import sys; import declctl.runtime.runtime, declctl.cli.logging; "
        "from declctl.runtime.tracing import current_ids, tracing; "
        "assert (tracing(), current_ids()) == (None, {}); "
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
