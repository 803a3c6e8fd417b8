"""The reference pages say what the program says."""

import inspect
import re
from pathlib import Path

import pytest
import reference
from markdown import ROOT

import declctl
from declctl.admin.metrics import catalog
from declctl.hooks import specs


@pytest.mark.parametrize("page", reference.PARTS)
def test_the_generated_part_of_a_page_is_current(page: str) -> None:
    """Fields, defaults, commands and options in docs/reference/ are those of this version."""
    expected = reference.rendered(page)
    told = f"run `python tests/promises/reference.py` to renew docs/reference/{page}"
    assert (reference.DOCS / page).read_text("utf-8") == expected, told


def test_every_command_has_its_line() -> None:
    """docs/cli.md says in one line and one example what a command does, for each and for no other."""
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    lines = re.findall(r"^\| `(declctl [a-z ]+)` \| .+ \| `(declctl [a-z ]+[a-z])", text, re.MULTILINE)
    known = re.findall(r"^### `(declctl(?: [a-z]+)+)", reference.commands(), re.MULTILINE)
    assert sorted(command for command, _ in lines) == sorted(known)
    assert [command for command, example in lines if not example.startswith(command)] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=str)
def test_each_row_of_a_table_has_the_cells_of_its_head(page: Path) -> None:
    """A bar that is not escaped begins a cell, also in code: the rest of the row would not be shown."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = table.splitlines()
        cells = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
        assert [row for row, number in zip(rows, cells, strict=True) if number != cells[0]] == []


@pytest.mark.parametrize("page", ["observability.md", "operations.md", "reference/metrics.md"])
def test_metrics_that_a_page_names_exist(page: str) -> None:
    """A query that is copied from docs/ finds its metric, with the labels that it names."""
    known = {info.name: set(info.labels) for info in catalog()}
    text = (ROOT / "docs" / page).read_text("utf-8")
    named = re.findall(r"`((?:declctl|workqueue|rest_client|leader_election)_[a-z_]+)(?:\{([^}`]*)\})?", text)
    found = {(name, label) for name, labels in named for label in re.findall(r"(\w+)(?:=~?\"|,|$)", labels)}
    hooks = {name for name, _ in named if name in _hooks()}
    assert {name for name, _ in named} - hooks <= known.keys()
    assert [(name, label) for name, label in found if label not in known[name]] == []


def _hooks() -> dict[str, str]:
    """Each hook's name with its arguments as they are documented."""
    found = inspect.getmembers(specs, lambda member: hasattr(member, "declctl_spec"))
    return {name: f"({', '.join(inspect.signature(hook).parameters)})" for name, hook in found}


def test_every_hook_is_documented_with_its_arguments() -> None:
    """docs/hooks.md or docs/plugins.md has a section for each hook, under its exact signature, no other."""
    text = "".join((ROOT / "docs" / page).read_text("utf-8") for page in ("hooks.md", "plugins.md"))
    documented = dict(re.findall(r"^### `(declctl_\w+)(\(.*?\))`", text, re.MULTILINE))
    assert documented == _hooks()


def test_every_public_name_is_documented() -> None:
    """docs/reference/names.md has a line for each name of `declctl`, and for no other."""
    text = (ROOT / "docs" / "reference" / "names.md").read_text("utf-8").split("## From client-go")[0]
    cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", text, re.MULTILINE)
    documented = [name for cell in cells for name in re.findall(r"\w+", cell)]
    assert sorted(documented) == sorted(name for name in declctl.__all__ if name != "__version__")


def test_every_dependency_has_a_reason() -> None:
    """docs/reference/dependencies.md: a line for each package that declctl, an extra or a plugin installs."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    apart = ("dev", "browser")  # for the tests of declctl alone
    extras = [each for name, each in project["optional-dependencies"].items() if name not in apart]
    wanted = [*project["dependencies"], *(one for each in extras for one in each)]
    for plugin in ROOT.glob("plugins/*/pyproject.toml"):
        needs = tomllib.loads(plugin.read_text("utf-8"))["project"]["dependencies"]
        wanted += [one for one in needs if not one.startswith("declctl")]
    required = {re.split(r"[><=~!\[ ]", one)[0].lower() for one in wanted}
    text = (ROOT / "docs" / "reference" / "dependencies.md").read_text("utf-8")
    documented = {name.lower() for name in re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)}
    assert documented == required
