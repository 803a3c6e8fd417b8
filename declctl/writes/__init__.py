"""The writes of handlers: apply, sets of children, status, Kubernetes Events; one gate, and one ledger."""

from declctl.writes.apply import Typed, Writable, document_of, field_manager
from declctl.writes.apply_set import AppliedSet, drops_set_annotations
from declctl.writes.budget import WaitingWrites, WriteBudget
from declctl.writes.declared import ChildCache, DeclaredWrites
from declctl.writes.events import EventRecorder, EventText, RecordedEvents, event_text
from declctl.writes.finalizers import (
    PAGE,
    AddedFinalizer,
    FinalizedObject,
    FinalizerCarrier,
    FinalizerWriter,
    finalizers_of,
    find_added,
    find_carriers,
    find_carriers_of,
    find_in_any,
    is_being_deleted,
)
from declctl.writes.gate import OnWritten, Propagation, WriteGate, WriteRefusal, current_write
from declctl.writes.ledger import (
    KindWrites,
    WriteLedger,
    WriteOrigin,
    WriteRecord,
    WriteResult,
    WriteTotal,
    WriteVerb,
    Written,
)
from declctl.writes.one_object import propagation_of, reference_to
from declctl.writes.status import status_arguments
from declctl.writes.writer import (
    CallScope,
    HandlerWriter,
    WritePolicy,
    WriterFactory,
    documents_of,
    object_of,
    origin_of,
    status_change,
)

__all__ = [
    "PAGE",
    "AddedFinalizer",
    "AppliedSet",
    "CallScope",
    "ChildCache",
    "DeclaredWrites",
    "EventRecorder",
    "EventText",
    "FinalizedObject",
    "FinalizerCarrier",
    "FinalizerWriter",
    "HandlerWriter",
    "KindWrites",
    "OnWritten",
    "Propagation",
    "RecordedEvents",
    "Typed",
    "WaitingWrites",
    "Writable",
    "WriteBudget",
    "WriteGate",
    "WriteLedger",
    "WriteOrigin",
    "WritePolicy",
    "WriteRecord",
    "WriteRefusal",
    "WriteResult",
    "WriteTotal",
    "WriteVerb",
    "WriterFactory",
    "Written",
    "current_write",
    "document_of",
    "documents_of",
    "drops_set_annotations",
    "event_text",
    "field_manager",
    "finalizers_of",
    "find_added",
    "find_carriers",
    "find_carriers_of",
    "find_in_any",
    "is_being_deleted",
    "object_of",
    "origin_of",
    "propagation_of",
    "reference_to",
    "status_arguments",
    "status_change",
]
