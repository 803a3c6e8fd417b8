"""The architecture page names files that exist, and every room."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def test_every_file_that_the_page_names_is_there():
    """A stranger who follows the walk of an event finds each station."""
    named: list[str] = []
    for cell in re.findall(r"`[a-z_]+/[a-z_/]*\.py`(?:, `[a-z_]+\.py`)*", PAGE):
        first, *others = re.findall(r"`([^`]+)`", cell)
        named += [first, *(str(Path(first).parent / other) for other in others)]
    assert len(named) > 15
    assert [name for name in named if not (ROOT / "declctl" / name).is_file()] == []


def test_every_room_is_on_the_page():
    """No room is built that the picture doesn't show."""
    rooms = [path.parent.name for path in (ROOT / "declctl").glob("*/__init__.py")]
    assert [room for room in rooms if f"`{room}`" not in PAGE] == []


def test_every_layer_of_runtime_is_on_the_page():
    """The largest room has layers, and the page says what each is for."""
    layers = [path.parent.name for path in (ROOT / "declctl" / "runtime").glob("*/__init__.py")]
    assert layers
    assert [layer for layer in layers if f" {layer}/ " not in PAGE] == []


# The library's factory takes a client where the informers' own takes any source: both names are public.
_TWO_CLASSES = {"SharedInformerFactory"}


def test_a_class_name_stands_once_in_the_package():
    """A name in a log, a traceback or a search leads to one class."""
    names = Counter(
        node.name
        for path in (ROOT / "declctl").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, times in names.items() if times > 1} == _TWO_CLASSES


def test_no_chain_of_imports_is_long():
    """A reader who follows imports down from any module comes to the ground within twenty steps."""
    imports = {module: _imports(path, module) for module, path in _modules().items()}

    @cache
    def height(module: str) -> int:
        return 1 + max((height(other) for other in imports[module] if other in imports), default=0)

    assert max(map(height, imports)) <= 20


@cache
def _modules() -> dict[str, Path]:
    names = {path: path.relative_to(ROOT).with_suffix("").parts for path in (ROOT / "declctl").rglob("*.py")}
    return {".".join(parts).removesuffix(".__init__"): path for path, parts in names.items()}


def _imports(path: Path, module: str) -> set[str]:
    """The modules that are imported at the top of a file; a name that is a module itself counts as that."""
    known = _modules()
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(name if name in known else node.module for name in inner)
    return found - {module}
