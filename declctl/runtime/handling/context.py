"""`ctx`, which a hook receives beside the change, and the recorder of Kubernetes Events."""

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

from declctl.errors import ApiError, TooManyRequests, Unreachable
from declctl.informer.stores.lister import Lister
from declctl.kit import Clock
from declctl.objects import KubeObject, ObjectView
from declctl.runtime.log import Log
from declctl.transport import Client

Json = None | bool | int | float | str | list[Any] | dict[str, Any]


class Memo(MutableMapping[str, Json]):
    """The memory of a handler: JSON-like values that survive reloads.

    A value is copied when it is set, so that no object of a class of an old generation remains. Raises
    TypeError for a value that JSON can't write.
    """

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, Json] = {}

    def __getitem__(self, name: str) -> Json:
        return self._values[name]

    def __setitem__(self, name: str, value: Json) -> None:
        try:
            self._values[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError) as fault:
            raise TypeError(
                f"ctx.memo[{name!r}] can't hold a {type(value).__name__}: a memo outlives the code that "
                f"wrote it, so it keeps None, booleans, numbers, strings, lists and dicts only ({fault})"
            ) from fault

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Memo({self._values!r})"


class Listers(Mapping[str, Lister]):
    """`ctx.listers["pods"]`: the caches by the names of the manifest's resources."""

    def __init__(self, listers: Mapping[str, Lister]) -> None:
        self._listers = listers

    def __getitem__(self, name: str) -> Lister:
        try:
            return self._listers[name]
        except KeyError:
            known = ", ".join(sorted(self._listers)) or "none"
            raise KeyError(f"no resource is named {name!r}; the manifest declares: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._listers)

    def __len__(self) -> int:
        return len(self._listers)


@dataclass(frozen=True, slots=True)
class HandlerEnvironment:
    """The values that all contexts of one handler of one generation share. `log` is a structlog logger."""

    handler: str
    generation: int
    listers: Listers
    config: Mapping[str, Any]
    cluster: "ClusterAccess"
    log: Any
    dry_run: bool = False


class HandlerContext:
    """`ctx` of one call. It is cheap: each part is made at its first use.

    It is valid for the length of the call, in the thread or on the loop that the hook runs on.
    `remember` returns the memo; it is called at the first use of `memo`.
    """

    __slots__ = ("_environment", "_key", "_log", "_memo", "_remember")

    def __init__(
        self, environment: HandlerEnvironment, remember: Callable[[], Memo], key: str | None = None
    ) -> None:
        self._memo: Memo | None = None
        self._remember = remember
        self._environment = environment
        self._key = key
        self._log: Any = None

    @property
    def handler(self) -> str:
        """The handler's name in the manifest; in a life-cycle hook the plugin or entry point."""
        return self._environment.handler

    @property
    def generation(self) -> int:
        """The generation whose code is running."""
        return self._environment.generation

    @property
    def memo(self) -> Memo:
        """The memo of the object, or of the handler in a life-cycle hook; it survives reloads."""
        if self._memo is None:
            self._memo = self._remember()
        return self._memo

    @property
    def listers(self) -> Listers:
        """The caches, by the names of the manifest's resources."""
        return self._environment.listers

    @property
    def config(self) -> Mapping[str, Any]:
        """The plugin's config, validated; empty for a handler without a config."""
        return self._environment.config

    @property
    def dry_run(self) -> bool:
        """True if the hook shall change nothing in the cluster."""
        return self._environment.dry_run

    @property
    def log(self) -> Any:
        """A structlog logger, bound with handler, generation and, in an event hook, the key."""
        if self._log is None:
            names: dict[str, Any] = {"handler": self.handler, "generation": self.generation}
            if self._key is not None:
                names["key"] = self._key
            self._log = self._environment.log.bind(**names)
        return self._log

    @property
    def snapshots(self) -> Mapping[str, Any]:
        """The related objects that the handler declared.

        Empty, because `includeSnapshotsFrom` is not implemented yet.
        """
        return {}

    @property
    def client(self) -> Any:
        """The official ApiClient (`kubernetes.aio.client`), configured; for `async def` hooks."""
        return self._environment.cluster.client

    @property
    def sync_client(self) -> Any:
        """The official synchronous ApiClient (`kubernetes.client`), configured; for `def` hooks."""
        return self._environment.cluster.sync_client

    def record_event(self, obj: ObjectView, reason: str, message: str, type: str = "Normal") -> None:  # noqa: A002
        """Post a Kubernetes Event about `obj`.

        Returns at once. A refusal of the server is logged, and never raised. Raises ValueError for another
        `type`, and TypeError for a `reason` or a `message` that is no text.
        """
        if type not in ("Normal", "Warning"):
            raise ValueError(f"the type of an event is Normal or Warning, not {type!r}")
        # A value that is no text could fail in the background task, and end the whole process.
        _require_text("reason", reason)
        _require_text("message", message)
        self._environment.cluster.record_event(obj, {"reason": reason, "message": message, "type": type})


def _require_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"the {name} of an event is a text, not a {type(text).__name__}")


_QUEUE = 1000  # events that wait; newer ones are dropped
_ATTEMPTS = 4  # to post one event
_PAUSE_SECONDS = 2.0  # before the second attempt; 4 s before the third, 6 s before the fourth
_SILENCE = 60.0  # seconds between two log lines about dropped events


@dataclass(frozen=True, slots=True)
class RecordedEvents:
    """Counts of the events that handlers have recorded. `failed` were refused, or tried too often.

    An event that still waits is in none of the three.
    """

    posted: int = 0
    failed: int = 0
    dropped: int = 0


class Poster(Protocol):
    """The part of the transport that the recorder needs."""

    async def request_json(self, method: str, path: str, *, body: KubeObject | None = None) -> KubeObject:
        """One request; raises ApiError."""
        ...


class EventRecorder:
    """Posts Kubernetes Events one by one, in `run` on the machinery loop. `record` is thread-safe."""

    def __init__(self, poster: Poster, *, component: str, clock: Clock, log: Log) -> None:
        self._poster = poster
        self._component = component
        self._clock = clock
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[KubeObject] = asyncio.Queue(_QUEUE)
        self._number = itertools.count(1)  # makes names of events distinct
        # taken = posted + failed + waiting. Events are dropped before they are taken, or at the end.
        self._taken = self._posted = self._failed = self._dropped = 0
        self._silent_until = float("-inf")  # monotonic time of the next log line about dropped events

    def record(self, obj: ObjectView, event: Mapping[str, str]) -> None:
        """Post an event with `reason`, `message` and `type` about an object. Returns at once."""
        document = self._document(obj, event)
        # The document is made here, because the object may change before the loop handles the event.
        self._loop.call_soon_threadsafe(self._put, document)

    async def run(self) -> None:
        """Post the recorded events, until cancelled."""
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

        The process ends then: events that still wait are dropped.
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
            self._report_full()
        else:
            self._taken += 1

    def _report_full(self) -> None:
        """Log that events are dropped: when that begins, and once a minute."""
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
            # Only these faults are temporary; any other refusal would be repeated.
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


class ClusterAccess:
    """The access of contexts to the cluster: the official clients, and the recorder of events."""

    def __init__(self, client: Client, recorder: EventRecorder) -> None:
        self._client = client
        self._recorder = recorder

    @property
    def client(self) -> Any:
        """The official asynchronous ApiClient of the calling loop."""
        return self._client.api_client()

    @property
    def sync_client(self) -> Any:
        """The official synchronous ApiClient."""
        return self._client.sync_api_client()

    def record_event(self, obj: ObjectView, event: Mapping[str, str]) -> None:
        """Post an event in the background."""
        self._recorder.record(obj, event)
