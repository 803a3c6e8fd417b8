"""docs/tutorial.md is played from its first command to its last, and so is the first minute of the README."""

from pathlib import Path

import pytest
from clusters import Cluster
from markdown import ROOT
from walkthrough import DIRECTIVE, Walkthrough, edit, section

TUTORIAL = ROOT / "docs" / "tutorial.md"
FIRST, LAST = "## 1. Make it", "## 7. In a cluster"
MAKES_FILES = ("declctl new ", "cd ", "declctl generate crd ")

pytestmark = [pytest.mark.kubectl, pytest.mark.thorough]


def test_the_tutorial_without_a_cluster(tmp_path: Path) -> None:
    """A new operator runs, is edited, gets a field and a test, and survives its bad days."""
    with Walkthrough(tmp_path) as reader:
        reader.play(section(TUTORIAL, FIRST, LAST))
        warnings = [line for line in reader.lines if " warning " in line]
        provoked = ("does not fit", "DCL123")  # an edit of the types comes before that of the definition
        assert all(any(text in line for text in provoked) for line in warnings), warnings


def test_the_first_minute_of_the_readme(tmp_path: Path) -> None:
    """The operator runs, follows the edit, and consists of what the page shows."""
    with Walkthrough(tmp_path) as reader:
        steps = section(ROOT / "README.md", "## The first minute", "## Watchers")
        reader.play(block for block in steps if block.language != "console")


def test_the_tutorial_in_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """The operator that the reader has by then runs there, and everything for its pod is accepted."""
    with Walkthrough(tmp_path, KUBECONFIG=str(cluster.kubeconfig)) as reader:
        for block in section(TUTORIAL, FIRST, LAST):
            lines = block.text.splitlines() if block.language == "sh" else []
            for line in lines:
                if line.startswith(MAKES_FILES):
                    reader.command(line)
            if DIRECTIVE.fullmatch(block.above):
                edit(reader.folder, block)
        reader.play(section(TUTORIAL, LAST))
        reader.command("kubectl delete preview sample")
        reader.command("kubectl delete --ignore-not-found -f deploy.yaml")
