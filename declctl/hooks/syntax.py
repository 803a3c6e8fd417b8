"""Sources as trees of syntax, parsed beside other threads."""

import ast
import gc
import threading

_parsing = threading.Lock()


def parsed(source: str | bytes) -> ast.Module:
    """The tree of a source; an empty one if Python can't parse it: its import says why.

    CPython 3.11 counts the depth of a tree in one place for all threads (gh-106905). A garbage collection in
    the middle may run code, and so let another thread build a tree: both fail with a SystemError. So none
    begins here. From Python 3.12 on, collections wait for code that runs anyway.
    """
    with _parsing:
        collects = gc.isenabled()
        gc.disable()
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.Module([], [])
        finally:
            if collects:
                gc.enable()
