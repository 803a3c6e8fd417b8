"""`declctl run --record FILE`: the recorder that writes what a process sees and does to a file.

On the loop and in workers, an entry costs an append. The thread of the writer packs it, and hides what
Secrets have.
"""

import asyncio
import itertools
import platform
import secrets
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, urlsplit

import msgspec

import declctl
from declctl.errors import Conflict, DeclctlError, StatusError, Unreachable
from declctl.informer.informer import SharedIndexInformer, ignore_batch
from declctl.informer.queues.real_fifo import Batch, Bookmark, Departure, Replacement, SyncAll
from declctl.kit import Clock, yield_interpreter
from declctl.kit.secret_values import HIDDEN, is_secret, secret_values, without_values
from declctl.manifest import Plan
from declctl.manifest.plan import WatchKey
from declctl.objects import Codec, DeltaType, GroupVersionKind, HeldObject, KubeObject, Record, RequestSender
from declctl.objects.api_path import is_about_secrets
from declctl.objects.frame import BROKEN_FRAME, UNREADABLE, dictionary_of
from declctl.recording.entries import (
    BundleFiles,
    CallBegin,
    CallEnd,
    CallRequest,
    CallTime,
    Entry,
    FrameDictionary,
    RecordedStream,
    RecordingEnd,
    RecordingHeader,
    ReloadMark,
    StreamChanges,
    StreamDeparture,
    StreamList,
    StreamObject,
)
from declctl.recording.writer import RecordingWriter
from declctl.runtime.log import Log
from declctl.runtime.recorder import CommittedFiles, EndedCall, current_call
from declctl.transport import Client
from declctl.transport.official import ClientRequest

_OBJECTS_OF_AN_ENTRY = 500  # of a list, which is packed in slices
_GONE = DeltaType.DELETED
_HIDDEN_OBJECT = b'{"metadata":{}}'  # of a Secret that can't be read
_NO_PARAMS: Mapping[str, str] = {}
_ABOUT_TOKENS = ("/token", "/tokenreviews")  # ends of paths
_json = msgspec.json.encode


class _Stream:
    """One cache that is recorded. The last two fields belong to the thread of the writer."""

    def __init__(self, number: int, watch: WatchKey, informer: SharedIndexInformer, codec: Codec) -> None:
        self.number = number
        self.watch = watch
        self.informer = weakref.ref(informer)
        self.codec = codec
        self.hides = is_secret(watch.api_version, watch.kind)
        self.announced = False  # this segment has its entry
        self.dictionaries: set[int] = {0}  # that this segment has


class _Applied(NamedTuple):
    """A batch that a cache applies."""

    at: float
    stream: _Stream
    batch: Batch


class _Snapshot(NamedTuple):
    """All caches at one moment, with which a segment begins."""

    at: float
    streams: Sequence[tuple[_Stream, Sequence[Record]]]


class _Quoting(NamedTuple):
    """An entry that may quote a Secret."""

    entry: CallEnd | CallRequest


_Item = _Applied | _Snapshot | _Quoting


class FileRecorder:
    """Writes a recording to `path` (`runtime.recorder.Recorder`).

    With the segment before, it has at most `size` bytes. Made on the machinery loop. Raises UsageError if
    the file can't be made.
    """

    def __init__(
        self, path: Path, client: Client, plan: Plan, *, size: int, manifest: str, clock: Clock, log: Log
    ) -> None:
        self._client = client
        self._monotonic = clock.monotonic
        self._began = clock.monotonic()
        self._loop = asyncio.get_running_loop()
        self._calls = itertools.count(1)
        self._numbers = itertools.count(1)  # of streams
        self._streams: list[_Stream] = []  # of caches that may be alive; changed on the loop
        self._files: BundleFiles | None = None  # of the newest generation
        run, started = secrets.token_hex(8), clock.now().isoformat()

        def header(segment: int) -> RecordingHeader:
            return RecordingHeader(
                run, segment, plan.name, manifest, declctl.__version__, started, platform.python_version()
            )

        self._writer = RecordingWriter[_Item](
            path,
            size=size,
            header=header,
            pack=self._pack,
            begins_segment=lambda item: isinstance(item, _Snapshot),
            begin_segment=self._begin_segment,
            now=self._now,
            log=log,
        )
        self._add = self._writer.add

    def follow(self, watch: WatchKey, informer: SharedIndexInformer, codec: Codec) -> None:
        """Record the changes of a cache from now on."""
        stream = _Stream(next(self._numbers), watch, informer, codec)
        self._streams = [each for each in self._streams if each.informer() is not None] + [stream]
        informer.on_batch = partial(self._applied, stream)

    def begins(self, handler: str, key: str, generation: int) -> int:
        """Record the begin of a call."""
        call = next(self._calls)
        self._add(CallBegin(self._monotonic() - self._began, call, handler, key, generation))
        return call

    def ended(self, call: int, end: EndedCall) -> None:
        """Record the end of a call."""
        at = self._monotonic() - self._began
        entry = CallEnd(
            at,
            call,
            end.outcome,
            end.error_type,
            end.error,
            end.requeue,
            end.retry,
            end.revision,
            end.attempt,
            end.seconds,
        )
        self._add(_Quoting(entry) if end.error else entry)

    def now(self, clock: Callable[[], datetime]) -> datetime:
        """The present time, which is recorded if it is for a call."""
        found, call = clock(), current_call.get()
        if call:
            self._add(CallTime(self._now(), call, found.timestamp()))
        return found

    def around(self, sender: RequestSender) -> RequestSender:
        """A sender that records the requests of calls with their answers."""
        return _RecordedSender(sender, self)

    def committed(self, files: CommittedFiles) -> None:
        """Record the files of a generation."""
        self._files = BundleFiles(
            self._now(), files.generation, files.manifest, dict(files.files), files.back
        )
        self._writer.add(self._files)

    def reloaded(self, result: str, generation: int, line: str) -> None:
        """Record an attempt to reload."""
        self._writer.add(ReloadMark(self._now(), result, generation, secret_values.hide(line)))

    def client_observer(self) -> "_ClientRequests":
        """What records the requests of official clients that belong to calls."""
        return _ClientRequests(self)

    def requested(self, call: int, request: "SentRequest", status: int, answer: bytes) -> None:
        """Record a request of a call with its answer, which is JSON."""
        # At once, as the caller may change it.
        body = b"" if request.body is None else msgspec.json.encode(request.body)
        params = dict(request.params)
        content_type = request.content_type
        entry = CallRequest(
            self._now(), call, request.method, request.path, params, content_type, body, status, answer
        )
        self._add(_Quoting(entry))

    def close(self) -> None:
        """Write what waits, and close the file."""
        for stream in self._streams:
            if (informer := stream.informer()) is not None:
                informer.on_batch = ignore_batch
        self._writer.add(RecordingEnd(self._now()))
        self._writer.close()

    def _now(self) -> float:
        return self._monotonic() - self._began

    def _applied(self, stream: _Stream, batch: Batch) -> None:
        if not isinstance(batch, Bookmark | SyncAll):
            self._writer.add(_Applied(self._now(), stream, batch))

    def _begin_segment(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._take_snapshot)
        except RuntimeError:
            return  # the loop is closed: the process ends

    def _take_snapshot(self) -> None:
        found = [(stream, stream.informer()) for stream in self._streams]
        there = [(stream, tuple(each.indexer.list())) for stream, each in found if each is not None]
        self._writer.add(_Snapshot(self._now(), there))

    # In the thread of the writer

    def _pack(self, item: _Item) -> Iterable[Sequence[Entry]]:
        match item:
            case _Applied():
                return self._packed_batch(item)
            case _Snapshot():
                return self._packed_snapshot(item)
            case _Quoting(entry):
                return ([_hidden_request(entry) if isinstance(entry, CallRequest) else _hidden_end(entry)],)

    def _packed_snapshot(self, snapshot: _Snapshot) -> Iterator[Sequence[Entry]]:
        if self._files is not None:
            yield [self._files]
        for stream, _ in snapshot.streams:
            stream.announced, stream.dictionaries = False, {0}
        for stream, records in snapshot.streams:
            yield from self._packed_list(
                stream, records, StreamList(snapshot.at, stream.number, "", [], snapshot=True)
            )

    def _packed_batch(self, applied: _Applied) -> Iterator[Sequence[Entry]]:
        stream, batch = applied.stream, applied.batch
        match batch:
            case Replacement():
                whole = StreamList(
                    applied.at, stream.number, batch.resource_version, [], namespace=batch.namespace
                )
                yield from self._packed_list(stream, batch.records, whole)
            case Departure():
                yield [StreamDeparture(applied.at, stream.number, batch.namespace)]
            case list():
                entries = self._announced(stream)
                objects = [
                    self._packed(stream, delta.record, entries, is_gone=delta.type is _GONE)
                    for delta in batch
                    if delta.record is not None
                ]
                entries.append(StreamChanges(applied.at, stream.number, objects))
                yield entries
            case Bookmark() | SyncAll():
                return

    def _packed_list(
        self, stream: _Stream, records: Sequence[Record], whole: StreamList
    ) -> Iterator[Sequence[Entry]]:
        entries = self._announced(stream)
        starts = range(0, max(1, len(records)), _OBJECTS_OF_AN_ENTRY)
        parts = [records[start : start + _OBJECTS_OF_AN_ENTRY] for start in starts]
        for number, part in enumerate(parts, 1):
            objects = [self._packed(stream, record, entries, is_gone=False) for record in part]
            entries.append(msgspec.structs.replace(whole, objects=objects, more=number < len(parts)))
            yield entries
            entries = []
            yield_interpreter()

    def _announced(self, stream: _Stream) -> list[Entry]:
        if stream.announced:
            return []
        stream.announced, watch = True, stream.watch
        known = self._client.known(GroupVersionKind.of(watch.api_version, watch.kind))
        return [
            RecordedStream(
                stream.number,
                watch.api_version,
                watch.kind,
                watch.namespace,
                watch.label_selector,
                watch.field_selector,
                watch.namespace_selector,
                watch.cache.value == "MetadataOnly",
                "" if known is None else known.plural,
                known is None or known.namespaced,
                [] if known is None else sorted(known.subresources),
            )
        ]

    def _packed(
        self, stream: _Stream, record: Record, entries: list[Entry], *, is_gone: bool
    ) -> StreamObject:
        if is_gone:
            return StreamObject(record.key, record.revision, b"")
        frame = record.frame.frame if isinstance(record.frame, HeldObject) else record.frame
        if stream.hides:
            return StreamObject(record.key, record.revision, _hidden_secret(record.layout.codec, frame))
        if record.layout.codec is not stream.codec:  # an edit has changed the form of the cache
            return StreamObject(record.key, record.revision, record.layout.codec.decode(frame))
        number = dictionary_of(frame)
        if number not in stream.dictionaries:
            stream.dictionaries.add(number)
            entries.append(FrameDictionary(stream.number, number, stream.codec.dictionary(number)))
        return StreamObject(record.key, record.revision, frame)


class SentRequest(NamedTuple):
    """One request, as it is sent."""

    method: str
    path: str
    params: Mapping[str, str]
    body: Any
    content_type: str


class _RecordedSender:
    """Sends requests, and records those of calls."""

    def __init__(self, sender: RequestSender, recorder: FileRecorder) -> None:
        self._sender = sender
        self._recorder = recorder

    async def request_json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] = _NO_PARAMS,
        body: KubeObject | Sequence[KubeObject] | None = None,
        content_type: str = "application/json",
    ) -> KubeObject:
        send = partial(
            self._sender.request_json, method, path, params=params, body=body, content_type=content_type
        )
        call = current_call.get()
        if not call:
            return await send()
        request = SentRequest(method, path, params, body, content_type)
        try:
            answer = await send()
        except StatusError as refused:
            self._recorder.requested(call, request, refused.code, _json(_document_of(refused)))
            raise
        except DeclctlError as fault:
            self._recorder.requested(call, request, 0, _no_answer(fault))
            raise
        self._recorder.requested(call, request, 200, _json(answer))
        return answer


class _ClientRequests:
    """Records the requests of official clients that belong to calls (`ClientObserver`). From any thread."""

    def __init__(self, recorder: FileRecorder) -> None:
        self._recorder = recorder

    def headers(self) -> Mapping[str, str]:
        """None."""
        return {}

    def answered(self, request: ClientRequest, status: int, body: bytes) -> None:
        """Record a whole answer, or that there is none."""
        call = current_call.get()
        if call:
            answer = _json_or_text(body) if status else _no_answer(Unreachable(body.decode()))
            self._recorder.requested(call, request_of_client(request), status, answer)


def request_of_client(request: ClientRequest) -> SentRequest:
    """A request of an official client, as those of declctl are. A body that is no JSON is a text."""
    parts, body = urlsplit(request.url), request.body
    content = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else b""
    params = dict(parse_qsl(parts.query, keep_blank_values=True))
    document = msgspec.Raw(_json_or_text(content)) if content else None
    return SentRequest(request.method, parts.path, params, document, request.content_type)


def _json_or_text(content: bytes) -> bytes:
    """JSON as it is, and all else as a JSON string."""
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except msgspec.DecodeError:
        return _json(content.decode("utf-8", "replace"))
    return content


def _no_answer(fault: DeclctlError) -> bytes:
    return _json({"type": type(fault).__name__, "message": str(fault)})


def _document_of(refused: StatusError) -> dict[str, Any]:
    found = {"reason": refused.reason, "message": refused.message, "retryAfter": refused.retry_after}
    if isinstance(refused, Conflict):
        found |= {"fields": list(refused.fields), "managers": list(refused.managers)}
    return found


def _hidden_secret(codec: Codec, frame: bytes) -> bytes:
    try:
        obj = msgspec.json.decode(codec.decode(frame))
    except (*UNREADABLE, *BROKEN_FRAME):
        return _HIDDEN_OBJECT
    return _json(_without_values(obj))


def _hidden_end(entry: CallEnd) -> CallEnd:
    return msgspec.structs.replace(entry, error=secret_values.hide(entry.error))


def _hidden_request(entry: CallRequest) -> CallRequest:
    """A request without what Secrets have: their values, and texts that quote them."""
    path, params, body = hidden_content(entry.path, entry.params, entry.body)
    answer = _hidden_body(entry.path, entry.answer)
    return msgspec.structs.replace(entry, path=path, params=params, body=body, answer=answer)


def hidden_content(path: str, params: Mapping[str, str], body: bytes) -> tuple[str, dict[str, str], bytes]:
    """Path, query and JSON body of a request as a recording has them: without the values of Secrets."""
    hide = secret_values.hide
    return hide(path), {name: hide(value) for name, value in params.items()}, _hidden_body(path, body)


def _hidden_body(path: str, body: bytes) -> bytes:
    """The body of a request to a path, or of its answer."""
    if body and is_about_secrets(path):
        body = _json(_without_values(msgspec.json.decode(body)))
    elif body and path.endswith(_ABOUT_TOKENS):
        body = _json(_without_token(msgspec.json.decode(body)))
    text = body.decode()
    hidden = secret_values.hide(text)
    return body if hidden is text else hidden.encode()


def _without_values(document: Any) -> Any:
    """A Secret, a list of them, or a patch of one, without values. Changes the document."""
    if isinstance(document, list):  # a JSON patch
        return [
            {**cast("dict[str, Any]", each), "value": HIDDEN} if isinstance(each, dict) else HIDDEN
            for each in cast("list[Any]", document)
        ]
    if not isinstance(document, dict):
        return HIDDEN if document else document  # such as YAML
    found = cast("dict[str, Any]", document)
    if isinstance(found.get("items"), list):
        found["items"] = [_without_values(each) for each in found["items"]]
    # A merge patch says no kind.
    hidden = without_values({**found, "apiVersion": "v1", "kind": "Secret"})
    return {name: value if name in ("apiVersion", "kind") else hidden[name] for name, value in found.items()}


def _without_token(document: Any) -> Any:
    """A TokenRequest or TokenReview without its token. Changes the document."""
    for part in ("spec", "status"):
        fields = document.get(part) if isinstance(document, dict) else None
        if isinstance(fields, dict) and "token" in fields:
            fields["token"] = HIDDEN
    return document
