"""Sources as trees of syntax."""

import ast

from declctl.kit.garbage import without_collections


def parsed(source: str | bytes) -> ast.Module:
    """The tree of a source; an empty one if Python can't parse it: its import says why."""
    # CPython 3.11 counts the depth of a tree in one place for all threads.
    with without_collections():
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.Module([], [])
