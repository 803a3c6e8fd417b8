"""What a generation is made of: manifest and handler files, read once, from one real directory.

A ConfigMap's folder is swapped by moving one link (`..data`). The link is resolved once, everything
is read from behind it, and if it moved meanwhile everything is read again: what is staged is never
half of one version and half of another. So are the files of plugins' configs, which may be in another
volume, such as a Secret, that is swapped at moments of its own.
"""

import errno
import hashlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from declctl.errors import ManifestErrors
from declctl.hooks.bundle import Bundle, closure, reached
from declctl.kit import files as reader
from declctl.kit.files import Lookups, PathKind, is_exhausted, is_folder
from declctl.manifest import Loaded, ManifestSource, load
from declctl.manifest.model import ControllerSpec
from declctl.manifest.values import EntryPoint

T = TypeVar("T")

_LINK = "..data"  # what a kubelet swaps
PARSE_SHARE = 0.9  # of the time for a read
_ATTEMPTS = 5  # a link that moves more often than this while a few files are read is somebody's mistake


class Inputs(msgspec.Struct, frozen=True):
    """A manifest without faults, the handler files that it reaches, and their digests.

    `config_files` are those that plugins' configs name, without those that can't be read; `config_faults`
    says why they can't. `digest` covers everything that is read, `code` the handler files alone. `modules`
    has for each module that an entry point names a digest of the files that it is made of. `forced` is the
    number of the last generation of which all code was made anew although its files had not changed; what
    code has made before is not that of the same code.
    """

    loaded: Loaded
    bundle: Bundle
    config_files: Mapping[str, bytes]
    config_faults: Mapping[str, str]
    digest: str
    code: str
    modules: Mapping[str, str]
    forced: int = 0


class InputFiles:
    """Reads the manifest that was named on the command line, as often as asked.

    Standard input is read once and stays what it was. A read that takes longer than `seconds` fails; each
    runs in a daemon thread, as a file system that hangs can't be told to stop.
    """

    def __init__(self, manifest: str, *, seconds: float = reader.READ_SECONDS) -> None:
        self.manifest = manifest  # as people know it
        self._at = Path(manifest).absolute()  # handlers may change the working folder of the process
        self._seconds = seconds
        self._stdin = ManifestSource.read("-") if manifest == "-" else None
        self._reading = threading.Lock()  # an attempt reads while others look whether anything changed
        self._parse_until = math.inf  # by time.monotonic; of the read under way
        self._seen: _Seen | None = None
        self._lookups = Lookups()  # of the last read of handlers and config files, which may have failed
        # The last without faults, and the environment in which it was read.
        self._loaded: tuple[ManifestSource, Mapping[str, str], Loaded] | None = None

    @property
    def root(self) -> Path:
        """The folder beside whose manifest handler modules are found. Absolute, with its links."""
        return self._at if self._stdin is None and self._at.is_dir() else self._at.parent

    @property
    def folders(self) -> tuple[Path, ...]:
        """Those whose changes matter: where files were looked for last, found or not. Blocks."""
        looked_in = self._lookups.folders()
        if self._stdin is not None and not looked_in:
            return ()
        return tuple(dict.fromkeys([self.root, *looked_in]))

    def read(self) -> Inputs:
        """Everything, whole. Blocks.

        Raises ManifestErrors with every fault of the manifest, and OSError for files that can't be read, or
        not in time.
        """
        return self._in_time(self._read_whole)

    def digest(self) -> str:
        """The digest of what is there now, even where it has faults. Blocks.

        For telling whether anything changed: files that are as they were are not parsed again, where nothing
        has come that was looked for and missing. Raises what says nothing of the files: OSError, RuntimeError
        or MemoryError where the process can't get what it needs to look (`is_exhausted`).
        """
        try:
            return self._in_time(self._digest)
        except OSError as error:
            if is_exhausted(error):
                raise
            return f"unreadable: {error}"

    def look_for_folders(self) -> tuple[Path, ...]:
        """Those of `folders` that are there. Blocks; without any if that can't be found out in time.

        Raises RuntimeError or MemoryError where no thread can be started for it (`is_exhausted`).
        """
        try:
            return self._in_time(lambda: tuple(filter(is_folder, self.folders)))
        except OSError as error:
            if is_exhausted(error):
                raise
            return ()

    def _in_time(self, work: Callable[[], T]) -> T:
        """The result of `work`, by one thread at a time: behind one that hangs nobody waits for ever."""
        # Parsing ends a little earlier than a read is given up: then the file that took the time is named.
        parse_until = time.monotonic() + PARSE_SHARE * self._seconds

        def locked() -> T:
            if not self._reading.acquire(timeout=self._seconds):
                what = f"an earlier read of it has not ended after {self._seconds:g} s"
                raise TimeoutError(errno.ETIMEDOUT, what, self.manifest)
            self._parse_until = parse_until
            try:
                return work()
            finally:
                self._reading.release()

        # Its wait for the lock ends with ours, so that no threads pile up behind one that hangs.
        return reader.within(self._seconds, locked, name="declctl-files", file=self.manifest)

    def _read_whole(self) -> Inputs:
        for _ in range(_ATTEMPTS):
            behind = self.real_folder()
            try:
                inputs = self._read(behind)
            except (ManifestErrors, OSError):
                if self.real_folder() == behind:
                    raise
                continue  # the folder was swapped, and what it had is gone: no fault of what is there now
            # The link did not move: all that was read is of one version.
            if self.real_folder() == behind:
                return inputs
        raise OSError(f"{self.manifest} changed while it was read, {_ATTEMPTS} times in a row")

    def _digest(self) -> str:
        if self._seen is not None and self._is_as(self._seen):
            return self._seen.digest
        self._seen = None
        try:
            behind, source = self.real_folder(), self._source()
        except ManifestErrors as error:
            # Where the process lacks descriptors or memory, nothing is known of the files.
            if error.__cause__ is not None and is_exhausted(error.__cause__):
                raise error.__cause__ from error
            return f"faulty {error}"
        seen = _Seen(behind, source, self._digest_of(source), self._lookups)
        # What changed meanwhile may change back: then this is not the digest of what is there.
        if self._is_as(seen):
            self._seen = seen
        return seen.digest

    def _digest_of(self, source: ManifestSource) -> str:
        try:
            return self._read_whole().digest
        except ManifestErrors:
            return f"faulty {digest_of((file.name, file.data) for file in source.files)}"
        except OSError as error:
            if is_exhausted(error):
                raise
            return f"unreadable: {error}"

    def _is_as(self, seen: "_Seen") -> bool:
        """Whether all that was read is as it was, and what was not there is not there."""
        try:
            same = self.real_folder() == seen.behind and self._source() == seen.source
        except ManifestErrors:
            return False
        return same and seen.lookups.hold()

    def real_folder(self) -> Path:
        """The real folder of the bundle, which moves when a ConfigMap's link is swapped.

        A manifest that is a link itself is read from where it leads; handlers are beside the link.
        """
        link = self.root / _LINK
        return _resolved(link if self._stdin is None and link.exists() else self.root)

    def _source(self) -> ManifestSource:
        return self._stdin or ManifestSource.read(self.manifest, at=self._at)

    def _read(self, behind: Path) -> Inputs:
        # Kept although the read may fail: what was looked for and missing is watched, too.
        self._lookups = lookups = Lookups()
        source = self._source()
        loaded = self._load(source)
        bundle = closure(
            behind,
            modules_of(loaded.controller),
            display=self._shown_root(),
            folder=self.root,
            until=self._parse_until,
            lookups=lookups,
        )
        code = digest_of(bundle.files.items())
        modules: dict[str, str] = {}
        for module in modules_of(loaded.controller):
            modules[module] = digest_of(reached(bundle, module).items())
        # What is beside the file of the Controller in its folder is not read for it.
        manifest = [(file.name, file.data) for file in source.files if file.name == loaded.document.path]
        config_files = _config_files(loaded.controller)
        named, config_faults = _whole(
            {name: self._place(behind, name, lookups) for name in config_files}, lookups
        )
        return Inputs(
            loaded=loaded,
            bundle=bundle,
            config_files=named,
            config_faults=config_faults,
            digest=digest_of([*manifest, *bundle.files.items(), *named.items()]),
            code=code,
            modules=modules,
        )

    def _shown_root(self) -> str:
        """The folder as people know it."""
        if self._stdin is not None:
            return reader.shown(self.root)
        named = Path(self.manifest)
        return reader.shown(named if self.root == self._at else named.parent)

    def _load(self, source: ManifestSource) -> Loaded:
        # Each edit of code reads the manifest again, twice. To check what was checked takes some milliseconds
        # of the interpreter, in which events are late.
        environ = dict(os.environ)
        if self._loaded is None or self._loaded[:2] != (source, environ):
            self._loaded = (source, environ, load(source, environ=environ))
        return self._loaded[2]

    def _place(self, root: Path, name: str, lookups: Lookups) -> Path:
        """Where a config's file is: behind the link or, where that doesn't have it, seen from the folder."""
        inside = root / name
        # A swapped volume has its files behind the link; a file beside it, or above it, has only the folder.
        is_inside = ".." not in inside.parts and lookups.kind(inside) is not PathKind.NOTHING
        return inside if is_inside else self.root / name


class _Seen(NamedTuple):
    """What was there when a digest was found.

    `behind` is the real folder of the bundle; `lookups` has all that was asked for handlers and configs.
    """

    behind: Path
    source: ManifestSource
    digest: str
    lookups: Lookups


def _whole(places: Mapping[str, Path], lookups: Lookups) -> tuple[Mapping[str, bytes], Mapping[str, str]]:
    """What files hold, all of one moment; and of those that can't be read, why."""
    for _ in range(_ATTEMPTS):
        behind = [_resolved(path) for path in places.values()]
        found: dict[str, bytes] = {}
        faults: dict[str, str] = {}
        for name, path in places.items():
            try:
                found[name] = lookups.read(path, most=reader.CONFIG_BYTES)
            except OSError as error:
                if is_exhausted(error):
                    raise
                faults[name] = (error.strerror or "it can't be read").lower()
        if [_resolved(path) for path in places.values()] == behind:
            return found, faults
    raise OSError(f"{', '.join(places)} changed while they were read, {_ATTEMPTS} times in a row")


def _resolved(path: Path) -> Path:
    """The real place of a path; raises OSError, also for links that lead to each other."""
    try:
        return path.resolve()
    except RuntimeError as error:  # how Python 3.11 says it
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error


def modules_of(controller: ControllerSpec) -> list[str]:
    """The modules that entry points name, in manifest order."""
    return list(dict.fromkeys(entry.module for entry in entry_points(controller)))


def entry_points(controller: ControllerSpec) -> Iterable[EntryPoint]:
    """Every entry point of a manifest."""
    for resource in controller.resources:
        if resource.transform.entry_point:
            yield resource.transform.entry_point
        yield from (indexer.entry_point for indexer in resource.indexers if indexer.entry_point)
    for handler in controller.handlers:
        if handler.entry_point:
            yield handler.entry_point
        if handler.filter is not None and handler.filter.entry_point is not None:
            yield handler.filter.entry_point
    for step in (*controller.lifecycle.startup, *controller.lifecycle.shutdown):
        yield step.entry_point


def _config_files(controller: ControllerSpec) -> list[str]:
    return [source.file for plugin in controller.plugins for source in plugin.config_from if source.file]


def digest_of(parts: Iterable[tuple[str, bytes]]) -> str:
    """A digest of names with what stands under them, for the Python that runs."""
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for name, data in parts:
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()
