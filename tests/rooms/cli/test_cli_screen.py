"""The stream that log lines and the progress line share."""

import io
from dataclasses import dataclass

import pytest

from declctl.cli.logging import Screen, progress, progress_line
from declctl.cli.terminal import has_colour
from declctl.kit import ManualClock
from tests.rooms.cli.conftest import Terminal

ERASE = "\r\x1b[2K"


@dataclass
class Resource:
    """What is shown of one."""

    name: str
    synced: bool
    items_listed: int


class Runtime:
    """A runtime with resources."""

    def __init__(self, *resources: Resource) -> None:
        self.generation = 1
        self.resources = resources

    def status(self) -> "Runtime":
        return self


def test_no_terminal_sees_no_progress():
    """In a log file nothing moves a cursor. A controller goes on when whoever read its log has gone."""
    stream = io.StringIO()
    screen = Screen(stream)
    screen.progress("pods: 1 listed…")
    screen.line("synced")
    assert stream.getvalue() == "synced\n"
    stream.close()
    screen.line("nobody hears this")
    assert stream.closed


def test_a_line_goes_above_the_progress():
    """A log line while a list comes in takes the progress line away and puts it back below."""
    stream = Terminal()
    screen = Screen(stream)
    screen.progress("")
    assert stream.getvalue() == ""  # nothing is erased where nothing was shown
    screen.progress("pods: 1 listed…")
    screen.line("hello")
    screen.progress("")
    assert stream.getvalue() == f"{ERASE}pods: 1 listed…\r{ERASE}hello\npods: 1 listed…\r{ERASE}"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_can_be_refused(monkeypatch, name, value):
    """NO_COLOR and dumb terminals get plain text."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert has_colour(Terminal())
    assert not has_colour(io.StringIO())
    monkeypatch.setenv(name, value)
    assert not has_colour(Terminal())


def test_the_progress_line_names_what_is_under_way():
    """Only resources whose list is coming in are named."""
    resources = [Resource("pods", False, 12_500), Resource("nodes", True, 3), Resource("jobs", False, 0)]
    assert progress_line(resources) == "pods: 12,500 listed…"


async def test_progress_is_shown_after_a_second_and_removed_when_synced():
    """A large first list shows its progress, a small one nothing, and nothing is left behind."""
    clock, stream = ManualClock(), Terminal()
    pods = Resource("pods", False, 500)
    async with progress(Screen(stream), clock)(Runtime(pods)):
        await clock.advance(0.9)
        assert stream.getvalue() == ""
        await clock.advance(0.2)
        assert "pods: 500 listed…" in stream.getvalue()
        pods.synced = True
        await clock.advance(0.3)
        assert stream.getvalue().endswith(ERASE)
        assert clock.next_wake is None


async def test_progress_waits_for_the_first_generation():
    """Handlers that take long to import don't keep the list that follows from being shown."""
    clock, stream, runtime = ManualClock(), Terminal(), Runtime()
    runtime.generation = 0
    async with progress(Screen(stream), clock)(runtime):
        await clock.advance(2)
        runtime.generation, runtime.resources = 1, (Resource("pods", False, 500),)
        await clock.advance(0.3)
        assert "pods: 500 listed…" in stream.getvalue()
    # Ctrl-C during the first list leaves a clean terminal.
    assert stream.getvalue().endswith(ERASE)
