"""What a child of a pre-flight does: it imports what is declared, and tells what is wrong with it.

The fork server loads this module, and with it all that a child needs.
"""

import os
import signal
import socket

import msgspec

from declctl.runtime.checking.declared import Declaration
from declctl.runtime.checking.foreign import build_foreign


def answer(talk: socket.socket) -> None:
    """Read a time limit and a declaration, build its plugin table, and write reports, a line each.

    Without a declaration nobody wants to know. The limit (seconds) ends the process, whatever it is at.
    """
    with talk.makefile("rb") as asked:
        limit, declared = asked.readline(), asked.read()
    if not declared:
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, float(limit))
    declaration = msgspec.json.decode(declared, type=Declaration)
    # From here on, what happens to it is the doing of the imported code.
    talk.sendall(msgspec.json.encode({"pid": os.getpid()}) + b"\n")

    def at(index: int) -> None:
        talk.sendall(msgspec.json.encode({"at": index}) + b"\n")

    foreign, faults = build_foreign(declaration, number=0, at=at)
    hooks = foreign.from_hooks if foreign is not None else None
    talk.sendall(msgspec.json.encode({"faults": list(faults), "hooks": hooks}) + b"\n")
