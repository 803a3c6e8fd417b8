"""The inputs of a generation: manifest, handler files and config files, read as one version.

The kubelet replaces the folder of a ConfigMap by moving one link (`..data`). The link is resolved once, and
all files are read from its target. If the link moves meanwhile, all files are read again, so that no
generation has files of two versions. The same is done for the config files of plugins, which may be in
another volume (a Secret) with a link of its own.
"""

import errno
import hashlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import NamedTuple, TypeVar

import msgspec

from declctl import codes
from declctl.errors import ManifestErrors
from declctl.hooks.bundle import Bundle, closure, reached
from declctl.hooks.classes import kind_of_class
from declctl.kit import files as reader
from declctl.kit.files import Lookups, PathKind, folder_of, is_exhausted, is_folder
from declctl.manifest import LoadedManifest, ManifestSource, load
from declctl.manifest.checks.types import ClassReader
from declctl.manifest.model import ControllerSpec
from declctl.manifest.values import EntryPoint
from declctl.objects.custom_resource import DeclaredKind
from declctl.runtime.recorder import CommittedFiles

T = TypeVar("T")

_LINK = "..data"  # the kubelet moves it
PARSE_SHARE = 0.9  # of the time for a read
_PARSED = 50  # times as large as its text is a manifest with the place of each value
_ATTEMPTS = 5  # a link that moves more often during one read is a mistake of its owner


class Inputs(msgspec.Struct, frozen=True):
    """A manifest without errors, the handler files that it reaches, and their digests."""

    loaded: LoadedManifest  # the manifest
    bundle: Bundle  # the handler files
    config_files: Mapping[str, bytes]  # that configs of plugins name, by that name
    config_faults: Mapping[str, str]  # why the other config files can't be read, by name
    digest: str  # of all files
    code: str  # a digest of the handler files
    bundle_digest: str  # what a review allows (`bundle_digest`)
    modules: Mapping[str, str]  # by module of an entry point, a digest of all files that it imports
    # The last generation that made all code anew although no file had changed. Caches and indexes that older
    # code has made are not taken over.
    forced: int = 0

    def as_committed(self, generation: int, *, back: bool) -> CommittedFiles:
        """The files in the folder of the manifest, by their paths: another process can read them as these.

        Files of `configFrom` elsewhere may be those of a Secret, and are left out.
        """
        name = PurePath(self.loaded.document.path).name
        manifest = name if PurePath(name).suffix in (".yaml", ".yml", ".json") else "declctl.yaml"
        configs = {each: data for each, data in self.config_files.items() if _is_within(PurePath(each))}
        files = {**configs, **self.bundle.files, manifest: self.loaded.document.text.encode()}
        return CommittedFiles(generation, manifest, files, back)

    @property
    def memory(self) -> int:
        """About how many bytes of memory these take: the files, and the values of the manifest."""
        parts = (*self.bundle.files.values(), *self.config_files.values())
        return sum(map(len, parts)) + _PARSED * len(self.loaded.document.text)


def _is_within(path: PurePath) -> bool:
    return not path.is_absolute() and ".." not in path.parts


class InputFiles:
    """Reads the manifest of the command line again and again. Methods are called by any thread.

    - `manifest`: as the user wrote it, and as messages show it.
    - `at`: the file or folder that is read, by default `manifest` itself.
    - `seconds`: the longest time of a read.
    - `is_reviewed`: a list of allowed digests is set, beside the one that the manifest may name.
    - `adapt`: what is changed in each manifest that is read; None, the default, for nothing.

    Standard input is read once. Each read has a daemon thread, because a read of a file system that hangs
    can't be cancelled.
    """

    def __init__(
        self,
        manifest: str,
        *,
        at: Path | None = None,
        seconds: float = reader.READ_SECONDS,
        is_reviewed: bool = False,
        adapt: Callable[[ControllerSpec], ControllerSpec] | None = None,
    ) -> None:
        self.manifest = manifest
        self._adapt = adapt
        self._is_reviewed = is_reviewed
        self._at = at or Path(manifest).absolute()  # handlers may change the working folder of the process
        self._seconds = seconds
        self._stdin = ManifestSource.read("-") if manifest == "-" else None
        self._reading = threading.Lock()  # held by the thread that reads or makes a digest
        self._parse_until = math.inf  # by time.monotonic; of the present read
        self._seen: _Seen | None = None  # the files of the last digest
        self._lookups = Lookups()  # of the last read of handlers and config files, even if it failed
        self._loaded: _LastLoad | None = None

    @property
    def root(self) -> Path:
        """The folder of the handler modules, beside the manifest. Absolute; links are not resolved."""
        return self._at if self._stdin is None and self._at.is_dir() else self._at.parent

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders in which the last read looked for files, found or not. Blocks."""
        looked_in = self._lookups.folders()
        if self._stdin is not None and not looked_in:
            return ()
        return tuple(dict.fromkeys([self.root, *looked_in]))

    def read(self) -> Inputs:
        """Read all files as one version. Blocks.

        Raises ManifestErrors with every error of the manifest, and OSError if a file can't be read, or not in
        time.
        """
        return self._in_time(self._read_whole)

    def digest(self) -> str:
        """The digest of the present files, also if they have errors. Blocks.

        Shows whether a file has changed. Files are parsed again only if one has changed, or a missing one has
        appeared. Raises OSError, RuntimeError or MemoryError only if the process lacks what it needs to look
        (`is_exhausted`), which says nothing of the files.
        """
        try:
            return self._in_time(self._digest)
        except OSError as error:
            if is_exhausted(error):
                raise
            return f"unreadable: {error}"

    def look_for_folders(self) -> tuple[Path, ...]:
        """The `folders` that exist; none if that takes too long. Blocks.

        Raises RuntimeError or MemoryError if no thread can be started (`is_exhausted`).
        """
        try:
            return self._in_time(lambda: tuple(filter(is_folder, self.folders)))
        except OSError as error:
            if is_exhausted(error):
                raise
            return ()

    def _in_time(self, work: Callable[[], T]) -> T:
        """The result of `work`; one thread at a time. No caller waits for ever for a thread that hangs."""
        # Parsing stops a little before the read is given up: so the error names the file that took the time.
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

        # The wait for the lock ends with this call, so that threads do not pile up behind one that hangs.
        return reader.within(self._seconds, locked, name="declctl-files", file=self.manifest)

    def _read_whole(self) -> Inputs:
        for _ in range(_ATTEMPTS):
            behind = self.real_folder()
            try:
                inputs = self._read(behind)
            except (ManifestErrors, OSError):
                if self.real_folder() == behind:
                    raise
                continue  # the link has moved: the error says nothing of the present files
            # The link did not move: all files are of one version.
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
            # The process lacks descriptors or memory: nothing is known of the files.
            if error.__cause__ is not None and is_exhausted(error.__cause__):
                raise error.__cause__ from error
            return f"faulty {error}"
        seen = _Seen(behind, source, self._digest_of(source), self._lookups)
        # A file that changed during the read may change back: then the digest is not that of the files.
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
        """Whether all files are unchanged, and missing files are still missing."""
        try:
            same = self.real_folder() == seen.behind and self._source() == seen.source
        except ManifestErrors:
            return False
        return same and seen.lookups.are_unchanged()

    def real_folder(self) -> Path:
        """The real folder of the bundle, which moves when a ConfigMap's link is swapped.

        A manifest that is a link itself is read from where it leads; handlers are beside the link.
        """
        link = self.root / _LINK
        return _resolved(link if self._stdin is None and link.exists() else self.root)

    def _source(self) -> ManifestSource:
        return self._stdin or ManifestSource.read(self.manifest, at=self._at)

    def _read(self, behind: Path) -> Inputs:
        # Set before the read, which may fail: folders of missing files are watched, too.
        self._lookups = lookups = Lookups()
        source = self._source()
        loaded = self._load(source, class_reader(behind, until=self._parse_until, lookups=lookups))
        bundle = closure(
            behind,
            modules_of(loaded.controller),
            display=self._shown_root(),
            folder=self.root,
            is_reviewed=self._is_reviewed or loaded.controller.reload.allowed_digests is not None,
            until=self._parse_until,
            lookups=lookups,
        )
        code = digest_of(bundle.files.items())
        modules: dict[str, str] = {}
        for module in modules_of(loaded.controller):
            modules[module] = digest_of(reached(bundle, module).items())
        # Other files in the folder of the Controller's file are no part of it.
        manifest = [(file.name, file.data) for file in source.files if file.name == loaded.document.path]
        plugins = loaded.controller.plugins
        config_files = [source.file for plugin in plugins for source in plugin.config_from if source.file]
        places = {name: self._place(behind, name, lookups) for name in config_files}
        named, config_faults = _whole(places, lookups)
        # What lies beside the manifest is written by its authors, as the manifest is.
        folders = reader.places_of(self.root)
        beside = {name: data for name, data in named.items() if reader.is_below(places[name], folders)}
        return Inputs(
            loaded=loaded,
            bundle=bundle,
            config_files=named,
            config_faults=config_faults,
            digest=digest_of([*manifest, *bundle.files.items(), *named.items()]),
            code=code,
            bundle_digest=bundle_digest(manifest[0][1], bundle.files, beside),
            modules=modules,
        )

    def _shown_root(self) -> str:
        """The folder as the user wrote it."""
        if self._stdin is not None:
            return reader.shown(self.root)
        named = Path(self.manifest)
        return reader.shown(named if self.root == self._at else named.parent)

    def _load(self, source: ManifestSource, classes: ClassReader) -> LoadedManifest:
        # Each edit of code reads the manifest twice. A further check of the same manifest takes milliseconds
        # of the interpreter, in which events are late.
        environ, last = dict(os.environ), self._loaded
        if (
            last is not None
            and (last.source, last.environ) == (source, environ)
            and all(classes(each) == said for each, said in last.classes.items())
        ):
            return last.manifest
        said: dict[EntryPoint, DeclaredKind] = {}

        def ask(entry: EntryPoint) -> DeclaredKind:
            said[entry] = found = classes(entry)
            return found

        loaded = load(source, environ=environ, classes=ask)
        if self._adapt is not None:
            loaded = msgspec.structs.replace(loaded, controller=self._adapt(loaded.controller))
        self._loaded = _LastLoad(source, environ, said, loaded)
        return self._loaded.manifest

    def _place(self, root: Path, name: str, lookups: Lookups) -> Path:
        """The path of a config file: at the link's target or, if it is not there, in the folder."""
        inside = root / name
        # A mounted volume has its files behind the link; other files are only in the folder.
        is_inside = ".." not in inside.parts and lookups.kind(inside) is not PathKind.NOTHING
        return inside if is_inside else self.root / name


class _LastLoad(NamedTuple):
    """The last manifest without errors, and all that it was made of."""

    source: ManifestSource
    environ: Mapping[str, str]
    classes: Mapping[EntryPoint, DeclaredKind]  # what the sources of classes have said
    manifest: LoadedManifest


class _Seen(NamedTuple):
    """The files of which a digest was made."""

    behind: Path  # the real folder of the bundle
    source: ManifestSource
    digest: str
    lookups: Lookups  # of handlers and config files, with their results


def _whole(places: Mapping[str, Path], lookups: Lookups) -> tuple[Mapping[str, bytes], Mapping[str, str]]:
    """The contents of files as of one moment, and why the others can't be read."""
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
    except RuntimeError as error:  # Python 3.11 raises this for a loop of links
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error


def class_reader(folder: Path, *, until: float = math.inf, lookups: Lookups | None = None) -> ClassReader:
    """Reads in the sources of a folder what classes say of their kinds; see `closure`."""

    def read(entry: EntryPoint) -> DeclaredKind:
        bundle = closure(folder, [entry.module], folder=folder, until=until, lookups=lookups)
        return kind_of_class(bundle, entry.module, entry.attribute or "")

    return read


def load_beside(manifest: str, *, at: Path | None = None) -> LoadedManifest:
    """The manifest of a command line (`ManifestSource.read`), with the kinds that its classes say. Blocks.

    Raises ManifestErrors.
    """
    place = Path(manifest) if at is None else at
    read = class_reader(folder_of(place).absolute())

    def classes(entry: EntryPoint) -> DeclaredKind:
        try:
            return read(entry)
        except OSError as error:
            return DeclaredKind(code=codes.UNREADABLE, message=f"{entry.module} can't be read: {error}")

    return load(ManifestSource.read(manifest, at=at), classes=classes)


def modules_of(controller: ControllerSpec) -> list[str]:
    """The modules that entry points name, in manifest order."""
    return list(dict.fromkeys(entry.module for entry in entry_points(controller)))


def entry_points(controller: ControllerSpec) -> Iterable[EntryPoint]:
    """Every entry point of a manifest."""
    for resource in controller.resources:
        if resource.object_type:
            yield resource.object_type
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
    for schedule in controller.schedules:
        yield schedule.entry_point


def bundle_digest(
    manifest: bytes, files: Mapping[str, bytes], config_files: Mapping[str, bytes] | None = None
) -> str:
    """The digest of a manifest and the files beside it, such as `sha256:4f2c…`; the same on each machine.

    It depends on the bytes of the manifest's file, on the bytes and paths of the handler files that entry
    points reach, and on those of `config_files`, the files of `configFrom` beside the manifest. Files of
    `configFrom` elsewhere, which may hold secrets, and installed packages are not part of it.
    """
    digest = hashlib.sha256()
    # No path of a handler file has a space.
    configs = [(f"configFrom {name}", data) for name, data in sorted((config_files or {}).items())]
    for name, data in [("manifest", manifest), *sorted(files.items()), *configs]:
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return f"sha256:{digest.hexdigest()}"


def digest_of(parts: Iterable[tuple[str, bytes]]) -> str:
    """A digest of named contents, which also depends on the Python version."""
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for name, data in parts:
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()
