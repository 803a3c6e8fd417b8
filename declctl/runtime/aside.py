"""The child process in which a bundle is imported first: started early, asked once.

Both ends stand here. It imports nothing heavy, so that the process can be started before the
parent has loaded what it needs for its own part of a check; the two then load side by side.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

_MODULE = "declctl.runtime.aside"


class Aside:
    """A child that waits for one declaration, builds its plugin table, and tells what is wrong with it.

    Whatever the imported code does, it does there: it may end the process, hang or crash.
    """

    def __init__(self) -> None:
        self.closed = False  # by `close`, while it was running
        self._child = subprocess.Popen(  # -P: modules of the current folder are the bundle's business
            [sys.executable, "-P", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def ask(self, declaration: bytes, told: Callable[[bytes], bool]) -> int:
        """Give it the declaration and pass on its reports, until `told` says that it was the last; blocks.

        Returns the child's exit status, negative for a signal, as of `subprocess`.
        """
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None
        assert stdout is not None
        with suppress(BrokenPipeError):  # it ended already: its status tells
            stdin.write(declaration)
            stdin.close()
        for line in stdout:
            if told(line):
                break
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(1.0)
        self._end()
        return self._child.returncode

    def close(self) -> None:
        """End the child and everything it has started; from any thread, twice is harmless."""
        self.closed = self._end() or self.closed

    def _end(self) -> bool:
        if self._child.poll() is not None:
            return False
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        return True


def main() -> None:
    """Be the child: read a declaration from stdin, write reports to what was stdout, a line each."""
    import msgspec

    from declctl.runtime.declared import Declaration
    from declctl.runtime.foreign import build_foreign

    write = os.dup(1)
    os.dup2(2, 1)  # what the imported code prints must not be taken for a report
    declaration = msgspec.json.decode(sys.stdin.buffer.read(), type=Declaration)

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
