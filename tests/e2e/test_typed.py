"""A typed reconciler against both API servers: its class, what does not fit it, and the object before."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster, definition_of, served
from processes import Declctl
from rest import MERGE
from waiting import until

from declctl.testing import BundleDir

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: previews}}
spec:
  namespaces: [{namespace}]
  resources:
    - {{name: previews, type: "models:Preview"}}
  handlers:
    - name: preview
      mode: Reconcile
      resourceRef: {{name: previews}}
      entryPoint: "handlers:reconcile"
      status: true
      applies: [{{apiVersion: v1, kind: ConfigMap}}]
      finalizer: acme.dev/preview
      keepPrevious: true{more}
  reload: {{settle: 50ms}}
"""
MODELS = """\
from typing import Annotated

import declctl
import msgspec


class Spec(msgspec.Struct):
    image: str
    replicas: Annotated[int, msgspec.Meta(ge=1)] = 1


class Status(msgspec.Struct):
    ready: int = 0


@declctl.custom_resource("acme.dev/v1", plural="previews")
class Preview(declctl.Object[Spec, Status]):
    @property
    def size(self) -> str:
        return "large" if self.spec.replicas > 2 else "small"
"""
HANDLERS = """\
import declctl
from models import Preview, Status


async def reconcile(request: declctl.Request[Preview], ctx: declctl.Context) -> None:
    preview, before = request.obj, request.previous and request.previous.spec.image
    if preview is None:
        print("gone", request.name, "before", before, flush=True)
        return
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": preview.name}}
    await ctx.apply_set([{**child, "data": {"image": preview.spec.image, "size": preview.size}}])
    await ctx.patch_status(ready=preview.spec.replicas)
    same = ctx.lister(Preview).get(request.key)
    print("done", preview.name, preview.spec.image, "before", before, same is not None, flush=True)


@declctl.hookimpl
async def declctl_finalize(request: declctl.Request[Preview], ctx: declctl.Context) -> None:
    print("finalized", request.name, request.obj.status.ready, flush=True)
"""


@pytest.fixture
def previews(cluster: Cluster, namespace: str) -> Iterator[str]:
    """The path of the previews of a namespace; the server takes any spec of them."""
    yield from served(cluster, definition_of("acme.dev", "previews", "Preview"), namespace)


@pytest.mark.scenario
@pytest.mark.parametrize("more", ["", "\n      isolation: {{mode: Process}}"], ids=["thread", "process"])
def test_a_typed_reconciler(
    cluster: Cluster, namespace: str, previews: str, tmp_path: Path, more: str
) -> None:
    """It reconciles, tells what does not fit, follows an edit of its class, and knows what it made before."""
    manifest = MANIFEST.replace("{more}", more).format(namespace=namespace)
    bundle = BundleDir(
        tmp_path / "bundle", {"manifest.yaml": manifest, "models.py": MODELS, "handlers.py": HANDLERS}
    )

    def create(name: str, **spec: Any) -> None:
        body = {"apiVersion": "acme.dev/v1", "kind": "Preview", "metadata": {"name": name}, "spec": spec}
        cluster.rest.request("POST", previews, body)

    def edit(name: str, **spec: Any) -> None:
        cluster.rest.request("PATCH", f"{previews}/{name}", {"spec": spec}, media=MERGE)

    def get(name: str) -> Any:
        return cluster.rest.request("GET", f"{previews}/{name}")

    def conditions(name: str) -> list[tuple[str, str]]:
        found = get(name).get("status", {}).get("conditions", [])
        return [(each["status"], each["message"]) for each in found]

    def made() -> dict[str, Any]:
        found = cluster.rest.list("configmaps", namespace)
        return {each["metadata"]["name"]: each["data"] for each in found if "image" in each.get("data", {})}

    create("web", image="a", replicas=2)
    with Declctl(bundle.path, kubeconfig=cluster.kubeconfig) as declctl:
        until("it is reconciled", lambda: made() == {"web": {"image": "a", "size": "small"}})
        until("its status is written", lambda: get("web").get("status", {}).get("ready") == 2)
        create("odd", image="b", replicas=0)
        told = ("False", "spec.replicas: Expected `int` >= 1")
        until("it is told", lambda: conditions("odd") == [told])
        edit("odd", replicas=3)
        until("it is reconciled", lambda: made().get("odd") == {"image": "b", "size": "large"})
        assert conditions("odd") == [("True", "")]
        bundle.edit("models.py", "> 2", "> 1")
        until("the new class is in use", lambda: made()["web"]["size"] == "large")
        edit("web", image="c")
        until("it has the one before", lambda: "done web c before a True" in declctl.out)
        cluster.rest.request("DELETE", f"{previews}/web")
        until("it is finalized, and gone", lambda: "gone web before c" in declctl.out)
        assert "finalized web 2" in declctl.out
        assert "done odd b before None True" in declctl.out
        cluster.rest.request("DELETE", f"{previews}/odd")
        until("the other one is gone, too", lambda: "gone odd before b" in declctl.out)
        assert declctl.stop() == 0
