"""The child process in which a bundle is imported first: started early, asked once.

Both ends stand here. It imports nothing heavy, so that the process can be started before the
parent has loaded what it needs for its own part of a check; the two then load side by side.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

_MODULE = "declctl.runtime.aside"
_LAST_WORDS_SECONDS = 1.0  # between its last report, or the end of its output, and its exit
_EXIT_CHECK = 0.002
_NICE = 5  # where the processors are busy, events are more urgent than an edit
_ORPHAN_SECONDS = 5.0  # what a child may live on after its time limit, if nobody is there to end it


class Aside:
    """A child that waits for one declaration, builds its plugin table, and tells what is wrong with it.

    Whatever the imported code does, it does there: it may end the process, hang or crash. What it has
    started ends with it. Raises OSError if no process can be started.
    """

    def __init__(self) -> None:
        self.closed = False  # by `close`, while it was running
        self._asked = False
        self._ending = threading.RLock()
        self._child = subprocess.Popen(  # -P: modules of the current folder are the bundle's business
            [sys.executable, "-P", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def is_waiting(self) -> bool:
        """Whether it can be asked: it has not been, and it lives."""
        return not (self._asked or self.closed or self._has_exited())

    def ask(self, declaration: bytes, told: Callable[[bytes], bool], *, limit: float) -> int:
        """Give it the declaration and pass on its reports, until `told` says that it was the last; blocks.

        Returns the child's exit status, negative for a signal, as of `subprocess`. `limit` (seconds) is
        what it gives itself where nobody is left to `close` it.
        """
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None
        assert stdout is not None
        with self._ending:
            if stdin.closed:  # nobody wants it any longer
                return self._child.returncode
            self._asked = True
        with stdout:
            with suppress(BrokenPipeError), stdin:  # it ended already: its status tells
                stdin.write(b"%f\n" % (limit + _ORPHAN_SECONDS))
                stdin.write(declaration)
            for line in stdout:
                if told(line):
                    break
            self._wait_for_exit(_LAST_WORDS_SECONDS)
            self._end()
        return self._child.returncode

    def close(self) -> None:
        """End the child and everything it has started; from any thread, twice is harmless."""
        with self._ending:
            self.closed = self._end() or self.closed
            if self._asked:
                return  # whoever asks closes the pipes
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.close()

    def _end(self) -> bool:
        """Kill whoever is left of its session, and only then reap it: until then its id is nobody else's."""
        with self._ending:
            if self._child.returncode is not None:
                return False
            was_running = not self._has_exited()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            return was_running

    def _has_exited(self) -> bool:
        """Whether it is over, without reaping it."""
        if self._child.returncode is not None:
            return True
        with suppress(ChildProcessError):  # reaped by somebody else
            return os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True

    def _wait_for_exit(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self._has_exited() and time.monotonic() < deadline:
            time.sleep(_EXIT_CHECK)


def main() -> None:
    """Be the child: read a declaration from stdin, write reports to what was stdout, a line each."""
    os.nice(_NICE)
    import msgspec

    from declctl.runtime.declared import Declaration
    from declctl.runtime.foreign import build_foreign

    write = os.dup(1)
    os.dup2(2, 1)  # what the imported code prints must not be taken for a report
    limit, _, asked = sys.stdin.buffer.read().partition(b"\n")
    if not asked:
        os._exit(0)  # the parent needs it no longer, or is gone
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, float(limit))  # ends it, whatever it is at, if the parent is gone
    declaration = msgspec.json.decode(asked, type=Declaration)
    os.write(write, b"{}\n")  # from here on, what happens to it is the doing of the imported code

    def at(index: int) -> None:
        os.write(write, json.dumps({"at": index}).encode() + b"\n")

    foreign, faults = build_foreign(declaration, number=0, at=at)
    hooks = foreign.from_hooks if foreign is not None else None
    _write_all(write, msgspec.json.encode({"faults": list(faults), "hooks": hooks}) + b"\n")
    os._exit(0)  # threads and exit functions of the imported code are nobody's business any longer


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main()
