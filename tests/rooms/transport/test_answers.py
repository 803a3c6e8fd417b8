"""Answers that are no success."""

import json
from datetime import UTC, datetime

import pytest

from declctl.errors import (
    Conflict,
    Expired,
    Forbidden,
    InvalidRequest,
    MalformedAnswer,
    NotFound,
    ServerError,
    StatusError,
    TooLargeResourceVersion,
    TooManyRequests,
    Unauthorized,
)
from declctl.transport.messages import answer_error, json_object, retry_after

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def status(code, reason, message="it did not work", **details):
    found = {"code": code, "reason": reason, "message": message, "details": details}
    return json.dumps({"kind": "Status", "status": "Failure", **found}).encode()


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", InvalidRequest),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", Conflict),
        (410, "Expired", Expired),
        (422, "Invalid", InvalidRequest),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", ServerError),
        (503, "ServiceUnavailable", ServerError),
    ],
)
def test_a_status_is_told_with_its_reason_and_message(code, reason, kind):
    """What the server wrote about the fault is what the log shows, under an error of its own kind."""
    error = answer_error(code, {}, status(code, reason), now=NOW)
    assert type(error) is kind
    assert (error.code, error.reason, error.message) == (code, reason, "it did not work")


def test_a_version_the_server_has_not_seen_is_recognised():
    """A relist against a replica that is behind is tried again instead of being taken for an outage."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    body = status(504, "Timeout", causes=[cause])
    assert type(answer_error(504, {}, body, now=NOW)) is TooLargeResourceVersion


@pytest.mark.parametrize(
    ("code", "kind"), [(404, NotFound), (410, Expired), (502, ServerError), (302, StatusError)]
)
def test_a_page_of_a_proxy_is_told_by_its_code_and_its_beginning(code, kind):
    """Behind a load balancer that answers in HTML, the log still says what it said, on one line."""
    error = answer_error(code, {}, b"<html>\n  <h1>no\n upstream</h1>" + b"x" * 5000, now=NOW)
    assert type(error) is kind
    assert error.message.startswith("<html> <h1>no upstream</h1>xxx")
    assert len(error.message) == 200


def test_a_status_without_a_code_has_that_of_the_answer():
    """Aggregated API servers that leave the code out of their Status are understood by the HTTP status."""
    error = answer_error(403, {}, b'{"kind": "Status", "message": "no"}', now=NOW)
    assert (type(error), error.code, error.message) == (Forbidden, 403, "no")


def test_the_header_says_when_to_come_back():
    """An overloaded server is left alone for as long as it asks, header before body (client-go 219)."""
    body = status(429, "TooManyRequests", retryAfterSeconds=9)
    assert answer_error(429, {"Retry-After": "3"}, body, now=NOW).retry_after == 3
    assert answer_error(429, {}, body, now=NOW).retry_after == 9


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2.0),
        ("0.5", 0.5),
        ("Thu, 01 Jan 2026 00:00:07 GMT", 7.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", None),
        ("0", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value, seconds):
    """Both forms of the header are understood, and nonsense makes nobody wait."""
    assert retry_after(value, now=NOW) == seconds


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b"<html>"])
def test_a_success_that_is_no_object_is_malformed(body):
    """A captive portal that answers 200 with a page is not taken for a server."""
    with pytest.raises(MalformedAnswer, match="GET /version"):
        json_object(body, what="GET /version")


def test_an_empty_success_is_an_empty_object():
    assert json_object(b" \n", what="DELETE /x") == {}
