"""Projections: lines of a WATCH become events, or the error that they tell of."""

import pytest

from declctl.errors import (
    Expired,
    Forbidden,
    MalformedAnswer,
    ServerError,
    StatusError,
    TooLargeResourceVersion,
    TooManyRequests,
)
from declctl.kit.secret_values import secret_values
from declctl.objects import EventType, WatchEvent, status_error
from tests.rooms.objects.made_objects import NODE_NAME, compact, event, pod, projection


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
@pytest.mark.parametrize(
    "line",
    [
        lambda kind, raw: b'{"type":"%b","object":%b}\n' % (kind, raw),
        lambda kind, raw: b'{"type":"%b","object":%b}' % (kind, raw),
        lambda kind, raw: b'{"type":"%b","object":%b} \r\n' % (kind, raw),
        lambda kind, raw: b'{"type": "%b", "object": %b}\n' % (kind, raw),
        lambda kind, raw: b'{"object":%b,"type":"%b"}\n' % (raw, kind),
        lambda kind, raw: b'{"type":"%b","object":%b,"more":{}}\n' % (kind, raw),
        lambda kind, raw: b'{"type":"%b","object": %b }\n' % (kind, raw),
        lambda kind, raw: b'{"type":"%b","object":%b }\n' % (kind, raw),
    ],
)
def test_change_is_read_however_its_line_is_spelled(kind, line):
    """Go's spelling is the fast one, every other is read too, and each object is counted once."""
    one = projection(NODE_NAME)
    seen = one.event(line(kind.encode(), compact(pod())))
    assert (seen.type, seen.resource_version, seen.initial_events_end) == (EventType(kind), "7", False)
    assert seen.record is not None
    assert (seen.record.key, seen.record.field(NODE_NAME)) == ("team-a/web-1", ("node-1",))
    assert one.statistics().objects == 1
    assert seen.record.decode() == pod()


@pytest.mark.parametrize(
    ("annotations", "ends"),
    [
        ({"k8s.io/initial-events-end": "true"}, True),
        ({}, False),
        (None, False),
        ({"k8s.io/initial-events-end": "no"}, False),
    ],
)
def test_bookmark_carries_a_version_and_says_whether_the_first_objects_are_in(annotations, ends):
    """A bookmark moves the version on; one of them ends a streaming list."""
    seen = projection().event(
        event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "99", "annotations": annotations}})
    )
    assert seen == WatchEvent(EventType.BOOKMARK, None, "99", ends)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ({"code": 410, "reason": "Expired", "message": "too old resource version"}, Expired),
        ({"code": 410, "reason": "Gone"}, Expired),
        ({"code": 403, "reason": "Forbidden"}, Forbidden),
        ({"code": 500, "reason": "InternalError"}, ServerError),
        ({}, ServerError),
        ({"code": 429, "details": {"retryAfterSeconds": 3}}, TooManyRequests),
        (
            {
                "code": 504,
                "reason": "Timeout",
                "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]},
            },
            TooLargeResourceVersion,
        ),
    ],
)
def test_error_event_is_raised_as_what_it_tells(status, error):
    """An expired watch is told from a forbidden one."""
    with pytest.raises(StatusError) as caught:
        projection().event(event("ERROR", {"kind": "Status"} | status))
    assert type(caught.value) is error


@pytest.mark.parametrize(
    "status",
    [
        {"code": "410", "reason": 5, "message": None},
        {"details": []},
        {"details": {"causes": {}}},
        {"details": {"causes": [None, 1, {}]}},
        {"details": {"retryAfterSeconds": "soon"}},
        {"details": {"retryAfterSeconds": -1}},
        {"code": None},
    ],
)
def test_status_of_an_odd_shape_is_an_error_of_the_server(status):
    """What a broken proxy writes into a Status is no traceback."""
    error = status_error(status)
    assert isinstance(error, ServerError)
    assert error.retry_after is None


LONG_TOKEN = "mark-of-a-refusal" * 500
LONG = {"reason": "FieldValueInvalid", "message": f"Invalid value: {'x' * 5000}: y: is immutable"}
CHANGED = {"reason": "FieldValueForbidden", "field": "spec", "message": "Forbidden: no change\n  Pod{\n-a\n"}
OWNED = {"reason": "FieldManagerConflict", "message": 'conflict with "x" using v1', "field": ".data.a"}
BY_X = "change: .data.a (x), .data.a (x), .data.a (x) and 1 more; leave these fields out, or apply with force"
INVALID = "spec: Forbidden: no change; Invalid value: …: is immutable; spec: Forbidden: no change; and 1 more"


@pytest.mark.parametrize(
    ("code", "message", "causes", "end", "owners"),
    [
        (422, 'Pod "a" is invalid: [', [CHANGED, LONG] * 2, f' "a" is invalid: {INVALID}', ()),
        (422, "no " * 3000, [], f"{'no ' * 99}no…", ()),
        (409, "Apply failed", [OWNED] * 4, BY_X, ((".data.a",) * 4, ("x",))),
        (400, f"got {LONG_TOKEN}", [], "got (hidden)", ()),
    ],
)
def test_refusal_is_one_sentence(code, message, causes, end, owners):
    """A server adds whole values and objects. No value is cut: part of a Secret's would not be hidden."""
    secret_values.remember({"stringData": {"token": LONG_TOKEN}})
    error = status_error({"code": code, "message": message, "details": {"causes": causes}})
    assert str(error).endswith(end)
    assert len(str(error)) < 400
    assert not owners or (getattr(error, "fields", ()), getattr(error, "managers", ())) == owners


def test_wait_that_a_header_asks_for_counts_more_than_that_of_the_status():
    """Retry-After is what the last hop asked for."""
    error = status_error({"code": 429, "details": {"retryAfterSeconds": 3}}, retry_after=9.0)
    assert isinstance(error, StatusError)
    assert error.retry_after == 9.0


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{}",
        b"null",
        b"[]",
        b"<html>",
        b'{"type":"ADDED"}',
        b'{"type":1,"object":{}}',
        b'{"type":"ADDED","object":{}}\n',
        event("ADDED", pod())[:-2],
        event("ADDED", pod())[:200],
        event("ADDED", pod())[:-1] + b"x",
        event("ADDED", pod())[:-2] + b"x",
        event("ADDED", pod())[:-1] * 2,
        event("RENAMED", pod()),
        event("DROPPED", pod()),
        event("", pod()),
        event("ADDED", None),
        event("ERROR", None),
        event("ERROR", [1]),
        event("BOOKMARK", "x"),
        b'{"type":"ADDED","object":' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
    ],
)
def test_line_that_is_no_event_is_refused(line):
    """A cut or foreign line is a malformed answer, which ends the watch and not the process."""
    with pytest.raises(MalformedAnswer):
        projection().event(line)


@pytest.mark.parametrize(
    "obj", [{"kind": "Pod"}, {"metadata": None}, {"metadata": []}, {"metadata": {"annotations": []}}]
)
def test_bookmark_of_an_odd_shape_carries_no_version(obj):
    """It is not refused: whoever reads it goes on from the version before."""
    assert projection().event(event("BOOKMARK", obj)) == WatchEvent(EventType.BOOKMARK, None, "")


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
@pytest.mark.parametrize("metadata", [{}, {"uid": 5, "resourceVersion": 6, "labels": 7}])
def test_object_that_the_transform_drops_has_to_leave_the_cache(kind, metadata):
    """Whatever was held of it goes: an object may leave the cache while it lives on."""
    obj = pod()
    obj["metadata"] |= metadata
    seen = projection(transform=lambda _: None).event(event(kind, obj))
    assert seen.type is EventType.DROPPED
    assert seen.record is not None
    assert (seen.record.key, seen.resource_version) == (
        "team-a/web-1",
        str(obj["metadata"]["resourceVersion"]),
    )
