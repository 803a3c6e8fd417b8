"""Traces of a whole controller: from a change to a write, and from this write to the next handler."""

import opentelemetry.trace as api
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from declctl.runtime.tracing import look_for_provider
from declctl.testing import until

CODE = """
async def copies(change, ctx):
    if change.obj.name == "first":
        data = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "copy"}, "data": {"a": "b"}}
        await ctx.apply(data)
        ctx.log.info("copied")

def keys(request, ctx):
    if request.name == "copy":
        ctx.sync.patch_status(conditions=[])
"""


@pytest.fixture(name="finished")
def _finished(monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(api, "_TRACER_PROVIDER", provider)
    look_for_provider()
    yield lambda name: [span for span in exporter.get_finished_spans() if span.name == name]
    provider.shutdown()


def test_a_change_leads_to_a_write_and_that_to_other_handlers(rig, config_map, finished) -> None:
    """Event → hook → write is one trace; what the written object leads to has a link to the write."""
    rig.handler("copies")
    rig.handler("keys", rest="mode: Reconcile, debounce: 1s, retry: {maxAttempts: 1}")
    runs = rig.run(CODE)
    runs.sandbox.create(config_map("first"))

    def of(name: str, handler: str, obj: str):
        return [
            span
            for span in finished(name)
            if (span.attributes["declctl.handler.name"], span.attributes["declctl.object.name"])
            == (handler, obj)
        ]

    resource = runs.status().handlers[0].resource
    until("the copy is handled", lambda: of(f"process {resource}", "keys", "copy"))
    runs.wait_idle()
    (event,) = of(f"process {resource}", "copies", "first")
    (write,) = finished("apply")
    (hook,) = [
        span for span in finished("declctl_event copies") if span.context.span_id == write.parent.span_id
    ]
    assert hook.parent.span_id == event.context.span_id
    assert write.attributes["declctl.object.kind"] == "ConfigMap"
    request_id = runs.runtime.parts.writing.ledger.newest()[0].origin.request_id
    assert write.attributes["declctl.event.id"] == event.attributes["declctl.event.id"] == request_id
    # The event of the copy leads back to the write. It may overtake the answer to the write, but not by the
    # time for which the key rests.
    reconciled = of(f"process {resource}", "keys", "copy")[0]
    assert reconciled.attributes["declctl.request.causes"]
    links = [link for link in reconciled.links if link.attributes["declctl.link.reason"] == "cause"]
    assert [link.context.span_id for link in links] == [write.context.span_id]
    # A write that raises is an error of its span, of the hook and of the event.
    failed = finished("patch_status")
    assert all(span.status.status_code is api.StatusCode.ERROR for span in failed)
    assert failed
