"""Warnings of the API server: a line for each distinct one, counts, and bounds."""

from typing import Any

import msgspec

import declctl
from declctl.kit import ManualClock
from declctl.objects import GroupVersionKind, ObjectView, Resource
from declctl.runtime.handling.server_warnings import ServerWarnings
from declctl.testing import Logged
from tests.rooms.runtime.conftest import Bench

PATH = "/apis/example.dev/v1/namespaces/a/widgets/w/status"
WIDGET = Resource(GroupVersionKind("example.dev", "v1", "Widget"), "widgets", True)
FIELD = 'unknown field "status.conditions"'


class Part(msgspec.Struct):
    size: int = 0


class Status(msgspec.Struct):
    parts: list[Part] = []


@declctl.custom_resource("example.dev/v1", plural="widgets")
class Widget(declctl.Object[dict[str, Any], Status]): ...


def warnings_of(log: Logged, clock: ManualClock) -> ServerWarnings:
    known = {("example.dev", "v1", "widgets"): WIDGET}
    return ServerWarnings(
        known_plural=lambda *name: known.get(name),
        view_of=lambda handler: Widget if handler == "notify" else ObjectView,
        clock=clock,
        log=log,
    )


def test_each_distinct_warning_is_one_line_with_handler_and_kind_and_is_counted(
    bench: Bench, log: Logged, clock: ManualClock
) -> None:
    """The handler is that of the call; of two calls with two faults in common, each fault is one line."""
    warnings = warnings_of(log, clock)

    def writes(ctx) -> None:
        warnings.add("PATCH", PATH, [FIELD, FIELD, "be careful\x1b[2J"])

    bench.slot(writes, adds=("a", "b"))
    bench.work()
    warnings.add("GET", "/apis/example.dev/v1/widgets", ["v1 is deprecated"])
    warnings.add("GET", "/apis/other.dev/v1/gadgets", ["v1 is deprecated"])
    warnings.add("GET", "/version", ["v1 is deprecated"])
    shown = [(line.fields.get("handler", ""), line.fields["kind"], line.event) for line in log.lines]
    widget = "example.dev/v1 Widget"
    dropped = "the server has dropped it: mend its name, or add it to the schema of the kind"
    assert shown == [
        ("notify", widget, f"notify: the API server warns of a PATCH of {widget}: {FIELD}; {dropped}"),
        ("notify", widget, f"notify: the API server warns of a PATCH of {widget}: be careful\ufffd[2J"),
        ("", widget, f"the API server warns of a GET of {widget}: v1 is deprecated"),
        ("", "gadgets.other.dev", "the API server warns of a GET of gadgets.other.dev: v1 is deprecated"),
        ("", "(other)", "the API server warns of a GET of (other): v1 is deprecated"),
    ]
    assert [(each.handler, each.count) for each in reversed(warnings.newest())] == [
        *[("notify", 2), ("notify", 2)],
        *[("", 1), ("", 1), ("", 1)],
    ]
    totals = {(each.handler, each.kind): each.count for each in warnings.totals()}
    assert totals["notify", widget] == 4


def test_a_field_that_the_class_has_is_one_that_the_definition_lacks(
    bench: Bench, log: Logged, clock: ManualClock
) -> None:
    """Then the line names the command that writes the definition again; other fields are misspelled."""
    warnings = warnings_of(log, clock)
    fields = ('unknown field "status.parts[0].size"', 'unknown field "status.parts[0].sise"')

    def writes(ctx) -> None:
        warnings.add("PATCH", PATH, fields)
        warnings.add("PATCH", PATH.replace("widgets", "gadgets"), fields[:1])

    bench.slot(writes, adds=("a",))
    bench.work()
    known, other, other_kind = (line.event.partition("dropped it: ")[2] for line in log.lines)
    assert "older than the class Widget, which has the field" in known
    assert "`declctl generate crd`" in known
    assert other == other_kind == "mend its name, or add it to the schema of the kind"


def test_a_server_that_warns_of_everything_fills_neither_memory_nor_log(
    log: Logged, clock: ManualClock
) -> None:
    """Thousands of distinct and of long texts: the newest are shown, all are counted, few are logged."""
    warnings = warnings_of(log, clock)
    for number in range(3000):
        warnings.add("PATCH", f"/apis/g{number}.dev/v1/widgets", [f"{number} " + "x" * 5000])
    newest = warnings.newest()
    assert (len(newest), newest[0].text[:5], max(len(each.text) for each in newest)) == (100, "2999 ", 500)
    assert sum(each.count for each in warnings.totals()) == 3000
    assert len(warnings.totals()) <= 1001
    assert len(log.lines) == 20
    clock.set(clock.monotonic() + 60)
    warnings.add("PATCH", PATH, [FIELD])
    assert log.lines[-1].event.endswith("(2,980 other warnings were left out)")
    assert len(log.lines) == 21
