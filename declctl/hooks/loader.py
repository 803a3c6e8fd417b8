"""A private namespace for each generation, in which handler modules are imported from memory.

Two generations of one module live side by side, each seeing its own siblings only, however and whenever it
imports them. Sources are compiled where their bytes have changed: Python's own caches go by seconds and
sizes, and would serve yesterday's code after a quick edit. Generations may share code objects, which nothing
can change, and never what running them has made.

Processes that handler code starts, such as those of a `ProcessPoolExecutor`, may need the modules, too. A
process that is forked has them. One that is spawned, or forked from a server, imports them anew, by their
names. For those processes a generation writes its sources into a file of a temporary folder, which only this
user can read and which the environment names; it is gone when the generation is.
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

from declctl.errors import EntryPointError
from declctl.hooks import faults
from declctl.hooks.bundle import Bundle, NotInBundle
from declctl.hooks.calls import NAMESPACE, SourceLines
from declctl.hooks.parser import LARGE_BYTES, NotCompiled, TooCostly, compile_apart
from declctl.kit import yield_interpreter

# By name and source, while a generation has it: compiling holds up events, and most files are as they were.
_codes: WeakValueDictionary[tuple[str, bytes], CodeType] = WeakValueDictionary()
_counting = threading.Lock()
_made: Counter[int] = Counter()  # by its number, how many generations this process has made
_VARIABLE = "DECLCTL_GENERATIONS"
# Where a source has one of these, its functions may be given to other processes.
PROCESS_WORDS = (b"multiprocessing", b"ProcessPoolExecutor", b"joblib", b"loky")
_folder: tempfile.TemporaryDirectory[str] | None = None  # of this process; it is removed at its end


class BundleFinder(MetaPathFinder, Loader):
    """Finds and loads the modules of a bundle below a prefix of its own.

    While a module is executed, and ever after, its `import` finds the bundle's top-level names
    below the prefix, and everything else as usual.

    What is not a module is read from the folder of the bundle, as it is at that moment: `pkgutil.get_data`,
    `importlib.resources`, and the names that `pkgutil.iter_modules` lists.
    """

    def __init__(self, prefix: str, bundle: Bundle) -> None:
        self._package = prefix
        self._prefix = f"{prefix}."
        self._bundle = bundle
        self._names = bundle.names
        self._folder = bundle.place
        self.lines = SourceLines()
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

        Raises NotInBundle for one that is in the folder of the bundle alone: no other finder may load it.
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
        yield_interpreter()  # events are in a hurry, and an import is not
        display = self._bundle.display(file)
        text = self._bundle.source(display) or ""
        # Code has the name that people know, in tracebacks; where the module is, it can rely on.
        place = vars(module)["__file__"] = str(self._folder / file)
        self.lines.add(display, text)
        self.lines.add(place, text)
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

    def close(self) -> None:
        """Take the lines of this generation out of sight, and let go of its code."""
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


class CodeTrace:
    """Tells whether any code of a generation is left, without keeping it.

    Every function refers to the names of its module, and these to the module's loader.
    """

    def __init__(self, prefix: str, finder: BundleFinder) -> None:
        self.prefix = prefix
        self._finder = weakref.ref(finder)

    @property
    def is_alive(self) -> bool:
        """Whether something is left, or has not been collected."""
        return self._finder() is not None


class GenerationNamespace:
    """The modules of one generation, under `_declctl_gen.g<number>`.

    A module sees the bundle's top-level names as its own generation's, and everything else as
    usual. `close` forgets all of it; what has no reference any more can then be collected. `rest` is
    called between two modules, so that more urgent threads can run.
    """

    def __init__(self, number: int, bundle: Bundle) -> None:
        self.bundle = bundle
        self.prefix = _new_prefix(number)
        self._finder = BundleFinder(self.prefix, bundle)
        if NAMESPACE not in sys.modules:
            package = sys.modules[NAMESPACE] = ModuleType(NAMESPACE)
            package.__path__ = []
        sys.modules[self.prefix] = self._finder.make_package()
        sys.meta_path.insert(0, self._finder)

    def module(self, name: str) -> ModuleType:
        """Import a module: of the bundle if it has one of that name, else an installed one.

        Raises EntryPointError, located in the handler file where the fault is in one.
        """
        inside = name.partition(".")[0] in self.bundle.names
        full = f"{self.prefix}.{name}" if inside else name
        if inside and self.bundle.path_of(name) is None and not self.bundle.has_package(name):
            raise self._not_found(name)
        try:
            return importlib.import_module(full)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # user code: whatever it raises is a fault of the entry point
            # The module itself is missing, or a package that it is in; not a module that it imports.
            if (
                isinstance(error, ModuleNotFoundError)
                and not inside
                and error.name is not None
                and f"{name}.".startswith(f"{error.name}.")
            ):
                raise self._not_found(name) from error
            raise faults.of_import(error, f"importing {name}", self.bundle) from error

    def resolve(self, text: str) -> Any:
        """The module of `module`, or the attribute of `module:attribute`; raises EntryPointError."""
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
        """Let processes that its code starts import its modules."""
        share(self.prefix, self.bundle)

    def trace(self) -> CodeTrace:
        """What tells later whether its code is gone."""
        return CodeTrace(self.prefix, self._finder)

    def close(self) -> None:
        """Forget every module of this generation, and the loggers that are named after them."""
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
            return EntryPointError(
                str(compiled), code=faults.MODULE_NOT_FOUND, suggestion=compiled.suggestion
            )
        where = self.bundle.root or "."
        return EntryPointError(
            f"there is no module {name!r}, neither beside the manifest ({where}) nor installed",
            code=faults.MODULE_NOT_FOUND,
            suggestion=self._instead_of(name),
        )

    def _instead_of(self, name: str) -> str:
        """What to write instead of a module that there is not."""
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
        """The functions and classes of a module of the bundle, or of one that is imported already."""
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
            f"{name} has no {attribute!r}", code=faults.ATTRIBUTE_NOT_FOUND, suggestion=suggestion
        )


def _new_prefix(number: int) -> str:
    """A name that no generation of this process has had: it identifies what remains of an old one."""
    # A refused generation and the one after it have the same number, and so have those of several runtimes.
    with _counting:
        _made[number] += 1
        count = _made[number]
    first = f"{NAMESPACE}.g{number}"
    return first if count == 1 else f"{first}_{count}"


def _below(prefix: str, names: Iterable[str]) -> list[str]:
    """A module's name and those of what is in it. There are thousands of names, and events wait meanwhile."""
    inside = f"{prefix}."
    return [name for name in names if name.startswith(prefix) and (name == prefix or name.startswith(inside))]


def _forget_loggers(prefix: str) -> None:
    """Drop `logging.getLogger(__name__)` of modules that are gone: logging itself keeps loggers for ever."""
    known = logging.Logger.manager.loggerDict
    for name in _below(prefix, known):
        logger = known.pop(name)
        parent = known.get(NAMESPACE)
        if isinstance(parent, logging.PlaceHolder) and isinstance(logger, logging.Logger):
            vars(parent)["loggerMap"].pop(logger, None)


def share(prefix: str, bundle: Bundle) -> None:
    """Let processes that are started from now on import the modules of a generation.

    Does nothing where no source mentions processes, and where no file can be written: a process that needs it
    says so. `prefix` is the private package of the generation. Blocks; not from two threads at once.
    """
    global _folder  # noqa: PLW0603 - the environment, which names it, is of the process as well
    if not any(word in source for source in bundle.files.values() for word in PROCESS_WORDS):
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
        finder = BundleFinder(fullname, bundle)
        sys.meta_path.insert(0, finder)
        spec = ModuleSpec(fullname, finder, is_package=True)
        spec.submodule_search_locations = finder.folders
        return spec
