"""The pages for contributors name files that exist, every room and module, and all places of a change."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "declctl"
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
CHANGES = (ROOT / "CONTRIBUTING.md").read_text().split("## Where do I change…")[1].split("```")[1].strip()


def test_every_file_that_the_pages_name_is_there():
    """A stranger who follows a walk or a change finds each file."""
    named = set(re.findall(r"\b[a-z]+/[a-z_/]+\.py", PAGE + (ROOT / "CONTRIBUTING.md").read_text()))
    assert len(named) > 60
    assert [name for name in named if not any((top / name).is_file() for top in (PACKAGE, ROOT))] == []


def test_every_room_and_every_module_of_runtime_is_on_the_page():
    """No room is built that the page doesn't show, and the largest one has each module in its place, once."""
    rooms = [path.parent.name for path in PACKAGE.glob("*/__init__.py")]
    assert [room for room in rooms if f"`{room}`" not in PAGE] == []
    block = PAGE.split("These are all its modules:")[1].split("```")[1]
    listed = re.findall(r"\b[a-z_]+(?:/|\.py)(?=\s)", block)
    files = (PACKAGE / "runtime").rglob("*.py")
    found = [f"{path.parent.name}/" if path.name == "__init__.py" else path.name for path in files]
    assert sorted([*listed, "runtime/"]) == sorted(found)


@pytest.mark.parametrize("change", re.split(r"\n(?! )", CHANGES))
def test_a_change_is_made_in_all_files_that_know_it(change):
    """Each file of a row has one of its words, and no other file of the package has."""
    head, *files = change.split("\n")
    words = head.partition(": ")[2].split(", ")
    knowing = [path for path in PACKAGE.rglob("*.py") if any(word in path.read_text() for word in words)]
    assert sorted(file.split()[0] for file in files) == sorted(str(p.relative_to(PACKAGE)) for p in knowing)


# The library's factory takes a client where the informers' own takes any source: both names are public.
_TWO_CLASSES = {"SharedInformerFactory"}


def test_a_class_name_stands_once_in_the_package():
    """A name in a log, a traceback or a search leads to one class."""
    names = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, times in names.items() if times > 1} == _TWO_CLASSES


def test_no_chain_of_imports_is_long():
    """A reader who follows imports down from any module comes to the ground within twenty steps."""
    parts = {path: path.relative_to(ROOT).with_suffix("").parts for path in PACKAGE.rglob("*.py")}
    paths = {".".join(names).removesuffix(".__init__"): path for path, names in parts.items()}

    @cache
    def height(module: str) -> int:
        imported: set[str] = set()
        for node in ast.parse(paths[module].read_text()).body:  # at the top of the file
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                imported.update(name if name in paths else node.module for name in inner)
        return 1 + max((height(each) for each in imported - {module} if each in paths), default=0)

    assert max(map(height, paths)) <= 20
