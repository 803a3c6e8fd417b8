"""Tokens of ServiceAccounts at the admin address: a real API server says who may read, and who may write."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest
import yaml
from clusters import Cluster, new_namespace
from processes import Declctl
from waiting import until

from declctl.testing import BundleDir

RBAC, RBAC_API = "rbac.authorization.k8s.io", "rbac.authorization.k8s.io/v1"
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: reviewed}}
spec:
  namespaces: [{namespace}]
  resources: [{{name: settings, apiVersion: v1, kind: ConfigMap}}]
  handlers: [{{name: look, resourceRef: {{name: settings}}, entryPoint: "handlers:look"}}]
  admin: {{authorization: Kubernetes}}
"""


class Accounts:
    """ServiceAccounts of a namespace, with roles for all of the cluster."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._made: list[str] = []

    def add(self, name: str) -> str:
        """Create an account; returns a token of it."""
        metadata = {"name": name, "namespace": self._namespace}
        self._cluster.rest.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{name}/token"
        return self._cluster.rest.request("POST", path, asked)["status"]["token"]

    def bind(self, account: str, role: str) -> None:
        """Give an account a ClusterRole."""
        name = f"{self._namespace}-{account}-{role.replace(':', '-')}"
        path = f"/apis/{RBAC_API}/clusterrolebindings"
        subject = {"kind": "ServiceAccount", "name": account, "namespace": self._namespace}
        body = {
            "apiVersion": RBAC_API,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "subjects": [subject],
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        }
        self._cluster.rest.request("POST", path, body)
        self._made.append(f"{path}/{name}")

    def role(self, name: str, *rules: dict[str, object]) -> str:
        """Create a ClusterRole; returns its name."""
        path, name = f"/apis/{RBAC_API}/clusterroles", f"{self._namespace}-{name}"
        body = {"apiVersion": RBAC_API, "kind": "ClusterRole", "metadata": {"name": name}, "rules": [*rules]}
        self._cluster.rest.request("POST", path, body)
        self._made.append(f"{path}/{name}")
        return name

    def clear(self) -> None:
        """Remove what is not in the namespace."""
        for path in reversed(self._made):
            self._cluster.rest.request("DELETE", path)


@pytest.fixture(name="accounts")
def _accounts(real_cluster: Cluster) -> Iterator[tuple[Accounts, str]]:
    namespace = new_namespace(real_cluster)
    accounts = Accounts(real_cluster, namespace)
    yield accounts, namespace
    accounts.clear()


def ask(declctl: Declctl, path: str, token: str | None, method: str = "GET") -> tuple[int, dict]:
    """The status and the document of an answer."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{declctl.admin()}{path}", method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.real
def test_an_account_that_may_read_does_not_write(
    tmp_path: Path, real_cluster: Cluster, accounts: tuple[Accounts, str]
):
    """Rights to get and to post are apart, and the process needs system:auth-delegator to find them out."""
    made, namespace = accounts
    own = made.add("controller")
    lists = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}
    made.bind("controller", made.role("lists", lists))
    reader, writer, stranger = (made.add(name) for name in ("reader", "writer", "stranger"))
    reads = {"nonResourceURLs": ["/status", "/cache/*"], "verbs": ["get"]}
    made.bind("reader", made.role("reads", reads))
    made.bind("writer", made.role("writes", {"nonResourceURLs": ["/-/reload"], "verbs": ["post"]}))
    config = yaml.safe_load(real_cluster.kubeconfig.read_text("utf-8"))
    config["users"][0]["user"] = {"token": own}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    files = {
        "manifest.yaml": MANIFEST.format(namespace=namespace),
        "handlers.py": "def look(change):\n    return None\n",
    }
    bundle = BundleDir(tmp_path / "bundle", files)
    with Declctl(bundle.path, kubeconfig=kubeconfig) as declctl:
        until("its caches are filled", lambda: ask(declctl, "/status", None)[1]["ready"])
        # Without the right to create reviews nothing can be found out, so nothing is opened.
        status, document = ask(declctl, "/cache/settings", reader)
        assert status == 503
        assert "the log of the process says why" in document["error"]
        assert "system:auth-delegator" in "\n".join(declctl.err)
        made.bind("controller", "system:auth-delegator")

        def reads_now() -> bool:
            return ask(declctl, "/cache/settings", reader)[0] == 200

        until("the account may read", reads_now)  # the API server has to see the binding
        assert "redacted" not in ask(declctl, "/status", reader)[1]
        assert ask(declctl, "/status", None)[1]["redacted"] is True
        status, document = ask(declctl, "/-/reload", reader, "POST")
        assert status == 403
        assert f"system:serviceaccount:{namespace}:reader may not post /-/reload" in document["error"]
        assert ask(declctl, "/-/reload", writer, "POST")[0] == 200
        assert ask(declctl, "/cache/settings", writer)[0] == 403
        assert ask(declctl, "/cache/settings", stranger)[0] == 403
        assert ask(declctl, "/cache/settings", "made.up.token")[0] == 401
        assert ask(declctl, "/cache/settings", None)[0] == 401
