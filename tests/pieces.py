"""A bundle in pieces: what tests put together, and edit."""

from pathlib import Path

from declctl.testing import BundleDir

_MAPS = "- {name: maps, apiVersion: v1, kind: ConfigMap}"
_HEAD = "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: behaviour}\nspec:\n"


class Pieces:
    """A manifest made of lines, and handlers in one file. What is changed is in the folder after `write`."""

    def __init__(self, folder: BundleDir) -> None:
        self.folder = folder
        self.resources = [_MAPS]
        self.handlers: list[str] = []
        self.reload_policy = "settle: 20ms, preflight: 'Off', drainTimeout: 5s"
        self.more = ""

    def handler(
        self, name: str = "tell", resource: str = "maps", entry: str | None = None, rest: str = ""
    ) -> None:
        """Add a handler to the manifest."""
        entry = entry or f"handlers:{name}"
        more = f", {rest}" if rest else ""
        self.handlers.append(
            f'- {{name: {name}, resourceRef: {{name: {resource}}}, entryPoint: "{entry}"{more}}}'
        )

    def manifest(self) -> str:
        """The text of the manifest."""
        resources = "".join(f"    {line}\n" for line in self.resources)
        handlers = "".join(f"    {line}\n" for line in self.handlers)
        return (
            f"{_HEAD}  resources:\n{resources}"
            + (f"  handlers:\n{handlers}" if handlers else "")
            + f"  reload: {{{self.reload_policy}}}\n{self.more}"
        )

    def write(self, code: str | None = None) -> Path:
        """Write the manifest, and the handlers if they are given."""
        if code is not None:
            self.folder.write("handlers.py", code)
        return self.folder.write("manifest.yaml", self.manifest())
