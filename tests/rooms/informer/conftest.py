"""What most tests of this room begin with."""

import pytest

from declctl.informer import FakeControllerSource
from declctl.kit import ManualClock
from tests.rooms.informer.shapes import pod


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def source() -> FakeControllerSource:
    """Version 1 has a pod, `first`."""
    source = FakeControllerSource()
    source.add(pod("first"))
    return source
