"""A folder with a manifest and its handler files, edited as editors do."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent


class BundleDir:
    """A folder for a manifest and handlers. Texts are dedented; each write is there at once, whole."""

    def __init__(self, folder: Path, files: Mapping[str, str] | None = None) -> None:
        self.path = folder
        for name, text in (files or {}).items():
            self.write(name, text)

    def write(self, name: str, text: str) -> Path:
        """Replace a file as an editor does: beside it, then over it."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.tmp")
        aside.write_text(dedent(text).lstrip("\n"), "utf-8")
        aside.replace(path)
        return path

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a piece of a file, everywhere; raises ValueError if it isn't there."""
        text = (self.path / name).read_text("utf-8")
        if old not in text:
            raise ValueError(f"{name} has no {old!r}")
        self.write(name, text.replace(old, new))

    def remove(self, name: str) -> None:
        """Remove a file; raises FileNotFoundError."""
        (self.path / name).unlink()
