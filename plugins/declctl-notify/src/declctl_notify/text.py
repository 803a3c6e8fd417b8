"""Values of objects as texts that are safe in a message. Pure.

Objects are written by many people. Their values must not control a terminal, forge lines of a log, or call
all members of a channel.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, cast

_SECONDS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
_CALLED: Final = "(?:everyone|here|channel|all|room|team)"
# The places after which a text may become a mention or a link with a text of its own, also with the text of
# the next value. An address (`me@example.dev`) and an image (`web@sha256:…`) have none.
_SIGNS: Final = re.compile(
    r"<"  # Slack: `<!channel>`, `<@U012>`, `<https://…|text>`; Google Chat: `<users/all>`; Teams: `<at>`
    rf"|@(?={_CALLED}\b|\w*\Z)"  # Discord, Mattermost: `@everyone`; Matrix: `@room`
    r"|(?<!\w)@"  # of one user; Zulip: `@**all**`
    rf"|\A(?={_CALLED}(?![\w-]))"  # the template has the `@`
    r"|\](?=\()",  # Markdown: `[text](https://…)`
    re.IGNORECASE,
)
_BREAK: Final = "\N{ZERO WIDTH SPACE}"  # separates a mention from its sign: it looks the same, and is none


def plain_text(value: Any) -> str:
    """A value as text, without control characters and mentions: JSON for a value of JSON, else its `str`.

    Nor does it have a part of a mention, which would be a whole one beside another value. Line ends and tabs
    stay. Other characters that can't be printed are removed, such as escapes for terminals and marks of the
    writing direction.
    """
    if isinstance(value, Mapping):
        value = dict(cast("Mapping[str, Any]", value).items())  # json knows no other mappings
    is_json = value is None or isinstance(value, bool | int | float | dict | list)
    text = json.dumps(value, ensure_ascii=False, default=str) if is_json else str(value)
    if not text.isprintable():
        text = "".join(each for each in text if each.isprintable() or each in "\n\t")
    return _SIGNS.sub(lambda found: found[0] + _BREAK, text)


def one_line(text: str) -> str:
    """The text with single spaces for line ends and other white space."""
    return " ".join(text.split())


def shortened(text: str, most: int) -> str:
    """The text, cut to `most` characters, the last of which is then an ellipsis."""
    return text if len(text) <= most else f"{text[: max(most - 1, 0)].rstrip()}…"[:most]


def hidden() -> str:
    """Stands for a value that is shown nowhere."""
    return "(hidden)"


def counted(number: int, noun: str) -> str:
    """`1 change`, `42 changes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration_text(seconds: float) -> str:
    """A duration for people, in its largest unit, rounded up: `minute`, `5 minutes`, `2 hours`."""
    for size, noun in _SECONDS:
        if seconds >= size or size == 1:
            number = max(1, -int(-seconds // size))
            return noun if number == 1 else f"{number} {noun}s"
    raise AssertionError("seconds are the smallest unit")
