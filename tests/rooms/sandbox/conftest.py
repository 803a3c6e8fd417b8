"""What the tests of the sandbox share."""

import pytest

from declctl.sandbox.store import ObjectStore
from tests.rooms.sandbox.shapes import store


@pytest.fixture
def cluster() -> ObjectStore:
    """An empty cluster with a manual clock."""
    return store()
