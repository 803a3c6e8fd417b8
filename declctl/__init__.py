"""Kubernetes controllers that are declared, not programmed.

These are the public names: what a handler file, a plugin or a program that uses the machinery as a
library may import. Each is loaded when it is first asked for, so that `import declctl` costs nothing.
What is not listed here belongs to the rooms and may change.
"""

from importlib import import_module
from types import MappingProxyType

TYPE_CHECKING = False  # as in typing, whose import would take most of the time before `__main__` begins
if TYPE_CHECKING:
    from declctl.errors import (
        AlreadyExists,
        AlreadyOwned,
        Conflict,
        CrossNamespaceOwner,
        DeclctlError,
        InvalidObject,
        InvalidWrite,
        ManifestErrors,
        NoStatusSubresource,
        NotLeader,
        NotSynced,
        StatusError,
        Terminal,
        TimedOut,
        UndeclaredWrite,
        UnknownIndex,
        UnknownNamespace,
        UsageError,
        WatchEnded,
        WriteError,
    )
    from declctl.hooks import hookimpl, hookspec
    from declctl.informer import (
        CacheSnapshot,
        DeletedFinalStateUnknown,
        FakeControllerSource,
        FilteringResourceEventHandler,
        Lister,
        ReflectorOptions,
        Registration,
        ResourceEventHandler,
        ResourceEventHandlerFuncs,
        Selection,
        SharedIndexInformer,
        field_index,
        wait_for_cache_sync,
    )
    from declctl.informer.watches import (
        InformerWatcher,
        ObjectEvent,
        RetryWatcher,
        informer_watcher,
        until,
        until_with_sync,
    )
    from declctl.objects import (
        Cause,
        Change,
        ChangeReason,
        ChangeType,
        Condition,
        ObjectKey,
        ObjectView,
        Request,
        Requeue,
    )
    from declctl.objects.custom_resource import Column, CustomResource, custom_resource
    from declctl.objects.differences import Difference, diff
    from declctl.objects.schema_marks import (
        Duration,
        immutable,
        list_map,
        parse_duration,
        preserve_unknown_fields,
        rule,
        rules,
    )
    from declctl.objects.typed import Object, field
    from declctl.runtime.handling.context import Context
    from declctl.runtime.library import SharedInformerFactory
    from declctl.transport import Client
    from declctl.workqueue import (
        BucketRateLimiter,
        ItemExponentialFailureRateLimiter,
        ItemFastSlowRateLimiter,
        MaxOfRateLimiter,
        Priority,
        RateLimiter,
        RateLimitingQueue,
        WithMaxWaitRateLimiter,
        WorkQueue,
        default_rate_limiter,
        run_workers,
    )
    from declctl.writes import AppliedSet, Written

    __version__: str

_ROOMS = MappingProxyType(
    {
        "errors": (
            "AlreadyExists",
            "AlreadyOwned",
            "Conflict",
            "CrossNamespaceOwner",
            "DeclctlError",
            "InvalidObject",
            "InvalidWrite",
            "ManifestErrors",
            "NoStatusSubresource",
            "NotLeader",
            "NotSynced",
            "StatusError",
            "Terminal",
            "TimedOut",
            "UndeclaredWrite",
            "UnknownIndex",
            "UnknownNamespace",
            "UsageError",
            "WatchEnded",
            "WriteError",
        ),
        "hooks": ("hookimpl", "hookspec"),
        "informer": (
            "CacheSnapshot",
            "DeletedFinalStateUnknown",
            "FakeControllerSource",
            "FilteringResourceEventHandler",
            "Lister",
            "ReflectorOptions",
            "Registration",
            "ResourceEventHandler",
            "ResourceEventHandlerFuncs",
            "Selection",
            "SharedIndexInformer",
            "field_index",
            "wait_for_cache_sync",
        ),
        "informer.watches": (
            "InformerWatcher",
            "ObjectEvent",
            "RetryWatcher",
            "informer_watcher",
            "until",
            "until_with_sync",
        ),
        "objects": (
            "Cause",
            "Change",
            "ChangeReason",
            "ChangeType",
            "Condition",
            "ObjectKey",
            "ObjectView",
            "Request",
            "Requeue",
        ),
        "objects.custom_resource": ("Column", "CustomResource", "custom_resource"),
        "objects.schema_marks": (
            "Duration",
            "immutable",
            "list_map",
            "parse_duration",
            "preserve_unknown_fields",
            "rule",
            "rules",
        ),
        "objects.typed": ("Object", "field"),
        "objects.differences": ("Difference", "diff"),
        "runtime.handling.context": ("Context",),
        "runtime.library": ("SharedInformerFactory",),
        "transport": ("Client",),
        "workqueue": (
            "BucketRateLimiter",
            "ItemExponentialFailureRateLimiter",
            "ItemFastSlowRateLimiter",
            "MaxOfRateLimiter",
            "Priority",
            "RateLimiter",
            "RateLimitingQueue",
            "WithMaxWaitRateLimiter",
            "WorkQueue",
            "default_rate_limiter",
            "run_workers",
        ),
        "writes": ("AppliedSet", "Written"),
    }
)

__all__ = [
    "AlreadyExists",
    "AlreadyOwned",
    "AppliedSet",
    "BucketRateLimiter",
    "CacheSnapshot",
    "Cause",
    "Change",
    "ChangeReason",
    "ChangeType",
    "Client",
    "Column",
    "Condition",
    "Conflict",
    "Context",
    "CrossNamespaceOwner",
    "CustomResource",
    "DeclctlError",
    "DeletedFinalStateUnknown",
    "Difference",
    "Duration",
    "FakeControllerSource",
    "FilteringResourceEventHandler",
    "InformerWatcher",
    "InvalidObject",
    "InvalidWrite",
    "ItemExponentialFailureRateLimiter",
    "ItemFastSlowRateLimiter",
    "Lister",
    "ManifestErrors",
    "MaxOfRateLimiter",
    "NoStatusSubresource",
    "NotLeader",
    "NotSynced",
    "Object",
    "ObjectEvent",
    "ObjectKey",
    "ObjectView",
    "Priority",
    "RateLimiter",
    "RateLimitingQueue",
    "ReflectorOptions",
    "Registration",
    "Request",
    "Requeue",
    "ResourceEventHandler",
    "ResourceEventHandlerFuncs",
    "RetryWatcher",
    "Selection",
    "SharedIndexInformer",
    "SharedInformerFactory",
    "StatusError",
    "Terminal",
    "TimedOut",
    "UndeclaredWrite",
    "UnknownIndex",
    "UnknownNamespace",
    "UsageError",
    "WatchEnded",
    "WithMaxWaitRateLimiter",
    "WorkQueue",
    "WriteError",
    "Written",
    "__version__",
    "custom_resource",
    "default_rate_limiter",
    "diff",
    "field",
    "field_index",
    "hookimpl",
    "hookspec",
    "immutable",
    "informer_watcher",
    "list_map",
    "parse_duration",
    "preserve_unknown_fields",
    "rule",
    "rules",
    "run_workers",
    "until",
    "until_with_sync",
    "wait_for_cache_sync",
]


def __getattr__(name: str) -> object:
    """Load a public name (PEP 562); AttributeError for any other."""
    if name == "__version__":
        value: object = _version()
    else:
        room = next((room for room, names in _ROOMS.items() if name in names), None)
        if room is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{room}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib import metadata  # late: it costs more than everything else here

    try:
        return metadata.version("declctl")
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "0"
