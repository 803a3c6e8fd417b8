"""The graph of the manifest as a picture: what is watched, who is called for it, and what that writes.

It has four columns, from left to right: resources, their informers, handlers with schedules, and the kinds
that they write. Each arrow has its count of the last minute: events of a watch, calls or enqueued keys of a
handler, writes to a kind. The calls of a reconciler stand in its box. Informers of the same resources are one
box, so that a resource in many namespaces takes one line. Kinds that the manifest does not declare appear
with the first write to them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from declctl.admin.page.elements import Element, element
from declctl.admin.page.values import NONE
from declctl.informer.informer import InformerStatistics
from declctl.kit import figures
from declctl.manifest import Plan
from declctl.manifest.model import Mode
from declctl.manifest.plan import ResourcePlan, WatchKey
from declctl.objects import GroupVersionKind
from declctl.runtime.handling.binding import HandlerStatistics
from declctl.runtime.reporting.recent_figures import (
    CALLS,
    EVENTS,
    FigureKey,
    RecentFigures,
    watch_key,
    write_key,
)
from declctl.runtime.reporting.status import ControllerStatus
from declctl.writes import WriteVerb

_HANDLERS = 2  # the column
_COLUMNS = ("Resources", "Informers", "Handlers", "Writes")
_WIDTHS = (155, 185, 200, 170)  # of the boxes of each column
_GAP = 115  # between two columns: an arrow with its count
_STRAIGHT = 58  # of an arrow, below its count
_HEAD = 30  # above the boxes
_HEIGHT, _PORT, _BETWEEN = 44, 17, 14  # of a box; of each arrow at it; between two boxes
_MINUTE = 60.0
_NAME_LETTER, _LETTER = 7.9, 6.8  # the width of a letter of a name, and of the second line, in a wide font


class BoxState(StrEnum):
    """How a box is drawn. A word or a sign in the box says the same."""

    GOOD = "good"
    BAD = "bad"
    WAITS = "warn"
    NONE = ""


class Caption(NamedTuple):
    """The second line of a box."""

    text: str
    state: BoxState = BoxState.NONE


class Arrow(NamedTuple):
    """An arrow between two boxes. `counts` are the counters whose growth it shows; none for a dashed one."""

    source: str
    target: str
    counts: tuple[FigureKey, ...]
    what: str  # of what the count is


@dataclass(eq=False)
class Box:
    """A box, and where it stands. Lengths are in units of the picture."""

    key: str
    column: int
    name: str
    detail: str = ""  # what does not change while the plan runs
    top: float = 0.0
    height: float = _HEIGHT
    inputs: list[Arrow] = field(default_factory=list[Arrow])  # from top to bottom
    outputs: list[Arrow] = field(default_factory=list[Arrow])

    @property
    def left(self) -> int:
        """Its left side."""
        return sum(_WIDTHS[: self.column]) + self.column * _GAP

    @property
    def right(self) -> int:
        """Its right side."""
        return self.left + _WIDTHS[self.column]

    @property
    def middle(self) -> float:
        """Half of its height."""
        return self.top + self.height / 2

    def port(self, arrows: Sequence[Arrow], arrow: Arrow) -> float:
        """The height at which one of the arrows at a side of it ends or begins."""
        return self.top + self.height * (arrows.index(arrow) + 1) / (len(arrows) + 1)


class GraphPicture:
    """The picture of one plan. The boxes are placed once; `element` has the figures of a moment.

    `written`: handlers, kinds and verbs of the writes so far.
    """

    def __init__(self, plan: Plan, written: Iterable[tuple[str, GroupVersionKind, str]]) -> None:
        self._plan = plan
        self._boxes: dict[str, Box] = {}
        self._arrows: dict[tuple[str, str], Arrow] = {}
        self._scopes: dict[str, Caption] = {}  # of resources: which objects of their kinds they have
        self._groups: dict[tuple[str, ...], list[WatchKey]] = {}  # informers by the resources that share them
        for watch in plan.watches:
            self._groups.setdefault(watch.resources, []).append(watch.key)
        self._add_resources()
        self._add_handlers()
        self._add_writes(written)
        self._height = self._place()
        # What was drawn last, by its arrow or its box: most of it is the same a moment later.
        self._paths: dict[Arrow, tuple[str, Element]] = {}
        self._shown: dict[str, tuple[Caption | None, Element]] = {}

    def _add_resources(self) -> None:
        for resource in self._plan.resources:
            first = resource.watches[0]
            box = Box(f"resource {resource.name}", 0, resource.name, f"{first.api_version} {first.kind}")
            self._boxes[box.key] = box
            self._scopes[box.key] = Caption(_scope(resource))
        for names, keys in self._groups.items():
            box = Box(_group(names), 1, keys[0].kind, keys[0].api_version)
            self._boxes[box.key] = box
            for name in names:
                first = box.key == _group(self._groups_of(name)[0])
                counts = (FigureKey("resources", name, EVENTS),) if first else ()
                self._arrow(f"resource {name}", box.key, counts, "events")

    def _add_handlers(self) -> None:
        for handler in self._plan.handlers:
            box = Box(f"handler {handler.name}", 2, handler.name, str(handler.mode))
            self._boxes[box.key] = box
            # A reconciler is called once for many keys: its calls are in its box.
            if handler.mode is Mode.RECONCILE:
                own = watch_key(handler.name, handler.resource)
                self._from(handler.resource, box.key, (own,), "keys enqueued")
            else:
                calls = FigureKey("handlers", handler.name, CALLS)
                self._from(handler.resource, box.key, (calls,), "calls")
            for watch in handler.watches:
                counted = watch_key(handler.name, watch.resource, str(watch.map_to))
                self._from(watch.resource, box.key, (counted,), "keys enqueued")
            for name in handler.include_snapshots_from:
                self._from(name, box.key, (), "snapshot")
        for schedule in self._plan.schedules:
            when = schedule.cron or f"every {figures.duration(schedule.every or 0)}"
            box = Box(f"schedule {schedule.name}", 2, schedule.name, when)
            self._boxes[box.key] = box
            for name in schedule.include_snapshots_from:
                self._from(name, box.key, (), "snapshot")

    def _add_writes(self, written: Iterable[tuple[str, GroupVersionKind, str]]) -> None:
        kinds = {each.name: each.watches[0] for each in self._plan.resources}
        for handler in self._plan.handlers:
            for kind in handler.applies:
                self._write(f"handler {handler.name}", handler.name, kind, WriteVerb.APPLY)
            if handler.status:
                watch = kinds[handler.resource]
                kind = GroupVersionKind.of(watch.api_version, watch.kind)
                self._write(f"handler {handler.name}", handler.name, kind, WriteVerb.PATCH_STATUS)
        for name, kind, verb in written:
            source = next(
                (f"{what} {name}" for what in ("handler", "schedule") if f"{what} {name}" in self._boxes),
                None,
            )
            if source is not None:
                self._write(source, name, kind, WriteVerb(verb))

    def _write(self, source: str, handler: str, kind: GroupVersionKind, verb: WriteVerb) -> None:
        is_status = verb is WriteVerb.PATCH_STATUS
        key = f"write {kind}{' status' if is_status else ''}"
        if key not in self._boxes:
            is_watched = any(
                (w.key.api_version, w.key.kind) == (kind.api_version, kind.kind) for w in self._plan.watches
            )
            detail = f"{kind.api_version}{', watched' if is_watched and not is_status else ''}"
            self._boxes[key] = Box(key, 3, f"{kind.kind}{' status' if is_status else ''}", detail)
        self._arrow(source, key, (write_key(handler, kind, verb),), "writes")

    def _from(self, resource: str, target: str, counts: tuple[FigureKey, ...], what: str) -> None:
        """Arrows from all informers of a resource, of which the first has the count of all."""
        for names in self._groups_of(resource):
            self._arrow(_group(names), target, counts, what)
            counts = ()

    def _arrow(self, source: str, target: str, counts: tuple[FigureKey, ...], what: str) -> None:
        known = self._arrows.get((source, target))
        if known is not None:  # such as a resource that is watched by two mappings
            counts = tuple(dict.fromkeys((*known.counts, *counts)))
            what = known.what if known.counts else what
        self._arrows[source, target] = Arrow(source, target, counts, what)

    def _groups_of(self, resource: str) -> Sequence[tuple[str, ...]]:
        return [names for names in self._groups if resource in names]

    def _place(self) -> float:
        """Place the boxes: first the handlers, then each column beside those that it is connected with."""
        columns = [[box for box in self._boxes.values() if box.column == n] for n in range(len(_COLUMNS))]
        for arrow in self._arrows.values():
            self._boxes[arrow.source].outputs.append(arrow)
            self._boxes[arrow.target].inputs.append(arrow)
        for box in self._boxes.values():
            # Counts stand at the left side of informers and handlers, and at the right side of handlers.
            ports = max(
                len(box.inputs) if box.column in (1, _HANDLERS) else 0,
                len(box.outputs) if box.column == _HANDLERS else 0,
            )
            box.height = max(_HEIGHT, _PORT * (ports + 1))
        order = {name: n for n, name in enumerate(self._boxes)}
        handlers = sorted(
            columns[_HANDLERS], key=lambda box: min((order[a.source] for a in box.inputs), default=len(order))
        )
        _stack(handlers, {})
        for column, neighbours in ((1, 2), (0, 1), (3, 2)):
            wanted = {box.key: self._beside(box, neighbours) for box in columns[column]}
            _stack(sorted(columns[column], key=lambda box: wanted[box.key]), wanted)
        for box in self._boxes.values():
            box.inputs.sort(key=lambda arrow: self._boxes[arrow.source].middle)
            box.outputs.sort(key=lambda arrow: self._boxes[arrow.target].middle)
        return max((box.top + box.height for box in self._boxes.values()), default=_HEAD)

    def _beside(self, box: Box, column: int) -> float:
        """The mean height of the boxes of a column that a box is connected with."""
        keys = [*(each.source for each in box.inputs), *(each.target for each in box.outputs)]
        heights = [self._boxes[key].middle for key in keys if self._boxes[key].column == column]
        return sum(heights) / len(heights) if heights else 0.0

    def element(
        self,
        status: ControllerStatus,
        recent: RecentFigures,
        counted: Mapping[FigureKey, float | None],
        captions: Mapping[str, Caption],
        *,
        texts: bool,
    ) -> Element:
        """The picture with the figures of a moment.

        - `counted`: the counters now; `captions`: those of handlers and schedules, by their boxes.
        - `texts`: whether texts of the manifest may be shown, such as selectors.
        """
        found = {_group(names): caption for names, caption in self._informer_captions(status)}
        captions = {**captions, **found, **(self._scopes if texts else {})}
        columns = range(max((box.column for box in self._boxes.values()), default=0) + 1)
        width = sum(_WIDTHS[: len(columns)]) + (len(columns) - 1) * _GAP
        height = f"{self._height + 2:g}"
        heads = [
            element("text", _COLUMNS[n], class_="head", x=sum(_WIDTHS[:n]) + n * _GAP, y=14) for n in columns
        ]
        rates = {arrow: self._rate(arrow, recent, counted) for arrow in self._arrows.values()}
        arrows = [self._drawn(arrow, rate) for arrow, rate in rates.items()]
        # Above all arrows, so that none crosses them.
        counts = [self._count(arrow, rate) for arrow, rate in rates.items() if arrow.counts]
        boxes = [self._drawn_box(box, captions.get(box.key)) for box in self._boxes.values()]
        return element(
            "svg",
            *heads,
            *arrows,
            *counts,
            *boxes,
            class_="graph",
            role="img",
            aria_label="What the manifest connects: resources, informers, handlers, and kinds written",
            viewBox=f"-1 0 {width + 2} {height}",
            width=width + 2,
            height=height,
        )

    def _informer_captions(self, status: ControllerStatus) -> Iterable[tuple[tuple[str, ...], Caption]]:
        found: dict[WatchKey, InformerStatistics] = {}
        plans = {resource.name: resource for resource in self._plan.resources}
        for resource in status.resources:
            if resource.name in plans:
                found.update(zip(plans[resource.name].watches, resource.informers, strict=False))
        for names, keys in self._groups.items():
            yield names, _informers([found[key] for key in keys if key in found])

    def _rate(
        self, arrow: Arrow, recent: RecentFigures, counted: Mapping[FigureKey, float | None]
    ) -> float | None:
        """The sum of the counts of an arrow in the last minute; None if none is known."""
        rates = [recent.rate(key, counted.get(key) or 0.0, over=_MINUTE) for key in arrow.counts]
        known = [rate for rate in rates if rate is not None]
        return sum(known) * _MINUTE if known else None

    def _ends(self, arrow: Arrow) -> tuple[int, float, int, float]:
        """Where an arrow begins and ends: x and y of both."""
        source, target = self._boxes[arrow.source], self._boxes[arrow.target]
        # Many arrows may leave an informer or enter a kind: they meet there in one point.
        begin = source.port(source.outputs, arrow) if source.column == _HANDLERS else source.middle
        end = target.middle if target.column > _HANDLERS else target.port(target.inputs, arrow)
        return source.right, begin, target.left - 1, end

    def _drawn_box(self, box: Box, caption: Caption | None) -> Element:
        known = self._shown.get(box.key)
        if known is None or known[0] != caption:
            known = self._shown[box.key] = caption, _drawn_box(box, caption)
        return known[1]

    def _drawn(self, arrow: Arrow, rate: float | None) -> Element:
        kind = "arrow busy" if rate else "arrow" if arrow.counts else "arrow reads"
        known = self._paths.get(arrow)
        if known is None or known[0] != kind:
            known = self._paths[arrow] = kind, self._path(arrow, kind)
        return known[1]

    def _path(self, arrow: Arrow, kind: str) -> Element:
        left, begin, right, end = self._ends(arrow)
        source, target = self._boxes[arrow.source], self._boxes[arrow.target]
        at_source = source.column == _HANDLERS
        bent = left + _STRAIGHT if at_source else left, right if at_source else right - _STRAIGHT
        middle = sum(bent) / 2
        path = (
            f"M{left} {begin:.1f}H{bent[0]}C{middle:g} {begin:.1f} {middle:g} {end:.1f} {bent[1]} {end:.1f}"
            f"H{right}m-6 -3.5l6 3.5l-6 3.5"
        )
        what = f"{arrow.what} in the last minute" if arrow.counts else arrow.what
        return element(
            "path",
            element("title", f"{source.name} → {target.name}: {what}"),
            d=path,
            class_=kind,
            data_key=f"{arrow.source} → {arrow.target}",
        )

    def _count(self, arrow: Arrow, rate: float | None) -> Element:
        left, begin, right, end = self._ends(arrow)
        at_source = self._boxes[arrow.source].column == _HANDLERS
        return element(
            "text",
            NONE if rate is None else f"{figures.rate(rate)}/min",
            class_=f"count{' busy' if rate else ''}{'' if at_source else ' end'}",
            x=left + 8 if at_source else right - 9,
            y=f"{(begin if at_source else end) - 4:.1f}",
            data_key=f"count {arrow.source} → {arrow.target}",
        )


def _stack(boxes: Sequence[Box], wanted: Mapping[str, float]) -> None:
    """Place boxes of a column in their order, each as near to its wanted middle as those before let it."""
    bottom = float(_HEAD)
    for box in boxes:
        box.top = max(bottom, wanted.get(box.key, 0.0) - box.height / 2)
        bottom = box.top + box.height + _BETWEEN


def _group(names: tuple[str, ...]) -> str:
    return f"informer {' '.join(names)}"


def _scope(resource: ResourcePlan) -> str:
    """Which objects of its kind a resource has, in a few words."""
    first = resource.watches[0]
    where = f"in {', '.join(resource.namespaces)}" if resource.namespaces else resource.namespace_selector
    parts = [part for part in (where, first.label_selector, first.field_selector) if part]
    return ", ".join(parts) or "all namespaces"


def _informers(found: Sequence[InformerStatistics]) -> Caption:
    """The second line of a box of informers."""
    if not found:
        return Caption("… not started", BoxState.WAITS)
    objects = f"{figures.count(sum(each.objects for each in found))} objects"
    if len(found) > 1:
        objects += f", {len(found)} watches"
    if any(each.error for each in found):
        return Caption(f"✗ fails, {objects}", BoxState.BAD)
    if not all(each.synced for each in found):
        listed = figures.count(sum(each.items_listed for each in found))
        return Caption(f"… syncing, {listed} listed", BoxState.WAITS)
    return Caption(f"✓ {objects}", BoxState.GOOD)


def handler_caption(handler: HandlerStatistics, state: Element, calls: float | None = None) -> Caption:
    """The second line of the box of a handler, whose state is as in the table.

    `calls`: those of a reconciler in a second, which stand at no arrow.
    """
    more = [f"{figures.rate(calls * _MINUTE)} calls/min"] if calls is not None else []
    more += [f"{figures.count(handler.queued)} waiting"] if handler.queued else []
    text = "".join(child for child in state.children if isinstance(child, str))
    kind = BoxState(state.attributes.get("class", ""))
    # Of a healthy handler, the sign leaves room for the figures.
    sign = f"{text.split()[0]} " if kind is BoxState.GOOD and more else f"{text}, " if more else text
    return Caption(f"{sign}{', '.join(more)}", kind)


def _drawn_box(box: Box, caption: Caption | None) -> Element:
    width, state = _WIDTHS[box.column], caption.state if caption is not None else BoxState.NONE
    # No text may run over the border of its box.
    name = _cut(box.name, int((width - 20) / _NAME_LETTER))
    detail = box.detail if caption is None else caption.text
    middle = box.height / 2
    return element(
        "g",
        element("title", ", ".join(filter(None, (box.name, box.detail, caption and caption.text)))),
        element("rect", width=width, height=f"{box.height:g}", rx=6),
        element("path", d=f"M.5 6v{box.height - 12:g}") if state else None,
        element("text", name, class_="name", x=13, y=f"{middle - 4:g}"),
        element("text", _cut(detail, int((width - 16) / _LETTER)), x=13, y=f"{middle + 13:g}"),
        class_=f"box {state}".strip(),
        transform=f"translate({box.left} {box.top:.1f})",
        data_key=box.key,
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
