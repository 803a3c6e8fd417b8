"""Sources are parsed beside other threads, and large ones in a child process."""

import ast
import gc
import json
from pathlib import Path

from declctl.hooks import parser
from declctl.hooks.syntax import parsed


def test_a_child_process_reads_a_source_as_this_one_does() -> None:
    """It runs without declctl: its script imports the standard library only."""
    source = Path(parser.__file__).read_text()
    here = json.loads(json.dumps(parser.scan(parsed(source))))
    assert parser.scan_apart(source.encode()) == here
    assert parser.compile_apart(source, "f.py") == compile(source, "f.py", "exec", dont_inherit=True)


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
