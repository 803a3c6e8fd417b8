"""Bundles: the handler files of a generation, in memory."""

import ast
import hashlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import decode_source
from pathlib import Path
from typing import NamedTuple

_MOST_KNOWN = 1000  # sources whose imports are remembered


@dataclass(frozen=True, slots=True)
class Bundle:
    """Sources by POSIX path below `root`, such as `handlers/pods.py`.

    `root` is how people know the folder.
    """

    root: str
    files: Mapping[str, bytes]

    def path_of(self, module: str) -> str | None:
        """The file of a dotted module name; the front of a package before a module, as Python has it.

        None if it isn't in the bundle.
        """
        stem = module.replace(".", "/")
        return next((path for path in (f"{stem}/__init__.py", f"{stem}.py") if path in self.files), None)

    def has_package(self, module: str) -> bool:
        """Whether the name is a folder of modules, with a front or without."""
        return any(path.startswith(module.replace(".", "/") + "/") for path in self.files)

    def display(self, path: str) -> str:
        """How people know a file of the bundle."""
        return path if self.root in ("", ".") else f"{self.root.rstrip('/')}/{path}"

    def source(self, display: str) -> str | None:
        """The text of the file that people know as `display`; bytes that are none are replaced."""
        data = next((data for path, data in self.files.items() if self.display(path) == display), None)
        if data is None:
            return None
        try:
            return decode_source(data)
        except (SyntaxError, UnicodeDecodeError):  # whoever imports it tells what is wrong
            return data.decode("utf-8", "replace")

    @property
    def modules(self) -> tuple[str, ...]:
        """Every module by its dotted name."""
        stems = (path.removesuffix(".py").removesuffix("/__init__") for path in self.files)
        return tuple(stem.replace("/", ".") for stem in stems)

    @property
    def names(self) -> frozenset[str]:
        """The top-level modules and packages: these belong to the generation alone."""
        return frozenset(path.split("/", 1)[0].removesuffix(".py") for path in self.files)


def closure(
    root: Path,
    modules: Iterable[str],
    *,
    display: str | None = None,
    rest: Callable[[], object] = lambda: None,
) -> Bundle:
    """Read what entry points reach: their top-level modules beside the manifest, and those that these import.

    A package is read whole. Imports are found by looking at the sources, inside functions too; a
    file with a syntax error imports nothing, and is read all the same. Modules that are not beside
    the manifest are left to Python. `rest` is called between two files. Raises OSError.
    """
    files: dict[str, bytes] = {}
    waiting = [module.partition(".")[0] for module in modules]
    named = frozenset(waiting)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in named and _is_elsewhere(root, name):
            continue
        for path in _files_of(root, name):
            rest()
            inner = path.relative_to(root)
            data = files[inner.as_posix()] = path.read_bytes()
            rest()
            waiting += _imported(data, depth=len(inner.parts) - 1)
    return Bundle(str(root) if display is None else display, dict(sorted(files.items())))


def reached(bundle: Bundle, module: str) -> Mapping[str, bytes]:
    """The files of a bundle that a module is made of: its own, the packages it is in, and what these import.

    Imports are found as `closure` finds them.
    """
    found: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        parts = waiting.pop().split(".")
        for length in range(1, len(parts) + 1):
            name = ".".join(parts[:length])
            path = bundle.path_of(name)
            if path is not None and path not in found:
                found[path] = bundle.files[path]
                package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
                waiting += _imported_modules(found[path], package)
    return dict(sorted(found.items()))


def _imported_modules(source: bytes, package: str) -> Iterator[str]:
    """The dotted names that a source in `package` may import; those of attributes are among them."""
    for names, module, level in _imports(source):
        if level is None:
            yield from names
        else:
            above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            base = ".".join([*above, *filter(None, [module])])
            yield from (f"{base}.{name}".strip(".") for name in names)


def _files_of(root: Path, name: str) -> Iterator[Path]:
    module, package = root / f"{name}.py", root / name
    if module.is_file() and not (package / "__init__.py").is_file():
        yield module
    elif package.is_dir():
        for path in sorted(package.rglob("*.py")):
            inner = path.relative_to(root).parts
            if path.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in inner):
                yield path


def _is_elsewhere(root: Path, name: str) -> bool:
    """Whether a name is a mere folder here and installed as well: then Python means the installed one."""
    folder = root / name
    if not folder.is_dir() or (folder / "__init__.py").is_file() or (root / f"{name}.py").is_file():
        return False
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def _imported(source: bytes, *, depth: int) -> Iterator[str]:
    """The top-level names that a source may import; `depth` is the number of packages that it is in."""
    for statement in _imports(source):
        if statement.level is None:
            yield from (name.partition(".")[0] for name in statement.names)
        elif statement.level == 0 or statement.level > depth:
            # A relative import inside a package stays there, unless it climbs out of it to a sibling.
            if statement.module is None:
                yield from statement.names
            else:
                yield statement.module.partition(".")[0]


class _Statement(NamedTuple):
    """`import names`, which has no level, or `from module import names`."""

    names: tuple[str, ...]
    module: str | None
    level: int | None


_known: dict[bytes, tuple[_Statement, ...]] = {}  # by the digest of a source


def _imports(source: bytes) -> tuple[_Statement, ...]:
    """The imports of a source, inside functions too; none where it has a syntax error.

    Files that have not changed are read again and again, and each parsing keeps events waiting.
    """
    digest = hashlib.sha256(source).digest()
    found = _known.get(digest)
    if found is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        found = _known[digest] = tuple(_statements(source))
    return found


def _statements(source: bytes) -> Iterator[_Statement]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # whoever imports it tells what is wrong
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield _Statement(tuple(alias.name for alias in node.names), None, None)
        elif isinstance(node, ast.ImportFrom):
            yield _Statement(tuple(alias.name for alias in node.names), node.module, node.level)
