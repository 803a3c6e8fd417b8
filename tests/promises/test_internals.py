"""No private name of a library is used, and each internal part that is used stands in the decision."""

import ast
import inspect
import pkgutil
import re
from importlib import import_module
from importlib.util import find_spec

from markdown import ROOT

import declctl

PAGE = (ROOT / "docs/decisions/0009-internals-of-libraries.md").read_text("utf-8")
PUBLIC = {"aiohttp.web"}  # documented as a whole
OURS = ("declctl", "builtins", "abc", "typing", "enum")


def test_no_class_overrides_a_private_name_of_a_library() -> None:
    """What a minor version of a library may rename, declctl does not need; ruff (SLF001) finds the reads."""
    names = [each.name for each in pkgutil.walk_packages(declctl.__path__, "declctl.")]
    for name in (each for each in names if not each.endswith(("__main__", ".pytest_plugin"))):
        for each in vars(import_module(name)).values():
            if inspect.isclass(each) and each.__module__ == name:
                bases = [base for base in each.__mro__ if base.__module__.split(".")[0] not in OURS]
                private = {part for part in vars(each) if re.match("_(?!_|abc_impl$|is_protocol$)", part)}
                assert not [part for part in private for base in bases if part in vars(base)], each


def test_the_decision_names_each_internal_module_and_no_part_that_is_gone() -> None:
    """Whoever raises a version reads in one table what may break."""
    for parts, file in re.findall(r"^\| (`.*?) \| `(.*?)` \|", PAGE, re.MULTILINE):
        text = (ROOT / "declctl" / file).read_text("utf-8")
        assert all(part.rpartition(".")[2] in text for part in re.findall(r"`([\w.]+)`", parts)), file
    for file in (ROOT / "declctl").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            if module.split(".")[0] in ("aiohttp", "kubernetes", "urllib3") and module not in PUBLIC:
                spec = find_spec(module)
                if spec is not None and spec.submodule_search_locations is None:
                    assert not [each.name for each in node.names if f"`{each.name}`" not in PAGE], file
