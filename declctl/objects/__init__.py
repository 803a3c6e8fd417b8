"""The cellar: values that every room shares, and nothing that waits.

Records and frames (what the cache holds), views (what a handler reads), events, keys, selectors and field
paths. What belongs here could be printed, compared or thrown away. What does I/O does not belong here.
"""

from typing import TYPE_CHECKING

from declctl.kit.exports import late
from declctl.objects.events import (
    Change,
    ChangeReason,
    ChangeType,
    Delta,
    DeltaType,
    EventType,
    ListPage,
    Notification,
    WatchEvent,
    merge,
)
from declctl.objects.field_path import FieldPath, FieldPathError
from declctl.objects.frame import Codec, Frame, FrameCodec, FrameStatistics, HeldObject, ObjectCodec
from declctl.objects.key import ObjectKey, key_of, meta_namespace_key
from declctl.objects.options import ListOptions, WatchOptions
from declctl.objects.record import NO_ORDER, KubeObject, Layout, Record, newer_version, version_order
from declctl.objects.resource import PARTIAL_OBJECT_METADATA, GroupVersionKind, Resource
from declctl.objects.selector import FieldSelector, LabelSelector, Requirement
from declctl.objects.status import status_error
from declctl.objects.view import ObjectView, record_of

if TYPE_CHECKING:
    from declctl.objects.mutations import Difference, Mutation, MutationDetector
else:  # only caches that keep objects decoded are looked after
    __getattr__ = late(__name__, {"mutations": ("Difference", "Mutation", "MutationDetector")})

__all__ = [
    "NO_ORDER",
    "PARTIAL_OBJECT_METADATA",
    "Change",
    "ChangeReason",
    "ChangeType",
    "Codec",
    "Delta",
    "DeltaType",
    "Difference",
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
    "Mutation",
    "MutationDetector",
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
