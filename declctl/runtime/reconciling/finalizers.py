"""The finalizer of a reconciler: what a call of a key does with it.

| state of the object | what happens |
|---|---|
| it lacks the finalizer | the finalizer is added; the change that this makes leads to the first reconcile |
| it has the finalizer | `declctl_reconcile` is called |
| it has it, and is being deleted | `declctl_finalize` is called; if it succeeds, the finalizer is removed |
| it lacks it, and is being deleted | nothing: another finalizer holds it |

Adding and removing are steps of a call, as hooks are: they have its time limit, and are retried without
`maxAttempts`.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

import msgspec

from declctl.errors import DeclctlError, WriteError
from declctl.hooks.calls import Implementation, ReconcileTarget
from declctl.objects import (
    ChangeType,
    GroupVersionKind,
    Notification,
    ObjectView,
)
from declctl.runtime.handling.binding import CallBinding
from declctl.runtime.handling.context import HandlerWrites
from declctl.runtime.handling.invocation import Retry
from declctl.writes import CallScope, finalizers_of, is_being_deleted

_MOST_REMOVED = 10_000  # objects that are remembered


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

    def is_decided(self, notification: Notification) -> bool:
        """Whether an object has the finalizer, or will not get it any more. Raises MalformedAnswer."""
        obj = notification.record.read()
        gone = notification.type is ChangeType.DELETED or is_being_deleted(obj)
        return gone or self.name in finalizers_of(obj)

    def has_left(self, notification: Notification) -> bool:
        """Whether a Deleted may mean an object that is still there, with the finalizer. Raises as above."""
        if not self.may_leave or notification.type is not ChangeType.DELETED:
            return False
        return self.name in finalizers_of(notification.record.read())


class CallSteps(msgspec.Struct, frozen=True):
    """What a call does. `last` comes after the hooks, if all of them have succeeded."""

    implementations: Sequence[Implementation]
    last: Implementation | None = None
    unlimited: bool = False  # retried without `maxAttempts`; a Terminal still ends it
    adds: bool = False  # the finalizer is added


class FinalizerSteps:
    """The finalizers of one slot: decides what a call does. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all of the following
        # By key: uid of the objects that the cache may still show with it; the newest last.
        self._removed: dict[str, str] = {}
        # Keys of objects that get the finalizer: they are called when the cache shows them with it.
        self._awaited: set[str] = set()
        self._finalized = 0
        self._leaving = ""  # a finalizer that a refused edit removes; empty for none
        self._released: set[str] = set()  # uids of objects from which it was removed since

    @property
    def finalized(self) -> int:
        """The number of objects from which the finalizer was removed after `declctl_finalize`."""
        return self._finalized

    @property
    def awaited(self) -> int:
        """The number of keys that wait until the cache shows their object with the finalizer."""
        return len(self._awaited)

    def let_go(self, finalizer: str) -> str:
        """Note that a refused edit removes a finalizer; an empty one: that none is removed any more.

        Objects that are released from it meanwhile do not get it again; all others do, new ones as well.
        Returns the finalizer that an edit has removed until now.
        """
        with self._lock:
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

    def has_released(self, notification: Notification) -> bool:
        """Whether the finalizer was removed from the object of a change, so that a Deleted is its end."""
        with self._lock:
            return self._removed.get(notification.key) == notification.record.uid

    def needs_call(self, finalizer: HandlerFinalizer, notification: Notification) -> bool:
        """Whether a change of the handler's own resource leads to a call, whatever its filter says.

        True if the object has to be finalized, and if its first reconcile was waiting for this change. Raises
        MalformedAnswer.
        """
        key = notification.key
        if key in self._awaited and finalizer.is_decided(notification):
            with self._lock:
                self._awaited.discard(key)
            return True
        return notification.type is not ChangeType.DELETED and finalizer.must_finalize(notification)

    def is_due(self, finalizer: HandlerFinalizer, obj: ObjectView | None, key: str) -> bool:
        """Whether a key that was awaited is due: the cache shows its object with the finalizer, or as gone.

        Asked after the finalizer was added, as the change may have come before. Raises MalformedAnswer.
        """
        decided = obj is None or is_being_deleted(obj) or finalizer.name in finalizers_of(obj)
        with self._lock:
            if not decided or key not in self._awaited:
                return False
            self._awaited.discard(key)
            return True

    def decide(
        self,
        binding: CallBinding,
        finalizer: HandlerFinalizer,
        obj: ObjectView,
        scope: CallScope,
        retry: Retry | None,
        *,
        in_scope: bool,
        succeeds: Callable[[], bool],
    ) -> CallSteps:
        """The steps of a call for an object.

        `in_scope` is False for an object that has left the namespaces or selectors of the handler.
        `succeeds` tells the last step whether the hooks have succeeded. Raises MalformedAnswer.
        """
        target = reconcile_target(binding)
        # In a thread or on the handlers' loop, as the hooks.
        is_async = target.all_async
        has_it = finalizer.name in finalizers_of(obj)
        with self._lock:
            self._awaited.discard(obj.key)
        if is_being_deleted(obj):
            with self._lock:
                removed = self._removed.get(obj.key) == obj.uid
            if not has_it or removed:
                return CallSteps(())
            remove = _step(
                f"removing {finalizer.name}",
                binding,
                lambda: self._remove(finalizer, obj, scope) if succeeds() else None,
                is_async=is_async,
            )
            # Only the removal has failed: the hooks are not called again for the same object.
            before = None if retry is None or retry.request is None else retry.request.obj
            only_removal = retry is not None and {hook for hook, _, _ in retry.failed} == {remove.hook}
            is_same = before is not None and before.uid == obj.uid
            return CallSteps(
                () if only_removal and is_same else target.finalizing, last=remove, unlimited=True
            )
        if not in_scope:
            return CallSteps(())
        if has_it or obj.uid in self._released:
            return CallSteps(target.reconciling)
        with self._lock:
            if not finalizer.dry_run:
                self._awaited.add(obj.key)
        add = _step(
            f"adding {finalizer.name}",
            binding,
            lambda: finalizer.change(scope, adds=True),
            is_async=is_async,
        )
        # A dry run stores no finalizer, so that no change would lead to the first reconcile.
        hooks = target.reconciling if finalizer.dry_run else ()
        return CallSteps((add, *hooks), unlimited=True, adds=True)

    def forget(self, key: str) -> None:
        """Forget an object that has gone from the cache."""
        with self._lock:
            self._removed.pop(key, None)
            self._awaited.discard(key)

    def _remove(self, finalizer: HandlerFinalizer, obj: ObjectView, scope: CallScope) -> Future[Any]:
        removal = finalizer.change(scope, adds=False)

        def note(done: Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None and not finalizer.dry_run:
                with self._lock:
                    self._finalized += 1
                    self._removed[obj.key] = obj.uid
                    if len(self._removed) > _MOST_REMOVED:
                        del self._removed[next(iter(self._removed))]

        removal.add_done_callback(note)
        return removal


def reconcile_target(binding: CallBinding) -> ReconcileTarget:
    """The hooks of a reconciler."""
    target = binding.target
    if isinstance(target, ReconcileTarget):
        return target
    return ReconcileTarget(target.implementations, disabled=target.disabled)


def _step(
    what: str, binding: CallBinding, start: Callable[[], Future[Any] | None], *, is_async: bool
) -> Implementation:
    """A step of a call that the runtime takes, in the form of a hook."""

    async def awaited() -> None:
        if (future := start()) is not None:
            await asyncio.wrap_future(future)

    def waited() -> None:
        if (future := start()) is not None:
            try:
                future.result()
            except CancelledError:
                raise WriteError("the write was cancelled, because the process ends") from None

    return Implementation(what, binding.plan.name, awaited if is_async else waited, (), is_async)
