"""The house stands as ARCHITECTURE.md draws it."""

import subprocess
import sys

from markdown import ROOT

from declctl import manifest


def test_no_room_imports_its_neighbour() -> None:
    """Every import contract of pyproject.toml is kept."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_room_is_on_the_picture() -> None:
    """A stranger finds each folder of the package in ARCHITECTURE.md."""
    rooms = {folder.parent.name for folder in (ROOT / "declctl").glob("*/__init__.py")}
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    assert {room for room in rooms if f"{room}" not in text} == set()


def test_the_published_schema_is_current() -> None:
    """An editor that reads schema/ completes what this version understands."""
    from declctl.manifest.schema import published

    assert (ROOT / "schema" / "declctl.v1alpha1.schema.json").read_text("utf-8") == published()
    assert manifest.schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
