"""What a generation is made of: manifest and handler files, read once, from one real directory.

A ConfigMap's folder is swapped by moving one link (`..data`). The link is resolved once, everything
is read from behind it, and if it moved meanwhile everything is read again: what is staged is never
half of one version and half of another. So are the files of plugins' configs, which may be in another
volume, such as a Secret, that is swapped at moments of its own.
"""

import hashlib
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from declctl.errors import ManifestErrors
from declctl.hooks.bundle import Bundle, closure
from declctl.kit import Breath
from declctl.manifest import Loaded, ManifestSource, load
from declctl.manifest.model import Controller, EntryPoint

_LINK = "..data"  # what a kubelet swaps
_ATTEMPTS = 5  # a link that moves more often than this while a few files are read is somebody's mistake


class Inputs(msgspec.Struct, frozen=True):
    """A manifest without faults, the handler files that it reaches, and their digests.

    `config_files` are those that plugins' configs name, without those that can't be read. `digest`
    covers everything that is read, `code` the handler files alone.
    """

    loaded: Loaded
    bundle: Bundle
    config_files: Mapping[str, bytes]
    digest: str
    code: str


class InputFiles:
    """Reads the manifest that was named on the command line, as often as asked.

    Standard input is read once and stays what it was.
    """

    def __init__(self, manifest: str) -> None:
        self.manifest = manifest
        self._stdin = ManifestSource.read("-") if manifest == "-" else None
        self._reading = threading.RLock()  # an attempt reads while others look whether anything changed
        self._seen: tuple[str, str] = ("", "")  # what the files looked like, and their digest
        self._read_from: tuple[Path, ...] = ()
        # The last without faults, and the environment in which it was read.
        self._loaded: tuple[ManifestSource, Mapping[str, str], Loaded] | None = None

    @property
    def root(self) -> Path:
        """The folder beside whose manifest handler modules are found."""
        if self._stdin is not None:
            return Path.cwd()
        path = Path(self.manifest)
        return path if path.is_dir() else path.parent

    @property
    def folders(self) -> tuple[Path, ...]:
        """Those whose changes matter: where files were read from last, whatever has become of them."""
        if self._stdin is not None and not self._read_from:
            return ()
        return tuple(sorted({self.root, *(path.parent for path in self._read_from)}))

    def read(self) -> Inputs:
        """Everything, whole.

        Raises ManifestErrors with every fault of the manifest, and OSError for files that can't be read.
        """
        for _ in range(_ATTEMPTS):
            behind = self._behind()
            try:
                with self._reading:
                    inputs = self._read(behind)
            except (ManifestErrors, OSError):
                if self._behind() == behind:
                    raise
                continue  # the folder was swapped, and what it had is gone: no fault of what is there now
            if self._behind() == behind:
                return inputs
        raise OSError(f"{self.manifest} changed while it was read, {_ATTEMPTS} times in a row")

    def digest(self) -> str:
        """The digest of what is there now, even where it has faults.

        For telling whether anything changed: files that look as they did before are not parsed again.
        """
        with self._reading:
            looks = self._looks()
            if looks == self._seen[0]:
                return self._seen[1]
            digest = self._digest_of(looks)
            # What changed meanwhile may change back: then this is not the digest of what looks like that.
            self._seen = (looks, digest) if self._looks() == looks else ("", "")
            return digest

    def _digest_of(self, looks: str) -> str:
        try:
            return self.read().digest
        except ManifestErrors:
            return f"faulty {looks}"
        except OSError as error:
            return f"unreadable: {error}"

    def _looks(self) -> str:
        """A digest of the bytes that were read last time, and of the names beside them."""
        try:
            manifest = [(file.name, file.data) for file in self._source().files]
        except ManifestErrors as error:
            return str(error)
        read = [(str(path), _bytes(path) or b"") for path in self._read_from]
        folders = dict.fromkeys([self.root, *(path.parent for path in self._read_from)])
        names = [(str(folder), " ".join(_names(folder)).encode()) for folder in folders]
        return digest_of([*manifest, *read, *names])

    def _behind(self) -> Path:
        """The real place of the manifest, which moves when a ConfigMap's link is swapped."""
        link = self.root / _LINK
        if self._stdin is None and Path(self.manifest).is_dir() and link.exists():
            return link.resolve()
        return self.root.resolve() if self._stdin is not None else Path(self.manifest).resolve()

    def _source(self) -> ManifestSource:
        return self._stdin or ManifestSource.read(self.manifest)

    def _read(self, behind: Path) -> Inputs:
        rest = Breath()
        source = self._source()
        rest()
        loaded = self._load(source)
        rest()
        root = behind if behind.is_dir() else behind.parent
        bundle = closure(root, modules_of(loaded.controller), display=str(self.root), rest=rest)
        rest()
        code = digest_of(bundle.files.items())
        manifest = [(file.name, file.data) for file in source.files]
        config_files = _config_files(loaded.controller)
        named = _whole({name: self._place(root, name) for name in config_files})
        self._read_from = tuple(self.root / name for name in (*bundle.files, *config_files))
        return Inputs(
            loaded=loaded,
            bundle=bundle,
            config_files=named,
            digest=digest_of([*manifest, *bundle.files.items(), *named.items()]),
            code=code,
        )

    def _load(self, source: ManifestSource) -> Loaded:
        # Each edit of code reads the manifest again, twice. To check what was checked takes some milliseconds
        # of the interpreter, in which events are late.
        environ = dict(os.environ)
        if self._loaded is None or self._loaded[:2] != (source, environ):
            self._loaded = (source, environ, load(source, environ=environ))
        return self._loaded[2]

    def _place(self, root: Path, name: str) -> Path:
        """Where a config's file is: behind the link or, where that doesn't have it, seen from the folder."""
        inside = root / name
        return inside if ".." not in inside.parts and inside.exists() else self.root / name


def _whole(places: Mapping[str, Path]) -> Mapping[str, bytes]:
    """What files hold, all of one moment; without those that can't be read."""
    for _ in range(_ATTEMPTS):
        behind = [path.resolve() for path in places.values()]
        found = {name: data for name, path in places.items() if (data := _bytes(path)) is not None}
        if [path.resolve() for path in places.values()] == behind:
            return found
    raise OSError(f"{', '.join(places)} changed while they were read, {_ATTEMPTS} times in a row")


def _bytes(path: Path) -> bytes | None:
    """What a file holds; None if it can't be read, which whoever needs it reports."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if path.suffix in ("", ".py"))
    except OSError:
        return []


def modules_of(controller: Controller) -> list[str]:
    """The modules that entry points name, in manifest order."""
    return list(dict.fromkeys(entry.module for entry in entry_points(controller)))


def entry_points(controller: Controller) -> Iterable[EntryPoint]:
    """Every entry point of a manifest."""
    for resource in controller.resources:
        if resource.transform.entry_point:
            yield resource.transform.entry_point
        yield from (indexer.entry_point for indexer in resource.indexers if indexer.entry_point)
    yield from (handler.entry_point for handler in controller.handlers if handler.entry_point)
    for step in (*controller.lifecycle.startup, *controller.lifecycle.shutdown):
        yield step.entry_point


def _config_files(controller: Controller) -> list[str]:
    return [source.file for plugin in controller.plugins for source in plugin.config_from if source.file]


def digest_of(parts: Iterable[tuple[str, bytes]]) -> str:
    """A digest of names with what stands under them, for the Python that runs."""
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for name, data in parts:
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()
