"""The architecture page names files that exist, and every room."""

import re
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


def test_every_floor_of_the_roof_is_on_the_page():
    """The largest room has floors, and the page says what each is for."""
    floors = [path.parent.name for path in (ROOT / "declctl" / "runtime").glob("*/__init__.py")]
    assert floors
    assert [floor for floor in floors if f" {floor}/ " not in PAGE] == []
