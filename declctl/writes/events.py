"""Kubernetes Events of handlers: posted in the background, bounded, and never in a handler's way.

They are events.k8s.io/v1, as of client-go's tools/events: the first one of its kind is created, the second
one makes a series of it, and further ones are counted here. The count of a series is sent every 30 minutes,
and when nothing was added to it for 6 minutes.

Two limits are those of client-go's tools/record. Events that differ only in their note are combined from the
tenth note in 10 minutes on. Requests about one object are limited for each type of event: 25 at once, then
one in 5 minutes.
"""

import asyncio
import contextlib
import itertools
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from declctl.errors import (
    ApiError,
    Conflict,
    MalformedAnswer,
    NotFound,
    TooManyRequests,
    Unreachable,
    WriteError,
)
from declctl.kit import Clock
from declctl.kit.clock import set_within
from declctl.kit.secret_values import secret_values
from declctl.kit.token_bucket import TokenBucket
from declctl.objects import GroupVersionKind, KubeObject, ObjectKey, ObjectView, Resource
from declctl.writes.gate import ApiWrite, WarningLog, WriteGate
from declctl.writes.ledger import WriteOrigin, WriteVerb, Written

BURST, REFILL_SECONDS = 25, 300.0  # of the requests about one object, for each type (client-go 288, 292)
MOST_SIMILAR, SIMILAR_SECONDS = 10, 600.0  # notes until events are combined; the rest that ends it (289, 290)
COMBINED = "(combined from similar events): "  # the beginning of the note of such an event
FINISH_SECONDS = 360.0  # without a repetition, after which a series ends (client-go 293)
REFRESH_SECONDS = 1800.0  # between two counts of a series that goes on
_QUEUE = 1000  # events that wait; newer ones are dropped (client-go 284)
_MOST_REMEMBERED = 4096  # series, objects, and groups of similar events; client-go's LRU
_ATTEMPTS, _PAUSE_SECONDS = 12, 10.0  # to post one event: about two minutes
_JITTER = 0.25  # of a pause, so that many processes do not come back at the same moment
_HOLD_SECONDS = 60.0  # until counts of series are sent again to a server that did not answer
_SILENCE = 60.0  # seconds between two log lines of one kind
_LONGEST_NOTE, _LONGEST_REASON, _LONGEST_NAME = 1024, 128, 200  # bytes of UTF-8, which the server counts
# After these a request is sent again. A proxy whose server is away answers with a page.
_TEMPORARY = (Unreachable, TooManyRequests, MalformedAnswer)
_EVENTS = Resource(GroupVersionKind("events.k8s.io", "v1", "Event"), "events", True)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class RecordedEvents(msgspec.Struct, frozen=True):
    """Counts of the events that handlers have recorded. `failed` were refused, or tried too often.

    `repeated` were added to the series of an event that was posted. `dropped` were never sent: too many
    waited, or there were too many about one object. An event that still waits is in none of them.
    """

    posted: int = 0
    repeated: int = 0
    failed: int = 0
    dropped: int = 0


class EventText(msgspec.Struct, frozen=True):
    """The words of an event. `type` is Normal or Warning; `action` is what was done or has failed."""

    reason: str
    note: str
    type: str = "Normal"
    action: str = "Handle"


_Key = tuple[tuple[str, ...], str | None]  # a group and a note


class _Recorded(msgspec.Struct, frozen=True):
    """An event before it is posted. Equal keys are repetitions of one event."""

    group: tuple[str, ...]  # all of the key but the note
    note: str | None  # None for an event that is combined from similar ones
    about: tuple[str, str]  # the object and the type, for the limit
    body: KubeObject
    origin: WriteOrigin

    @property
    def key(self) -> _Key:
        """What repetitions have in common."""
        return self.group, self.note


@dataclass(slots=True)
class _Group:
    """The events that differ in their notes only."""

    last_moment: float  # of the last one, on the monotonic clock
    notes: set[int] = field(default_factory=set[int])  # hashes of the first ones, which are not combined


@dataclass(slots=True)
class _Series:
    """An event that was posted, and its repetitions."""

    name: ObjectKey  # of the Event
    body: KubeObject  # as it was created, for an event that has expired on the server
    origin: WriteOrigin
    count: int  # of occurrences
    sent: int  # the count that the server has; 1 for an event without a series
    last: str  # the time of the last occurrence, RFC 3339
    last_moment: float  # the same, on the monotonic clock
    sent_moment: float  # of the last request


class EventRecorder:
    """Posts Kubernetes Events one by one, in `run` on the machinery loop. `record` is thread-safe.

    - `gate`: its own one, so that a flood of events delays no write of a handler.
    - `controller`: the name of the manifest, which `kubectl describe` shows as the source.
    - `instance`: the process, such as the name of its pod.
    """

    def __init__(
        self, gate: WriteGate, *, controller: str, instance: str, clock: Clock, log: WarningLog
    ) -> None:
        self._gate = gate
        self._controller = _qualified(controller)
        self._instance = _cut(f"{controller[:60]}-{instance}", 128)
        self._clock = clock
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[_Recorded] = asyncio.Queue(_QUEUE)
        self._closed = asyncio.Event()  # nothing is sent any more; set by `flush`
        self._number = itertools.count(1)  # makes names of events distinct
        # Of each of these three, the longest unused entry is the first.
        self._series: OrderedDict[_Key, _Series] = OrderedDict()
        self._groups: OrderedDict[tuple[str, ...], _Group] = OrderedDict()
        self._buckets: OrderedDict[tuple[str, str], TokenBucket] = OrderedDict()  # by object and type
        self._held_until = float("-inf")  # monotonic seconds: no count of a series is sent before
        # taken = posted + repeated + failed + dropped + waiting, of those that were taken into the queue
        self._waiting = 0
        self._counts = RecordedEvents()
        self._silent_until: dict[str, float] = {}  # kind of log line → monotonic time of the next one

    def record(self, obj: Mapping[str, Any], text: EventText, origin: WriteOrigin) -> None:
        """Post an event about an object: a view, or a mapping as in JSON. Returns at once. From any thread.

        Raises TypeError for anything else, and for a mapping without apiVersion, kind and metadata.name.
        After `flush`, events are dropped.
        """
        # Made here, because the object may change before the loop handles the event.
        recorded = self._recorded(obj, text, origin)
        # A thread that is left over may record after the end of the loop.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._put, recorded)

    async def run(self) -> None:
        """Post the recorded events, and count the series, until cancelled or flushed."""
        while not self._closed.is_set():
            recorded = await self._next()
            if recorded is None:
                await self._send_due()
                continue
            outcome = "dropped"  # unless the event comes to an end before this task or the recorder does
            try:
                if not self._closed.is_set():
                    outcome = await self._handle(recorded)
            except (ApiError, WriteError) as error:
                if not self._closed.is_set():
                    outcome = "failed"
                    about = recorded.body["regarding"]
                    self._warn(
                        f"failed {type(error).__name__}",
                        f"the event about {about['kind']} {about['name']} was not posted: {error}",
                    )
            finally:
                self._count(outcome)
                self._waiting -= 1
                self._queue.task_done()

    async def until_posted(self, timeout: float) -> None:
        """Return when everything recorded so far was posted or given up, or after `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._queue.join()

    async def flush(self, timeout: float) -> None:
        """Return when everything recorded so far was posted or given up, or after `timeout` seconds.

        The process ends then: the counts of series are sent, and events that still wait are dropped. No
        request begins afterwards. A second call has no effect.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._queue.join()
                await self._finish_series()
        except TimeoutError:
            waiting = self._waiting
            # Without them, only counts of series are missing.
            if waiting:
                events = "1 event" if waiting == 1 else f"{waiting:,} events"
                self._log.warning(
                    f"the process ends before {events} could be posted within {timeout:g} s: dropped"
                )
        finally:
            self._close()

    @property
    def waiting(self) -> int:
        """The events that were recorded and not posted yet. From any thread."""
        return self._waiting

    def statistics(self) -> RecordedEvents:
        """The figures of this moment. From any thread."""
        return self._counts

    def _close(self) -> None:
        """Send nothing any more. The event that is being posted is counted by `run`."""
        self._closed.set()
        while not self._queue.empty():
            self._queue.get_nowait()
            self._count("dropped")
            self._waiting -= 1
            self._queue.task_done()

    def _put(self, recorded: _Recorded) -> None:
        if self._closed.is_set():
            self._count("dropped")
            return
        try:
            self._queue.put_nowait(recorded)
        except asyncio.QueueFull:
            self._count("dropped")
            self._warn(
                "full",
                f"{_QUEUE:,} Events wait to be posted, and newer ones are dropped, {self._counts.dropped:,} "
                "so far: ctx.record_event is called faster than the API server takes them, or it is away",
            )
        else:
            self._waiting += 1

    async def _next(self) -> _Recorded | None:
        """The next event; None if a count of a series is due before, or if the recorder is closed."""
        due = self._next_due()
        wait = float("inf") if due is None else due - self._clock.monotonic()
        # A queue that is never empty must not hold the counts back.
        if wait <= 0:
            return None
        if not self._queue.empty():
            return self._queue.get_nowait()
        get = asyncio.ensure_future(self._queue.get())
        end = self._closed.wait() if due is None else set_within(self._closed, wait, clock=self._clock)
        other = asyncio.ensure_future(end)
        try:
            await asyncio.wait([get, other], return_when=asyncio.FIRST_COMPLETED)
            return get.result() if get.done() else None
        finally:
            other.cancel()
            get.cancel()

    async def _handle(self, recorded: _Recorded) -> str:
        """Post or count an event; returns the figure of `RecordedEvents` that counts it. Raises ApiError."""
        now = self._clock.monotonic()
        recorded = self._combined(recorded, now)
        series = self._series.get(recorded.key)
        # A count that the server lacks keeps the series: it is sent with those of the repetitions.
        if series is not None and series.count == series.sent and _has_ended(series, now):
            del self._series[recorded.key]  # it was a long time ago: a new event
            series = None
        if series is not None:
            series.count += 1
            series.last, series.last_moment = recorded.body["eventTime"], now
            self._series.move_to_end(recorded.key)
            # The second one makes a series of the event; further ones are only counted (client-go 293).
            if series.sent == 1 and self._may_send(recorded):
                await self._send_count(series)
            return "repeated"
        if not self._may_send(recorded):
            about = recorded.body["regarding"]
            self._warn(
                "limited",
                f"Events are dropped, {self._counts.dropped + 1:,} so far: there were more than {BURST} of "
                f"type {recorded.body['type']} about {about['kind']} {about['name']}, which gets one in "
                f"{REFILL_SECONDS:g} s now",
            )
            return "dropped"
        name = await self._create(recorded.body, recorded.origin)
        last = recorded.body["eventTime"]
        self._series[recorded.key] = _Series(name, recorded.body, recorded.origin, 1, 1, last, now, now)
        _limit(self._series)
        return "posted"

    def _combined(self, recorded: _Recorded, now: float) -> _Recorded:
        """The event itself, or the one that all events of its group share after the first ones."""
        group = self._groups.pop(recorded.group, None)
        if group is None or now - group.last_moment > SIMILAR_SECONDS:
            group = _Group(now)
        self._groups[recorded.group] = group
        _limit(self._groups)
        group.last_moment = now
        note = hash(recorded.note)
        # Unlike client-go's, a note that is among the first ones keeps its own Event.
        if note in group.notes:
            return recorded
        if len(group.notes) < MOST_SIMILAR - 1:
            group.notes.add(note)
            return recorded
        # The server lets no note change, so this one stays that of the first combined event.
        body = {**recorded.body, "note": _cut(f"{COMBINED}{recorded.note}", _LONGEST_NOTE)}
        return replace(recorded, note=None, body=body)

    def _may_send(self, recorded: _Recorded) -> bool:
        bucket = self._buckets.pop(recorded.about, None)
        if bucket is None:
            bucket = TokenBucket(1 / REFILL_SECONDS, BURST, clock=self._clock)
        self._buckets[recorded.about] = bucket
        _limit(self._buckets)
        return bucket.try_take()

    def _next_due(self) -> float | None:
        """The monotonic time at which a count has to be sent or a series ends; None without a series."""
        due = min((_due(series) for series in self._series.values()), default=None)
        return None if due is None else max(due, self._held_until)

    async def _send_due(self) -> None:
        """Send the counts that are due, and forget the series that have ended."""
        now = self._clock.monotonic()
        for key, series in tuple(self._series.items()):
            if self._closed.is_set():
                return
            if _due(series) > now:
                continue
            if not await self._try_count(series):
                self._held_until = now + _HOLD_SECONDS
                return
            series.sent_moment = now
            if _has_ended(series, now):
                del self._series[key]

    async def _finish_series(self) -> None:
        for series in tuple(self._series.values()):
            await self._try_count(series)
        self._series.clear()

    async def _try_count(self, series: _Series) -> bool:
        """Send the count of a series, if it has grown, by one attempt. Returns False without an answer.

        A refusal is logged: the events are counted.
        """
        if series.count == series.sent:
            return True
        try:
            await self._send_count(series, attempts=1)
        except (ApiError, WriteError) as error:
            self._warn("series", f"the count of a repeated Event was not sent: {error}")
            return not isinstance(error, _TEMPORARY)
        return True

    async def _send_count(self, series: _Series, *, attempts: int = _ATTEMPTS) -> None:
        body: KubeObject = {"series": {"count": series.count, "lastObservedTime": series.last}}
        write = ApiWrite(WriteVerb.PATCH, _EVENTS, series.name, body=body)
        try:
            await self._post(write, series.origin, attempts)
        except NotFound:
            # It has expired on the server, and is made anew with its count (client-go 282, 294).
            series.name = await self._create({**series.body, **body}, series.origin, attempts)
        series.sent, series.sent_moment = series.count, self._clock.monotonic()

    async def _create(self, body: KubeObject, origin: WriteOrigin, attempts: int = _ATTEMPTS) -> ObjectKey:
        """Create an Event; returns its key."""
        key = ObjectKey.of(body["metadata"]["namespace"], body["metadata"]["name"])
        write = ApiWrite(WriteVerb.CREATE, _EVENTS, key, body=body)
        try:
            return (await self._post(write, origin, attempts)).key
        except Conflict as error:
            # Names are never used twice: an earlier attempt arrived, and its answer was lost.
            if error.reason == "AlreadyExists":
                return key
            raise

    async def _post(self, write: ApiWrite, origin: WriteOrigin, attempts: int) -> Written:
        for attempt in itertools.count(1):
            try:
                return await self._gate.send(write, origin)
            # Only these faults are temporary; any other refusal would be repeated.
            except _TEMPORARY:
                pause = _PAUSE_SECONDS * (1 + _JITTER * self._clock.random())
                if attempt >= attempts or await set_within(self._closed, pause, clock=self._clock):
                    raise
        raise AssertionError  # the loop has no end

    def _count(self, name: str) -> None:
        self._counts = replace(self._counts, **{name: getattr(self._counts, name) + 1})

    def _warn(self, kind: str, message: str) -> None:
        """Log a line of a kind: when it begins, and once a minute."""
        now = self._clock.monotonic()
        if now >= self._silent_until.get(kind, float("-inf")):
            self._silent_until[kind] = now + _SILENCE
            self._log.warning(message)

    def _recorded(self, obj: Mapping[str, Any], text: EventText, origin: WriteOrigin) -> _Recorded:
        now = self._clock.now()
        regarding = _regarding(obj)
        # An event about a cluster-scoped object has to be in this namespace (client-go 280).
        namespace = regarding["namespace"] or "default"
        shown = regarding["name"][:_LONGEST_NAME].rstrip("-.")
        # Names of roles may have colons, names of events not (client-go 291).
        name = shown if _SUBDOMAIN.fullmatch(shown) else "event"
        note, reason = _cut(text.note, _LONGEST_NOTE), _cut(text.reason, _LONGEST_REASON)
        body: KubeObject = {
            "apiVersion": _EVENTS.gvk.api_version,
            "kind": _EVENTS.gvk.kind,
            "metadata": {
                "name": f"{name}.{int(now.timestamp() * 1e6):x}{next(self._number):04x}",
                "namespace": namespace,
            },
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "action": _cut(text.action, _LONGEST_REASON),
            "reason": reason,
            "note": note,
            "type": text.type,
            "regarding": regarding,
        }
        # client-go's key has no note. Here a note often has a number or a name, which a reader looks for.
        about = regarding["uid"] or f"{regarding['kind']} {namespace}/{regarding['name']}"
        group = (about, text.type, reason, text.action)
        return _Recorded(group, note, (about, text.type), body, origin)


def _cut(text: str, most: int) -> str:
    """The beginning of a text, of at most so many bytes of UTF-8. What UTF-8 can't have becomes `?`."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")


def _regarding(obj: Mapping[str, Any]) -> dict[str, str]:
    """The reference to an object that an event has. Raises TypeError."""
    if not isinstance(obj, Mapping):  # type: ignore[reportUnnecessaryIsInstance] - of a user's code
        raise TypeError(
            f"an event is about an object, such as request.obj or written.obj, not a {type(obj).__name__}"
        )
    if isinstance(obj, ObjectView):
        name, namespace, uid, version = obj.name, obj.namespace, obj.uid, obj.resource_version
    else:
        found = obj.get("metadata")
        metadata = cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}
        name, namespace = metadata.get("name"), metadata.get("namespace")
        uid, version = metadata.get("uid"), metadata.get("resourceVersion")
    fields = {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "name": name,
        "namespace": namespace or "",
        "uid": uid or "",
        "resourceVersion": version or "",
    }
    for field_name, value in fields.items():
        if not isinstance(value, str) or (not value and field_name in ("apiVersion", "kind", "name")):
            raise TypeError(
                f"an event needs the {field_name} of the object that it is about; it is {value!r}"
            )
    return cast("dict[str, str]", fields)


def _limit(remembered: OrderedDict[Any, Any]) -> None:
    """Forget the longest unused entry of too many."""
    if len(remembered) > _MOST_REMEMBERED:
        remembered.popitem(last=False)


def _has_ended(series: _Series, now: float) -> bool:
    return now - series.last_moment >= FINISH_SECONDS


def _due(series: _Series) -> float:
    finished = series.last_moment + FINISH_SECONDS
    return finished if series.count == series.sent else min(finished, series.sent_moment + REFRESH_SECONDS)


def _qualified(controller: str) -> str:
    """The name of a controller as an event may have it: at most 63 letters, digits, and `-_.` within."""
    return controller[:63].rstrip("-_.") or "declctl"


def event_text(reason: object, message: object, kind: object, action: object) -> EventText:
    """Check the arguments of `ctx.record_event`. The text has no value of a Secret: many may read Events.

    Raises ValueError for another `kind` than Normal and Warning, and for an empty reason or action, which the
    server refuses; TypeError for a value that is no text.
    """
    if kind not in ("Normal", "Warning"):
        raise ValueError(f"the type of an event is Normal or Warning, not {kind!r}")
    # A value that is no text could fail in the background task, and end the whole process.
    texts: Mapping[str, object] = {"reason": reason, "message": message, "action": action}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"the {name} of an event is a text, not a {type(text).__name__}")
        if not text and name != "message":
            raise ValueError(f"the {name} of an event is one CamelCase word, not an empty text")
    shown = {name: secret_values.hide(str(text)) for name, text in texts.items()}
    return EventText(shown["reason"], shown["message"], str(kind), shown["action"])
