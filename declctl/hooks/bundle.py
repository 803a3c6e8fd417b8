"""Bundles: the handler files of a generation, in memory."""

import errno
import hashlib
import importlib.util
import itertools
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import decode_source
from pathlib import Path
from typing import NamedTuple

import msgspec

from declctl.hooks.parser import LARGE_BYTES, SECONDS, TooCostly, TooLate, scan, scan_apart
from declctl.hooks.syntax import parsed
from declctl.kit import files as reader
from declctl.kit import yield_interpreter
from declctl.kit.files import Lookups, PathKind

_MOST_KNOWN = 2 * reader.BUNDLE_FILES  # sources whose imports are remembered, including those of a bundle
_MOST_BESIDE = 1000  # entries of a folder that are compared with a mistyped name
# A file with one of these words may import, or find, modules without a statement that names them.
_DYNAMIC = frozenset(
    {"__import__", "importlib", "import_module", "pkgutil", "runpy", "builtins", "exec", "eval"}
    | {"modules", "__path__", "__loader__", "__spec__"}
)


class BundleError(OSError):
    """One handler file, or all together, exceed a limit. `suggestion` says what to do, if that is known."""

    suggestion: str | None = None


class NotInBundle(ModuleNotFoundError):
    """A module is beside the manifest, but not in the bundle; `suggestion` says what to do."""

    # `name` has no prefix: `from . import module` ignores an error that has the name of the module.
    def __init__(self, file: Path, name: str) -> None:
        module = name.rpartition(".")[2]
        if file.suffix == ".py":
            why = "no import statement names it"
            self.suggestion = (
                f"write an import of {module}; modules whose names are computed belong into a package, "
                "which is read whole"
            )
        else:
            why = "a bundle has sources only, as a process loads a compiled module once and for ever"
            self.suggestion = (
                f"install the package that has {module} into the environment of declctl, or use its source"
            )
        super().__init__(f"{file.name} is not part of the bundle: {why}", name=name)


class NotReviewed(NotInBundle):
    """Python has found a file below the folder of a reviewed bundle, which its digest does not cover."""

    def __init__(self, file: str, name: str) -> None:
        ModuleNotFoundError.__init__(
            self,
            f"{file} is not imported as {name}: with a list of allowed digests, no file beside the manifest "
            "is imported but those that the digest covers",
            name=name,
        )
        self.suggestion = (
            f"write an import of {name} in a handler file, so that the digest covers it, or keep the folder "
            "of the manifest out of sys.path"
        )


class Bundle(msgspec.Struct, frozen=True):
    """Sources by POSIX path below `root`, such as `handlers/pods.py`.

    `root` is the folder as the user wrote it; `folder` is its absolute path, which stays true after a change
    of the current folder. Without `folder`, `root` is relative to the current folder.
    """

    root: str
    files: Mapping[str, bytes]
    folder: str = ""
    is_reviewed: bool = False  # a list of allowed digests is set: no other file below the folder is imported

    @property
    def place(self) -> Path:
        """The absolute path of the folder."""
        return Path(self.folder or self.root or ".").absolute()

    def path_of(self, module: str) -> str | None:
        """The file of a dotted module name. A package comes before a module of the same name, as in Python.

        None if the bundle does not have it.
        """
        stem = module.replace(".", "/")
        return next((path for path in (f"{stem}/__init__.py", f"{stem}.py") if path in self.files), None)

    def has_package(self, module: str) -> bool:
        """Whether the name is a folder of modules, with or without an `__init__.py`."""
        return any(path.startswith(module.replace(".", "/") + "/") for path in self.files)

    @property
    def packages(self) -> frozenset[str]:
        """The dotted names for which `has_package` is true. O(n) in the files."""
        found: set[str] = set()
        for path in self.files:
            folder = path.rpartition("/")[0].replace("/", ".")
            while folder and folder not in found:
                found.add(folder)
                folder = folder.rpartition(".")[0]
        return frozenset(found)

    def display(self, path: str) -> str:
        """The path of a file of the bundle, as the user knows it."""
        return path if self.root in ("", ".") else f"{self.root.rstrip('/')}/{path}"

    def source(self, display: str) -> str | None:
        """The text of the file with the path `display`; undecodable bytes are replaced."""
        above = self.display("")
        data = self.files.get(display.removeprefix(above)) if display.startswith(above) else None
        if data is None:
            return None
        try:
            return decode_source(data)
        except (SyntaxError, UnicodeDecodeError):  # the import will report the fault
            return data.decode("utf-8", "replace")

    @property
    def modules(self) -> tuple[str, ...]:
        """All modules by their dotted names."""
        stems = (path.removesuffix(".py").removesuffix("/__init__") for path in self.files)
        return tuple(stem.replace("/", ".") for stem in stems)

    def beside(self) -> tuple[str, ...]:
        """The names of modules and packages that are in the folder `root` now, for suggestions.

        The bundle has only modules that entry points reach, so a mistyped module is not in it. At most a
        thousand entries of the folder are read; an unreadable folder has no names.
        """
        try:
            with os.scandir(self.place) as entries:
                names = [entry.name for entry in itertools.islice(entries, _MOST_BESIDE)]
        except OSError:
            return ()
        stems = (name.removesuffix(".py") for name in names)
        return tuple(stem for stem in stems if stem.isidentifier() and not stem.startswith("__"))

    @property
    def names(self) -> frozenset[str]:
        """The top-level modules and packages, which belong to the generation alone."""
        return frozenset(path.split("/", 1)[0].removesuffix(".py") for path in self.files)


def closure(
    root: Path,
    modules: Iterable[str],
    *,
    display: str | None = None,
    folder: Path | None = None,
    is_reviewed: bool = False,
    until: float = math.inf,
    lookups: Lookups | None = None,
) -> Bundle:
    """Read the modules beside the manifest that entry points reach: their own, and all that these import.

    Imports are found in the sources, also inside functions. A file with a syntax error imports nothing, and
    is read nevertheless. A package is read whole if the sources do not show all imports: if a source imports
    by computed names, or if a module of the package is missing. Modules that are not beside the manifest are
    left to Python. `display`, `folder` and `is_reviewed` become the bundle's `root`, `folder` and
    `is_reviewed`. `lookups` remembers the questions to the file system, also if an error is raised.

    Raises OSError, with the name of the file, if a file can't be read or is no regular file, or if no process
    can be started to parse it. Raises BundleError, an OSError, if a limit is exceeded: size, number, depth,
    memory for parsing, or `until`, the deadline for parsing (`time.monotonic`).
    """
    reading = _BundleReader(root, modules, until, lookups or Lookups())
    while reading.waiting or reading.read_packages():
        if reading.waiting:
            reading.read(reading.waiting.pop())
    shown = str(root) if display is None else display
    found = dict(sorted(reading.files.items()))
    return Bundle(shown, found, "" if folder is None else str(folder), is_reviewed)


class _BundleReader:
    """Collects the files of a bundle."""

    def __init__(
        self,
        root: Path,
        modules: Iterable[str],
        until: float,
        lookups: Lookups,
    ) -> None:
        self.files: dict[str, bytes] = {}
        self.waiting = list(modules)  # dotted names, also of attributes
        self._root = root
        self._until = until
        self._lookups = lookups  # the only access to the file system: a missing file may appear later
        self._named = frozenset(name.partition(".")[0] for name in self.waiting)
        self._needed = frozenset(self.waiting)  # these must be modules; a missing one is a fault
        self._seen: set[str] = set()
        self._size = 0
        self._whole: set[str] = set()  # packages of which every module is needed
        self._read_whole: set[str] = set()
        self._dynamic = False  # some source imports by computed names

    def read(self, name: str) -> None:
        """Read the file of a module and those of its packages, if they are beside the manifest."""
        if name in self._seen:
            return
        self._seen.add(name)
        parts = name.split(".")
        if parts[0] not in self._named and _is_elsewhere(self._root, parts[0], self._lookups):
            return
        if parts[-1] == "*":
            self._whole.add(".".join(parts[:-1]))
            parts.pop()
        for length in range(1, len(parts) + 1):
            package = self._root.joinpath(*parts[:length])
            front, module = package / "__init__.py", package.with_name(f"{package.name}.py")
            is_package = self._lookups.kind(package) is PathKind.FOLDER
            if is_package and self._lookups.kind(front) is not PathKind.NOTHING:
                self._add(front)
            elif self._is_module(module, beside_package=is_package):
                self._add(module)
                return
            elif not is_package:
                if length > 1 and name in self._needed:
                    self._whole.add(parts[0])  # its modules are named in the suggestion
                return

    def read_packages(self) -> bool:
        """Read the packages that are needed whole; returns whether there were new files."""
        if self._dynamic:
            self._whole |= {path.partition("/")[0] for path in self.files if "/" in path}
        new = self._whole - self._read_whole
        self._read_whole |= new
        for name in new:
            folder = self._root.joinpath(*name.split("."))
            # The root itself is not looked up, so that its parent folder is not watched.
            if folder == self._root or self._lookups.kind(folder) is PathKind.FOLDER:
                for path in _walk(folder, self._lookups, depth=len(name.split("."))):
                    self._add(path)
        return bool(new)

    def _is_module(self, path: Path, *, beside_package: bool) -> bool:
        """Whether a file has the name of a module, so that a reader may have to refuse it.

        A broken link is no file, nor is a folder beside the package of that name.
        """
        kind = self._lookups.kind(path)
        return kind is not PathKind.NOTHING and not (kind is PathKind.FOLDER and beside_package)

    def _add(self, path: Path) -> None:
        inner = path.relative_to(self._root)
        if inner.as_posix() in self.files:
            return
        data = self.files[inner.as_posix()] = self._lookups.read(path, most=reader.CODE_BYTES)
        self._size += len(data)
        if len(self.files) > reader.BUNDLE_FILES:
            raise _too_much(path, f"handlers have more than {reader.BUNDLE_FILES:,} files")
        if self._size > reader.BUNDLE_BYTES:
            raise _too_much(path, f"handlers have more than {reader.BUNDLE_BYTES:,} bytes")
        yield_interpreter()  # parsing gives way to events
        found = self._scan(path, data)
        self._dynamic = self._dynamic or found.is_dynamic
        self.waiting += _imported(found, _package_of(inner.as_posix()))

    def _scan(self, path: Path, data: bytes) -> "_Scan":
        """The imports of a source, found before `until`. Raises OSError with the name of the file."""
        left = self._until - time.monotonic()
        try:
            if left <= 0:
                raise TooLate
            return _scan(data, seconds=min(left, SECONDS))
        except TooLate as error:
            what = (
                f"it is not parsed in time: reading and parsing all files may take {reader.READ_SECONDS:g} s"
            )
            raise _too_much(path, what, error.suggestion) from error
        except TooCostly as error:
            raise _too_much(path, str(error), error.suggestion) from error
        except OSError as error:
            what = f"no process can be started to parse it: {error.strerror or error}"
            raise OSError(error.errno, what, str(path)) from error


def reached(bundle: Bundle, module: str) -> Mapping[str, bytes]:
    """The files of a bundle that make a module: its own, those of its packages, and those that these import.

    Imports are found as `closure` finds them. If a source imports by computed names, all files count.
    """
    found: dict[str, bytes] = {}
    waiting, packages = [module], bundle.packages
    while waiting:
        name = waiting.pop()
        if name.endswith(".*"):
            name = name.removesuffix(".*")
            waiting += [inner for inner in bundle.modules if inner.startswith(f"{name}.")]
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            path = bundle.path_of(".".join(parts[:length]))
            if path is None or path in found:
                continue
            found[path] = bundle.files[path]
            scan = _scan(found[path])
            if scan.is_dynamic:
                return bundle.files
            for imported in _imported(scan, _package_of(path)):
                waiting.append(imported)
                # `import package` has its modules as attributes, also if another file has imported them.
                inner = (f"{imported}.{attribute}" for attribute in scan.attributes)
                if imported in packages:
                    waiting += [each for each in inner if bundle.path_of(each) is not None]
    return dict(sorted(found.items()))


def _package_of(path: str) -> str:
    """The dotted name of the package of a source; empty beside the manifest."""
    return path.rpartition("/")[0].replace("/", ".")


def _imported(found: "_Scan", package: str) -> Iterator[str]:
    """The dotted names that a source in `package` may import, also those of attributes."""
    for names, module, level in found.statements:
        if level is None:
            yield from names
        else:
            above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            base = ".".join([*above, *filter(None, [module])])
            yield from (f"{base}.{name}".strip(".") for name in names)


def _walk(
    folder: Path, lookups: Lookups, *, depth: int, inside: frozenset[str] = frozenset()
) -> Iterator[Path]:
    """The modules of a package and of its folders, in order.

    A link to a folder is followed, unless the walk is `inside` of that folder. Other files can't be imported,
    and are ignored.
    """
    real = lookups.real(folder)
    if real in inside:
        return
    inside |= {real}
    for name in lookups.names(folder):
        path = folder / name
        if name.isidentifier() and name != "__pycache__":
            if lookups.kind(path) is PathKind.FOLDER:
                if depth >= reader.FOLDER_DEPTH:
                    limit = f"packages are nested more than {reader.FOLDER_DEPTH} levels deep"
                    raise _too_much(path, limit)
                yield from _walk(path, lookups, depth=depth + 1, inside=inside)
        elif (
            name.endswith(".py")
            and name.removesuffix(".py").isidentifier()
            and lookups.kind(path) not in (PathKind.NOTHING, PathKind.FOLDER)
        ):
            yield path


def _too_much(path: Path, what: str, suggestion: str | None = None) -> OSError:
    error = BundleError(errno.EFBIG, what, str(path))
    error.suggestion = suggestion
    return error


def _is_elsewhere(root: Path, name: str, lookups: Lookups) -> bool:
    """Whether a name is a folder without modules, and installed: Python imports the installed one."""
    folder = root / name
    if lookups.kind(folder) is not PathKind.FOLDER:
        return False
    if PathKind.FILE in (lookups.kind(folder / "__init__.py"), lookups.kind(root / f"{name}.py")):
        return False
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # it is loaded without a spec, as `__main__`
        return True
    except NotReviewed:
        return False
    return spec is not None and spec.origin is not None


class _Scan(NamedTuple):
    """The imports of a source.

    `is_dynamic`: it may import by computed names. `attributes` has all attribute names that it reads.
    """

    statements: Sequence[tuple[Sequence[str], str | None, int | None]] = ()
    is_dynamic: bool = False
    attributes: frozenset[str] = frozenset()


_known: dict[bytes, _Scan] = {}  # by the digest of the source


def _scan(source: bytes, *, seconds: float = SECONDS) -> _Scan:
    """The imports of a source, also inside functions; none if it has a syntax error.

    Results are kept, as the same files are read repeatedly and parsing delays events. A large source is
    parsed in a child process, within `seconds`. Raises TooCostly, and OSError if no process can be started.
    """
    digest = hashlib.sha256(source).digest()
    found = _known.get(digest)
    if found is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        found = _known[digest] = _statements(source, seconds)
    return found


def _statements(source: bytes, seconds: float) -> _Scan:
    if len(source) > LARGE_BYTES:
        imports, names, attributes = scan_apart(source, seconds=seconds)
    else:
        imports, names, attributes = scan(parsed(source))
    is_dynamic = not _DYNAMIC.isdisjoint([*names, *attributes])
    return _Scan(imports, is_dynamic, frozenset(attributes) if imports else frozenset())
