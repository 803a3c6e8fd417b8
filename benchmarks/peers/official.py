"""The official client's `SharedInformer`: typed models in its dict cache, one index kept by hand."""

import sys
import threading
from collections import defaultdict
from importlib.metadata import version
from typing import Any

from kubernetes import client, config
from kubernetes.informer import ADDED, DELETED, MODIFIED, SharedInformer
from protocol import SENT, Burner, Counter, arguments, say, serve


def lists(kind: str) -> Any:
    """The method that lists and watches a kind. The informer can't use the objects of CustomObjectsApi."""
    core = client.CoreV1Api()
    methods = {
        "pods": core.list_pod_for_all_namespaces,
        "configmaps": core.list_config_map_for_all_namespaces,
        "secrets": core.list_secret_for_all_namespaces,
        "leases": client.CoordinationV1Api().list_lease_for_all_namespaces,
    }
    if kind not in methods:
        sys.exit("the official informer has no way to watch custom resources")
    return methods[kind]


class Index:
    """Objects by one field, updated by handlers: this informer has no indexes, and passes no old object."""

    def __init__(self, kind: str) -> None:
        self.by_value: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self.value_of: dict[str, str] = {}
        self._pods = kind == "pods"

    def put(self, obj: Any) -> None:
        """Stores an object that was added or has changed."""
        key = f"{obj.metadata.namespace}/{obj.metadata.name}"
        value = (obj.spec.node_name if self._pods else obj.metadata.namespace) or ""
        before = self.value_of.get(key)
        if before is not None and before != value:
            del self.by_value[before][key]
        self.by_value[value][key] = obj
        self.value_of[key] = value

    def drop(self, obj: Any) -> None:
        """Removes a deleted object."""
        key = f"{obj.metadata.namespace}/{obj.metadata.name}"
        del self.by_value[self.value_of.pop(key)][key]


def main() -> None:
    """Runs the informer until the end of standard input."""
    options = arguments(__doc__)
    config.load_kube_config(options.kubeconfig)
    informer = SharedInformer(lists(options.kind))
    index = Index(options.kind)
    counter = Counter(options.objects, lambda obj: obj.metadata.annotations[SENT])
    synced = threading.Event()

    def added(obj: Any) -> None:
        index.put(obj)
        if len(index.value_of) == options.objects and not synced.is_set():
            say("synced", objects=len(index.value_of), version=f"kubernetes {version('kubernetes')}")
            synced.set()

    informer.add_event_handler(ADDED, added)
    informer.add_event_handler(MODIFIED, index.put)
    informer.add_event_handler(DELETED, index.drop)
    if options.listener == "sync":
        informer.add_event_handler(ADDED, lambda _: counter.added())
        informer.add_event_handler(MODIFIED, counter.changed)
    if options.burn:
        informer.add_event_handler(MODIFIED, Burner().burn_in_thread)
    informer.start()
    synced.wait()
    value = min(index.by_value)
    serve(counter=counter, read=lambda: len(list(index.by_value[value].values())))


main()
