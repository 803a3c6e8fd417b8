"""One call of a reconciler for a key: why the key is due, what is called, and what it has returned."""

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from declctl.errors import DeclctlError, HandlerFailed
from declctl.hooks.calls import Implementation
from declctl.objects import Cause, ObjectView, Request, Requeue, view_as
from declctl.objects.record import revision_of
from declctl.runtime.handling.invocation import Invocation, MemoOf, ReportOf, Retry
from declctl.runtime.handling.tap import SECRET, TapSubject
from declctl.runtime.tracing import TracedCall
from declctl.workqueue import Reasons
from declctl.writes import CallScope


class Reconciliation(Invocation[Reasons], eq=False, kw_only=True):
    """One call of a reconciler for a key."""

    request: Request
    last: Implementation | None = None  # called after the hooks: removes the finalizer if they have succeeded
    unlimited: bool = False  # retried without `maxAttempts`; a Terminal still ends it
    adds: bool = False  # it adds the finalizer; the hooks are called later
    requeue: Requeue | None = None  # the earliest that the hooks have returned

    @property
    def subject(self) -> str:
        """The key, and why it is due."""
        causes = self.request.causes
        more = f" and {len(causes) - 1} more" if len(causes) > 1 else ""
        return f"{self.request.key}" + (f", because of {causes[0]}{more}" if causes else "")

    @property
    def event_id(self) -> str:
        """That of the request."""
        return self.request.id

    @property
    def uid(self) -> str:
        """That of the object that the call has received."""
        return "" if self.request.obj is None else self.request.obj.uid

    @property
    def asked_for(self) -> float | None:
        """The seconds of the Requeue that it has returned."""
        return None if self.requeue is None else self.requeue.after

    @property
    def revision(self) -> str:
        """That of the object of the request."""
        obj = self.request.obj
        return "" if obj is None else revision_of(obj.uid, obj.resource_version)

    def traced(self) -> TracedCall:
        """What the span of the call says."""
        request, binding = self.request, self.binding
        return TracedCall(
            binding.plan.name,
            binding.generation,
            binding.plan.resource,
            request.id,
            request.attempt,
            binding.object_kind,
            request.namespace,
            request.name,
            self.uid,
            causes=tuple(map(str, request.causes)),
            waited=self.lag or 0.0,
        )

    def events(self) -> Sequence[str]:
        """The ids of changes that have led to the key, which are noted while there are traces."""
        return self.item.value.events

    def content(self, state: Retry) -> tuple[Cause, ...]:  # noqa: ARG002 - the next call reads the newest state
        """Why the key was due."""
        return self.request.causes

    def tap_subject(self) -> TapSubject:
        """Why the key is due; of its object, only whether it is a Secret, also of one that is gone."""
        hidden = self.binding.object_kind == SECRET
        return TapSubject("Reconcile", causes=self.request.causes, is_secret=hidden)

    @property
    def most_attempts(self) -> int | None:
        """As of any item; None for what is done because of a finalizer."""
        return None if self.unlimited else super().most_attempts

    def select(self, report: ReportOf) -> bool:  # noqa: ARG002 - for other modes
        """Decide which hooks are called: a key is not filtered, the changes that lead to it are.

        False for a reconciler without code, and for an object that is being deleted without the finalizer of
        the handler.
        """
        if self.last is not None:
            self.implementations = (*self.implementations, self.last)
        return bool(self.implementations or self.failures)

    def can_not_read(self, fault: DeclctlError) -> None:
        """Call nothing, because the object can't be read: its cache has not synced, for example."""
        self.failures.append(fault)
        self.implementations = ()

    def take_snapshots(self) -> None:
        """No effect: `Reconciliations` has taken them before it has read the object of the request."""

    def arguments(self, implementation: Implementation, memo: MemoOf) -> Mapping[str, object]:
        """The request, and the context."""
        arguments: dict[str, object] = {"request": self.request}
        if "ctx" in implementation.parameters:
            request, obj = self.request, self.request.obj
            remember = partial(memo, request.key, None if obj is None else obj.uid)
            arguments["ctx"] = self.binding.make_context(remember, self.call_scope(), self.snapshots)
        return arguments

    @property
    def fitting(self) -> ObjectView | None:
        """The object of the request."""
        return self.request.obj

    def call_scope(self) -> CallScope:
        """The object of the request."""
        request = self.request
        return CallScope(request.key, request.obj, request.id, request.causes)

    def only(self, *steps: Implementation) -> None:
        """As of any item; no finalizer is added to an object that is not handled."""
        super().only(*steps)
        self.adds = self.unlimited = False

    def take(self, result: object) -> None:
        """Receive what a reconciler has returned; raises HandlerFailed unless it is None or a Requeue."""
        if isinstance(result, Requeue):
            if self.requeue is None or result.after < self.requeue.after:
                self.requeue = result
        elif result is not None:
            hook = "declctl_reconcile" if self.last is None else "declctl_finalize"
            raise HandlerFailed(
                f"{hook} returned a {type(result).__name__}: return None or Requeue(after=seconds); "
                "ctx.patch_status writes the status"
            )

    def retry_state(self, first_failed: int | None, waits: int, *, is_unsynced: bool) -> Retry:
        """As of any item, with the request: its `id` is that of the next attempt."""
        state, obj = super().retry_state(first_failed, waits, is_unsynced=is_unsynced), self.request.obj
        # A class of the user would keep the code of its generation in memory until the next attempt.
        plain = None if obj is None else view_as(obj, ObjectView)
        return state._replace(request=replace(self.request, obj=plain, previous=None))
