"""Where foreign code is at fault.

Exceptions and functions led back to a file, a line and a column.
"""

import ast
import difflib
import traceback
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from declctl.errors import EntryPointError
from declctl.hooks.bundle import Bundle

MODULE_NOT_FOUND = "DCL040"
ATTRIBUTE_NOT_FOUND = "DCL041"
SYNTAX = "DCL042"
IMPORT_RAISED = "DCL043"
ENDED_PROCESS = "DCL044"
UNKNOWN_PARAMETER = "DCL046"
NO_HOOK = "DCL047"
WRONG_KIND = "DCL048"
BAD_INDEXERS = "DCL049"
HOOK_NOT_YET = "DCL075"
PLUGIN_NOT_INSTALLED = "DCL080"
PLUGIN_VERSION = "DCL081"
PLUGIN_CONFIG = "DCL082"
PLUGIN_LOAD_FAILED = "DCL083"
UNKNOWN_HOOK = "DCL084"
PLUGIN_HOOKSPEC_VERSION = "DCL085"


def closest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that was probably meant."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return found[0] if found else None


def of_import(error: BaseException, what: str, bundle: Bundle) -> EntryPointError:
    """The fault behind an exception that an import raised."""
    if isinstance(error, SyntaxError) and error.filename and _own(error.filename, bundle):
        return EntryPointError(
            f"{error.msg}",
            code=SYNTAX,
            file=error.filename,
            line=error.lineno or 1,
            column=max(1, error.offset or 1),
        )
    place = _innermost(error.__traceback__, bundle)
    code = ENDED_PROCESS if isinstance(error, SystemExit) else IMPORT_RAISED
    if code == ENDED_PROCESS:
        message = (
            f"importing {what} ends the process: it raises SystemExit({error.args[0] if error.args else ''})"
        )
        advice = "an import should only define things"
    else:
        message = f"importing {what} raises {type(error).__name__}: {error}"
        advice = None
        if isinstance(error, ModuleNotFoundError) and error.name:
            advice = f"install the package that has {error.name}, or put {error.name}.py beside the manifest"
    if place is None:
        return EntryPointError(message, code=code, suggestion=advice)
    file, line, column = place
    return EntryPointError(message, code=code, file=file, line=line, column=column, suggestion=advice)


def of_parameter(
    function: Callable[..., Any], parameter: str, message: str, suggestion: str, bundle: Bundle
) -> EntryPointError:
    """A parameter that its hook doesn't have, located at its name in the `def`."""
    place = _parameter_place(function, parameter, bundle)
    if place is None:
        return EntryPointError(message, code=UNKNOWN_PARAMETER, suggestion=suggestion)
    file, line, column = place
    return EntryPointError(
        message, code=UNKNOWN_PARAMETER, file=file, line=line, column=column, suggestion=suggestion
    )


def of_function(
    function: Callable[..., Any], message: str, *, code: str, suggestion: str | None, bundle: Bundle
) -> EntryPointError:
    """A fault of a whole function, located at its name in the `def`."""
    node, file = _definition(function, bundle)
    if node is None:
        return EntryPointError(message, code=code, suggestion=suggestion)
    keyword = len("async def ") if isinstance(node, ast.AsyncFunctionDef) else len("def ")
    return EntryPointError(
        message,
        code=code,
        file=file,
        line=node.lineno,
        column=node.col_offset + keyword + 1,
        suggestion=suggestion,
    )


def _own(filename: str, bundle: Bundle) -> bool:
    return any(filename == bundle.display(path) for path in bundle.files)


def _innermost(trace: TracebackType | None, bundle: Bundle) -> tuple[str, int, int] | None:
    frames = [frame for frame in traceback.extract_tb(trace) if _own(frame.filename, bundle)]
    if not frames:
        return None
    frame = frames[-1]
    return frame.filename, frame.lineno or 1, (frame.colno or 0) + 1


def _parameter_place(
    function: Callable[..., Any], parameter: str, bundle: Bundle
) -> tuple[str, int, int] | None:
    node, file = _definition(function, bundle)
    if node is None:
        return None
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    found = next((argument for argument in arguments if argument.arg == parameter), None)
    return (file, found.lineno, found.col_offset + 1) if found is not None else None


def _definition(
    function: Callable[..., Any], bundle: Bundle
) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef | None, str]:
    code = getattr(function, "__code__", None)
    if code is None:
        return None, ""
    file: str = code.co_filename
    source = next((data for path, data in bundle.files.items() if bundle.display(path) == file), None)
    if source is None:
        return None, file
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            # A decorated function's code begins at its first decorator.
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= code.co_firstlineno <= node.lineno:
                return node, file
    return None, file
