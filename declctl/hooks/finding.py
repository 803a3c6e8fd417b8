"""Python's import machinery for the modules of one bundle: finds them in memory and compiles them.

Generations may share code, which nobody can change, and never what running it has made.
"""

import builtins
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ModuleSpec
from importlib.resources.abc import TraversableResources
from importlib.util import decode_source
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any
from weakref import WeakValueDictionary

from declctl.hooks.apart import LARGE_BYTES, NotCompiled, TooCostly, compile_apart
from declctl.hooks.bundle import Bundle

_Lines = tuple[int, None, list[str], str]

# By name and source, while a generation has it: compiling holds up events, and most files are as they were.
_codes: WeakValueDictionary[tuple[str, bytes], CodeType] = WeakValueDictionary()


class NotInBundle(ModuleNotFoundError):
    """A module is beside the manifest, and the bundle does not have it; `suggestion` says what to do."""

    # `name` has no prefix: `from . import module` passes over an error with the name that it looked for.
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


class BundleFinder(MetaPathFinder, Loader):
    """Finds and loads the modules of a bundle below a prefix of its own.

    While a module is executed, and ever after, its `import` finds the bundle's top-level names
    below the prefix, and everything else as usual. `rest` is called between two modules.

    What is not a module is read from the folder of the bundle, as it is at that moment: `pkgutil.get_data`,
    `importlib.resources`, and the names that `pkgutil.iter_modules` lists.
    """

    def __init__(self, prefix: str, bundle: Bundle, *, rest: Callable[[], object]) -> None:
        self._rest = rest
        self._package = prefix
        self._prefix = f"{prefix}."
        self._bundle = bundle
        self._names = bundle.names
        self._folder = bundle.place
        self._lines: dict[str, _Lines] = {}
        self._codes: list[CodeType] = []
        # The generation has `builtins` of its own, so that its modules may put names into it.
        self._builtins = ModuleType("builtins", builtins.__doc__)
        vars(self._builtins).update(vars(builtins), __import__=self._import)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the signature of a finder
        target: ModuleType | None = None,  # noqa: ARG002
        /,
    ) -> ModuleSpec | None:
        """The spec of a module of this bundle.

        Raises NotInBundle for one that is in the folder of the bundle alone: nobody else is to load it.
        """
        if not fullname.startswith(self._prefix):
            return None
        name = fullname.removeprefix(self._prefix)
        file = self._bundle.path_of(name)
        if file is None and not self._bundle.has_package(name):
            self.require_no_file_of(name)
            return None
        package = file is None or file.endswith("/__init__.py")
        origin = self._bundle.display(file) if file is not None else None
        spec = ModuleSpec(fullname, self, origin=origin, is_package=package)
        if package:
            spec.submodule_search_locations = [str(self._folder.joinpath(*name.split(".")))]
        spec.has_location = file is not None
        spec.loader_state = file
        return spec

    @property
    def folders(self) -> list[str]:
        """Where files beside the modules of the generation are."""
        return [str(self._folder)]

    def make_package(self) -> ModuleType:
        """The package of the whole generation: its modules are those beside the manifest."""
        package = ModuleType(self._package)
        spec = package.__spec__ = ModuleSpec(self._package, self, is_package=True)
        spec.submodule_search_locations = package.__path__ = self.folders
        package.__loader__ = self
        package.__package__ = self._package
        return package

    def get_data(self, path: str) -> bytes:
        """What a file holds, for `pkgutil.get_data`; raises OSError."""
        return Path(path).read_bytes()

    def get_resource_reader(self, fullname: str) -> TraversableResources:
        """The files beside a module, for `importlib.resources`."""
        module = sys.modules.get(fullname)
        name = fullname.removeprefix(self._package).strip(".")
        folder = self._folder.joinpath(*name.split(".")) if name else self._folder
        return _Resources(folder if hasattr(module, "__path__") else folder.parent)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:  # noqa: ARG002 - the signature of a loader
        """An ordinary module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Compile the source and run it, with an `__import__` of the generation's own."""
        spec = module.__spec__
        file: str | None = spec.loader_state if spec is not None else None
        if file is None:
            return  # a folder of modules without a front
        self._rest()
        display = self._bundle.display(file)
        text = self._bundle.source(display) or ""
        # Code has the name that people know, in tracebacks; where the module is, it can rely on.
        place = vars(module)["__file__"] = str(self._folder / file)
        lines = [f"{line}\n" for line in text.split("\n")]
        for name in (display, place):
            self._lines[name] = (len(text), None, lines, name)
            self.show_lines(name)
        vars(module)["__builtins__"] = vars(self._builtins)
        code = _code_of(self._bundle.files[file], display)
        self._codes.append(code)
        exec(code, vars(module))

    def require_no_file_of(self, name: str) -> None:
        """Raise NotInBundle if the folder has a file for a module that the bundle does not have."""
        *folders, module = name.split(".")
        for suffix in (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES, *BYTECODE_SUFFIXES):
            file = self._folder.joinpath(*folders, f"{module}{suffix}")
            if file.is_file():
                raise NotInBundle(file, name)

    def show_lines(self, display: str) -> None:
        """Let tracebacks show this generation's lines of a file, whatever stands in the file by now."""
        if display in self._lines:
            linecache.cache[display] = self._lines[display]

    def close(self) -> None:
        """Take the lines of this generation out of sight, and let go of its code."""
        self._codes.clear()
        for display, lines in self._lines.items():
            if linecache.cache.get(display) is lines:
                del linecache.cache[display]

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the signature of __import__
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if top not in self._names:
            if top == "builtins":
                return self._builtins
            try:
                return builtins.__import__(name, globals, locals, fromlist or (), 0)
            except ModuleNotFoundError as error:
                if error.name == top:  # not a module that an installed one misses
                    self.require_no_file_of(top)
                raise
        leaf = builtins.__import__(f"{self._prefix}{name}", globals, locals, fromlist or (), 0)
        return leaf if fromlist else sys.modules[f"{self._prefix}{top}"]


class _Resources(TraversableResources):
    """The files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def files(self) -> Path:
        """The folder itself."""
        return self._folder


def show_lines_of(error: BaseException) -> None:
    """Let a traceback of this exception show the lines of the generations that it went through."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        waiting += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions
        for file, loader in _frames(current.__traceback__):
            if isinstance(loader, BundleFinder):
                loader.show_lines(file)


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, object]]:
    while trace is not None:
        frame = trace.tb_frame
        yield frame.f_code.co_filename, frame.f_globals.get("__loader__")
        trace = trace.tb_next


def _code_of(source: bytes, display: str) -> CodeType:
    """The code of a file: that of another generation, if it has the same bytes under the same name."""
    code = _codes.get((display, source))
    if code is None:
        code = _codes[display, source] = _compiled(source, display)
    return code


def _compiled(source: bytes, display: str) -> CodeType:
    try:
        # Of text Python counts columns in characters, of bytes not always.
        text = decode_source(source)
        if len(source) > LARGE_BYTES:
            return compile_apart(text, display)
        return compile(text, display, "exec", dont_inherit=True)
    except TooCostly as error:
        raise NotCompiled.because(str(error), display, error.suggestion) from error
    except OSError as error:
        reason = f"no process can be started for it: {error.strerror or error}"
        raise NotCompiled.because(reason, display) from error
    except (RecursionError, MemoryError) as error:  # the parser raises either, for deep nesting
        raise NotCompiled.too_deep(display) from error
    except (SyntaxError, ValueError, OverflowError) as error:
        if isinstance(error, SyntaxError) and error.filename is not None:
            raise
        # Not a text, for example: Python has no place for it, and it is wrong all the same.
        raise SyntaxError(str(error) or type(error).__name__, (display, 1, 1, None)) from error
