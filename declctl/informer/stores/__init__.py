"""Stores: records by key and by index, and the views that readers have of them."""

from typing import TYPE_CHECKING

from declctl.informer.stores.building import IndexBuild
from declctl.informer.stores.indexer import Indexer
from declctl.informer.stores.indices import (
    NAMESPACE_INDEX,
    FieldIndex,
    FunctionIndex,
    IndexFunc,
    field_index,
    function_index,
    namespace_index,
)
from declctl.informer.stores.lister import Lister, Views
from declctl.informer.stores.thread_safe_store import IndexedRecords, ThreadSafeStore
from declctl.kit.exports import late

if TYPE_CHECKING:
    from declctl.informer.stores.expiration_cache import (
        ExpirationCache,
        ExpirationPolicy,
        FakeExpirationPolicy,
        TimestampedEntry,
        TTLPolicy,
    )
    from declctl.informer.stores.mutation_cache import MutationCache
    from declctl.informer.stores.undelta_store import UndeltaStore
else:  # no informer uses these
    __getattr__ = late(
        __name__,
        {
            "expiration_cache": (
                "ExpirationCache",
                "ExpirationPolicy",
                "FakeExpirationPolicy",
                "TimestampedEntry",
                "TTLPolicy",
            ),
            "mutation_cache": ("MutationCache",),
            "undelta_store": ("UndeltaStore",),
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
