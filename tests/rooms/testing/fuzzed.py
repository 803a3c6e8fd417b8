"""Small operators, each with a fault that a fuzzer has to find, and the same without it."""

from pathlib import Path
from typing import NamedTuple

_CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: apps.fuzz.example.com}
spec:
  group: fuzz.example.com
  scope: Namespaced
  names: {kind: App, plural: apps}
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema:
          type: object
          required: [spec]
          properties:
            spec:
              type: object
              required: [size]
              properties:
                size: {type: integer, minimum: 0, maximum: 3}
                mode: {type: string, enum: [fast, safe]}
            status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""
_MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: fuzzed}
spec:
  resources:
    - {name: apps, apiVersion: fuzz.example.com/v1, kind: App}
    - name: children
      apiVersion: v1
      kind: ConfigMap
      labelSelector: {matchLabels: {made-by: fuzzed}}
  handlers:
    - name: app
      mode: Reconcile
      resourceRef: {name: apps}
      entryPoint: handlers
      watches: [{resourceRef: {name: children}, mapTo: {owner: Controller}}]
      applies: [{apiVersion: v1, kind: ConfigMap}]
      status: true
"""
_WATCHED = "mapTo: {owner: Controller}"
_MAPPED = 'mapTo: {entryPoint: "handlers:app_of"}'
_FINALIZER = "      finalizer: fuzz.example.com/app\n"
_HEAD = """
import declctl

def child(request, **data):
    metadata = {"name": request.name, "labels": {"made-by": "fuzzed"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

"""
_MADE = """
@declctl.hookimpl
async def declctl_reconcile(request, ctx):
    if request.obj is None:
        return
    size = request.obj["spec"]["size"]
    await ctx.apply_set([child(request, size=str(size))])
"""
_OUTSIDE = """
def app_of(entry):
    return entry.name.replace(".", "/", 1) if entry.namespace == "kube-public" else []

def entry(request, **data):
    name, labels = f"{request.namespace}.{request.name}", {"made-by": "fuzzed"}
    metadata = {"name": name, "namespace": "kube-public", "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
"""


class Planted(NamedTuple):
    """Handlers with a fault, and without it; and the invariant that the fault breaks."""

    invariant: str
    faulty: str
    repaired: str

    def write(self, folder: Path, code: str) -> Path:
        """A bundle with one of the two."""
        manifest = _MANIFEST + (_FINALIZER if "declctl_finalize" in code else "")
        if "app_of" in code:
            manifest = manifest.replace(_WATCHED, _MAPPED)
        (folder / "crd.yaml").write_text(_CRD, "utf-8")
        (folder / "manifest.yaml").write_text(manifest, "utf-8")
        (folder / "handlers.py").write_text(_HEAD + code, "utf-8")
        return folder


PLANTED = {
    "not idempotent": Planted(
        "converges",
        """
@declctl.hookimpl
async def declctl_reconcile(request, ctx):
    if request.obj is None:
        return
    there = ctx.listers["children"].get(request.key)
    calls = 0 if there is None else int(there["data"]["calls"])
    await ctx.apply_set([child(request, calls=str(calls + 1 if calls < 9 else 1))])
""",
        _MADE,
    ),
    "a child without owner": Planted(
        "collected",
        _MADE.replace("apply_set([child(request, size=str(size))])", "apply(child(request, size=str(size)))"),
        _MADE,
    ),
    "a finalizer that can stick": Planted(
        "converges",
        _MADE
        + """
@declctl.hookimpl
async def declctl_finalize(request, ctx):
    there = ctx.listers["children"].get(request.key)
    ctx.log.info("the last size was " + there["data"]["size"])
""",
        _MADE
        + """
@declctl.hookimpl
async def declctl_finalize(request, ctx):
    there = ctx.listers["children"].get(request.key)
    ctx.log.info("there was no child" if there is None else "the last size was " + there["data"]["size"])
""",
    ),
    "a status that flaps": Planted(
        "idempotent",
        _MADE
        + """
    before = (request.obj.get("status") or {}).get("phase")
    await ctx.patch_status(phase="Done" if before == "Working" else "Working")
""",
        _MADE + '    await ctx.patch_status(phase="Done")\n',
    ),
    "a counter in a status": Planted(
        "idempotent",
        _MADE
        + """
    before = (request.obj.get("status") or {}).get("message", "0")
    await ctx.patch_status(message=f"{(int(before[0]) + 1) % 10} of {size}")
""",
        _MADE + '    await ctx.patch_status(message=f"all of {size}")\n',
    ),
    "a time that each call writes": Planted(
        "idempotent",
        _MADE + '    await ctx.patch_status(checkedAt=f"{ctx.now():%Y-%m-%dT%H:%M:%SZ}")\n',
        _MADE + '    await ctx.patch_status(madeAt=request.obj["metadata"]["creationTimestamp"])\n',
    ),
    "an old generation": Planted(
        "declared",
        _MADE
        + """
    if not request.obj.get("status"):
        await ctx.patch_status(observedGeneration=request.obj["metadata"]["generation"])
""",
        _MADE + '    await ctx.patch_status(observedGeneration=request.obj["metadata"]["generation"])\n',
    ),
    "a generation that goes": Planted(
        "declared",
        _MADE
        + """
    generation = request.obj["metadata"]["generation"]
    await ctx.patch_status(observedGeneration=1 if generation == 1 else None)
""",
        _MADE + '    await ctx.patch_status(observedGeneration=request.obj["metadata"]["generation"])\n',
    ),
    "a lost retry": Planted(
        "declared",
        _MADE.replace("    await", "    try:\n        await")
        + """
    except declctl.StatusError as error:
        ctx.log.warning(str(error))
""",
        _MADE,
    ),
    "a watch that misses its children": Planted(
        "declared",
        _MADE.replace("child(request, size=str(size))", "unlabelled(request)")
        + """
def unlabelled(request):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": request.name}, "data": {"a": "b"}}
""",
        _MADE,
    ),
    "a write outside of applies": Planted(
        "applies",
        _MADE
        + """
    if size == 3:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": request.name}}
        await ctx.apply_set([child(request, size=str(size)), secret])
""",
        _MADE,
    ),
    "state in a global": Planted(
        "declared",
        _MADE.replace("    size =", "    if request.key in made:\n        return\n    size =")
        + "    made.add(request.key)\n\nmade = set()\n",
        _MADE,
    ),
    "a global by the name alone": Planted(
        "declared",
        _MADE.replace(
            "    size =",
            "    if made.get(request.name) == request.obj['spec']:\n        return\n"
            "    made[request.name] = dict(request.obj['spec'])\n    size =",
        )
        + "\nmade = {}\n",
        _MADE,
    ),
    "a delete that is not handled": Planted(
        "collected",
        _OUTSIDE
        + """
@declctl.hookimpl
async def declctl_reconcile(request, ctx):
    if request.obj is not None:
        await ctx.apply(entry(request, size=str(request.obj["spec"]["size"])))
""",
        _OUTSIDE
        + """
@declctl.hookimpl
async def declctl_reconcile(request, ctx):
    if request.obj is not None:
        await ctx.apply(entry(request, size=str(request.obj["spec"]["size"])))

@declctl.hookimpl
async def declctl_finalize(request, ctx):
    await ctx.delete("v1/ConfigMap", f"{request.namespace}.{request.name}", namespace="kube-public")
""",
    ),
}
