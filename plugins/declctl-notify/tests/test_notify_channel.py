"""One target as a whole: no change is lost between rules and messages, whatever happens when."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

from typing import Any

from declctl.testing import Logged, ManualClock
from hypothesis import given, settings
from hypothesis import strategies as st

from declctl_notify.channel import Channel
from declctl_notify.groups import Entry, GroupKey
from declctl_notify.settings import Settings


def _settings(wait: str = "10s", interval: str = "1m", repeat: str = "5m", per_minute: int = 6) -> Settings:
    limit = {"messages": per_minute, "interval": "1m", "burst": 2}
    rule = {"groupWait": wait, "groupInterval": interval, "repeatInterval": repeat, "maxChanges": 2}
    return Settings.of(
        {
            "targets": [{"name": "team", "urlFrom": {"env": "A"}, "rateLimit": limit}],
            "rules": [{"name": "all", "targets": ["team"], **rule}],
            "retry": {"maxAttempts": 2},
        }
    )


class Play:
    """A channel whose time stands still, and the changes that its messages have told of."""

    def __init__(self) -> None:
        self.clock, self.log = ManualClock(), Logged()
        self.settings = _settings()
        self.channel = Channel(self.settings.targets["team"], self.settings, log=self.log, clock=self.clock)
        self.added = self.told = 0

    def add(self, group: str, name: str) -> None:
        """A change of an object in a group."""
        self.channel.add(
            self.settings.rules[0], GroupKey("all", (("n", group),)), Entry((name, ""), name, "")
        )
        self.added += 1

    def send(self, failure: str = "") -> bool:
        """Send a message that is due, if there is one, or let it fail."""
        delivery = self.channel.take()
        if delivery is None:
            return False
        self.channel.finish(delivery, failure)
        self.told += 0 if failure else delivery.changes
        return True

    def edit(self, made: Settings) -> None:
        """An edit of the config."""
        self.settings = made
        self.channel.configure(made.targets["team"], made, log=self.log)

    def check(self) -> None:
        """Each change is in a message, was dropped, or waits."""
        figures = self.channel.statistics
        assert (figures.taken, figures.notified) == (self.added, self.told)
        assert figures.taken == figures.notified + figures.dropped + figures.waiting


_EDITS = st.builds(
    _settings,
    st.sampled_from(["0s", "30s"]),
    st.sampled_from(["0s", "2m"]),
    st.sampled_from(["0s", "5m"]),
    st.integers(1, 9),
)
_ADD = st.tuples(st.just("add"), st.sampled_from("abcdefghijklmnop"), st.sampled_from("xyz"))
_STEPS = st.one_of(
    _ADD,
    _ADD,
    st.tuples(st.just("wait"), st.sampled_from([1.0, 10.0, 60.0, 300.0]), st.none()),
    st.tuples(st.just("send"), st.sampled_from(["", "", "HTTP 500"]), st.none()),
    st.tuples(st.just("edit"), _EDITS, st.none()),
)


@settings(deadline=None)
@given(st.lists(_STEPS, max_size=80), st.booleans())
def test_each_change_is_told_dropped_or_waits(steps: list[tuple[str, Any, Any]], ends_well: bool) -> None:
    """Failures, edits and storms in any order; then an end that sends all, or one that drops all."""
    play = Play()
    for step, what, name in steps:
        if step == "add":
            play.add(what, name)
        elif step == "wait":
            play.clock.set(what)
        elif step == "send":
            play.send(what)
        else:
            play.edit(what)
        play.check()
    play.channel.close()
    while ends_well and not play.channel.is_empty:
        play.clock.set(0.0 if play.send() else 1.0)
        play.check()
    waiting = play.channel.statistics.waiting
    assert play.channel.give_up() == waiting
    play.add("a", "late")
    play.check()
    assert play.channel.statistics.waiting == 0


def test_failures_are_logged_once_in_an_interval() -> None:
    """A service that is away for an hour is a line a minute, and the lines have all failures."""
    play = Play()
    play.edit(_settings("0s", "0s", "0s", per_minute=60))
    for _ in range(600):
        play.add("a", "x")
        assert play.send("HTTP 500")
        play.clock.set(6.0)
    lines = [line for line in play.log.lines if line.level == "warning"]
    assert len(lines) == 60
    assert [line.fields["failures"] for line in lines] == [1] + [10] * 59
    assert {line.fields["target"] for line in lines} == {"team"}
    play.clock.set(600.0)
    while play.send():
        play.clock.set(60.0)
    assert play.log.lines[-1].event == "messages are sent again"


def test_too_many_groups_are_dropped_and_logged(monkeypatch: Any) -> None:
    """A groupBy that makes a group of each object is named in the log, and its changes are counted."""
    monkeypatch.setattr("declctl_notify.groups.MOST_GROUPS", 2)
    play = Play()
    for group in "abcd":
        play.add(group, "x")
    assert (play.channel.statistics.dropped, play.channel.statistics.waiting) == (2, 2)
    play.check()
    assert "too many groups" in play.log.lines[0].event
