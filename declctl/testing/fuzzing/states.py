"""Two states of a cluster, compared: what a controller has written in one of them, and not in the other.

Not compared are uids, versions, times, `managedFields`, and what others have written. A uid of an object that
exists stands for the object. `observedGeneration` counts as current, or not.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from declctl.objects import KubeObject
from declctl.objects.managed_fields import ElementStep, Steps, owned_values

USERS: Final = frozenset({"sandbox", "before-first-apply", "declctl-test", "kube-controller-manager"})
"""The field managers that are no controller's."""
ObjectId = tuple[str, str, str, str]  # apiVersion, kind, namespace, name
State = Mapping[ObjectId, KubeObject]
_MARKS: Final = "applyset.kubernetes.io/"
"""Labels and annotations by which declctl finds the children of a set: they stay when the set is empty."""
TIME_MASK: Final = "<time>"
UID_MASK: Final = "uid of "
CURRENT_GENERATION: Final = "current"
OLD_GENERATION: Final = "old, "
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?")


class StateDifference(NamedTuple):
    """Something that is not as expected: an object, or one of its fields.

    `steps` is empty for a whole object. `expected` and `found` are None for what must not be there, or is
    not.
    """

    object: ObjectId
    steps: Steps = ()
    expected: Any = None
    found: Any = None
    number: int = 0  # that are expected of a generated name

    def __str__(self) -> str:
        _, kind, namespace, name = self.object
        what = f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"
        if not self.steps:
            return f"{what} is missing" if self.found is None else f"{what} is there, and should not be"
        field = ".".join(self.steps).replace(".[", "[")
        return f"{what}: {field} is {_shown(self.found)}, and should be {_shown(self.expected)}"


def id_of(obj: KubeObject) -> ObjectId:
    """What tells an object from others."""
    metadata: KubeObject = obj["metadata"]
    return obj["apiVersion"], obj["kind"], metadata.get("namespace", ""), metadata["name"]


def state_of(objects: Iterable[KubeObject]) -> State:
    """The objects by their ids, each uid replaced by the id of its object."""
    found = list(objects)
    text = msgspec.json.encode(found).decode()
    for each in found:
        text = text.replace(each["metadata"]["uid"], UID_MASK + " ".join(id_of(each)).replace("  ", " "))
    return {id_of(each): each for each in msgspec.json.decode(text)}


def is_written(obj: KubeObject) -> bool:
    """Whether a controller has written fields of an object."""
    return any(True for _ in _entries(obj))


def differences(expected: State, found: State, *, without: Iterable[ObjectId] = ()) -> list[StateDifference]:
    """Where the fields that a controller has written differ, in the order of objects.

    `without` are objects that may be missing in either.
    """
    left_out = set(without)
    generated = {*_generated(expected), *_generated(found)}
    result: list[StateDifference] = []
    for prefix in sorted(generated):
        there = [sum(_prefix(each) == prefix for each in state.values()) for state in (expected, found)]
        if there[0] != there[1]:
            result.append(StateDifference(prefix, (), there[0] or None, there[1] or None, number=there[0]))
    for each in sorted({*expected, *found} - left_out):
        wanted, there = expected.get(each), found.get(each)
        if any(obj is not None and _prefix(obj) in generated for obj in (wanted, there)):
            continue
        if wanted is None or there is None:
            obj = wanted or there
            if obj is not None and is_written(obj):
                result.append(StateDifference(each, (), wanted, there))
        else:
            result += _fields(each, wanted, there)
    return _whole_elements(result)


def changed_objects(before: State, after: State, touched: Iterable[ObjectId]) -> list[StateDifference]:
    """What a controller has changed from one state to the next.

    Times count. Of the `touched` objects, on which a user has set an annotation, only what the controller
    owns does.
    """
    by_user = set(touched)
    result: list[StateDifference] = []
    for each in sorted({*before, *after}):
        old, new = before.get(each), after.get(each)
        if old is None or new is None:
            result.append(StateDifference(each, (), old, new))
        elif each in by_user:
            result += _fields(each, old, new, exactly=True)
        elif old["metadata"]["resourceVersion"] != new["metadata"]["resourceVersion"]:
            result += [StateDifference(each, *inner) for inner in _changes((), _plain(old), _plain(new))]
    return _whole_elements(result)


def _plain(obj: KubeObject) -> KubeObject:
    metadata = {name: value for name, value in obj["metadata"].items() if name not in _SERVERS}
    return {**obj, "metadata": metadata}


_SERVERS: Final = frozenset({"managedFields", "resourceVersion", "generation"})


def _prefix(obj: KubeObject) -> ObjectId | None:
    """The id of an object with a generated name, with what the name begins with; None for any other name."""
    metadata: KubeObject = obj["metadata"]
    start = metadata.get("generateName")
    if not start:
        return None
    return obj["apiVersion"], obj["kind"], metadata.get("namespace", ""), f"{start}*"


def _generated(state: State) -> Iterator[ObjectId]:
    return (prefix for obj in state.values() if (prefix := _prefix(obj)) is not None and is_written(obj))


def _entries(obj: KubeObject) -> Iterator[Mapping[str, Any]]:
    entries: Sequence[Mapping[str, Any]] = obj["metadata"].get("managedFields") or ()
    return (each.get("fieldsV1") or {} for each in entries if each.get("manager") not in USERS)


def _fields(
    of: ObjectId, expected: KubeObject, found: KubeObject, *, exactly: bool = False
) -> Iterator[StateDifference]:
    told: set[Steps] = set()
    for owner in (expected, found):
        for fields in _entries(owner):
            pairs = zip(owned_values(fields, expected), owned_values(fields, found), strict=True)
            for (steps, wanted), (_, there) in pairs:
                if steps not in told and not any(each.startswith(_MARKS) for each in steps):
                    told.add(steps)
                    one = _comparable(wanted, expected, steps, exactly=exactly)
                    other = _comparable(there, found, steps, exactly=exactly)
                    yield from (StateDifference(of, *inner) for inner in _changes(steps, one, other))


def _whole_elements(found: Sequence[StateDifference]) -> list[StateDifference]:
    """The differences, with one for an element of a list that is missing as a whole, keys and all."""
    ends = {
        (each.object, each.steps[:-1])
        for each in found
        if len(each.steps) > 1
        and each.steps[-1] in getattr(each.steps[-2], "keys", ())
        and (each.expected is None or each.found is None)
    }
    result: dict[object, StateDifference] = {}
    for each in found:
        whole = next(
            (steps for of, steps in ends if of == each.object and each.steps[: len(steps)] == steps), None
        )
        if whole is None:
            result[each.object, each.steps] = each
        elif (each.object, whole) not in result:
            keys: Mapping[str, str] = getattr(whole[-1], "keys", {})
            wanted, there = (None if value is None else keys for value in (each.expected, each.found))
            result[each.object, whole] = StateDifference(each.object, whole, wanted, there)
    return list(result.values())


def _comparable(value: object, obj: KubeObject, steps: Steps, *, exactly: bool) -> Any:
    """A value, None for one that is not there.

    Unless it has to be the same `exactly`, without what differs between two runs.
    """
    try:
        plain = msgspec.json.decode(msgspec.json.encode(value))
    except TypeError:  # the marks of `owned_values`: nothing, or something that holds others
        return None
    if exactly:
        return plain
    return _masked(plain, obj, steps[-1] if steps else "")


def _masked(value: Any, obj: KubeObject, name: str) -> Any:
    if isinstance(value, dict):
        fields = cast("KubeObject", value)
        return {key: _masked(each, obj, key) for key, each in fields.items() if key != "resourceVersion"}
    if isinstance(value, list):
        return [_masked(each, obj, "") for each in cast("list[Any]", value)]
    if isinstance(value, str):
        return _TIME.sub(TIME_MASK, value)
    if name == "observedGeneration" and isinstance(value, int):
        is_current = value == obj["metadata"].get("generation")
        return CURRENT_GENERATION if is_current else f"{OLD_GENERATION}{value}"
    return value


def _changes(steps: Steps, expected: Any, found: Any) -> Iterator[tuple[Steps, Any, Any]]:
    """The paths, as deep as they lead, at which two values differ."""
    if expected == found:
        return
    if isinstance(expected, dict) and isinstance(found, dict):
        wanted, there = cast("KubeObject", expected), cast("KubeObject", found)
        for name in dict.fromkeys([*wanted, *there]):
            yield from _changes((*steps, name), wanted.get(name), there.get(name))
    elif isinstance(expected, list) and isinstance(found, list):
        yield from _elements(steps, cast("list[Any]", expected), cast("list[Any]", found))
    else:
        yield steps, expected, found


def _elements(steps: Steps, expected: list[Any], found: list[Any]) -> Iterator[tuple[Steps, Any, Any]]:
    """The differences of two lists: conditions by their type, other elements by their places."""
    key = next(
        (
            name
            for name in ("type", "name")
            if all(isinstance(each, dict) and name in each for each in [*expected, *found])
        ),
        None,
    )
    if key is None:
        yield steps, expected, found
        return
    by_key = [{str(each[key]): each for each in elements} for elements in (expected, found)]
    for value in dict.fromkeys([*by_key[0], *by_key[1]]):
        step = ElementStep(f"[{key}={value}]")
        step.keys, step.position = {key: value}, None
        wanted, there = (elements.get(value) for elements in by_key)
        yield from _changes((*steps, step), wanted, there)


def _shown(value: object) -> str:
    return "missing" if value is None else msgspec.json.encode(value).decode()
