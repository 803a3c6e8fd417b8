"""Tables, for terminals and for Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title. The first column has names, the others have figures."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def plain(table: Table) -> str:
    """The table as text with aligned columns."""
    lines = [table.columns, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.columns))]
    shown = [
        "  ".join(_set(cell, width, at) for at, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]
    rule = "-" * max(map(len, shown))
    return "\n".join(
        [table.title, rule, shown[0].rstrip(), rule, *(line.rstrip() for line in shown[1:]), *table.notes]
    )


def markdown(table: Table, *, level: int = 3) -> str:
    """The table as Markdown, with a heading of `level`."""
    head = ["| " + " | ".join(table.columns) + " |", "|---" + "|--:" * (len(table.columns) - 1) + "|"]
    rows = ["| " + " | ".join(row) + " |" for row in table.rows]
    notes = ["", *table.notes] if table.notes else []
    return "\n".join([f"{'#' * level} {table.title}", "", *head, *rows, *notes])


def _set(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column else cell.ljust(width)
