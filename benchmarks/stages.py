"""The CPU time of each stage of an event, measured alone.

    python benchmarks/stages.py [--objects 4000] [--markdown]

The events come over TLS from the benchmark server (`server/`). Each figure is the least of some repetitions,
as other work of the machine only adds time. The sum of the figures is not exactly the figure of the whole
process, in which the stages share the caches of the processor.
"""

import argparse
import asyncio
import base64
import contextlib
import re
import socket
import ssl
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml
import zstandard
from harness.building import BENCHMARKS, go
from harness.server import Server

from declctl import Client
from declctl.decoding import Projection
from declctl.decoding.decoders import PartialDecoder
from declctl.hooks.calls import EventTarget, Implementation
from declctl.informer.applier import Applier
from declctl.informer.queues.real_fifo import RealFIFO
from declctl.informer.stores.indices import field_index
from declctl.informer.stores.thread_safe_store import Indexer
from declctl.kit import LoopThread, SystemClock
from declctl.kit.change_queue import ChangeQueue
from declctl.manifest.model import Delivery, InitialSync, OnFailure, QueueSpec, RetrySpec
from declctl.manifest.plan import HandlerPlan
from declctl.manifest.values import EntryPoint
from declctl.objects import (
    ChangeType,
    Delta,
    DeltaType,
    EventType,
    FieldPath,
    GroupVersionKind,
    Notification,
    WatchEvent,
    WatchOptions,
    merge,
)
from declctl.runtime.handling.handler_slot import EventSlot, HandlerBinding

REPETITIONS = 9
BATCH = 50  # the lines of this size that one read of the socket returns
NODE = FieldPath.parse("spec.nodeName")
TLS_READ = 256 * 1024  # bytes of one read, as in asyncio
END = b"k8s.io/initial-events-end"
STREAM = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"


@dataclass(frozen=True)
class Stage:
    """One stage: its name, its work, and the microseconds of CPU for each event."""

    name: str
    does: str
    micros: float
    floor: float | None = None  # the part of a C library that every implementation needs


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=4000)
    parser.add_argument("--markdown", action="store_true", help="print a table for hot-path.md")
    arguments = parser.parse_args()
    program = go(BENCHMARKS / "server", "server")
    with tempfile.TemporaryDirectory() as folder:
        server = Server(program, kind="pods", objects=arguments.objects, folder=Path(folder))
        with server:
            lines, tls = floor_of_reading(server.kubeconfig)
            reading = asyncio.run(reads(server.kubeconfig, len(lines)))
    stages = [*stations(lines, tls=tls, reading=reading)]
    print(markdown(stages, lines) if arguments.markdown else text(stages, lines))


def stations(lines: Sequence[bytes], *, tls: float, reading: float) -> Iterator[Stage]:
    """Measures every stage, in the order of an event."""
    yield Stage("bytes", "TLS, de-chunking, cut into lines", max(tls, reading), tls)
    parts = decoding(lines)
    decode, compress = parts["decode"], parts["compress"]
    yield Stage("partial decode", "identity, labels and projected fields", parts["fields"], decode)
    yield Stage("frame", "the rest, compressed with the dictionary", parts["frame"], compress)
    rest = parts["event"] - parts["fields"] - parts["frame"]
    says = "envelope, `managedFields` cut out before, key, interning, record, event"
    yield Stage("record", says, max(rest, 0.0))
    events, _ = Projection(api_version="v1", kind="Pod", paths=[NODE]).events(lines)
    yield Stage("line", "delta, queue, comparison, store, one index, notification", cached(events))
    notifications = [Notification(ChangeType.ADDED, event.record, None) for event in events if event.record]
    waits, works, awaits = delivering(notifications)
    yield Stage("buffer", "waits for its handler, in order, by key", waits)
    yield Stage("sync handler", "`change`, the gate, the call, its figures", works)
    yield Stage("async handler", "the same on the handlers' loop, nothing awaited", awaits)


def decoding(lines: Sequence[bytes]) -> dict[str, float]:
    """The microseconds of `Projection.events` for each line, and of its parts."""
    projection = Projection(api_version="v1", kind="Pod", paths=[NODE])
    events, _ = projection.events(lines)  # the dictionary is learned
    codec = projection.layout.codec
    plain = [codec.decode(event.record.frame) for event in events if event.record]
    bare = zstandard.ZstdCompressor(level=1, dict_data=zstandard.train_dictionary(32768, plain[:200]))
    batches = [lines[start : start + BATCH] for start in range(0, len(lines), BATCH)]
    return {
        "event": each(projection.events, batches) * len(batches) / len(lines),
        "fields": each(PartialDecoder([NODE]).decode, plain),
        "decode": each(msgspec.json.Decoder(_KindOnly).decode, plain),
        "frame": each(codec.encode, plain),
        "compress": each(bare.compress, plain),
    }


class _KindOnly(msgspec.Struct, gc=False):
    """The smallest work of a decoder: it only has to find the end of the object."""

    kind: str = ""


def cached(events: Sequence[WatchEvent]) -> float:
    """The microseconds of a delta from the queue into a store with one index."""

    def run() -> None:
        queue, indexer = RealFIFO(), Indexer({"byNode": field_index("spec.nodeName")})
        applier = Applier(indexer)
        queue.replace((), "0")
        queue.processed([queue.pop_nowait()])
        for start in range(0, len(events), 100):
            batch = events[start : start + 100]
            queue.extend([Delta(DeltaType.ADDED, e.record.key, e.record) for e in batch if e.record])
            applier.apply(queue.pop_batch_nowait(500), 0.0)

    return best(run) / len(events)


def delivering(notifications: Sequence[Notification]) -> tuple[float, float, float]:
    """The microseconds of a notification in the queue, in a sync handler, and in an async handler."""
    loops = LoopThread("stages").start()
    try:
        pairs = [(n.key, n) for n in notifications]

        def wait() -> None:
            queue = ChangeQueue(
                clock=SystemClock(), weigh=Notification.weight, merge=merge, merge_above=1 << 40
            )
            for start in range(0, len(pairs), 100):
                queue.add_all(pairs[start : start + 100])

        def work(handler: EventSlot) -> None:
            while (item := handler.queue.take()) is not None:
                handler.work(item)

        def await_(handler: EventSlot) -> None:
            async def all_of_them() -> None:
                while (item := handler.queue.take()) is not None:
                    await handler.work_async(item)

            asyncio.run(all_of_them())

        def filled(function: Callable[..., Any]) -> Callable[[], EventSlot]:
            def fill() -> EventSlot:
                handler = slot(function, loops)
                for start in range(0, len(notifications), 100):
                    handler.add_all(notifications[start : start + 100])
                return handler

            return fill

        count = len(notifications)
        return (
            best(wait) / count,
            best_on(work, filled(on_pod)) / count,
            best_on(await_, filled(on_pod_async)) / count,
        )
    finally:
        loops.stop()


def on_pod(change: object) -> None:
    """A handler that does nothing."""


async def on_pod_async(change: object) -> None:
    """An async handler that does nothing."""


def slot(function: Callable[..., Any], loops: LoopThread) -> EventSlot:
    """A slot with the settings of `declctl run`."""
    plan = HandlerPlan(
        name="stages",
        resource="pods",
        entry_point=EntryPoint("handlers", "on_pod"),
        plugin=None,
        events=("Added", "Modified", "Deleted"),
        initial_sync=InitialSync.DELIVER,
        resync_period=0.0,
        delivery=Delivery.EVENT,
        buffer_bytes=1 << 40,
        queue=QueueSpec(),
        retry=RetrySpec(),
        timeout=None,
        on_failure=OnFailure.IGNORE,
    )
    is_async = asyncio.iscoroutinefunction(function)
    target = EventTarget((Implementation("declctl_event", "stages", function, ("change",), is_async),))
    world: Any = None  # the handlers here take no context
    return EventSlot(
        HandlerBinding(1, plan, target, world, loops), clock=SystemClock(), log=world, loop=loops.loop
    )


def floor_of_reading(kubeconfig: Path) -> tuple[list[bytes], float]:
    """The lines of a streaming list, and the microseconds of TLS for each: a blocking socket, one buffer."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    address = urllib.parse.urlsplit(cluster["server"])
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    context.check_hostname = False
    head = (f"Host: {address.netloc}", f"Authorization: Bearer {user['token']}", "", "")
    request = "\r\n".join((f"GET /api/v1/pods?{STREAM} HTTP/1.1", *head))
    least, body = float("inf"), b""
    for _ in range(3):
        with (
            socket.create_connection((str(address.hostname), address.port or 443)) as plain,
            context.wrap_socket(plain, server_hostname=address.hostname) as secure,
        ):
            secure.sendall(request.encode())
            parts: list[bytes] = []
            buffer = bytearray(TLS_READ)
            began = time.process_time()
            while not parts or END not in b"".join(parts[-2:]):
                parts.append(bytes(memoryview(buffer)[: secure.recv_into(buffer)]))
            least = min(least, time.process_time() - began)
            body = b"".join(parts)
    head, _, chunked = body.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"the server says {head[:80]!r}")
    cut = re.split(rb"\r\n[0-9a-f]+\r\n|\n", chunked)
    lines = [line for line in cut if line.startswith(b'{"type":"ADDED"')]
    return lines, least / len(lines) * 1e6


class NullProjection:
    """A projection that decodes nothing."""

    def __init__(self) -> None:
        self.seen = 0

    def events(self, lines: Sequence[bytes], **_: object) -> tuple[list[WatchEvent], None]:
        """Counts the lines."""
        self.seen += len(lines)
        return [WatchEvent(EventType.BOOKMARK, None, "")], None


async def reads(kubeconfig: Path, count: int) -> float:
    """The microseconds of the transport for each line: TLS, chunks, the cut into lines, no decoding."""
    client = await Client.connect(kubeconfig=str(kubeconfig))
    try:
        least = float("inf")
        for _ in range(3):
            projection: Any = NullProjection()
            source = client.source(GroupVersionKind("", "v1", "Pod"), projection=projection)
            began = time.process_time()
            async with contextlib.aclosing(source.watch(WatchOptions(send_initial_events=True))) as batches:
                async for _ in batches:
                    if projection.seen > count:  # the last line is a bookmark
                        break
            least = min(least, time.process_time() - began)
    finally:
        await client.close()
    return least / count * 1e6


def each(function: Callable[[Any], object], values: Sequence[Any]) -> float:
    """Microseconds of CPU for each value."""

    def run() -> None:
        for value in values:
            function(value)

    return best(run) / len(values)


def best(run: Callable[[], None]) -> float:
    """The least microseconds of CPU of some repetitions."""
    return best_on(lambda _: run(), lambda: None)


def best_on(run: Callable[[Any], None], prepare: Callable[[], Any]) -> float:
    """The same for work on a value that `prepare` makes before each repetition, outside the measured time."""
    least = float("inf")
    for _ in range(REPETITIONS):
        prepared = prepare()
        began = time.process_time()
        run(prepared)
        least = min(least, time.process_time() - began)
    return least * 1e6


def text(stages: Sequence[Stage], lines: Sequence[bytes]) -> str:
    """The table for people."""
    size = sum(map(len, lines)) / len(lines)
    rows = [f"{len(lines):,} pods of {size:,.0f} bytes; microseconds of CPU for each\n"]
    for stage in stages:
        floor = "" if stage.floor is None else f"{stage.floor:8.1f}"
        rows.append(f"{stage.name:16}{stage.micros:8.1f}{floor:8}   {stage.does}")
    return "\n".join(rows)


def markdown(stages: Sequence[Stage], lines: Sequence[bytes]) -> str:
    """The table of docs/reference/hot-path.md."""
    size = sum(map(len, lines)) / len(lines)
    rows = [f"| {len(lines):,} pods of {size:,.0f} bytes | µs | of these the floor | |", "|---|--:|--:|---|"]
    for stage in stages:
        floor = "" if stage.floor is None else f"{stage.floor:.1f}"
        rows.append(f"| {stage.name} | {stage.micros:.1f} | {floor} | {stage.does} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
