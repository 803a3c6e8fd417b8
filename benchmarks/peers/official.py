"""The official informer with one handler: `official.py KUBECONFIG COUNT DONE-FILE`; it stays."""

import sys
import threading
from pathlib import Path

from kubernetes import client, config
from kubernetes.informer import SharedInformer

config.load_kube_config(sys.argv[1])
count, done = int(sys.argv[2]), threading.Event()
seen: list[int] = [0]
by_node: dict[str, list[str]] = {}


def added(pod: object) -> None:
    """Count, and keep the one index by hand: this informer has none."""
    by_node.setdefault(pod.spec.node_name, []).append(pod.metadata.name)
    seen[0] += 1
    if seen[0] == count:
        done.set()


informer = SharedInformer(client.CoreV1Api().list_pod_for_all_namespaces)
informer.add_event_handler("ADDED", added)
informer.start()
done.wait()
Path(sys.argv[3]).write_text("done")
threading.Event().wait()
