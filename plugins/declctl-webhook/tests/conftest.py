"""The plugin's source, importable whether it is installed or not; a receiver that fails as it is told to."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).parent))

from receiver import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """An HTTP server that takes every event."""
    with Receiver() as server:
        yield server
