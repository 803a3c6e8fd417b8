"""The entries of a recording, in the order of the file.

`at` is in seconds since the start of the recording. Frames are those of the caches (`objects.frame`), so that
nothing is compressed twice; a frame that needs a dictionary comes after that dictionary.
"""

from typing import Any

import msgspec


class RecordingHeader(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first entry of each segment."""

    run: str  # of the process: segments of one run belong together
    segment: int  # from 1
    controller: str
    manifest: str  # its path, as the user wrote it
    version: str  # of declctl
    started: str  # when the recording began, in UTC (ISO 8601)
    python: str = ""


class BundleFiles(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The files of a generation, from its commit on."""

    at: float
    generation: int
    manifest: str  # the name of its file in `files`
    files: dict[str, bytes]  # by path below the folder of the manifest
    back: bool = False  # a rollback has brought them back


class RecordedStream(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """One cache, with its requests; its changes have its number."""

    stream: int
    api_version: str
    kind: str
    namespace: str | None
    label_selector: str
    field_selector: str
    namespace_selector: str
    metadata_only: bool
    plural: str
    namespaced: bool
    subresources: list[str]


class FrameDictionary(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A dictionary with which frames of a stream are compressed."""

    stream: int
    number: int
    data: bytes


class StreamObject(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One state of an object. Without a frame it is gone, and its last state is the one before."""

    key: str
    revision: str  # uid and resource version, as `objects.revision_of` joins them
    frame: bytes


class StreamList(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """All objects of a stream, or of a namespace of it. A long list comes in parts; `more` follow."""

    at: float
    stream: int
    version: str
    objects: list[StreamObject]
    namespace: str | None = None
    more: bool = False
    snapshot: bool = False  # of the begin of a segment: the server was not asked


class StreamChanges(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Changes in their order. Without a frame, the object is gone."""

    at: float
    stream: int
    objects: list[StreamObject]


class StreamDeparture(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A namespace is not watched any longer, and its objects have left the cache."""

    at: float
    stream: int
    namespace: str


class CallBegin(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=7):
    """A call of a handler or a schedule begins: a worker has taken the key."""

    at: float
    call: int
    handler: str
    key: str
    generation: int


class CallEnd(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=8):
    """A call has ended."""

    at: float
    call: int
    outcome: str  # as `declctl tap` has it
    error_type: str = ""
    error: str = ""
    requeue: float | None = None  # seconds, that a reconciler has asked for
    retry: float | None = None  # seconds, until a failed call is made again
    revision: str = ""  # of the object that the call has received
    attempt: int = 1
    seconds: float = 0.0


class CallRequest(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """A request of a call, when its answer has come. A `status` of 0 stands for no answer."""

    at: float
    call: int
    method: str
    path: str
    params: dict[str, str]
    content_type: str
    body: bytes  # JSON; empty for none
    status: int
    answer: bytes  # JSON; of a refusal, the fields of the error


class CallTime(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=13):
    """The time that `ctx.now` has returned to a call."""

    at: float
    call: int
    time: float  # seconds since the epoch


class ReloadMark(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """An attempt to reload, with its outcome."""

    at: float
    result: str
    generation: int
    line: str


class RecordingGap(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """The file could not be written as fast as entries came: so many are missing here."""

    at: float
    lost: int


class RecordingEnd(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The process has ended in order."""

    at: float


Entry = (
    RecordingHeader
    | BundleFiles
    | RecordedStream
    | FrameDictionary
    | StreamList
    | StreamChanges
    | StreamDeparture
    | CallBegin
    | CallEnd
    | CallRequest
    | CallTime
    | ReloadMark
    | RecordingGap
    | RecordingEnd
)
"""One entry of a recording."""

ENTRIES = msgspec.msgpack.Decoder(list[Entry])


def time_of(entry: Any) -> float | None:
    """When an entry was recorded, in seconds; None for one that has no time."""
    return getattr(entry, "at", None)
