"""Status objects: how an API server says that something went wrong."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from declctl.errors import from_status


def status_error(status: Mapping[str, Any], *, retry_after: float | None = None) -> Exception:
    """The StatusError that a Status object tells of; fields of another type than metav1's are ignored.

    `retry_after` is what a header asked for, in seconds; it counts more than the Status.
    """
    details = status.get("details")
    details = cast("Mapping[str, Any]", details) if isinstance(details, Mapping) else {}
    seconds = retry_after if retry_after is not None else details.get("retryAfterSeconds")
    code = status.get("code")
    return from_status(
        code if isinstance(code, int) and code else 500,
        str(status.get("reason") or "Unknown"),
        str(status.get("message") or ""),
        causes=tuple(_causes(details)),
        retry_after=float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None,
    )


def _causes(details: Mapping[str, Any]) -> Iterator[str]:
    causes = details.get("causes")
    for cause in cast("list[Any]", causes) if isinstance(causes, list) else ():
        if isinstance(cause, Mapping):
            told = cast("Mapping[str, Any]", cause)
            yield from (str(text) for text in (told.get("reason"), told.get("message")) if text)
