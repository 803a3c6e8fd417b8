"""Changes, as declctl gives them to hooks."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from declctl import Change, ChangeReason, ChangeType, ObjectKey


class Obj(dict[str, Any]):
    """As much of an object of a hook as the plugin reads."""

    @property
    def namespace(self) -> str | None:
        return self["metadata"].get("namespace")

    @property
    def name(self) -> str:
        return self["metadata"]["name"]


@dataclass(frozen=True)
class Told:
    """As much of a Change as the plugin reads."""

    type: ChangeType
    obj: Obj
    old: Obj | None = None
    initial: bool = False
    final_state_unknown: bool = False
    reason: ChangeReason = ChangeReason.WATCH
    resource: str = "deployments"
    generation: int = 1
    received_at: datetime = field(default=datetime(2026, 1, 1, tzinfo=UTC))

    @property
    def key(self) -> ObjectKey:
        return ObjectKey.of(self.obj.namespace, self.obj.name)


def deployment(name: str = "web", namespace: str | None = "shop", **spec: Any) -> Obj:
    """A Deployment."""
    metadata = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    return Obj(apiVersion="apps/v1", kind="Deployment", metadata=metadata, spec=spec)


def added(obj: Obj | None = None, **more: Any) -> Change:
    """An Added."""
    return cast("Change", Told(ChangeType.ADDED, obj or deployment(), **more))


def deleted(obj: Obj | None = None, **more: Any) -> Change:
    """A Deleted."""
    return cast("Change", Told(ChangeType.DELETED, obj or deployment(), **more))


def modified(old: Obj, new: Obj, **more: Any) -> Change:
    """A Modified."""
    return cast("Change", Told(ChangeType.MODIFIED, new, old, **more))
