"""Views: an object as a handler reads it."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from declctl.objects.key import ObjectKey
from declctl.objects.record import KubeObject, Record


class ObjectView(Mapping[str, Any]):
    """A read-only mapping of a whole object, private to its reader.

    Name, namespace, uid, labels, resource version and key are read without decoding; anything else
    decodes the object once for this view. What is inside is the reader's own copy: changing it
    changes nothing in the cache. Only where a cache holds objects decoded do its readers share them:
    then a view decodes nothing, and who wants to change something takes `to_dict()`.
    """

    __slots__ = ("_body", "_record")

    def __init__(self, record: Record) -> None:
        self._record = record
        self._body: KubeObject | None = None

    def __getitem__(self, field: str) -> Any:
        return self._decoded()[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    def __len__(self) -> int:
        return len(self._decoded())

    def __bool__(self) -> bool:
        return True  # there is always a kind: `if old:` need not decode to know

    @property
    def key(self) -> ObjectKey:
        """`namespace/name`, or `name`."""
        return self._record.object_key

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self._record.object_key.name

    @property
    def namespace(self) -> str | None:
        """`metadata.namespace`; None for a cluster-scoped object."""
        return self._record.object_key.namespace

    @property
    def uid(self) -> str:
        """`metadata.uid`."""
        return self._record.uid

    @property
    def resource_version(self) -> str:
        """`metadata.resourceVersion`: opaque; only to be compared for equality."""
        return self._record.resource_version

    @property
    def labels(self) -> Mapping[str, str]:
        """`metadata.labels`, read-only; empty if there are none."""
        return self._record.labels

    @property
    def annotations(self) -> Mapping[str, str]:
        """`metadata.annotations`, read-only; empty if there are none. Decodes."""
        metadata = self._decoded().get("metadata") or {}
        return MappingProxyType(metadata.get("annotations") or {})

    def to_dict(self) -> KubeObject:
        """A private deep copy, free to be changed."""
        return self._record.decode()

    def __repr__(self) -> str:
        record = self._record
        return f"<{record.layout.kind} {record.key} resourceVersion={record.resource_version}>"

    def _decoded(self) -> KubeObject:
        if self._body is None:
            self._body = self._record.read()
        return self._body
