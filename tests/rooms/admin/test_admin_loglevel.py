"""The level of the log, on the admin address: it is changed, told in the log, and set back in time."""

import asyncio
from collections.abc import Callable

import pytest

from declctl.admin import serve
from declctl.kit import ManualClock
from declctl.runtime.log import LogLevelControl
from declctl.testing import Logged
from tests.rooms.admin.conftest import EVERYWHERE, LOOPBACK, request


@pytest.fixture(name="applied")
def _applied(runtime) -> list[str]:
    """The levels that the process was given."""
    applied: list[str] = []
    runtime.log_level = LogLevelControl("info", applied.append)
    return applied


def test_the_level_is_changed(ask: Callable, applied: list[str]) -> None:
    """The answer has the level before and the new one."""
    answer = ask("/-/loglevel?level=debug", method="POST")
    assert (answer.status, answer.json) == (
        200,
        {
            "message": "the log level is debug, and was info",
            "before": "info",
            "level": "debug",
            "until": None,
        },
    )
    assert ask("/-/loglevel?level=WARNING", method="POST").json["before"] == "debug"
    assert applied == ["debug", "warning"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "level: '' is none of debug, info, warning, error."),
        ("level=loud", "level: 'loud' is none of debug, info, warning, error."),
        ("level=debug&for=soon", 'for: "soon" is not a duration'),
        ("level=debug&for=10ms", "for: write a duration from 1s to 24h."),
        ("level=debug&for=25h", "for: write a duration from 1s to 24h."),
    ],
)
def test_a_wrong_parameter_is_told_and_changes_nothing(
    ask: Callable, applied: list[str], query: str, words: str
) -> None:
    """400, with what may be written."""
    answer = ask(f"/-/loglevel?{query}", method="POST")
    assert answer.status == 400
    assert answer.json["error"].startswith(words)
    assert not applied


def test_a_log_that_is_not_that_of_the_command_is_left_alone(ask: Callable) -> None:
    """409 in a process that uses the runtime as a library."""
    assert ask("/-/loglevel?level=debug", method="POST").status == 409


def test_the_level_is_behind_the_token(ask: Callable, applied: list[str]) -> None:
    """It changes what the process does."""
    assert ask("/-/loglevel?level=debug", method="POST", address=EVERYWHERE).status == 403
    assert ask("/-/loglevel?level=debug", method="POST", token="secret").status == 401
    assert ask("/-/loglevel?level=debug").status == 405
    assert not applied


def test_a_level_for_a_time_is_set_back(runtime, applied: list[str]) -> None:
    """By the clock; a later request replaces the time, and each change is a line with its reason."""
    clock, log = ManualClock(), Logged()

    async def scenario() -> None:
        async with serve(runtime, LOOPBACK, clock=clock, log=log) as bound:

            async def order(query: str) -> dict:
                return (await request(bound, f"/-/loglevel?{query}", method="POST")).json

            answer = await order("level=debug&for=10m")
            assert answer["message"] == "the log level is debug, and was info; info again in 10m"
            assert answer["until"] == "2026-01-01T00:10:00Z"
            changed = runtime.log_level.changed
            assert (changed.level, changed.start) == ("debug", "info")
            await clock.advance(599)
            assert applied == ["debug"]
            await clock.advance(1)
            assert applied == ["debug", "info"]
            assert runtime.log_level.changed is None
            await order("level=error&for=10m")
            await order("level=warning")
            await clock.advance(3600)
            assert applied == ["debug", "info", "error", "warning"]

    asyncio.run(scenario())
    said = [line.event for line in log.lines if "log level" in line.event]
    assert said == [
        "the log level is debug from now on, and was info: 127.0.0.1 asked for it; info again in 10m",
        "the log level is info from now on, and was debug: its time is over",
        "the log level is error from now on, and was info: 127.0.0.1 asked for it; info again in 10m",
        "the log level is warning from now on, and was error: 127.0.0.1 asked for it",
    ]


def test_the_status_has_a_level_that_is_not_that_of_the_start(ask: Callable, runtime, applied) -> None:
    """Also without the token: it is no secret."""
    assert ask("/status").json["logLevel"] is None
    runtime.log_level.change("debug")
    runtime.say(log_level=runtime.log_level.changed)
    found = {"level": "debug", "start": "info", "until": None}
    assert ask("/status").json["logLevel"] == found
    assert ask("/status", token="secret").json["logLevel"] == found
