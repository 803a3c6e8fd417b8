"""The fork server of pre-flights: it has loaded declctl, forks a child for each, and runs no user code.

It is started as `python -m declctl.runtime.checking.fork_server`, with a socket as standard input. For each
child it receives two sockets. The first (talk) carries the declaration and the reports. The second (fate)
carries the request to end the child, and then its exit status. A child leads a process group, which ends with
it. All children end with the process that started the server.

`multiprocessing.forkserver` works alike, but it has no process groups, loads the main module of its user, and
exists once for the whole process.

A child gets no session of its own. Linux shares the processors among sessions first, so that it would get as
large a share as the controller, whatever its nice value.
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

from declctl.kit.memory import memory_left, share_of_memory_left

NEW = b"+"
"""The message that carries the two sockets of a new child."""

STATUS = struct.Struct("!i?Q")
"""The end of a child: its exit status (negative for a signal); whether the end was requested; and the bytes
of memory that it might take, if it was ended because it took more, else 0."""

STACK_SIGNAL = signal.SIGUSR2
"""The signal after which a child writes the stack of its import to its talk socket (`faulthandler`)."""

NICE = 5
"""The nice value of imports and isolated handlers: the controller goes first, but they go on, too."""
_PR_SET_CHILD_SUBREAPER = 36
_MOST_ROUNDS = 1000  # of killing orphans, which may fork others meanwhile
# Between two looks at the memory that is left: an import may take 2 GB a second.
_LOOK_SECONDS = 0.02
_FAILED = 70  # the exit status of a child after a fault of declctl (EX_SOFTWARE)


@dataclass(eq=False)
class _Child:
    pid: int  # also the id of its process group
    fate: socket.socket  # readable when the end is requested, or the controller is gone
    end_requested: bool = False  # the child was killed because of that
    memory: int | None = None  # bytes that it may take, by the memory limit of the container; None: no limit
    took_more: bool = False  # the child was killed because of that


class ForkServer:
    """Forks a child for each pair of sockets from `control`, until that is closed.

    A child calls `answer` with its talk socket, and ends. With `guards_memory`, children end if they leave
    too little memory to the container.
    """

    def __init__(
        self,
        control: socket.socket,
        answer: Callable[[socket.socket], None],
        *,
        guards_memory: bool = True,
    ) -> None:
        self._control = control
        self._answer = answer
        self._guards_memory = guards_memory
        self._children: dict[int, _Child] = {}
        self._others = _children_of_this_process()  # that an import has started in this process itself
        self._selector = selectors.DefaultSelector()
        # The end of a child (SIGCHLD) writes a byte into this pair, for which `select` can wait.
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)

    def run(self) -> None:
        """Serve until `control` is closed and no child is left."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only a signal with a handler interrupts select
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._control, selectors.EVENT_READ, None)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        # After the last request it waits for the last child, so that the end of the server is the end of all.
        is_open = True
        while is_open or self._children:
            is_limited = any(child.memory is not None for child in self._children.values())
            ready = self._selector.select(_LOOK_SECONDS if is_limited else None)
            if is_limited:
                self._look_at_memory()
            for key, _ in ready:
                if key.fileobj is self._control:
                    is_open = self._take_request()
                elif key.fileobj is self._woken:
                    self._reap()
                else:
                    self._end(key.data)

    def _take_request(self) -> bool:
        """Fork a child. If `control` is closed instead, end all children and return False."""
        with suppress(ConnectionError):
            request, descriptors, _, _ = socket.recv_fds(self._control, len(NEW), 2)
            if request:
                self._fork(*(blocking(socket.socket(fileno=each)) for each in descriptors))
                return True
        self._selector.unregister(self._control)
        for child in self._children.values():
            self._end(child)
        return False

    def _fork(self, talk: socket.socket, fate: socket.socket) -> None:
        try:
            pid = os.fork()
        except OSError:  # no more processes: the caller sees closed sockets
            talk.close()
            fate.close()
            return
        if not pid:
            self._be_child(talk, fate)  # which never returns
        talk.close()
        memory = share_of_memory_left() if self._guards_memory else None
        child = self._children[pid] = _Child(pid, fate, memory=memory)
        self._selector.register(fate, selectors.EVENT_READ, child)

    def _be_child(self, talk: socket.socket, fate: socket.socket) -> NoReturn:
        status = _FAILED
        try:
            # A group of its own: one signal ends the child with what the import starts.
            os.setpgid(0, 0)
            inherit_orphans()  # so that what it detaches comes to the server at its end, and not before
            self._forget(fate)
            # A crash writes the stack, too. It is written even where C code holds the interpreter lock.
            faulthandler.enable(file=talk, all_threads=False)
            faulthandler.register(STACK_SIGNAL, file=talk, all_threads=False)
            gc.enable()
            self._answer(talk)
            status = 0
        finally:
            os._exit(status)  # threads and exit functions of user code are not waited for

    def _forget(self, fate: socket.socket) -> None:
        """Close the server's sockets: otherwise their ends stay open in this child."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        others = [child.fate for child in self._children.values()]
        for each in (fate, *others, self._control, self._woken, self._wake):
            each.close()

    def _end(self, child: _Child) -> None:
        """Kill a child: its end was requested, or the controller is gone."""
        if child.pid not in self._children:
            return  # it has ended just now
        with suppress(KeyError):
            self._selector.unregister(child.fate)
        child.end_requested = True
        _kill(child.pid)

    def _look_at_memory(self) -> None:
        """Kill the children if less than a quarter of what was left when they began is left."""
        left = memory_left()
        for child in self._children.values():
            if left is not None and child.memory is not None and left < child.memory // 3:
                child.took_more = True
                _kill(child.pid)

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
        for child in list(self._children.values()):
            # WNOWAIT leaves the zombie, and with it the id of the group, until the group is killed.
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _kill(child.pid)  # the rest of its group, while no other group can get the id
            _, status = os.waitpid(child.pid, 0)
            del self._children[child.pid]
            self._end_orphans()
            with suppress(KeyError):
                self._selector.unregister(child.fate)
            with suppress(ConnectionError), child.fate:
                memory = (child.memory or 0) if child.took_more else 0
                child.fate.send(STATUS.pack(os.waitstatus_to_exitcode(status), child.end_requested, memory))

    def _end_orphans(self) -> None:
        """Kill the processes that a child which has ended has started in other groups.

        As a subreaper, this process is their parent now. Their children become its children in the next
        round. What other children have started is theirs, as each of them is a subreaper, too.
        """
        for _ in range(_MOST_ROUNDS):
            orphans = _children_of_this_process() - self._children.keys() - self._others
            if not orphans:
                return
            for pid in orphans:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def blocking(made: socket.socket) -> socket.socket:
    """The socket, which waits without a limit, whatever user code has set by `socket.setdefaulttimeout`."""
    made.settimeout(None)
    return made


def _children_of_this_process() -> set[int]:
    """The process ids; empty if the kernel lacks CONFIG_PROC_CHILDREN: then orphans are left alone."""
    with suppress(OSError, ValueError):
        return {int(pid) for pid in Path("/proc/thread-self/children").read_text().split()}
    return set()


def inherit_orphans() -> None:
    """Become a subreaper (prctl(2)): orphaned descendants become children of this process."""
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill(pid: int) -> None:
    """Kill a process group. A child that was forked just now leads no group yet, so kill it alone too."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def main() -> None:
    """Run the server: load the modules that children need, and fork children."""
    os.nice(NICE)
    control = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    from declctl.runtime.checking.preflight_child import answer

    gc.collect()
    gc.disable()  # a collection would write to, and so copy, the memory that all children share
    gc.freeze()
    inherit_orphans()
    ForkServer(control, answer).run()


if __name__ == "__main__":
    main()
