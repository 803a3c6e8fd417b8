"""Answers of a server that went wrong at random: valid ones, with bytes changed, cut, doubled and put in.

Everything comes from a seed, so that a failure names the input that led to it.
"""

import gzip
import json
import random
from datetime import UTC, datetime

from declctl.decoding import ItemCutter, Projection
from declctl.errors import ApiError, StatusError
from declctl.objects import GroupVersionKind, ListPage, ObjectView
from declctl.objects.fields import FieldPath
from declctl.transport import LineSplitter
from declctl.transport.connections import ChunkDecoder
from declctl.transport.discovery import Discovery
from declctl.transport.messages import BrokenBody, answer_error, json_object
from declctl.transport.wire import Unpacker, unreachable

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PODS = GroupVersionKind("", "v1", "Pod")


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _pod(name: str, **more: object) -> dict[str, object]:
    metadata = {
        "name": name,
        "namespace": "team-a",
        "uid": f"uid-{name}",
        "resourceVersion": "17",
        "labels": {"app": "wéb", "tier": "front"},
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:nodeName": {}}}}],
    }
    return {"metadata": metadata, "spec": {"nodeName": "node-1", "text": 'a "quoted" \\ text\n'}, **more}


def _event(kind: str, obj: object) -> bytes:
    return compact({"type": kind, "object": obj}) + b"\n"


_TYPED = {"kind": "Pod", "apiVersion": "v1"}
_STATUS = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "message": "too old resource version: 1 (7)",
    "reason": "Expired",
    "details": {"retryAfterSeconds": 3, "causes": [{"reason": "ResourceVersionTooLarge", "message": "no"}]},
    "code": 410,
}
LIST = (
    b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9","remainingItemCount":3},"items":['
    + b",".join(compact(_pod(f"pod-{n}", status={"phase": "Running" * n})) for n in range(4))
    + b"]}\n"
)
WATCH = b"".join(
    [
        *(_event(kind, {**_TYPED, **_pod("pod-1")}) for kind in ("ADDED", "MODIFIED", "DELETED")),
        _event("BOOKMARK", {**_TYPED, "metadata": {"resourceVersion": "12", "creationTimestamp": None}}),
        _event("MODIFIED", {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node-1"}}),
        _event("ERROR", _STATUS),
    ]
)
RESOURCES = compact(
    {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            {
                "name": "pods",
                "singularName": "pod",
                "namespaced": True,
                "kind": "Pod",
                "verbs": ["get", "list"],
            },
            {"name": "pods/log", "kind": "Pod", "namespaced": True, "verbs": ["get"], "shortNames": ["po"]},
        ],
    }
)
GROUP = compact(
    {"name": "apps", "versions": [{"groupVersion": "apps/v1", "version": "v1"}], "preferredVersion": None}
)
STATUS = compact(_STATUS)

# What decoders stumble over, and what ends or begins something at a wrong place.
_TOKENS = [
    *(
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\\",
        b"\n",
        b"\r\n",
        b"\0",
        b"\xff",
        b"\xc3",
        b"\xed\xa0\x80",
    ),
    *(b"\\ud800", b"\\u0000", b"null", b"true", b"-0e-0", b"1e999", b"NaN", b"0x10", b"9" * 25, b"9" * 400),
    *(b"9" * 5000, b"[" * 1200, b'{"a":' * 1200, b"]" * 1200, b'{"type":"ADDED","object":', b'"items":['),
    *(
        b'"metadata":{"name":"',
        b'},{"metadata":{"name":"',
        b'"managedFields":[',
        b'"kind":"Table"',
        b"0\r\n\r\n",
    ),
    *(b"ffffffffffffffff\r\n", b"-1\r\n", b";" * 5000, b'""', b"{}", b"[]", b"/", b"Retry-After: 1e9"),
]


def changed(rng: random.Random, body: bytes) -> bytes:
    """`body` with one to four things changed at random places."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(body) + 1)
        upto = min(at + rng.choice((1, 1, 2, 8, 40, 300)), len(body))
        match rng.randrange(7):
            case 0 | 1:
                body = body[:at] + rng.choice(_TOKENS) + body[at:]
            case 2:
                body = body[:at] + rng.choice(_TOKENS) + body[upto:]
            case 3:
                body = body[:at] + rng.randbytes(min(upto - at, 8)) + body[upto:]
            case 4:
                body = body[:at] + body[upto:]
            case 5:
                body = body[:upto] + body[at:]
            case _:
                body = body[:at]
    return body


def chunked(rng: random.Random, body: bytes) -> bytes:
    """`body` in chunks of random sizes."""
    parts, at = [], 0
    while at < len(body):
        size = rng.choice((1, 7, 100, 700, 5000))
        part = body[at : at + size]
        parts.append(b"%x\r\n%b\r\n" % (len(part), part))
        at += size
    return b"".join(parts) + b"0\r\n\r\n"


def cut(rng: random.Random, body: bytes) -> list[bytes]:
    """`body` in up to four parts, as reads of a socket bring it."""
    places = sorted(rng.randrange(len(body) + 1) for _ in range(rng.randrange(4)))
    ends = [*places, len(body)]
    return [part for at, end in zip([0, *places], ends, strict=True) if (part := body[at:end])]


class Reading:
    """Reads bodies as the transport does, on its synchronous parts, and uses the result as a handler does."""

    def __init__(self) -> None:
        self.projections = [
            Projection(api_version="v1", kind="Pod"),
            Projection(api_version="v1", kind="Pod", paths=[FieldPath.parse("spec.nodeName")]),
            Projection(
                api_version="v1",
                kind="Pod",
                drop_fields=[FieldPath.parse("metadata.managedFields"), FieldPath.parse("spec.text")],
            ),
            Projection(api_version="v1", kind="Pod", transform=lambda obj: obj),
        ]

    def listed(self, rng: random.Random, parts: list[bytes]) -> None:
        cutter = ItemCutter(rng.choice(self.projections).items(), longest=6000, most=40_000)
        for part in parts:
            cutter.feed(memoryview(part))
            cutter.cut()
        self._use_page(cutter.page())

    def watched(self, rng: random.Random, parts: list[bytes]) -> None:
        splitter, projection = LineSplitter(longest=20_000), rng.choice(self.projections)
        for part in parts:
            splitter.feed(memoryview(part))
            events, fault = projection.events(splitter.take())
            for event in events:
                self._use(event.record)
            if fault is not None:
                raise fault
        splitter.close()

    def in_chunks(self, rng: random.Random, body: bytes) -> None:
        lines, buffer = LineSplitter(longest=20_000), b""
        decoder = ChunkDecoder(lines)
        for part in cut(rng, body):
            buffer += part
            buffer = buffer[decoder.decode(bytearray(buffer), len(buffer)) :]
            if decoder.ended:
                break

    def packed(self, rng: random.Random, body: bytes) -> None:
        cutter = ItemCutter(self.projections[0].items(), longest=6000, most=40_000)
        unpacker = Unpacker(cutter)
        for part in cut(rng, body):
            unpacker.feed(memoryview(part))
            while unpacker.unpack():
                cutter.cut()
        unpacker.close()
        self._use_page(cutter.page())

    def discovered(self, resources: bytes, group: bytes) -> None:
        async def get(path: str) -> dict[str, object]:
            body = group if path == "/apis/apps" else resources
            return dict(json_object(body, what=f"GET {path}"))

        discovery = Discovery(get, server="https://server")
        finished(discovery.find(PODS))
        finished(discovery.find_resource("deployments.apps"))

    def refused(self, rng: random.Random, body: bytes) -> None:
        headers = {"Retry-After": changed(rng, b"Wed, 21 Oct 2026 07:28:00 GMT").decode("latin-1")}
        error = answer_error(rng.choice((301, 410, 429, 500, 999)), headers, body, now=NOW)
        assert isinstance(error, StatusError)
        assert len(str(error)) < 10_000
        assert error.retry_after is None or 0 < error.retry_after <= 300

    def _use_page(self, page: ListPage) -> None:
        for record in page.records:
            self._use(record)

    def _use(self, record: object) -> None:
        if record is None:
            return
        view = ObjectView(record)
        assert isinstance(view.name, str)
        str(view.key), view.namespace, view.uid, view.resource_version, dict(view.labels)
        view.get("spec")


def finished(awaitable: object) -> object:
    """The result of a coroutine that never waits."""
    try:
        awaitable.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def one(reading: Reading, seed: int) -> type[Exception] | None:
    """Read the answer of this seed; the error that it ended in, which is one of the ApiError family."""
    rng = random.Random(seed)
    bodies: tuple[bytes, ...] = ()
    try:
        match rng.randrange(8):
            case 0 | 1:
                bodies = (changed(rng, LIST),)
                reading.listed(rng, cut(rng, *bodies))
            case 2 | 3:
                bodies = (changed(rng, WATCH),)
                reading.watched(rng, cut(rng, *bodies))
            case 4:
                bodies = (changed(rng, chunked(rng, WATCH)),)
                reading.in_chunks(rng, *bodies)
            case 5:
                whole = gzip.compress(LIST, 1)
                bodies = (
                    changed(rng, whole) if rng.random() < 0.5 else gzip.compress(changed(rng, LIST), 1),
                )
                reading.packed(rng, *bodies)
            case 6:
                bodies = (changed(rng, RESOURCES), changed(rng, GROUP))
                reading.discovered(*bodies)
            case _:
                bodies = (changed(rng, STATUS),)
                reading.refused(rng, *bodies)
    except ApiError as fault:
        return type(fault)
    except BrokenBody as fault:
        return type(unreachable(fault, server="https://server"))  # as a stream does
    except Exception as fault:
        shown = [body[:2000] for body in bodies]
        raise AssertionError(f"seed {seed}: {type(fault).__name__}: {fault}; the answer: {shown}") from fault
    return None
