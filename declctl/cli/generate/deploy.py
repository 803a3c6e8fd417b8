"""`declctl generate deploy`: everything that runs a manifest in a cluster, for `kubectl apply --server-side`.

The pod meets the pod security standard *restricted*. Its template has a digest of the fields that take effect
at the next start, and of nothing else: an edit of a handler is a reload, and never a rollout.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from declctl import __version__
from declctl.cli.generate.alerts import alert_rule
from declctl.cli.generate.bundle import FOLDER, MANIFEST, bundle_volume
from declctl.cli.generate.objects import (
    Document,
    Place,
    Role,
    process_namespace,
    rendered,
    roles,
    service_account,
)
from declctl.cli.generate.rights import PlannedController
from declctl.cli.generate.volumes import (
    ALLOWED_DIGESTS,
    PLUGINS,
    Volume,
    VolumeOptions,
    files_without_volume,
    pod_volumes,
    token_variables,
)
from declctl.cli.terminal import block, line
from declctl.errors import UsageError
from declctl.kit.hosts import is_loopback
from declctl.manifest import Plan
from declctl.manifest.fields import set_fields
from declctl.manifest.model import ADMIN_AT_START
from declctl.manifest.values import Address
from declctl.runtime.ending import termination_seconds

_USER: Final = 65532  # of the image
_PORT: Final = 8081
_RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_SPREAD: Final = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
_DNS: Final = {"ports": [{"port": 53, "protocol": each} for each in ("UDP", "TCP")]}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_HEADER: Final = "# Made by `declctl generate deploy`, which overwrites it. Changes belong into an overlay.\n"
_KUSTOMIZATION: Final = "kustomization.yaml"


class DeployOptions(msgspec.Struct, frozen=True):
    """What the command line says about a deployment."""

    image: str | None = None
    plugin_image: str | None = None
    service_monitor: bool = False
    alerts: bool = False
    create_namespace: bool = False
    replicas: int | None = None  # None: as many as the manifest allows, and 2 at most
    variables: Mapping[str, str] = {}  # of the container
    egress: Sequence[Document] = ()  # of the NetworkPolicy; without any, the process may reach everything
    volumes: VolumeOptions = VolumeOptions()


def variables_of(texts: Iterable[str]) -> Mapping[str, str]:
    """The variables of `--env NAME=VALUE`. Raises UsageError for a text without a name, and for one twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or _VARIABLE.fullmatch(name) is None:
            raise UsageError(f"--env {text}: write NAME=VALUE, such as TZ=UTC.")
        if name in found:
            raise UsageError(f"--env names {name} twice.")
        found[name] = value
    return found


def egress_rules(texts: Iterable[str]) -> Sequence[Document]:
    """The rules of `--egress CIDR[:PORT]`, after one for DNS. Raises UsageError for another text."""
    found: list[Document] = []
    for text in texts:
        block, port = _block(text)
        rule: dict[str, Any] = {"to": [{"ipBlock": {"cidr": block}}]}
        found.append({**rule, "ports": [{"port": port}]} if port else rule)
    return [_DNS, *found] if found else []


def _block(text: str) -> tuple[str, int]:
    """The network and the port of a text; 0 for any port."""
    network, colon, port = text, "", ""
    for _ in range(2):  # an address of IPv6 has colons, too
        try:
            number = int(port) if colon else 0
            if not colon or 0 < number < 65536:
                return str(ip_network(network)), number
        except ValueError:
            pass
        network, colon, port = text.rpartition(":")
    raise UsageError(f"--egress {text}: write CIDR or CIDR:PORT, such as 10.96.0.1/32:443.")


def generate_deployment(
    planned: PlannedController, place: Place, options: DeployOptions, *, kustomize: str | None
) -> None:
    """Print the objects, or write them into the folder `kustomize`. Raises UsageError."""
    files = deployment_files(planned, place, options)
    if kustomize is None:
        block(rendered([each for documents in files.values() for each in documents]))
    else:
        _write(Path(kustomize), files, place)


def deployment_files(
    planned: PlannedController, place: Place, options: DeployOptions
) -> dict[str, list[Document | Role]]:
    """The objects of a deployment by the name of a file, in the order in which they are applied.

    What the cluster has to have besides is told on stderr. Raises UsageError as `bundle_volume` and
    `pod_volumes` do, and for more processes than the manifest allows.
    """
    replicas = _replicas(planned.plan, options.replicas)
    bundle = bundle_volume(planned.inputs, place)
    volumes = pod_volumes(planned.plan, bundle, options.volumes, plugins=options.plugin_image is not None)
    given = _given_variables(planned.plan, options)
    # What an option gives is not looked for in the Secret: a container has each variable once.
    taken = {each["name"] for each in given}
    variables = [each for each in bundle.variables if each not in taken]
    _tell_secrets([*variables, *bundle.secret_files], place)
    _tell_files(files_without_volume(planned.plan, bundle, volumes))
    if planned.plan.plugins and not (options.image or options.plugin_image):
        names = ", ".join(each.name for each in planned.plan.plugins)
        line(
            f"declctl: the image {_image(options)} has no plugin, and the manifest needs {names}: make one "
            "with `declctl generate image`, and name it with --image, or name one with --plugin-image",
            err=True,
        )
    files: dict[str, list[Document | Role]] = {}
    if options.create_namespace:
        files["namespace.yaml"] = [process_namespace(place)]
    if planned.definitions:
        files["crds.yaml"] = list(planned.definitions)
    given += [
        {"name": each, "valueFrom": {"secretKeyRef": {"name": place.name, "key": each}}} for each in variables
    ]
    pod = _pod(planned.plan, place, given, volumes, options)
    files |= {
        "rbac.yaml": [service_account(place), *roles(place, planned.rights)],
        "bundle.yaml": list(bundle.config_maps),
        "deployment.yaml": [_deployment(planned.plan, place, pod, replicas)],
        "policies.yaml": [
            _network_policy(planned.plan, place, options),
            *_disruption_budget(planned.plan, place),
        ],
    }
    if options.service_monitor or options.alerts:
        monitoring: list[Document | Role] = []
        if options.service_monitor:
            monitoring += [_service(planned.plan, place), _service_monitor(planned.plan, place)]
        if options.alerts:
            monitoring.append(alert_rule(place))
        files["monitoring.yaml"] = monitoring
    return files


def _image(options: DeployOptions) -> str:
    return options.image or f"declctl:{__version__}"


def _given_variables(plan: Plan, options: DeployOptions) -> list[dict[str, Any]]:
    """The variables that options give to the container. Raises UsageError for one that two options give."""
    given = [
        *token_variables(plan, options.volumes),
        *({"name": name, "value": value} for name, value in options.variables.items()),
    ]
    if options.plugin_image is not None:
        given.append({"name": "PYTHONPATH", "value": PLUGINS})
    names = [each["name"] for each in given]
    if twice := [name for name in options.variables if names.count(name) > 1]:
        raise UsageError(f"--env names {', '.join(twice)}, which another option sets.")
    return given


def _tell_secrets(keys: Sequence[str], place: Place) -> None:
    if keys:
        line(
            f"declctl: the pod reads {', '.join(keys)} from the Secret {place.name}, which is not generated: "
            f"create it in the namespace {place.namespace} with these keys",
            err=True,
        )


def _tell_files(named: Sequence[str]) -> None:
    """Name the files that the process reads and that no generated volume has."""
    if named:
        line(
            f"declctl: the pod reads {', '.join(named)}, which no generated volume has: name Secrets with "
            "--tls-secret, --token-secret or --secret, or mount the files by an overlay of --kustomize",
            err=True,
        )


def restart_digest(plan: Plan) -> str:
    """A digest of what a running process can't take over: with another one, the pod is replaced."""
    elects = plan.leader_election
    election = msgspec.to_builtins({f.name: getattr(elects, f.name) for f in fields(elects) if f.compare})
    startup = [[str(step.entry_point), step.order] for step in plan.lifecycle.startup]
    admin = msgspec.to_builtins({name: getattr(plan.admin, name) for name in ADMIN_AT_START})
    metrics = plan.metrics.bind_address
    parts = [plan.name, str(plan.admin.bind_address), admin, election, startup, metrics and str(metrics)]
    # Others keep the digest that they have.
    parts += [plan.state.folder] if plan.state.folder else []
    parts += [msgspec.to_builtins(set_fields(plan.sharding))] if plan.sharding is not None else []
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def _admin(plan: Plan) -> tuple[int, list[str]]:
    """The port of the admin address, and the argument that opens it for probes if the manifest does not."""
    address = plan.admin.bind_address
    if address.port and not is_loopback(address.host):
        return address.port, []
    port = address.port or _PORT
    # Without a host, as a pod may have an address of IPv6 alone.
    return port, [f"--admin=:{port}"]


def _scraped(plan: Plan) -> tuple[str, int]:
    """The name of the container's port that Prometheus asks, and the port of the Service for it.

    A metrics address on loopback, or at any free port, is not reached from outside of the pod.
    """
    metrics = plan.metrics.bind_address
    port, arguments = _admin(plan)
    admin = Address("", port) if arguments else plan.admin.bind_address
    if metrics is None or metrics.port in (0, port) or is_loopback(metrics.host) or admin.covers(metrics):
        return "admin", _PORT
    return "metrics", metrics.port


def _ports(plan: Plan) -> list[dict[str, Any]]:
    """The ports of the container."""
    admin = {"name": "admin", "containerPort": _admin(plan)[0]}
    name, port = _scraped(plan)
    return [admin] if name == "admin" else [admin, {"name": name, "containerPort": port}]


def _probe(plan: Plan, path: str) -> dict[str, Any]:
    """A request of the kubelet to the admin address; it does not verify a certificate."""
    scheme = {"scheme": "HTTPS"} if plan.admin.tls is not None else {}
    return {"path": path, "port": "admin", **scheme}


def _may_be_several(plan: Plan) -> bool:
    """Whether several processes agree on what each of them does."""
    return plan.leader_election.enabled or plan.sharding is not None


def _replicas(plan: Plan, asked: int | None) -> int:
    """The number of processes. Raises UsageError for more than the manifest allows."""
    if asked is None:
        # With an election, the second process has its caches filled when it takes over.
        most = 1 if plan.sharding is None else plan.sharding.slots
        return 2 if plan.leader_election.enabled else min(2, most)
    if asked > 1 and not _may_be_several(plan):
        raise UsageError(
            f"--replicas {asked}: all processes would act. Write spec.sharding, so that they share the "
            "objects, or spec.leaderElection, so that one of them acts."
        )
    if plan.sharding is not None and asked > plan.sharding.slots:
        raise UsageError(
            f"--replicas {asked}: spec.sharding has {plan.sharding.slots} slots, and a process without one "
            "has no work."
        )
    return asked


def _strategy(plan: Plan) -> Document:
    """How the pods of an older template are replaced."""
    if not _may_be_several(plan):
        return {"type": "Recreate"}  # two processes at once would both act
    # A pod more would take slots from all others, and give them back soon.
    surge = {} if plan.sharding is None else {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    return {"type": "RollingUpdate", **surge}


def _deployment(plan: Plan, place: Place, pod: Document, replicas: int) -> Document:
    spec = {
        "replicas": replicas,
        "strategy": _strategy(plan),
        "selector": {"matchLabels": place.selector},
        "template": {
            "metadata": {
                "labels": place.labels,
                "annotations": {"declctl.dev/restart-digest": restart_digest(plan)},
            },
            "spec": pod,
        },
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": place.metadata(), "spec": spec}


def _pod(
    plan: Plan, place: Place, env: Sequence[Document], volumes: Sequence[Volume], options: DeployOptions
) -> dict[str, Any]:
    _, arguments = _admin(plan)
    if options.volumes.allowed_digests is not None:
        arguments.append(f"--allowed-digests={ALLOWED_DIGESTS}")
    more: dict[str, Any] = {}
    if _may_be_several(plan):
        more["topologySpreadConstraints"] = [_spread(place, key) for key in _SPREAD]
    if options.plugin_image is not None:
        more["initContainers"] = [_plugins(options.plugin_image)]
    container = {
        "name": "declctl",
        "image": _image(options),
        "args": ["run", f"{FOLDER}/{MANIFEST}", "--log-format=json", *arguments],
        **({"env": list(env)} if env else {}),
        "ports": _ports(plan),
        "startupProbe": {
            "httpGet": _probe(plan, "/healthz"),
            "periodSeconds": 1,
            "failureThreshold": 30,
        },
        "livenessProbe": {"httpGet": _probe(plan, "/healthz"), "periodSeconds": 10},
        "readinessProbe": {"httpGet": _probe(plan, "/readyz"), "periodSeconds": 5},
        "resources": {"requests": {"cpu": "20m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": _RESTRICTED,
        "volumeMounts": [each.in_container for each in volumes],
    }
    return {
        "serviceAccountName": place.name,
        "terminationGracePeriodSeconds": termination_seconds(plan.lifecycle.grace_period),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **more,
        "containers": [container],
        "volumes": [each.in_pod for each in volumes],
    }


def _spread(place: Place, key: str) -> dict[str, Any]:
    """The processes are apart where they can be: the end of a node, or a zone, ends some of them."""
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": place.selector},
    }


def _plugins(image: str) -> dict[str, Any]:
    """Copies installed packages out of an image: pip never runs in a pod."""
    return {
        "name": "plugins",
        "image": image,
        "command": ["cp", "-R", "/plugins/.", PLUGINS],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": _RESTRICTED,
        "volumeMounts": [{"name": "plugins", "mountPath": PLUGINS}],
    }


def _disruption_budget(plan: Plan, place: Place) -> list[Document]:
    """Nodes are drained one process at a time. With a single one, a budget would only block the drain."""
    if not _may_be_several(plan):
        return []
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": place.selector}}
    return [
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": place.metadata(), "spec": spec}
    ]


def _network_policy(plan: Plan, place: Place, options: DeployOptions) -> Document:
    """No pod reaches the process, or with a ServiceMonitor any pod its metrics; the kubelet always does."""
    name, _ = _scraped(plan)
    reached = [{"from": [{"namespaceSelector": {}}], "ports": [{"port": name}]}]
    spec = {
        "podSelector": {"matchLabels": place.selector},
        "policyTypes": ["Ingress", "Egress"] if options.egress else ["Ingress"],
        "ingress": reached if options.service_monitor else [],
        **({"egress": list(options.egress)} if options.egress else {}),
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": place.metadata(),
        "spec": spec,
    }


def _service(plan: Plan, place: Place) -> Document:
    name, port = _scraped(plan)
    spec = {
        "clusterIP": "None",
        "selector": place.selector,
        "ports": [{"name": name, "port": port, "targetPort": name}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": place.metadata(), "spec": spec}


def _service_monitor(plan: Plan, place: Place) -> Document:
    endpoint: dict[str, Any] = {"port": _scraped(plan)[0], "path": "/metrics"}
    if plan.admin.tls is not None:
        # Prometheus asks pods by their addresses, which no certificate has.
        endpoint |= {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
    spec = {"selector": {"matchLabels": place.selector}, "endpoints": [endpoint]}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": place.metadata(),
        "spec": spec,
    }


def _write(folder: Path, files: dict[str, list[Document | Role]], place: Place) -> None:
    """Write the files and a kustomization.

    Raises UsageError for a folder of others, and for a file of others in the place of one that is written.
    """
    kustomization = folder / _KUSTOMIZATION
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if kustomization.exists():
            if not _is_ours(kustomization):
                raise UsageError(f"{kustomization} was not made by declctl: name another folder.")
        elif any(folder.iterdir()):
            raise UsageError(f"{folder} has files of others: name an empty folder, or one that is not there.")
        for name in files:
            if (folder / name).exists() and not _is_ours(folder / name):
                raise UsageError(
                    f"{folder / name} was not made by declctl: rename it, or name another folder."
                )
        for stale in folder.glob("*.yaml"):
            if stale.name not in {*files, _KUSTOMIZATION} and _is_ours(stale):
                stale.unlink()
        for name, documents in files.items():
            (folder / name).write_text(_HEADER + rendered(documents), "utf-8")
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": list(files),
        }
        kustomization.write_text(_HEADER + yaml.safe_dump(document, sort_keys=False), "utf-8")
    except OSError as error:
        raise UsageError(f"{folder} can't be written: {error.strerror or error}") from error
    line(
        f"created {folder}; `kubectl apply --server-side -k {folder}` applies {place.namespace}/{place.name}"
    )


def _is_ours(path: Path) -> bool:
    """Whether an earlier call has made a file, by its first line."""
    with path.open("rb") as file:
        return file.read(len(_HEADER.encode())) == _HEADER.encode()
