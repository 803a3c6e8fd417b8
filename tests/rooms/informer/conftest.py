"""What most tests of this room begin with."""

import logging
from collections.abc import Iterator

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


@pytest.fixture(autouse=True)
def _warnings_are_logged() -> Iterator[None]:
    """Whatever a test of another room has left in the process, such as the `--log-level` of a command."""
    log = logging.getLogger("declctl.informer")
    log.setLevel(logging.WARNING)
    yield
    log.setLevel(logging.NOTSET)
