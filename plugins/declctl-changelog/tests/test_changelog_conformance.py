"""The plugin does what declctl promises of every plugin."""

from pathlib import Path

import pytest
from declctl.testing import fuzz
from declctl.testing.conformance import conformance

test_conformance = conformance("changelog")


@pytest.mark.thorough
def test_it_stands_lives() -> None:
    """Whatever happens to the objects, no change fails, and nothing is written."""
    fuzz(Path(__file__).parent / "controller", runs=15)
