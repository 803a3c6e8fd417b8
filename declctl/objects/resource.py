"""Kinds and resources of an API server, keys of objects, and the parameters of a LIST and a WATCH."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast
from urllib.parse import quote

import msgspec

from declctl.errors import NoKey
from declctl.objects.frame import KubeObject

_KIND = re.compile(r"(v[0-9]\w*|[^/\s]+/[^/\s]+)/[^/\s]+")  # only the core group has no name


class GroupVersionKind(msgspec.Struct, frozen=True):
    """What a manifest names: `apiVersion` and `kind`."""

    group: str
    version: str
    kind: str

    @classmethod
    def of(cls, api_version: str, kind: str) -> "GroupVersionKind":
        """From `apps/v1` or `v1`, and a kind."""
        group, _, version = api_version.rpartition("/")
        return cls(group, version, kind)

    @classmethod
    def parse(cls, text: str) -> "GroupVersionKind":
        """From `apps/v1/Deployment` or `v1/ConfigMap`. Raises ValueError for any other text."""
        if not _KIND.fullmatch(text):
            raise ValueError(f"{text!r} is no kind: write it as apps/v1/Deployment, or v1/ConfigMap")
        api_version, _, kind = text.rpartition("/")
        return cls.of(api_version, kind)

    @property
    def api_version(self) -> str:
        """As it stands in objects: `apps/v1`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return f"{self.api_version} {self.kind}"


class RequestSender(Protocol):
    """Sends requests to an API server, such as `declctl.transport.Client`. Used on one loop."""

    async def request_json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] = ...,
        body: KubeObject | Sequence[KubeObject] | None = None,
        content_type: str = "application/json",
    ) -> KubeObject:
        """One request; returns the JSON object of the answer. Raises the ApiError family."""
        ...


MOST_FIELD_MANAGER = 128
"""The most characters of a field manager that an API server accepts."""

PARTIAL_OBJECT_METADATA = GroupVersionKind("meta.k8s.io", "v1", "PartialObjectMetadata")
"""What objects of any kind are when only their metadata is asked for."""


class Resource(msgspec.Struct, frozen=True):
    """A kind as a server serves it: with its plural name, its scope, its verbs and its subresources."""

    gvk: GroupVersionKind
    plural: str
    namespaced: bool
    verbs: frozenset[str] = frozenset({"list", "watch"})
    subresources: frozenset[str] = frozenset()  # such as `status` and `scale`

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """The URL path of the collection, of one object, or of a subresource of it.

        `namespace` None means all (or cluster-scoped).
        """
        root = f"/apis/{self.gvk.group}/{self.gvk.version}" if self.gvk.group else f"/api/{self.gvk.version}"
        scope = f"/namespaces/{quote(namespace, safe='')}" if namespace and self.namespaced else ""
        tail = f"/{quote(name, safe='')}" if name else ""
        below = f"/{subresource}" if subresource else ""
        return f"{root}{scope}/{self.plural}{tail}{below}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.gvk.group}" if self.gvk.group else self.plural


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

    It is a string, so that listers accept it and plain strings alike; `namespace` and `name` are its parts.
    """

    __slots__ = ()

    @classmethod
    def of(cls, namespace: str | None, name: str) -> "ObjectKey":
        """The key of a namespace and a name; None or "" for cluster-scoped objects."""
        return cls(key_of(namespace, name))

    @classmethod
    def parse(cls, text: str) -> "ObjectKey":
        """Parse a key; raises ValueError for a text with more than one slash or an empty part."""
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
    """The key of an object (MetaNamespaceKeyFunc, DeletionHandlingMetaNamespaceKeyFunc, ExplicitKey).

    `obj` is an ObjectView, a record, a DeletedFinalStateUnknown, a mapping, a model of the official client,
    or a string, which is the key itself. Raises NoKey, with the object and the cause. From any thread.
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


class ListOptions(msgspec.Struct, frozen=True):
    """One page of a LIST.

    `resource_version` None is the most recent (quorum read), "0" is any version.
    `resource_version_match` is `Exact` or `NotOlderThan`. The selectors leave something of what the
    source gives, and so does `namespace` where the source is of all namespaces; a source that does not
    know it ignores it. `shard_selector` is as `Sharding.selector` makes it; a server that does not know it
    ignores it.
    """

    resource_version: str | None = None
    resource_version_match: str | None = None
    limit: int | None = None
    continue_token: str | None = None
    label_selector: str = ""
    field_selector: str = ""
    namespace: str | None = None
    shard_selector: str = ""


class WatchOptions(msgspec.Struct, frozen=True):
    """One WATCH from `resource_version`.

    `timeout_seconds` is when the server shall end it; bookmarks are always asked for. The selectors
    are as in ListOptions.

    `send_initial_events` asks for a streaming list (WatchList): the objects as ADDED, then a
    bookmark that says they ended.
    """

    resource_version: str | None = None
    timeout_seconds: int = 300
    send_initial_events: bool = False
    label_selector: str = ""
    field_selector: str = ""
    shard_selector: str = ""
