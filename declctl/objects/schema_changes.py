"""What an edit of a schema or a definition means for objects that are stored.

A change is compatible if each object that was valid still is, and loses nothing. A server does not check
stored objects when a definition changes; it refuses their next update, and a type can't read them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from declctl.objects.schema_marks import LIST_KEYS, LIST_TYPE, PRESERVE, VALIDATIONS

Definition = Mapping[str, Any]
"""A CustomResourceDefinition, as a file has it."""
_Schema = Mapping[str, Any]
Steps = tuple[str | int, ...]

_DEFAULT: Final = "default"
_LONGEST: Final = 60  # characters of a value in a message
# Bounds: the larger, or the smaller value is the narrower one.
_LOWER: Final = ("minLength", "minItems", "minProperties")
_UPPER: Final = ("maxLength", "maxItems", "maxProperties")
# What can't be compared in its meaning: a new or another value may refuse what was valid.
_OPAQUE: Final = (
    *("pattern", "format", "allOf", "anyOf", "oneOf", "not"),
    *("x-kubernetes-embedded-resource", "x-kubernetes-map-type"),
)


class SchemaChange(NamedTuple):
    """One difference between two schemas.

    `path` is the place in the object, such as `spec.ports[].name`, and `what` says what has changed. `steps`
    lead to the place in the later document, and `earlier` in the earlier one.
    """

    path: str
    what: str
    compatible: bool
    steps: Steps = ()
    earlier: Steps = ()

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def compare(before: _Schema, after: _Schema) -> list[SchemaChange]:
    """The changes from one structural schema to another, without descriptions."""
    return list(_schema(before, after, _ChangePlace("")))


def compare_definitions(before: Definition, after: Definition) -> list[SchemaChange]:
    """The changes from one CustomResourceDefinition to another, of the same kind.

    `before` may be that of a server, whose status says in which versions objects are stored.
    """
    found: list[SchemaChange] = []
    old, new = before["spec"], after["spec"]
    if old.get("scope") != new.get("scope"):
        what = f"{_values('scope', old.get('scope'), new.get('scope'))}, which a server refuses"
        found.append(SchemaChange("spec.scope", what, False, ("spec", "scope"), ("spec", "scope")))
    for name in ("plural", "singular", "shortNames", "categories"):
        was, now = old["names"].get(name), new["names"].get(name)
        # A server fills the singular name in.
        if was != now and not (name == "singular" and was is None):
            place = ("spec", "names", name)
            compatible = name != "plural"
            found.append(SchemaChange("spec.names", _values(name, was, now), compatible, place, place))
    return found + list(_versions(before, after))


def _versions(before: Definition, after: Definition) -> Iterator[SchemaChange]:
    old = {each["name"]: (at, each) for at, each in enumerate(before["spec"]["versions"])}
    new = {each["name"]: (at, each) for at, each in enumerate(after["spec"]["versions"])}
    stored = set((before.get("status") or {}).get("storedVersions") or ())
    stored |= {name for name, (_, each) in old.items() if each.get("storage")}
    for name, (at, version) in old.items():
        earlier: Steps = ("spec", "versions", at)
        if name not in new:
            what = "objects are stored in it, and it is gone" if name in stored else "the version is gone"
            yield SchemaChange(name, what, name not in stored, ("spec", "versions"), earlier)
            continue
        later: Steps = ("spec", "versions", new[name][0])
        other = new[name][1]
        schema = ("schema", "openAPIV3Schema")
        was, now = (each.get("schema", {}).get("openAPIV3Schema", {}) for each in (version, other))
        place = _ChangePlace("" if len(new) == 1 else name, (*later, *schema), (*earlier, *schema))
        yield from _schema(was, now, place)
        for field in ("served", "storage", "deprecated", "subresources", "additionalPrinterColumns"):
            if (version.get(field) or None) != (other.get(field) or None):
                what = _values(field, version.get(field), other.get(field))
                yield SchemaChange(f"version {name}", what, True, (*later, field), (*earlier, field))
    for name, (at, _) in new.items():
        if name not in old:
            yield SchemaChange(
                name, "the version is new", True, ("spec", "versions", at), ("spec", "versions")
            )


def by_cause(changes: Sequence[SchemaChange]) -> list[SchemaChange]:
    """One change for each cause: all that has changed at one path, and the same in a class at all its paths.

    The default of a field is left out if a field in it has changed.
    """
    paths = {each.path for each in changes}
    by_path: dict[str, list[SchemaChange]] = {}
    for each in changes:
        inner = (f"{each.path}.", f"{each.path}[", f"{each.path}{{")
        if not (each.what.startswith(_DEFAULT) and any(path.startswith(inner) for path in paths)):
            by_path.setdefault(each.path, []).append(each)
    found: dict[tuple[str, str], list[SchemaChange]] = {}
    for path, parts in by_path.items():
        what, compatible = "; ".join(each.what for each in parts), all(each.compatible for each in parts)
        one = parts[0]._replace(what=what, compatible=compatible)
        found.setdefault((path.rpartition(".")[2], what), []).append(one)
    return [
        first._replace(path=_places([first.path, *(each.path for each in others)]))
        for first, *others in found.values()
    ]


def _places(paths: Sequence[str]) -> str:
    """At most two paths, and the number of the others."""
    return " and ".join(paths if len(paths) < 3 else [paths[0], f"{len(paths) - 1} other places"])


class _ChangePlace(NamedTuple):
    path: str
    steps: Steps = ()
    earlier: Steps = ()

    def below(self, step: str, *steps: str) -> "_ChangePlace":
        return _ChangePlace(f"{self.path}{step}".lstrip("."), (*self.steps, *steps), (*self.earlier, *steps))

    def change(self, what: str, *, compatible: bool) -> SchemaChange:
        return SchemaChange(self.path or "the object", what, compatible, self.steps, self.earlier)


def _schema(before: _Schema, after: _Schema, at: _ChangePlace) -> Iterator[SchemaChange]:
    was, now = _type(before), _type(after)
    if was != now:
        # Each integer is a number, and fits int-or-string; anything fits what is not described.
        wider = now == "anything" or (was, now) in {
            ("integer", "number"),
            ("integer", "integer or string"),
            ("string", "integer or string"),
        }
        yield at.change(f"type: {was} → {now}", compatible=wider)
        if not wider:
            return
    yield from _limits(before, after, at)
    yield from _choices(before, after, at)
    yield from _rules(before, after, at)
    yield from _fields(before, after, at)
    for name, step in (("items", "[]"), ("additionalProperties", "{}")):
        inner, other = before.get(name), after.get(name)
        if isinstance(inner, Mapping) and isinstance(other, Mapping):
            yield from _schema(inner, other, at.below(step, name))
        elif isinstance(other, Mapping) and name == "additionalProperties":
            yield at.change("the values of the map are checked now", compatible=False)
    if before.get(PRESERVE) and not after.get(PRESERVE) and _type(before) == _type(after):
        yield at.change("unknown fields are dropped now", compatible=False)


def _type(schema: _Schema) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    return str(schema.get("type") or "anything")


def _limits(before: _Schema, after: _Schema, at: _ChangePlace) -> Iterator[SchemaChange]:
    if before.get("nullable") and not after.get("nullable"):
        yield at.change("it may not be null any more", compatible=False)
    for name, sign in (("minimum", 1), ("maximum", -1)):
        exclusive = f"exclusive{name.capitalize()}"
        limits = [
            (sign * each[name], bool(each.get(exclusive))) if name in each else None
            for each in (before, after)
        ]
        yield from _limit(name, limits, (before.get(name), after.get(name)), at)
    for names, sign in ((_LOWER, 1), (_UPPER, -1)):
        for name in names:
            limits = [(sign * each[name], False) if name in each else None for each in (before, after)]
            yield from _limit(name, limits, (before.get(name), after.get(name)), at)
    step, other = before.get("multipleOf"), after.get("multipleOf")
    if step != other:
        fits = other is None or (step is not None and step % other == 0)
        yield at.change(_values("multipleOf", step, other), compatible=fits)
    for name in _OPAQUE:
        if before.get(name) != after.get(name):
            what = _values(name, before.get(name), after.get(name))
            yield at.change(what, compatible=name not in after)


def _limit(
    name: str, limits: Sequence[tuple[Any, bool] | None], shown: tuple[Any, Any], at: _ChangePlace
) -> Iterator[SchemaChange]:
    was, now = limits
    if was != now:
        what = _values(name, *shown)
        if shown[0] == shown[1]:
            what = f"{name} {shown[1]} is {'ex' if now and now[1] else 'in'}clusive now"
        yield at.change(what, compatible=now is None or (was is not None and now <= was))


def _choices(before: _Schema, after: _Schema, at: _ChangePlace) -> Iterator[SchemaChange]:
    was, now = before.get("enum"), after.get("enum")
    if now is not None and was is None:
        yield at.change(f"it is one of {_shown(now)} now", compatible=False)
    elif was is not None and now is None:
        yield at.change("it may be any value now", compatible=True)
    elif was is not None and now is not None:
        if gone := [each for each in was if each not in now]:
            yield at.change(f"{', '.join(map(_shown, gone))} is no choice any more", compatible=False)
        if new := [each for each in now if each not in was]:
            yield at.change(f"{', '.join(map(_shown, new))} is a choice now", compatible=True)
    kinds = [(each.get(LIST_TYPE, "atomic"), each.get(LIST_KEYS)) for each in (before, after)]
    if kinds[0] != kinds[1]:
        what = f"{LIST_TYPE}: {kinds[0][0]} → {kinds[1][0]}"
        if kinds[0][0] == kinds[1][0]:
            what = _values(LIST_KEYS, kinds[0][1], kinds[1][1])
        # Elements that are there twice are refused by a set and by a map.
        yield at.change(what, compatible=kinds[1][0] == "atomic")


def _rules(before: _Schema, after: _Schema, at: _ChangePlace) -> Iterator[SchemaChange]:
    was, now = _rules_of(before), _rules_of(after)
    for rule in [each for each in now if each not in was]:
        # A rule about an update says nothing of what is stored.
        yield at.change(f"the rule {rule} is new", compatible="oldSelf" in rule)
    for rule in [each for each in was if each not in now]:
        yield at.change(f"the rule {rule} is gone", compatible=True)


def _rules_of(schema: _Schema) -> list[str]:
    return [str(each["rule"]) for each in schema.get(VALIDATIONS) or ()]


def _fields(before: _Schema, after: _Schema, at: _ChangePlace) -> Iterator[SchemaChange]:
    old: Mapping[str, _Schema] = before.get("properties") or {}
    new: Mapping[str, _Schema] = after.get("properties") or {}
    was_required, is_required = ({*(each.get("required") or ())} for each in (before, after))
    needed = is_required - was_required
    for name, schema in old.items():
        inner = at.below(f".{name}", "properties", name)
        if name not in new:
            kept = bool(after.get(PRESERVE)) or _type(after) == "anything"
            told = "" if kept else ": a server drops it from stored objects"
            yield inner._replace(steps=at.steps).change(f"the field is gone{told}", compatible=kept)
        else:
            yield from _schema(schema, new[name], inner)
    for name, schema in new.items():
        inner = at.below(f".{name}", "properties", name)
        if name in old and name in needed and "default" not in schema:
            yield inner.change("the field is required now, and has no default", compatible=False)
        elif name not in old and name in needed and "default" not in schema:
            place = inner._replace(earlier=at.earlier)
            yield place.change("the field is new and required, and has no default", compatible=False)
        elif name not in old:
            # Where unknown fields were kept, stored objects may have any value there.
            place = inner._replace(earlier=at.earlier)
            yield place.change("the field is new", compatible=not before.get(PRESERVE))
        elif name in was_required - is_required:
            yield inner.change("the field is not required any more", compatible=True)
        if name in old and old[name].get("default") != schema.get("default"):
            what = _values(_DEFAULT, old[name].get("default"), schema.get("default"))
            yield inner.change(what, compatible=True)


def _values(name: str, was: Any, now: Any) -> str:
    """Two values at the innermost place that has all of their differences."""
    if isinstance(was, dict) and isinstance(now, dict):
        one, other = cast("dict[str, Any]", was), cast("dict[str, Any]", now)
        names = [each for each in {**one, **other} if one.get(each) != other.get(each)]
        if len(names) == 1:
            return _values(f"{name}.{names[0]}", one.get(names[0]), other.get(names[0]))
    if isinstance(was, list) and isinstance(now, list):
        rest, others, start = cast("list[Any]", was), cast("list[Any]", now), 0
        while rest and others and rest[0] == others[0]:
            rest, others, start = rest[1:], others[1:], start + 1
        while rest and others and rest[-1] == others[-1]:
            rest, others = rest[:-1], others[:-1]
        if len(rest) < 2 and len(others) < 2:
            return _values(f"{name}[{start}]", *(each[0] if each else None for each in (rest, others)))
    return f"{name}: {_shown(was)} → {_shown(now)}"


def _shown(value: Any) -> str:
    """A value as a definition has it, if it is short."""
    if value is None:
        return "none"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
