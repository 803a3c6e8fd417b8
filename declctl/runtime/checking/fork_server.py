"""The process that children of pre-flights are forked from: it has loaded the host, and runs no user code.

`python -m declctl.runtime.checking.fork_server`, with a socket as standard input. For each child it is sent
two sockets: over one the child is asked and answers, over the other its end is asked for and told. A child
leads a process group; whatever it has started ends with it, and all of them end with whoever started
this process. The way of `multiprocessing.forkserver`, which knows no groups, loads the main module of
its user, and is one for the whole process.

No child has a session of its own: Linux shares out processors by sessions first, and one of its own would
have as large a share as the controller, however nice it is.
"""

import faulthandler
import gc
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

NEW = b"+"
"""What is sent with the two sockets of a new child."""

STATUS = struct.Struct("!i?")
"""How a child has ended: its exit status, negative for a signal, and whether that was asked for."""

STACK_SIGNAL = signal.SIGUSR2
"""What makes a child write the stack of its import into its talk socket, as `faulthandler` formats it."""

_NICE = 5  # the server and its children leave the processors to the controller, but never wait for ever
_PR_SET_CHILD_SUBREAPER = 36
_MOST_ROUNDS = 1000  # of ending orphans, each of which may fork others meanwhile
_FAILED = 70  # the exit status of a child that failed for a reason of ours (EX_SOFTWARE)


@dataclass(eq=False)
class _Child:
    pid: int  # also the id of its process group
    fate: socket.socket  # readable once its end is asked for, or the controller is gone
    unwanted: bool = False  # it was killed because of that


class ForkServer:
    """Forks a child for each pair of sockets that comes over `control`, until that is closed.

    `answer` is what a child does with the first of them.
    """

    def __init__(self, control: socket.socket, answer: Callable[[socket.socket], None]) -> None:
        self._control = control
        self._answer = answer
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        # A child's end (SIGCHLD) writes a byte into this pair, which `select` can wait for.
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)

    def run(self) -> None:
        """Serve; when it returns, no child is left."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # select is interrupted only where there is a handler
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._control, selectors.EVENT_READ, None)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        # Without new orders it stays until the last child is reaped, so that its end means their end.
        wanted = True
        while wanted or self._children:
            for key, _ in self._selector.select():
                if key.fileobj is self._control:
                    wanted = self._take_order()
                elif key.fileobj is self._woken:
                    self._reap()
                else:
                    self._end(key.data)

    def _take_order(self) -> bool:
        """Fork a child; False if there will be no more, and then those that there are come to their end."""
        with suppress(ConnectionError):
            order, descriptors, _, _ = socket.recv_fds(self._control, len(NEW), 2)
            if order:
                self._fork(*(socket.socket(fileno=each) for each in descriptors))
                return True
        self._selector.unregister(self._control)
        for child in self._children.values():
            self._end(child)
        return False

    def _fork(self, talk: socket.socket, fate: socket.socket) -> None:
        try:
            pid = os.fork()
        except OSError:  # no more processes: whoever asked sees that nothing has begun
            talk.close()
            fate.close()
            return
        if not pid:
            self._be_child(talk, fate)  # which never returns
        talk.close()
        child = self._children[pid] = _Child(pid, fate)
        self._selector.register(fate, selectors.EVENT_READ, child)

    def _be_child(self, talk: socket.socket, fate: socket.socket) -> NoReturn:
        status = _FAILED
        try:
            # A group of its own: one signal ends the child with what the import starts.
            os.setpgid(0, 0)
            self._forget(fate)
            # A crash writes the stack, too. It is written even where C code holds the interpreter lock.
            faulthandler.enable(file=talk, all_threads=False)
            faulthandler.register(STACK_SIGNAL, file=talk, all_threads=False)
            gc.enable()
            self._answer(talk)
            status = 0
        finally:
            os._exit(status)  # threads and exit functions of user code are nobody's business any longer

    def _forget(self, fate: socket.socket) -> None:
        """What belongs to the server is closed, so that its end can be seen."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        others = [child.fate for child in self._children.values()]
        for each in (fate, *others, self._control, self._woken, self._wake):
            each.close()

    def _end(self, child: _Child) -> None:
        """Somebody has asked for it, or nobody is there any longer."""
        if child.pid not in self._children:
            return  # it has ended in this very moment
        with suppress(KeyError):
            self._selector.unregister(child.fate)
        child.unwanted = True
        _kill(child.pid)

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
        for child in list(self._children.values()):
            # WNOWAIT leaves the zombie, and with it the id of the group, until the group is killed.
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _kill(child.pid)  # whoever is left of its group, while the id is nobody else's
            _, status = os.waitpid(child.pid, 0)
            del self._children[child.pid]
            self._end_orphans()
            with suppress(KeyError):
                self._selector.unregister(child.fate)
            with suppress(ConnectionError), child.fate:
                child.fate.send(STATUS.pack(os.waitstatus_to_exitcode(status), child.unwanted))

    def _end_orphans(self) -> None:
        """End what an import has started in groups of its own: as a subreaper this process inherits it.

        Each that ends may leave children of its own. An import that goes on beside this one loses what it has
        cut loose, and nothing else.
        """
        for _ in range(_MOST_ROUNDS):
            orphans = _children_of_this_process() - self._children.keys()
            if not orphans:
                return
            for pid in orphans:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def _children_of_this_process() -> set[int]:
    """None where the system does not tell (CONFIG_PROC_CHILDREN): then orphans are left to it."""
    with suppress(OSError, ValueError):
        return {int(pid) for pid in Path("/proc/thread-self/children").read_text().split()}
    return set()


def _inherit_orphans() -> None:
    """Become a subreaper (prctl(2)): what descendants of a child cut loose becomes its child."""
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill(pid: int) -> None:
    """A child that has been forked this moment leads no group yet, and has started nothing."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def main() -> None:
    """Be the server: load what children need, and fork them."""
    os.nice(_NICE)
    control = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    from declctl.runtime.checking.preflight_child import answer

    gc.collect()
    gc.disable()  # a collection would touch, and so copy, what all share
    gc.freeze()
    _inherit_orphans()
    ForkServer(control, answer).run()


if __name__ == "__main__":
    main()
