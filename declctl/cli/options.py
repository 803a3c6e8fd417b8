"""Values of options that several commands have."""

from collections.abc import Callable
from typing import TypeVar

from declctl.errors import UsageError
from declctl.manifest.values import BadValue, parse_duration

T = TypeVar("T")


def checked(check: Callable[[str], T], text: str, option: str) -> T:
    """What a check of the manifest's values makes of an option's text.

    Raises UsageError, with the option and the check's advice.
    """
    try:
        return check(text)
    except BadValue as error:
        advice = f"; {error.suggestion}" if error.suggestion else ""
        end = "" if advice.endswith("?") else "."
        raise UsageError(f"{option}: {error}{advice}{end}") from error


def duration_of(option: str, text: str) -> float:
    """The seconds of a duration. Raises UsageError, which names the option."""
    return checked(parse_duration, text, option)


def time_limit(text: str, *, example: str) -> float:
    """The seconds of `--timeout`. Raises UsageError for anything but a duration above zero."""
    seconds = duration_of("--timeout", text)
    if seconds <= 0:
        raise UsageError(f"--timeout: it must be longer than nothing, such as {example}.")
    return seconds
