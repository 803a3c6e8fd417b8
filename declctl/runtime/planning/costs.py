"""The decoding costs of a manifest: which indexes, dropped fields, transforms and filters read whole objects.

The price of a field path is measured: a projection, made as the caches make it, decodes a sample object. So
it can't differ from the code. Times are estimates for a pod of 4.5 KB on one core.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from declctl.decoding.projection import Projection
from declctl.manifest import Plan, plan
from declctl.manifest.model import CacheMode
from declctl.manifest.plan import HandlerPlan, ResourcePlan
from declctl.objects import FieldPath, FrameStatistics
from declctl.objects.differences import ChangedPaths
from declctl.runtime.checking.check import CheckResult
from declctl.runtime.checking.declaration import FromHooks

Json = dict[str, Any]


class Price(StrEnum):
    """The work for each object that is received."""

    IN_RECORD = "InRecord"  # none: every record has the field
    PROJECTED = "Projected"  # the field is decoded with the metadata
    HELD = "Held"  # none: the object is kept decoded (`mode: Objects`)
    CUT = "Cut"  # the field is cut out of the bytes
    DECODES = "Decodes"  # the object is decoded
    REWRITES = "Rewrites"  # the object is decoded, changed and encoded
    COMPARES = "Compares"  # two texts are compared, and their differences decoded
    EVALUATES = "Evaluates"  # a CEL expression is evaluated with the fields that it reads
    VIEWS = "Views"  # a function is called, and decodes the fields that it reads


_ABOUT: Mapping[Price, tuple[float, str]] = {  # microseconds each, and in words
    Price.IN_RECORD: (0.0, "in every record"),
    Price.PROJECTED: (0.3, "projected"),
    Price.HELD: (0.0, "read from the decoded object"),
    Price.CUT: (1.0, "cut out of the bytes"),
    Price.DECODES: (15.0, "decodes every object"),
    Price.REWRITES: (25.0, "decodes and writes every object"),
    Price.COMPARES: (10.0, "reads both states of each Modified, about 10 µs"),
    Price.EVALUATES: (
        50.0,
        "evaluated with both states of each Modified, about 25 µs each for single fields, 150 µs for lists",
    ),
    Price.VIEWS: (
        30.0,
        "asked of both states of each Modified, about 15 µs each if it reads more than labels",
    ),
}
_NOTABLE = (Price.DECODES, Price.REWRITES)


class Cost(msgspec.Struct, frozen=True):
    """The cost of one part of a resource. An example of `subject` is `index byTeam`."""

    subject: str
    price: Price

    @property
    def microseconds(self) -> float:
        """The approximate time for each object."""
        return _ABOUT[self.price][0]

    @property
    def is_notable(self) -> bool:
        """Whether whole objects are decoded."""
        return self.price in _NOTABLE

    def text(self, objects: int | None = None) -> str:
        """The cost in words. `objects` is their number, if it is known."""
        words = _ABOUT[self.price][1]
        if not self.is_notable:
            return words
        each = f"{words}, about {self.microseconds:g} µs each"
        if objects is None:
            return each
        return f"{each} ({_seconds(objects * self.microseconds)} for {objects:,})"

    def document(self) -> Json:
        """As JSON has it."""
        return {
            "subject": self.subject,
            "cost": str(self.price),
            "microseconds": self.microseconds,
            "text": self.text(),
        }


def costs(resource: ResourcePlan, hooks: FromHooks | None = None) -> Sequence[Cost]:
    """The cost of each index, dropped field and transform of a resource for each object.

    `hooks` are those that plugins and handler classes add, if they are known.
    """
    return (*_indexes(resource, hooks or FromHooks()), *_changes(resource, hooks or FromHooks()))


def notable_costs(checked: CheckResult) -> Sequence[str]:
    """The parts that decode every object, a line each: `pods: index byTeam decodes every object, …`."""
    return [
        f"{resource.name}: {cost.subject} {cost.text()}"
        for resource in plan_of(checked).resources
        for cost in costs(resource, checked.hooks)
        if cost.is_notable
    ]


def plan_of(checked: CheckResult, *, is_sharded: bool | None = None) -> Plan:
    """The plan of a manifest that has no error; `is_sharded` as for `plan`."""
    assert checked.inputs is not None
    return plan(checked.inputs.loaded.controller, is_sharded=is_sharded)


def filter_costs(handler: HandlerPlan, resource: ResourcePlan) -> Sequence[Cost]:
    """The costs of a handler's filter for each delivered change; empty without a filter."""
    spec, mode, found = handler.filter, resource.watches[0].cache, list[Cost]()
    if spec is None:
        return found
    subject = f"filter {handler.name}"
    if spec.label_selector:
        found.append(Cost(f"{subject} labelSelector", Price.IN_RECORD))
    if spec.changed_paths:
        reads = ChangedPaths(map(FieldPath.parse, spec.changed_paths)).reads
        found.append(Cost(f"{subject} changedPaths", Price.COMPARES if reads else Price.IN_RECORD))
    if spec.expression:
        found.append(Cost(f"{subject} expression", Price.EVALUATES))
    if spec.entry_point is not None:
        price = Price.HELD if mode is CacheMode.OBJECTS else Price.VIEWS
        found.append(Cost(f"{subject} {spec.entry_point}", price))
    return found


def _indexes(resource: ResourcePlan, hooks: FromHooks) -> Iterator[Cost]:
    mode = resource.watches[0].cache
    paths = [FieldPath.parse(each.field_path) for each in resource.indexers if each.field_path is not None]
    for each in resource.indexers:
        # A function may read the whole object; a field path is tried out.
        price = Price.DECODES
        if each.field_path is not None:
            price = _price_of_reading(FieldPath.parse(each.field_path), paths)
        yield Cost(f"index {each.name}", _in_mode(price, mode))
    for name in hooks.indexers.get(resource.name, ()):
        yield Cost(f"index {name}", _in_mode(Price.DECODES, mode))


def _changes(resource: ResourcePlan, hooks: FromHooks) -> Iterator[Cost]:
    watch = resource.watches[0]
    for text in watch.transform.drop_fields:
        path = FieldPath.parse(text)
        if watch.cache is not CacheMode.METADATA_ONLY or path.steps[0] == "metadata":
            yield Cost(f"drop {text}", _price_of_dropping(path))
    entry_point = watch.transform.entry_point
    names = [] if entry_point is None else [str(entry_point)]
    for name in (*names, *hooks.transforms.get(resource.name, ())):
        yield Cost(f"transform {name}", Price.REWRITES)


def _in_mode(price: Price, mode: CacheMode) -> Price:
    return Price.HELD if price is Price.DECODES and mode is CacheMode.OBJECTS else price


class _Decoded(Exception):
    """An object was decoded."""


class _Sealed:
    """A codec that raises `_Decoded` when a frame is decoded."""

    def encode(self, plain: bytes) -> bytes:
        return plain

    def decode(self, frame: bytes) -> bytes:
        raise _Decoded(frame)

    def dictionary(self, number: int) -> bytes:  # noqa: ARG002 - a Codec's
        return b""

    def statistics(self) -> FrameStatistics:
        return FrameStatistics(ratio=1.0, trainings=0, dictionaries=0)


def _price_of_reading(path: FieldPath, paths: Iterable[FieldPath]) -> Price:
    projection = Projection(api_version="v1", kind="Object", paths=paths, codec=_Sealed())
    record = projection.record(_object_with(path))
    assert record is not None
    # The codec refuses to decode the frame: so the read shows whether the field needs that.
    try:
        record.field(path)
    except _Decoded:
        return Price.DECODES
    return Price.PROJECTED if path in projection.layout.positions else Price.IN_RECORD


def _price_of_dropping(path: FieldPath) -> Price:
    projection = Projection(api_version="v1", kind="Object", drop_fields=[path])
    # Values of some types can be cut out of the bytes without decoding, and others not.
    values: Sequence[Any] = ("x", ["x"], {"x": "x"})  # the type of the field in this kind is not known
    for value in values:
        projection.record(_object_with(path, value))
    decoded = projection.statistics().decoded_whole
    return Price.REWRITES if decoded == len(values) else Price.CUT


def _object_with(path: FieldPath, value: Any = "x") -> bytes:
    """An encoded object with a value at a path."""
    inside = value
    for step in reversed(path.steps):
        before = [None] * step if isinstance(step, int) else []
        inside = {step: inside} if isinstance(step, str) else [*before, inside]
    fields: Json = inside if isinstance(inside, dict) else {}
    metadata = fields.get("metadata")
    identity = {"name": "a", "namespace": "b", "uid": "c", "resourceVersion": "1", "labels": {}}
    fields["metadata"] = identity | (metadata if isinstance(metadata, dict) else {})
    return msgspec.json.encode({"apiVersion": "v1", "kind": "Object", **fields})


def _seconds(microseconds: float) -> str:
    if microseconds < 1_000_000:
        return f"{max(1, round(microseconds / 1000))} ms"
    return f"{microseconds / 1_000_000:.1f} s"
