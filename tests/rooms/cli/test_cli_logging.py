"""Every way of logging leads to the same place, and none loses anything."""

import io
import json
import logging
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from declctl.cli.logging import Screen, change_level, set_up_logs
from declctl.hooks.calls import Implementation, call
from declctl.kit import ManualClock
from declctl.kit.secret_values import secret_values

pytestmark = pytest.mark.usefixtures("process_restored")


def logs(level: str = "info") -> tuple[Any, io.StringIO]:
    """A logger, and the stream that it writes JSON lines to."""
    stream = io.StringIO()
    return set_up_logs(Screen(stream), form="json", level=level, clock=ManualClock()), stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


class Unreadable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda token: SimpleNamespace(token=token),
        lambda token: token.encode(),
        lambda token: frozenset({token}),
        lambda token: {"a": [token]},
        ValueError,
    ],
    ids=["an object", "bytes", "a set", "a mapping", "an exception"],
)
def test_a_value_of_a_secret_is_hidden_in_a_field_of_any_type(wrapped):
    """A handler that logs its settings does not show the token in them."""
    secret = "tok-of-a-logged-secret"
    secret_values.keep({"stringData": {"token": secret}})
    log, stream = logs()
    log.info("read", settings=wrapped(secret), other=Unreadable())
    assert "(hidden)" in stream.getvalue()
    assert secret not in stream.getvalue()


def test_nothing_that_ctx_log_is_given_is_lost():
    """It is bound with handler and key; arguments, exceptions as values, numbers, and the clock's time."""
    log, stream = logs()
    bound = log.bind(handler="notify", key="default/a").bind(team="a", level=3)
    bound.info("%d of %s", 2, "five", replicas=3, ratio=0.5, ok=True, owner=None)
    bound.warning("failed", exc_info=ValueError("no"))
    first, second = lines(stream)
    head = {"ts": "2026-01-01T00:00:00.000Z", "level": "info", "event": "2 of five"}
    fields = {"handler": "notify", "key": "default/a", "team": "a", "level_": 3}
    assert first == {**head, **fields, "replicas": 3, "ratio": 0.5, "ok": True, "owner": None}
    assert (second["error_type"], second["error"]) == ("ValueError", "no")
    assert second["traceback"] == "ValueError: no"


@pytest.mark.parametrize("name", ["aiohttp.client", "x", "_declctl_gen.g1.handlers.pods"])
def test_the_level_is_a_floor(name):
    """Of `ctx.log`, and of `logging.getLogger("x")` of a handler or a library, from --log-level on."""
    for level, shown in (
        ("debug", ["chatter", "slow peer", "hm"]),
        ("info", ["slow peer", "hm"]),
        ("warning", ["hm"]),
        ("error", []),
    ):
        for own in (True, False):
            log, stream = logs(level)
            log = log if own else logging.getLogger(name)
            log.debug("chatter")
            log.info("slow %s", "peer")
            log.warning("hm")
            assert [line["event"] for line in lines(stream)] == shown


@pytest.mark.parametrize(
    ("name", "level", "shown"),
    [
        # The official client logs whole answers at debug, Secrets among them.
        ("kubernetes.client.rest", "debug", ["info", "warning"]),
        # A stream that was given up, a relist and a rollback are told; the runtime tells the rest.
        ("declctl.informer.notices", "info", ["info", "warning"]),
        ("declctl.informer", "info", []),
        # The reload line says what came of an edit; the library that watches the files is quiet about it.
        # At debug it names each notice: a log in the folder of the manifest would feed itself.
        ("watchfiles.main", "debug", ["warning"]),
    ],
)
def test_loggers_that_would_say_too_much_have_levels_of_their_own(name, level, shown):
    """Answers of the cluster stay out of the log, and what happens is one line of it."""
    _, stream = logs(level)
    for said in ("debug", "info", "warning"):
        getattr(logging.getLogger(name), said)("something")
    assert [line["level"] for line in lines(stream)] == shown


def test_nothing_that_a_record_brings_is_lost():
    """`extra`, a stack, a level of its own, and names that every line has: all of it is in the line."""
    _, stream = logs()
    log = logging.getLogger("x")
    log.info("a", extra={"pod": "web", "event": "e", "level": "l", "timestamp": 5, "ts": 6}, stack_info=True)
    log.log(logging.INFO + 5, "notice")
    first, second = lines(stream)
    assert (first["event"], first["level"], first["logger"], first["pod"]) == ("a", "info", "x", "web")
    assert [first[f"{name}_"] for name in ("event", "level", "timestamp", "ts")] == ["e", "l", 5, 6]
    assert "test_nothing_that_a_record_brings" in first["stack"]
    assert (second["event"], second["level"]) == ("notice", "info")


def test_an_exception_has_its_traceback():
    """log.exception shows the traceback under one name, whoever logs it, and under the module's own name."""
    log, stream = logs()
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("structlog")
        logging.getLogger("_declctl_gen.g1.handlers.pods").exception("logging")
    own, library = lines(stream)
    for line in (own, library):
        assert (line["level"], line["error_type"], line["error"]) == ("error", "KeyError", "'x'")
        assert line["traceback"].endswith("KeyError: 'x'")
    assert (library["event"], library["logger"]) == ("logging", "handlers.pods")


def test_a_library_that_a_hook_calls_logs_with_its_key_and_event():
    """Lines of a client library lead to the object for which the handler has called it."""
    _, stream = logs()

    def hook(change):
        logging.getLogger("lib").info("connected")

    change = SimpleNamespace(key="default/web", id="uid-1@7")
    call(Implementation("declctl_event", "p", hook, ("change",), is_async=False), {"change": change})
    logging.getLogger("lib").info("idle")
    inside, outside = lines(stream)
    assert (inside["key"], inside["event_id"]) == ("default/web", "uid-1@7")
    assert "event_id" not in outside


def test_warnings_of_python_are_lines_of_the_log():
    """`warnings.warn` of a handler or a library is one line, as all others: stderr has nothing but JSON."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        _, stream = logs()
        warnings.warn("old \x1b[2J\nforged", UserWarning, stacklevel=1)
        logging.captureWarnings(capture=False)
    (line,) = lines(stream)
    assert (line["logger"], line["level"]) == ("py.warnings", "warning")
    assert "UserWarning: old \x1b[2J\nforged" in line["event"]
    assert "\x1b" not in stream.getvalue()


# Characters with which a text could control a terminal, forge a line, or reverse it.
_HOSTILE = "\x00\x07\x08\x1b\x7f\r\n\t\x85\x9b\u2028\u2029\u202e\u2066\ufeff\ud800"


@pytest.mark.parametrize("form", ["text", "json"])
@given(st.lists(st.text(st.sampled_from(f'{_HOSTILE}a"\\{{}}')), min_size=6, max_size=6))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_of_an_object_reaches_the_log_raw(form, texts):
    """A sentence, names and values of fields, an exception, and a record of a library: no character acts."""
    event, name, value, error, message, nested = texts
    stream = io.StringIO()
    log = set_up_logs(Screen(stream), form=form, level="info", clock=ManualClock())
    log.bind(handler=value, key=nested).error(
        event, exc_info=ValueError(error), **{f"x{name}": {value: [nested]}}
    )
    logging.getLogger("lib").warning("%s", message, extra={f"y{name}": value})
    written = stream.getvalue()
    assert not [c for c in written if not c.isprintable() and c not in "\n\t"]
    if form == "json":
        first, second = (json.loads(line) for line in written.splitlines())
        assert (first["event"], first["error"], second["event"]) == (event, error, message)
        assert first[f"x{name}"] == {value: [nested]}
    else:
        # What others have written begins no line: a line of the log begins with its time.
        heads = [line for line in written.split("\n")[:-1] if not line.startswith("  ")]
        assert [line.partition("T")[0] for line in heads] == ["2026-01-01"] * 2


def test_a_changed_level_holds_for_loggers_that_were_made_before():
    """`ctx.log` of a running handler, and loggers of libraries, show more, and then less."""
    log, stream = logs()
    bound, library = log.bind(handler="notify"), logging.getLogger("of.a.handler")

    def say(number: int) -> None:
        bound.debug(f"own {number}")
        library.debug(f"library {number}")

    say(1)
    change_level("debug")
    say(2)
    bound.bind(key="a").debug("bound later")
    change_level("error")
    bound.warning("left out")
    library.warning("left out")
    bound.error("shown")
    assert [line["event"] for line in lines(stream)] == ["own 2", "library 2", "bound later", "shown"]
