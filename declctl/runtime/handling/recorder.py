"""Kubernetes Events about objects, posted in the background.

As client-go's recorder: asynchronous, bounded, and never in the way of a handler. When the queue is
full new events are dropped and counted; an event that the server refuses is logged, not tried for
ever.
"""

import asyncio
import itertools
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from declctl.errors import ApiError, TooManyRequests, Unreachable
from declctl.kit import Clock
from declctl.objects import KubeObject, ObjectView
from declctl.runtime.log import Log

_QUEUE = 1000
_ATTEMPTS = 4
_PAUSE_SECONDS = 2.0


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
        self.posted = self.dropped = self.failed = 0

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
                self.failed += 1
                about = document["involvedObject"]
                self._log.warning(f"the event about {about['kind']} {about['name']} was not posted: {error}")
            finally:
                self._queue.task_done()

    async def flush(self, timeout: float) -> None:
        """Return when everything recorded so far was posted or given up, or after `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._queue.join()

    def _put(self, document: KubeObject) -> None:
        try:
            self._queue.put_nowait(document)
        except asyncio.QueueFull:
            self.dropped += 1

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
                self.posted += 1
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
