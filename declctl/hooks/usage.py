"""Which methods of `ctx` the code of an entry point uses. Nothing is imported.

A name counts where code has it as an attribute, or as a text of a `getattr`, as in
`getattr(ctx, "record_event")`; comments and documentation don't count. So a use that only a computed name
shows is not found.

Of the module of the entry point, its function counts, and what that refers to in turn. A module that it
imports from the bundle counts as a whole.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from declctl.hooks.bundle import Bundle, reached
from declctl.hooks.syntax import parsed

# Names that other objects have, too: they count only on the argument of this name.
_COMMON: Final = frozenset({"apply", "client", "delete", "get", "sync_client"})
_CONTEXT: Final = "ctx"
_LISTS: Final = (ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp)
_BLOCKS: Final = (ast.If, ast.Try, ast.With)  # statements that bind names of the module


def methods_used(
    bundle: Bundle, entry_point: str, methods: Collection[str], *, hooks: Iterable[str] = ()
) -> frozenset[str] | None:
    """Those of the methods that the code of an entry point uses; None if it is not in the bundle.

    `hooks` are functions of its module that are called, too, such as `declctl_finalize`.
    """
    statements = _statements(bundle, entry_point, methods, hooks)
    if statements is None:
        return None
    return frozenset(name for node in statements for name in _names(node) if name in methods)


def keywords_used(
    bundle: Bundle, entry_point: str, method: str, *, first: str, hooks: Iterable[str] = ()
) -> frozenset[str]:
    """The names of arguments with which the code of an entry point calls a method, as `methods_used`.

    `first` is the name of the first argument if that is a list. Keys of a `**` are not found.
    """
    found = set[str]()
    for statement in _statements(bundle, entry_point, [method], hooks) or ():
        for node in ast.walk(statement):
            match node:
                case ast.Call(func=ast.Attribute(attr=called)) if called == method:
                    found |= {keyword.arg for keyword in node.keywords if keyword.arg is not None}
                    found |= {first} if isinstance(next(iter(node.args), None), _LISTS) else set()
                case _:
                    pass
    return frozenset(found)


def _statements(
    bundle: Bundle, entry_point: str, names: Collection[str], hooks: Iterable[str]
) -> list[ast.stmt] | None:
    """The statements that an entry point reaches; of other files, those of files with one of the names.

    None if it is not in the bundle.
    """
    module, _, attribute = entry_point.partition(":")
    own = bundle.path_of(module)
    if own is None:
        return None
    body = parsed(bundle.files[own]).body
    roots = [attribute.partition(".")[0], *hooks] if attribute else []
    nodes, imports = _reached_nodes(body, roots) if roots else (body, True)
    if imports:
        for path, source in reached(bundle, module).items():
            if path != own and any(name.encode() in source for name in names):
                nodes = [*nodes, *parsed(source).body]
    return nodes


def names_of_module(bundle: Bundle, module: str) -> frozenset[str]:
    """The functions that a module of a bundle defines, also as methods, and the names that it imports.

    Empty for a module that the bundle does not have.
    """
    path = bundle.path_of(module)
    found = set[str]()
    for node in [] if path is None else parsed(bundle.files[path]).body:
        for inner in ast.walk(node):
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(inner.name)
            elif isinstance(inner, ast.Import | ast.ImportFrom):
                found |= {alias.asname or alias.name for alias in inner.names}
    return frozenset(found)


def _reached_nodes(body: list[ast.stmt], roots: Iterable[str]) -> tuple[list[ast.stmt], bool]:
    """The statements that the names of a module refer to, directly or by others.

    Also whether an import is one of them: what it brings may be anywhere in the bundle.
    """
    bound = _bindings(body)
    waiting, known = [name for name in roots if name in bound], set[str]()
    nodes: dict[int, ast.stmt] = {}
    while waiting:
        name = waiting.pop()
        if name in known:
            continue
        known.add(name)
        for node in bound[name]:
            nodes[id(node)] = node
            used = (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))
            waiting += [each for each in used if each in bound]
    imports = any(
        isinstance(inner, ast.Import | ast.ImportFrom) for node in nodes.values() for inner in ast.walk(node)
    )
    return list(nodes.values()), imports


def _bindings(body: Iterable[ast.stmt]) -> Mapping[str, list[ast.stmt]]:
    """The statements of a module that bind each of its names."""
    found: dict[str, list[ast.stmt]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                found.setdefault((alias.asname or alias.name).partition(".")[0], []).append(node)
        elif isinstance(node, _BLOCKS):
            inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
            handlers = node.handlers if isinstance(node, ast.Try) else []
            inner += [statement for handler in handlers for statement in handler.body]
            for name, nodes in _bindings(inner).items():
                found.setdefault(name, []).extend(nodes)
        else:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    found.setdefault(inner.id, []).append(node)
    return found


def _names(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        match node:
            case ast.Attribute(attr=name, value=holder) if name not in _COMMON or _is_context(holder):
                yield name
            case ast.Call(
                func=ast.Name(id="getattr"), args=[holder, ast.Constant(value=str() as name), *_]
            ) if name not in _COMMON or _is_context(holder):
                yield name
            case _:
                pass


def _is_context(holder: ast.expr) -> bool:
    """Whether an expression is `ctx`, or `ctx.sync`."""
    if isinstance(holder, ast.Attribute) and holder.attr == "sync":
        holder = holder.value
    return isinstance(holder, ast.Name) and holder.id == _CONTEXT
