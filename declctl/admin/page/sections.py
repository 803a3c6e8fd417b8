"""The content of the page as trees of elements: its head and its sections.

Each table has a row for each thing with a name. In a narrow window the style sheet shows a row as a card;
therefore each cell has the header of its column as `data-label`, and each part of a table its role.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from declctl.admin.access import redacted
from declctl.admin.page.elements import Child, Element, element
from declctl.admin.page.graph import BoxState, Caption, GraphPicture, handler_caption
from declctl.admin.page.trends import Trends, last_minutes, per_second
from declctl.admin.page.values import (
    MOST,
    NONE,
    Document,
    document_moment,
    is_failing,
    moment,
    prose,
)
from declctl.kit import figures
from declctl.kit.text import excerpt
from declctl.manifest import Plan
from declctl.runtime.checking.loaded_code import READY
from declctl.runtime.handling.binding import HandlerStatistics
from declctl.runtime.reasons import DEGRADED
from declctl.runtime.reporting.recent_figures import (
    AGE,
    CALLS,
    EVENTS,
    LAG,
    OBJECTS,
    P99,
    SAMPLE_SECONDS,
    WAITING,
    FigureKey,
    FigureMark,
    figures_now,
    marks,
)
from declctl.runtime.reporting.status import ControllerStatus, ResourceStatus
from declctl.runtime.scheduling.schedules import RunOutcome, ScheduleStatistics

_ATTEMPTS = 20  # of the history
_DIGITS = 12  # of a digest


class View(NamedTuple):
    """The state of one moment.

    Figures come from `status`. Each text that handlers, servers or objects write comes from the documents,
    because `redacted` has taken it out of them if it must not be shown.
    """

    status: ControllerStatus
    document: Document  # of `GET /status`
    history: Document  # of `GET /history`
    plan: Plan
    trends: Trends
    counted: Mapping[FigureKey, float | None]  # the counters of this moment
    marks: Sequence[FigureMark]  # of the last 15 minutes
    now: datetime  # in UTC
    texts: bool  # whether the documents are complete

    def rate(self, key: FigureKey, *, over: float = SAMPLE_SECONDS) -> float | None:
        """How much a counter has grown in a second, as the mean of `over` seconds."""
        return self.trends.recent.rate(key, self.counted.get(key) or 0.0, over=over)


def view(
    status: ControllerStatus,
    history: Document,
    plan: Plan,
    trends: Trends,
    *,
    now: datetime,
    texts: bool,
) -> View:
    """The view of one moment, redacted unless `texts`."""
    document = status.document()
    if not texts:
        document, history = redacted(document), redacted(history)
    found = trends.recent.recent(marks(status, history["attempts"]))
    return View(status, document, history, plan, trends, figures_now(status), found, now, texts)


class Row(NamedTuple):
    """A row of a table. `key` names it among the rows; the first cell is its header."""

    key: str
    cells: Sequence[Child]


def _row(key: str, *cells: Child) -> Row:
    return Row(key, cells)


def head(view: View) -> Sequence[Element]:
    """The name of the controller, and its state in a few words."""
    status = view.status
    facts: list[Child] = [_mark("ready", "not ready", good=status.ready)]
    if status.leader_election is not None:
        facts.append(element("span", "leads" if status.leader else f"{status.leader_election.state}"))
    if (sharding := status.sharding) is not None:
        free = f", {sharding.free} free" if sharding.free else ""
        facts.append(element("span", f"{sharding.handled} of {sharding.total} slots{free}"))
    facts.append(element("span", f"generation {status.generation}"))
    facts.append(element("span", "bundle ", element("code", status.bundle_hash[:_DIGITS] or NONE)))
    nodes = [element("h1", status.name), element("p", *facts, class_="facts")]
    if not view.texts:
        nodes.append(
            element(
                "p",
                "Types and counts alone are shown: messages, objects and server names need the token of this "
                "address.",
                class_="notice",
            )
        )
    return nodes


def sections(view: View, picture: GraphPicture) -> Sequence[Element]:
    """All sections that have something to show, each with an id and a heading."""
    found = (
        last_minutes(view.trends.recent, view.marks, _all_calls(view)),
        _graph(view, picture),
        _handlers(view),
        _resources(view),
        _indexes(view),
        _schedules(view),
        _reloads(view),
        _writes(view),
        _plugins(view),
        _conditions(view),
        _process(view),
    )
    return [section for section in found if section is not None]


def navigation(shown: Sequence[Element]) -> Sequence[Element]:
    """A link to each section."""
    return [
        element("a", section.attributes["aria-label"], href=f"#{name}", data_key=name)
        for section in shown
        for name in (section.attributes["id"],)
    ]


def _all_calls(view: View) -> float | None:
    rates = [view.rate(FigureKey("handlers", handler.name, CALLS)) for handler in view.status.handlers]
    return sum(rate for rate in rates if rate is not None) if any(r is not None for r in rates) else None


def _graph(view: View, picture: GraphPicture) -> Element | None:
    if not view.plan.resources:
        return None
    captions: dict[str, Caption] = {}
    for handler in view.status.handlers:
        key = FigureKey("handlers", handler.name, CALLS)
        calls = view.rate(key, over=60.0) if handler.workqueue is not None else None
        state = _handler_state(handler, now=view.now)
        captions[f"handler {handler.name}"] = handler_caption(handler, state, calls)
    for schedule in view.status.schedules:
        captions[f"schedule {schedule.name}"] = _schedule_caption(schedule)
    drawn = picture.element(view.status, view.trends.recent, view.counted, captions, texts=view.texts)
    scrolled = element(
        "div", drawn, class_="picture", role="region", tabindex="0", aria_label="Picture: the graph"
    )
    hint = element(
        "p",
        "In the last minute: events of watches, calls, keys enqueued for reconcilers, and writes.",
        class_="hint",
    )
    return _section("graph", "Graph", scrolled, hint)


def _schedule_caption(schedule: ScheduleStatistics) -> Caption:
    if schedule.running:
        return Caption("… running", BoxState.GOOD)
    if schedule.last_outcome is None:
        return Caption("not called yet")
    good = schedule.last_outcome is RunOutcome.SUCCEEDED
    words = "✓" if good else f"✗ {schedule.last_outcome},"
    when = "" if schedule.next_run is None else f" next at {schedule.next_run:%H:%M:%S}"
    return Caption(f"{words}{when}", BoxState.GOOD if good else BoxState.BAD)


def _handlers(view: View) -> Element | None:
    rows = [
        _row(h.name, *_handler_cells(h, document["lastError"], view))
        for h, document in zip(view.status.handlers, view.document["handlers"], strict=True)
    ]
    headers = ("Handler", "Calls", "p99", "Lag p99", "Waiting", "Results", "Last error")
    return _section("handlers", "Handlers", _table("Handlers", headers, rows), _figures("handlers"))


def _handler_cells(handler: HandlerStatistics, error: str | None, view: View) -> Iterable[Child]:
    def key(figure: str) -> FigureKey:
        return FigureKey("handlers", handler.name, figure)

    trends = view.trends
    yield _named(handler.name, handler.mode, state=_handler_state(handler, now=view.now))
    calls = per_second(view.rate(key(CALLS)))
    yield trends.of(key(CALLS), calls)
    for figure in (P99, LAG):
        yield trends.of(key(figure), trends.newest(key(figure)))
    running = f"{figures.count(handler.running)} running" if handler.running else ""
    yield trends.of(key(WAITING), figures.count(handler.queued), below=running)
    yield _results(handler)
    yield _failed(error, at=handler.last_error_time)


def _results(handler: HandlerStatistics) -> Element:
    """How calls have ended since the start; what has not happened is left out."""
    counts = [
        ("", handler.succeeded, "succeeded"),
        ("bad", handler.failed, "failed"),
        ("bad", handler.dead_letters, "dead letters"),
        ("", handler.retried, "retried"),
        ("", handler.filtered, "filtered out"),
    ]
    return element(
        "ul",
        *(
            element("li", f"{figures.count(count)} {word}", class_=kind or None, data_key=word)
            for kind, count, word in counts
            if count or word == "succeeded"
        ),
        class_="results",
    )


def _handler_state(handler: HandlerStatistics, *, now: datetime) -> Element:
    if handler.disabled:
        return element("span", "✗ disabled", class_="bad")
    if handler.zombies or any(each.reason == "CallHangs" for each in handler.problems):
        return element("span", "✗ hanging", class_="bad")
    if is_failing(handler, now=now):
        return element("span", "✗ failing", class_="bad")
    if not handler.synced:
        return element("span", "… waits for cache sync", class_="warn")
    return element("span", "✓ healthy", class_="good")


def _resources(view: View) -> Element | None:
    rows = [
        _row(r.name, *_resource_cells(r, document["error"], view))
        for r, document in zip(view.status.resources, view.document["resources"], strict=True)
    ]
    headers = ("Resource", "Objects", "Events", "Last event", "Memory", "Requests", "Error")
    return _section("resources", "Resources", _table("Resources", headers, rows), _figures("resources"))


def _resource_cells(resource: ResourceStatus, error: str | None, view: View) -> Iterable[Child]:
    def key(figure: str) -> FigureKey:
        return FigureKey("resources", resource.name, figure)

    trends, name = view.trends, resource.name
    yield _named(name, resource.state, state=_mark("synced", "not synced", good=resource.synced))
    objects = _link(f"cache/{quote(name)}", figures.count(resource.objects), f"Keys of {name}")
    yield trends.of(key(OBJECTS), objects)
    yield trends.of(key(EVENTS), per_second(view.rate(key(EVENTS))))
    age = NONE if resource.last_event_age is None else f"{figures.age(resource.last_event_age)} ago"
    yield trends.of(key(AGE), age)
    yield figures.byte_size(resource.bytes)
    counts = ((resource.lists, "list"), (resource.watches, "watch"), (resource.relists, "relist"))
    requests = [element("li", _number(count, word), data_key=word) for count, word in counts if count]
    yield element("ul", *requests, class_="results")
    yield _failed(error)


def _number(count: int, word: str) -> str:
    """A number of things: `1 watch`, `1,234 watches`."""
    plural = f"{word}es" if word.endswith("ch") else f"{word}s"
    return f"{figures.count(count)} {word if count == 1 else plural}"


def _indexes(view: View) -> Element | None:
    failures = {resource.name: resource.index_failures for resource in view.status.resources}
    rows = [
        _row(
            f"{resource.name}.{indexer.name}",
            _named(indexer.name, f"of {resource.name}"),
            indexer.field_path or f"function {indexer.entry_point}",
            f"{failures.get(resource.name, {}).get(indexer.name, 0):,}",
            _link(
                f"index/{quote(resource.name)}/{quote(indexer.name)}/",
                "values",
                f"Values of {resource.name}.{indexer.name}",
            ),
        )
        for resource in view.plan.resources
        for indexer in resource.indexers
    ]
    return _section(
        "indexes", "Indexes", _table("Indexes", ("Index", "Indexed by", "Failures", "Content"), rows)
    )


def _schedules(view: View) -> Element | None:
    rows = [
        _row(
            s.name,
            _named(s.name),
            moment(s.next_run) if s.next_run else NONE,
            moment(s.last_run) if s.last_run else NONE,
            _outcome(s.last_outcome),
            *map(figures.count, (s.succeeded, s.failed, s.skipped, s.running)),
            _failed(document["lastError"]),
        )
        for s, document in zip(view.status.schedules, view.document["schedules"], strict=True)
    ]
    headers = ("Schedule", "Next", "Last", "Result", "Succeeded", "Failed", "Skipped", "Running")
    return _section("schedules", "Schedules", _table("Schedules", (*headers, "Last error"), rows))


def _reloads(view: View) -> Element | None:
    attempts: Sequence[Document] = view.history["attempts"][-_ATTEMPTS:]
    # Two attempts may have the same second and files: the second one has another number of earlier ones.
    seen: dict[str, int] = {}
    rows: list[Row] = []
    for each in attempts:
        name = f"{each.get('time')} {each.get('bundleHash')} {each.get('result')}"
        seen[name] = seen.get(name, 0) + 1
        rows.append(
            _row(
                f"{name} {seen[name]}",
                document_moment(each.get("time")),
                _outcome(each["result"]),
                f"{each.get('generation', NONE)}{_comes_back(each, view)}",
                _what_changed(each),
                figures.count(each.get("lists", 0)),
                figures.duration(each.get("seconds", 0.0)),
            )
        )
    headers = ("Time", "Result", "Generation", "What changed, or why it was refused", "LISTs", "Duration")
    hint = element(
        "p",
        "What an edit would change, and what it would cost: ",
        element("code", "declctl plan MANIFEST --against running"),
        class_="hint",
    )
    return _section("reloads", "Reloads", _table("Reloads", headers, rows[::-1]), hint)


def _comes_back(attempt: Document, view: View) -> str:
    is_made = attempt["result"] in ("Applied", "RolledBack")
    number = attempt.get("generation")
    if is_made and number == view.history.get("generation"):
        return " (runs)"
    return " (kept)" if is_made and number in view.history.get("kept", ()) else ""


def _what_changed(attempt: Document) -> Element:
    """The steps of an attempt, one in each line; its message, and what to do."""
    parts = [
        element("span", excerpt(step, most=MOST), class_="step") for step in attempt.get("changes") or ()
    ]
    if attempt.get("message"):
        parts.append(element("span", excerpt(attempt["message"], most=MOST), class_="message"))
    elif attempt.get("reason") and not parts:
        parts.append(element("span", str(attempt["reason"])))
    if attempt.get("suggestion"):
        advice = excerpt(attempt["suggestion"], most=MOST)
        parts.append(element("span", element("b", "What to do: "), *prose(advice), class_="message"))
    return element("div", *(parts or [NONE]), class_="steps")


def _writes(view: View) -> Element | None:
    rows = [
        _row(f"{w.handler} {w.verb} {w.result}", _named(w.handler), w.verb, w.result, figures.count(w.count))
        for w in view.status.writes
    ]
    return _section("writes", "Writes", _table("Writes", ("Handler", "Verb", "Outcome", "Count"), rows))


def _plugins(view: View) -> Element | None:
    rows = [
        _row(
            p["name"],
            _named(p["name"]),
            p["version"],
            _mark(p["state"], p["state"], good=p["state"] == READY),
            _failed(p["reason"]),
        )
        for p in view.document["plugins"]
    ]
    return _section("plugins", "Plugins", _table("Plugins", ("Plugin", "Version", "State", "Reason"), rows))


def _conditions(view: View) -> Element | None:
    rows = [
        _row(
            c["type"],
            _named(c["type"]),
            # Degraded is the condition that is good when it does not hold.
            _mark(c["status"], c["status"], good=(c["status"] == "True") is (c["type"] != DEGRADED)),
            c["reason"] or NONE,
            document_moment(c["lastTransitionTime"]),
            _failed(c["message"]),
        )
        for c in view.document["conditions"]
    ]
    headers = ("Condition", "Status", "Reason", "Since", "Message")
    return _section("conditions", "Conditions", _table("Conditions", headers, rows))


def _process(view: View) -> Element | None:
    """The figures of the process that are in no table: those of `/status` with a simple value."""
    status = view.status
    reloads = ", ".join(
        f"{figures.count(count)} {result}" for result, count in sorted(status.reloads.items()) if count
    )
    old = [
        _row(
            f"{o.generation} {o.refused} {number}",
            f"Generation {o.generation}{' (refused)' if o.refused else ''}",
            _failed(", ".join(document["heldBy"])),
        )
        for number, (o, document) in enumerate(
            zip(status.old_generations, view.document["oldGenerations"], strict=True)
        )
    ]
    removed = [
        _row(name, _named(name), figures.count(count)) for name, count in sorted(status.removed.items())
    ]
    shown = {
        name: view.document[name]
        for name in (
            "server",
            "leaderElection",
            "sharding",
            "recordedEvents",
            "writeRetries",
            "machinery",
            "fileWatch",
        )
        if view.document.get(name)
    }
    facts = {
        "generationsAlive": status.generations_alive,
        "reloads": reloads or "none",
        "lastReloadSeconds": status.last_reload_seconds,
        "reloadRetries": status.reload_retries,
        "reloadPlanMismatches": status.reload_plan_mismatches,
        "abandonedCalls": len(status.abandoned_calls),
    }
    return _section(
        "process",
        "Process",
        _facts({**facts, **shown}),
        _table("Old generations in memory", ("Generation", "Held by"), old, titled=True),
        _table("Removed handlers", ("Handler", "Dropped changes"), removed, titled=True),
    )


def _figures(kind: str) -> Element:
    """A link to all figures that `/status` has of handlers or resources.

    They are not a part of each view, because the views are made on the machinery loop.
    """
    return element("p", element("a", f"All figures of {kind}", href="status", data_read=kind), class_="hint")


def _facts(document: Document) -> Element:
    """A list of names and values; the names of inner objects are joined by points."""
    pairs = [
        element("div", element("dt", name), element("dd", _plain(value)), data_key=name)
        for name, value in _flat(document, "")
        if value not in (None, "")
    ]
    return element("dl", *pairs)


def _flat(document: Document, prefix: str) -> Iterable[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(cast("Document", value), f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            items = cast("Sequence[Any]", value)
            yield f"{prefix}{name}", ", ".join(_plain(item) for item in items) or None
        else:
            yield f"{prefix}{name}", value


def _plain(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return figures.count(value)
        case float():
            return figures.number(value)
        case _:
            return excerpt(str(value), most=MOST)


def _section(name: str, title: str, *content: Element | None) -> Element | None:
    """A section; None if its first part is empty."""
    if content[0] is None:
        return None
    return element("section", element("h2", title), *content, id=name, data_key=name, aria_label=title)


def _table(
    title: str, headers: Sequence[str], rows: Sequence[Row], *, titled: bool = False
) -> Element | None:
    """A table with a header for each column, and for each row; None without rows.

    `titled`: its title is shown. Otherwise the title is for screen readers alone.
    """
    if not rows:
        return None
    columns = [element("th", header, scope="col", role="columnheader") for header in headers]
    return element(
        "div",
        element(
            "table",
            element("caption", title, class_=None if titled else "unseen"),
            element("thead", element("tr", *columns, role="row"), role="rowgroup"),
            element("tbody", *(_cells(row, headers) for row in rows), role="rowgroup"),
            role="table",
        ),
        class_="scroll",
        # A wide table is scrolled by the keyboard, too.
        role="region",
        tabindex="0",
        aria_label=f"Table: {title}",
    )


def _cells(row: Row, headers: Sequence[str]) -> Element:
    first, *others = row.cells
    return element(
        "tr",
        element("th", first, scope="row", role="rowheader", data_label=headers[0]),
        *(
            element("td", cell, role="cell", data_label=header, class_=_class_of(cell))
            for cell, header in zip(others, headers[1:], strict=True)
        ),
        role="row",
        data_key=row.key,
    )


def _class_of(cell: Child) -> str | None:
    """Figures stay on one line; a card leaves out cells that have nothing to say."""
    if not isinstance(cell, str):
        return None
    if cell in ("0", NONE):
        return "none"
    return "number" if cell[:1].isdigit() else None


def _named(name: str, more: str = "", *, state: Element | None = None) -> Element:
    """A name, its state below it, and a last line in small letters."""
    return element("span", name, state, element("small", more) if more else None, class_="named")


def _mark(yes: str, no: str, *, good: bool) -> Element:
    """A word with a sign, and a colour, which is never the only sign."""
    return element("span", f"✓ {yes}" if good else f"✗ {no}", class_="good" if good else "bad")


def _outcome(result: object) -> Child:
    match str(result) if result is not None else "":
        case "":
            return NONE
        case "Applied" | "Succeeded" as word:
            return element("span", f"✓ {word}", class_="good")
        case "Refused" | "RolledBack" | "Failed" as word:
            return element("span", f"✗ {word}", class_="bad")
        case word:
            return element("span", word)


def _failed(error: str | None, *, at: datetime | None = None) -> Child:
    if not error:
        return NONE
    when = element("small", moment(at)) if at is not None else None
    return element("span", excerpt(error, most=MOST), when, class_="named")


def _link(href: str, text: str, title: str) -> Element:
    return element("a", text, href=href, data_read=True, aria_label=f"{title}: {text}")
