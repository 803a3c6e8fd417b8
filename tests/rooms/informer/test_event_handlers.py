"""Handlers of a library user: made of functions, and filtered."""

import functools
from typing import Any

import pytest

from declctl.informer import (
    DeletedFinalStateUnknown,
    FilteringResourceEventHandler,
    ResourceEventHandlerFuncs,
)
from declctl.informer.event_handlers import is_async
from declctl.objects import ObjectKey, ObjectView
from tests.rooms.informer.shapes import record


def view(node: str, version: int = 1) -> ObjectView:
    return ObjectView(record("a", version, node=node))


IN, OUT = view("n1"), view("n2")


@pytest.fixture
def calls() -> list[Any]:
    return []


@pytest.fixture
def filtered(calls: list[Any]) -> FilteringResourceEventHandler:
    handler = ResourceEventHandlerFuncs(
        add=lambda obj, initial: calls.append(("add", obj, initial)),
        update=lambda old, new: calls.append(("update", old, new)),
        delete=lambda obj: calls.append(("delete", obj)),
    )
    return FilteringResourceEventHandler(lambda obj: obj["spec"]["nodeName"] == "n1", handler)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (OUT, IN, [("add", IN, False)]),
        (IN, OUT, [("delete", IN)]),
        (IN, IN, [("update", IN, IN)]),
        (OUT, OUT, []),
    ],
    ids=["entering", "leaving", "staying", "outside"],
)
def test_crossing_the_filter_is_an_add_or_a_delete(filtered, calls, old, new, expected):
    """Whoever filters sees objects come and go as they pass the filter (client-go 96)."""
    filtered.on_update(old, new)

    assert calls == expected


def test_adds_and_deletes_pass_the_filter_by_themselves(filtered, calls):
    """What the filter refuses is not heard of; a missed delete is judged by what was seen last."""
    missed = DeletedFinalStateUnknown(ObjectKey("demo/a"), IN)
    filtered.on_add(IN, True)
    filtered.on_add(OUT, True)
    filtered.on_delete(IN)
    filtered.on_delete(OUT)
    filtered.on_delete(missed)
    filtered.on_delete(DeletedFinalStateUnknown(ObjectKey("demo/a"), OUT))

    assert calls == [("add", IN, True), ("delete", IN), ("delete", missed)]


def test_functions_that_are_left_out_are_not_missed():
    """A handler may care for deletes only."""
    deleted: list[str] = []
    handler = ResourceEventHandlerFuncs(delete=lambda obj: deleted.append(obj.name))

    handler.on_add(IN, True)
    handler.on_update(IN, IN)
    handler.on_delete(IN)

    assert deleted == ["a"]


async def _async(*_: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (ResourceEventHandlerFuncs(), False),
        (ResourceEventHandlerFuncs(add=lambda *_: None), False),
        (ResourceEventHandlerFuncs(update=_async), True),
        (ResourceEventHandlerFuncs(delete=functools.partial(_async, 1)), True),
        (FilteringResourceEventHandler(lambda _: True, ResourceEventHandlerFuncs(add=_async)), True),
        (FilteringResourceEventHandler(lambda _: True, ResourceEventHandlerFuncs()), False),
    ],
)
def test_an_asynchronous_handler_is_known_by_its_methods(handler, expected):
    """One async method, also behind a filter, and the handler is called on the loop."""
    assert is_async(handler) is expected
