"""From a changed object to the keys of a reconciler (controller-runtime's sources, predicates and handlers).

A reconciler has a `KeySource` for its own resource, whose objects lead to their own keys, and one for each of
its `watches`, whose objects lead to other keys by `mapTo`. All of this runs on the machinery loop, between
cache and queue.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import msgspec

from declctl.errors import DeclctlError, NotSynced
from declctl.informer.stores.lister import Lister
from declctl.manifest.model import MappingSpec, OwnerSelection
from declctl.objects import (
    Cause,
    ChangeType,
    FieldPath,
    GroupVersionKind,
    Notification,
    ObjectKey,
    ObjectView,
    Resource,
)
from declctl.runtime.caching.managed_informer import ManagedInformer
from declctl.runtime.handling.binding import Filter, Report

KeysOf = Callable[[ObjectView], Iterable["str | UnusableValue"]]
"""Returns the keys to which an object leads, and what is no key; may raise any DeclctlError."""

_LONGEST_SHOWN = 300  # characters of a value in a log line; a key has 317 at most
_RESYNC = ChangeType.RESYNC
_REFERENCES = FieldPath.parse("metadata.ownerReferences[*]")


class UnusableValue(msgspec.Struct, frozen=True):
    """A value that a mapping has found, and that can't be a key of the reconciled kind."""

    text: str  # in quotes, or its type


class Mapped(NamedTuple):
    """What a change leads to: keys, and what has kept it from leading to further ones."""

    keys: Sequence[str] = ()  # each once
    no_keys: Sequence[UnusableValue] = ()
    failures: Sequence[DeclctlError] = ()  # of a filter or a mapping, at most one for each state


@dataclass(slots=True, eq=False)
class ReconciledKind:
    """The kind of the resource that a reconciler reconciles. Used on the machinery loop.

    `known` returns its resource as it was discovered last, None while it is not known: the server may be
    away at the start, or may serve the kind later.
    """

    gvk: GroupVersionKind
    known: Callable[[], Resource | None]
    lister: Lister | None  # of its objects; None for a mapping without an index
    _namespaced: bool | None = None  # as it was known last

    @property
    def namespaced(self) -> bool:
        """Whether its objects have namespaces. Raises NotSynced while that is not known."""
        # A kind may be forgotten for a moment, and may come again with another scope.
        if (found := self.known()) is not None:
            self._namespaced = found.namespaced
        if self._namespaced is None:
            raise NotSynced(
                f"whether {self.gvk.kind} has namespaces is not known: the kind was not found yet"
            )
        return self._namespaced

    def key(self, obj: ObjectView, text: str) -> "str | UnusableValue":
        """The key that a text of an object means: a key, or a name in the object's namespace.

        UnusableValue if the text is no key, or if a name leads nowhere, as only one of the kinds has
        namespaces.
        Raises NotSynced while the scope of the kind is not known.
        """
        namespaced, nowhere = self.namespaced, UnusableValue(repr(text[:_LONGEST_SHOWN]))
        if text.split() != [text]:
            return nowhere  # no name has white space
        if "/" in text:
            return text if namespaced and text.count("/") == 1 and all(text.split("/")) else nowhere
        if not namespaced:
            return text
        return ObjectKey.of(obj.namespace, text) if obj.namespace else nowhere


@dataclass(frozen=True, slots=True, eq=False)
class KeySource:
    """A resource whose changes lead to keys of a reconciler.

    `keys_of` is None for the reconciler's own resource: its objects lead to their own keys. A mapping leads
    to no key of a namespace that is not cached: a reconciler would take an object that is not cached for one
    that is gone.
    """

    resource: str  # its name in the manifest
    informers: Sequence[ManagedInformer]
    types: frozenset[ChangeType]  # changes of other types lead nowhere
    filter: Filter | None = None
    keys_of: KeysOf | None = None
    way: str = ""  # of `keys_of`, in the words of the manifest
    # Whether the cache of the reconciler's own resource has all objects of a namespace now; None: of any.
    caches: Callable[[str], bool] | None = None

    def keys(self, notification: Notification, report: Report) -> Mapped:
        """The keys to which a change leads. Raises nothing.

        `report` takes the message of a filter's expression that has failed, which counts as false.
        The state before a change counts as well as the new one: an object may have had another owner. If one
        of them fails, the other leads to its keys all the same.
        """
        if notification.type not in self.types:
            return Mapped()
        own = (notification.key,)
        if self.filter is None and self.keys_of is None:
            return Mapped(own)
        obj, old = ObjectView(notification.record), None
        # A Deleted has an old state if it was merged with a Modified before it.
        if notification.type is not _RESYNC and notification.old is not None:
            old = ObjectView(notification.old)
        try:
            passes = (
                self.filter is None or self.filter.apply(notification, obj, old, None, report) is not None
            )
        # FilterFailed. An object that can't be decoded raises a DeclctlError, too.
        except DeclctlError as failure:
            return Mapped(failures=(failure,))
        if self.keys_of is None or not passes:
            return Mapped(own if passes else ())
        return self._mapped(self.keys_of, (obj,) if old is None else (obj, old))

    def _mapped(self, keys_of: KeysOf, states: Iterable[ObjectView]) -> Mapped:
        """The keys to which the states of an object lead."""
        keys, no_keys = dict[str, None](), dict[UnusableValue, None]()
        failures: list[DeclctlError] = []
        for state in states:
            try:
                for key in keys_of(state):
                    if isinstance(key, UnusableValue):
                        no_keys[key] = None
                    elif self._is_cached(key):
                        keys[key] = None
            except DeclctlError as failure:
                failures.append(failure)
        return Mapped(tuple(keys), tuple(no_keys), failures)

    def _is_cached(self, key: str) -> bool:
        namespace, slash, _ = key.partition("/")
        return self.caches is None or not slash or self.caches(namespace)

    def cause(self, notification: Notification) -> Cause:
        """The cause that a change is for the keys to which it leads."""
        return Cause(str(notification.type), self.resource, str(notification.key), str(notification.reason))


def keys_of(
    spec: MappingSpec, kind: ReconciledKind, function: Callable[[ObjectView], Iterable[object]] | None
) -> KeysOf:
    """The mapping that a manifest declares; `function` is that of its entry point."""
    if function is not None:
        return partial(_named, kind, function)
    if spec.owner is not None:
        return partial(_owners, kind, controller_only=spec.owner is OwnerSelection.CONTROLLER)
    if spec.index is not None:
        assert kind.lister is not None
        return partial(_indexed, kind.lister, spec.index)
    if spec.label is not None:
        label = spec.label
        # A record has its labels: a field path would decode the object.
        return partial(_named, kind, lambda obj: [obj.labels[label]] if label in obj.labels else [])
    if spec.annotation is not None:
        return partial(_named, kind, FieldPath(("metadata", "annotations", spec.annotation)).values)
    assert spec.field_path is not None  # the schema asks for one of the ways
    return partial(_named, kind, FieldPath.parse(spec.field_path).values)


def _owners(kind: ReconciledKind, obj: ObjectView, *, controller_only: bool) -> Iterator[str]:
    """The owners of an object that are of the reconciled kind, in any of its versions."""
    for reference in _REFERENCES.find(obj):
        # An aggregated API may serve a reference that kube-apiserver would refuse: it leads nowhere.
        if not isinstance(reference, Mapping):
            continue
        found = cast("Mapping[str, object]", reference)
        if controller_only and found.get("controller") is not True:
            continue
        api_version, name = str(found.get("apiVersion")), found.get("name")
        gvk = GroupVersionKind.of(api_version, str(found.get("kind")))
        if (gvk.group, gvk.kind) != (kind.gvk.group, kind.gvk.kind):
            continue
        # An owner is in the namespace of what it owns, or has none.
        key = kind.key(obj, name) if name and isinstance(name, str) else None
        if isinstance(key, str):
            yield key


def _indexed(lister: Lister, index: str, obj: ObjectView) -> Sequence[str]:
    """The reconciled objects that an index has under the key of an object, and in its namespace by its name.

    A reference by name, such as that of a pod to its ConfigMap, is to an object of the same namespace.
    """
    try:
        found = [each.key for each in lister.by_index(index, obj.key)]
        if obj.namespace is not None:
            near = lister.by_index(index, obj.name)
            found += [each.key for each in near if each.namespace == obj.namespace]
        return found
    except NotSynced:
        return ()  # its first sync leads to every key


def _named(
    kind: ReconciledKind, names: Callable[[ObjectView], Iterable[object]], obj: ObjectView
) -> Iterator[str | UnusableValue]:
    """The objects whose names or keys are in a label, an annotation or a field, or come from a function."""
    for name in names(obj):
        if not isinstance(name, str):
            yield UnusableValue(f"a value of type {type(name).__name__}")
        elif name:  # an empty value names nothing
            yield kind.key(obj, name)
