"""How objects are written for one client: as they are, as metadata only, or as table rows.

And which of these it asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Protocol

import msgspec

from declctl.objects import KubeObject
from declctl.sandbox import status
from declctl.sandbox.history import Stored
from declctl.sandbox.kinds import ServedKind
from declctl.sandbox.kubectl import tables
from declctl.sandbox.lists import Page

Include = Literal["None", "Metadata", "Object"]
_META: Final = {"apiVersion": "meta.k8s.io/v1"}
_ENCODE: Final = msgspec.json.Encoder().encode


class Now(Protocol):
    """Where tables take the time from."""

    def now(self) -> datetime:
        """The wall clock, aware."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """Objects as they are."""

    def item(self, kind: ServedKind, stored: Stored) -> bytes:
        """The whole object."""
        return stored.encoded(kind)

    def bookmark(self, kind: ServedKind, metadata: KubeObject) -> bytes:
        """An object of the kind with metadata only."""
        return _ENCODE({"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata})

    def page(self, kind: ServedKind, page: Page) -> bytes:
        """A list; as in the real server, items of built-in kinds leave out apiVersion and kind."""
        start = f'{{"kind":"{kind.kind}List","apiVersion":"{kind.api_version}","metadata":'.encode()
        items = [stored.encoded(kind) if kind.custom else stored.data for stored in page.items]
        return b"".join((start, _ENCODE(_list_metadata(page)), b',"items":[', b",".join(items), b"]}"))


@dataclass(frozen=True, slots=True)
class MetadataOnly:
    """PartialObjectMetadata."""

    def item(self, kind: ServedKind, stored: Stored) -> bytes:  # noqa: ARG002 - the same for all kinds
        """The metadata of the object."""
        return _ENCODE(partial(stored.decode()["metadata"]))

    def bookmark(self, kind: ServedKind, metadata: KubeObject) -> bytes:  # noqa: ARG002 - the same for all kinds
        """Just that."""
        return _ENCODE(partial(metadata))

    def page(self, kind: ServedKind, page: Page) -> bytes:  # noqa: ARG002 - the same for all kinds
        """A PartialObjectMetadataList."""
        items = [partial(stored.decode()["metadata"]) for stored in page.items]
        return _ENCODE(
            {"kind": "PartialObjectMetadataList", **_META, "metadata": _list_metadata(page), "items": items}
        )


@dataclass(frozen=True, slots=True)
class TableRows:
    """Tables, as `kubectl get` asks for them. `include` says how much of the object each row carries."""

    clock: Now
    include: Include = "Metadata"

    def item(self, kind: ServedKind, stored: Stored) -> bytes:
        """A table of one row."""
        return self._table(kind, [stored], {"resourceVersion": str(stored.version)})

    def bookmark(self, kind: ServedKind, metadata: KubeObject) -> bytes:
        """A table with one empty row that carries the metadata."""
        row = {"cells": [""] * len(tables.columns_of(kind)), "object": partial(metadata)}
        columns = tables.definitions(kind)
        return _ENCODE(
            {"kind": "Table", **_META, "metadata": {}, "columnDefinitions": columns, "rows": [row]}
        )

    def page(self, kind: ServedKind, page: Page) -> bytes:
        """A table of all items."""
        return self._table(kind, page.items, _list_metadata(page))

    def _table(self, kind: ServedKind, items: Sequence[Stored], metadata: KubeObject) -> bytes:
        now = self.clock.now()
        rows: list[KubeObject] = []
        for stored in items:
            obj = stored.rendered(kind)
            row: KubeObject = {"cells": tables.cells(kind, obj, now)}
            if self.include == "Metadata":
                row["object"] = partial(obj["metadata"])
            elif self.include == "Object":
                row["object"] = obj
            rows.append(row)
        columns = tables.definitions(kind)
        return _ENCODE(
            {"kind": "Table", **_META, "metadata": metadata, "columnDefinitions": columns, "rows": rows}
        )


AnyForm = Plain | MetadataOnly | TableRows


def partial(metadata: KubeObject) -> KubeObject:
    """A PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", **_META, "metadata": metadata}


def negotiate(accept: str, clock: Now, *, include: str = "", several: bool = False) -> AnyForm:
    """The first form of an Accept header that this server writes; refused with 406 if there is none.

    `several`: for a list.
    """
    for offer in accept.split(",") if accept.strip() else ["*/*"]:
        media_type, *rest = (part.strip() for part in offer.split(";"))
        if media_type not in ("application/json", "*/*", "application/*"):
            continue
        params = dict(part.split("=", 1) for part in rest if "=" in part)
        form = _form(params, clock, include, several=several)
        if form is not None:
            return form
    raise status.not_acceptable()


def _form(params: dict[str, str], clock: Now, include: str, *, several: bool) -> AnyForm | None:
    if "as" not in params:
        return Plain()
    if params.get("g") != "meta.k8s.io" or params.get("v") not in ("v1", "v1beta1"):
        return None
    if params["as"] == "Table":
        return TableRows(clock, _include(include))
    wanted = "PartialObjectMetadataList" if several else "PartialObjectMetadata"
    return MetadataOnly() if params["as"] == wanted else None


def _include(text: str) -> Include:
    match text:
        case "None" | "Metadata" | "Object":
            return text
        case _:
            return "Metadata"


def _list_metadata(page: Page) -> KubeObject:
    metadata: KubeObject = {"resourceVersion": str(page.version)}
    if page.token:
        metadata["continue"] = page.token
    if page.remaining is not None:
        metadata["remainingItemCount"] = page.remaining
    return metadata
