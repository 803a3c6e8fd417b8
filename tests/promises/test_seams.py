"""Tests use what objects offer: they read no private state of the package, and replace none."""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_TAKES_A_NAME = re.compile(r"(^|[.])([gs]et|del)attr$|(^|[.])patch([.]object)?$")
_IMPORTS_DECLCTL = re.compile(r"^\s*(from|import) declctl", re.MULTILINE)
# Private names that tests may use, each with the reason. Most are of other libraries that offer nothing else.
ALLOWED = {
    "_replace": "public, of named tuples",
    "_core": "msgspec: a compiled module",
    "_collector_to_names": "prometheus_client: what a registry holds",
    "_forkserver": "multiprocessing: the processes that a test has started end with it",
    "_resource_tracker": "multiprocessing: as above",
    "_stop": "multiprocessing: as above",
    "_ssl": "ssl: reads a certificate",
    "_test_decode_cert": "ssl: as above",
    "_sock": "asyncio: the socket under a transport, to cut it",
    "_ready": "asyncio: whether any task of the loop can run",
    "_continue": "kubernetes: the field `continue` of a list",
    "_TRACER_PROVIDER": "opentelemetry: the provider of the process, which can be set only once",
    "_current_frames": "sys: the frames of threads, which declctl reads to name what hangs",
    "_": "gettext's function among the builtins",
}


def test_tests_read_no_private_state():
    """A test that does breaks with each change inside, and says nothing of what a user would notice."""
    found = [
        f"{path.relative_to(TESTS)}:{line}: {name}" for path, line, name in _found() if name not in ALLOWED
    ]
    assert found == []


def test_each_exception_is_used():
    """A name that no test uses any more can't be used by the next one unseen."""
    assert set(ALLOWED) - {name for _, _, name in _found()} == set()


@pytest.mark.parametrize(
    "code",
    [
        "store._building",
        "from declctl.kit.files import _hung",
        "import declctl._rooms",
        "from declctl._rooms import names",
        "monkeypatch.setattr(frame, '_hung', 1)",
        "monkeypatch.setattr('declctl.kit._hung', 1)",
        "def _hung(): ...\nmonkeypatch.setattr(frame, '_hung', _hung)",
        "def _hung(): ...\nframe._hung()",
        "mock.patch('declctl.kit._hung.wait')",
        "mock.patch.object(kit, '_hung')",
        "getattr(kit, '_hung')",
        "PROGRAM = 'import declctl\\nprint(declctl.kit._hung)'",
    ],
)
def test_a_private_name_is_found(code: str):
    """However it is reached: read, imported, replaced, or named in a program that a test starts."""
    assert len(list(_private(ast.parse(code)))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "self._own",
        "class A:\n    def __init__(self, other): self._own = other._own",
        "class A:\n    def _own(self): ...\n    def f(self, other): other._own()",
        "kit.__name__",
        "'no program: declctl._own'",
    ],
)
def test_what_a_file_defines_itself_is_its_own(code: str):
    """Classes of tests have private parts, too."""
    assert list(_private(ast.parse(code))) == []


@cache
def _found() -> tuple[tuple[Path, int, str], ...]:
    """File, line and name of each use of a private name in the tests."""
    return tuple(
        (path, line, name)
        for path in sorted(TESTS.rglob("*.py"))
        if path != Path(__file__)
        for line, name in _private(ast.parse(path.read_text("utf-8")))
    )


def _private(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each private name that is read of an object, imported, or replaced."""
    own = _defined_in_classes(tree)
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.Attribute(value=ast.Name("self" | "cls")):
                continue
            case ast.Attribute(attr=name) if name not in own:
                names = [name]
            case ast.Import():
                names = [part for alias in node.names for part in alias.name.split(".")]
            case ast.ImportFrom(module=str(module)):
                names = [*module.split("."), *(alias.name for alias in node.names)]
                names = names if module.partition(".")[0] == "declctl" else []
            case ast.Call() if _TAKES_A_NAME.search(ast.unparse(node.func)):
                texts = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
                names = [part for text in texts if isinstance(text, str) for part in text.split(".")]
            case ast.Constant(value=str(text)) if _IMPORTS_DECLCTL.search(text):
                with suppress(SyntaxError):  # it is no program, or a template of one
                    names = [name for _, name in _private(ast.parse(text))]
            case _:
                pass
        for name in names:
            if name.startswith("_") and not name.startswith("__"):
                yield getattr(node, "lineno", 0), name


def _defined_in_classes(tree: ast.Module) -> set[str]:
    """The attributes and methods of the classes of a file."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef():
                found |= {each.name for each in node.body if isinstance(each, _FUNCTIONS)}
            case ast.Attribute(value=ast.Name("self"), attr=name, ctx=ast.Store()):
                found.add(name)
            case _:
                pass
    return found
