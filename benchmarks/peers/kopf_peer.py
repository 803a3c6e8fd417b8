"""kopf: `@kopf.on.event` into a dict and an index, by hand.

A reconciler counts states, and writes the status through `patch`. By default it has `@kopf.on.event`, which
costs least: kopf calls it once for each event, and never again. With `--mode update` it has `@kopf.on.create`
and `@kopf.on.update`, which kopf retries until they succeed, as the other peers do. kopf then stores the last
state of each object in an annotation, so each call would write. Here that state stays in memory.

It does not use `@kopf.index`, as its time grows with the square of the number of objects (kopf 1.45: 6 s for
1,000): until all objects are indexed, each indexed object wakes all tasks that wait.
"""

import os
import threading
import time
from collections import defaultdict
from importlib.metadata import version
from typing import Any

import kopf
from protocol import KINDS, SENT, Burner, Counter, Reconciliations, arguments, say, serve, value_at

RECONCILERS = ("reconcile", "reconcile-status")
options = arguments(__doc__, listeners=("none", "sync", "async", *RECONCILERS), modes=("event", "update"))
os.environ["KUBECONFIG"] = options.kubeconfig
group, _, api_version = KINDS[options.kind].api_version.rpartition("/")
RESOURCE = {"group": group, "version": api_version, "plural": options.kind}
PATH = KINDS[options.kind].field_path
counter = Counter(options.objects, lambda body: body["metadata"]["annotations"][SENT])
objects: dict[str, Any] = {}
by_value: defaultdict[str, dict[str, Any]] = defaultdict(dict)


@kopf.on.event(**RESOURCE, id="keep")
async def keep(type: str | None, event: Any, **_: Any) -> None:  # noqa: A002 - kopf's name
    """Updates the cache. Async, as a sync handler would need a call to a thread for every object."""
    obj = event["object"]
    key = f"{obj['metadata'].get('namespace')}/{obj['metadata']['name']}"
    before = objects.get(key)
    if before is not None:
        del by_value[value_at(PATH, before)][key]
    if type == "DELETED":
        objects.pop(key, None)
        return
    objects[key] = by_value[value_at(PATH, obj)][key] = obj
    if before is None and len(objects) == options.objects:
        say("synced", objects=len(objects), version=f"kopf {version('kopf')}")


def count(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002 - kopf's name
    """Counts the notifications. Those without a type are the first ones."""
    if type is None:
        counter.added()
    elif type == "MODIFIED":
        counter.changed(body)


async def count_async(**all_of_it: Any) -> None:
    """A handler that counts, on the loop."""
    count(**all_of_it)


reconciliations = Reconciliations(counter)


async def reconcile(body: kopf.Body, name: str, patch: kopf.Patch, **_: Any) -> None:
    """Counts a state once. kopf sends the patch after the call."""
    called, sent = time.time_ns(), body["metadata"]["annotations"][SENT]
    if reconciliations.knows(name, sent):
        return
    if options.listener == "reconcile-status" and body["status"]["seen"] != sent:
        patch.status["seen"] = sent
    reconciliations.count(name, body, sent, called)


class States(kopf.DiffBaseStorage):
    """The last states of objects, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._essences: dict[str, Any] = {}

    def fetch(self, *, body: kopf.Body) -> Any:
        """The last state of an object; None for a new one."""
        return self._essences.get(body.metadata.uid)

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: Any) -> None:
        """Keeps the state, and writes nothing."""
        del patch
        self._essences[body.metadata.uid] = essence


if options.listener in RECONCILERS and options.mode == "update":
    kopf.on.create(**RESOURCE, id="reconcile")(reconcile)
    kopf.on.update(**RESOURCE, id="reconcile")(reconcile)

    @kopf.on.startup()
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        """Keeps the states in memory, and posts no Events."""
        settings.persistence.diffbase_storage = States()
        settings.posting.enabled = False

elif options.listener in RECONCILERS:
    kopf.on.event(**RESOURCE, id="reconcile")(reconcile)
elif options.listener != "none":
    kopf.on.event(**RESOURCE, id="count")(count if options.listener == "sync" else count_async)
if options.burn:
    burner = Burner()

    @kopf.on.event(**RESOURCE, id="burn")
    def burn(type: str | None, **_: Any) -> None:  # noqa: A002 - kopf's name
        """Keeps a core busy from the first change on, in a thread of kopf's pool."""
        if type is not None:
            burner.burn()


def read() -> int:
    """The number of objects under the first value."""
    return len(list(by_value[min(by_value)].values()))


threading.Thread(target=serve, kwargs={"counter": counter, "read": read}, daemon=True).start()
kopf.run(standalone=True, clusterwide=True)
