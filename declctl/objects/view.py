"""Views: an object as a handler reads it."""

from abc import ABCMeta
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import msgspec

from declctl.objects.key import ObjectKey, name_of, namespace_of
from declctl.objects.read_only import ReadOnlyDict, refuse
from declctl.objects.record import KubeObject, Record

if TYPE_CHECKING:
    _ReadOnlyMapping = Mapping[str, Any]
else:

    class _ReadOnlyMapping:
        """A struct can't inherit from Mapping, whose metaclass is another: it is registered as one, below."""

        __slots__ = ()


class ObjectView(msgspec.Struct, _ReadOnlyMapping, eq=False):
    """A read-only mapping of a whole object, private to its reader.

    Name, namespace, uid, labels, resource version and key are read without decoding; anything else
    decodes the object once for this view; where a cache holds objects decoded, nothing. What is inside
    is read-only as well (`read_only`): a write raises TypeError at that line. Who wants to change
    something takes `to_dict()`; a deep copy and a pickle give the same.
    """

    # A struct is made in a quarter of the time of a class with `__init__`: listers make thousands at once.
    _record: Record
    _body: KubeObject | None = None

    def __getitem__(self, field: str) -> Any:
        body = self._body
        if body is None:
            body = self._decoded()
        return body[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    def __len__(self) -> int:
        return len(self._decoded())

    def __contains__(self, field: object) -> bool:
        return field in self._decoded()

    def __eq__(self, other: object) -> bool:
        return self._decoded() == dict(other) if isinstance(other, Mapping) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other  # a struct has a __ne__ of its own, by identity

    __hash__ = None

    def get(self, field: str, default: Any = None) -> Any:
        """What stands in a field; `default` if the object does not have it."""
        return self._decoded().get(field, default)

    def keys(self) -> KeysView[str]:
        """The names of the fields."""
        return self._decoded().keys()

    def values(self) -> ValuesView[Any]:
        """What stands in them."""
        return self._decoded().values()

    def items(self) -> ItemsView[str, Any]:
        """Both."""
        return self._decoded().items()

    def __bool__(self) -> bool:
        return True  # there is always a kind: `if old:` need not decode to know

    @property
    def key(self) -> ObjectKey:
        """`namespace/name`, or `name`."""
        return self._record.object_key

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return name_of(self._record.key)

    @property
    def namespace(self) -> str | None:
        """`metadata.namespace`; None for a cluster-scoped object."""
        return namespace_of(self._record.key)

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

    def __deepcopy__(self, memo: dict[int, Any]) -> KubeObject:
        return self.to_dict()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.to_dict(),)

    def __repr__(self) -> str:
        record = self._record
        return f"<{record.layout.kind} {record.key} resourceVersion={record.resource_version}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        # That of a struct would show the whole object, maybe a Secret, in a traceback with local variables.
        record = self._record
        return [("kind", record.layout.kind), ("key", record.key)]

    def _decoded(self) -> KubeObject:
        body = self._body
        if body is None:
            self._body = body = ReadOnlyDict(self._record.read())
        return body

    if not TYPE_CHECKING:  # to a type checker a write is an error already
        __setitem__ = __delitem__ = refuse


cast("ABCMeta", Mapping).register(ObjectView)


_RECORD: Callable[[ObjectView], Record] = attrgetter("_record")


def record_of(view: ObjectView) -> Record:
    """The record that a view reads."""
    return _RECORD(view)
