"""Keys and certificates out of a kubeconfig, where TLS libraries want a file: in memory, and on no disk.

The official loader writes `client-key-data` into the temporary folder, where it stays until the process
ends, and for ever if that is killed. On Linux what it wrote is moved into anonymous memory at once.
"""

import os
import sys
import tempfile
import weakref
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

_MOST = 16  # contents that are kept: those of a few rotations; who opens an older one is too late


class PrivateFiles:
    """Takes over the files that an official loader has made. Used on one loop; freed with its owner.

    `folder` is where the loader has to write them. The same content has the same path, so that a login
    that brings nothing new changes nothing.
    """

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="declctl-")
        self._paths: OrderedDict[bytes, tuple[int, str]] = OrderedDict()
        weakref.finalize(self, _free, self.folder, self._paths)

    def take(self, name: str | None) -> str | None:
        """The path to use instead of `name`: of a copy in memory, if it is a file in the folder."""
        if name is None or Path(name).parent != Path(self.folder):
            return name
        content = Path(name).read_bytes()
        if not hasattr(os, "memfd_create") or not Path("/proc/self/fd").is_dir():
            return name  # its folder is private, and goes with its owner
        Path(name).unlink()
        _forget(name)
        if content not in self._paths:
            descriptor = os.memfd_create("declctl", os.MFD_CLOEXEC)
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(content)
            self._paths[content] = (descriptor, f"/proc/self/fd/{descriptor}")
            while len(self._paths) > _MOST:
                os.close(self._paths.popitem(last=False)[1][0])
        self._paths.move_to_end(content)  # what each login uses, such as a CA, is never the oldest
        return self._paths[content][1]


def _forget(name: str) -> None:
    # The official loader remembers by content what it has written, and would give out a path that is gone.
    loader: Any = sys.modules["kubernetes.aio.config.kube_config"]
    written: dict[str, str] = vars(loader)["_temp_files"]
    for content in [content for content, path in written.items() if path == name]:
        del written[content]


def _free(folder: str, paths: "OrderedDict[bytes, tuple[int, str]]") -> None:
    for descriptor, _ in paths.values():
        with suppress(OSError):
            os.close(descriptor)
    for file in Path(folder).glob("*"):
        with suppress(OSError):
            file.unlink()
    with suppress(OSError):
        Path(folder).rmdir()
