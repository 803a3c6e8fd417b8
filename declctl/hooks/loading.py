"""A private namespace for each generation, in which handler modules are imported from memory.

Two generations of one module live side by side, each seeing only its own siblings, however and
whenever it imports them. Sources are compiled each time: bytecode caches go by seconds and sizes,
and would serve yesterday's code after a quick edit.
"""

import builtins
import importlib
import linecache
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from declctl.errors import EntryPointError
from declctl.hooks import faults
from declctl.hooks.bundle import Bundle

_ROOT = "_declctl_gen"


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """What an entry point names: a module, or an attribute of one."""

    text: str
    module: ModuleType
    attribute: Any = None

    @property
    def target(self) -> Any:
        """The attribute if one was named, else the module."""
        return self.module if self.attribute is None else self.attribute


class GenerationNamespace:
    """The modules of one generation, under `_declctl_gen.g<number>`.

    A module sees the bundle's top-level names as its own generation's, and everything else as
    usual. `close` forgets all of it; what nobody refers to any more can then be collected.
    """

    def __init__(self, number: int, bundle: Bundle) -> None:
        self.bundle = bundle
        self.prefix = f"{_ROOT}.g{number}"
        self._finder = _Finder(self.prefix, bundle)
        for name in (_ROOT, self.prefix):
            if name not in sys.modules:
                package = ModuleType(name)
                package.__path__ = []
                sys.modules[name] = package
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
        except ModuleNotFoundError as error:
            if not inside and (error.name == name or name.startswith(f"{error.name}.")):
                raise self._not_found(name) from error
            raise faults.of_import(error, name, self.bundle) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # foreign code: whatever it raises is a fault of the entry point
            raise faults.of_import(error, name, self.bundle) from error

    def resolve(self, text: str) -> EntryPoint:
        """What `module` or `module:attribute` names; raises EntryPointError."""
        name, _, attribute = text.partition(":")
        module = self.module(name)
        if not attribute:
            return EntryPoint(text, module)
        if not hasattr(module, attribute):
            public = [known for known in vars(module) if not known.startswith("_")]
            near = faults.closest(attribute, public)
            raise EntryPointError(
                f"{name} has no {attribute!r}",
                code=faults.ATTRIBUTE_NOT_FOUND,
                suggestion=f'did you mean "{name}:{near}"?' if near else None,
            )
        return EntryPoint(text, module, getattr(module, attribute))

    def close(self) -> None:
        """Forget every module of this generation."""
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        for name in [n for n in sys.modules if n == self.prefix or n.startswith(f"{self.prefix}.")]:
            del sys.modules[name]
        root = sys.modules.get(_ROOT)
        if root is not None:
            vars(root).pop(self.prefix.rpartition(".")[2], None)

    def _not_found(self, name: str) -> EntryPointError:
        modules = [
            path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in self.bundle.files
        ]
        near = faults.closest(name, modules)
        where = self.bundle.root or "."
        return EntryPointError(
            f"there is no module {name!r}, neither beside the manifest ({where}) nor installed",
            code=faults.MODULE_NOT_FOUND,
            suggestion=f'did you mean "{near}"?'
            if near
            else f"create {name.replace('.', '/')}.py beside the manifest",
        )


class _Finder(MetaPathFinder, Loader):
    """Finds and loads the modules of one generation."""

    def __init__(self, prefix: str, bundle: Bundle) -> None:
        self._prefix = f"{prefix}."
        self._bundle = bundle
        self._names = bundle.names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """The spec of a module of this generation."""
        if not fullname.startswith(self._prefix):
            return None
        name = fullname.removeprefix(self._prefix)
        file = self._bundle.path_of(name)
        package = (file is not None and file.endswith("/__init__.py")) or self._bundle.has_package(name)
        if file is None and not package:
            return None
        origin = self._bundle.display(file) if file is not None else None
        spec = ModuleSpec(fullname, self, origin=origin, is_package=package)
        spec.has_location = file is not None
        spec.loader_state = file
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """An ordinary module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Compile the source and run it, with an `__import__` of the generation's own."""
        spec = module.__spec__
        file: str | None = spec.loader_state if spec is not None else None
        if file is None:
            return  # a folder of modules without a front
        source, display = self._bundle.files[file], self._bundle.display(file)
        text = source.decode("utf-8", "replace")
        # Tracebacks show this generation's lines, whatever stands in the file by then.
        linecache.cache[display] = (len(text), None, text.splitlines(keepends=True), display)
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}
        exec(compile(source, display, "exec", dont_inherit=True), vars(module))

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the signature of __import__
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or top not in self._names:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        leaf = builtins.__import__(f"{self._prefix}{name}", globals, locals, fromlist or (), 0)
        return leaf if fromlist else sys.modules[f"{self._prefix}{top}"]
