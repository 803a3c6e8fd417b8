"""What an isolated call costs: the CPU of this process and of its children, beside the same call in a thread.

    python benchmarks/isolation.py [--calls 20000] [--rounds 3]

The hook does nothing, and its object has 1 KB. With one worker, each call wakes a child, and its end wakes
the worker: if two processors are idle, that is most of the cost. Two hooks that compute show what children
are for.
"""

import argparse
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog
from harness.text import Table, plain

from declctl.hooks.calls import EventTarget, Implementation, call
from declctl.manifest.model import IsolationMode, IsolationSpec
from declctl.manifest.plan import HandlerPlan
from declctl.objects import Change, ChangeReason, ChangeType, FrameCodec, Layout, ObjectView, Record
from declctl.runtime.handling.context import HandlerContext, HandlerEnvironment, Listers, Memo
from declctl.runtime.isolation.child.calls import serve
from declctl.runtime.isolation.parent.child_process import ChildProcess
from declctl.runtime.isolation.parent.children import HandlerChildren, ProcessRegistry
from declctl.runtime.isolation.protocol import Begin

Hook = Callable[[Any], None]


def nothing(obj: Any) -> None:
    """The empty hook."""


def compute(obj: Any) -> None:
    """Some milliseconds of Python."""
    sum(range(200_000 + len(obj)))


class Forks:
    """Forks children of this process, as the process that imports the code does."""

    def __init__(self, target: EventTarget) -> None:
        self._code: Any = SimpleNamespace(targets={"isolated": target}, configs={})
        self.pids: list[int] = []

    def fork(self, *_: object) -> ChildProcess:
        """A child."""
        (talk, theirs), (fate, _fate) = socket.socketpair(), socket.socketpair()
        pid = os.fork()
        if pid == 0:
            talk.close()
            serve(theirs, self._code)
            os._exit(0)
        theirs.close()
        self.pids.append(pid)
        return ChildProcess(talk, fate, parent=os.getpid())

    @property
    def cpu(self) -> float:
        """Seconds of all children."""
        return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in self.pids) / 1e9


class Bench:
    """Calls of one hook, in threads of workers: there, or in a child for each worker."""

    def __init__(self, function: Hook, workers: int, *, isolated: bool) -> None:
        # The same threads to the end: a child ends with the thread that has forked it.
        self._threads, self._workers = ThreadPoolExecutor(workers), workers
        target = EventTarget((Implementation("declctl_event", "bench", function, ("obj",), False),))
        self._forks = Forks(target)
        if isolated:
            plan = HandlerPlan(
                path=(),
                name="isolated",
                resource="maps",
                isolation=IsolationSpec(mode=IsolationMode.PROCESS),
            )
            begin = Begin("isolated", 1, ["maps"], [], False)
            template: Any = self._forks
            target: Any = HandlerChildren(plan, begin, template, ProcessRegistry()).hooks(target)
        (self._hook,) = target.implementations
        body = b'{"metadata":{"name":"web","namespace":"demo"},"data":{"a":"' + b"x" * 1000 + b'"}}'
        layout = Layout(api_version="v1", kind="ConfigMap", positions={}, codec=FrameCodec())
        self._obj = ObjectView(Record("demo/web", "u\n1", b"", (), body, layout))
        self._change = Change(
            type=ChangeType.ADDED,
            resource="maps",
            obj=self._obj,
            old=None,
            initial=True,
            final_state_unknown=False,
            reason=ChangeReason.INITIAL,
            generation=1,
            received=1.0,
        )
        none: Any = None
        self._environment = HandlerEnvironment(
            "isolated", 1, Listers({}), {}, none, structlog.get_logger(), none
        )

    def run(self, calls: int) -> tuple[float, float]:
        """Seconds of CPU, and calls a second."""
        self._all(200)  # all children are there
        began, cpu = time.perf_counter(), time.process_time() + self._forks.cpu
        self._all(calls // self._workers)
        return (
            time.process_time() + self._forks.cpu - cpu,
            calls / (time.perf_counter() - began),
        )

    def _all(self, calls: int) -> None:
        for done in [self._threads.submit(self._calls, calls) for _ in range(self._workers)]:
            done.result()

    def _calls(self, number: int) -> None:
        memo = Memo()
        for _ in range(number):
            context = HandlerContext(self._environment, lambda: memo)
            call(self._hook, {"change": self._change, "obj": self._obj, "old": None, "ctx": context})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows: list[list[str]] = []
    for workers in (1, 2, 4):
        benches = [Bench(nothing, workers, isolated=each) for each in (False, True)]
        found = [[bench.run(options.calls) for bench in benches] for _ in range(options.rounds)]
        more = statistics.median(isolated[0] - thread[0] for thread, isolated in found) / options.calls
        rate = statistics.median(isolated[1] for _, isolated in found)
        rows.append([f"{workers} worker{'s' if workers > 1 else ''}", f"{more * 1e6:.0f}", f"{rate:,.0f}"])
    pair = [Bench(compute, workers, isolated=True) for workers in (1, 2)]
    rates = [[bench.run(options.calls // 20)[1] for bench in pair] for _ in range(options.rounds)]
    one, two = (statistics.median(each) for each in zip(*rates, strict=True))
    rows.append(["two that compute, of one", "", f"{two / one:.2f} x"])
    columns = ["", "CPU µs a call, more than in a thread", "calls a second"]
    sys.stdout.write(plain(Table("isolated calls", columns, rows)) + "\n")


if __name__ == "__main__":
    main()
