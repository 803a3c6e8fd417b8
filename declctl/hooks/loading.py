"""A private namespace for each generation, in which handler modules are imported from memory.

Two generations of one module live side by side, each seeing only its own siblings, however and
whenever it imports them. Sources are compiled where their bytes have changed: Python's own caches go by
seconds and sizes, and would serve yesterday's code after a quick edit.
"""

import importlib
import logging
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from declctl.errors import EntryPointError
from declctl.hooks import faults, processes
from declctl.hooks.bundle import Bundle
from declctl.hooks.finding import BundleFinder, NotInBundle

_counting = threading.Lock()
_made: Counter[int] = Counter()  # by its number, how many generations this process has made


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """What an entry point names: `target` is a module, or an attribute of one."""

    text: str
    module: ModuleType
    target: Any


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
    usual. `close` forgets all of it; what nobody refers to any more can then be collected. `rest` is
    called between two modules, for whoever imports beside something that is more urgent.
    """

    def __init__(self, number: int, bundle: Bundle, *, rest: Callable[[], object] = lambda: None) -> None:
        self.bundle = bundle
        self.prefix = _new_prefix(number)
        self._finder = BundleFinder(self.prefix, bundle, rest=rest)
        if faults.NAMESPACE not in sys.modules:
            package = sys.modules[faults.NAMESPACE] = ModuleType(faults.NAMESPACE)
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
        except BaseException as error:  # foreign code: whatever it raises is a fault of the entry point
            if isinstance(error, ModuleNotFoundError) and not inside and _is_part(error.name, name):
                raise self._not_found(name) from error
            raise faults.of_import(error, f"importing {name}", self.bundle) from error

    def resolve(self, text: str) -> EntryPoint:
        """What `module` or `module:attribute` names; raises EntryPointError."""
        name, _, attribute = text.partition(":")
        module = self.module(name)
        if not attribute:
            return EntryPoint(text, module, module)
        try:
            return EntryPoint(text, module, getattr(module, attribute))
        except AttributeError as error:
            raise self._no_attribute(name, attribute, module) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # foreign code: a module may have a `__getattr__`
            raise faults.of_import(error, f"reading {text}", self.bundle) from error

    def share(self) -> None:
        """Let processes that its code starts import its modules."""
        processes.share(self.prefix, self.bundle)

    def trace(self) -> CodeTrace:
        """What tells later whether its code is gone."""
        return CodeTrace(self.prefix, self._finder)

    def close(self) -> None:
        """Forget every module of this generation, and the loggers that are named after them."""
        processes.withdraw(self.prefix)
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
    """A name that no generation of this process has had: what lives on of an old one is told by its name."""
    # A refused generation and the one after it have the same number, and so have those of several runtimes.
    with _counting:
        _made[number] += 1
        count = _made[number]
    first = f"{faults.NAMESPACE}.g{number}"
    return first if count == 1 else f"{first}_{count}"


def _is_part(missing: str | None, name: str) -> bool:
    return missing is not None and (name == missing or name.startswith(f"{missing}."))


def _below(prefix: str, names: Iterable[str]) -> list[str]:
    """A module's name and those of what is in it. There are thousands of names, and events wait meanwhile."""
    inside = f"{prefix}."
    return [name for name in names if name.startswith(prefix) and (name == prefix or name.startswith(inside))]


def _forget_loggers(prefix: str) -> None:
    """Drop `logging.getLogger(__name__)` of modules that are gone: logging itself keeps loggers for ever."""
    known = logging.Logger.manager.loggerDict
    for name in _below(prefix, known):
        logger = known.pop(name)
        parent = known.get(faults.NAMESPACE)
        if isinstance(parent, logging.PlaceHolder) and isinstance(logger, logging.Logger):
            vars(parent)["loggerMap"].pop(logger, None)
