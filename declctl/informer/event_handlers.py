"""Event handlers: the functions of a library user that informers call (client-go's ResourceEventHandler)."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from declctl.kit.callbacks import plain, refuse_async
from declctl.objects import KubeObject, ObjectKey, ObjectView


@dataclass(frozen=True, slots=True)
class DeletedFinalStateUnknown(Mapping[str, Any]):
    """A deleted object whose delete event the watch missed (client-go's DeletedFinalStateUnknown).

    `obj` is the last state that was seen; the object may have changed after it. Unlike in client-go, `obj` is
    never missing. The value is a mapping with the fields and properties of `obj`, so that a handler may treat
    it as an object (client-go 97, 111); `isinstance` distinguishes it from an ObjectView. From any thread.
    """

    key: ObjectKey  # `namespace/name`, or `name`
    obj: ObjectView  # read-only

    def __getitem__(self, field: str) -> Any:
        return self.obj[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self.obj)

    def __len__(self) -> int:
        return len(self.obj)

    def __bool__(self) -> bool:
        return True  # as for an ObjectView; the inherited one would decode the object for its length

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
        """A deep copy of the last known state, which the caller may change. Decodes."""
        return self.obj.to_dict()


class ResourceEventHandler(Protocol):
    """The methods that an informer calls (client-go's ResourceEventHandler).

    Methods may be plain or asynchronous. A handler with an asynchronous method is called on the informer's
    loop, any other handler in a thread of its own; one call runs at a time. Objects are read-only. An
    exception is logged and counted, and the call is not repeated.
    """

    def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> Any:
        """An object was added, or was cached when the handler was added.

        `is_in_initial_list` is True for objects that existed before the cache synced.
        """
        ...

    def on_update(self, old: ObjectView, new: ObjectView) -> Any:
        """An object changed. For a resync, `old` and `new` are the same state."""
        ...

    def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> Any:
        """An object was deleted. `obj` is a DeletedFinalStateUnknown where the watch missed the delete."""
        ...


class ResourceEventHandlerFuncs(msgspec.Struct, frozen=True):
    """A handler made of up to three functions (client-go's ResourceEventHandlerFuncs).

    Their parameters are those of the methods of ResourceEventHandler. They may be plain or asynchronous. An
    event whose function is None is ignored.
    """

    add: Callable[[ObjectView, bool], Any] | None = None
    update: Callable[[ObjectView, ObjectView], Any] | None = None
    delete: Callable[[ObjectView | DeletedFinalStateUnknown], Any] | None = None

    def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> Any:
        """Call `add` and return its result, which may have to be awaited."""
        return self.add(obj, is_in_initial_list) if self.add else None

    def on_update(self, old: ObjectView, new: ObjectView) -> Any:
        """Call `update` and return its result, which may have to be awaited."""
        return self.update(old, new) if self.update else None

    def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> Any:
        """Call `delete` and return its result, which may have to be awaited."""
        return self.delete(obj) if self.delete else None

    @property
    def is_async(self) -> bool:
        """Whether any of the functions is asynchronous."""
        return any(inspect.iscoroutinefunction(f) for f in (self.add, self.update, self.delete))


class FilteringResourceEventHandler:
    """Calls `handler` for the objects that a filter accepts (client-go's FilteringResourceEventHandler).

    An update by which an object becomes accepted is an add for `handler`; an update by which the object is no
    longer accepted is a delete (client-go 96).

    `accepts` is a plain function of an object, called in the thread or loop of the handler. Raises TypeError
    for an asynchronous function; where that can't be recognised now, its call raises TypeError.
    """

    def __init__(self, accepts: Callable[[ObjectView], bool], handler: ResourceEventHandler) -> None:
        refuse_async(accepts, f"the filter {name_for_handler(accepts)}")
        self._function = accepts
        self.handler = handler

    def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> Any:
        """Call `on_add` of the handler if the object is accepted."""
        return self.handler.on_add(obj, is_in_initial_list) if self._accepts(obj) else None

    def on_update(self, old: ObjectView, new: ObjectView) -> Any:
        """Call `on_update`, `on_add` or `on_delete` of the handler, or none of them."""
        before, now = self._accepts(old), self._accepts(new)
        if before and now:
            return self.handler.on_update(old, new)
        if now:
            return self.handler.on_add(new, False)
        return self.handler.on_delete(old) if before else None

    def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> Any:
        """Call `on_delete` of the handler if the last known state is accepted."""
        return self.handler.on_delete(obj) if self._accepts(_last_state(obj)) else None

    def on_merged_delete(self, before: ObjectView, obj: ObjectView | DeletedFinalStateUnknown) -> Any:
        """Call `on_delete` of the handler for a delete into which pending updates were merged.

        `before` is the state before those updates, the last one that was delivered. So the handler knows the
        object if `before` was accepted.
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
            return answer  # the common case: no name is built for an error message
        return bool(plain(answer, f"the filter {name_for_handler(self._function)}"))


def _last_state(obj: ObjectView | DeletedFinalStateUnknown) -> ObjectView:
    return obj.obj if isinstance(obj, DeletedFinalStateUnknown) else obj


def is_async(handler: ResourceEventHandler) -> bool:
    """Whether any method of a handler is asynchronous; an attribute `is_async` of the handler decides."""
    declared = getattr(handler, "is_async", None)
    if isinstance(declared, bool):
        return declared
    return any(
        inspect.iscoroutinefunction(method)
        for method in (handler.on_add, handler.on_update, handler.on_delete)
    )


def name_for_handler(handler: object) -> str:
    """A readable name for logs and status, the same in every run (client-go's nameForHandler).

    It is the module and qualified name of a function, of a method or of an object's class. The name of a
    ResourceEventHandlerFuncs has the names of its functions, that of a filter has the name of its handler.
    Never raises. From any thread.
    """
    try:
        return _name(handler)
    except Exception:  # noqa: BLE001 - attributes of user objects may raise, and a log line needs a name
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
