"""Failures that last: met with patience, and survived."""

import pytest

from declctl import errors
from tests.rooms.informer.broken_input import BROKEN_LINES, BROKEN_LISTS, CODES, line
from tests.rooms.informer.reflecting import bench
from tests.rooms.informer.shapes import pod

FAULTS = {
    "unreachable": errors.Unreachable("connection refused"),
    "malformed": errors.MalformedAnswer("half a line"),
    "bug": KeyError("a bug of the source"),
    "400": errors.InvalidRequest(400, "BadRequest", ""),
    "401": errors.Unauthorized(401, "Unauthorized", ""),
    "403": errors.Forbidden(403, "Forbidden", ""),
    "404": errors.NotFound(404, "NotFound", ""),
    "409": errors.Conflict(409, "Conflict", ""),
    "410": errors.Expired(410, "Expired", ""),
    "429": errors.TooManyRequests(429, "TooManyRequests", ""),
    "500": errors.ServerError(500, "InternalError", ""),
    "500 StoreReadError": errors.ServerError(500, "StoreReadError", ""),
    "503": errors.ServerError(503, "ServiceUnavailable", ""),
    "too large": errors.TooLargeResourceVersion(504, "Timeout", "Too large resource version"),
}


def at_lists(fault):
    return lambda source: source.fail_next(fault, verb="list", times=10_000)


def at_watches(fault):
    return lambda source: source.fail_next(fault, times=10_000)


def everywhere(fault):
    return lambda source: (at_lists(fault)(source), at_watches(fault)(source))


def begins_with(text):
    return lambda source: setattr(source, "first_line", text)


def answers(body):
    return lambda source: setattr(source, "body", body)


LASTING = (
    {f"{name} at lists": at_lists(fault) for name, fault in FAULTS.items()}
    | {f"{name} at watches": at_watches(fault) for name, fault in FAULTS.items()}
    | {f"{name} everywhere": everywhere(fault) for name, fault in FAULTS.items()}
    | {f"watches begin with {name}": begins_with(text) for name, text in BROKEN_LINES.items()}
    | {f"watches begin with {code}": begins_with(line("ERROR", {"code": code})) for code in CODES}
    | {f"lists are {name}": answers(body) for name, body in BROKEN_LISTS.items()}
    | {
        "watches end at once": lambda source: setattr(source, "slams", True),
        "silence": lambda source: setattr(source, "silent", True),
        "streams without an end": lambda source: setattr(source, "ends_initial_events", False),
    }
)


@pytest.mark.parametrize("when", ["from the start", "later"])
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("failure", LASTING)
async def test_a_failure_that_lasts_is_met_with_patience_and_survived(failure, streams, when):
    """Ten rounds and twenty requests in its first minute at most; after its end all is as it should be."""
    async with bench(streams=streams, begin=False) as b:
        if when == "later":
            await b.begin()
            await b.advance(5)
        LASTING[failure](b.source)
        b.source.requests.clear()
        rounds = b.figures.rounds
        if when == "later":
            b.source.delete("demo/a")
            b.source.compact()
            b.source.cut()
        else:
            await b.begin()
        await b.advance(60)
        assert b.figures.rounds - rounds <= 10
        assert len(b.source.requests) <= 20
        b.source.add(pod("c"))
        await b.advance(120)
        b.source.calm()
        b.source.cut()
        await b.advance(150)
        assert b.agrees()
        assert (b.figures.state, b.figures.error, b.source.open_watches) == ("Watching", None, 1)


@pytest.mark.client_go("Watch answers 403 or 500 for a while")
@pytest.mark.parametrize("fault", ["403", "500"])
async def test_a_watch_that_is_refused_for_an_hour_costs_two_requests_a_minute(fault):
    """Back-off ends at half a minute: the server is left alone, and its recovery is noticed soon."""
    async with bench() as b:
        at_watches(FAULTS[fault])(b.source)
        b.source.cut()
        b.source.requests.clear()
        await b.advance(3600)
        assert 120 <= len(b.source.requests) <= 360  # a list that succeeds may be among them
        assert b.agrees()
        b.source.calm()
        b.source.add(pod("c"))
        await b.advance(30)
        assert b.agrees()
