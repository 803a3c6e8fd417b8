"""Synthetic pods of about 4 KB, all different, shaped as a cluster's are."""

import random
import uuid
from collections.abc import Iterator


def pods(count: int, *, seed: int = 1) -> Iterator[dict]:
    """`count` pods in 20 namespaces, on 200 nodes, of 300 deployments."""
    chance = random.Random(seed)
    for number in range(count):
        yield _pod(number, chance)


def _pod(number: int, chance: random.Random) -> dict:
    app = f"app-{number % 300}"
    digest = f"{chance.getrandbits(40):010x}"
    containers = [_container(position, chance) for position in range(2)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{app}-{digest}-{number}",
            "namespace": f"team-{number % 20}",
            "uid": str(uuid.UUID(int=chance.getrandbits(128))),
            "labels": {"app": app, "pod-template-hash": digest, "tier": ("web", "work")[number % 2]},
            "annotations": {"checksum/config": f"{chance.getrandbits(256):064x}"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{app}-{digest}",
                    "uid": str(uuid.UUID(int=chance.getrandbits(128))),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [_managed("kube-controller-manager"), _managed("kubelet")],
        },
        "spec": {
            "nodeName": f"node-{chance.randrange(200)}",
            "serviceAccountName": "default",
            "restartPolicy": "Always",
            "containers": containers,
            "volumes": [{"name": f"v{v}", "configMap": {"name": f"{app}-{v}"}} for v in range(3)],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
        },
        "status": {
            "phase": "Running",
            "podIP": f"10.{chance.randrange(250)}.{chance.randrange(250)}.{chance.randrange(250)}",
            "startTime": "2026-01-01T00:00:00Z",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "ready": True,
                    "restartCount": chance.randrange(3),
                    "image": container["image"],
                    "imageID": f"registry/app@sha256:{chance.getrandbits(256):064x}",
                    "containerID": f"containerd://{chance.getrandbits(256):064x}",
                }
                for container in containers
            ],
        },
    }


def _container(position: int, chance: random.Random) -> dict:
    return {
        "name": f"c{position}",
        "image": f"registry/app:{chance.randrange(50)}",
        "env": [{"name": f"VARIABLE_{e}", "value": f"{chance.getrandbits(48):x}"} for e in range(8)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [{"name": f"v{v}", "mountPath": f"/etc/v{v}", "readOnly": True} for v in range(3)],
    }


def _managed(manager: str) -> dict:
    fields = {f"f:field-{number}": {"f:inner": {}} for number in range(12)}
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": fields, "f:spec": fields},
    }
