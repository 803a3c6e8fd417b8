"""Parses and compiles sources, large ones in a child process.

The parser needs up to a thousand times the memory of a source, and holds the interpreter lock meanwhile. For
a megabyte of short lines it takes 900 MB and some seconds, in which no event is delivered. A child process
returns the memory when it ends. It runs this file as a script, so this file imports the standard library
only.
"""

import ast
import json
import marshal
import subprocess
import sys
from types import CodeType
from typing import Any, Final

LARGE_BYTES: Final = 64 << 10
"""A source of at most this size is parsed in the calling process, which takes 60 MB at the most."""

MEMORY_BYTES: Final = 512 << 20
"""The address space of the process that parses a large source (RLIMIT_AS); less if its container has less."""

SECONDS: Final = 60.0
"""How long that process may take, where the caller has no shorter limit."""

_NICE = 5
_TOO_MUCH = 3  # exit status of the child if the memory was not sufficient
_NESTED = b"#"  # answer of the child for a source that is nested too deeply to be compiled

Imports = list[tuple[list[str], str | None, int | None]]
"""`import names`, without module and level, or `from module import names`."""


_KEEP_DATA_ELSEWHERE = (
    "keep data in files that are not Python, such as JSON, and read them in declctl_prepare"
)
_TOO_DEEP = "it is nested too deep for Python's compiler"
_SPLIT = "split it: long chains of operators, calls or elif count as nesting, too"


class TooCostly(Exception):
    """A source can't be parsed within the limits. The message names the limit, `suggestion` what to do."""

    suggestion = _KEEP_DATA_ELSEWHERE


class TooLate(TooCostly):
    """The time limit was exceeded."""


class CompilationError(SyntaxError):
    """Python can't compile a source, for a reason other than its syntax. `suggestion` says what to do."""

    suggestion: str | None = None

    @classmethod
    def because(cls, reason: str, display: str, suggestion: str | None = None) -> "CompilationError":
        """The error for a whole file, with the reason."""
        error = cls(f"it can't be compiled: {reason}", (display, 1, 1, None))
        error.suggestion = suggestion
        return error

    @classmethod
    def too_deep(cls, display: str) -> "CompilationError":
        """The error for expressions or blocks that are nested too deeply for Python's parser and compiler."""
        return cls.because(_TOO_DEEP, display, _SPLIT)


def scan(tree: ast.Module) -> tuple[Imports, list[str], list[str]]:
    """The imports, mentioned names and attributes of a source."""
    imports: Imports = []
    names: set[str] = set()
    attributes: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports.append(([alias.name for alias in node.names], None, None))
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported = [alias.name for alias in node.names]
            imports.append((imported, node.module, node.level))
            names.update(imported, [(node.module or "").partition(".")[0]])
        elif isinstance(node, ast.Call) and (named := _imported_by(node)):
            imports.append(named)
        elif isinstance(node, ast.Attribute):
            attributes.add(node.attr)
        elif isinstance(node, ast.Name):
            names.add(node.id)
    return imports, sorted(names), sorted(attributes)


def _imported_by(call: ast.Call) -> tuple[list[str], str | None, int | None] | None:
    """The module of `importlib.import_module("name")` or `__import__("name")`; None for a computed name."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    first = call.args[0] if call.args else None
    if name not in ("import_module", "__import__") or not isinstance(first, ast.Constant):
        return None
    if not isinstance(first.value, str):
        return None
    module = first.value.lstrip(".")
    return [module], None, len(first.value) - len(module) or None


def scan_apart(source: bytes, *, seconds: float = SECONDS) -> tuple[Imports, list[str], list[str]]:
    """`scan` of a source in a child process; nothing for an invalid one. Blocks.

    Raises TooCostly, and OSError if no process can be started.
    """
    return json.loads(_run("scan", "", source, seconds))


def compile_apart(source: str, display: str) -> CodeType:
    """The code of a source, compiled in a child process. Blocks.

    Raises SyntaxError as `compile` does, CompilationError for deep nesting, TooCostly, and OSError if no
    process can be started.
    """
    answer = _run("compile", display, source.encode("utf-8", "surrogatepass"), SECONDS)
    if answer == _NESTED:
        raise CompilationError.too_deep(display)
    if answer[:1] == b"!":
        message, place = json.loads(answer[1:])
        raise SyntaxError(message, tuple(place))
    return marshal.loads(answer[1:])


def _run(what: str, display: str, source: bytes, seconds: float) -> bytes:
    # Not at the top: the child runs this file without declctl.
    from declctl.kit.memory import share_of_memory_left, too_much

    share = share_of_memory_left()
    most = MEMORY_BYTES if share is None else min(MEMORY_BYTES, share)
    command = [sys.executable, "-I", "-S", __file__, what, display, str(most)]
    try:
        done = subprocess.run(command, input=source, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise TooLate(f"to parse it takes longer than {seconds:.3g} s") from error
    if done.returncode:
        if done.returncode == _TOO_MUCH:
            raise TooCostly(f"to parse it {too_much(most, of_container=most < MEMORY_BYTES)}")
        raise TooCostly(f"to parse it ends the process (status {done.returncode})")
    return done.stdout


def _scanned(source: bytes) -> bytes:
    # As `syntax.parsed`, which this process can't import; and memory that is missing is told.
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # its import reports the fault
        tree = ast.Module([], [])
    return json.dumps(scan(tree)).encode()


def _compiled(source: bytes, display: str) -> bytes:
    try:
        code = compile(source.decode("utf-8", "surrogatepass"), display, "exec", dont_inherit=True)
    except SyntaxError as error:
        place: Any = (
            error.filename,
            error.lineno,
            error.offset,
            error.text,
            error.end_lineno,
            error.end_offset,
        )
        return b"!" + json.dumps([error.msg, place]).encode()
    except RecursionError:
        return _NESTED
    except (ValueError, OverflowError) as error:  # a zero byte, or an integer with too many digits
        return b"!" + json.dumps([str(error), (display, 1, 1, None)]).encode()
    return b"=" + marshal.dumps(code)


def _main(what: str, display: str, most_bytes: str) -> int:
    import os
    import resource

    os.nice(_NICE)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = int(most_bytes) if hard == resource.RLIM_INFINITY else min(int(most_bytes), hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    source = sys.stdin.buffer.read()
    try:
        answer = _scanned(source) if what == "scan" else _compiled(source, display)
    except MemoryError:
        if _has_needed(most // 2):
            return _TOO_MUCH
        # The parser also raises it for deep nesting. For a search of imports, such a source has none.
        answer = _scanned(b"") if what == "scan" else _NESTED
    sys.stdout.buffer.write(answer)
    return 0


def _has_needed(size: int) -> bool:
    """Whether the peak address space of this process was more than `size` bytes.

    False without /proc: RLIMIT_AS has no effect there either, so memory was not the reason.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123 - no import
            peak = next(line for line in status if line.startswith("VmPeak:"))
    except (OSError, StopIteration):
        return False
    return int(peak.split()[1]) * 1024 > size


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
