"""Kubernetes Events about objects, posted in the background.

As client-go's recorder: asynchronous, bounded, and never in the way of a handler. What is not posted is
counted and logged: new events are dropped while the queue is full, and so are those that wait when the
process ends; an event that the server refuses has failed, and is not tried for ever.
"""

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from declctl.errors import ApiError, TooManyRequests, Unreachable
from declctl.kit import Clock
from declctl.objects import KubeObject, ObjectView
from declctl.runtime.log import Log

_QUEUE = 1000
_ATTEMPTS = 4
_PAUSE_SECONDS = 2.0
_SILENCE = 60.0  # seconds until the log says again that events are dropped


@dataclass(frozen=True, slots=True)
class RecordedEvents:
    """What became of the events that handlers have recorded. `failed` were refused, or tried too often.

    Those that still wait are in none of the three.
    """

    posted: int = 0
    failed: int = 0
    dropped: int = 0

    def document(self) -> dict[str, int]:
        """As JSON has it."""
        return {"posted": self.posted, "failed": self.failed, "dropped": self.dropped}


class Poster(Protocol):
    """What is needed of the transport."""

    async def request_json(self, method: str, path: str, *, body: KubeObject | None = None) -> KubeObject:
        """One request; raises ApiError."""
        ...


class EventRecorder:
    """Takes events from any thread and posts them, one after the other, from `run` on the machinery loop."""

    def __init__(self, poster: Poster, *, component: str, clock: Clock, log: Log) -> None:
        self._poster = poster
        self._component = component
        self._clock = clock
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[KubeObject] = asyncio.Queue(_QUEUE)
        self._number = itertools.count(1)
        self._taken = self._posted = self._failed = self._dropped = 0
        self._silent_until = float("-inf")  # on the clock: the log has said that events are dropped

    def record(self, obj: ObjectView, event: Mapping[str, str]) -> None:
        """Post an event with `reason`, `message` and `type` about an object. Returns at once."""
        document = self._document(obj, event)
        self._loop.call_soon_threadsafe(self._put, document)

    async def run(self) -> None:
        """Post what comes in, until cancelled."""
        while True:
            document = await self._queue.get()
            try:
                await self._post(document)
            except ApiError as error:
                self._failed += 1
                about = document["involvedObject"]
                self._log.warning(f"the event about {about['kind']} {about['name']} was not posted: {error}")
            finally:
                self._queue.task_done()

    async def flush(self, timeout: float) -> None:
        """Return when everything recorded so far was posted or given up, or after `timeout` seconds.

        The process ends then: what still waits is dropped.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._queue.join()
        except TimeoutError:
            waiting = self._taken - self._posted - self._failed
            self._dropped += waiting
            events = "1 event" if waiting == 1 else f"{waiting:,} events"
            self._log.warning(
                f"the process ends before {events} could be posted within {timeout:g} s: dropped"
            )

    def statistics(self) -> RecordedEvents:
        """The figures of this moment."""
        return RecordedEvents(self._posted, self._failed, self._dropped)

    def _put(self, document: KubeObject) -> None:
        try:
            self._queue.put_nowait(document)
        except asyncio.QueueFull:
            self._dropped += 1
            self._tell_full()
        else:
            self._taken += 1

    def _tell_full(self) -> None:
        """Say that events are dropped: when that begins, and once a minute."""
        now = self._clock.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE
            self._log.warning(
                f"{_QUEUE:,} Events wait to be posted, and newer ones are dropped, {self._dropped:,} so far: "
                "ctx.record_event is called faster than the API server takes them, or it is away"
            )

    async def _post(self, document: KubeObject) -> None:
        path = f"/api/v1/namespaces/{document['metadata']['namespace']}/events"
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._poster.request_json("POST", path, body=document)
            except (Unreachable, TooManyRequests):
                if attempt == _ATTEMPTS:
                    raise
                await self._clock.sleep(_PAUSE_SECONDS * attempt)
            else:
                self._posted += 1
                return

    def _document(self, obj: ObjectView, event: Mapping[str, str]) -> KubeObject:
        now = self._clock.now()
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        namespace = obj.namespace or "default"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{obj.name[:200]}.{int(now.timestamp() * 1e6):x}{next(self._number):04x}",
                "namespace": namespace,
            },
            "involvedObject": {
                "apiVersion": obj["apiVersion"],
                "kind": obj["kind"],
                "name": obj.name,
                "namespace": obj.namespace or "",
                "uid": obj.uid,
                "resourceVersion": obj.resource_version,
            },
            "reason": event["reason"],
            "message": event["message"][:1024],
            "type": event["type"],
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
