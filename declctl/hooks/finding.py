"""Python's import machinery for the modules of one bundle: finds them in memory and compiles them.

Generations may share code, which nobody can change, and never what running it has made.
"""

import builtins
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import decode_source
from types import CodeType, ModuleType, TracebackType
from typing import Any
from weakref import WeakValueDictionary

from declctl.hooks.apart import LARGE_BYTES, NotCompiled, TooCostly, compile_apart
from declctl.hooks.bundle import Bundle

_Lines = tuple[int, None, list[str], str]

# By name and source, while a generation has it: compiling holds up events, and most files are as they were.
_codes: WeakValueDictionary[tuple[str, bytes], CodeType] = WeakValueDictionary()


class BundleFinder(MetaPathFinder, Loader):
    """Finds and loads the modules of a bundle below a prefix of its own.

    While a module is executed, and ever after, its `import` finds the bundle's top-level names
    below the prefix, and everything else as usual. `rest` is called between two modules.
    """

    def __init__(self, prefix: str, bundle: Bundle, *, rest: Callable[[], object]) -> None:
        self._rest = rest
        self._prefix = f"{prefix}."
        self._bundle = bundle
        self._names = bundle.names
        self._lines: dict[str, _Lines] = {}
        self._codes: list[CodeType] = []

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the signature of a finder
        target: ModuleType | None = None,  # noqa: ARG002
        /,
    ) -> ModuleSpec | None:
        """The spec of a module of this bundle."""
        if not fullname.startswith(self._prefix):
            return None
        name = fullname.removeprefix(self._prefix)
        file = self._bundle.path_of(name)
        if file is None and not self._bundle.has_package(name):
            return None
        package = file is None or file.endswith("/__init__.py")
        origin = self._bundle.display(file) if file is not None else None
        spec = ModuleSpec(fullname, self, origin=origin, is_package=package)
        spec.has_location = file is not None
        spec.loader_state = file
        return spec

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
        self._lines[display] = (len(text), None, [f"{line}\n" for line in text.split("\n")], display)
        self.show_lines(display)
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}
        code = _code_of(self._bundle.files[file], display)
        self._codes.append(code)
        exec(code, vars(module))

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
        if level or top not in self._names:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        leaf = builtins.__import__(f"{self._prefix}{name}", globals, locals, fromlist or (), 0)
        return leaf if fromlist else sys.modules[f"{self._prefix}{top}"]


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
