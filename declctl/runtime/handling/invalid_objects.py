"""Objects that do not fit the class of their resource (`onInvalid`): they reach no hook.

| `onInvalid` | what happens with such an object |
|---|---|
| `Condition` | its status says it (`SpecValid`: False), and a Kubernetes Event; once for each fault |
| `Skip` | nothing |
| `Call` | the hooks are called, and reading the field raises InvalidObject |

The condition is a step of the call, as hooks are, with its time limit and its retries. It is True again
before the first call for a state that fits. An object that is being deleted is always handled: its finalizer
would hold it otherwise.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Final, cast

from declctl.errors import DeclctlError, InvalidObject, WriteError
from declctl.hooks.calls import Implementation
from declctl.manifest.model import OnInvalid
from declctl.objects import Condition, ObjectView
from declctl.objects.typed import require_fit
from declctl.writes import CallScope, Written, is_being_deleted

if TYPE_CHECKING:  # for annotations alone
    from declctl.runtime.handling.binding import CallBinding
    from declctl.runtime.handling.context import Context
    from declctl.runtime.handling.invocation import Invocation

CONDITION: Final = "SpecValid"
"""The condition in the status of an object whose handler has `onInvalid: Condition`."""

_STEP: Final = "the condition SpecValid"
_DOES_NOT_FIT, _FITS = "DoesNotFit", "Fits"


def judge(invocation: "Invocation[Any]") -> None:
    """Decide by `onInvalid` what is called for a typed object that does not fit, or did not fit before."""
    binding, obj = invocation.binding, invocation.fitting
    policy = binding.plan.on_invalid
    if policy is OnInvalid.CALL or invocation.failures:
        return
    invocation.misfit = misfit = misfit_of(obj)
    if misfit is not None:
        says = policy is OnInvalid.CONDITION
        invocation.only(*([condition_step(binding, invocation.call_scope(), misfit)] if says else ()))
    elif policy is OnInvalid.CONDITION and invocation.implementations and says_invalid(obj):
        step = condition_step(binding, invocation.call_scope(), None)
        invocation.implementations = (step, *invocation.implementations)


def misfit_of(obj: ObjectView | None) -> InvalidObject | None:
    """What is wrong with an object, if that keeps its hooks from being called."""
    if obj is None:
        return None
    try:
        require_fit(obj)
    except InvalidObject as fault:
        try:
            return None if is_being_deleted(obj) else fault
        except DeclctlError:
            return None
    except DeclctlError:
        return None  # it can't be decoded: the hook's own read says it
    return None


def says_invalid(obj: ObjectView | None) -> bool:
    """Whether the status of an object has the condition, and it is not True."""
    status = None if obj is None else obj.get("status")
    found = cast("Mapping[str, Any]", status).get("conditions") if isinstance(status, Mapping) else None
    conditions = cast("Sequence[Any]", found) if isinstance(found, list) else ()
    return any(
        isinstance(each, Mapping) and each.get("type") == CONDITION and each.get("status") != "True"
        for each in conditions
    )


def condition_step(binding: "CallBinding", scope: CallScope, fault: InvalidObject | None) -> Implementation:
    """A step of a call that writes the condition, in the form of a hook; None: the object fits."""
    context = cast("Context", binding.make_context(dict[str, Any], scope, None))
    condition = (
        Condition(type=CONDITION, status="True", reason=_FITS)
        if fault is None
        else Condition(
            type=CONDITION, status="False", reason=_DOES_NOT_FIT, message=f"{fault.path}: {fault.sentence}"
        )
    )

    def start() -> Future[Written]:
        calls = context.for_other_process()
        return calls.submit(lambda writes: writes.patch_status([condition], {}, False))

    def record(written: Written) -> None:
        if fault is not None and written.changed and scope.obj is not None:
            message = f"{fault.path}: {fault.sentence}"
            context.record_event(scope.obj, _DOES_NOT_FIT, message, type="Warning", action="Read")

    async def awaited() -> None:
        record(await asyncio.wrap_future(start()))

    def waited() -> None:
        try:
            record(start().result())
        except CancelledError:
            raise WriteError("the write was cancelled, because the process ends") from None

    is_async = binding.target.all_async  # in a thread or on the handlers' loop, as the hooks
    function: Callable[[], Any] = awaited if is_async else waited
    return Implementation(_STEP, binding.plan.name, function, (), is_async)
