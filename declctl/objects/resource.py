"""Kinds of things that an API server serves, and the URLs at which it serves them."""

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class GroupVersionKind:
    """What a manifest names: `apiVersion` and `kind`."""

    group: str
    version: str
    kind: str

    @classmethod
    def of(cls, api_version: str, kind: str) -> "GroupVersionKind":
        """From `apps/v1` or `v1`, and a kind."""
        group, _, version = api_version.rpartition("/")
        return cls(group, version, kind)

    @property
    def api_version(self) -> str:
        """As it stands in objects: `apps/v1`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return f"{self.api_version} {self.kind}"


PARTIAL_OBJECT_METADATA = GroupVersionKind("meta.k8s.io", "v1", "PartialObjectMetadata")
"""What objects of any kind are when only their metadata is asked for."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind as a server serves it: with its plural name, its scope and its verbs."""

    gvk: GroupVersionKind
    plural: str
    namespaced: bool
    verbs: frozenset[str] = frozenset({"list", "watch"})

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """The URL path of the collection or of one object.

        `namespace` None means all (or cluster-scoped).
        """
        root = f"/apis/{self.gvk.group}/{self.gvk.version}" if self.gvk.group else f"/api/{self.gvk.version}"
        scope = f"/namespaces/{quote(namespace, safe='')}" if namespace and self.namespaced else ""
        tail = f"/{quote(name, safe='')}" if name else ""
        return f"{root}{scope}/{self.plural}{tail}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.gvk.group}" if self.gvk.group else self.plural
