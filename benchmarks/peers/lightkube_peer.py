"""lightkube: list in pages and watch, with a dict and an index by hand; typed structs."""

import threading
from collections import defaultdict
from importlib.metadata import version
from typing import Any

from lightkube import ApiError, Client, KubeConfig
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Pod, Secret
from protocol import SENT, Burner, Counter, arguments, say, serve

PAGE = 500
options = arguments(__doc__)
counter = Counter(options.objects, lambda obj: obj.metadata.annotations[SENT])
burner = Burner()
objects: dict[str, Any] = {}
by_value: defaultdict[str, dict[str, Any]] = defaultdict(dict)
Custom = create_namespaced_resource("bench.declctl.dev", "v1", "Custom", "customs")
RESOURCES = {"pods": Pod, "configmaps": ConfigMap, "secrets": Secret, "leases": Lease, "customs": Custom}


def main() -> None:
    """Lists and watches, and lists again when the version is too old."""
    client = Client(config=KubeConfig.from_file(options.kubeconfig))
    resource = RESOURCES[options.kind]
    synced = False
    while True:
        listed = client.list(resource, namespace="*", chunk_size=PAGE)
        gone = set(objects)
        for obj in listed:
            gone.discard(f"{obj.metadata.namespace}/{obj.metadata.name}")
            put(obj)
        for key in gone:
            drop(objects[key])
        if not synced:
            synced = True
            say("synced", objects=len(objects), version=f"lightkube {version('lightkube')}")
            threading.Thread(target=serve, kwargs={"counter": counter, "read": read}, daemon=True).start()
        try:
            for event, obj in client.watch(resource, namespace="*", resource_version=listed.resourceVersion):
                (drop if event == "DELETED" else put)(obj)
        except ApiError as error:
            if error.status.code != 410:
                raise


def put(obj: Any) -> None:
    """Stores an object, and notifies the listener if it is new or has changed."""
    key = f"{obj.metadata.namespace}/{obj.metadata.name}"
    before = objects.get(key)
    if before is not None:
        del by_value[value(before)][key]
    objects[key] = by_value[value(obj)][key] = obj
    if options.listener == "none":
        return
    if before is None:
        counter.added()
    elif before.metadata.resourceVersion != obj.metadata.resourceVersion:
        counter.changed(obj)
        if options.burn:
            burner.burn_in_thread()


def drop(obj: Any) -> None:
    """Removes an object."""
    key = f"{obj.metadata.namespace}/{obj.metadata.name}"
    before = objects.pop(key, None)
    if before is not None:
        del by_value[value(before)][key]


def value(obj: Any) -> str:
    """The value of an object in the index."""
    return (obj.spec.nodeName if options.kind == "pods" else obj.metadata.namespace) or ""


def read() -> int:
    """The number of objects under the first value."""
    return len(list(by_value[min(by_value)].values()))


main()
