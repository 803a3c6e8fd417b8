"""`declctl top`: rates between two reads, one sample, and the live view."""

import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from declctl.cli.admin_client import AdminAddress
from declctl.cli.top import LoadPoller, LoadSample, sample, show_top
from declctl.errors import UsageError
from declctl.manifest.values import Address
from tests.rooms.cli.answering import Process
from tests.rooms.cli.conftest import Terminal

SOON = ("--interval", "100ms")
NOW = datetime(2026, 1, 2, 3, 5, 0, tzinfo=UTC)
HANDLER: dict[str, Any] = yaml.safe_load("""
{name: notify, succeeded: 100, failed: 1, retried: 4, queued: 3, running: 2, p50Seconds: 0.002,
 p95Seconds: 0.004, p99Seconds: 0.0125, deadLetters: 1, lastError: "demo/a: ValueError: no"}
""")
RESOURCE: dict[str, Any] = yaml.safe_load("""
{name: pods, objects: 12000, bytes: 3145728, relists: 1, lastEventAge: 0.25, error: null, state: Watching,
 informers: [{reflector: {events: {ADDED: 5, MODIFIED: 10}}}]}
""")
STATUS: dict[str, Any] = yaml.safe_load("""
{name: pod-guard, generation: 6, ready: true, leader: true, leaderElection: null, plugins: [],
 conditions: [{type: Reloaded, status: "True", reason: Applied, message: "",
               lastTransitionTime: "2026-01-02T01:00:00Z"}],
 lastReload: {time: "2026-01-02T03:00:00Z", result: Applied, reason: Applied}}
""") | {"resources": [RESOURCE], "handlers": [HANDLER]}
LATER = {
    **STATUS,
    "resources": [
        {**RESOURCE, "informers": [{"reflector": {"events": {"ADDED": 5, "MODIFIED": 35, "BOOKMARK": 7}}}]}
    ],
    "handlers": [{**HANDLER, "succeeded": 130, "failed": 2, "retried": 5}],
}


def between(before: Mapping[str, Any], after: Mapping[str, Any], seconds: float = 2.0) -> LoadSample:
    """A sample of two documents."""
    return sample(before, after, seconds=seconds, now=NOW)


def test_rates_are_differences_of_two_reads():
    """Each call ends as a success, a failure or a retry; events are those of the watches."""
    taken = between(STATUS, LATER)
    (handler,), (cache,) = taken.handlers, taken.caches
    rates = (handler.calls_per_second, handler.failed_per_second, handler.retried_per_second)
    assert (rates, cache.events_per_second) == ((16.0, 0.5, 0.5), 12.5)
    assert (handler.p50_seconds, handler.p99_seconds) == (0.002, 0.0125)
    assert (taken.reload_reason, taken.leader, taken.leader_identity) == ("Applied", True, None)
    # A document of an older process, without the newer figures, is read all the same.
    old = {name: value for name, value in HANDLER.items() if name not in ("p50Seconds", "p99Seconds")}
    (handler,) = between({**STATUS, "handlers": [old]}, {**LATER, "handlers": [old]}).handlers
    assert (handler.p50_seconds, handler.p95_seconds) == (0.0, 0.004)


def test_what_can_not_be_compared_has_no_rate():
    """A process that was restarted between two reads, or a handler that a reload has added."""
    taken = between(LATER, STATUS)
    assert (taken.handlers[0].calls_per_second, taken.caches[0].events_per_second) == (None, None)
    taken = between({**STATUS, "handlers": [], "resources": []}, LATER)
    assert (taken.handlers[0].calls_per_second, taken.handlers[0].queued) == (None, 3)


def test_one_sample_as_text(ask, process):
    """In a pipe: the head, a line for each handler, and one for each cache."""
    process.answers(200, STATUS)
    ended = ask("top", *SOON)
    assert (ended.status, ended.err) == (0, "")
    head, summary, _, handlers, notify, _, caches, pods = ended.lines
    assert head == "pod-guard generation 6"
    assert summary.startswith("last reload: Applied ")
    assert summary.endswith("12,000 objects in 3Mi")
    assert handlers.split()[:4] == ["HANDLER", "CALLS/S", "FAILED/S", "RETRIED/S"]
    assert notify.split()[:9] == ["notify", "0", "0", "0", "3", "2", "2ms", "4ms", "12.5ms"]
    assert notify.endswith("demo/a: ValueError: no")
    assert caches.split()[:2] == ["CACHE", "OBJECTS"]
    assert pods.split() == ["pods", "12,000", "3Mi", "0", "1", "0s", "ago", "Watching"]
    assert "\x1b" not in ended.out


def test_the_age_of_the_last_reload_is_no_age_of_a_condition(ask, process):
    """A reload an hour after the start was a moment ago, although the condition holds since the start."""
    now = datetime.now(UTC)
    last = {**STATUS["lastReload"], "time": (now - timedelta(minutes=5)).isoformat()}
    hours = {**STATUS["conditions"][0], "lastTransitionTime": (now - timedelta(hours=3)).isoformat()}
    for reload, said in ((last, "Applied 5m ago"), (None, "none yet")):
        process.answers(200, {**STATUS, "lastReload": reload, "conditions": [hours]})
        assert ask("top", "--once", *SOON).lines[1].startswith(f"last reload: {said}; ")
    json_of = ask("top", "-o", "json", *SOON).document
    assert (json_of["reloadReason"], json_of["reloadStatus"], json_of["reloadTime"]) == ("", "True", None)


def test_figures_have_one_form(ask, process):
    """A call of three seconds is `3s`, and no `3e+03ms`; ages are those of the status and of the page."""
    slow = {**HANDLER, "p50Seconds": 0.00034, "p95Seconds": 3.0, "p99Seconds": 300.0, "queued": 12_345}
    old = {**RESOURCE, "lastEventAge": 7_200.5, "bytes": 12_800}
    process.answers(200, {**STATUS, "ready": False, "handlers": [slow], "resources": [old]})
    ended = ask("top", "--once", *SOON)
    head, summary, _, _, notify, _, _, pods = ended.lines
    assert head.startswith("pod-guard generation 6 (NOT READY")
    assert summary.endswith("; 12,000 objects in 12.5Ki")
    assert notify.split()[4:9] == ["12,345", "2", "0.34ms", "3s", "5m"]
    assert pods.split()[1:3] == ["12,000", "12.5Ki"]
    assert pods.split()[-3:] == ["2h", "ago", "Watching"]


def test_one_sample_as_json(ask, process):
    """For programs: every figure of the text, with units in the names."""
    process.answers(200, STATUS)
    document = ask("top", "-o", "json", *SOON).document
    assert set(document) == {
        *("time", "seconds", "name", "generation", "ready", "leader", "leaderIdentity"),
        *("reloadReason", "reloadStatus", "reloadTime", "slots", "handlers", "caches"),
    }
    (handler,), (cache,) = document["handlers"], document["caches"]
    assert document["seconds"] >= 0.1
    assert (handler["callsPerSecond"], handler["p99Seconds"], cache["bytes"]) == (0.0, 0.0125, 3 << 20)
    assert [path for _, path, _ in process.asked] == ["/status", "/status"]


@pytest.mark.parametrize(
    ("election", "leader", "words"),
    [
        ({"holder": "pod-a", "identity": "pod-b"}, False, "follows pod-a"),
        ({"holder": "", "identity": "pod-b"}, False, "no leader yet"),
        ({"holder": "pod-b", "identity": "pod-b"}, True, "leads"),
    ],
)
def test_the_leader_is_named(ask, process, election, leader, words):
    """A follower calls no handler: who sees no calls sees why."""
    process.answers(200, {**STATUS, "leader": leader, "leaderElection": election})
    assert ask("top", "--once", *SOON).lines[1].endswith(f"; {words}")


def test_the_slots_of_a_process_are_counted(ask, process):
    """Of several that share the objects, each handles some; what no process handles is said, too."""
    sharding = {"handled": 6, "total": 16, "free": 2}
    process.answers(200, {**STATUS, "sharding": sharding})
    assert ask("top", "--once", *SOON).lines[1].endswith("; 6 of 16 slots, 2 free")


@pytest.mark.parametrize("interval", ["1ms", "soon"])
def test_an_interval_is_a_duration(ask, process, interval):
    """Not shorter than a tenth of a second: the view must not load the process that it looks at."""
    assert ask.refused("top", "--interval", interval).startswith("declctl: --interval: ")
    assert not process.asked


@pytest.fixture(name="drawn")
def _drawn(process: Process, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[float], None]], str]:
    """Draws the live view on a terminal of 160 columns and 30 lines, and gives all that was written."""
    for name, value in (("TERM", "xterm"), ("COLUMNS", "160"), ("LINES", "30")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)

    def draw(sleep: Callable[[float], None]) -> str:
        screen = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", screen)
            assert show_top(process.address, once=False, interval=None, as_json=False, sleep=sleep) == 0
        return screen.getvalue()

    return draw


def after(times: int, then: Callable[[int], None] = lambda _: None) -> Callable[[float], None]:
    """A wait that takes no time, and is interrupted by Ctrl-C after so many of them."""
    waits = 0

    def sleep(_: float) -> None:
        nonlocal waits
        waits += 1
        if waits > times:
            raise KeyboardInterrupt
        then(waits)

    return sleep


def test_the_live_view_is_drawn_until_ctrl_c(process, drawn):
    """On the other screen of the terminal, which is left at the end; failures are red."""
    # An error of a handler may quote an object with escapes.
    evil = {**HANDLER, "lastError": "\x1b[2Jgone[red]x[/red]"}
    process.answers(200, {**STATUS, "name": "\x1b[2Jguard", "handlers": [evil]})
    shown = drawn(after(2))
    assert shown.count("\x1b[?1049h") == shown.count("\x1b[?1049l") == 1
    assert shown.count("every 2s; Ctrl-C ends") == 2
    assert "\x1b[31m1" in shown  # one failure and one dead letter
    assert "\x1b[2J" not in shown
    assert "[2Jgone[red]x[/red]" in shown


def test_a_process_that_restarts_comes_back(process, drawn):
    """The view says that nobody answers, and goes on when the process is there again."""
    process.answers(200, STATUS)

    def then(wait: int) -> None:
        process.body = b"<html>" if wait == 1 else json.dumps(STATUS).encode()

    shown = drawn(after(2, then))
    assert shown.index("is not declctl") < shown.index("every 2s; Ctrl-C ends")


def test_another_controller_at_the_address_has_no_rates(process):
    """Its counters have nothing to do with those before."""
    process.answers(200, STATUS)
    host, _, port = process.address.partition(":")
    poller = LoadPoller(AdminAddress(Address(host, int(port)), named=True))
    process.answers(200, {**LATER, "name": "other"})
    taken = poller.poll()
    assert (taken.name, taken.handlers[0].calls_per_second) == ("other", None)
    process.answers(200, {"error": "no"})
    with pytest.raises(UsageError):
        poller.poll()
