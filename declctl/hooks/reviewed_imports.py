"""The imports of a process that runs reviewed bundles alone (`--allowed-digests`).

A digest covers the files that generations import from memory. Python itself would import any other file of
the same folder, if the folder is on a path that it searches: `sys.path`, the `__path__` of a package, a zip
file. So code that was reviewed would run code that was not.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from declctl.hooks.bundle import NotReviewed
from declctl.kit.files import is_below, places_of


class ReviewedImports(MetaPathFinder):
    """Refuses to import a file below the folders of reviewed bundles, whatever path leads to it.

    It asks the finders behind it in `sys.meta_path`, and judges the file that they have found: a source,
    bytecode, an extension, or a member of a zip file. A folder, as of a namespace package, runs nothing.
    """

    def __init__(self) -> None:
        # It only grows: what a link has led to before may still be on a path. Replaced as a whole, as any
        # thread imports; bundles are installed one at a time.
        self._folders: frozenset[Path] = frozenset()

    def add(self, folder: Path) -> None:
        """Import no file below a folder any more. Blocks."""
        self._folders |= places_of(folder)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """The spec that the finders behind this one have. Raises NotReviewed, a ModuleNotFoundError."""
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)  # Python skips a finder without it, too
            spec = None if find is None else find(fullname, path, target)
            if spec is None:
                continue
            if spec.has_location and spec.origin is not None and is_below(spec.origin, self._folders):
                raise NotReviewed(spec.origin, fullname)
            return spec
        return None
