"""A ConfigMap or Secret volume, laid out and swapped as the kubelet does (its atomic writer)."""

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path


class Mounted:
    """`folder/NAME → ..data/NAME`, `..data → ..N`; a swap moves the one link and removes what it led to."""

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self.folder = folder
        self._numbers = itertools.count(1)
        folder.mkdir()
        self.swap(files)

    def swap(self, files: Mapping[str, str]) -> None:
        """Replace all files at once."""
        before = (self.folder / "..data").resolve() if (self.folder / "..data").exists() else None
        behind = self.folder / f"..2026_01_01_00_00_00.{next(self._numbers)}"
        behind.mkdir()
        for name, text in files.items():
            (behind / name).write_text(text, "utf-8")
        aside = self.folder / "..data_tmp"
        aside.symlink_to(behind.name)
        aside.rename(self.folder / "..data")
        for name in files:
            link = self.folder / name
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}")
        if before is not None:
            shutil.rmtree(before)
