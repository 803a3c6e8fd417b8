"""What may be written where: colour, and tables that fit."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO


def has_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal, and nobody asked for plain text (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout, as kubectl prints them; cut to the terminal's width, whole where there is none.

    Cells are plain text: nothing in them is read as markup.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for header in headers:
        table.add_column(header, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
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
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in printed.get().splitlines()))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else visible(str(value))


def visible(text: str) -> str:
    """The text without what would move a terminal's cursor or change its colours.

    What is printed may come from a cluster, where others write.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
