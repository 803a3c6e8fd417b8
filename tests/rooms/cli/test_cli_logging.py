"""Every way of logging leads to the same place."""

import io
import json
import logging
from typing import Any

import pytest

from declctl.cli.logging import set_up_logs
from declctl.cli.options import LogFormat, LogLevel
from declctl.cli.screen import Screen
from declctl.kit import ManualClock

pytestmark = pytest.mark.usefixtures("logging_restored")


def logs(level: LogLevel = LogLevel.INFO) -> tuple[Any, io.StringIO]:
    """A logger, and the stream that it writes JSON lines to."""
    stream = io.StringIO()
    return set_up_logs(Screen(stream), form=LogFormat.JSON, level=level, clock=ManualClock()), stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """What was written."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_bound_logger_keeps_its_fields():
    """`ctx.log` is bound with handler and key; what a handler logs carries them, and the clock's time."""
    log, stream = logs()
    log.bind(handler="notify", key="default/a").info("late", since=3)
    assert lines(stream) == [
        {
            "ts": "2026-01-01T00:00:00.000Z",
            "level": "info",
            "event": "late",
            "handler": "notify",
            "key": "default/a",
            "since": 3,
        }
    ]


def test_the_level_is_a_floor():
    """--log-level warning keeps what is fine out of the log."""
    log, stream = logs(LogLevel.WARNING)
    log.info("fine")
    log.warning("hm")
    assert [line["event"] for line in lines(stream)] == ["hm"]


def test_libraries_speak_from_warning_on():
    """The client's chatter stays out of the log, its warnings don't."""
    _, stream = logs(LogLevel.DEBUG)
    logging.getLogger("aiohttp.client").info("chatter")
    logging.getLogger("aiohttp.client").warning("slow %s", "peer")
    assert [(line["event"], line["level"], line["logger"]) for line in lines(stream)] == [
        ("slow peer", "warning", "aiohttp.client")
    ]


def test_handlers_may_use_the_logging_module():
    """`logging.getLogger(__name__).info` in a handler file is seen, under the module's own name."""
    _, stream = logs()
    logging.getLogger("_declctl_gen.g1.handlers.pods").info("hello")
    assert (lines(stream)[0]["event"], lines(stream)[0]["logger"]) == ("hello", "handlers.pods")


def test_an_exception_has_its_traceback():
    """log.exception shows the traceback under one name, whoever logs it."""
    log, stream = logs()
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("structlog")
        logging.getLogger("_declctl_gen.g1.h").exception("logging")
    for line in lines(stream):
        assert line["level"] == "error"
        assert line["traceback"].endswith("KeyError: 'x'")
