"""`declctl run configmap/NAMESPACE/NAME`: a bundle straight from the API server, which is followed."""

from pathlib import Path
from typing import Any

import pytest
from accounts import User
from clusters import Cluster, new_namespace
from processes import Declctl
from waiting import until

_MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: straight}}
spec:
  namespaces: [{namespace}]
  resources: [{{name: pods, apiVersion: v1, kind: Pod}}, {{name: maps, apiVersion: v1, kind: ConfigMap}}]
  handlers: [{{name: tell, resourceRef: {{name: maps}}, entryPoint: "handlers:tell"}}]
  reload: {{settle: 20ms}}
"""
_HANDLERS = """\
import parts

def tell(change):
    print(parts.WHO, change.type, change.obj.name)
"""


class Bundle:
    """The ConfigMap `bundle`."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.manifest = f"configmap/{namespace}/bundle"
        self.create()

    def create(self, who: str = "first", **more: Any) -> None:
        """Make it."""
        data = {"manifest.yaml": _MANIFEST.format(namespace=self.namespace), "handlers.py": _HANDLERS}
        metadata = {"name": "bundle", "namespace": self.namespace, "labels": {"declctl.dev/code": ""}}
        data["parts.py"] = f"WHO = {who!r}\n"
        self.cluster.rest.create(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data, **more}
        )

    def patch(self, **data: str | None) -> None:
        """Change files: `parts` is the file parts.py."""
        files = {f"{name}.py": text for name, text in data.items()}
        self.cluster.rest.patch("configmaps", "bundle", {"data": files}, self.namespace)

    def delete(self) -> None:
        """Delete it."""
        self.cluster.rest.delete("configmaps", "bundle", self.namespace)

    def add(self, name: str) -> None:
        """Make another ConfigMap, for the handler."""
        metadata = {"name": name, "namespace": self.namespace}
        self.cluster.rest.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})

    def run(self) -> Declctl:
        """Run it."""
        return Declctl(self.manifest, kubeconfig=self.cluster.kubeconfig)


@pytest.fixture
def bundle(cluster: Cluster, namespace: str) -> Bundle:
    return Bundle(cluster, namespace)


@pytest.mark.scenario
def test_an_edit_in_the_api_server_is_a_reload(bundle: Bundle) -> None:
    """Process and caches stay; files come and go with their keys."""
    with bundle.run() as declctl:
        declctl.wait_until_synced()
        until("the first code is called", lambda: "first Added bundle" in declctl.out)
        bundle.patch(parts="WHO = 'second'\n")
        declctl.wait_for_generation(2)
        bundle.add("map-2")
        until("the second code is called", lambda: "second Added map-2" in declctl.out)
        assert declctl.resource("maps")["lists"] == 1
        # A key less, and one more, in one edit.
        bundle.patch(parts=None, pieces="WHO = 'third'\n", handlers=_HANDLERS.replace("parts", "pieces"))
        declctl.wait_for_generation(3)
        bundle.add("map-3")
        until("the third code is called", lambda: "third Added map-3" in declctl.out)


def test_a_broken_edit_is_named_as_the_user_knows_it(bundle: Bundle) -> None:
    with bundle.run() as declctl:
        declctl.wait_until_synced()
        bundle.patch(handlers="def tell(change:\n")
        until("it is refused", lambda: declctl.condition("Reloaded")["status"] == "False")
        assert f"{bundle.manifest}/handlers.py:1" in declctl.condition("Reloaded")["message"]
        assert declctl.status()["generation"] == 1


def test_what_runs_goes_on_without_the_configmap_until_it_comes_back(bundle: Bundle) -> None:
    with bundle.run() as declctl:
        declctl.wait_until_synced()
        bundle.delete()
        until("the log says so", lambda: any("was deleted" in line for line in declctl.err))
        until("the status says so", lambda: declctl.condition("FilesFollowed")["status"] == "False")
        gone = declctl.condition("FilesFollowed")
        assert gone["reason"] == "ConfigMapDeleted"
        assert f"{bundle.manifest} was deleted" in gone["message"]
        assert declctl.status()["generation"] == 1
        bundle.create("again")
        declctl.wait_for_generation(2)
        until("it is followed again", lambda: declctl.condition("FilesFollowed")["status"] == "True")
        assert declctl.condition("FilesFollowed")["lastTransitionTime"] >= gone["lastTransitionTime"]
        bundle.add("other")
        until("the new code is called", lambda: "again Added other" in declctl.out)


@pytest.mark.real
def test_it_needs_the_rights_on_one_configmap_that_the_refusal_names(
    real_cluster: Cluster, tmp_path: Path
) -> None:
    """get, list and watch of this name, and those that the manifest needs; no other ConfigMap may be read."""
    namespace = new_namespace(real_cluster)
    bundle = Bundle(real_cluster, namespace)
    user = User.create(real_cluster, "runner", namespace)
    kubeconfig = user.kubeconfig(tmp_path / "kubeconfig")
    with Declctl(bundle.manifest, kubeconfig=kubeconfig) as declctl:
        assert declctl.wait() == 2
        said = "\n".join(declctl.err)
        command = (
            f"kubectl create role read-bundle -n {namespace} --verb=get,list,watch --resource=configmaps "
        )
        assert f"{command}--resource-name=bundle" in said
    names = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": ["bundle"],
        "verbs": ["get", "list", "watch"],
    }
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    user.grant({**names, "verbs": ["get", "list", "watch"]}, pods, namespace=namespace)
    manifest = _MANIFEST.format(namespace=namespace).replace(
        "{name: maps, apiVersion: v1, kind: ConfigMap}", "{name: maps, apiVersion: v1, kind: Pod}"
    )
    real_cluster.rest.patch("configmaps", "bundle", {"data": {"manifest.yaml": manifest}}, namespace)
    with Declctl(bundle.manifest, kubeconfig=kubeconfig) as declctl:
        declctl.wait_until_synced()
        bundle.patch(parts="WHO = 'second'\n")
        declctl.wait_for_generation(2)
        assert declctl.stop() == 0
