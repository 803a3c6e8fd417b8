"""Sets of fields, as metadata.managedFields has them (FieldsV1), and the walks that make and use them.

A path is a tuple of its steps: `f:spec` for a field, `k:{"name":"web"}` for an element with keys, `v:"a"` for
an element of a set. A set of fields is a frozenset of paths. Containment is by path alone: a set may have a
field without the map that holds it.

Source: structured-merge-diff, without conversion between versions. Pure: the given objects are left alone.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, cast

from declctl.objects import KubeObject
from declctl.objects.differences import same_json
from declctl.sandbox.structure import MISSING, Shape

Path = tuple[str, ...]
FieldSet = frozenset[Path]


def to_document(fields: Iterable[Path]) -> KubeObject:
    """As FieldsV1; an element or map that is itself in the set is marked with '.'."""
    document: KubeObject = {}
    ordered = sorted(fields)
    for path in ordered:
        node = document
        for step in path:
            node = node.setdefault(step, {})
    for path in ordered:
        node = document
        for step in path:
            node = node[step]
        if node:
            node["."] = {}
    return document


def from_document(document: Mapping[str, Any], at: Path = ()) -> FieldSet:
    """The set that a FieldsV1 document writes."""
    found: set[Path] = set()
    for step, inner in document.items():
        if step == ".":
            found.add(at)
            continue
        path = (*at, step)
        if inner:
            found |= from_document(inner, path)
        else:
            found.add(path)
    return frozenset(found)


def without(fields: FieldSet, dropped: Iterable[Path]) -> FieldSet:
    """The set without these fields, and without all that they hold."""
    gone = tuple(dropped)
    return frozenset(path for path in fields if not any(path[: len(each)] == each for each in gone))


def dotted(path: Path) -> str:
    """As conflicts name it: `.spec.template.spec.containers[name="web"].image`."""
    written = ""
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f":
            written += f".{rest}"
        elif kind == "k":
            written += "[" + ",".join(f"{key}={text(value)}" for key, value in json.loads(rest).items()) + "]"
        else:
            written += f"[={rest}]"
    return written


def step_of(element: Any, shape: Shape) -> str:
    """The step that names an element of a list of this shape: by its keys, or by its value."""
    keys = shape.keys or ()
    if not keys or not isinstance(element, dict):
        return f"v:{text(element)}"
    values = {key: element.get(key, shape.default(key)) for key in sorted(keys)}
    return f"k:{text({key: value for key, value in values.items() if value is not MISSING})}"


def find(obj: Any, path: Path) -> Any:
    """What stands at a path of field names; MISSING if nothing does."""
    for step in path:
        obj = cast("KubeObject", obj).get(step[2:], MISSING) if isinstance(obj, dict) else MISSING
    return obj


def fields_of(value: Any, shape: Shape) -> FieldSet:
    """Every field that a configuration sets."""
    return frozenset(_set_fields(value, shape, ()))


def _set_fields(value: Any, shape: Shape, path: Path) -> Iterator[Path]:
    match _form(value, shape):
        case "map":
            for name, child in cast("KubeObject", value).items():
                inner = (*path, f"f:{name}")
                yield from _set_fields(child, shape.field(name), inner)
                # A map that is not declared is a key of its holder, and a field as such.
                if child is None or child == {} or not shape.declares(name):
                    yield inner
        case "list":
            grouped = _by_step(value, shape)
            for step, elements in grouped.items():
                yield (*path, step)
                if len(elements) == 1:
                    yield from _set_fields(elements[0], shape.element(), (*path, step))
        case "leaf":
            yield path
        case _:
            pass


@dataclass(slots=True)
class FieldChanges:
    """What a new state of an object adds, modifies and removes."""

    added: set[Path] = field(default_factory=set[Path])
    modified: set[Path] = field(default_factory=set[Path])
    removed: set[Path] = field(default_factory=set[Path])

    def excluding(self, ignored: Sequence[Path]) -> "FieldChanges":
        """The same without some fields and all that they hold."""
        return FieldChanges(
            *(set(without(frozenset(each), ignored)) for each in (self.added, self.modified, self.removed))
        )


def compare(old: Any, new: Any, shape: Shape) -> FieldChanges:
    """What is different in `new`."""
    found = FieldChanges()
    _compare(old, new, shape, (), found)
    for each in (found.added, found.modified, found.removed):
        each.discard(())  # nobody owns the whole object
    return found


def _compare(old: Any, new: Any, shape: Shape, path: Path, found: FieldChanges) -> None:
    # A null takes the form of the other side. Where both sides have forms of their own, the value was
    # replaced: what the old form held is removed, and what the new form holds is added.
    forms = dict.fromkeys(form for form in (_form(old, shape), _form(new, shape)) if form is not None)
    whole = False
    for form in forms or ("leaf",):
        whole = _compare_as(form, old, new, (shape, path, found))
    if whole:
        return
    if old is MISSING:
        found.added.add(path)
    elif new is MISSING:
        found.removed.add(path)


def _compare_as(form: str, old: Any, new: Any, at: tuple[Shape, Path, FieldChanges]) -> bool:
    """Compare as values of a form; says whether the path was compared as a whole."""
    shape, path, found = at
    before, after = _contents(old, form), _contents(new, form)
    if not before and not after:  # keeps an empty list apart from none
        if old is MISSING:
            found.added.add(path)
        elif new is MISSING:
            found.removed.add(path)
        elif not same_json(old, new):
            found.modified.add(path)
        return True
    if form == "map":
        for name in {**before, **after}:
            absent = shape.absent(name)
            inner = (*path, f"f:{name}")
            _compare(before.get(name, absent), after.get(name, absent), shape.field(name), inner, found)
    else:
        _compare_lists(before, after, at)
    return False


def _compare_lists(before: Any, after: Any, at: tuple[Shape, Path, FieldChanges]) -> None:
    shape, path, found = at
    old, new = _by_step(before, shape), _by_step(after, shape)
    for step in {**old, **new}:
        inner = (*path, step)
        was, now = old.get(step, []), new.get(step, [])
        if len(was) > 1 and len(now) > 1:
            if not same_json(was, now):
                found.modified.add(inner)
            continue
        # Elements that are there several times have one owner together.
        if len(was) > 1:
            found.removed.add(inner)
        if len(now) > 1:
            found.added.add(inner)
        first = was[0] if len(was) == 1 else MISSING
        last = now[0] if len(now) == 1 else MISSING
        if first is not MISSING or last is not MISSING:
            _compare(first, last, shape.element(), inner, found)


def merge(live: Any, applied: Any, shape: Shape) -> Any:
    """`live` with what `applied` sets; MISSING stands for either that is not there."""
    form = _form(applied, shape) or _form(live, shape)
    before, after = _contents(live, form), _contents(applied, form)
    if not before and not after:
        return live if applied is MISSING else applied
    if form == "map":
        merged = {
            name: merge(before.get(name, MISSING), after.get(name, MISSING), shape.field(name))
            for name in {**before, **after}
        }
        return {name: value for name, value in merged.items() if value is not MISSING}
    return _merge_lists(before, after, shape)


def _merge_lists(live: list[Any], applied: list[Any], shape: Shape) -> list[Any]:
    """The elements of both, shared ones in the order of `applied`, others where they stood."""
    old, new = _by_step(live, shape), _by_step(applied, shape)
    here = [step_of(element, shape) for element in live]
    shared = iter([step for step in new if step in old])
    awaited = next(shared, None)  # the next element that both have
    merged: list[Any] = []
    at = 0

    def keep(element: Any, step: str) -> None:
        if step not in new:
            merged.append(element)

    for step, (element,) in new.items():
        # What stands before the next shared element stays before it; shared ones are merged in their turn.
        while at < len(live) and here[at] != awaited and (awaited is not None or here[at] not in new):
            keep(live[at], here[at])
            at += 1
        if at < len(live) and (here[at] == step or awaited is None):
            at += 1
        present = old.get(step, [])
        # Of an element that is there several times, all go into the applied one.
        merged.append(merge(present[0] if len(present) == 1 else MISSING, element, shape.element()))
        if step == awaited:
            awaited = next(shared, None)
    for rest in range(at, len(live)):
        keep(live[rest], here[rest])
    return merged


def remove(value: Any, fields: Mapping[str, Any], shape: Shape) -> Any:
    """The value without the fields of a FieldsV1 document; None if nothing is left of a map or list."""
    match _form(value, shape):
        case "map":
            kept_fields = {
                name: remove(child, _below(fields, f"f:{name}"), shape.field(name))
                if _below(fields, f"f:{name}")
                else child
                for name, child in cast("KubeObject", value).items()
                if not _has(fields, f"f:{name}")
            }
            return kept_fields or None
        case "list":
            steps = [(step_of(element, shape), element) for element in cast("list[Any]", value)]
            kept = [
                remove(element, _below(fields, step), shape.element()) if _below(fields, step) else element
                for step, element in steps
                if not _has(fields, step)
            ]
            return kept or None
        case _:
            return None if isinstance(value, (dict, list)) else value


def _has(fields: Mapping[str, Any], step: str) -> bool:
    return step in fields and (not fields[step] or "." in fields[step])


def _below(fields: Mapping[str, Any], step: str) -> Mapping[str, Any]:
    return {name: inner for name, inner in fields.get(step, {}).items() if name != "."}


def with_holders(fields: FieldSet, shape: Shape) -> FieldSet:
    """The set with the fields that hold its fields: with `a.b` also `a`, if the type declares `a`."""
    found = set(fields)
    for path in fields:
        here = shape
        for length, step in enumerate(path[:-1], start=1):
            if not step.startswith("f:"):
                here = here.element()
                continue
            name = step[2:]
            if here.declares(name):
                found.add(path[:length])
            here = here.field(name)
    return frozenset(found)


def duplicates(value: Any, shape: Shape, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Lists that have an element more than once: where they are, and its step."""
    match _form(value, shape):
        case "map":
            for name, child in cast("KubeObject", value).items():
                yield from duplicates(child, shape.field(name), (*path, f"f:{name}"))
        case "list":
            for step, elements in _by_step(value, shape).items():
                if len(elements) > 1:
                    yield path, step
                for element in elements:
                    yield from duplicates(element, shape.element(), (*path, step))
        case _:
            pass


def _form(value: Any, shape: Shape) -> str | None:
    """Whether a value is walked as a map or a list, or has one owner as a leaf; None for nothing and null."""
    if value is MISSING or value is None:
        return None
    if isinstance(value, dict):
        return "leaf" if shape.is_atomic else "map"
    return "list" if isinstance(value, list) and shape.keys is not None else "leaf"


def _contents(value: Any, form: str | None) -> Any:
    """The parts of a value that has the form; none of another value."""
    if form == "map":
        return value if isinstance(value, dict) else {}
    return value if form == "list" and isinstance(value, list) else []


def _by_step(elements: Any, shape: Shape) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for element in elements:
        found.setdefault(step_of(element, shape), []).append(element)
    return found


def told(value: Any) -> str:
    """A value in a message: JSON, but for floats, which are written as Go prints them."""
    if not isinstance(value, float):
        return text(value)
    number = Decimal(repr(value)).normalize()
    power = number.adjusted()
    if -4 <= power < 6:
        return f"{number:f}"
    return f"{number.scaleb(-power):f}e{'-' if power < 0 else '+'}{abs(power):02}"


def text(value: Any) -> str:
    """A value as JSON, with sorted keys and no spaces."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
