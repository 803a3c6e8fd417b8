"""What may be imported, and what it costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from markdown import ROOT

import declctl


def test_every_public_name_is_there_and_documented() -> None:
    """Each name of `declctl.__all__` can be imported and says what it is."""
    assert sorted(declctl.__all__) == sorted(set(declctl.__all__))
    for name in declctl.__all__:
        assert getattr(declctl, name) is not None
        assert name == "__version__" or getattr(declctl, name).__doc__, name


def test_any_other_name_is_an_attribute_error() -> None:
    """A name that there is not is told as Python tells it."""
    with pytest.raises(AttributeError, match="no attribute 'Informer'"):
        _ = declctl.Informer


def test_importing_declctl_loads_nothing_else() -> None:
    """A handler file that says `import declctl` does not pay for a Kubernetes client."""
    code = "import sys, declctl; print(*sorted(m for m in sys.modules if m.startswith('declctl.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


_FOREIGN = [
    *ROOT.glob("plugins/*/src/**/*.py"),
    *ROOT.glob("plugins/*/tests/*.py"),
    *ROOT.glob("examples/*/*.py"),
]


@pytest.mark.parametrize("file", _FOREIGN, ids=lambda file: str(file.relative_to(ROOT)))
def test_plugins_and_examples_use_public_names_only(file: Path) -> None:
    """What ships as an example of a plugin or handler needs nothing that a stranger could not rely on."""
    tree = ast.parse(file.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not [one.name for one in node.names if one.name.startswith("declctl.")]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "declctl":
            # The tests of a plugin run it as docs/testing.md shows, and as those of `declctl new plugin` do.
            if node.module == "declctl.testing" and "tests" in file.parts:
                continue
            assert node.module == "declctl"
            assert {one.name for one in node.names} <= set(declctl.__all__)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "declctl"
        ):
            assert node.attr in declctl.__all__
