"""Which methods of `ctx` the sources of handlers use. Nothing is imported.

A name counts where code has it as an attribute, or as a whole text, as in `getattr(ctx, "record_event")`;
comments and documentation don't count. So a use that only a computed name shows is not found.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

# Names that other objects have, too: they count only on the argument of this name.
_COMMON: Final = frozenset({"apply", "client", "sync_client"})
_CONTEXT: Final = "ctx"


def methods_used(sources: Mapping[str, bytes], methods: Iterable[str]) -> frozenset[str]:
    """Those of the methods that any of the sources uses. A source that can't be parsed uses none."""
    wanted = frozenset(methods)
    found: set[str] = set()
    for source in sources.values():
        if any(name.encode() in source for name in wanted):
            found.update(name for name in _names(source) if name in wanted)
    return frozenset(found)


def _names(source: bytes) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the import reports it
        return
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, value=holder) if name not in _COMMON or _is_context(holder):
                yield name
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str() as name), *_]):
                yield name
            case _:
                pass


def _is_context(holder: ast.expr) -> bool:
    """Whether an expression is `ctx`, or `ctx.sync`."""
    while isinstance(holder, ast.Attribute):
        holder = holder.value
    return isinstance(holder, ast.Name) and holder.id == _CONTEXT
