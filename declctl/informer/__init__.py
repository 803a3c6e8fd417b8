"""The line: client-go's tools/cache, in order of flow.

source → `reflector` → `queues` → `stores` → `processor` → `listener`, joined by `informer`, shared
by `factory`. What knows HTTP, manifests or plugins does not belong here.
"""

from declctl.informer.factory import SharedInformerFactory, SourceProvider
from declctl.informer.informer import InformerStatistics, Registration, SharedIndexInformer
from declctl.informer.listener import (
    DeletedFinalStateUnknown,
    FilteringResourceEventHandler,
    Listener,
    ProcessorListener,
    ResourceEventHandler,
    ResourceEventHandlerFuncs,
)
from declctl.informer.processor import SharedProcessor
from declctl.informer.queues import DeltaFIFO, RealFIFO
from declctl.informer.reflector import Reflector, ReflectorStatistics
from declctl.informer.source import Source
from declctl.informer.stores import (
    FieldIndex,
    FunctionIndex,
    IndexBuild,
    Indexer,
    IndexFunc,
    Lister,
    ThreadSafeStore,
    field_index,
    function_index,
)

__all__ = [
    "DeletedFinalStateUnknown",
    "DeltaFIFO",
    "FieldIndex",
    "FilteringResourceEventHandler",
    "FunctionIndex",
    "IndexBuild",
    "IndexFunc",
    "Indexer",
    "InformerStatistics",
    "Listener",
    "Lister",
    "ProcessorListener",
    "RealFIFO",
    "Reflector",
    "ReflectorStatistics",
    "Registration",
    "ResourceEventHandler",
    "ResourceEventHandlerFuncs",
    "SharedIndexInformer",
    "SharedInformerFactory",
    "SharedProcessor",
    "Source",
    "SourceProvider",
    "ThreadSafeStore",
    "field_index",
    "function_index",
]
