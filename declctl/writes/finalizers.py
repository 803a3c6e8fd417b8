"""Finalizers of handlers: added to objects, and removed from them.

Both are a JSON merge patch of the whole list, with the uid and the resource version of the state that it was
computed from. So a finalizer that another controller adds or removes meanwhile is a 409: the object is read,
and the patch is computed again.

`find_carriers` lists the objects with a finalizer, and `find_added` those with a finalizer that handlers of a
controller have added.
"""

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from declctl.decoding.projection import Known, Projection, nothing_known
from declctl.errors import Conflict, Expired, Forbidden, NotFound
from declctl.objects import (
    PARTIAL_OBJECT_METADATA,
    GroupVersionKind,
    KubeObject,
    ListOptions,
    ListPage,
    ObjectKey,
    Record,
    Resource,
)
from declctl.writes.gate import ApiWrite, WriteGate
from declctl.writes.ledger import WriteOrigin, WriteVerb, Written

T = TypeVar("T")
PAGE = 500
"""Objects of one page of a list."""

_MOST_LISTS = 5  # lists that may expire between two pages


def finalizers_of(obj: Mapping[str, Any]) -> Sequence[str]:
    """The finalizers of an object; empty without any."""
    return (obj.get("metadata") or {}).get("finalizers") or ()


def added_finalizers(obj: Mapping[str, Any], controller: str) -> Mapping[str, str]:
    """The finalizers of an object that handlers of a controller have added, each with its handler.

    Known by `managedFields`, whose managers are `declctl/<controller>/<handler>`: a handler with a
    `fieldManager` of its own, and one whose name is cut there, is not told from others.
    """
    prefix, there = f"declctl/{controller}/", finalizers_of(obj)
    found: dict[str, str] = {}
    for entry in (obj.get("metadata") or {}).get("managedFields") or ():
        manager = str(entry.get("manager") or "")
        if manager.startswith(prefix):
            of_metadata = (entry.get("fieldsV1") or {}).get("f:metadata") or {}
            owned = of_metadata.get("f:finalizers") or {}
            found |= {name: manager.removeprefix(prefix) for name in there if f'v:"{name}"' in owned}
    return found


def is_being_deleted(obj: Mapping[str, Any]) -> bool:
    """Whether an object is deleted as soon as it has no finalizer any more."""
    return bool((obj.get("metadata") or {}).get("deletionTimestamp"))


class FinalizedObject(msgspec.Struct, frozen=True):
    """One object, and the finalizer that it gets or loses."""

    resource: Resource
    key: ObjectKey
    uid: str
    finalizer: str
    manager: str
    origin: WriteOrigin


class FinalizerWriter:
    """Adds and removes finalizers. Used on the loop of the gate.

    Both methods return None if there is nothing to write. `known` is the newest state of the object that is
    known; if it is None, the object is read first.
    """

    def __init__(self, gate: WriteGate) -> None:
        self._gate = gate

    async def add(self, target: FinalizedObject, known: Mapping[str, Any] | None) -> Written | None:
        """Add a finalizer to an object that is neither gone nor being deleted.

        Raises NotLeader, and ApiError: Conflict after six patches that other writers have overtaken.
        """
        return await self._write(target, known, adds=True)

    async def remove(self, target: FinalizedObject, known: Mapping[str, Any] | None) -> Written | None:
        """Remove a finalizer, and no other one. Raises as `add`."""
        return await self._write(target, known, adds=False)

    async def _write(
        self, target: FinalizedObject, known: Mapping[str, Any] | None, *, adds: bool
    ) -> Written | None:
        conflicts = 0
        while True:
            obj = await self._read(target) if known is None else known
            finalizers = None if obj is None else _changed(obj, target, adds=adds)
            if obj is None or finalizers is None:
                return None
            version = obj["metadata"].get("resourceVersion")
            metadata: KubeObject = {
                "uid": target.uid,
                "resourceVersion": version,
                "finalizers": finalizers or None,
            }
            write = ApiWrite(
                WriteVerb.PATCH,
                target.resource,
                target.key,
                body={"metadata": metadata},
                manager=target.manager,
                awaits_event=True,
            )
            try:
                return await self._gate.send(write, target.origin)
            except NotFound:
                found = await self._read(target)
                if found is None or found["metadata"].get("uid") != target.uid:
                    return None
                raise  # a proxy has answered, or a server that is not ready
            except Conflict as error:
                await self._gate.wait_after(error, conflicts)
                conflicts += 1
                known = None

    async def _read(self, target: FinalizedObject) -> KubeObject | None:
        try:
            return await self._gate.read(target.resource, target.key.namespace, target.key.name)
        except NotFound:
            return None


def _changed(obj: Mapping[str, Any], target: FinalizedObject, *, adds: bool) -> list[str] | None:
    """The finalizers that the object shall have; None if they stay, or if it is another object."""
    there = list(finalizers_of(obj))
    if obj["metadata"].get("uid") != target.uid or (target.finalizer in there) is adds:
        return None
    if not adds:
        return [each for each in there if each != target.finalizer]
    # The API server refuses it, too.
    return None if is_being_deleted(obj) else [*there, target.finalizer]


class PageSource(Protocol):
    """Lists objects."""

    async def list(self, options: ListOptions, *, known: Known) -> ListPage:
        """One page; `known` returns cached records."""
        ...


class MetadataSource(Protocol):
    """The part of a client that lists of finalizers need."""

    def source(
        self,
        gvk: GroupVersionKind,
        *,
        namespace: str | None = ...,
        field_selector: str = ...,
        metadata_only: bool = ...,
        projection: Projection,
    ) -> PageSource:
        """A source of a kind."""
        ...


class FinalizerCarrier(msgspec.Struct, frozen=True):
    """An object that has a finalizer."""

    key: ObjectKey
    uid: str
    deletion_timestamp: str | None  # None unless it is being deleted


async def find_carriers(
    client: MetadataSource, kind: GroupVersionKind, finalizer: str, namespace: str | None = None
) -> list[FinalizerCarrier]:
    """The objects of a kind with a finalizer, in a namespace or in the cluster, by key.

    It lists the metadata of all objects of the kind there, in pages. Raises ApiError.
    """
    records, _ = await _listed(client, kind, lambda obj: finalizer in finalizers_of(obj), namespace)
    return sorted(map(_carrier, records), key=lambda carrier: carrier.key)


class AddedFinalizer(msgspec.Struct, frozen=True):
    """A finalizer of an object, and the handler that has added it; empty if that is not known."""

    handler: str
    finalizer: str
    carrier: FinalizerCarrier


async def find_added(
    client: MetadataSource,
    kind: GroupVersionKind,
    controller: str,
    *,
    names: Container[str] = (),
    namespace: str | None = None,
    name: str | None = None,
    most_pages: int | None = None,
) -> tuple[list[AddedFinalizer], bool]:
    """The finalizers that handlers of a controller have added to objects of a kind, by key; whether all.

    Known as in `added_finalizers`. `names` are listed whoever has added them. `name` is that of the only
    object. It lists the metadata of all objects of the kind, in at most `most_pages` pages of 500. Raises
    ApiError.
    """

    def wanted(obj: Mapping[str, Any]) -> Mapping[str, str]:
        listed = dict.fromkeys(filter(names.__contains__, finalizers_of(obj)), "")
        return {**listed, **added_finalizers(obj, controller)}

    selector = "" if name is None else f"metadata.name={name}"
    records, is_whole = await _listed(client, kind, wanted, namespace, selector, most_pages)
    found = [
        AddedFinalizer(handler, finalizer, _carrier(record))
        for record in records
        for finalizer, handler in wanted(record.read()).items()
    ]
    return sorted(found, key=lambda each: each.carrier.key), is_whole


async def find_carriers_of(
    client: MetadataSource, kind: GroupVersionKind, finalizer: str, namespaces: Iterable[str] | None
) -> list[FinalizerCarrier]:
    """As `find_carriers` in the cluster; without the right to that, in these namespaces. Raises ApiError.

    None for namespaces: of the cluster only. A kind that is not served has no objects.
    """
    return await find_in_any(lambda namespace: find_carriers(client, kind, finalizer, namespace), namespaces)


async def find_in_any(
    find: Callable[[str | None], Awaitable[list[T]]], namespaces: Iterable[str] | None
) -> list[T]:
    """What `find` finds in the cluster (None) or, without the right to that, in these namespaces.

    None for namespaces: in the cluster only. Raises the ApiError of `find`, but for NotFound.
    """
    try:
        return await find(None)
    except NotFound:
        return []
    except Forbidden:
        if namespaces is None:
            raise
        return [each for namespace in namespaces for each in await find(namespace)]


def _carrier(record: Record) -> FinalizerCarrier:
    deleted = (record.read().get("metadata") or {}).get("deletionTimestamp")
    return FinalizerCarrier(record.object_key, record.uid, deleted)


async def _listed(
    client: MetadataSource,
    kind: GroupVersionKind,
    is_wanted: Callable[[KubeObject], object],
    namespace: str | None,
    field_selector: str = "",
    most_pages: int | None = None,
) -> tuple[list[Record], bool]:
    """The metadata of the wanted objects of a kind, and whether that is all of them. Raises ApiError."""
    for left in reversed(range(_MOST_LISTS)):
        source = client.source(
            kind,
            namespace=namespace,
            field_selector=field_selector,
            metadata_only=True,
            projection=Projection(
                api_version=PARTIAL_OBJECT_METADATA.api_version,
                kind=PARTIAL_OBJECT_METADATA.kind,
                drop_fields=(),  # who has added a finalizer is in managedFields
                transform=lambda obj: obj if is_wanted(obj) else None,
            ),
        )
        try:
            return await _pages(source, most_pages)
        except Expired:
            if not left:
                raise
    raise AssertionError  # the last list has returned or raised


async def _pages(source: PageSource, most_pages: int | None) -> tuple[list[Record], bool]:
    """The records of a list, and whether that is all of it."""
    found: list[Record] = []
    token: str | None = None
    pages = 0
    while pages != most_pages:
        page = await source.list(ListOptions(limit=PAGE, continue_token=token), known=nothing_known)
        found += page.records
        token = page.continue_token
        if not token:
            return found, True
        pages += 1
    return found, False
