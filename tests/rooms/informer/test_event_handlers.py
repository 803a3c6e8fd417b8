"""Handlers of a library user: made of functions, and filtered."""

import functools
from typing import Any

import pytest

from declctl.informer import (
    DeletedFinalStateUnknown,
    FilteringResourceEventHandler,
    ResourceEventHandlerFuncs,
    name_for_handler,
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


@pytest.mark.client_go(97, 111, 306, "Typed wrappers")
@pytest.mark.parametrize(
    "gone",
    [IN, DeletedFinalStateUnknown(ObjectKey("demo/a"), IN)],
    ids=["seen by the watch", "missed by the watch"],
)
def test_a_delete_tells_its_key_and_name_however_it_was_seen(calls, gone):
    """A handler that needs no more than the name has no case for deletes that the watch missed.

    It may care for deletes only. The key is in its parts, also that of a cluster-scoped object.
    """
    handler = ResourceEventHandlerFuncs(delete=lambda obj: calls.append((obj.key, obj.namespace, obj.name)))
    handler.on_add(IN, True)
    handler.on_update(IN, IN)
    handler.on_delete(gone)
    assert calls == [(ObjectKey("demo/a"), "demo", "a")]
    missed = DeletedFinalStateUnknown(ObjectKey("node-1"), IN)
    assert (missed.key, missed.name, missed.namespace) == ("node-1", "node-1", None)


@pytest.mark.client_go(97, "Tombstones")
def test_a_missed_delete_reads_like_the_object_it_is_about(calls):
    """The first delete that the watch missed does not raise in a handler that was written for objects."""
    last = ObjectView(record("a", 7, node="n1", labels={"app": "web"}, annotations={"note": "x"}))
    missed = DeletedFinalStateUnknown(ObjectKey("demo/a"), last)
    assert missed["spec"]["nodeName"] == "n1"
    assert missed.get("status") is None
    assert "spec" in missed
    assert dict(missed) == dict(last)
    assert (missed.labels["app"], missed.annotations["note"]) == ("web", "x")
    assert (missed.uid, missed.resource_version) == ("uid-a", "7")
    assert missed.to_dict() == last.to_dict()
    assert missed
    assert isinstance(missed, DeletedFinalStateUnknown)
    assert not isinstance(missed, ObjectView)


async def _yes(_: ObjectView) -> bool:
    return True


class AsyncFilter:
    """An object that is called asynchronously."""

    async def __call__(self, _: ObjectView) -> bool:
        return True


@pytest.mark.parametrize("accepts", [_yes, functools.partial(_yes), AsyncFilter()])
def test_an_asynchronous_filter_is_refused(accepts):
    """A coroutine counts as true: such a filter would let everything through, without a word."""
    with pytest.raises(TypeError, match=r"the filter .*(_yes|AsyncFilter).*`def` instead of `async def`"):
        FilteringResourceEventHandler(accepts, ResourceEventHandlerFuncs())


def test_a_filter_that_returns_a_coroutine_fails_instead_of_letting_everything_through(calls):
    """A lambda around an `async def` can't be recognised before it is called."""
    handler = ResourceEventHandlerFuncs(add=lambda obj, initial: calls.append(obj.name))
    asks: Any = lambda obj: _yes(obj)  # noqa: E731, PLW0108 - what is not seen to be asynchronous
    filtered = FilteringResourceEventHandler(asks, handler)

    with pytest.raises(TypeError, match="returned a coroutine"):
        filtered.on_add(IN, False)
    assert calls == []


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


class Diary:
    """A handler with methods."""

    def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> None: ...

    def on_update(self, old: ObjectView, new: ObjectView) -> None: ...

    def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> None: ...


class Silent(type):
    """Classes that don't say what they are called."""

    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError("none of your business")


class Hidden(metaclass=Silent):
    """A handler of which nothing can be read."""


def note(*_: Any) -> None:
    """A function."""


def itself() -> FilteringResourceEventHandler:
    made = FilteringResourceEventHandler(lambda _: True, Diary())
    made.handler = made
    return made


HERE = __name__


@pytest.mark.client_go(113)
@pytest.mark.parametrize(
    ("handler", "name"),
    [
        (Diary(), f"{HERE}.Diary"),
        (Diary, f"{HERE}.Diary"),
        (Diary().on_add, f"{HERE}.Diary.on_add"),
        (note, f"{HERE}.note"),
        (_async, f"{HERE}._async"),
        (lambda _: None, f"{HERE}.<lambda>"),
        (functools.partial(note, 1), f"partial({HERE}.note)"),
        (print, "print"),
        ([].append, "list.append"),
        (ResourceEventHandlerFuncs(), "ResourceEventHandlerFuncs()"),
        (
            ResourceEventHandlerFuncs(add=note, delete=Diary().on_delete),
            f"ResourceEventHandlerFuncs(add={HERE}.note, delete={HERE}.Diary.on_delete)",
        ),
        (
            FilteringResourceEventHandler(lambda _: True, Diary()),
            f"FilteringResourceEventHandler({HERE}.Diary)",
        ),
        (None, "None"),
        (7, "int"),
        (Hidden(), f"<{HERE}.Hidden>"),
        (itself(), "<declctl.informer.event_handlers.FilteringResourceEventHandler>"),
    ],
)
def test_every_handler_has_a_name_that_says_whose_it_is(handler, name):
    """Logs and status name whatever was registered: the same in every run, without addresses."""
    assert name_for_handler(handler) == name
