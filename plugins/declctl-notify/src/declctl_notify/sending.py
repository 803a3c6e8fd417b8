"""Sending by apprise. URLs are secrets: neither a log line nor an exception has one.

apprise and the libraries below it log URLs, and answers of services, in parts. Their log lines of a send are
therefore never written; of them only the status code and the kind of fault become the reason of a failure.
"""

import logging
import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from declctl_notify.compose import compose
from declctl_notify.outbox import Delivery
from declctl_notify.settings import TargetSettings

# apprise is imported at its first use: that takes a second, and each pre-flight of a reload imports this
# file.
if TYPE_CHECKING:
    from apprise import AppriseAsset, NotifyBase

_TYPES: Final = {"info": "info", "warning": "warning", "critical": "failure"}  # of apprise, by severity
_STATUS: Final = re.compile(r"\berror=(\d{3})\b")
_FAULTS: Final = (
    (re.compile(r"timed? ?out", re.IGNORECASE), "no answer in time"),
    (re.compile(r"certificate|SSL", re.IGNORECASE), "TLS failed"),
    (re.compile(r"name or service not known|name resolution|resolve", re.IGNORECASE), "unknown host"),
    (re.compile(r"refused", re.IGNORECASE), "connection refused"),
    (re.compile(r"connection", re.IGNORECASE), "connection failed"),
)
# The loggers of apprise and of the libraries by which it sends. A filter of a logger does not see the lines
# of loggers below it, so each is named.
_LOGGERS: Final = (
    "apprise",
    "urllib3",
    "urllib3.connection",
    "urllib3.connectionpool",
    "urllib3.poolmanager",
    "urllib3.util.retry",
    "requests",
    "requests_oauthlib",
    "requests_oauthlib.oauth1_auth",
    "requests_oauthlib.oauth2_session",
    "oauthlib",
    "charset_normalizer",
    "paho",
    "slixmpp",
)
_LARGEST_FILE: Final = 16_384  # bytes of a file with a URL


class SendFailed(Exception):
    """A message was not sent. Its text says why, and shows no secret."""


class Send(Protocol):
    """Sends one message. Blocks."""

    def __call__(self, target: TargetSettings, delivery: Delivery, now: float) -> None:
        """Send the message; raises SendFailed. `now` is of the clock of the delivery."""
        ...


def read_url(target: TargetSettings) -> str:
    """The apprise URL of a target. Blocks. Raises SendFailed, which names the variable or the file."""
    if target.env:
        url = os.environ.get(target.env, "").strip()
        if not url:
            raise SendFailed(f"the environment variable {target.env} is not set")
        return url
    try:
        with Path(target.file).open("rb") as file:
            # No error for wrong UTF-8: it would have the content.
            text = file.read(_LARGEST_FILE).decode(errors="replace")
    except OSError as error:
        raise SendFailed(f"the file {target.file} can't be read: {error.strerror}") from None
    lines = [line.strip() for line in text.splitlines()]
    urls = [line for line in lines if line and not line.startswith("#")]
    if len(urls) != 1:
        raise SendFailed(f"the file {target.file} has {len(urls) or 'no'} URLs, and has to have one")
    return urls[0]


def check_target(target: TargetSettings) -> None:
    """Raise SendFailed unless the URL of a target is there, and apprise knows its service. Blocks."""
    with _quiet():
        _service(target)


def target_fault(target: TargetSettings) -> tuple[str, bool] | None:
    """Why a target can't be sent to, and whether its URL is there; None if nothing is wrong. Blocks.

    No request is made.
    """
    try:
        read_url(target)
    except SendFailed as fault:
        return str(fault), False
    try:
        check_target(target)
    except SendFailed as fault:
        return str(fault), True
    return None


def send_by_apprise(target: TargetSettings, delivery: Delivery, now: float) -> None:
    """Send a message by apprise. The limits of its service are kept. Blocks. Raises SendFailed."""
    from apprise import Apprise, NotifyFormat

    with _quiet() as heard:
        service = _service(target)
        title, body = compose(
            delivery.message,
            delivery.suppressed,
            now=now,
            title_limit=min(service.title_maxlen, target.max_length),
            body_limit=min(service.body_maxlen or target.max_length, target.max_length),
        )
        sender = Apprise(asset=_asset())
        sender.add(service)
        fault = ""
        try:
            sent = sender.notify(
                body=body,
                title=title,
                notify_type=_TYPES[delivery.message.severity],
                body_format=NotifyFormat.TEXT,
            )
        except Exception as error:  # noqa: BLE001 - a fault of apprise; its text may have the URL
            sent, fault = False, f"apprise raised {type(error).__name__}"
        if not sent:
            # Outside of `except`, so that the exception of apprise is not the context of this one.
            raise SendFailed(fault or _reason(heard))


def print_message(target: TargetSettings, delivery: Delivery, now: float) -> None:
    """Print a message on stdout, for a dry run. The limits of the service are not known."""
    limit = target.max_length
    title, body = compose(delivery.message, delivery.suppressed, now=now, title_limit=limit, body_limit=limit)
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    # One write, so that the lines of several targets do not mix.
    sys.stdout.write(f"to {target.name}: {title}\n{lines}")
    sys.stdout.flush()


def _asset() -> "AppriseAsset":
    from apprise import AppriseAsset

    # In the thread of the caller, and without colours of a terminal.
    return AppriseAsset(async_mode=False, secure_logging=True, app_id="declctl", app_desc="declctl")


def _service(target: TargetSettings) -> "NotifyBase":
    from apprise import Apprise, NotifyBase

    url = read_url(target)
    fault = "its URL is not one of apprise; appriseit.com/services has the services and their URLs"
    try:
        service = Apprise.instantiate(url, asset=_asset())
    except Exception as error:  # noqa: BLE001 - a fault of apprise; its text may have the URL
        service, fault = None, f"apprise can't read its URL ({type(error).__name__})"
    if not isinstance(service, NotifyBase):
        raise SendFailed(fault)
    return service


def _reason(heard: list[str]) -> str:
    """Why a send has failed, in fixed words: texts of apprise may have parts of the URL."""
    for text in heard:
        if found := _STATUS.search(text):
            return f"HTTP {found[1]}"
    for pattern, words in _FAULTS:
        if any(pattern.search(text) for text in heard):
            return words
    return "apprise reports a failure"


_HEARD: ContextVar[list[str] | None] = ContextVar("declctl_notify_heard", default=None)


class _Muffle(logging.Filter):
    """Keeps the lines of a send away from every log, and gives their texts to the send."""

    def filter(self, record: logging.LogRecord) -> bool:
        heard = _HEARD.get()
        if heard is None:  # a line of other code that uses these libraries
            return True
        try:
            heard.append(record.getMessage())
        except Exception:  # noqa: BLE001 - a line with wrong arguments says nothing
            return False
        return False


_MUFFLE: Final = _Muffle()


@contextmanager
def _quiet() -> Generator[list[str]]:
    """Within it, no line of this thread's sends reaches a log; returns their texts."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_MUFFLE)  # once: it is always the same filter
    heard: list[str] = []
    before = _HEARD.set(heard)
    try:
        yield heard
    finally:
        _HEARD.reset(before)
