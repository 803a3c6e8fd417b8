"""Folders for a controller: edited as editors do, or mounted as a ConfigMap.

A mounted ConfigMap or Secret has the layout of the kubelet's atomic writer, and is replaced as by it:

    folder/manifest.yaml → ..data/manifest.yaml
    folder/..data        → ..2026_01_01_00_00_00.2
    folder/..2026_01_01_00_00_00.2/manifest.yaml
"""

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent


class ConfigMapDir:
    """A mounted ConfigMap in `folder`, with `files` (names and texts). All files change at once."""

    def __init__(self, folder: Path, files: Mapping[str, str] | None = None) -> None:
        self.path = folder
        self._numbers = itertools.count(1)
        folder.mkdir(parents=True, exist_ok=True)
        if files is not None:
            self.swap(files)

    def swap(self, files: Mapping[str, str], *, keep: bool = False) -> Path:
        """Replace all files by `files`; returns the real folder of the new files.

        Names may have folders, as `items` of a volume give them. The folder of the old files is removed, as
        by the kubelet. `keep` leaves it, as it is for a moment after the link has moved.
        """
        link = self.path / "..data"
        before = link.resolve() if link.is_symlink() else None
        behind = self.path / f"..2026_01_01_00_00_00.{next(self._numbers)}"
        behind.mkdir()
        for name, text in files.items():
            (behind / name).parent.mkdir(parents=True, exist_ok=True)
            (behind / name).write_text(text, "utf-8")
        # A link that is renamed over the old one: a reader sees all old files, or all new ones.
        aside = self.path / "..data_tmp"
        aside.symlink_to(behind.name)
        aside.replace(link)
        self._link(files)
        if before is not None and not keep:
            shutil.rmtree(before)
        return behind

    def _link(self, files: Mapping[str, str]) -> None:
        # A folder has a link, and the files in it have none.
        names = {name.partition("/")[0] for name in files}
        for name in names:
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(f"..data/{name}")
        for path in self.path.iterdir():
            # Links to files that the new version does not have would be broken.
            if path.is_symlink() and not path.name.startswith("..") and path.name not in names:
                path.unlink()


def configmap_dir(folder: Path, files: Mapping[str, str] | None = None) -> ConfigMapDir:
    """Make a mounted ConfigMap in `folder`, with `files` (names and texts)."""
    return ConfigMapDir(folder, files)


class BundleDir:
    """A folder for a manifest and handler files. Texts are dedented; each write is atomic."""

    def __init__(self, folder: Path, files: Mapping[str, str] | None = None) -> None:
        self.path = folder
        for name, text in (files or {}).items():
            self.write(name, text)

    def write(self, name: str, text: str) -> Path:
        """Write a file as an editor does: beside it, then renamed over it. Returns its path."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.tmp")
        aside.write_text(dedent(text).lstrip("\n"), "utf-8")
        aside.replace(path)
        return path

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace `old` by `new` everywhere in a file; raises ValueError if `old` is not in it."""
        text = (self.path / name).read_text("utf-8")
        if old not in text:
            raise ValueError(f"{name} has no {old!r}")
        self.write(name, text.replace(old, new))

    def remove(self, name: str) -> None:
        """Remove a file; raises FileNotFoundError if it does not exist."""
        (self.path / name).unlink()
