"""The page."""

import re
from collections.abc import Callable

from msgspec.structs import replace

from tests.rooms.admin.conftest import NOTIFY


def test_the_page_shows_the_status(ask: Callable):
    """Who opens the address in a browser sees generation, readiness, resources, handlers and plugins."""
    answer = ask("/")
    assert answer.headers["Content-Type"].startswith("text/html")
    for word in ("pod-guard", "generation 6", "ready", "pods", "notify", "slack", "Conditions"):
        assert word in answer.text


def test_what_others_wrote_is_escaped(ask: Callable):
    """An error message with markup in it is shown, not run."""
    text = ask("/").text
    assert "default/&lt;b&gt;: KeyError" in text
    assert "default/<b>" not in text


def test_the_page_needs_nothing_from_elsewhere(ask: Callable):
    """It works in a cluster without internet, runs no script, and refreshes itself."""
    answer = ask("/")
    assert not re.search(r"https?://|<script|src=|@import", answer.text)
    assert answer.headers["Refresh"] == "2"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_not_ready_is_seen(ask: Callable, runtime):
    """A controller that isn't ready says so beside its name."""
    runtime.say(ready=False)
    assert "not ready" in ask("/").text


def test_dead_letters_are_counted_for_each_handler(ask: Callable, runtime):
    """Their number stands in the row of the handler."""
    runtime.say(handlers=(replace(NOTIFY, dead_letters=4321),))
    text = ask("/").text
    assert "<th>Dead letters</th>" in text
    assert "<td>4,321</td>" in text
