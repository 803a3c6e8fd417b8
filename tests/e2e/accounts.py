"""ServiceAccounts on a real API server: their tokens, their rights, and generated rights one by one."""

import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml
from clusters import Cluster
from processes import run
from rest import path
from waiting import until

_RBAC = "rbac.authorization.k8s.io"
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class Granted(NamedTuple):
    """One verb of one rule."""

    kind: str  # Role or ClusterRole
    role: str
    namespace: str | None
    rule: int
    group: str
    resource: str
    verb: str
    name: str  # of the only object; empty for all


def generated(*arguments: str) -> list[dict[str, Any]]:
    """The objects that `declctl generate` prints."""
    done = run("generate", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return list(yaml.safe_load_all(done.stdout))


def granted(objects: Sequence[dict[str, Any]]) -> list[Granted]:
    """Each right of the roles among some objects."""
    return [
        Granted(
            each["kind"],
            each["metadata"]["name"],
            each["metadata"].get("namespace"),
            number,
            group,
            resource,
            verb,
            name,
        )
        for each in objects
        if "rules" in each
        for number, rule in enumerate(each["rules"])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    ]


def token_of(cluster: Cluster, name: str, namespace: str) -> str:
    """A new token of a ServiceAccount."""
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    where = f"{path('serviceaccounts', namespace)}/{name}/token"
    return cluster.rest.request("POST", where, asked)["status"]["token"]


class User:
    """A ServiceAccount of a namespace, which is there already."""

    def __init__(self, cluster: Cluster, name: str, namespace: str) -> None:
        self._cluster, self.name, self.namespace = cluster, name, namespace
        self._granted = itertools.count(1)

    @classmethod
    def create(cls, cluster: Cluster, name: str, namespace: str) -> Self:
        """A new one, without any right."""
        metadata = {"name": name, "namespace": namespace}
        cluster.rest.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        return cls(cluster, name, namespace)

    @property
    def token(self) -> str:
        """A new token of it."""
        return token_of(self._cluster, self.name, self.namespace)

    def kubeconfig(self, file: Path) -> Path:
        """A kubeconfig of it, in its namespace."""
        document = yaml.safe_load(self._cluster.kubeconfig.read_text("utf-8"))
        document["users"][0]["user"] = {"token": self.token}
        document["contexts"][0]["context"]["namespace"] = self.namespace
        file.write_text(yaml.safe_dump(document), "utf-8")
        return file

    def grant(self, *rules: dict[str, Any], namespace: str | None) -> None:
        """Grant it rules in a namespace; with None, in the whole cluster."""
        name = f"{self.namespace}-{self.name}-{next(self._granted)}"
        kind = "Role" if namespace else "ClusterRole"
        self._cluster.rest.create({**_rbac(kind, name, namespace), "rules": [*rules]})
        self.bind(name, kind=kind, namespace=namespace)

    def bind(self, role: str, *, kind: str = "ClusterRole", namespace: str | None = None) -> None:
        """Give it a role that is there."""
        name = f"{self.namespace}-{self.name}-{role.replace(':', '-')}"
        subject = {"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}
        reference = {"apiGroup": _RBAC, "kind": kind, "name": role}
        binding = _rbac("RoleBinding" if namespace else "ClusterRoleBinding", name, namespace)
        self._cluster.rest.create({**binding, "roleRef": reference, "subjects": [subject]})


def _rbac(kind: str, name: str, namespace: str | None) -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": metadata}


class Account(User):
    """A ServiceAccount of generated objects, which are created on a cluster."""

    def __init__(self, cluster: Cluster, objects: Sequence[dict[str, Any]]) -> None:
        self._objects = {(each["kind"], each["metadata"]["name"]): each for each in objects}
        (account,) = [each for each in objects if each["kind"] == "ServiceAccount"]
        super().__init__(cluster, account["metadata"]["name"], account["metadata"]["namespace"])
        for each in objects:
            cluster.rest.create(each)

    @contextmanager
    def without(self, right: Granted) -> Iterator[None]:
        """It has all rights but one for the length of the context, and the server has noticed."""
        role = self._objects[right.kind, right.role]
        rules = copy.deepcopy(role["rules"])
        rules[right.rule]["verbs"].remove(right.verb)
        if not rules[right.rule]["verbs"]:
            del rules[right.rule]
        try:
            self._set(right, rules)
            until("the right is gone", lambda: not self.may(right))
            yield
        finally:
            self._set(right, role["rules"])
            until("the right is back", lambda: self.may(right))

    def may(self, right: Granted) -> bool:
        """What the server says."""
        resource, _, subresource = right.resource.partition("/")
        asked = {
            "group": right.group,
            "resource": resource,
            "subresource": subresource,
            "verb": right.verb,
            "namespace": right.namespace or "",
            "name": right.name,
        }
        user = f"system:serviceaccount:{self.namespace}:{self.name}"
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"resourceAttributes": asked, "user": user},
        }
        return bool(self._cluster.rest.request("POST", _REVIEWS, body)["status"]["allowed"])

    def _set(self, right: Granted, rules: Sequence[dict[str, Any]]) -> None:
        self._cluster.rest.patch(f"{right.kind.lower()}s", right.role, {"rules": rules}, right.namespace)
