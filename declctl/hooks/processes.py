"""Generations in processes that handler code has started, such as those of a `ProcessPoolExecutor`.

A process that is forked has the modules of the generation. One that is spawned, or forked from a server,
imports them anew, by their names. For those a generation writes its sources into a file of a temporary
folder, which only this user can read and which the environment names; it is gone when the generation is.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import msgspec

from declctl.hooks.bundle import Bundle
from declctl.hooks.finding import BundleFinder

_VARIABLE = "DECLCTL_GENERATIONS"
# Where a source has one of these, its functions may be given to other processes.
_WORDS = (b"multiprocessing", b"ProcessPoolExecutor", b"joblib", b"loky")

_folder: tempfile.TemporaryDirectory[str] | None = None  # of this process; it is removed at its end


def share(prefix: str, bundle: Bundle) -> None:
    """Let processes that are started from now on import the modules of a generation.

    Does nothing where no source mentions processes, and where no file can be written: a process that needs it
    says so. `prefix` is the private package of the generation. Blocks; not from two threads at once.
    """
    global _folder  # noqa: PLW0603 - the environment, which names it, is of the process as well
    if not any(word in source for source in bundle.files.values() for word in _WORDS):
        return
    with suppress(OSError):
        if _folder is None or not Path(_folder.name).is_dir():  # something may clean up old folders
            _folder = tempfile.TemporaryDirectory(prefix="declctl-generations-", ignore_cleanup_errors=True)
        os.environ[_VARIABLE] = _folder.name
        Path(_folder.name, prefix).write_bytes(msgspec.msgpack.encode(bundle))


def withdraw(prefix: str) -> None:
    """Processes that are started from now on can't import the modules of a generation any longer."""
    if _folder is not None:
        with suppress(OSError):
            Path(_folder.name, prefix).unlink(missing_ok=True)


def withdraw_all() -> None:
    """Remove the temporary folder: this process becomes another one, without an end at which that is done."""
    global _folder  # noqa: PLW0603 - as above
    if _folder is not None:
        _folder.cleanup()
        _folder = None


class SharedGenerations(MetaPathFinder):
    """Finds the packages of generations that the process which started this one has shared.

    Each is found once, and is then served from memory. `namespace` is the package in which they are.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the signature of a finder
        target: ModuleType | None = None,  # noqa: ARG002
        /,
    ) -> ModuleSpec | None:
        """The package of a generation; raises ModuleNotFoundError, which says why, where it is not shared."""
        if fullname.rpartition(".")[0] != self._namespace:
            return None
        file = Path(os.environ.get(_VARIABLE, ""), fullname)
        try:
            bundle = msgspec.msgpack.decode(file.read_bytes(), type=Bundle)
        except OSError as error:
            raise ModuleNotFoundError(
                f"the handler modules of {fullname} can't be imported in this process ({error.strerror}). "
                "They can in processes that are started after the import of the generation and before its "
                "teardown, if a temporary file can be written and a handler file mentions multiprocessing or "
                "ProcessPoolExecutor; what an installed package has can be imported always",
                name=fullname,
            ) from error
        finder = BundleFinder(fullname, bundle, rest=lambda: None)
        sys.meta_path.insert(0, finder)
        spec = ModuleSpec(fullname, finder, is_package=True)
        spec.submodule_search_locations = finder.folders
        return spec
