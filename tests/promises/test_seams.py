"""Tests use what objects offer: they read no private state of the package, and replace none."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
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
    "_": "gettext's function among the builtins",
    "_outbox": "sandbox: that watchers share the bytes of an event is seen nowhere else",
    "_body": "transport: which of two readers has read a body is seen nowhere else",
}


def test_tests_read_no_private_state():
    """A test that does breaks with each change inside, and says nothing of what a user would notice."""
    found = [
        f"{path.relative_to(TESTS)}:{line}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for line, name in _private(ast.parse(path.read_text("utf-8")))
        if name not in ALLOWED
    ]
    assert found == []


def _private(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each private attribute, import or replaced name that this file does not define."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_of_self(node)}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("declctl"):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
            texts = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
            names = [text.rpartition(".")[2] for text in texts if isinstance(text, str)]
        for name in names:
            if name.startswith("_") and not name.startswith("__") and name not in own:
                yield node.lineno, name


def _is_of_self(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"
