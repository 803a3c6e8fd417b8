"""The entries of a state file: the caches of a process, which the next one begins with.

They come in the order in which they were seen. What belongs to a cache has its number in this file.
"""

from collections.abc import Sequence

import msgspec

from declctl.objects import Cause
from declctl.recording.entries import FrameDictionary


class StateHeader(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first entry of a file."""

    controller: str
    version: str  # of declctl: another one may keep objects in another form
    began: str  # when the process began, in UTC (ISO 8601)
    server: str = ""  # the URL of its API server, for people
    authority: str = ""  # a digest of the address of its API server, and of who signs for it


class KeptCache(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """One cache. It comes again, under another number, when its objects have other values."""

    cache: int
    identity: str  # a digest of its requests, and of what is done with the answers
    name: str  # for people
    paths: list[str]  # of the values that its objects have


class KeptObject(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One object as the cache has it. Without a frame it is gone."""

    key: str
    revision: str  # uid and resource version, as `objects.revision_of` joins them
    labels: bytes = b""
    values: tuple[str | tuple[str, ...] | None, ...] = ()
    frame: bytes = b""


class KeptList(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """All objects of a cache, at a version. A long list comes in parts; `more` follow."""

    cache: int
    version: str
    objects: list[KeptObject]
    more: bool = False


class KeptChanges(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Changes of a cache, in their order, and the version that it has reached with them."""

    cache: int
    version: str
    objects: list[KeptObject]


class KeptFinalizers(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The lists of finalizers that objects of a cache had, each as JSON, with some of their keys."""

    cache: int
    keys: dict[str, list[str]]


class KeptChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a handler has still to deal with for one key."""

    old: KeptObject | None = None  # the state that the handler knows; None for an object that is new to it
    attempts: int = 0  # that have failed
    due: float | None = None  # seconds since the epoch; None: at once
    causes: Sequence[Cause] = ()


class LetterChange(msgspec.Struct, frozen=True, array_like=True):
    """A change in a dead letter. The frames of its objects are their JSON, without the values of indexes."""

    type: str
    object: KeptObject
    old: KeptObject | None
    final_state_unknown: bool
    reason: str
    received_at: float


class KeptDeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter."""

    text: bytes  # the letter as JSON
    changes: Sequence[LetterChange] = ()  # that were given up; none for a key of a reconciler


class KeptKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All that is kept of one key of a handler; with its name alone, it is not kept any more."""

    key: str
    change: KeptChange | None = None
    memo: bytes | None = None  # as JSON
    uid: str | None = None  # of the object that the memo belongs to
    letter: KeptDeadLetter | None = None


class KeptHandler(msgspec.Struct, frozen=True, array_like=True):
    """The keys of one handler of which something has come or gone since the mark before."""

    name: str
    kind: str  # of its objects: a handler of another kind by this name has no part in it
    caches: list[int]  # that it hears of
    is_known: bool  # its keys say what it has still to do; otherwise the next process tells it all objects
    whole: bool  # all its keys: what an earlier mark has of others is over
    keys: list[KeptKey]


class KeptMark(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """All entries before it belong together. What comes after the last mark of a file is not used.

    A handler that is not in it is none any more.
    """

    digest: str  # of the files that run
    handlers: list[KeptHandler]


class KeptNotes(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """What is no handler's. Each replaces the one before."""

    history: bytes = b"[]"  # the newest attempts to reload, as JSON
    memos: dict[str, bytes] = {}  # of plugins and schedules, as JSON, by what they belong to


class StateEnd(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The process has ended in order."""


StateEntry = (
    StateHeader
    | KeptCache
    | FrameDictionary
    | KeptList
    | KeptChanges
    | KeptFinalizers
    | KeptMark
    | KeptNotes
    | StateEnd
)
"""One entry of a state file."""

STATE_ENTRIES = msgspec.msgpack.Decoder(list[StateEntry])


class CacheState(msgspec.Struct):
    """A cache as a file has it. The fields are those of its entries."""

    identity: str
    name: str
    paths: Sequence[str]
    version: str = ""
    objects: dict[str, KeptObject] = msgspec.field(default_factory=dict[str, KeptObject])
    dictionaries: dict[int, bytes] = msgspec.field(default_factory=dict[int, bytes])
    finalizers: dict[str, list[str]] = msgspec.field(default_factory=dict[str, list[str]])


class HandlerState(msgspec.Struct):
    """One handler, as a file has it."""

    kind: str = ""
    is_known: bool = False
    caches: Sequence[str] = ()  # their identities
    keys: dict[str, KeptKey] = msgspec.field(default_factory=dict[str, KeptKey])
