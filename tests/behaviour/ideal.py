"""What has to be heard: an ideal controller, which knows objects and bundles and nothing of caches.

It is one sentence, twice: a handler sees the objects of its resource that are in the scope and pass the
filter, and it hears how what it sees changes, whether somebody wrote an object or edited the bundle.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

KINDS = {"maps": "ConfigMap", "secrets": "Secret"}
PLURALS = {"maps": "configmaps", "secrets": "secrets"}
NAMESPACES = ("a", "b")
LABELLED = ("team=web",)
"""The scope of a resource that selects namespaces by their label."""
COLORS = ("red", "blue")


class Obj(NamedTuple):
    """One object. `seq` is the number of its last write."""

    resource: str
    namespace: str
    name: str
    uid: str
    seq: int
    color: str


class Heard(NamedTuple):
    """One change, as a handler of a version of the code hears it."""

    handler: str
    type: str
    key: str
    uid: str
    seq: int
    reason: str
    version: int


@dataclass(frozen=True)
class HandlerOf:
    """A handler. `flavour` is how its code is written, `color` what its filter lets pass."""

    resource: str
    flavour: str = "def"
    color: str | None = None


@dataclass(frozen=True)
class Bundle:
    """A manifest and its code. `scopes` has the namespaces of each resource; none means all.

    `labelled` are the namespaces of the cluster that have the label now.
    """

    version: int = 1
    scopes: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"maps": ()})
    handlers: Mapping[str, HandlerOf] = field(default_factory=lambda: {"one": HandlerOf("maps")})
    index: str = ""
    labelled: frozenset[str] = frozenset()

    def has(self, resource: str, namespace: str) -> bool:
        """Whether a namespace is in the scope of a resource."""
        scope = self.scopes[resource]
        return namespace in self.labelled if scope == LABELLED else not scope or namespace in scope

    def sees(self, handler: str, obj: Obj | None) -> bool:
        """Whether an object is the handler's business."""
        of = self.handlers[handler]
        if obj is None or of.resource != obj.resource:
            return False
        return self.has(of.resource, obj.namespace) and of.color in (None, obj.color)

    @property
    def has_code(self) -> bool:
        """Whether the handlers' file is read at all."""
        return bool(self.handlers) or "entryPoint" in self.index

    def watches(self) -> set[tuple[str, str, bool]]:
        """What is watched: plurals, namespaces ("" for all), and whether a label selects these."""
        found = {("namespaces", "", True)} if LABELLED in self.scopes.values() else set()
        for resource, scope in self.scopes.items():
            by_label = scope == LABELLED
            for namespace in self.labelled if by_label else scope or ("",):
                found.add((PLURALS[resource], namespace, by_label))
        return found

    def without(self, resource: str) -> "Bundle":
        """The same without a resource, and without its handlers."""
        return replace(
            self,
            scopes={name: scope for name, scope in self.scopes.items() if name != resource},
            handlers={name: of for name, of in self.handlers.items() if of.resource != resource},
        )


class Ideal:
    """Objects, the bundle that runs, and what its handlers have to hear next."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.objects: dict[tuple[str, str, str], Obj] = {}

    def write(self, before: Obj | None, after: Obj | None) -> list[Heard]:
        """Somebody created, changed or deleted an object."""
        obj = after or before
        assert obj is not None
        place = obj.resource, obj.namespace, obj.name
        self.objects.pop(place, None)
        if after is not None:
            self.objects[place] = after
        return [
            heard
            for name in self.bundle.handlers
            for heard in self._crossing(name, before, after, self.bundle.sees(name, before))
        ]

    def edit(self, bundle: Bundle) -> list[Heard]:
        """A bundle takes over. Who was there before hears differences, who is new hears everything.

        A handler that goes to another kind is a new one. Nothing is told of the old kind.
        """
        old, self.bundle = self.bundle, bundle
        told: list[Heard] = []
        for name, handler in bundle.handlers.items():
            before = old.handlers.get(name)
            stays = before is not None and before.resource == handler.resource
            seen = self._seen(old, name) if stays else set[Obj]()
            sees = self._seen(bundle, name)
            told += [self._heard(name, "Deleted", obj, "OutOfScope") for obj in seen - sees]
            told += [self._heard(name, "Added", obj, "Initial") for obj in sees - seen]
        return told

    def indexed(self, resource: str) -> dict[str, set[str]]:
        """The keys of each value of the index that the bundle defines; nothing without one."""
        found: dict[str, set[str]] = {}
        for obj in self.objects.values() if self.bundle.index else ():
            if obj.resource == resource and self.bundle.has(resource, obj.namespace):
                value = str(obj.seq) if "data.seq" in self.bundle.index else obj.color
                found.setdefault(value, set()).add(f"{obj.namespace}/{obj.name}")
        return found

    def _seen(self, bundle: Bundle, name: str) -> set[Obj]:
        return {obj for obj in self.objects.values() if bundle.sees(name, obj)}

    def _crossing(self, name: str, before: Obj | None, after: Obj | None, seen: bool) -> Iterable[Heard]:
        if after is not None and self.bundle.sees(name, after):
            yield self._heard(name, "Modified" if seen else "Added", after, "Watch")
        elif seen and before is not None:
            left = after is not None  # it is still there: a filter keeps it away
            yield self._heard(name, "Deleted", before, "OutOfScope" if left else "Watch")

    def _heard(self, name: str, kind: str, obj: Obj, reason: str) -> Heard:
        key = f"{obj.namespace}/{obj.name}"
        return Heard(name, kind, key, obj.uid, obj.seq, reason, self.bundle.version)
