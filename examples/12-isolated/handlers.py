"""One handler computes for a while, in processes of its own; the other one sees each change at once."""

import hashlib


def score(change, obj, ctx):
    """Compute for half a second, on as many processors as `queue.concurrency` says."""
    digest = obj.uid.encode()
    for _ in range(500_000):
        digest = hashlib.sha256(digest).digest()
    calls = ctx.memo["calls"] = ctx.memo.get("calls", 0) + 1
    print(f"scored {change.key}, call {calls}", flush=True)


def watch(change):
    """Say what has changed, in a thread of the main process."""
    print(f"{change.type} {change.key}")
