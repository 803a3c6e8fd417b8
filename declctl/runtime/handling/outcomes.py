"""Outcomes: how an invocation may end. `Invocations.end` is the one place that acts on them.

    no hook is called ──┬── NotCalled      a filter, or nothing to call          ── the item leaves the queue
                        └── Suspended      the plugin is not called for a while  ── back in the queue

    hooks are called ───┬── Succeeded      all have returned                     ── the item leaves the queue
                        ├── Failed         one has raised, or took too long      ── back, or given up
                        ├── Gone           the object is gone that they need     ── the item leaves the queue
                        └── Unsynced       a cache that they read is not filled  ── back, no attempt

    cut off ────────────┬── Interrupted    by a fault of declctl itself          ── back, no limit
                        └── LoopEnded      the loop of an `async def` has ended  ── back, no attempt

An invocation that takes longer than its `timeout` is counted as failed at that moment, and a call that can't
be cancelled is not waited for any longer. That is no end: it has one of these outcomes when it returns, which
is then never Succeeded.
"""

from typing import ClassVar

import msgspec

from declctl.runtime.handling.failures import failure_type
from declctl.runtime.handling.tap import TapOutcome


class InvocationOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What all outcomes have in common."""

    # Whether the hooks came to an end, so that duration and lag of the call count.
    is_timed: ClassVar[bool] = False
    shown_as: ClassVar[TapOutcome]  # the word of `declctl tap` for it, unless its fields decide

    error: str = ""  # why the handler has not succeeded, in a sentence; empty if there is nothing to say
    retry_in: float | None = None  # seconds until the item is handed out again; None: it leaves the queue
    fault: BaseException | None = None  # the exception behind `error`, if there is one

    @property
    def error_type(self) -> str:
        """The class of what has been raised; empty if nothing has."""
        return "" if self.fault is None else failure_type(self.fault)

    @property
    def tapped(self) -> TapOutcome:
        """The word of `declctl tap` for it."""
        return self.shown_as


class Succeeded(InvocationOutcome, frozen=True, kw_only=True):
    """All hooks have returned."""

    is_timed: ClassVar[bool] = True
    shown_as: ClassVar[TapOutcome] = TapOutcome.SUCCEEDED


class NotCalled(InvocationOutcome, frozen=True, kw_only=True):
    """No hook had to be called."""

    shown_as: ClassVar[TapOutcome] = TapOutcome.FILTERED
    is_disabled: bool = False  # the plugin of the handler could not be loaded: the item counts as dropped
    has_left: bool = False  # another process handles its shard by now: the item counts as dropped
    is_invalid: bool = False  # the object does not fit the class of its resource


class Suspended(InvocationOutcome, frozen=True, kw_only=True):
    """The circuit breaker of the plugin has refused the call. It is no attempt, and no failure.

    `retry_in` is None if the handler was removed meanwhile: the item counts as dropped.
    """

    shown_as: ClassVar[TapOutcome] = TapOutcome.WAITING
    error: str = "its plugin is suspended"


class Unsynced(InvocationOutcome, frozen=True, kw_only=True):
    """The hooks have read a cache that has not synced. It is no attempt.

    `retry_in` is None if the handler was removed meanwhile: the item counts as dropped.
    """

    is_timed: ClassVar[bool] = True
    shown_as: ClassVar[TapOutcome] = TapOutcome.WAITING


class Gone(InvocationOutcome, frozen=True, kw_only=True):
    """The hooks have read or written their object, which is gone: no attempt can succeed."""

    is_timed: ClassVar[bool] = True
    shown_as: ClassVar[TapOutcome] = TapOutcome.GONE


class Failed(InvocationOutcome, frozen=True, kw_only=True):
    """A hook has raised, or the call took longer than its `timeout`. `retry_in` is None if it is given up."""

    is_timed: ClassVar[bool] = True
    attempt: int  # from 1
    is_terminal: bool = False  # the reconciler has raised Terminal: a decision about one object
    is_conflict: bool = False  # it is called again, as others have written what it has written
    becomes_letter: bool = False  # it is given up, and kept as a dead letter

    @property
    def tapped(self) -> TapOutcome:
        """Retried, or one of the two ways of giving up."""
        if self.retry_in is not None:
            return TapOutcome.RETRIED
        return TapOutcome.DEAD_LETTER if self.becomes_letter else TapOutcome.FAILED


class Interrupted(InvocationOutcome, frozen=True, kw_only=True):
    """A fault of declctl itself has ended the call. The handler has not failed, so there is no limit."""

    @property
    def tapped(self) -> TapOutcome:
        """Retried, unless the handler was removed meanwhile."""
        return TapOutcome.FAILED if self.retry_in is None else TapOutcome.RETRIED


class LoopEnded(InvocationOutcome, frozen=True, kw_only=True):
    """The worker was cancelled amid the call, because its loop ends. It is no attempt."""

    shown_as: ClassVar[TapOutcome] = TapOutcome.WAITING


SUCCEEDED, FILTERED = Succeeded(), NotCalled()  # each stands for thousands of changes a second
INVALID, HAS_LEFT = NotCalled(is_invalid=True), NotCalled(has_left=True)


def ran_longer_than(timeout: float) -> str:
    """The message of a call that has exceeded its timeout, in seconds."""
    return f"it ran longer than its timeout of {timeout:g} s"
