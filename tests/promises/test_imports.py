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


def test_a_code_is_text_in_one_table_only() -> None:
    """Each DCL code is used by its name from `declctl/codes.py`, so that one search finds all its faults."""
    files = [path for path in (ROOT / "declctl").rglob("*.py") if '"DCL' in path.read_text("utf-8")]
    assert files == [ROOT / "declctl" / "codes.py"]


def test_the_published_schema_is_current() -> None:
    """An editor that reads schema/ completes what this version understands."""
    from declctl.manifest.schema import published

    assert (ROOT / "schema" / "declctl.v1alpha1.schema.json").read_text("utf-8") == published()
    assert manifest.schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
