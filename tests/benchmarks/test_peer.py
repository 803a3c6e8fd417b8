"""A peer, as the driver sees it."""

import sys
from pathlib import Path

import pytest
from harness.faults import PeerExited, TimeLimitExceeded
from harness.peer import Peer
from harness.processes import figures

_SPEAKING = str(Path(__file__).with_name("speaking.py"))
_LONG = 60.0


def _peer(how: str) -> Peer:
    return Peer([sys.executable, _SPEAKING, how])


def test_a_line_comes_with_the_figures_of_its_moment() -> None:
    """What isn't a line of the protocol is passed over."""
    with _peer("synced") as peer:
        line = peer.wait("synced", _LONG)
        assert line.said["objects"] == 3
        assert line.then.at >= peer.began
        assert 0 < line.then.resident <= line.then.peak


def test_lines_are_found_whatever_came_before_them() -> None:
    """A peer may hear of all objects before it says that it has synced."""
    with _peer("early") as peer:
        peer.wait("synced", _LONG)
        assert peer.has_line("added")
        assert peer.wait("added", _LONG).said["objects"] == 3
        assert not peer.has_line("added")


def test_it_answers_what_it_is_asked() -> None:
    """Commands arrive."""
    with _peer("synced") as peer:
        peer.send("read")
        assert peer.wait("read", _LONG).said["values"] == 1


def test_silence_is_too_long() -> None:
    """A peer that never says it is ended by whoever waits for it."""
    with _peer("synced") as peer, pytest.raises(TimeLimitExceeded, match="> 0 s"):
        peer.wait("added", 0.01)


def test_one_that_ends_is_quoted() -> None:
    """Its last words are the reason that is shown."""
    with _peer("ends") as peer, pytest.raises(PeerExited, match="no such thing as a Lease"):
        peer.wait("synced", _LONG)


def test_it_is_gone_afterwards_with_its_children() -> None:
    """Nothing goes on computing beside the next peer; and another process may be the one that is measured."""
    with _peer("another") as peer:
        child = int(peer.wait("synced", _LONG).said["version"])
        assert peer.now().resident == pytest.approx(figures(child).resident, abs=1)
    with pytest.raises(ProcessLookupError):
        figures(child)


def test_children_that_have_ended_are_counted() -> None:
    """The import that `declctl run` tries aside is part of its price."""
    with _peer("child that computes") as peer:
        line = peer.wait("synced", _LONG)
        assert line.then.cpu >= float(line.said["version"]) > 0
