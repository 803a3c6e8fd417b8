"""A bar plot as SVG: one panel beside the other, log scales, readable on light and dark pages."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_ROW, _BAR, _NAMES, _PANEL, _GAP, _TOP, _BOTTOM = 30, 18, 210, 330, 40, 64, 36
_STYLE = """\
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
.title { font-weight: 600; }
.axis, .note { font-size: 11px; fill: #59636e; }
.grid { stroke: #d1d9e0; stroke-width: 1; }
.bar { fill: #8c959f; }
.ours { fill: #0969da; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .axis, .note { fill: #9198a1; }
  .grid { stroke: #3d444d; }
  .bar { fill: #656c76; }
  .ours { fill: #4493f8; }
}"""


@dataclass(frozen=True, slots=True)
class Panel:
    """One figure of each peer; None if a peer has no such figure."""

    title: str
    values: Sequence[float | None]
    unit: str


def plot(title: str, names: Sequence[str], panels: Sequence[Panel], *, ours: int, note: str = "") -> str:
    """The picture as SVG. The first `ours` names have a colour of their own. Values must be positive."""
    width = _NAMES + len(panels) * (_PANEL + _GAP)
    height = _TOP + len(names) * _ROW + _BOTTOM
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        _text(0, 18, title, "title"),
    ]
    for row, name in enumerate(names):
        parts.append(_text(_NAMES - 12, _middle(row) + 5, name, anchor="end"))
    for at, panel in enumerate(panels):
        parts += _panel(panel, _NAMES + at * (_PANEL + _GAP), len(names), ours)
    if note:
        parts.append(_text(0, height - 4, note, "note"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, left: int, rows: int, ours: int) -> list[str]:
    found = [value for value in panel.values if value is not None]
    if not found:
        return []
    low, high = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
    if 10**low > min(found) * 0.8:
        low -= 1  # the shortest bar must have a visible length
    decades = max(1, high - low)
    bottom = _TOP + rows * _ROW
    parts = [_text(left, 44, f"{panel.title}, {panel.unit} (log scale)", "title")]
    for decade in range(low, low + decades + 1):
        x = left + (decade - low) / decades * (_PANEL - 60)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(_text(x, bottom + 14, _number(10.0**decade), "axis", anchor="middle"))
    for row, value in enumerate(panel.values):
        if value is None:
            parts.append(_text(left + 6, _middle(row) + 4, "no figure", "note"))
            continue
        long = (math.log10(value) - low) / decades * (_PANEL - 60)
        kind = "ours" if row < ours else "bar"
        top = _middle(row) - _BAR / 2
        parts.append(
            f'<rect class="{kind}" x="{left}" y="{top:.1f}" width="{long:.1f}" height="{_BAR}" rx="2"/>'
        )
        parts.append(_text(left + long + 6, _middle(row) + 4, _number(value)))
    return parts


def _middle(row: int) -> float:
    return _TOP + row * _ROW + _ROW / 2


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "") -> str:
    marks = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{marks}>{escape(text)}</text>'


def _number(value: float) -> str:
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"
