"""The one way of commands to stdout and stderr: lines, blocks, tables, JSON and progress.

What is printed may come from elsewhere: object names and messages of a server, exceptions of handlers,
names of files. So every text is made harmless here (`kit.text`), whether it goes to a terminal or to a file,
which somebody may look at in one. Nothing in it moves the cursor, changes colours or begins a line.
Programs read JSON, where it is all there, escaped. Logs have their own way (`logging`).

A `Screen` is a stream that log lines and a passing progress line share: to write a line, the progress line is
taken away, and put back below. Any thread may write. A stream that is closed at the other end stops the
writing, not the process: a controller goes on when its log goes nowhere.
"""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TextIO

from declctl.kit import Clock
from declctl.kit.text import one_line, to_json, visible


def has_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal, and nobody asked for plain text (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def line(text: str = "", *, err: bool = False) -> None:
    r"""One line on stdout or, with `err`, on stderr; a line end within the text is shown as `\n`."""
    _write(f"{one_line(text)}\n", err=err)


def block(text: str, *, err: bool = False) -> None:
    """A text of several lines, with its last line end. No foreign text may begin a line."""
    _write(visible(text), err=err)


def print_json(document: object, *, indent: int | None = 2) -> None:
    """A document on stdout, for programs: letters as they are, what is unprintable as its escape."""
    _write(f"{to_json(document, indent=indent)}\n", err=False)


def painted(text: str, *, err: bool = False) -> None:
    """A text with colours of declctl, in which foreign text is escaped already."""
    _write(text, err=err)


def _write(text: str, *, err: bool) -> None:
    stream = sys.stderr if err else sys.stdout
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


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
    rows_printed = printed.get().split("\n")
    painted("".join(f"{row.rstrip()}\n" for row in rows_printed[:-1]))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else one_line(str(value))


_ERASE = "\r\x1b[2K"


class Screen:
    """A stream of whole lines, with at most one line below them that comes and goes."""

    def __init__(self, stream: TextIO) -> None:
        self.is_terminal = stream.isatty()
        self.has_colour = has_colour(stream)
        self._stream = stream
        self._lock = threading.Lock()
        self._progress = ""

    def line(self, text: str) -> None:
        """Write a line, or several."""
        with self._lock:
            self._write(f"{_ERASE if self._progress else ''}{text}\n{self._progress}")

    def progress(self, text: str) -> None:
        """Show a passing line, in place of the one that is there; an empty one takes it away.

        Only terminals show it. The cursor stays at its beginning, so that what others print starts in
        column 1.
        """
        if not self.is_terminal:
            return
        with self._lock:
            if not (text or self._progress):
                return
            self._progress = f"{text}\r" if text else ""
            self._write(f"{_ERASE}{self._progress}")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # closed, or a pipe without a reader
            return


_EVERY = 0.25  # seconds
_PATIENCE = 1.0  # seconds before anything is shown: most lists are in by then


class Listing(Protocol):
    """What is shown of a resource."""

    @property
    def name(self) -> str:
        """Its name in the manifest."""
        ...

    @property
    def synced(self) -> bool:
        """Whether its first list is in."""
        ...

    @property
    def items_listed(self) -> int:
        """How many objects of the list under way have come in."""
        ...


class Figures(Protocol):
    """What is read of a status."""

    @property
    def generation(self) -> int:
        """The generation that runs; 0 before the first."""
        ...

    @property
    def resources(self) -> Iterable[Listing]:
        """The resources."""
        ...


class Running(Protocol):
    """What is read of the runtime."""

    def status(self) -> Figures:
        """The figures of this moment."""
        ...


def progress_line(resources: Iterable[Listing]) -> str:
    """`pods: 12,500 listed…` for each resource whose list is under way; empty when there is none."""
    listing = [f"{r.name}: {r.items_listed:,} listed…" for r in resources if not r.synced and r.items_listed]
    return "  ".join(listing)


def progress(screen: Screen, clock: Clock) -> Callable[[Running], AbstractAsyncContextManager[None]]:
    """A front that keeps the progress line, until everything is synced for the first time."""

    @asynccontextmanager
    async def front(runtime: Running) -> AsyncGenerator[None, None]:
        task = asyncio.create_task(_follow(runtime, screen, clock), name="progress line")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            screen.progress("")

    return front


async def _follow(runtime: Running, screen: Screen, clock: Clock) -> None:
    await clock.sleep(_PATIENCE)
    shown = ""
    while True:
        figures = runtime.status()
        line = progress_line(figures.resources)
        if line != shown:
            screen.progress(line)
            shown = line
        if figures.generation and all(resource.synced for resource in figures.resources):
            return
        await clock.sleep(_EVERY)
