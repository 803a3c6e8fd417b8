"""Stores: records by key and by index, and the views that readers have of them."""

from typing import TYPE_CHECKING

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
from declctl.informer.stores.lister import Lister, Views
from declctl.informer.stores.thread_safe_store import IndexedRecords, Indexer, ThreadSafeStore
from declctl.kit.exports import late

if TYPE_CHECKING:
    from declctl.informer.stores.caches import (
        ExpirationCache,
        ExpirationPolicy,
        FakeExpirationPolicy,
        MutationCache,
        TimestampedEntry,
        TTLPolicy,
        UndeltaStore,
    )
else:  # no informer uses these
    __getattr__ = late(
        __name__,
        {
            "caches": (
                "ExpirationCache",
                "ExpirationPolicy",
                "FakeExpirationPolicy",
                "MutationCache",
                "TimestampedEntry",
                "TTLPolicy",
                "UndeltaStore",
            ),
        },
    )

__all__ = [
    "NAMESPACE_INDEX",
    "ExpirationCache",
    "ExpirationPolicy",
    "FakeExpirationPolicy",
    "FieldIndex",
    "FunctionIndex",
    "IndexBuild",
    "IndexFunc",
    "IndexedRecords",
    "Indexer",
    "Lister",
    "MutationCache",
    "TTLPolicy",
    "ThreadSafeStore",
    "TimestampedEntry",
    "UndeltaStore",
    "Views",
    "field_index",
    "function_index",
    "namespace_index",
]
