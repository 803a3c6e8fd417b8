"""A reconciler that reads its object and has nothing to do."""

import time

from counting import listen, reconciliations
from protocol import SENT

from declctl import Request, hookimpl


@hookimpl
def declctl_startup() -> None:
    """Starts the counter once in the life of the process; it survives reloads."""
    listen()


@hookimpl
async def declctl_reconcile(request: Request) -> None:
    """Counts a change once."""
    called, obj = time.time_ns(), request.obj
    if obj is not None and not reconciliations.knows(request.key.name, sent := obj.annotations[SENT]):
        reconciliations.count(request.key.name, obj, sent, called)
