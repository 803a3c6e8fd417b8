"""The files that run and are edited: a manifest of our own, or a copy of somebody's."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from declctl.errors import UsageError
from declctl.manifest import ManifestSource, Plan, load, plan
from declctl.runtime.checking.inputs import Inputs

FAILS: Final = "declctl.dev/bench-fails"
"""The label of objects on which the built-in handlers fail, until they are edited."""

_NOTE: Final = b"\n# an edit\n"
_HANDLERS: Final = f"""\
FAILS_ON = "{FAILS}"


def on_change(obj, ctx):
    if FAILS_ON in obj.labels:
        raise RuntimeError("this is mended by the edit")
    ctx.memo["changes"] = ctx.memo.get("changes", 0) + 1
"""
_MENDED: Final = _HANDLERS.replace(FAILS, "declctl.dev/on-nothing")
_MANIFEST: Final = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: bench}
spec:
  resources:
    - name: pods
      apiVersion: v1
      kind: Pod
      indexers: [{name: byNode, fieldPath: spec.nodeName}]
  handlers:
"""
_HANDLER: Final = """\
    - name: h{number}
      resourceRef: {{name: pods}}
      entryPoint: "handlers:on_change"
      retry: {{initialBackoff: 2s}}
"""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Files by their paths below one folder. `edited` are those that the edit changes, as they are then.

    `fails` is the label of objects on which the handlers fail before the edit; empty if there is none.
    """

    manifest: str
    files: Mapping[str, bytes]
    edited: Mapping[str, bytes]
    plan: Plan
    fails: str = ""

    def write(self, folder: Path) -> Path:
        """Write everything as it is before the edit; returns what `declctl run` is to be given."""
        _save(folder, self.files)
        return folder / self.manifest

    def edit(self, folder: Path) -> None:
        """Save the edit."""
        _save(folder, self.edited)


def built_in(handlers: int) -> Bundle:
    """A manifest with that many handlers of all pods.

    They remember each object in `ctx.memo`, and fail on objects that are labelled so. The edit mends that.
    """
    text = _MANIFEST + "".join(_HANDLER.format(number=number + 1) for number in range(handlers))
    name, data = "manifest.yaml", text.encode()
    return Bundle(
        manifest=name,
        files={name: data, "handlers.py": _HANDLERS.encode()},
        edited={"handlers.py": _MENDED.encode()},
        plan=plan(load(ManifestSource(name, data)).controller),
        fails=FAILS,
    )


def copied(inputs: Inputs) -> Bundle:
    """A copy of what was read of somebody's manifest; the edit adds a comment to each handler file.

    Raises UsageError if there is no handler file to edit, or if a file that a plugin's config names is not
    below the manifest's folder.
    """
    code = inputs.bundle.files
    if not code:
        raise UsageError("The manifest has no handler file beside it, so that there is nothing to edit.")
    for name in inputs.config_files:
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise UsageError(
                f"{name} is not below the folder of the manifest: bench runs a copy of that folder."
            )
    source = inputs.loaded.document.source
    manifest = "manifest.yaml" if source.name == "<stdin>" else PurePath(source.name).name
    return Bundle(
        manifest=manifest,
        files={manifest: source.text.encode(), **code, **inputs.config_files},
        edited={name: data + _NOTE for name, data in code.items()},
        plan=plan(inputs.loaded.controller),
    )


def _save(folder: Path, files: Mapping[str, bytes]) -> None:
    """As editors do: beside the file, then over it."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.tmp")
        aside.write_bytes(data)
        aside.replace(path)
