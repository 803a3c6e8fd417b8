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

    key: str
    old: KeptObject | None = None  # the state that the handler knows; None for an object that is new to it
    attempts: int = 0  # that have failed
    due: float | None = None  # seconds since the epoch; None: at once
    causes: Sequence[Cause] = ()


class KeptHandler(msgspec.Struct, frozen=True, array_like=True):
    """What one handler has still to deal with: what has come and gone since the mark before."""

    name: str
    caches: list[int]  # that it hears of
    changes: list[KeptChange]
    done: list[str]  # keys
    whole: bool  # all that it has to deal with: what an earlier mark says is over


class KeptMark(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """All entries before it belong together. What comes after the last mark of a file is not used.

    A handler that is not in it is not known: the next process tells it all objects.
    """

    digest: str  # of the files that run
    handlers: list[KeptHandler]


class StateEnd(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The process has ended in order."""


StateEntry = (
    StateHeader | KeptCache | FrameDictionary | KeptList | KeptChanges | KeptFinalizers | KeptMark | StateEnd
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
    """What a handler has still to deal with, as a file has it."""

    caches: Sequence[str] = ()  # their identities
    changes: dict[str, KeptChange] = msgspec.field(default_factory=dict[str, KeptChange])
