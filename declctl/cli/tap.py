"""`declctl tap`: the calls of a running process, live, and its reloads between them."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

from declctl.cli.admin_client import admin_address, follow
from declctl.cli.terminal import has_colour, line, painted, print_json
from declctl.errors import UsageError
from declctl.kit import figures
from declctl.kit.text import excerpt, one_line

_DIM, _RED, _YELLOW, _BOLD, _PLAIN = "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[0m"
_COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "retried": _YELLOW,
        "waiting": _YELLOW,
        "failed": _RED,
        "deadLetter": _RED,
        "overdue": _RED,
        "filtered": _DIM,
        "gone": _DIM,
    }
)
_WIDEST = 48  # a longer cell does not widen its column


def show_tap(
    of: str | None,
    admin: str | None,
    *,
    chosen: Mapping[str, str],
    count: int | None,
    as_json: bool,
) -> int:
    """Print calls and reloads until Ctrl-C, until the process ends, or after `count` calls; returns 0.

    `of` is a handler or a resource, `chosen` are further parameters of GET /events. Raises UsageError if no
    process answers, if it refuses, if it sends what can't be read, or if the connection is lost.
    """
    target = admin_address(admin)
    parameters = {name: value for name, value in {"of": of or "", **chosen}.items() if value}
    path = f"/events?{urlencode(parameters)}" if parameters else "/events"
    columns, calls = _Columns(), 0
    try:
        with closing(follow(target, path)) as documents:
            for document in documents:
                kind = document.get("kind")
                if as_json:
                    print_json(document, indent=None)
                else:
                    try:
                        _print(document, columns)
                    except (LookupError, TypeError, ValueError, OverflowError) as error:
                        sent = excerpt(str(document), most=200)
                        raise UsageError(f"{target} has sent what is no {kind} of declctl: {sent}") from error
                calls += kind == "call"
                if kind == "end" or calls == count:
                    break
    except KeyboardInterrupt:  # the usual end
        return 0
    return 0


class _Columns:
    """Cells of one line below those of the lines before: each column is as wide as its widest cell so far."""

    def __init__(self) -> None:
        self._widths: dict[int, int] = {}

    def row(self, cells: Sequence[str]) -> list[str]:
        """The cells, padded; the last one is not."""
        padded: list[str] = []
        for number, cell in enumerate(cells[:-1]):
            width = max(self._widths.get(number, 0), min(len(cell), _WIDEST))
            self._widths[number] = width
            padded.append(f"{cell:<{width}}")
        return [*padded, cells[-1]]


def _print(document: Mapping[str, Any], columns: _Columns) -> None:
    colour = has_colour(sys.stdout)
    match document.get("kind"):
        case "call":
            time, kind, key, handler, outcome, took, rest = columns.row(_cells(document))
            paint = _COLOURS.get(str(document["outcome"]), "") if colour else ""
            shown = f"{paint}{outcome}{_PLAIN}" if paint else outcome
            time = f"{_DIM}{time}{_PLAIN}" if colour else time
            text = f"{time}  {kind}  {key}  {handler}  {shown}  {took}  {rest}"
            painted(f"{text.rstrip()}\n")
        case "begin":
            line(f"{document['name']} generation {document['generation']}; Ctrl-C ends", err=True)
        case "reload":
            text = one_line(f"--- {document['line']}")
            painted(f"{_BOLD}{text}{_PLAIN}\n" if colour else f"{text}\n")
        case "dropped":
            lost = f"{figures.count(document['count'])} calls are not shown: there are more than can be sent"
            line(f"--- {lost}")
        case "end":
            line(f"--- {document['reason']}")
        case _:
            return  # of a newer version


def _cells(call: Mapping[str, Any]) -> list[str]:
    """The cells of a line. Each is one line of printable text: keys and errors are texts of others."""
    moment = datetime.fromisoformat(str(call["time"])).replace(tzinfo=UTC).astimezone()
    shown = f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"
    names = [one_line(str(call[name])) for name in ("type", "key", "handler", "outcome")]
    return [shown, *names, figures.duration(float(call["seconds"])), one_line(_rest(call))]


def _rest(call: Mapping[str, Any]) -> str:
    """The error of a failed call; else the paths that changed, or the causes of a key."""
    if call["error"]:
        again = call["retryInSeconds"]
        then = f", again in {figures.duration(again)}" if again is not None else ""
        return f"{call['error']}; attempt {call['attempt']}{then}"
    more = f" and {call['morePaths']} more" if call["morePaths"] else ""
    return f"{', '.join(call['paths'] or call['causes'])}{more}"
