"""kr8s: its watch, with a dict and an index by hand. A watch without a version begins with all objects."""

import asyncio
import threading
from collections import defaultdict
from importlib.metadata import version
from typing import Any

import kr8s.asyncio
from protocol import KINDS, SENT, Burner, Counter, arguments, say, serve, value_at

options = arguments(__doc__, listeners=("none", "sync", "async"))
counter = Counter(options.objects, lambda obj: obj.raw["metadata"]["annotations"][SENT])
burner = Burner()
objects: dict[str, Any] = {}
by_value: defaultdict[str, dict[str, Any]] = defaultdict(dict)


async def main() -> None:
    """Watches, and starts a new watch whenever one ends."""
    group, _, api_version = KINDS[options.kind].api_version.rpartition("/")
    resource = f"{options.kind}.{group}/{api_version}" if group else options.kind
    api = await kr8s.asyncio.api(kubeconfig=options.kubeconfig)
    synced = False
    while True:
        async for event, obj in api.watch(resource, namespace=kr8s.ALL):
            change = keep(event, obj)
            if not synced and len(objects) == options.objects:
                synced = True
                say("synced", objects=len(objects), version=f"kr8s {version('kr8s')}")
            if change and options.listener == "sync":
                listener(change, obj)
            elif change and options.listener == "async":
                await listener_async(change, obj)


def keep(event: str, obj: Any) -> str:
    """Updates the cache. Returns the event for the listener; an empty text if nothing has changed."""
    key = f"{obj.namespace}/{obj.name}"
    before = objects.get(key)
    if before is not None:
        del by_value[value_at(KINDS[options.kind].field_path, before.raw)][key]
    if event == "DELETED":
        objects.pop(key, None)
        return event
    objects[key] = by_value[value_at(KINDS[options.kind].field_path, obj.raw)][key] = obj
    if before is None:
        return "ADDED"
    return (
        ""
        if before.raw["metadata"]["resourceVersion"] == obj.raw["metadata"]["resourceVersion"]
        else "MODIFIED"
    )


def listener(event: str, obj: Any) -> None:
    """Counts, and starts the burner in a thread, as it would block the loop."""
    if event == "ADDED":
        counter.added()
    elif event == "MODIFIED":
        counter.changed(obj)
        if options.burn:
            burner.burn_in_thread()


async def listener_async(event: str, obj: Any) -> None:
    """A listener that counts, as a coroutine."""
    listener(event, obj)


def read() -> int:
    """The number of objects under the first value."""
    return len(list(by_value[min(by_value)].values()))


threading.Thread(target=serve, kwargs={"counter": counter, "read": read}, daemon=True).start()
asyncio.run(main())
