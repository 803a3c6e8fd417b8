"""What a fake source remembers: objects, what happened to them in which order, and how far back."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from declctl.errors import Expired, InvalidRequest, TooLargeResourceVersion
from declctl.objects import EventType, KubeObject, ListOptions, WatchOptions, key_of


@dataclass(frozen=True, slots=True)
class Happened:
    """A version, the line that watches are told of it, and what it makes of which object."""

    version: int
    line: bytes
    key: str = ""
    obj: KubeObject | None = None


class FakeHistory:
    """Objects under versions that count up. It refuses what an API server refuses."""

    def __init__(self) -> None:
        self.version = 0
        self.objects: dict[str, KubeObject] = {}
        self.events: list[Happened] = []
        self._versions = itertools.count(1)
        self._compacted = 0
        self._pages: dict[str, tuple[Sequence[KubeObject], int]] = {}

    def advance(self) -> None:
        """Something happened elsewhere: versions go on."""
        self.version = next(self._versions)

    def compact(self) -> None:
        """Forget what happened until now."""
        self._compacted = self.version
        self._pages.clear()

    def save(self) -> "FakeHistory":
        """A copy of what there is now."""
        saved = FakeHistory()
        saved.version, saved._compacted = self.version, self._compacted
        saved.objects, saved.events = dict(self.objects), list(self.events)
        saved._versions = itertools.count(self.version + 1)
        return saved

    def changed(self, kind: EventType, obj: KubeObject) -> KubeObject:
        """Give an object its version and remember it; returns it as it is stored."""
        self.advance()
        stored = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        key, gone = key_in(stored), kind is EventType.DELETED
        if not gone:
            self.objects[key] = stored
        self.events.append(Happened(self.version, line_of(kind, stored), key, None if gone else stored))
        return stored

    def told(self, line: bytes) -> None:
        """Remember bytes that watches are told."""
        self.events.append(Happened(self.version, line))

    def listed(self, options: ListOptions) -> tuple[Sequence[KubeObject], int]:
        """The objects that a LIST goes through, and their version."""
        version, match = options.resource_version, options.resource_version_match
        if options.continue_token is not None:
            if version or match:
                raise InvalidRequest(400, "BadRequest", "a continue token has its version already")
            if options.continue_token not in self._pages:
                raise Expired(410, "Expired", "the continue token is too old")
            return self._pages[options.continue_token]
        if match and (not version or (match == "Exact" and version == "0")):
            raise InvalidRequest(422, "Invalid", f"resourceVersionMatch {match} is forbidden here")
        asked = self._reached(version)
        # A limit with a version and no match is a legacy form of Exact.
        exact = match == "Exact" or (match is None and bool(options.limit) and asked > 0)
        return self._exactly(asked) if exact else ([*self.objects.values()], self.version)

    def put_off(self, rest: Sequence[KubeObject], version: int) -> str:
        """A continue token for what is left of a list."""
        token = f"{version}-{len(rest)}"
        self._pages[token] = (rest, version)
        return token

    def begin(self, options: WatchOptions) -> int:
        """The place among the events from which a watch is told."""
        if options.send_initial_events:
            self._reached(options.resource_version)
        if options.send_initial_events or options.resource_version in (None, "", "0"):
            return len(self.events)
        version = number_in(options.resource_version)
        if version < self._compacted:
            raise Expired(410, "Expired", f"too old resource version: {version} ({self._compacted})")
        behind = (place for place, event in enumerate(self.events) if event.version > version)
        return next(behind, len(self.events))

    def _exactly(self, version: int) -> tuple[Sequence[KubeObject], int]:
        if version < self._compacted:
            raise Expired(410, "Expired", f"version {version} was compacted ({self._compacted})")
        then: dict[str, KubeObject] = {}
        for event in self.events:
            if event.version <= version and event.key:
                then.pop(event.key, None)
                if event.obj is not None:
                    then[event.key] = event.obj
        return [*then.values()], version

    def _reached(self, version: str | None) -> int:
        asked = number_in(version)
        if asked > self.version:
            message = f"Too large resource version: {asked}, current: {self.version}"
            raise TooLargeResourceVersion(504, "Timeout", message, retry_after=1.0)
        return asked


def key_in(obj: KubeObject) -> str:
    """The key of an object."""
    return key_of(obj["metadata"].get("namespace"), obj["metadata"]["name"])


def line_of(kind: EventType, obj: KubeObject | bytes) -> bytes:
    """A line of a WATCH."""
    raw = obj if isinstance(obj, bytes) else msgspec.json.encode(obj)
    return b'{"type":"%b","object":%b}\n' % (kind.value.encode(), raw)


def number_in(version: str | None) -> int:
    """A version as a number; raises InvalidRequest for what is none."""
    if version and not version.isdecimal():
        raise InvalidRequest(400, "BadRequest", f"invalid resource version {version!r}")
    return int(version or 0)
