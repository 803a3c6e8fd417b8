"""A reconciler that writes what it has seen into the status of its object."""

import time
from typing import Any

from counting import listen, reconciliations
from protocol import SENT

from declctl import Request, hookimpl


@hookimpl
def declctl_startup() -> None:
    """Starts the counter once in the life of the process; it survives reloads."""
    listen()


@hookimpl
async def declctl_reconcile(request: Request, ctx: Any) -> None:
    """Writes the status, and counts the change once."""
    called, obj = time.time_ns(), request.obj
    if obj is None or reconciliations.knows(request.key.name, sent := obj.annotations[SENT]):
        return
    await ctx.patch_status(seen=sent)
    reconciliations.count(request.key.name, obj, sent, called)
