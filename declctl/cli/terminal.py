"""Output of commands to stdout and stderr: lines, blocks, tables and JSON. Commands print by nothing else.

Texts may come from others: object names and messages of a server, exceptions of handlers, names of files.
Each text is made printable here (`kit.text`), also when it goes to a file, which may be shown in a terminal
later: no text moves the cursor, changes colours or begins a line. JSON contains the same texts, escaped.
`logging` writes the log.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from declctl.errors import UsageError
from declctl.kit.files import shown
from declctl.kit.text import one_line, to_json, visible

if TYPE_CHECKING:  # rich is imported for tables alone
    from rich.table import Table


def has_colour(stream: TextIO) -> bool:
    """True for a terminal, unless NO_COLOR or TERM=dumb asks for plain text (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def line(text: str = "", *, err: bool = False) -> None:
    r"""One line on stdout or, with `err`, on stderr; a line end within the text is shown as `\n`."""
    _write(f"{one_line(text)}\n", err=err)


def block(text: str, *, err: bool = False) -> None:
    """A text of several lines, with its last line end. No text of others may begin a line of it."""
    _write(visible(text), err=err)


def print_or_write(text: str, output: Path | None) -> None:
    """Print a text, or write it to a file and say so. Raises UsageError if it can't be written."""
    if output is None:
        block(text)
        return
    try:
        output.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{shown(output)} can't be written: {error.strerror or error}") from error
    line(f"wrote {shown(output)}", err=True)


def print_json(document: object, *, indent: int | None = 2) -> None:
    """A document on stdout, for programs: letters as they are, what is unprintable as its escape."""
    _write(f"{to_json(document, indent=indent)}\n", err=False)


def painted(text: str, *, err: bool = False) -> None:
    """A text with colours of declctl, in which texts of others are escaped already."""
    _write(text, err=err)


def _write(text: str, *, err: bool) -> None:
    stream = sys.stderr if err else sys.stdout
    encoding = stream.encoding or "utf-8"
    # A terminal of another encoding gets escapes instead of an exception in the middle of an answer.
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout, as kubectl prints them; cut to the terminal's width, whole where there is none.

    Cells are plain text: nothing in them is read as markup.
    """
    from rich.console import Console

    table = make_table(headers, rows)
    terminal = sys.stdout.isatty()
    console = Console(
        file=sys.stdout,
        width=None if terminal else 10_000,
        no_color=not has_colour(sys.stdout),
        highlight=False,
        markup=False,
    )
    with console.capture() as printed:
        console.print(table, soft_wrap=not terminal)
    rows_printed = printed.get().split("\n")
    painted("".join(f"{row.rstrip()}\n" for row in rows_printed[:-1]))


def make_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    style: Callable[[str, object], str] = lambda _header, _value: "",
) -> "Table":
    """A table of rich, for `print_table` and for live views. `style` gives the colour of a cell."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for header in headers:
        table.add_column(header, no_wrap=True)
    for row in rows:
        cells = zip(headers, row, strict=True)
        table.add_row(*(Text(_cell(value), style=style(header, value)) for header, value in cells))
    return table


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else one_line(str(value))
