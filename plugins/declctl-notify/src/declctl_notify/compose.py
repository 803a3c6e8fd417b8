"""A delivery as title and body, within the limits of a target. Pure."""

from declctl_notify.groups import Entry, Message
from declctl_notify.outbox import Suppressed
from declctl_notify.text import counted, duration_text, one_line, shortened

_ROOM_FOR_COUNTS = 100  # characters that are kept for the last lines; a third of a body that is shorter


def compose(
    message: Message, suppressed: Suppressed, *, now: float, title_limit: int, body_limit: int
) -> tuple[str, str]:
    """Title and body of a message.

    - `suppressed`: changes that are in no message, and are counted in the last line.
    - `title_limit`, `body_limit`: the most characters. A limit of 0 for the title means that the service has
      no titles, and shows it as the first line of the body.

    Entries that do not fit are counted. An entry that is alone is cut.
    """
    title = _title(message)
    title = shortened(title, title_limit) if title_limit > 0 else shortened(title, body_limit // 2)
    room = body_limit - (0 if title_limit > 0 else len(title) + 2)
    single = len(message.entries) == 1 and not message.more
    parts: list[str] = []
    left, more = room - min(_ROOM_FOR_COUNTS, room // 3), message.more
    for number, entry in enumerate(message.entries):
        text = _single(entry) if single else _listed(entry)
        if len(text) > left and number == 0:
            text = shortened(text, max(left, 1))
        if len(text) > left:
            more += sum(rest.changes for rest in message.entries[number:])
            break
        parts.append(text)
        left -= len(text) + 1
    if more:
        parts.append(f"and {counted(more, 'more change')}")
    if suppressed.changes:
        period = duration_text(now - suppressed.since)
        parts.append(f"and {counted(suppressed.changes, 'more change')} in the last {period}")
    body = "\n".join(part for part in parts if part)
    # Some services refuse a message without a body.
    return title, shortened(body or title, room)


def _title(message: Message) -> str:
    if len(message.entries) == 1 and not message.more:
        return one_line(message.entries[0].title)
    return one_line(f"[{message.severity}] {counted(message.changes, 'change')}: {message.group}")


def _single(entry: Entry) -> str:
    parts = (entry.body.strip("\n"), _times(entry))
    return "\n".join(part for part in parts if part)


def _listed(entry: Entry) -> str:
    head = " ".join(part for part in (one_line(entry.title), _times(entry)) if part)
    lines = [f"  {line}" for line in entry.body.strip("\n").splitlines() if line.strip()]
    return "\n".join([head, *lines])


def _times(entry: Entry) -> str:
    if entry.repeats:
        return f"(repeated {'once' if entry.changes == 1 else f'{entry.changes:,} times'})"
    return "" if entry.changes == 1 else f"({entry.changes:,} times)"
