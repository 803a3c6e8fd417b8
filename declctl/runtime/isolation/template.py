"""The process that children are forked from: it imports the code of the isolated handlers of one generation.

It is started as `python -m declctl.runtime.isolation.template`, with a socket as standard input. It receives
the declaration, answers with `Loaded`, and is a `ForkServer` from then on: a child is there in milliseconds,
imports nothing, and shares the memory of the code. All children end with it.
"""

import gc
import os
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from declctl.hooks.calls import identity_text
from declctl.runtime.checking.declaration import Declaration
from declctl.runtime.checking.fork_server import NICE, ForkServer, inherit_orphans
from declctl.runtime.checking.loaded_code import load_code
from declctl.runtime.checking.preflight_pool import ORPHAN_SECONDS
from declctl.runtime.isolation.child.calls import serve
from declctl.runtime.isolation.protocol import LENGTH, Loaded, encoded


@contextmanager
def _silence() -> Generator[None]:
    """Drop what is printed in this block: the import of the code was heard before, in the parent."""
    kept = [os.dup(1), os.dup(2)]
    nothing = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nothing, number)
    try:
        yield
    finally:
        for number, each in zip((1, 2), kept, strict=True):
            os.dup2(each, number)
            os.close(each)
        os.close(nothing)


def main() -> None:
    """Import the declared code, report that, and fork children until the parent closes the socket."""
    os.nice(NICE)
    control = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    (size,) = LENGTH.unpack(control.recv(LENGTH.size, socket.MSG_WAITALL))
    asked = control.recv(size, socket.MSG_WAITALL)
    limit, declaration = msgspec.msgpack.decode(asked, type=tuple[float, Declaration])
    # The parent ends an import that takes longer; the alarm does if the parent is gone.
    signal.setitimer(signal.ITIMER_REAL, limit + ORPHAN_SECONDS)
    with _silence():
        code, faults = load_code(declaration, number=0)
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    if code is None:
        errors = [fault.message for fault in faults if fault.severity == "error"]
        control.sendall(encoded(Loaded(errors, {}, 0)))
        return
    code.share()
    hooks = {
        name: [identity_text(i) for i in target.implementations] for name, target in code.targets.items()
    }
    control.sendall(encoded(Loaded([], hooks, threading.active_count() - 1)))
    gc.collect()
    gc.disable()  # a collection would write to, and so copy, the memory that all children share
    gc.freeze()
    inherit_orphans()
    ForkServer(control, partial(serve, code=code), guards_memory=False).run()


if __name__ == "__main__":
    main()
    os.killpg(0, signal.SIGKILL)  # with this process, what the import has started
