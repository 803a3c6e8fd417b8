"""A manifest and a handler that tell every change, for the scenarios to edit."""

from pathlib import Path

from declctl.testing import BundleDir

TELLING = """\
def tell(change):
    print(f"{change.type} {change.resource} {change.key} {change.obj.resource_version}")
"""

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {{name: e2e}}
spec:
  namespaces: [{namespace}]
  resources:
    - {{name: pods, apiVersion: v1, kind: Pod, indexers: [{{name: byNode, fieldPath: spec.nodeName}}]}}
  handlers:
    - {{name: tell, resourceRef: {{name: pods}}, entryPoint: "handlers:tell"}}
  reload: {{settle: 50ms}}
"""


def telling(folder: Path, manifest: str = MANIFEST, *, namespace: str) -> BundleDir:
    """A folder whose handler prints `Added pods demo/web 123` for every change in a namespace."""
    files = {"manifest.yaml": manifest.format(namespace=namespace), "handlers.py": TELLING}
    return BundleDir(folder, files)
