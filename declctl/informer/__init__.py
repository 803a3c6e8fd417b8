"""The line: client-go's tools/cache, in order of flow.

source → `reflector` → `queues` → `stores` → `processor` → `listener`, joined by `informer`, shared
by `factory`. What knows HTTP, manifests or plugins does not belong here.
"""

from typing import TYPE_CHECKING

from declctl.informer.applying import RelistDifferences
from declctl.informer.controller import Config, Controller, ControllerStatistics
from declctl.informer.event_handlers import (
    DeletedFinalStateUnknown,
    FilteringResourceEventHandler,
    ResourceEventHandler,
    ResourceEventHandlerFuncs,
    name_for_handler,
)
from declctl.informer.factory import SharedInformerFactory
from declctl.informer.factory_options import (
    FactoryOptions,
    InformerOptions,
    Selection,
    SourceProvider,
    TweakSelection,
)
from declctl.informer.informer import SharedIndexInformer
from declctl.informer.informer_statistics import InformerStatistics
from declctl.informer.listener import Listener, ListenerStatistics, ProcessorListener
from declctl.informer.processor import ProcessorStatistics, Registration, SharedProcessor
from declctl.informer.queues import DeltaFIFO, Queue, QueueClosed, RealFIFO, Transformer, key_of_entry
from declctl.informer.reflector import (
    Backoff,
    BackoffFactory,
    ExponentialBackoff,
    ListPager,
    Reflector,
    ReflectorOptions,
    ReflectorStatistics,
    ReflectorStore,
    WholeList,
)
from declctl.informer.reprojecting import Reprojection
from declctl.informer.source import Source, WatchListSemantics, supports_watch_list
from declctl.informer.stores import (
    NAMESPACE_INDEX,
    FieldIndex,
    FunctionIndex,
    IndexBuild,
    Indexer,
    IndexFunc,
    Lister,
    ThreadSafeStore,
    field_index,
    function_index,
    namespace_index,
)
from declctl.informer.wait import SyncResult, Waitable, wait_for, wait_for_cache_sync
from declctl.kit.exports import late

if TYPE_CHECKING:
    from declctl.informer.exclusive import new_informer
    from declctl.informer.fake_source import FakeControllerSource
    from declctl.informer.list_watch import FilteredListWatch, ListWatch, TweakListOptions
    from declctl.informer.queues import FIFO, Heap
    from declctl.informer.stores import ExpirationCache, MutationCache, UndeltaStore
    from declctl.informer.synctrack import AsyncTracker, Lazy, SingleFileTracker
else:  # what few programs use: 8 ms, or 20 without compiled files
    __getattr__ = late(
        __name__,
        {
            "exclusive": ("new_informer",),
            "fake_source": ("FakeControllerSource",),
            "list_watch": ("FilteredListWatch", "ListWatch", "TweakListOptions"),
            "queues": ("FIFO", "Heap"),
            "stores": ("ExpirationCache", "MutationCache", "UndeltaStore"),
            "synctrack": ("AsyncTracker", "Lazy", "SingleFileTracker"),
        },
    )

__all__ = [
    "FIFO",
    "NAMESPACE_INDEX",
    "AsyncTracker",
    "Backoff",
    "BackoffFactory",
    "Config",
    "Controller",
    "ControllerStatistics",
    "DeletedFinalStateUnknown",
    "DeltaFIFO",
    "ExpirationCache",
    "ExponentialBackoff",
    "FactoryOptions",
    "FakeControllerSource",
    "FieldIndex",
    "FilteredListWatch",
    "FilteringResourceEventHandler",
    "FunctionIndex",
    "Heap",
    "IndexBuild",
    "IndexFunc",
    "Indexer",
    "InformerOptions",
    "InformerStatistics",
    "Lazy",
    "ListPager",
    "ListWatch",
    "Listener",
    "ListenerStatistics",
    "Lister",
    "MutationCache",
    "ProcessorListener",
    "ProcessorStatistics",
    "Queue",
    "QueueClosed",
    "RealFIFO",
    "Reflector",
    "ReflectorOptions",
    "ReflectorStatistics",
    "ReflectorStore",
    "Registration",
    "RelistDifferences",
    "Reprojection",
    "ResourceEventHandler",
    "ResourceEventHandlerFuncs",
    "Selection",
    "SharedIndexInformer",
    "SharedInformerFactory",
    "SharedProcessor",
    "SingleFileTracker",
    "Source",
    "SourceProvider",
    "SyncResult",
    "ThreadSafeStore",
    "Transformer",
    "TweakListOptions",
    "TweakSelection",
    "UndeltaStore",
    "Waitable",
    "WatchListSemantics",
    "WholeList",
    "field_index",
    "function_index",
    "key_of_entry",
    "name_for_handler",
    "namespace_index",
    "new_informer",
    "supports_watch_list",
    "wait_for",
    "wait_for_cache_sync",
]
