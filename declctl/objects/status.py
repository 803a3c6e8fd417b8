"""Status objects: how an API server says that something went wrong."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from declctl.errors import from_status
from declctl.objects import limits

_REASON_CHARACTERS = 120


def status_error(status: Mapping[str, Any], *, retry_after: float | None = None) -> Exception:
    """The StatusError that a Status object tells of; fields of another type than metav1's are ignored.

    `retry_after` is what a header asked for, in seconds; it counts more than the Status. A longer wait
    than `limits.RETRY_AFTER_SECONDS` becomes that, and the message says so.
    """
    details = status.get("details")
    details = cast("Mapping[str, Any]", details) if isinstance(details, Mapping) else {}
    code = status.get("code")
    asked = retry_after if retry_after is not None else details.get("retryAfterSeconds")
    wait, remark = _bounded(asked)
    message = _text(status.get("message"), limits.MESSAGE_CHARACTERS)
    return from_status(
        code if isinstance(code, int) and 0 < code < 1000 else 500,
        _text(status.get("reason"), _REASON_CHARACTERS) or "Unknown",
        f"{message} {remark}".strip(),
        causes=tuple(_causes(details)),
        retry_after=wait,
    )


def _bounded(asked: Any) -> tuple[float | None, str]:
    """The wait in seconds, and what to say of one that is not kept; NaN and nonsense are no wait."""
    if not isinstance(asked, int | float) or not asked > 0:
        return None, ""
    longest = limits.RETRY_AFTER_SECONDS
    if asked <= longest:
        return float(asked), ""
    said = f"{asked:g} s" if asked < 10**9 else "more than 30 years"
    return longest, f"(the server asks to wait {said}; it is asked again after {longest:g} s)"


def _text(value: Any, longest: int) -> str:
    text = value if isinstance(value, str) else ""
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters)"


def _causes(details: Mapping[str, Any]) -> Iterator[str]:
    causes = details.get("causes")
    for cause in cast("list[Any]", causes) if isinstance(causes, list) else ():
        if isinstance(cause, Mapping):
            told = cast("Mapping[str, Any]", cause)
            yield from (text for text in (told.get("reason"), told.get("message")) if isinstance(text, str))
