"""What a library user implements to be told of changes (client-go's ResourceEventHandler)."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from declctl.kit.callbacks import plain, refuse_async
from declctl.objects import KubeObject, ObjectKey, ObjectView


@dataclass(frozen=True, slots=True)
class DeletedFinalStateUnknown(Mapping[str, Any]):
    """A delete that the watch missed.

    `obj` is the last state that was seen, which may not be the last one there was; it is always
    there (client-go's may be missing). Everything that can be read from an object can be read from
    this, and is that of `obj`: a handler that does not care how a delete was seen has no case for it
    (client-go 97, 111). `isinstance` tells it from an ObjectView.
    """

    key: ObjectKey
    obj: ObjectView

    def __getitem__(self, field: str) -> Any:
        return self.obj[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self.obj)

    def __len__(self) -> int:
        return len(self.obj)

    def __bool__(self) -> bool:
        return True  # as of an object: nothing is decoded to know

    @property
    def name(self) -> str:
        """The name in the key."""
        return self.key.name

    @property
    def namespace(self) -> str | None:
        """The namespace in the key; None for a cluster-scoped object."""
        return self.key.namespace

    @property
    def uid(self) -> str:
        """`metadata.uid` of the last known state."""
        return self.obj.uid

    @property
    def resource_version(self) -> str:
        """`metadata.resourceVersion` of the last known state."""
        return self.obj.resource_version

    @property
    def labels(self) -> Mapping[str, str]:
        """`metadata.labels` of the last known state, read-only."""
        return self.obj.labels

    @property
    def annotations(self) -> Mapping[str, str]:
        """`metadata.annotations` of the last known state, read-only. Decodes."""
        return self.obj.annotations

    def to_dict(self) -> KubeObject:
        """A private deep copy of the last known state."""
        return self.obj.to_dict()


class ResourceEventHandler(Protocol):
    """What is called. Methods may be sync or async.

    `on_delete` receives DeletedFinalStateUnknown, which reads like an object, where the watch missed the
    delete.
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
    """Passes on to `handler` what a filter accepts.

    Entering it is an add, leaving it a delete (client-go 96). `accepts` is a plain function of an object:
    an asynchronous one raises TypeError, here or, where it can't be recognised, when it is called.
    """

    def __init__(self, accepts: Callable[[ObjectView], bool], handler: ResourceEventHandler) -> None:
        refuse_async(accepts, f"the filter {name_for_handler(accepts)}")
        self._function = accepts
        self.handler = handler

    def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> Any:
        """Pass on what is accepted."""
        return self.handler.on_add(obj, is_in_initial_list) if self._accepts(obj) else None

    def on_update(self, old: ObjectView, new: ObjectView) -> Any:
        """Pass on as an update, an add or a delete."""
        before, now = self._accepts(old), self._accepts(new)
        if before and now:
            return self.handler.on_update(old, new)
        if now:
            return self.handler.on_add(new, False)
        return self.handler.on_delete(old) if before else None

    def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> Any:
        """Pass on what is accepted."""
        return self.handler.on_delete(obj) if self._accepts(_last_state(obj)) else None

    def on_merged_delete(self, before: ObjectView, obj: ObjectView | DeletedFinalStateUnknown) -> Any:
        """Pass on a delete with which updates were merged, because the listener's buffer was full.

        The handler knows the object if `before`, its state before those updates, was accepted: the states
        in between were never delivered.
        """
        if not self._accepts(before):
            return None
        if isinstance(self.handler, FilteringResourceEventHandler):
            return self.handler.on_merged_delete(before, obj)
        return self.handler.on_delete(obj)

    @property
    def is_async(self) -> bool:
        """Whether the handler behind the filter is asynchronous."""
        return is_async(self.handler)

    def _accepts(self, obj: ObjectView) -> bool:
        answer = self._function(obj)
        if answer is True or answer is False:
            return answer  # no name is made for what is nearly always so
        return bool(plain(answer, f"the filter {name_for_handler(self._function)}"))


def _last_state(obj: ObjectView | DeletedFinalStateUnknown) -> ObjectView:
    return obj.obj if isinstance(obj, DeletedFinalStateUnknown) else obj


def is_async(handler: ResourceEventHandler) -> bool:
    """Whether any method of a handler is asynchronous."""
    told = getattr(handler, "is_async", None)
    if isinstance(told, bool):
        return told
    return any(
        inspect.iscoroutinefunction(method)
        for method in (handler.on_add, handler.on_update, handler.on_delete)
    )


def name_for_handler(handler: object) -> str:
    """A readable name for logs and status, the same in every run (client-go's nameForHandler).

    Module and qualified name of a function, of a method or of an object's class; for handlers made
    of functions, the names of those; for a filter, what stands behind it. It never raises.
    """
    try:
        return _name(handler)
    except Exception:  # noqa: BLE001 - foreign objects answer as they like, and a log line needs a name
        return f"<{type.__repr__(type(handler))[8:-2]}>"


def _name(handler: object) -> str:
    match handler:
        case None:
            return "None"
        case ResourceEventHandlerFuncs(add=add, update=update, delete=delete):
            given = {"add": add, "update": update, "delete": delete}
            parts = ", ".join(f"{role}={_name(f)}" for role, f in given.items() if f is not None)
            return f"ResourceEventHandlerFuncs({parts})"
        case FilteringResourceEventHandler(handler=inner):
            return f"FilteringResourceEventHandler({_name(inner)})"
        case functools.partial(func=function):
            return f"partial({_name(function)})"
        case _:
            named = handler if inspect.isroutine(handler) or isinstance(handler, type) else type(handler)
            return _qualified(named)


def _qualified(named: object) -> str:
    name = str(getattr(named, "__qualname__", None) or type(named).__qualname__)
    module = getattr(named, "__module__", None)
    return name if module in (None, "builtins", "__main__") else f"{module}.{name}"
