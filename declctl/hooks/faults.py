"""The places of faults in user code.

Exceptions and functions are traced to a file, a line and a column. Columns count characters from 1.
"""

import ast
import builtins
import difflib
import errno
import inspect
import re
import traceback
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from declctl import codes
from declctl.errors import EntryPointError
from declctl.hooks.bundle import Bundle, NotInBundle
from declctl.hooks.calls import describe, describe_with_place, place_of, without_prefix
from declctl.hooks.parser import CompilationError
from declctl.hooks.syntax import parsed

_DEFINITION = re.compile(r"^(?:async +def|def|class) +([^\W_]\w*)", re.MULTILINE)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Place = tuple[str, int, int]


def closest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that the user probably meant; None if none is close."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return found[0] if found else None


def defined_in(source: str) -> list[str]:
    """The public functions and classes that a source defines at its top level.

    They are found by the beginnings of lines, because parsing is too expensive for a suggestion. A line of a
    text may be taken for a definition.
    """
    return _DEFINITION.findall(source)


def of_import(error: BaseException, doing: str, bundle: Bundle) -> EntryPointError:
    """The fault for an exception of an activity (`doing`), such as "importing handlers.pods"."""
    if isinstance(error, SyntaxError) and error.filename and bundle.source(error.filename) is not None:
        place: _Place | None = (error.filename, error.lineno or 1, max(1, error.offset or 1))
        if isinstance(error, CompilationError):
            return _located(error.msg, codes.HANDLER_SYNTAX, place, error.suggestion)
        return _located(f"this is not valid Python: {error.msg}", codes.HANDLER_SYNTAX, place, None)
    place = _innermost(error.__traceback__, bundle)
    if isinstance(error, SystemExit):
        argument = repr(error.code) if error.code is not None else ""
        message = f"{doing} ends the process: it raises SystemExit({argument})"
        advice = 'guard scripts with `if __name__ == "__main__":`'
        return _located(message, codes.IMPORT_EXITED, place, advice)
    what = describe(error) if place is not None else describe_with_place(error)
    return _located(f"{doing} raises {what}", codes.IMPORT_RAISED, place, _advice(error, bundle))


def of_metrics(error: BaseException, owner: str, bundle: Bundle) -> EntryPointError:
    """The fault for an exception of `declctl_metrics` of a plugin or a module, at the line that raised."""
    place = _innermost(error.__traceback__, bundle)
    advice = getattr(error, "suggestion", None)  # of a refused name, whose message is a whole sentence
    if isinstance(advice, str):
        at = place_of(error) if place is None else ""
        message = f"declctl_metrics of {owner}: {error}{f' ({at})' if at else ''}"
        return _located(message, codes.BAD_METRICS, place, advice)
    what = describe(error) if place is not None else describe_with_place(error)
    return _located(f"declctl_metrics of {owner} raised {what}", codes.BAD_METRICS, place, None)


def of_function(
    function: Callable[..., Any],
    message: str,
    *,
    code: str,
    suggestion: str | None,
    bundle: Bundle,
    parameter: str | None = None,
) -> EntryPointError:
    """The fault of a function, at its name in the `def`, or at the name of a parameter."""
    place = _place(function, parameter, bundle)
    target = getattr(inspect.unwrap(function), "__code__", None)
    if place is None and target is not None:
        # The function is not in the bundle; it may belong to an installed plugin.
        message = f"{message} ({target.co_filename}:{target.co_firstlineno})"
    return _located(message, code, place, suggestion)


def of_class(
    cls: type,
    field: str,
    message: str,
    *,
    code: str,
    suggestion: str | None,
    bundle: Bundle,
    text: str = "",
) -> EntryPointError:
    """The fault of a field of a class, at its annotation; of the class itself if `field` is empty.

    It is at `text`, if a string of the annotation, or of a decorator of the class, is that.
    """
    path = bundle.path_of(without_prefix(cls.__module__))
    nodes = () if path is None else ast.walk(parsed(bundle.files[path]))
    found = next(
        (node for node in nodes if isinstance(node, ast.ClassDef) and node.name == cls.__name__), None
    )
    if found is None or path is None:  # of an installed package, or made by a call
        return _located(f"{message} (class {cls.__module__}.{cls.__qualname__})", code, None, suggestion)
    line, column = found.lineno, found.col_offset + len("class ") + 1
    parts = found.decorator_list
    for node in found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == field:
            line, column = node.target.lineno, node.target.col_offset + 1
            parts = [node.annotation]
    for node in (each for part in parts for each in ast.walk(part)):
        if text and isinstance(node, ast.Constant) and node.value == text:
            line, column = node.lineno, node.col_offset + 1
    return _located(message, code, (bundle.display(path), line, column), suggestion)


def _located(message: str, code: str, place: _Place | None, suggestion: str | None) -> EntryPointError:
    file, line, column = place if place is not None else (None, None, None)
    return EntryPointError(message, code=code, file=file, line=line, column=column, suggestion=suggestion)


def _advice(error: BaseException, bundle: Bundle) -> str | None:
    if isinstance(error, NotInBundle):
        return error.suggestion
    if isinstance(error, ModuleNotFoundError):
        return _instead_of_module(error, bundle)
    if isinstance(error, NameError) and hasattr(builtins, error.name or ""):
        return (
            f"other code has put {error.name} into Python's builtins, of which each generation has its own: "
            "import it, or assign it in this module"
        )
    # A resource of the process that one generation has taken is not free for another; see
    # `declctl.hooks.lint`.
    if "Duplicated timeseries" in describe(error):
        return (
            "the generation that runs has registered it at its import, if these files do it once: add it in "
            "declctl_metrics(registry), which gives each generation a registry of its own"
        )
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return (
            "the generation that runs has opened it at its import, or another process has it: open a port in "
            "declctl_startup, which is called once in the life of the process"
        )
    return None


def _instead_of_module(error: ModuleNotFoundError, bundle: Bundle) -> str | None:
    if not error.name:
        return None
    name = without_prefix(error.name)
    if name == error.name and name.partition(".")[0] in bundle.names:
        return (
            f"{name} belongs to the bundle, where only import statements and relative names find it: write "
            f'`import {name}`, or `importlib.import_module(".{name}", __package__)` beside it'
        )
    near = closest(name, bundle.modules)
    if near is not None:
        return f'did you mean "{near}"?'
    if name.partition(".")[0] in bundle.names:
        return f"create {name.replace('.', '/')}.py"
    return f"install the package that has {name}, or put {name.replace('.', '/')}.py beside the manifest"


def _innermost(trace: TracebackType | None, bundle: Bundle) -> _Place | None:
    for frame in reversed(traceback.extract_tb(trace)):
        source = bundle.source(frame.filename)
        if source is not None:
            line = frame.lineno or 1
            return frame.filename, line, _column(source, line, frame.colno or 0)
    return None


def _place(function: Callable[..., Any], parameter: str | None, bundle: Bundle) -> _Place | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    source = bundle.source(code.co_filename) if code is not None else None
    if code is None or source is None:
        return None
    node = _definition(source, code.co_name, code.co_firstlineno)
    if node is None:  # a lambda
        return code.co_filename, code.co_firstlineno, 1
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    argument = next((a for a in arguments if a.arg == parameter), None)
    if argument is not None:
        return code.co_filename, argument.lineno, _column(source, argument.lineno, argument.col_offset)
    start = _column(source, node.lineno, node.col_offset)
    return code.co_filename, node.lineno, _line(source, node.lineno).index(node.name, start) + 1


def _definition(source: str, name: str, first: int) -> _Function | None:
    """The function that begins at line `first` with its decorators; None for a lambda.

    Only its own lines are parsed: the whole source may be large, or nested too deeply for `ast`.
    """
    try:
        lines = inspect.getblock([f"{line}\n" for line in source.split("\n")[first - 1 :]])
        is_method = lines[0][:1].isspace()
        header = ["if True:\n"] if is_method else []  # an indented block can't be parsed alone
    except SyntaxError:  # from Python 3.12 on, for lines that can't be read as tokens
        return None
    tree = parsed("".join([*header, *lines]))
    for node in ast.walk(ast.increment_lineno(tree, first - 1 - len(header))):
        # A decorated function's code begins at its first decorator.
        if isinstance(node, _Function) and node.name == name and _first_line(node) == first:
            return node
    return None


def _first_line(node: _Function) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _line(source: str, line: int) -> str:
    lines = source.split("\n")
    return lines[line - 1] if line <= len(lines) else ""


def _column(source: str, line: int, offset: int) -> int:
    """The column, in characters, of an offset in bytes, as Python counts."""
    return len(_line(source, line).encode()[:offset].decode("utf-8", "replace")) + 1
