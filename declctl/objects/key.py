"""The name of an object within its resource, as kubectl prints it."""

from collections.abc import Mapping
from typing import Any, cast

from declctl.errors import NoKey


def key_of(namespace: str | None, name: str) -> str:
    """The key as a plain string, which is what caches are keyed by."""
    return f"{namespace}/{name}" if namespace else name


def namespace_of(key: str) -> str | None:
    """The namespace in a key; None for a cluster-scoped object."""
    namespace, slash, _ = key.partition("/")
    return namespace if slash else None


def name_of(key: str) -> str:
    """The name in a key."""
    return key.rpartition("/")[2]


class ObjectKey(str):
    """`namespace/name`, or `name` for cluster-scoped kinds (client-go's MetaNamespaceKeyFunc).

    It is the string, so that a lister takes either form; `namespace` and `name` are its parts.
    """

    __slots__ = ()

    @classmethod
    def of(cls, namespace: str | None, name: str) -> "ObjectKey":
        """The key of a name; an empty or absent namespace means cluster-scoped."""
        return cls(key_of(namespace, name))

    @classmethod
    def parse(cls, text: str) -> "ObjectKey":
        """The key that `text` prints.

        Raises ValueError when it has more than one slash or an empty part.
        """
        parts = text.split("/")
        if len(parts) > 2 or not all(parts):
            raise ValueError(f"{text!r} is no key: a key is namespace/name, or name for cluster-scoped kinds")
        return cls(text)

    @property
    def namespace(self) -> str | None:
        """The namespace; None for a cluster-scoped object."""
        return namespace_of(self)

    @property
    def name(self) -> str:
        """The name."""
        return name_of(self)


def meta_namespace_key(obj: object) -> ObjectKey:
    """The key of an object, in whichever form it is at hand.

    A view, a record and a missed delete know their keys; a string is one; a mapping, or a model of the
    official client, has it in its metadata. Raises NoKey, which has the object and the cause
    (client-go's MetaNamespaceKeyFunc, DeletionHandlingMetaNamespaceKeyFunc and ExplicitKey).
    """
    known = obj if isinstance(obj, str) else getattr(obj, "key", None)
    if isinstance(known, str) and known:
        return ObjectKey(known)
    try:
        metadata = _field(obj, "metadata")
        name, namespace = _field(metadata, "name"), _field(metadata, "namespace", None)
        if not isinstance(name, str) or not name or not isinstance(namespace, str | None):
            raise ValueError(f"the name is {name!r} and the namespace {namespace!r}")
    except (AttributeError, KeyError, ValueError) as fault:
        raise NoKey(f"a {type(obj).__name__} has no key: {fault}", obj) from fault
    return ObjectKey.of(namespace, name)


def _field(holder: Any, name: str, *default: Any) -> Any:
    if isinstance(holder, Mapping):
        fields = cast("Mapping[str, Any]", holder)
        return fields.get(name, *default) if default else fields[name]
    return getattr(holder, name, *default)
