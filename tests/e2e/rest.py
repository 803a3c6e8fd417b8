"""A Kubernetes client of a hundred lines: tests judge declctl by another client than its own."""

import base64
import http.client
import json
import ssl
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import yaml
from waiting import until

MERGE = "application/merge-patch+json"
_SECONDS = 30.0
_CORE = {"pods", "configmaps", "namespaces", "nodes", "serviceaccounts", "events", "secrets"}
_GROUPS = {
    "deployments": "apps/v1",
    "replicasets": "apps/v1",
    "daemonsets": "apps/v1",
    "statefulsets": "apps/v1",
    "poddisruptionbudgets": "policy/v1",
    "roles": "rbac.authorization.k8s.io/v1",
    "rolebindings": "rbac.authorization.k8s.io/v1",
    "clusterroles": "rbac.authorization.k8s.io/v1",
    "clusterrolebindings": "rbac.authorization.k8s.io/v1",
    "customresourcedefinitions": "apiextensions.k8s.io/v1",
    "backups": "example.com/v1",
    "leases": "coordination.k8s.io/v1",
}


class Refused(Exception):
    """The server said no."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Rest:
    """One API server."""

    def __init__(self, server: str, *, token: str = "", context: ssl.SSLContext | None = None) -> None:
        self.server = server
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._context = context

    @classmethod
    def of_kubeconfig(cls, document: dict[str, Any]) -> "Rest":
        """As the current context of a kubeconfig says; tokens and client certificates only."""
        contexts = {one["name"]: one["context"] for one in document["contexts"]}
        context = contexts[document["current-context"]]
        cluster = next(c["cluster"] for c in document["clusters"] if c["name"] == context["cluster"])
        user = next(u["user"] for u in document["users"] if u["name"] == context["user"])
        if cluster["server"].startswith("http://"):
            return cls(cluster["server"], token=user.get("token", ""))
        return cls(cluster["server"], token=user.get("token", ""), context=_tls(cluster, user))

    def request(self, method: str, path: str, body: Any = None, *, media: str = "application/json") -> Any:
        """One request; raises Refused for an answer that is an error."""
        with self._open(method, path, body, media) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def create(self, obj: dict[str, Any]) -> Any:
        """Create an object, of one of the kinds that the tests use."""
        metadata = obj["metadata"]
        plural = f"{obj['kind'].lower()}s"
        return self.request("POST", path(plural, metadata.get("namespace")), obj)

    def create_first(self, obj: dict[str, Any], namespace: str) -> Any:
        """Create an object of a new kind, which may be served a moment before its objects can be stored."""
        created: list[Any] = []
        obj["metadata"]["namespace"] = namespace
        url = f"/apis/{obj['apiVersion']}/namespaces/{namespace}/{obj['kind'].lower()}s"

        def stored() -> bool:
            try:
                created.append(self.request("POST", url, obj))
            except Refused as refused:
                return refused.status == 409
            return True

        until("the object is stored", stored)
        return created[-1]

    def serves(self, url: str) -> bool:
        """Whether a GET of a path is answered."""
        try:
            self.request("GET", url)
        except Refused:
            return False
        return True

    def get(self, plural: str, name: str, namespace: str | None = None) -> Any:
        """One object."""
        return self.request("GET", f"{path(plural, namespace)}/{name}")

    def list(self, plural: str, namespace: str | None = None) -> list[Any]:
        """All objects."""
        return self.request("GET", path(plural, namespace))["items"]

    def patch(
        self, plural: str, name: str, patch: Any, namespace: str | None = None, *, sub: str = ""
    ) -> Any:
        """A JSON merge patch, perhaps of a subresource."""
        tail = f"/{sub}" if sub else ""
        return self.request("PATCH", f"{path(plural, namespace)}/{name}{tail}", patch, media=MERGE)

    def delete(self, plural: str, name: str, namespace: str | None = None) -> Any:
        """Delete an object; what belongs to it goes in the background."""
        options = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        return self.request("DELETE", f"{path(plural, namespace)}/{name}", options)

    def is_there(self, plural: str, name: str, namespace: str | None = None) -> bool:
        """Whether an object exists."""
        try:
            self.get(plural, name, namespace)
        except Refused as refused:
            if refused.status == 404:
                return False
            raise
        return True

    def answers(self) -> bool:
        """Whether anybody is there, and ready."""
        try:
            self.request("GET", "/readyz")
        except (OSError, Refused):
            return False
        return True

    @property
    def authorization(self) -> dict[str, str]:
        """The header that says who asks."""
        return dict(self._headers)

    def connection(self) -> http.client.HTTPConnection:
        """A connection of its own to the server, for somebody who speaks HTTP."""
        where = urlsplit(self.server)
        if self._context is None:
            return http.client.HTTPConnection(where.netloc)
        return http.client.HTTPSConnection(where.netloc, context=self._context)

    def watch(self, plural: str, namespace: str) -> "Watching":
        """What happens from now on."""
        version = self.request("GET", path(plural, namespace))["metadata"]["resourceVersion"]
        query = urlencode({"watch": "true", "resourceVersion": version, "timeoutSeconds": 120})
        return Watching(
            self._open("GET", f"{path(plural, namespace)}?{query}", None, "application/json", 120)
        )

    def _open(self, method: str, path: str, body: Any, media: str, seconds: float = _SECONDS) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Content-Type": media, "Accept": "application/json"}
        request = urllib.request.Request(f"{self.server}{path}", data, headers, method=method)
        try:
            return urllib.request.urlopen(request, timeout=seconds, context=self._context)
        except urllib.error.HTTPError as error:
            raise Refused(error.code, error.read().decode(errors="replace")) from error


class SteadyRest(Rest):
    """One that keeps its connection, for many requests in a row of one thread."""

    def __init__(self, other: Rest) -> None:
        super().__init__(other.server, context=other._context)
        self._headers = other._headers
        parts = urlsplit(other.server)
        assert parts.hostname is not None
        if parts.scheme == "https":
            self._connection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=_SECONDS, context=other._context
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_SECONDS)

    def request(self, method: str, path: str, body: Any = None, *, media: str = "application/json") -> Any:
        """One request; raises Refused for an answer that is an error."""
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, data, {**self._headers, "Content-Type": media})
        answer = self._connection.getresponse()
        text = answer.read().decode(errors="replace")
        if answer.status >= 400:
            raise Refused(answer.status, text)
        return json.loads(text)

    def close(self) -> None:
        """Let the connection go."""
        self._connection.close()


class Watching:
    """A plain watch in a thread, as a witness: every event in order, as (type, name, resourceVersion)."""

    def __init__(self, answer: Any) -> None:
        self.events: list[tuple[str, str, str]] = []
        self._answer = answer
        threading.Thread(target=self._read, name="witness", daemon=True).start()

    def living(self) -> set[str]:
        """The names of those that were added and have not been deleted."""
        last = {name: kind for kind, name, _ in self.events}
        return {name for name, kind in last.items() if kind != "DELETED"}

    def _read(self) -> None:
        try:
            for line in self._answer:
                event = json.loads(line)
                metadata = event["object"]["metadata"]
                if event["type"] != "BOOKMARK":
                    self.events.append((event["type"], metadata["name"], metadata["resourceVersion"]))
        except (OSError, ValueError):
            return  # the server is gone; so is the test


def path(plural: str, namespace: str | None = None) -> str:
    """Where the objects of a kind are."""
    root = "/api/v1" if plural in _CORE else f"/apis/{_GROUPS[plural]}"
    return f"{root}/namespaces/{quote(namespace)}/{plural}" if namespace else f"{root}/{plural}"


def pod(name: str, namespace: str, **labels: str) -> dict[str, Any]:
    """A pod that nobody runs."""
    container = {"name": "main", "image": "registry.invalid/nothing"}
    metadata = {"name": name, "namespace": namespace, **({"labels": labels} if labels else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def documents(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a YAML file."""
    yield from (document for document in yaml.safe_load_all(file.read_text("utf-8")) if document)


def _tls(cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    authority = cluster.get("certificate-authority-data")
    context = ssl.create_default_context(
        cafile=cluster.get("certificate-authority"),
        cadata=base64.b64decode(authority).decode() if authority else None,
    )
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if "client-certificate-data" in user:
        with tempfile.NamedTemporaryFile() as file:
            file.write(base64.b64decode(user["client-certificate-data"]) + b"\n")
            file.write(base64.b64decode(user["client-key-data"]))
            file.flush()
            context.load_cert_chain(file.name)
    elif "client-certificate" in user:
        context.load_cert_chain(user["client-certificate"], user["client-key"])
    return context
