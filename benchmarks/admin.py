"""How late events are while clients exceed the limits of the admin address, beside a quiet process.

    python benchmarks/admin.py [--seconds 10] [--rate 100]

`declctl run` is a process of its own, and so are the clients that attack it. Objects in a sandbox change at a
steady rate, and a handler prints how long each change has taken to arrive. The first line says how long the
whole run takes at most, and each row is printed when its run has ended.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from declctl.sandbox import SandboxThread

_ELSEWHERE = "All of it at once, at another process"
BAR = 2.0  # of the p99 of a quiet process
_OBJECTS = 100
_START_SECONDS = 30.0  # until the process has to serve its admin address
SETTLE_SECONDS = 2.0  # before the first run, and from the start of a client until it attacks
_LAST_DELAYS_SECONDS = 1.0  # after the last change, until its delay has been printed
_CLIENT_SECONDS = 10.0  # until a client has ended after its time
_CLOSING_SECONDS = 12.0  # until the connections of a client are closed: 10 for a slow head, and a sweep
_MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: attacked}
spec:
  reload: {watch: "Off"}
  resources: [{name: settings, apiVersion: v1, kind: ConfigMap}]
  handlers: [{name: measure, resourceRef: {name: settings}, entryPoint: "handlers:measure"}]
"""
_HANDLERS = """\
import time


def measure(change):
    sent = change.obj.annotations.get("bench/sent")
    if sent:
        print("delay", time.time_ns() - int(sent), flush=True)
"""
_ADMIN = re.compile(r"admin address http://127\.0\.0\.1:(\d+)")


class Figures(NamedTuple):
    """What one attack has led to."""

    name: str
    delays: Sequence[float]  # in ms, the shortest first
    descriptors: int  # of the process, at most
    left: int  # descriptors after it, above those before
    refused: int
    slowest_probe: int  # of those that were sent while it lasted, in ms

    def quantile(self, part: float) -> float:
        """The delay that this part of the changes does not exceed, in ms."""
        return self.delays[min(len(self.delays) - 1, int(part * len(self.delays)))]


class Attacked:
    """A process that watches a sandbox, and the delays that its handler has printed."""

    def __init__(self, folder: Path, sandbox: SandboxThread) -> None:
        (folder / "manifest.yaml").write_text(_MANIFEST)
        (folder / "handlers.py").write_text(_HANDLERS)
        (folder / "kubeconfig").write_text(json.dumps(sandbox.kubeconfig()))
        arguments = ["--kubeconfig", str(folder / "kubeconfig"), "--admin", "127.0.0.1:0"]
        self._sandbox = sandbox
        self._process = subprocess.Popen(
            [sys.executable, "-m", "declctl", "run", str(folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._delays: list[float] = []
        self._said: list[str] = []
        for read in (self._read_delays, self._read_log):
            threading.Thread(target=read, daemon=True).start()
        self.port = self._port()

    def run(
        self, name: str, attack: "Attack | None", *, at: "Attacked", seconds: float, rate: float
    ) -> Figures:
        """Change objects for some seconds, while clients attack the admin address of a process."""
        before, refused = self._descriptors(), self._refused()
        client = None
        if attack is not None:
            client = multiprocessing.get_context("spawn").Process(
                target=_attack, args=(attack.__name__, at.port, seconds + SETTLE_SECONDS), daemon=True
            )
            client.start()
            time.sleep(SETTLE_SECONDS)
        self._delays.clear()
        most, slowest = 0, 0.0
        begin = time.monotonic()
        for number in itertools.count():
            # At no beat that the clients have, too.
            due = begin + (number + random.random()) / rate
            if number > seconds * rate:
                break
            time.sleep(max(0.0, due - time.monotonic()))
            self._change(f"settings-{number % _OBJECTS}")
            if number % int(rate) == 0:
                most = max(most, self._descriptors())
                asked = time.monotonic()
                if not self._is_alive():
                    raise RuntimeError("a probe was not answered")
                slowest = max(slowest, (time.monotonic() - asked) * 1000)
        time.sleep(_LAST_DELAYS_SECONDS)
        delays = sorted(self._delays)
        if not delays:
            raise RuntimeError(f"{name}: no change has arrived")
        if client is not None:
            client.join(_CLIENT_SECONDS)
            if client.is_alive():  # its loop may be busy with its own connections
                client.kill()
                client.join()
            self._wait_for_descriptors(before)
        left = self._descriptors() - before
        return Figures(name, delays, most, left, self._refused() - refused, round(slowest))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _port(self) -> int:
        """The port of the admin address. Raises RuntimeError, with the log, if there is none in time."""
        deadline = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            found = _ADMIN.search("".join(self._said))
            if found:
                return int(found[1])
            time.sleep(0.05)
        self.__exit__()
        raise RuntimeError(f"the process serves no admin address; its log: {''.join(self._said)}")

    def _wait_for_descriptors(self, before: int) -> None:
        """Wait until the connections of a client are closed, for _CLOSING_SECONDS at most."""
        deadline = time.monotonic() + _CLOSING_SECONDS
        while self._descriptors() > before and time.monotonic() < deadline:
            time.sleep(0.1)

    def _change(self, name: str) -> None:
        annotations = {"bench/sent": str(time.time_ns())}
        metadata = {"name": name, "namespace": "default", "annotations": annotations}
        self._sandbox.load([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}])

    def _descriptors(self) -> int:
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def _refused(self) -> int:
        text = asyncio.run(_answer(self.port, b"GET /metrics HTTP/1.1")).decode()
        return int(sum(float(each) for each in re.findall(r"declctl_admin_refused_total\{.*\} (\S+)", text)))

    def _is_alive(self) -> bool:
        return b" 200 " in asyncio.run(_answer(self.port, b"GET /healthz HTTP/1.1"))[:20]

    def _read_delays(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            _, _, delay = line.partition("delay ")
            if delay:
                self._delays.append(int(delay) / 1e6)

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)


async def _answer(port: int, head: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head + b"\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % port)
    try:
        async with asyncio.timeout(30):
            return await reader.read()
    finally:
        writer.close()


async def idle(port: int) -> None:
    """1,000 connections that say nothing, and are opened again once they are closed."""

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                await reader.read()
                writer.close()
            await asyncio.sleep(5)

    await asyncio.gather(*(one() for _ in range(1000)))


async def slow_heads(port: int) -> None:
    """60 heads that arrive a byte at a time."""

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                for byte in b"GET /status HTTP/1.1\r\nX: " + b"x" * 1000:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(random.uniform(0.0, 0.1))  # clients have no common beat
            await asyncio.sleep(0.1)

    await asyncio.gather(*(one() for _ in range(60)))


async def large_bodies(port: int) -> None:
    """Bodies of 10 MB, 20 a second."""
    body = b"x" * 10_000_000
    head = b"POST /-/requeue HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: %d\r\n\r\n" % (port, len(body))

    async def one() -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + body)
            await reader.read(65536)
            writer.close()

    await _at_a_rate(20, one)


async def requests(port: int) -> None:
    """500 requests a second for the status."""

    async def one() -> None:
        with contextlib.suppress(OSError, TimeoutError):
            await _answer(port, b"GET /status HTTP/1.1")

    await _at_a_rate(500, one)


async def everything(port: int) -> None:
    """All of it at once."""
    await asyncio.gather(*(attack(port) for attack in (idle, slow_heads, large_bodies, requests)))


Attack = Callable[[int], Awaitable[None]]
_ATTACKS: Sequence[Attack] = (idle, slow_heads, large_bodies, requests, everything)


async def _at_a_rate(rate: float, one: Callable[[], Awaitable[None]]) -> None:
    begin, running = time.monotonic(), set[asyncio.Task[None]]()
    for number in itertools.count():
        await asyncio.sleep(max(0.0, begin + number / rate - time.monotonic()))
        if len(running) < 400:  # a client has no more connections
            task = asyncio.ensure_future(one())
            running.add(task)
            task.add_done_callback(running.discard)


def _attack(name: str, port: int, seconds: float) -> None:
    os.nice(5)  # the clients are to use what is left of the machine, not to take the time of the process

    async def run() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await next(each for each in _ATTACKS if each.__name__ == name)(port)

    asyncio.run(run())


def main() -> None:
    """Measure, and print each row when its run has ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=100.0)
    options = parser.parse_args()
    runs: list[tuple[str, Attack | None]] = [("quiet", None)]
    runs += [((each.__doc__ or "").strip().rstrip("."), each) for each in _ATTACKS]
    runs.append((_ELSEWHERE, everything))
    rows = _Rows([name for name, _ in runs])
    longest = longest_seconds(options.seconds)
    _say(f"{len(runs)} runs of {options.seconds:g} s: {longest:.0f} s at most; the bar is {BAR:g} of quiet")
    _say(rows.head())
    quiet: Figures | None = None
    with ExitStack() as stack:
        sandbox = stack.enter_context(SandboxThread())
        folders = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2)]
        attacked, other = (stack.enter_context(Attacked(Path(each), sandbox)) for each in folders)
        time.sleep(SETTLE_SECONDS)
        for name, attack in runs:
            at = other if name == _ELSEWHERE else attacked
            found = attacked.run(name, attack, at=at, seconds=options.seconds, rate=options.rate)
            quiet = quiet or found
            _say(rows.row(found, quiet=quiet))


def longest_seconds(seconds: float) -> float:
    """How long the whole benchmark takes at most, with runs of so many seconds."""
    run = seconds + _LAST_DELAYS_SECONDS
    attack = SETTLE_SECONDS + run + _CLIENT_SECONDS + _CLOSING_SECONDS
    return _START_SECONDS + SETTLE_SECONDS + run + (len(_ATTACKS) + 1) * attack


class _Rows:
    """Lines of a table whose rows come one by one."""

    _COLUMNS = ("changes", "p50", "p99", "of quiet", "slowest probe", "fds", "fds left", "refused")

    def __init__(self, names: Sequence[str]) -> None:
        self._first = max(map(len, names))  # characters of the first column

    def head(self) -> str:
        return self._line("", self._COLUMNS)

    def row(self, each: Figures, *, quiet: Figures) -> str:
        cells = (
            f"{len(each.delays):,}",
            f"{each.quantile(0.5):.1f} ms",
            f"{each.quantile(0.99):.1f} ms",
            f"{each.quantile(0.99) / quiet.quantile(0.99):.1f}",
            f"{each.slowest_probe} ms",
            str(each.descriptors),
            str(each.left),
            f"{each.refused:,}",
        )
        return self._line(each.name, cells)

    def _line(self, name: str, cells: Sequence[str]) -> str:
        widths = (max(len(column), 9) for column in self._COLUMNS)
        return "  ".join([name.ljust(self._first), *(c.rjust(w) for c, w in zip(cells, widths, strict=True))])


def _say(line: str) -> None:
    sys.stdout.write(f"{line.rstrip()}\n")
    sys.stdout.flush()  # also into a pipe, as a run takes minutes


if __name__ == "__main__":
    main()
