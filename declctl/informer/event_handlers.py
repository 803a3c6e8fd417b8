"""What a library user implements to be told of changes (client-go's ResourceEventHandler)."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from declctl.objects import ObjectKey, ObjectView


@dataclass(frozen=True, slots=True)
class DeletedFinalStateUnknown:
    """A delete that the watch missed.

    `obj` is the last state that was seen, which may not be the last one there was.
    """

    key: ObjectKey
    obj: ObjectView


class ResourceEventHandler(Protocol):
    """What is called. Methods may be sync or async.

    `on_delete` receives DeletedFinalStateUnknown where the watch missed the delete.
    """

    def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> Any:
        """An object appeared, or was there."""
        ...

    def on_update(self, old: ObjectView, new: ObjectView) -> Any:
        """An object changed, or its resync is due (then both are equal)."""
        ...

    def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> Any:
        """An object is gone."""
        ...


@dataclass(frozen=True, slots=True)
class ResourceEventHandlerFuncs:
    """A handler made of functions; those that are left out are not called."""

    add: Callable[[ObjectView, bool], Any] | None = None
    update: Callable[[ObjectView, ObjectView], Any] | None = None
    delete: Callable[[ObjectView | DeletedFinalStateUnknown], Any] | None = None

    def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> Any:
        """Call `add`."""
        return self.add(obj, is_in_initial_list) if self.add else None

    def on_update(self, old: ObjectView, new: ObjectView) -> Any:
        """Call `update`."""
        return self.update(old, new) if self.update else None

    def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> Any:
        """Call `delete`."""
        return self.delete(obj) if self.delete else None

    @property
    def is_async(self) -> bool:
        """Whether any of the functions is asynchronous."""
        return any(inspect.iscoroutinefunction(f) for f in (self.add, self.update, self.delete))


class FilteringResourceEventHandler:
    """Passes on what a filter accepts.

    Entering it is an add, leaving it a delete (client-go 96).
    """

    def __init__(self, accepts: Callable[[ObjectView], bool], handler: ResourceEventHandler) -> None:
        self._accepts = accepts
        self._handler = handler

    def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> Any:
        """Pass on what is accepted."""
        return self._handler.on_add(obj, is_in_initial_list) if self._accepts(obj) else None

    def on_update(self, old: ObjectView, new: ObjectView) -> Any:
        """Pass on as an update, an add or a delete."""
        before, now = self._accepts(old), self._accepts(new)
        if before and now:
            return self._handler.on_update(old, new)
        if now:
            return self._handler.on_add(new, False)
        return self._handler.on_delete(old) if before else None

    def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> Any:
        """Pass on what is accepted."""
        last = obj.obj if isinstance(obj, DeletedFinalStateUnknown) else obj
        return self._handler.on_delete(obj) if self._accepts(last) else None

    @property
    def is_async(self) -> bool:
        """Whether the handler behind the filter is asynchronous."""
        return is_async(self._handler)


def is_async(handler: ResourceEventHandler) -> bool:
    """Whether any method of a handler is asynchronous."""
    told = getattr(handler, "is_async", None)
    if isinstance(told, bool):
        return told
    return any(
        inspect.iscoroutinefunction(method)
        for method in (handler.on_add, handler.on_update, handler.on_delete)
    )
