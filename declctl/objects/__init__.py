"""The cellar: values that every room shares, and nothing that waits.

Records and frames (what the cache holds), views (what a handler reads), events, keys, selectors and field
paths. What belongs here could be printed, compared or thrown away. What does I/O does not belong here.
"""

from declctl.objects.answers import status_error
from declctl.objects.fields import FieldPath, FieldPathError, FieldSelector, LabelSelector, Requirement
from declctl.objects.frame import Codec, Frame, FrameCodec, FrameStatistics, HeldObject, ObjectCodec
from declctl.objects.record import (
    NO_ORDER,
    Change,
    ChangeReason,
    ChangeType,
    Delta,
    DeltaType,
    EventType,
    KubeObject,
    Layout,
    ListPage,
    Notification,
    ObjectView,
    Record,
    WatchEvent,
    merge,
    newer_version,
    record_of,
    version_order,
)
from declctl.objects.resource import (
    PARTIAL_OBJECT_METADATA,
    GroupVersionKind,
    ListOptions,
    ObjectKey,
    Resource,
    WatchOptions,
    key_of,
    meta_namespace_key,
)

__all__ = [
    "NO_ORDER",
    "PARTIAL_OBJECT_METADATA",
    "Change",
    "ChangeReason",
    "ChangeType",
    "Codec",
    "Delta",
    "DeltaType",
    "EventType",
    "FieldPath",
    "FieldPathError",
    "FieldSelector",
    "Frame",
    "FrameCodec",
    "FrameStatistics",
    "GroupVersionKind",
    "HeldObject",
    "KubeObject",
    "LabelSelector",
    "Layout",
    "ListOptions",
    "ListPage",
    "Notification",
    "ObjectCodec",
    "ObjectKey",
    "ObjectView",
    "Record",
    "Requirement",
    "Resource",
    "WatchEvent",
    "WatchOptions",
    "key_of",
    "merge",
    "meta_namespace_key",
    "newer_version",
    "record_of",
    "status_error",
    "version_order",
]
