"""Values of options that several commands have."""

from declctl.errors import UsageError
from declctl.manifest.values import BadValue, parse_duration


def duration_of(option: str, text: str) -> float:
    """The seconds of a duration. Raises UsageError, which names the option."""
    try:
        return parse_duration(text)
    except BadValue as error:
        raise UsageError(f"{option}: {error}; {error.suggestion}.") from error


def time_limit(text: str, *, example: str) -> float:
    """The seconds of `--timeout`. Raises UsageError for anything but a duration above zero."""
    seconds = duration_of("--timeout", text)
    if seconds <= 0:
        raise UsageError(f"--timeout: it must be longer than nothing, such as {example}.")
    return seconds
