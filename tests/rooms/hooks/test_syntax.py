"""Sources are parsed beside other threads."""

import ast
import gc

from declctl.hooks.syntax import parsed


def test_a_collection_in_the_middle_of_a_tree_lets_no_other_tree_be_built() -> None:
    """CPython 3.11 counts the depth of both in one place: here, each collection runs code that parses."""
    gc.callbacks.append(other := lambda *_: ast.parse("-" * 40 + "1"))
    gc.set_threshold(1, *(thresholds := gc.get_threshold())[1:])
    try:
        assert ast.unparse(parsed("not " * 40 + "x")).endswith("x")
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(other)
    assert gc.isenabled()
