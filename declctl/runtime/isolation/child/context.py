"""`ctx` in a child: the `Context` of every handler, whose parts ask the parent.

Each question is answered while the call runs. For a write, a read of a cache, or a request of an official
client, the parent does what it would do for a call in its own process, with the same limits and checks.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec

from declctl.informer.stores.lister import CacheSnapshot, Selector, Views
from declctl.kit import running_loop
from declctl.kit.callbacks import CodeLine
from declctl.objects import LabelSelector, ObjectKey, ObjectView
from declctl.objects.record import record_of
from declctl.runtime.handling.context import Forgotten
from declctl.runtime.isolation.child.channel import AskedFuture, CallChannel, ParentChannel
from declctl.runtime.isolation.protocol import Tell, from_plain, shown, shown_text
from declctl.writes import (
    AppliedSet,
    CallScope,
    EventText,
    Writable,
    WriteOrigin,
    Written,
    document_of,
    documents_of,
    propagation_of,
    reference_to,
    status_change,
)


def time_of_parent(channel: CallChannel) -> datetime:
    """The present time by the clock of the parent, which a test advances."""
    return datetime.fromisoformat(channel.ask("now"))


class ParentLog:
    """The end of structlog's chain in a child: a line goes to the parent, which writes it."""

    def __init__(self, channel: ParentChannel, logger: str | None = None) -> None:
        self._channel = channel
        self._logger = logger

    def tell(self, level: str, event: object, fields: Mapping[str, Any]) -> None:
        """Send a line."""
        self._channel.tell(
            Tell(self._logger, level, shown_text(event), {shown_text(n): shown(v) for n, v in fields.items()})
        )


class CacheOfParent:
    """A lister or a snapshot of the parent's cache: the reads of `CacheReader`, each a question.

    `source` is the kind (lister, snapshot, taken) and the name or number, as the parent knows it; `view` is
    the class of the objects.
    """

    def __init__(
        self, channel: CallChannel, source: tuple[str, str | int], name: str, view: type[ObjectView]
    ) -> None:
        self._channel = channel
        self._source = source
        self.name = name
        self.view = view

    @property
    def has_synced(self) -> bool:
        """Whether the first list of the resource is in the cache."""
        return bool(self._read("has_synced"))

    def get(self, key: str) -> ObjectView | None:
        """See `CacheReader.get`."""
        found = self._read("get", str(key))
        return None if found is None else self._views([found])[0]

    def list(self, *, namespace: str | None = None, selector: Selector | None = None) -> Views:
        """See `CacheReader.list`."""
        wanted = str(selector) if isinstance(selector, LabelSelector) else selector
        return self._views(self._read("list", namespace, wanted))

    def by_index(self, name: str, value: str) -> Views:
        """See `CacheReader.by_index`."""
        return self._views(self._read("by_index", name, value))

    def index_values(self, name: str) -> Sequence[str]:
        """See `CacheReader.index_values`."""
        return list(self._read("index_values", name))

    def keys(self) -> "list[ObjectKey]":
        """See `CacheReader.keys`."""
        return [ObjectKey(key) for key in self._read("keys")]

    def index_names(self) -> Sequence[str]:
        """See `CacheReader.index_names`."""
        return list(self._read("index_names"))

    def snapshot(self) -> "CacheOfParent":
        """All objects at this moment, for any number of reads of this call."""
        return CacheOfParent(self._channel, ("taken", self._read("snapshot")), self.name, self.view)

    def __len__(self) -> int:
        return int(self._read("len"))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self._read("contains", str(key)))

    def __iter__(self) -> Iterator[ObjectView]:
        if self._source[0] == "lister":
            raise TypeError("a lister is not iterable: write .list(), or iterate over a snapshot")
        return iter(self.list())

    def __repr__(self) -> str:
        return f"<{self._source[0]} of {self.name}>"

    def _read(self, what: str, *given: Any) -> Any:
        return self._channel.ask("read", list(self._source), what, *given)

    def _views(self, found: Any) -> Views:
        plain = msgspec.convert(found, list[ObjectView], dec_hook=from_plain)
        return Views(list(map(record_of, plain)), self.view)


def snapshot_of_parent(channel: CallChannel, name: str, view: type[ObjectView]) -> CacheSnapshot:
    """A snapshot of `includeSnapshotsFrom`."""
    return cast("CacheSnapshot", CacheOfParent(channel, ("snapshot", name), name, view))


class WritesOfParent:
    """The writes of one call (`HandlerWrites`): checked here, and made by the parent."""

    def __init__(self, channel: CallChannel, scope: CallScope) -> None:
        self._channel = channel
        self._scope = scope

    def apply(self, obj: object, *, force: bool | None = None) -> "AskedWrite":
        """See `Context.apply`."""
        return AskedWrite("apply", Written, (document_of(obj).body, force))

    def apply_set(self, objects: Iterable[object]) -> "AskedWrite":
        """See `Context.apply_set`."""
        return AskedWrite("apply_set", AppliedSet, ([each.body for each in documents_of(objects)],))

    def patch_status(
        self, conditions: Iterable[Writable], fields: Mapping[str, Any], is_whole: bool
    ) -> "AskedWrite":
        """See `status_arguments`."""
        change = status_change(self._scope, conditions, fields, is_whole=is_whole)
        return AskedWrite("patch_status", Written, (change.conditions, change.fields, is_whole))

    def get(self, kind: object, name: object, namespace: object) -> "AskedWrite":
        """See `Context.get`."""
        reference_to(kind, name, namespace)  # raises for what can't be asked
        return AskedWrite("get", ObjectView | None, (kind, name, namespace))

    def delete(
        self, given: object, name: object, namespace: object, *, propagation: object, uid: object
    ) -> "AskedWrite":
        """See `Context.delete`."""
        it, how = reference_to(given, name, namespace, uid), propagation_of(propagation)
        kind = f"{it.kind.api_version}/{it.kind.kind}"
        return AskedWrite("delete", bool, (kind, it.name, it.namespace, it.uid or None, how))

    def begin(self, work: "AskedWrite", forgotten: Forgotten, line: CodeLine | None) -> AskedFuture:
        """Ask for a write. On the loop of a hook."""
        return AskedFuture(self._channel, work.read, work.verb, work.given, forgotten, line)

    def wait(self, work: "AskedWrite") -> Any:
        """Ask for a write, and return its result. Blocks."""
        return work.read(self._channel.ask(work.verb, *work.given))


class AskedWrite(msgspec.Struct, frozen=True):
    """A write, or a `get`, that was checked, and that the parent makes."""

    verb: str
    kind: Any  # the type of its result
    given: tuple[Any, ...]

    def read(self, answer: Any) -> Any:
        """The result of an answer."""
        return msgspec.convert(answer, self.kind, dec_hook=from_plain)


class ClientsOfParent:
    """The official clients of a child, whose requests the parent sends for the call that runs."""

    def __init__(self, channel: ParentChannel) -> None:
        self._channel = channel
        self._async: dict[asyncio.AbstractEventLoop, Any] = {}
        self._sync: Any = None

    def asynchronous(self) -> Any:
        """The asynchronous ApiClient of this loop. Raises RuntimeError where none runs."""
        loop = running_loop()
        if loop is None:
            raise RuntimeError(
                "the asynchronous client belongs to a loop, so it is for `async def` hooks; a `def` hook has "
                "ctx.sync_client"
            )
        if loop not in self._async:
            from declctl.runtime.isolation.child.clients import async_client  # late: half a second

            self._async[loop] = async_client(self._channel)
        return self._async[loop]

    def synchronous(self) -> Any:
        """The synchronous ApiClient."""
        if self._sync is None:
            from declctl.runtime.isolation.child.clients import sync_client  # late: half a second

            self._sync = sync_client(self._channel)
        return self._sync


class ClusterOfParent:
    """The access to the cluster (`ClusterAccess`) of the context of one call."""

    def __init__(self, channel: CallChannel, clients: ClientsOfParent) -> None:
        self._channel = channel
        self._clients = clients

    @property
    def client(self) -> Any:
        """The official asynchronous ApiClient, whose requests the parent sends."""
        return self._clients.asynchronous()

    @property
    def sync_client(self) -> Any:
        """The official synchronous ApiClient, whose requests the parent sends."""
        return self._clients.synchronous()

    def writes(self, _environment: object, scope: CallScope) -> WritesOfParent:
        """The writes of one call."""
        return WritesOfParent(self._channel, scope)

    def record_event(self, obj: Mapping[str, Any], text: EventText, _origin: WriteOrigin) -> None:
        """Post an event in the background. Raises what `Context.record_event` raises."""
        about: Any = None
        if isinstance(obj, Mapping):  # type: ignore[reportUnnecessaryIsInstance] - of user code
            about = {name: obj[name] for name in ("apiVersion", "kind", "metadata") if name in obj}
        self._channel.ask("record_event", about, text.reason, text.note, text.type, text.action)
