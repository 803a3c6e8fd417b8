"""The finalizer of a reconciler: what a call of a key does with it.

| state of the object | what happens |
|---|---|
| it lacks the finalizer | the finalizer is added; the key is reconciled when the caches have this write |
| it has the finalizer | `declctl_reconcile` is called |
| it has it, and is being deleted | `declctl_finalize` is called; if it succeeds, the finalizer is removed |
| it lacks it, and is being deleted | nothing: another finalizer holds it |

Adding and removing are steps of a call, as hooks are: they have its time limit, and are retried without
`maxAttempts`.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

import msgspec

from declctl.errors import DeclctlError, WriteError
from declctl.hooks.calls import Implementation, ReconcileTarget
from declctl.objects import GroupVersionKind, Notification, ObjectView, Requeue
from declctl.runtime.handling.binding import CallBinding
from declctl.runtime.handling.context import HandlerWrites
from declctl.runtime.handling.invocation import Retry
from declctl.runtime.reconciling.reconciliation import Reconciliation
from declctl.writes import CallScope, finalizers_of, is_being_deleted

_MOST_REMOVED = 10_000  # objects that are remembered
_CACHE_LAGS = Requeue(after=1.0)  # an object had the finalizer, but not in the cache


class HandlerFinalizer(msgspec.Struct, frozen=True):
    """The finalizer of a reconciler in one generation."""

    name: str
    kind: GroupVersionKind  # of the objects, as the manifest names it
    writes: Callable[[CallScope], HandlerWrites]
    reads_first: bool  # a transform may have taken finalizers of others out of the cached objects
    dry_run: bool
    may_leave: bool  # objects may leave the namespaces or selectors of the resource, and keep the finalizer

    def change(self, scope: CallScope, *, adds: bool) -> Future[Any]:
        """Add the finalizer to the object of a call, or remove it. From any thread."""
        return self.writes(scope).change_finalizer(
            self.kind, self.name, adds=adds, reads_first=self.reads_first
        )

    def must_finalize(self, notification: Notification) -> bool:
        """Whether the object of a change is being deleted, and has the finalizer. Raises MalformedAnswer."""
        obj = notification.record.read()
        return is_being_deleted(obj) and self.name in finalizers_of(obj)

    def has_left(self, notification: Notification) -> bool:
        """Whether a Deleted may mean an object that is still there, with the finalizer. Raises as above."""
        return self.may_leave and self.name in finalizers_of(notification.record.read())


class FinalizerSteps:
    """The finalizers of one slot: decides what a call does. From any thread."""

    def __init__(self) -> None:
        self.finalized = 0  # objects from which the finalizer was removed after `declctl_finalize`
        self._lock = threading.Lock()  # guards the notes of removals
        # By key: uid of the objects that a cache may still show with it; the newest last. Also of one that is
        # gone from the handler's cache: that of the leftovers may lag behind.
        self._removed: dict[str, str] = {}
        self._leaving = ""  # a finalizer that a refused edit removes; empty for none
        self._released: set[str] = set()  # uids of objects from which it was removed since

    def let_go(self, finalizer: str) -> str:
        """Note that a refused edit removes a finalizer; an empty one: that none is removed any more.

        Objects that are released from it meanwhile do not get it again; all others do, new ones as well.
        Returns the finalizer that an edit has removed until now.
        """
        before, self._leaving = self._leaving, finalizer
        if before != finalizer:
            self._released.clear()
        return before

    def note_release(self, notification: Notification) -> None:
        """Note an object that was released from the finalizer that leaves. Raises nothing."""
        if not self._leaving or notification.old is None:
            return
        with suppress(DeclctlError):  # the object can't be decoded
            before, after = (finalizers_of(each.read()) for each in (notification.old, notification.record))
            if self._leaving in before and self._leaving not in after:
                self._released.add(notification.record.uid)

    def has_removed(self, key: str, uid: str) -> bool:
        """Whether the finalizer was removed from an object, so that a Deleted is its end."""
        return self._removed.get(key) == uid

    def decide(
        self, call: Reconciliation, finalizer: HandlerFinalizer, obj: ObjectView, *, in_scope: bool
    ) -> None:
        """Set what a call for an object does.

        `in_scope` is False for an object that has left the namespaces or selectors of the handler. Raises
        MalformedAnswer.
        """
        target, request = reconcile_target(call.binding), call.request
        scope = CallScope(request.key, obj, request.id, request.causes)
        has_it = finalizer.name in finalizers_of(obj)
        if is_being_deleted(obj):
            call.implementations = ()
            if not has_it or self.has_removed(obj.key, obj.uid):
                return
            call.unlimited = True
            call.last = _step(
                f"removing {finalizer.name}",
                call.binding,
                lambda: None if call.failures or call.requeue else self._remove(finalizer, obj, scope),
            )
            # If only the removal has failed, the hooks are not called again for the same object.
            retry: Retry | None = call.item.retry_state
            before = None if retry is None or retry.request is None else retry.request.obj
            only_removal = retry is not None and {hook for hook, _, _ in retry.failed} == {call.last.hook}
            if not only_removal or before is None or before.uid != obj.uid:
                call.implementations = target.finalizing
        elif not in_scope:
            call.implementations = ()
        elif not has_it and obj.uid not in self._released:
            call.unlimited = True
            # A dry run stores no finalizer: there is nothing to wait for.
            call.adds = not finalizer.dry_run
            add = _step(
                f"adding {finalizer.name}",
                call.binding,
                lambda: finalizer.change(scope, adds=True),
                then=lambda written: _CACHE_LAGS if call.adds and written is None else None,
            )
            call.implementations = (add,) if call.adds else (add, *target.reconciling)

    def _remove(self, finalizer: HandlerFinalizer, obj: ObjectView, scope: CallScope) -> Future[Any]:
        removal = finalizer.change(scope, adds=False)

        def note(done: Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None and not finalizer.dry_run:
                with self._lock:
                    self.finalized += 1
                    self._removed[obj.key] = obj.uid
                    if len(self._removed) > _MOST_REMOVED:
                        del self._removed[next(iter(self._removed))]

        # Before the worker goes on: the Deleted may come at once.
        removal.add_done_callback(note)
        return removal


def reconcile_target(binding: CallBinding) -> ReconcileTarget:
    """The hooks of a reconciler."""
    target = binding.target
    if isinstance(target, ReconcileTarget):
        return target
    return ReconcileTarget(target.implementations, disabled=target.disabled)


def _step(
    what: str,
    binding: CallBinding,
    start: Callable[[], Future[Any] | None],
    *,
    then: Callable[[object], Requeue | None] = lambda _: None,
) -> Implementation:
    """A step of a call that the runtime takes, in the form of a hook. It returns `then` of its write."""

    async def awaited() -> Requeue | None:
        write = start()
        return None if write is None else then(await asyncio.wrap_future(write))

    def waited() -> Requeue | None:
        try:
            return None if (write := start()) is None else then(write.result())
        except CancelledError:
            raise WriteError("the write was cancelled, because the process ends") from None

    is_async = binding.target.all_async  # in a thread or on the handlers' loop, as the hooks
    return Implementation(what, binding.plan.name, awaited if is_async else waited, (), is_async)
