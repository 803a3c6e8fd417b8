"""Manifests with handlers, in a folder of a test."""

from pathlib import Path

TELLING = """\
def tell(change):
    print(f"{change.type} {change.resource} {change.key} {change.obj.resource_version}", flush=True)
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


class Bundle:
    """A manifest and its handler files; what is written is there at once, whole."""

    def __init__(self, folder: Path, manifest: str, handlers: str = TELLING) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.write("handlers.py", handlers)
        self.manifest = self.write("manifest.yaml", manifest)

    @classmethod
    def telling(cls, folder: Path, namespace: str) -> "Bundle":
        """A handler that prints every change of the pods of a namespace."""
        return cls(folder, MANIFEST.format(namespace=namespace))

    def write(self, name: str, text: str) -> Path:
        """Replace a file as an editor does: beside it, then over it."""
        path = self.folder / name
        aside = self.folder / f".{name}.tmp"
        aside.write_text(text, "utf-8")
        aside.rename(path)
        return path

    def edit(self, name: str, old: str, new: str) -> None:
        """Change a piece of a file."""
        text = (self.folder / name).read_text("utf-8")
        assert old in text
        self.write(name, text.replace(old, new))
