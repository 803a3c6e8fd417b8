"""The plugin's source, importable whether it is installed or not; and a place that receives messages."""

# pyright: reportMissingImports=false

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import apprise
import pytest

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE.parent / "src"), str(_HERE / "support")]

# The path above has it.
from notify_receiver import Receiver  # noqa: E402

with warnings.catch_warnings():
    # apprise imports all of its services at the first use of one; some import what Python will remove.
    warnings.simplefilter("ignore")
    apprise.Apprise.instantiate("json://localhost")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A place that receives messages."""
    made = Receiver()
    yield made
    made.close()
