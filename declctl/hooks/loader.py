"""The private namespace of each generation, into which handler modules are imported from memory.

Two generations of a module exist side by side. Each sees only the modules of its own generation, in every
form of import and at any time. Sources are compiled when their bytes have changed: Python's own caches
compare seconds and sizes, and would use old code after a quick edit. Generations may share code objects,
which are immutable, and nothing else.

Processes that handler code starts, such as those of a `ProcessPoolExecutor`, may need the modules, too. A
forked process has them. A process that is spawned, or forked from a server, imports them by their names. For
such processes a generation writes its sources into a file of a temporary folder, which only this user can
read and whose path is in the environment. The file is removed with the generation.
"""

import builtins
import importlib
import logging
import os
import sys
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ModuleSpec
from importlib.resources.abc import TraversableResources
from importlib.util import decode_source
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from declctl import codes
from declctl.errors import EntryPointError
from declctl.hooks import faults
from declctl.hooks.bundle import Bundle, NotInBundle
from declctl.hooks.calls import NAMESPACE, SourceLines
from declctl.hooks.parser import LARGE_BYTES, CompilationError, TooCostly, compile_apart
from declctl.hooks.reviewed_imports import ReviewedImports
from declctl.kit import yield_interpreter

# By name and source, while a generation uses it. Compiling delays events, and most files do not change.
_codes: WeakValueDictionary[tuple[str, bytes], CodeType] = WeakValueDictionary()
_counting = threading.Lock()
_made: Counter[int] = Counter()  # the number of generations with a number that this process has made
_VARIABLE = "DECLCTL_GENERATIONS"
# A source with one of these words may pass its functions to other processes.
PROCESS_WORDS = (b"multiprocessing", b"ProcessPoolExecutor", b"joblib", b"loky")
_folder: tempfile.TemporaryDirectory[str] | None = None  # of this process; removed at its end
_reviewed = ReviewedImports()


class BundleFinder(MetaPathFinder, Loader):
    """Finds and loads the modules of a bundle below a private prefix.

    The `import` of these modules finds the bundle's top-level names below the prefix, at any time, and
    everything else as usual.

    Other files are read from the folder of the bundle, in their present state: by `pkgutil.get_data`,
    `importlib.resources` and `pkgutil.iter_modules`.
    """

    def __init__(self, prefix: str, bundle: Bundle) -> None:
        self._package = prefix
        self._prefix = f"{prefix}."
        self._bundle = bundle
        self._names = bundle.names
        self._folder = bundle.place
        self.lines = SourceLines()
        self._codes: list[CodeType] = []
        # A copy of `builtins` for the generation, so that its modules may put names into it.
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

        Raises NotInBundle for a module that only the folder of the bundle has: no other finder may load it.
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
        """The folders of the files beside the modules."""
        return [str(self._folder)]

    def make_package(self) -> ModuleType:
        """The package of the whole generation, with the modules beside the manifest."""
        package = ModuleType(self._package)
        spec = package.__spec__ = ModuleSpec(self._package, self, is_package=True)
        spec.submodule_search_locations = package.__path__ = self.folders
        package.__loader__ = self
        package.__package__ = self._package
        return package

    def get_data(self, path: str) -> bytes:
        """The content of a file, for `pkgutil.get_data`; raises OSError."""
        return Path(path).read_bytes()

    def get_resource_reader(self, fullname: str) -> TraversableResources:
        """The files beside a module, for `importlib.resources`."""
        module = sys.modules.get(fullname)
        name = fullname.removeprefix(self._package).strip(".")
        folder = self._folder.joinpath(*name.split(".")) if name else self._folder
        return _Resources(folder if hasattr(module, "__path__") else folder.parent)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:  # noqa: ARG002 - the signature of a loader
        """None: Python makes an ordinary module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Compile the source and run it, with the `__import__` of the generation."""
        spec = module.__spec__
        file: str | None = spec.loader_state if spec is not None else None
        if file is None:
            return  # a folder of modules without an `__init__.py`
        yield_interpreter()  # imports give way to events
        display = self._bundle.display(file)
        text = self._bundle.source(display) or ""
        # Code has the path that users know, for tracebacks; the module has the real path.
        place = vars(module)["__file__"] = str(self._folder / file)
        self.lines.add(display, text)
        self.lines.add(place, text)
        vars(module)["__builtins__"] = vars(self._builtins)
        code = _code_of(self._bundle.files[file], display)
        self._codes.append(code)
        exec(code, vars(module))

    def require_no_file_of(self, name: str) -> None:
        """Raise NotInBundle if the folder has a file for a module that the bundle does not have."""
        inner = name.replace(".", "/")
        for suffix in (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES, *BYTECODE_SUFFIXES):
            for file in (self._folder / f"{inner}{suffix}", self._folder / f"{inner}/__init__{suffix}"):
                if file.is_file():
                    raise NotInBundle(file, name)

    def install(self) -> None:
        """Find modules from now on. No other file beside a reviewed bundle is imported again."""
        if self._bundle.is_reviewed:
            _reviewed.add(self._folder)
            if _reviewed not in sys.meta_path:
                # Behind the finders of bundles, which load from memory.
                bundles = [isinstance(each, BundleFinder) for each in sys.meta_path]
                sys.meta_path.insert(bundles.index(False), _reviewed)
        sys.meta_path.insert(0, self)

    def close(self) -> None:
        """Remove the source lines of this generation from tracebacks, and forget its code."""
        self._codes.clear()
        self.lines.remove()

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
                if error.name == top:  # only for this module, not for one that it imports
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


def _code_of(source: bytes, display: str) -> CodeType:
    """The code of a file, shared with other generations that have the same bytes under the same name."""
    code = _codes.get((display, source))
    if code is None:
        code = _codes[display, source] = _compiled(source, display)
    return code


def _compiled(source: bytes, display: str) -> CodeType:
    try:
        # Python counts the columns of text in characters, but not always those of bytes.
        text = decode_source(source)
        if len(source) > LARGE_BYTES:
            return compile_apart(text, display)
        return compile(text, display, "exec", dont_inherit=True)
    except TooCostly as error:
        raise CompilationError.because(str(error), display, error.suggestion) from error
    except OSError as error:
        reason = f"no process can be started for it: {error.strerror or error}"
        raise CompilationError.because(reason, display) from error
    except (RecursionError, MemoryError) as error:  # the parser raises either, for deep nesting
        raise CompilationError.too_deep(display) from error
    except (SyntaxError, ValueError, OverflowError) as error:
        if isinstance(error, SyntaxError) and error.filename is not None:
            raise
        # Not a text, for example: Python names no line.
        raise SyntaxError(str(error) or type(error).__name__, (display, 1, 1, None)) from error


class CodeTrace:
    """Shows whether any code of a generation is still referenced, without a reference to it.

    Every function refers to the names of its module, and these to the module's loader.
    """

    def __init__(self, prefix: str, finder: BundleFinder) -> None:
        self.prefix = prefix
        self._finder = weakref.ref(finder)

    @property
    def is_alive(self) -> bool:
        """Whether something of it is referenced, or was not collected yet."""
        return self._finder() is not None


class GenerationNamespace:
    """The modules of one generation, in the package `_declctl_gen.g<number>`.

    A module sees the bundle's top-level names as those of its own generation, and everything else as usual.
    `close` forgets all modules, so that unreferenced ones can be collected. `rest` is called between two
    modules, so that more urgent threads can run.
    """

    def __init__(self, number: int, bundle: Bundle) -> None:
        self.bundle = bundle
        self.prefix = _new_prefix(number)
        self._finder = BundleFinder(self.prefix, bundle)
        if NAMESPACE not in sys.modules:
            package = sys.modules[NAMESPACE] = ModuleType(NAMESPACE)
            package.__path__ = []
        sys.modules[self.prefix] = self._finder.make_package()
        self._finder.install()

    def module(self, name: str) -> ModuleType:
        """Import a module: that of the bundle, if it has one of this name, else an installed one.

        Raises EntryPointError with the place of the fault, if it is in a handler file.
        """
        inside = name.partition(".")[0] in self.bundle.names
        full = f"{self.prefix}.{name}" if inside else name
        if inside and self.bundle.path_of(name) is None and not self.bundle.has_package(name):
            raise self._not_found(name)
        try:
            return importlib.import_module(full)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # user code: any exception is a fault of the entry point
            # The module itself is missing, or one of its packages; not a module that it imports.
            if (
                isinstance(error, ModuleNotFoundError)
                and not inside
                and error.name is not None
                and f"{name}.".startswith(f"{error.name}.")
            ):
                raise self._not_found(name) from error
            raise faults.of_import(error, f"importing {name}", self.bundle) from error

    def resolve(self, text: str) -> Any:
        """The module of `module`, or the attribute of `module:attribute`. Raises EntryPointError."""
        name, _, attribute = text.partition(":")
        module = self.module(name)
        if not attribute:
            return module
        try:
            return getattr(module, attribute)
        except AttributeError as error:
            raise self._no_attribute(name, attribute, module) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # user code: a module may have a `__getattr__`
            raise faults.of_import(error, f"reading {text}", self.bundle) from error

    def share(self) -> None:
        """Allow processes that its code starts to import its modules."""
        share(self.prefix, self.bundle)

    def trace(self) -> CodeTrace:
        """The trace of its code."""
        return CodeTrace(self.prefix, self._finder)

    def close(self) -> None:
        """Forget all modules of this generation, and the loggers that are named after them."""
        withdraw(self.prefix)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        self._finder.close()
        for name in _below(self.prefix, sys.modules):
            del sys.modules[name]
        _forget_loggers(self.prefix)

    def _not_found(self, name: str) -> EntryPointError:
        try:
            self._finder.require_no_file_of(name)
        except NotInBundle as compiled:
            return EntryPointError(str(compiled), code=codes.MODULE_NOT_FOUND, suggestion=compiled.suggestion)
        where = self.bundle.root or "."
        return EntryPointError(
            f"there is no module {name!r}, neither beside the manifest ({where}) nor installed",
            code=codes.MODULE_NOT_FOUND,
            suggestion=self._instead_of(name),
        )

    def _instead_of(self, name: str) -> str:
        """A suggestion for a missing module."""
        module, _, attribute = name.rpartition(".")
        if module:
            known = self._names_in(module)
            meant = attribute if attribute in known else faults.closest(attribute, known)
            if meant is not None:
                return f'did you mean "{module}:{meant}"? A colon stands before what is in a module'
        near = faults.closest(name, {*self.bundle.modules, *self.bundle.beside()})
        return (
            f'did you mean "{near}"?' if near else f"create {name.replace('.', '/')}.py beside the manifest"
        )

    def _names_in(self, module: str) -> list[str]:
        """The functions and classes of a module of the bundle, or of an imported module."""
        path = self.bundle.path_of(module)
        if path is not None:
            return faults.defined_in(self.bundle.source(self.bundle.display(path)) or "")
        return [
            name for name, value in vars(sys.modules.get(module, None) or object).items() if callable(value)
        ]

    def _no_attribute(self, name: str, attribute: str, module: ModuleType) -> EntryPointError:
        known = [key for key, value in vars(module).items() if not key.startswith("_") and callable(value)]
        near = faults.closest(attribute, known)
        own = [key for key in known if getattr(vars(module)[key], "__module__", None) == module.__name__]
        if f"{name}.{attribute}" in self.bundle.modules:
            suggestion = f'{attribute} is a module: write "{name}.{attribute}"'
        elif near is not None:
            suggestion = f'did you mean "{name}:{near}"?'
        else:
            suggestion = f"it defines {', '.join(own) or 'no function and no class'}"
        return EntryPointError(
            f"{name} has no {attribute!r}", code=codes.ATTRIBUTE_NOT_FOUND, suggestion=suggestion
        )


def _new_prefix(number: int) -> str:
    """A package name that no generation of this process has had, so that it identifies this one."""
    # A refused generation and the next one have the same number, as have those of several runtimes.
    with _counting:
        _made[number] += 1
        count = _made[number]
    first = f"{NAMESPACE}.g{number}"
    return first if count == 1 else f"{first}_{count}"


def _below(prefix: str, names: Iterable[str]) -> list[str]:
    """A module name and all names below it. There are thousands of names, and events wait meanwhile."""
    inside = f"{prefix}."
    return [name for name in names if name.startswith(prefix) and (name == prefix or name.startswith(inside))]


def _forget_loggers(prefix: str) -> None:
    """Forget the loggers of removed modules (`getLogger(__name__)`), which `logging` never does."""
    known = logging.Logger.manager.loggerDict
    for name in _below(prefix, known):
        logger = known.pop(name)
        parent = known.get(NAMESPACE)
        if isinstance(parent, logging.PlaceHolder) and isinstance(logger, logging.Logger):
            vars(parent)["loggerMap"].pop(logger, None)


def share(prefix: str, bundle: Bundle) -> None:
    """Allow processes that are started from now on to import the modules of a generation.

    Does nothing if no source mentions processes, or if no file can be written; then the import in such a
    process names the reason. `prefix` is the private package of the generation. Blocks. Not thread-safe.
    """
    global _folder  # noqa: PLW0603 - the environment, which names it, is of the process as well
    if not any(word in source for source in bundle.files.values() for word in PROCESS_WORDS):
        return
    with suppress(OSError):
        if _folder is None or not Path(_folder.name).is_dir():  # another program may have removed the folder
            _folder = tempfile.TemporaryDirectory(prefix="declctl-generations-", ignore_cleanup_errors=True)
        os.environ[_VARIABLE] = _folder.name
        Path(_folder.name, prefix).write_bytes(msgspec.msgpack.encode(bundle))


def withdraw(prefix: str) -> None:
    """Allow the import of a generation's modules no longer in processes that are started from now on."""
    if _folder is not None:
        with suppress(OSError):
            Path(_folder.name, prefix).unlink(missing_ok=True)


def withdraw_all() -> None:
    """Remove the temporary folder at once: this process is about to execute another program."""
    global _folder  # noqa: PLW0603 - as above
    if _folder is not None:
        _folder.cleanup()
        _folder = None


class SharedGenerations(MetaPathFinder):
    """Finds the packages of generations that the parent process has shared.

    Each is read once, and then served from memory. `namespace` is the package of all generations.
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
        """The package of a generation. Raises ModuleNotFoundError with the reason if it is not shared."""
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
        finder = BundleFinder(fullname, bundle)
        finder.install()
        spec = ModuleSpec(fullname, finder, is_package=True)
        spec.submodule_search_locations = finder.folders
        return spec
