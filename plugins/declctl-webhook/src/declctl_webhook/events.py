"""A change in, a CloudEvent out. Pure.

The attributes are made so that a receiver can recognise an event that it has already: `id` names the state
of the object and the type of the change, and is the same in each attempt, from the spool, and for an object
that a new process finds unchanged.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

from declctl import ChangeReason, ChangeType

from declctl_webhook.settings import EventSettings, Include

Json = Any
Path = tuple[str, ...]

ANY: Final = "[*]"  # a step of a path: any item of a list
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_IDENTITY: Final[tuple[Path, ...]] = (
    ("apiVersion",),
    ("kind",),
    ("metadata", "name"),
    ("metadata", "namespace"),
    ("metadata", "uid"),
)
_TYPES: Final = {each: str(each).lower() for each in ChangeType}


class EventError(ValueError):
    """A field path that can't be read, in a sentence for users."""


class View(Protocol):
    """What is read of a hook's `obj`."""

    @property
    def name(self) -> str: ...  # noqa: D102 - as ObjectView
    @property
    def namespace(self) -> str | None: ...  # noqa: D102
    @property
    def uid(self) -> str: ...  # noqa: D102
    @property
    def resource_version(self) -> str: ...  # noqa: D102
    def to_dict(self) -> dict[str, Any]: ...  # noqa: D102


class ObjectChange(Protocol):
    """What is read of a hook's `change`."""

    @property
    def type(self) -> ChangeType: ...  # noqa: D102 - as Change
    @property
    def reason(self) -> ChangeReason: ...  # noqa: D102
    @property
    def obj(self) -> View: ...  # noqa: D102
    @property
    def old(self) -> View | None: ...  # noqa: D102
    @property
    def initial(self) -> bool: ...  # noqa: D102
    @property
    def final_state_unknown(self) -> bool: ...  # noqa: D102
    @property
    def received_at(self) -> datetime: ...  # noqa: D102


class Event(NamedTuple):
    """A CloudEvent, ready for the spool."""

    key: str  # events of one key are delivered in order; the subject
    body: bytes  # the event in the JSON format of CloudEvents


class EventMaker:
    """Makes events as one config says. Any thread may use it."""

    def __init__(self, settings: EventSettings) -> None:
        """Raises EventError for a field path that can't be read."""
        self._settings = settings
        self._paths = [parse_path(path) for path in settings.paths]
        self._omit = [parse_path(path) for path in settings.omit]

    def event_of(self, change: ObjectChange) -> Event:
        """The event of a change."""
        obj = change.obj.to_dict()
        event: dict[str, Json] = {
            "specversion": "1.0",
            "id": event_id(change),
            "source": self._settings.source,
            "type": f"{self._settings.type_prefix}.{_TYPES[change.type]}",
            "subject": subject_of(obj),
            "time": change.received_at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "datacontenttype": "application/json",
            **_extensions(change, obj),
        }
        data: dict[str, Json] = {"object": self._selected(obj)}
        if self._settings.old and change.type is ChangeType.MODIFIED and change.old is not None:
            data["old"] = self._selected(change.old.to_dict())
        event["data"] = data
        body = json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        # A surrogate half in an object can't be UTF-8: it becomes a question mark, and the event is sent.
        return Event(event["subject"], body.encode("utf-8", "replace"))

    def _selected(self, obj: dict[str, Json]) -> dict[str, Json]:
        """The fields that are sent, of an object that may be changed."""
        if not self._settings.secret_values and obj.get("kind") == "Secret":
            _remove_secret_values(obj)
        if self._settings.include is Include.METADATA:
            obj = {name: obj[name] for name in ("apiVersion", "kind", "metadata") if name in obj}
        elif self._settings.include is Include.FIELDS:
            obj = projection(obj, [*_IDENTITY, *self._paths])
        for path in self._omit:
            remove(obj, path)
        return obj


def event_id(change: ObjectChange) -> str:
    """`uid-resourceVersion-type`, without a full stop, which Standard Webhooks forbids in an id.

    A resync, and an object that leaves the scope, may repeat type and version, so theirs has the time, too.
    Neither is repeated by a new process.
    """
    obj, kind = change.obj, _TYPES[change.type]
    uid = obj.uid or hashlib.sha256(f"{obj.namespace}/{obj.name}".encode()).hexdigest()[:32]
    parts = [uid, obj.resource_version, kind]
    if change.type is ChangeType.RESYNC or change.reason in (ChangeReason.OUT_OF_SCOPE, ChangeReason.REPLAY):
        parts.append(str(round(change.received_at.timestamp() * 1_000_000)))
    return "-".join(re.sub(r"[^A-Za-z0-9_-]", "_", part) for part in parts if part)


def subject_of(obj: Mapping[str, Json]) -> str:
    """`apps/v1/Deployment/team-a/web`; without the namespace for a cluster-scoped object."""
    metadata = obj.get("metadata") or {}
    names = (obj.get("apiVersion"), obj.get("kind"), metadata.get("namespace"), metadata.get("name"))
    return "/".join(str(name) for name in names if name)


def _extensions(change: ObjectChange, obj: Mapping[str, Json]) -> dict[str, Json]:
    """Extension attributes, by which a broker filters and a receiver orders without reading the data.

    The first four have the names that Knative's ApiServerSource uses.
    """
    metadata = obj.get("metadata") or {}
    attributes = {
        "apiversion": obj.get("apiVersion"),
        "kind": obj.get("kind"),
        "namespace": metadata.get("namespace"),
        "name": metadata.get("name"),
        "resourceversion": change.obj.resource_version,
        "partitionkey": subject_of(obj),
        "reason": str(change.reason),
    }
    flags = {"initial": change.initial, "finalstateunknown": change.final_state_unknown}
    texts = {name: str(value) for name, value in attributes.items() if value}
    return {**texts, **{name: True for name, value in flags.items() if value}}


def _remove_secret_values(obj: dict[str, Json]) -> None:
    """Remove the values of a Secret, also from the annotation in which kubectl keeps a copy of them."""
    for field in ("data", "stringData"):
        values = obj.get(field)
        if isinstance(values, dict):
            obj[field] = dict.fromkeys(values)
        elif values is not None:
            obj[field] = None
    remove(obj, ("metadata", "annotations", _LAST_APPLIED))
    # What managed fields name are keys, and the plugin sends these anyway.


def parse_path(text: str) -> Path:
    """`spec.containers[*].image` and `metadata.labels[app.kubernetes.io/name]` as the steps of the path.

    Raises EventError for a text that is no path.
    """
    steps: list[str] = []
    position = 0
    for match in re.finditer(r"(?:^|\.)([^.\[\]]+)|\[([^\[\]]+)\]", text):
        if match.start() != position:
            break
        position = match.end()
        name, bracket = match.groups()
        steps.append(name if name is not None else (ANY if bracket == "*" else bracket))
    if position != len(text) or not steps or text.startswith("."):
        raise EventError(
            f"{text!r} is no field path: write spec.nodeName, spec.containers[*].image or "
            "metadata.labels[app.kubernetes.io/name]"
        )
    return tuple(steps)


def projection(obj: Mapping[str, Json], paths: Sequence[Path]) -> dict[str, Json]:
    """The part of an object that some paths name, in its shape. A path that leads nowhere adds nothing.

    In a list, `[*]` keeps the place of each item: an item without the field is an empty object.
    """
    found = _projected(obj, paths)
    return {} if found is _NOTHING else found


def _projected(obj: Json, paths: Sequence[Path]) -> Json:
    """As `projection`; _NOTHING if all paths lead nowhere."""
    if any(not path for path in paths):
        return obj
    if isinstance(obj, Mapping):
        picked: dict[str, Json] = {}
        for name, deeper in _by_step(paths).items():
            if name in obj:
                found = _projected(obj[name], deeper)
                if found is not _NOTHING:
                    picked[name] = found
        return picked or _NOTHING
    if isinstance(obj, list):
        deeper = _by_step(paths).get(ANY)
        if deeper is None:
            return _NOTHING
        return [{} if item is _NOTHING else item for item in (_projected(item, deeper) for item in obj)]
    return _NOTHING  # a path goes on below a plain value


_NOTHING: Final = object()


def _by_step(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Paths by their first step, without it."""
    steps: dict[str, list[Path]] = {}
    for first, *rest in paths:
        steps.setdefault(first, []).append(tuple(rest))
    return steps


def remove(obj: Json, path: Path) -> None:
    """Remove the fields that a path names, in place."""
    step, rest = path[0], path[1:]
    if isinstance(obj, list):
        if step == ANY:
            for item in obj:
                if rest:
                    remove(item, rest)
    elif isinstance(obj, dict) and step in obj:
        if rest:
            remove(obj[step], rest)
        else:
            del obj[step]
