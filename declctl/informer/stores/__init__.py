"""Stores: records by key and by index, and the views that readers have of them."""

from declctl.informer.stores.indexer import IndexBuild, Indexer, ThreadSafeStore
from declctl.informer.stores.indices import (
    FieldIndex,
    FunctionIndex,
    IndexFunc,
    field_index,
    function_index,
)
from declctl.informer.stores.lister import Lister

__all__ = [
    "FieldIndex",
    "FunctionIndex",
    "IndexBuild",
    "IndexFunc",
    "Indexer",
    "Lister",
    "ThreadSafeStore",
    "field_index",
    "function_index",
]
