"""Values as the page writes them: moments and advice; and when a handler counts as failing."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from declctl.admin.page.elements import Child, element
from declctl.runtime.handling.binding import HandlerStatistics

Document: TypeAlias = Mapping[str, Any]  # a document of the admin address, or a part of one
FAILING_SECONDS = 300.0  # after its newest failure, a handler counts as failing for this time
MOST = 1_000  # characters of a message
NONE = "\N{EN DASH}"  # in a cell without a value


def is_failing(handler: HandlerStatistics, *, now: datetime) -> bool:
    """Whether a handler has failed lately, fails on, or has changes that it has given up."""
    failed = handler.last_error_time
    is_recent = failed is not None and now - failed < timedelta(seconds=FAILING_SECONDS)
    # The back-off may be longer than `FAILING_SECONDS`: the calls fail on, and the last one was long ago.
    fails = any(each.reason == "CallsFail" for each in handler.problems)
    return is_recent or fails or handler.dead_letters > 0


def moment(time: datetime) -> str:
    """A moment in UTC."""
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def document_moment(time: str | None) -> str:
    """A moment of a document, as `moment` writes it."""
    return time.replace("T", " ").replace("Z", " UTC") if time else NONE


def prose(advice: str) -> Sequence[Child]:
    """The words of an advice, with commands in backticks as code."""
    parts = advice.split("`")
    if not len(parts) % 2:  # a backtick without its partner
        return [advice]
    return [element("code", part) if place % 2 else part for place, part in enumerate(parts) if part]
