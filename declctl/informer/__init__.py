"""Informers, as client-go's tools/cache.

A change goes through these modules in order: `source`, `reflector`, `queues`, `applier`, `stores`,
`processor`, `listener`. `informer` joins them, and `factory` shares informers. No module here knows HTTP,
manifests or plugins.
"""

from declctl.errors import QueueClosed
from declctl.informer.applier import RelistDifferences, Reprojection
from declctl.informer.controller import Config, Controller, ControllerStatistics, new_informer
from declctl.informer.event_handlers import (
    DeletedFinalStateUnknown,
    FilteringResourceEventHandler,
    ResourceEventHandler,
    ResourceEventHandlerFuncs,
    name_for_handler,
)
from declctl.informer.factory import (
    FactoryOptions,
    InformerOptions,
    Selection,
    SharedInformerFactory,
    TweakSelection,
)
from declctl.informer.fake_source import FakeControllerSource
from declctl.informer.informer import InformerStatistics, SharedIndexInformer
from declctl.informer.listener import Listener, ListenerStatistics, ProcessorListener
from declctl.informer.processor import ProcessorStatistics, Registration, SharedProcessor
from declctl.informer.queues.delta_fifo import FIFO, DeltaFIFO, Heap
from declctl.informer.queues.real_fifo import Queue, RealFIFO, Transformer, key_of_entry
from declctl.informer.reflector.faults import BackoffFactory, BackoffManager, ExponentialBackoff
from declctl.informer.reflector.lists import ListPager, WholeList
from declctl.informer.reflector.reflector import Reflector, ReflectorOptions, ReflectorStore
from declctl.informer.reflector.statistics import ReflectorStatistics
from declctl.informer.source import (
    FilteredListWatch,
    ListWatch,
    Source,
    SourceProvider,
    TweakListOptions,
    WatchListSemantics,
    supports_watch_list,
)
from declctl.informer.stores.caches import ExpirationCache, MutationCache, UndeltaStore
from declctl.informer.stores.indices import (
    NAMESPACE_INDEX,
    FieldIndex,
    FunctionIndex,
    IndexBuild,
    IndexFunc,
    field_index,
    function_index,
    namespace_index,
)
from declctl.informer.stores.lister import CacheSnapshot, Lister, snapshots_of
from declctl.informer.stores.thread_safe_store import Indexer, ThreadSafeStore
from declctl.informer.wait import (
    AsyncTracker,
    Lazy,
    SingleFileTracker,
    SyncResult,
    Waitable,
    wait_for,
    wait_for_cache_sync,
)

__all__ = [
    "FIFO",
    "NAMESPACE_INDEX",
    "AsyncTracker",
    "BackoffFactory",
    "BackoffManager",
    "CacheSnapshot",
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
    "snapshots_of",
    "supports_watch_list",
    "wait_for",
    "wait_for_cache_sync",
]
