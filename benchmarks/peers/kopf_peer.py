"""kopf: `@kopf.index` with the whole object, since kopf has no other cache, and `@kopf.on.event`."""

import os
import threading
from importlib.metadata import version
from typing import Any

import kopf
from protocol import KINDS, SENT, Burner, Counter, arguments, say, serve, value_at

asked = arguments(__doc__, listeners=("none", "sync", "async"))
os.environ["KUBECONFIG"] = asked.kubeconfig
group, _, api_version = KINDS[asked.kind].api_version.rpartition("/")
RESOURCE = {"group": group, "version": api_version, "plural": asked.kind}
PATH = KINDS[asked.kind].field_path
counter = Counter(asked.objects, lambda body: body["metadata"]["annotations"][SENT])
by_value: dict[str, kopf.Index[str, Any]] = {}
seen: set[str] = set()


@kopf.on.startup()
async def startup(by_field: Any, **_: Any) -> None:
    """Keep the index at hand."""
    by_value["index"] = by_field


@kopf.index(**RESOURCE, id="by_field")
async def by_field(body: kopf.Body, uid: str, **_: Any) -> dict[str, Any]:
    """Async, since a sync one would cost a hop to a thread for every object."""
    if len(seen) < asked.objects:
        seen.add(uid)
        if len(seen) == asked.objects:
            say("synced", objects=len(seen), version=f"kopf {version('kopf')}")
    return {value_at(PATH, dict(body)): body}


def count(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002 - kopf's name
    """Count: the first notifications are those without a type."""
    if type is None:
        counter.added()
    elif type == "MODIFIED":
        counter.changed(body)


async def count_async(**all_of_it: Any) -> None:
    """The same on the loop."""
    count(**all_of_it)


if asked.listener != "none":
    kopf.on.event(**RESOURCE, id="count")(count if asked.listener == "sync" else count_async)
if asked.burn:
    burner = Burner()

    @kopf.on.event(**RESOURCE, id="burn")
    def burn(type: str | None, **_: Any) -> None:  # noqa: A002 - kopf's name
        """From the first change on."""
        if type is not None:
            burner.burn()


def read() -> int:
    """The objects under the first value."""
    index = by_value["index"]
    return len(list(index[min(index)]))


threading.Thread(target=serve, kwargs={"counter": counter, "read": read}, daemon=True).start()
kopf.run(standalone=True, clusterwide=True)
