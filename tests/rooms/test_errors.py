"""Errors: a server's answer becomes the class that the machinery decides by."""

import inspect
import re

import pytest

from declctl import errors
from declctl.errors import DeclctlError, ManifestErrors, StatusError, from_status


@pytest.mark.parametrize(
    ("code", "reason", "name"),
    [
        (400, "BadRequest", "InvalidRequest"),
        (401, "Unauthorized", "Unauthorized"),
        (403, "Forbidden", "Forbidden"),
        (404, "NotFound", "NotFound"),
        (405, "MethodNotAllowed", "InvalidRequest"),
        (406, "NotAcceptable", "InvalidRequest"),
        (409, "AlreadyExists", "Conflict"),
        (410, "Expired", "Expired"),
        (410, "Gone", "Expired"),
        (200, "Expired", "Expired"),
        (415, "UnsupportedMediaType", "InvalidRequest"),
        (422, "Invalid", "InvalidRequest"),
        (429, "TooManyRequests", "TooManyRequests"),
        (500, "InternalError", "ServerError"),
        (503, "ServiceUnavailable", "ServerError"),
        (504, "Timeout", "ServerError"),
        (418, "Teapot", "StatusError"),
    ],
)
def test_status_becomes_the_error_of_its_code_and_reason(code, reason, name):
    """410 is told from 404 and 500, since each is answered in another way."""
    error = from_status(code, reason, "a message", retry_after=3.0)
    assert type(error).__name__ == name
    assert (error.code, error.reason, error.retry_after) == (code, reason, 3.0)
    assert str(error) == f"{code} {reason}: a message"


@pytest.mark.parametrize(
    ("message", "causes"),
    [
        ("slow down", ["ResourceVersionTooLarge"]),
        ("slow down", ["Too large resource version"]),
        ("Too large resource version: 9, current: 3", []),
    ],
)
def test_version_from_the_future_is_recognised_in_its_three_forms(message, causes):
    """A server behind its peers is waited for, not taken for broken (isTooLargeResourceVersionError)."""
    assert type(from_status(504, "Timeout", message, causes=causes)).__name__ == "TooLargeResourceVersion"


def test_every_error_stands_in_the_tree_under_its_parent():
    """The docstring that people read is the tree that `except` sees."""
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)]
    tree = inspect.getdoc(errors) or ""
    assert len(classes) > 15
    for one in classes:
        assert issubclass(one, DeclctlError)
        assert re.search(rf"\b{one.__name__}\b", tree), one


def test_tree_is_drawn_one_error_a_line():
    """Each branch has a line of its own."""
    lines = (inspect.getdoc(errors) or "").splitlines()
    assert all(len(re.findall("[├└]──", line)) <= 1 for line in lines)
    assert any(line.startswith("├── UsageError") for line in lines)


def test_status_without_a_message_prints_without_a_colon():
    """`503 ServiceUnavailable` is a sentence's end already."""
    assert str(StatusError(503, "ServiceUnavailable", "")) == "503 ServiceUnavailable"


def test_manifest_errors_print_every_fault_on_a_line_of_its_own():
    """`declctl run` shows all faults at once."""
    error = ManifestErrors(["m.yaml:1:1: error DCL001: a", "m.yaml:2:1: error DCL002: b"])
    assert str(error).splitlines() == list(error.diagnostics)
