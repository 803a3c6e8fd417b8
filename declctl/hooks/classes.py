"""What the source of a class says of its kind, by `@declctl.custom_resource(…)`. Nothing is imported."""

import ast
from collections.abc import Iterator
from difflib import get_close_matches

from declctl import codes
from declctl.hooks.bundle import Bundle
from declctl.hooks.syntax import parsed
from declctl.objects.custom_resource import DeclaredKind

_DECORATOR = "custom_resource"
_MOST_IMPORTS = 8  # of one class, from module to module


def kind_of_class(bundle: Bundle, module: str, name: str) -> DeclaredKind:
    """The apiVersion and kind of a class of a bundle; empty for one without the decorator.

    A class that a module imports is looked for where it comes from. The arguments of the decorator are texts,
    or names that the module gives to texts.
    """
    for _ in range(_MOST_IMPORTS):
        path = bundle.path_of(module)
        if path is None:
            return _no_module(bundle, module, name)
        body = parsed(bundle.files[path]).body
        found = [node for node in _statements(body) if isinstance(node, ast.ClassDef) and node.name == name]
        if found:
            return _kind(found[-1], body, bundle.display(path))
        origin = _origin(body, name, _package(path, module))
        if origin is None:
            return _no_class(body, module, name, bundle.display(path))
        module, name = origin
    return _fault(f"{module}:{name} is imported from module to module", "name the module of the class")


def _kind(node: ast.ClassDef, body: list[ast.stmt], file: str) -> DeclaredKind:
    decorator = next((each for each in node.decorator_list if _is_ours(each, body)), None)
    if not isinstance(decorator, ast.Call):
        return DeclaredKind()
    given = {keyword.arg: keyword.value for keyword in decorator.keywords}
    version = decorator.args[0] if decorator.args else given.get("api_version")
    api_version = None if version is None else _text(version, body)
    kind = _text(given["kind"], body) if "kind" in given else node.name
    if api_version is None or kind is None or None in given:
        what = "apiVersion" if api_version is None else "kind"
        return _fault(
            f"{file}:{decorator.lineno}: the {what} of {node.name} is no text, so that it can't be read "
            "without an import",
            f'write it in quotes, as in @declctl.{_DECORATOR}("acme.dev/v1", …)',
        )
    return DeclaredKind(api_version, kind)


def _is_ours(decorator: ast.expr, body: list[ast.stmt]) -> bool:
    """Whether a decorator is `custom_resource`, as an attribute or as a name that declctl is imported for."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(called, ast.Attribute):
        return called.attr == _DECORATOR
    return isinstance(called, ast.Name) and _origin(body, called.id, "") == ("declctl", _DECORATOR)


def _text(node: ast.expr, body: list[ast.stmt]) -> str | None:
    """The text that an expression is: one in quotes, or a name that the module gives to one."""
    if isinstance(node, ast.Name):
        values = [
            statement.value
            for statement in _statements(body)
            if isinstance(statement, ast.Assign | ast.AnnAssign) and node.id in _targets(statement)
        ]
        node = values[0] if len(values) == 1 and values[0] is not None else node
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _targets(statement: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [each.id for each in targets if isinstance(each, ast.Name)]


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module that bind its names, also those below `if` and `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
            handlers = node.handlers if isinstance(node, ast.Try) else []
            yield from _statements([*inner, *(each for handler in handlers for each in handler.body)])


def _origin(body: list[ast.stmt], name: str, package: str) -> tuple[str, str] | None:
    """The module from which a name is imported, and its name there; None if it is not imported by name."""
    for node in _statements(body):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    above = package.split(".")
                    parts = above[: len(above) - node.level + 1] if node.level else []
                    return ".".join(filter(None, [*parts, node.module])), alias.name
    return None


def _package(path: str, module: str) -> str:
    """The package in which a relative import of a module begins."""
    return module if path.endswith("/__init__.py") else module.rpartition(".")[0]


def _no_module(bundle: Bundle, module: str, name: str) -> DeclaredKind:
    similar = get_close_matches(module, bundle.beside(), n=1)
    meant = f'did you mean "{similar[0]}:{name}"? Otherwise ' if similar else ""
    return _fault(
        f"the module {module} is not beside the manifest, so that the kind of {name} can't be read without "
        "an import",
        f"{meant}write apiVersion and kind beside the type",
    )


def _no_class(body: list[ast.stmt], module: str, name: str, file: str) -> DeclaredKind:
    classes = [node.name for node in _statements(body) if isinstance(node, ast.ClassDef)]
    similar = get_close_matches(name, classes, n=1)
    meant = f'did you mean "{module}:{similar[0]}"? Otherwise ' if similar else ""
    return _fault(
        f"{file} has no class {name}", f"{meant}write a class there that derives from declctl.Object"
    )


def _fault(message: str, suggestion: str) -> DeclaredKind:
    return DeclaredKind(code=codes.TYPE_WITHOUT_KIND, message=message, suggestion=suggestion)
