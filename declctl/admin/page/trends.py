"""The last 15 minutes on the page: a line beside each figure, and the section that has the marks in words.

The script of the page draws the lines, from `GET /figures`. What is here says which figure a line is of, and
has its range in words, so that a line is also read.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from declctl.admin.page.elements import Child, Element, element
from declctl.admin.page.values import NONE
from declctl.kit import figures
from declctl.runtime.reporting.recent_figures import (
    AGE,
    CALLS,
    EVENTS,
    LAG,
    OBJECTS,
    P99,
    UNSUCCESSFUL,
    WAITING,
    FigureKey,
    FigureMark,
    RecentFigures,
)

_MARKS = 8  # in words, the newest ones
_TICKS = ("15 min ago", "10 min ago", "5 min ago", "now")


def per_second(rate: float | None) -> str:
    """A rate as a cell has it."""
    return NONE if rate is None else f"{figures.rate(rate)}/s"


def whole(value: float) -> str:
    """A number of things."""
    return figures.count(round(value))


class TrendStyle(NamedTuple):
    """How a figure is named, written and drawn."""

    label: str  # for those who do not see the line
    write: Callable[[float], str]
    second: str = ""  # another figure of the same thing, drawn over the line in the colour of faults
    is_level: bool = False  # drawn from its least value on, and not from 0


_STYLES = {
    CALLS: TrendStyle("Calls", per_second, second=UNSUCCESSFUL),
    P99: TrendStyle("99th percentile of the duration of calls", figures.duration),
    LAG: TrendStyle("99th percentile of the lag", figures.duration),
    WAITING: TrendStyle("Waiting", whole),
    OBJECTS: TrendStyle("Objects", whole, is_level=True),
    EVENTS: TrendStyle("Events", per_second),
    AGE: TrendStyle("Age of the last event", figures.age),
}


class Trends:
    """Makes figures with their lines. A line is made once for each sample. From any thread."""

    def __init__(self, recent: RecentFigures) -> None:
        self.recent = recent
        self._made: tuple[int, dict[FigureKey, Sequence[Element]]] = 0, {}  # by the number of the sample

    def of(self, key: FigureKey, now: Child, *, below: str = "") -> Element:
        """The figure of this moment with its line, and the least and the most of that.

        `below`: more words in small letters.
        """
        if self._made[0] != self.recent.number:
            self._made = self.recent.number, {}
        made = self._made[1]
        if key not in made:
            made[key] = self._line(key)
        more = element("small", below) if below else None
        return element("span", element("b", now), more, *made[key], class_="trend")

    def newest(self, key: FigureKey) -> str:
        """The value of the newest sample."""
        values = self.recent.values(key)
        value = values[-1] if values else None
        return NONE if value is None else _STYLES[key.figure].write(value)

    def _line(self, key: FigureKey) -> Sequence[Element]:
        extent, style = self.recent.extent(key), _STYLES[key.figure]
        if extent is None:
            return ()
        least, most = map(style.write, extent)
        line = element(
            "span",
            class_="line",
            role="img",
            aria_label=f"{style.label} of {key.name} in the last 15 minutes: {least} to {most}",
            data_line=f"{key.group} {key.figure} {key.name}",
            data_second=style.second or None,
            data_level=style.is_level,
        )
        # The line has them in its name, too.
        words = [element("span", f"{mark} {text}") for mark, text in (("↑", most), ("↓", least))]
        return line, element("small", *words, class_="ends", aria_hidden="true")


def last_minutes(recent: RecentFigures, marks: Sequence[FigureMark], calls: float | None) -> Element:
    """The section with the calls of all handlers, and the marks that stand in every line."""
    line = element(
        "span",
        class_="line wide",
        role="img",
        aria_label="Calls of all handlers in the last 15 minutes",
        data_line=f"controller {CALLS}",
        data_second=UNSUCCESSFUL,
        data_sample=recent.number,
    )
    ticks = element("span", *(element("span", tick) for tick in _TICKS), class_="ticks", aria_hidden="true")
    items = [
        element(
            "li",
            element("time", f"{mark.time:%H:%M:%S}"),
            element(
                "span",
                f"{'✓' if mark.good else '✗'} {mark.text}",
                class_="good" if mark.good else "bad",
            ),
            data_key=f"{mark.time.timestamp()} {mark.text}",
        )
        for mark in marks[: -_MARKS - 1 : -1]
    ]
    return element(
        "section",
        element("h2", "Last 15 minutes"),
        element(
            "p",
            element("b", per_second(calls)),
            " calls of all handlers. Red: calls that failed. Dashed: reloads, and conditions that changed.",
            class_="hint",
        ),
        line,
        ticks,
        element("ol", *items, class_="marks") if items else None,
        id="recent",
        data_key="recent",
        aria_label="Last 15 minutes",
    )
