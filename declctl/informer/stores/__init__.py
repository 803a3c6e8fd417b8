"""Stores: records by key and by index, and the views that readers have of them."""

from declctl.informer.stores.building import IndexBuild
from declctl.informer.stores.indexer import Indexer
from declctl.informer.stores.indices import (
    FieldIndex,
    FunctionIndex,
    IndexFunc,
    field_index,
    function_index,
)
from declctl.informer.stores.lister import Lister
from declctl.informer.stores.thread_safe_store import IndexedRecords, ThreadSafeStore

__all__ = [
    "FieldIndex",
    "FunctionIndex",
    "IndexBuild",
    "IndexFunc",
    "IndexedRecords",
    "Indexer",
    "Lister",
    "ThreadSafeStore",
    "field_index",
    "function_index",
]
