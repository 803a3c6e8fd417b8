"""How late events are while clients exceed the limits of the admin address, beside a quiet process.

    python benchmarks/admin.py [--seconds 10] [--rate 100]

`declctl run` is a process of its own, and so are the clients that attack it. Objects in a sandbox change at a
steady rate, and a handler prints how long each change has taken to arrive.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.text import Table, plain

from declctl.sandbox import SandboxThread

BAR = 2.0  # of the p99 of a quiet process
_OBJECTS = 100
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
        while not (found := _ADMIN.search("".join(self._said))):
            time.sleep(0.05)
        self.port = int(found[1])

    def run(self, name: str, attack: "Attack | None", *, seconds: float, rate: float) -> Figures:
        """Change objects for some seconds, while clients attack the admin address."""
        before, refused = self._descriptors(), self._refused()
        client = None
        if attack is not None:
            client = multiprocessing.get_context("spawn").Process(
                target=_attack, args=(attack.__name__, self.port, seconds + 2), daemon=True
            )
            client.start()
            time.sleep(2)  # until it has begun
        self._delays.clear()
        most, slowest = 0, 0.0
        begin = time.monotonic()
        for number in itertools.count():
            due = begin + number / rate
            if due > begin + seconds:
                break
            time.sleep(max(0.0, due - time.monotonic()))
            self._change(f"settings-{number % _OBJECTS}")
            if number % int(rate) == 0:
                most = max(most, self._descriptors())
                asked = time.monotonic()
                if not self._is_alive():
                    raise RuntimeError("a probe was not answered")
                slowest = max(slowest, (time.monotonic() - asked) * 1000)
        time.sleep(1)
        delays = sorted(self._delays)
        if client is not None:
            client.join()
            time.sleep(12)  # until the last slow head is closed
        left = self._descriptors() - before
        return Figures(name, delays, most, left, self._refused() - refused, round(slowest))

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

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
                    await asyncio.sleep(0.05)
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
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=100.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, SandboxThread() as sandbox:
        attacked = Attacked(Path(folder), sandbox)
        try:
            time.sleep(2)
            runs: list[tuple[str, Attack | None]] = [("quiet", None)]
            runs += [((each.__doc__ or "").strip().rstrip("."), each) for each in _ATTACKS]
            found = [
                attacked.run(name, attack, seconds=options.seconds, rate=options.rate)
                for name, attack in runs
            ]
        finally:
            attacked.close()
    quiet = found[0].quantile(0.99)
    rows = [
        (
            each.name,
            f"{len(each.delays):,}",
            f"{each.quantile(0.5):.1f} ms",
            f"{each.quantile(0.99):.1f} ms",
            f"{each.quantile(0.99) / quiet:.1f}",
            f"{each.slowest_probe} ms",
            str(each.descriptors),
            str(each.left),
            f"{each.refused:,}",
        )
        for each in found
    ]
    columns = ("", "changes", "p50", "p99", "of quiet", "slowest probe", "fds", "fds left", "refused")
    title = f"Delays of events while the admin address is attacked; the bar is {BAR:g} of quiet"
    sys.stdout.write(f"\n{plain(Table(title, columns, rows))}\n")


if __name__ == "__main__":
    main()
