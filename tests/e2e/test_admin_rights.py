"""Tokens of ServiceAccounts at the admin address: a real API server says who may read, and who may write."""

import json
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest
from accounts import User
from clusters import Cluster, new_namespace
from processes import Declctl
from waiting import until

from declctl.testing import BundleDir

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


def ask(declctl: Declctl, path: str, token: str | None, method: str = "GET") -> tuple[int, dict]:
    """The status and the document of an answer."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{declctl.admin()}{path}", method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.real
def test_an_account_that_may_read_does_not_write(tmp_path: Path, real_cluster: Cluster):
    """Rights to get and to post are apart, and the process needs system:auth-delegator to find them out."""
    namespace = new_namespace(real_cluster)
    own, reader, writer, stranger = (
        User.create(real_cluster, name, namespace) for name in ("controller", "reader", "writer", "stranger")
    )
    lists = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}
    own.grant(lists, namespace=namespace)
    reader.grant({"nonResourceURLs": ["/status", "/cache/*"], "verbs": ["get"]}, namespace=None)
    writer.grant({"nonResourceURLs": ["/-/reload"], "verbs": ["post"]}, namespace=None)
    kubeconfig = own.kubeconfig(tmp_path / "kubeconfig")
    tokens = {user: user.token for user in (reader, writer, stranger)}
    files = {
        "manifest.yaml": MANIFEST.format(namespace=namespace),
        "handlers.py": "def look(change):\n    return None\n",
    }
    bundle = BundleDir(tmp_path / "bundle", files)
    with Declctl(bundle.path, kubeconfig=kubeconfig) as declctl:
        until("its caches are filled", lambda: ask(declctl, "/status", None)[1]["ready"])
        # Without the right to create reviews nothing can be found out, so nothing is opened.
        status, document = ask(declctl, "/cache/settings", tokens[reader])
        assert status == 503
        assert "the log of the process says why" in document["error"]
        assert "system:auth-delegator" in "\n".join(declctl.err)
        own.bind("system:auth-delegator")

        def reads_now() -> bool:
            return ask(declctl, "/cache/settings", tokens[reader])[0] == 200

        until("the account may read", reads_now)  # the API server has to see the binding
        assert "redacted" not in ask(declctl, "/status", tokens[reader])[1]
        assert ask(declctl, "/status", None)[1]["redacted"] is True
        status, document = ask(declctl, "/-/reload", tokens[reader], "POST")
        assert status == 403
        assert f"system:serviceaccount:{namespace}:reader may not post /-/reload" in document["error"]
        assert ask(declctl, "/-/reload", tokens[writer], "POST")[0] == 200
        assert ask(declctl, "/cache/settings", tokens[writer])[0] == 403
        assert ask(declctl, "/cache/settings", tokens[stranger])[0] == 403
        assert ask(declctl, "/cache/settings", "made.up.token")[0] == 401
        assert ask(declctl, "/cache/settings", None)[0] == 401
