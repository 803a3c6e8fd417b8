"""The writes of handlers: apply, sets of children, status, Kubernetes Events; one gate, and one ledger."""

from declctl.writes.apply import document_of
from declctl.writes.apply_set import AppliedSet
from declctl.writes.events import EventRecorder, EventText, RecordedEvents, event_text
from declctl.writes.gate import WriteGate
from declctl.writes.ledger import (
    WriteLedger,
    WriteOrigin,
    WriteRecord,
    WriteResult,
    WriteTotal,
    WriteVerb,
    Written,
)
from declctl.writes.writer import (
    CallScope,
    HandlerWriter,
    WritePolicy,
    WriterFactory,
    documents_of,
    object_of,
    status_change,
)

__all__ = [
    "AppliedSet",
    "CallScope",
    "EventRecorder",
    "EventText",
    "HandlerWriter",
    "RecordedEvents",
    "WriteGate",
    "WriteLedger",
    "WriteOrigin",
    "WritePolicy",
    "WriteRecord",
    "WriteResult",
    "WriteTotal",
    "WriteVerb",
    "WriterFactory",
    "Written",
    "document_of",
    "documents_of",
    "event_text",
    "object_of",
    "status_change",
]
