"""Watches for programs: events one by one, without a handler (client-go's tools/watch).

`RetryWatcher` is a watch that survives its connection, `InformerWatcher` an informer that is read
as a watch, and the `until` functions wait for something to happen.
"""

from declctl.informer.watches.informer_watcher import InformerWatcher, informer_watcher
from declctl.informer.watches.retry_watcher import ObjectEvent, RetryWatcher
from declctl.informer.watches.until import Condition, until, until_with_sync, until_without_retry

__all__ = [
    "Condition",
    "InformerWatcher",
    "ObjectEvent",
    "RetryWatcher",
    "informer_watcher",
    "until",
    "until_with_sync",
    "until_without_retry",
]
