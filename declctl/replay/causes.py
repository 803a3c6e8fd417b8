"""What has led to the calls of a recording, as far as its entries tell."""

from typing import NamedTuple

from declctl.recording.entries import BundleFiles, CallBegin, CallEnd, StreamChanges, StreamList
from declctl.replay.tape import CallKey

_EARLY_SECONDS = 1.0  # that a call may come before the time for which it was asked


class _State(NamedTuple):
    """When an object has come to its present state, and how."""

    at: float
    revision: str
    verb: str


class Causes:
    """Receives the entries of a tape in their order, and says what has come last for a key."""

    def __init__(self) -> None:
        self._kinds: dict[int, str] = {}  # by stream
        self._states: dict[tuple[int, str], _State] = {}  # by stream and key of the object
        self._began: dict[CallKey, float] = {}  # the last call, which has received what was before
        self._asked: dict[CallKey, tuple[float, float, str]] = {}  # its end, and what it asked for
        self._files: BundleFiles | None = None  # of the last reload

    def change(self, kind: str, entry: StreamChanges | StreamList) -> None:
        """Objects of a kind have changed, or were listed."""
        self._kinds[entry.stream] = kind
        is_list = isinstance(entry, StreamList)
        for each in entry.objects:
            at = entry.stream, each.key
            before = self._states.get(at)
            if before is None or before.revision != each.revision or not each.frame:
                verb = "was listed" if is_list else "changed" if each.frame else "was deleted"
                self._states[at] = _State(entry.at, each.revision, verb)

    def reload(self, files: BundleFiles) -> None:
        """A generation was committed."""
        self._files = files

    def begin(self, entry: CallBegin) -> float:
        """A call has begun; returns when the one before it has, which has received what was before."""
        key = entry.handler, entry.key
        before = self._began.get(key, 0.0)
        self._began[key] = entry.at
        return before

    def end(self, key: CallKey, entry: CallEnd) -> None:
        """A call has ended."""
        asked = entry.requeue if entry.retry is None else entry.retry
        if asked is None:
            self._asked.pop(key, None)
        else:
            what = "asked for a Requeue after" if entry.retry is None else "failed, to be retried in"
            self._asked[key] = entry.at, asked, f"the call before {what} {asked:g} s"

    def of(self, entry: CallBegin, before: float) -> str:
        """What has come last for a call, in words. `before` is the result of `begin`."""
        key, found = (entry.handler, entry.key), list[tuple[float, str]]()
        if key in self._asked:
            ended, asked, what = self._asked[key]
            if entry.at - ended >= asked - _EARLY_SECONDS:
                found.append((ended, what))
        for stream, kind in self._kinds.items():
            if (state := self._states.get((stream, entry.key))) is not None:
                since = f"{entry.at - state.at:.3f} s before"
                found.append((state.at, f"{kind} {entry.key} {state.verb} {since}"))
        if self._files is not None:
            since = entry.at - self._files.at
            found.append((self._files.at, f"generation {self._files.generation} came {since:.3f} s before"))
        at, what = max(found, default=(-1.0, ""))
        if at < before:
            return "what led to it then is not known"
        return f"then, {what}"
