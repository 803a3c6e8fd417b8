"""The objects of a sandbox, for whoever holds the sandbox.

What a test or a program does to the cluster without HTTP.

Everything here follows the rules of the HTTP side, with one liberty: `create` and `update` may bring a
status, because there is no controller that would write it. Not safe for threads: call it on the loop of the
server (`SandboxThread` does).
"""

import random
from collections.abc import Iterable
from typing import Any

from declctl.errors import SandboxError
from declctl.kit import Clock
from declctl.objects import KubeObject
from declctl.sandbox import validation
from declctl.sandbox.history import History
from declctl.sandbox.kinds import Registry, ServedKind
from declctl.sandbox.patches import MERGE_PATCH, Patch, Patcher
from declctl.sandbox.remover import Remover
from declctl.sandbox.status import Refusal
from declctl.sandbox.targets import Deletion, Target, Write
from declctl.sandbox.writer import Writer

_HERE = Write(keep_status=True, manager="sandbox")
_FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


class ObjectStore:
    """Objects by kind. Kinds are named as people name them: `Pod`, `pods`, `po`, or `Event.events.k8s.io`."""

    def __init__(self, *, clock: Clock, chance: random.Random) -> None:
        self.registry = Registry()
        self.history = History()
        self.remover = Remover(self.history, self.registry, clock)
        self.writer = Writer(self.history, self.registry, self.remover, clock=clock, chance=chance)
        self.patcher = Patcher(self.writer)
        for name in _FIRST_NAMESPACES:
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    @property
    def version(self) -> int:
        """The newest resource version."""
        return self.history.version

    def create(self, obj: KubeObject) -> KubeObject:
        """Create an object as it is written; returns it as stored.

        Raises SandboxError with the server's words.
        """
        kind = self._kind_of(obj)
        return _told(lambda: self.writer.create(kind, _namespace(kind, obj), obj, _HERE))

    def update(self, obj: KubeObject, *, subresource: str = "") -> KubeObject:
        """Replace an object, status included.

        Without metadata.resourceVersion whatever is there is replaced.
        """
        kind = self._kind_of(obj)
        target = Target(kind, _namespace(kind, obj), obj["metadata"]["name"])
        write = Write(keep_status=True, manager="sandbox", subresource=subresource)
        return _told(lambda: self.writer.replace(target, obj, write))

    def patch(
        self,
        kind: str,
        name: str,
        patch: Any,
        *,
        namespace: str = "default",
        media_type: str = MERGE_PATCH,
        subresource: str = "",
    ) -> KubeObject:
        """Patch an object, status included; by default with a JSON merge patch."""
        target = Target(self.kind(kind), namespace, name)
        write = Write(keep_status=True, manager="sandbox", subresource=subresource)
        return _told(lambda: self.patcher.patch(target, Patch(media_type, patch), write)[0])

    def delete(self, kind: str, name: str, namespace: str | None = None) -> KubeObject:
        """Delete an object (or mark it, if it has finalizers); returns its last state."""
        target = Target(self.kind(kind), namespace or "default", name)
        return _told(lambda: self.remover.delete(target, Deletion())[0])

    def get(self, kind: str, name: str, namespace: str | None = None) -> KubeObject:
        """One object; raises SandboxError if there is none."""
        target = Target(self.kind(kind), namespace or "default", name)
        return _told(lambda: self.writer.existing(target).rendered(target.kind))

    def objects(self, kind: str, namespace: str | None = None) -> list[KubeObject]:
        """All objects of a kind, in the order of their namespaces and names."""
        served = self.kind(kind)
        snapshot = self.history.collection(served.resource).present(self.version)
        return [stored.rendered(served) for stored in snapshot.within(namespace or "")]

    def load(self, documents: Iterable[KubeObject]) -> list[str]:
        """Create objects, definitions and namespaces first; returns `kind/name` lines in that order.

        Lists are taken apart; a namespace that isn't there is created; what was there before the call is
        replaced. Raises SandboxError that counts documents from 0.
        """
        entries = sorted(_flat(documents), key=lambda entry: _rank(entry[1]))
        lines: list[str] = []
        done: set[tuple[str, str, str]] = set()
        for index, obj in entries:
            try:
                lines += self._load_one(obj, done)
            except SandboxError as error:
                raise SandboxError(f"document {index}: {_described(obj)}: {error}") from error
        return lines

    def kind(self, word: str) -> ServedKind:
        """The kind that a word names; raises SandboxError if there is none."""
        kind = self.registry.find(word)
        if kind is None:
            raise SandboxError(
                f"the sandbox serves no kind {word!r}: create its CustomResourceDefinition first"
            )
        return kind

    def _load_one(self, obj: KubeObject, done: set[tuple[str, str, str]]) -> list[str]:
        kind = self._kind_of(obj)
        lines: list[str] = []
        namespace = _namespace(kind, obj)
        if kind.namespaced and self.history.get(("", "namespaces"), namespace) is None:
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
            lines.append(f"namespace/{namespace}")
        name = (obj.get("metadata") or {}).get("name", "")
        target = Target(kind, namespace, name)
        identity = (*kind.resource, target.key)
        if name and identity not in done and self.history.get(kind.resource, target.key) is not None:
            stored = self.update(obj)
        else:
            metadata = {
                key: value for key, value in (obj.get("metadata") or {}).items() if key != "resourceVersion"
            }
            stored = self.create({**obj, "metadata": metadata})
        done.add(identity)
        return [*lines, f"{kind.singular}/{stored['metadata']['name']}"]

    def _kind_of(self, obj: KubeObject) -> ServedKind:
        kind = self.registry.of(obj)
        if kind is None:
            raise SandboxError(
                f"the sandbox serves no kind {obj.get('kind')!r} in {obj.get('apiVersion')!r}: check both, "
                f"or create its "
                "CustomResourceDefinition first"
            )
        return kind


def _told(call: Any) -> Any:
    try:
        with validation.readable("the object"):
            return call()
    except Refusal as refusal:
        raise SandboxError(str(refusal)) from refusal


def _namespace(kind: ServedKind, obj: KubeObject) -> str:
    return str((obj.get("metadata") or {}).get("namespace") or "default") if kind.namespaced else ""


def _flat(documents: Iterable[Any]) -> Iterable[tuple[int, KubeObject]]:
    for index, document in enumerate(documents):
        if document is None:  # an empty YAML document
            continue
        if not isinstance(document, dict):
            raise SandboxError(f"document {index}: expected an object, found {type(document).__name__}")
        if str(document.get("kind", "")).endswith("List") and isinstance(document.get("items"), list):
            kind = document["kind"].removesuffix("List")
            for item in document["items"]:  # the items of a PodList may leave out what the list says
                yield index, {"apiVersion": document.get("apiVersion"), "kind": kind, **item}
        else:
            yield index, document


def _rank(obj: KubeObject) -> int:
    return {"CustomResourceDefinition": 0, "Namespace": 1}.get(str(obj.get("kind")), 2)


def _described(obj: KubeObject) -> str:
    name = (obj.get("metadata") or {}).get("name", "(no name)")
    return f"{obj.get('kind', '(no kind)')} {name}"
