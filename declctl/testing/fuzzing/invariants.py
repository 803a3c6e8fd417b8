"""What must hold after each life, whatever has happened in it.

| name | what it says |
|---|---|
| `converges` | an hour after the last fault, nothing fails, and nothing is left to do |
| `declared` | what is there is what a fresh controller makes of the objects as users left them |
| `idempotent` | a further call at rest changes nothing |
| `finalized` | deleted objects go: no finalizer sticks |
| `collected` | when all objects of users are deleted, nothing is left of what the controller has made |
| `applies` | the controller writes nothing but what the manifest declares |
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

import msgspec
from msgspec import structs

from declctl.objects import KubeObject
from declctl.testing.fuzzing import lives
from declctl.testing.fuzzing.bundle import FuzzedBundle
from declctl.testing.fuzzing.lives import Life
from declctl.testing.fuzzing.states import (
    CURRENT_GENERATION,
    OLD_GENERATION,
    TIME_MASK,
    UID_MASK,
    ObjectId,
    State,
    StateDifference,
    changed_objects,
    differences,
    is_written,
)
from declctl.testing.fuzzing.world import TOUCH, PlayedStep, Restless, World
from declctl.testing.matching import ANY_VALUE

Invariant = Literal["converges", "declared", "idempotent", "finalized", "collected", "applies"]
INVARIANTS: Final[tuple[Invariant, ...]] = get_args(Invariant)
_MINUTE: Final = 60
_HOUR: Final[KubeObject] = {"advance": "3600s"}


class Violation(msgspec.Struct, frozen=True):
    """An invariant that a life has broken.

    `steps` are those of the life, as documents, and `expected` is what a test says after the last of them.
    """

    invariant: Invariant
    message: str  # sentences
    steps: Sequence[KubeObject]
    expected: Sequence[KubeObject]
    objects: Sequence[KubeObject] = ()  # that are there before the controller starts, with the surroundings


class _FreshOutcome(NamedTuple):
    """What a fresh controller comes to, and the steps until then."""

    state: State
    played: Sequence[PlayedStep]


class Judge:
    """Plays lives of one bundle, and says which invariant each of them breaks."""

    def __init__(self, bundle: FuzzedBundle, allowed: Mapping[str, str]) -> None:
        self._bundle = bundle
        self._checks = frozenset(INVARIANTS) - allowed.keys()
        self._references: dict[bytes, _FreshOutcome | str] = {}
        self._world: World | None = None  # whose lives have broken nothing so far

    def judge(self, life: Life) -> Violation | None:
        """Play a life, and return what it breaks; None for nothing.

        A life after one that broke something has a controller of its own: what it breaks is its own doing.
        """
        world, self._world = self._world or World(self._bundle, self._bundle.surroundings), None
        try:
            found = self._judge(world, life)
            if found is None and world.begin_again():
                self._world = world
            return found
        except Restless as restless:
            return self._restless(world, restless)
        finally:
            if self._world is None:
                world.close()

    def close(self) -> None:
        """End the controller of the last life."""
        if self._world is not None:
            self._world.close()
            self._world = None

    def _judge(self, world: World, life: Life) -> Violation | None:
        # The life, then whatever still has to be done when all faults are over.
        for step in life:
            world.play(step)
            if found := self._undeclared(world):
                return found
        world.clear_faults()
        world.converge()
        if (found := self._undeclared(world) or self._stuck(world)) is not None:
            return found
        state = world.state()
        if found := self._compare(world, state, "declared", "a fresh controller comes to another end"):
            return found
        if "idempotent" in self._checks and (found := self._call_again(world)) is not None:
            return found
        if not self._checks & {"finalized", "collected"}:
            return None
        for each in world.live_primaries():
            world.delete(each)
        world.converge()
        if (found := self._undeclared(world) or self._stuck(world)) is not None:
            return found
        return self._compare(world, world.state(), "collected", "not all is gone with the objects")

    def _restless(self, world: World, restless: Restless) -> Violation | None:
        if (found := self._undeclared(world)) is not None:
            return found
        if "converges" not in self._checks:
            return None
        # Whoever plays it sees calls fail in an hour without faults, or writes and calls after it.
        world.clear_faults()
        steps = [*(each.document for each in world.played), _HOUR]
        failed: KubeObject = {"calls": {"handler": restless.handler, "failed": 0}}
        return Violation(
            "converges", str(restless), steps, [failed if restless.handler else {"quiet": "30s"}]
        )

    def _undeclared(self, world: World) -> Violation | None:
        """A write that the manifest does not declare: one that was sent, or one that declctl refused."""
        if "applies" not in self._checks:
            return None
        for number, step in enumerate(world.played):
            for each in step.writes:
                if not self._bundle.allows(each.verb, each.resource):
                    kind = self._bundle.kinds.get(each.resource.partition("/")[0], each.resource)
                    place = f"{each.namespace}/{each.name}" if each.namespace else each.name
                    message = (
                        f"the controller sent a {each.verb} of {each.resource} {place}, which `applies`, "
                        "`status` and `finalizer` of its handlers do not declare"
                    )
                    steps = [one.document for one in world.played[: number + 1]]
                    return Violation("applies", message, steps, [{"writes": {"kind": kind, "count": 0}}])
        handler, error = world.undeclared()
        if handler:
            steps = [one.document for one in world.played]
            return Violation("applies", error, steps, [{"calls": {"handler": handler, "failed": 0}}])
        return None

    def _stuck(self, world: World) -> Violation | None:
        """An object of a user that was deleted, and is there still."""
        if "finalized" not in self._checks:
            return None
        state = world.state()
        for each in world.all_primaries():
            obj = state.get(each)
            if obj is not None and each not in world.wanted:
                held = ", ".join(obj["metadata"].get("finalizers") or ()) or "nothing"
                message = f"{StateDifference(each, (), None, obj)}: it was deleted, and is held by {held}"
                return _violation("finalized", message, world.played, [StateDifference(each, (), None, obj)])
        return None

    def _compare(self, world: World, state: State, invariant: Invariant, what: str) -> Violation | None:
        """Compare with what a fresh controller makes of the same objects."""
        if invariant not in self._checks:
            return None
        missing = [each for each in world.all_primaries() if each not in world.wanted]
        found: Sequence[StateDifference] = ()
        # What depends on time may differ from a controller of the first second: one of now has to agree.
        for now in (False, True):
            reference = self._reference(world, state, now=now)
            if isinstance(reference, str):  # it does not come to rest itself
                return None
            if not (found := differences(reference.state, state, without=missing)):
                return None
        return self._compare_orders(world, state, invariant, found) or _violation(
            invariant, f"{what}: {_sentences(found)}", world.played, found
        )

    def _compare_orders(
        self, world: World, state: State, invariant: Invariant, found: Sequence[StateDifference]
    ) -> Violation | None:
        """The violation if it depends on the order of objects what a fresh controller makes of them.

        Then something outlives a call, and the fresh controller has this fault, too: what it makes is nothing
        to expect. What it makes of each object alone is.
        """
        objects = {each: _untouched(obj) for each, obj in world.wanted.items()}
        own = sorted(world.live_primaries())
        if len(own) < 2:
            return None
        statuses = self._statuses(world, state)
        others = [obj for each, obj in objects.items() if each not in own]
        first = self._reference(world, state, now=False)
        reverse = self._fresh(others, statuses, later=[objects[each] for each in reversed(own)])
        if isinstance(first, str) or isinstance(reverse, str):
            return None
        concerned = {each.object for each in found}
        if all(each.object not in concerned for each in differences(first.state, reverse.state)):
            return None
        alone = [self._fresh([*others, objects[each]], statuses) for each in own]
        states = [each.state for each in alone if not isinstance(each, str)]
        message = (
            "what a fresh controller makes depends on the order of the objects: something outlives a call, "
            "such as a global"
        )
        # Where the life has come to the right end, the fresh controller has not.
        for ended, played, before in (
            (state, world.played, ()),
            (first.state, first.played, [objects[each] for each in own]),
            (reverse.state, reverse.played, ()),
        ):
            if lacking := _lacking(states, ended):
                violation = _violation(invariant, f"{message}: {_sentences(lacking)}", played, lacking)
                return structs.replace(violation, objects=before)
        return _violation(invariant, f"{message}: {_sentences(found)}", world.played, ())

    def _call_again(self, world: World) -> Violation | None:
        touched = world.live_primaries() if self._bundle.touches else ()
        # A call that writes the time changes nothing while the clock stands.
        world.play(lives.Advance(_MINUTE))
        before, begin = world.state(), len(world.played)
        for each in touched:
            world.touch(each)
        if not self._bundle.touches:
            world.restart()
        world.converge()
        found = changed_objects(before, world.state(), touched)
        if not found:
            return None
        message = f"a further call changes what is at rest: {_sentences(found)}"
        # What the faulty code has written is no value to expect: but the call must not write.
        kinds = {each.object[1] for each in found}
        steps = [each.document for each in world.played]
        expected: Sequence[KubeObject] = ()
        end = begin
        for number, step in enumerate(world.played[begin:], begin):
            written = {self._bundle.kinds.get(each.resource.partition("/")[0]) for each in step.writes}
            if wrote := [each for each in sorted(kinds) if each in written]:
                end, expected = number, [{"writes": {"kind": each, "count": 0}} for each in wrote]
                steps[number] = {**step.document, "expect": expected}
        if not expected:
            return _violation("idempotent", message, world.played, found)
        return Violation("idempotent", message, steps[: end + 1], expected)

    def _statuses(self, world: World, state: State) -> Mapping[ObjectId, object]:
        """What the cluster's controllers have written: it is not the controller's doing."""
        own = {*world.wanted, *world.all_primaries()}
        return {each: obj["status"] for each, obj in state.items() if each not in own and "status" in obj}

    def _reference(self, world: World, state: State, *, now: bool) -> _FreshOutcome | str:
        """What a fresh controller makes of the objects that users want; or why it does not come to rest.

        With `now`, it begins at this time of the life, with objects as old as they are; without, all begins
        at once.
        """
        objects = [_untouched(each) for each in world.wanted.values()]
        created = [world.created(each) if now else 0.0 for each in world.wanted]
        by_age = sorted(zip(created, range(len(objects)), strict=True))
        objects = [objects[number] for _, number in by_age]
        times = [*sorted(created), world.clock.seconds if now else 0.0]
        return self._fresh(objects, self._statuses(world, state), times)

    def _fresh(
        self,
        objects: Sequence[KubeObject],
        statuses: Mapping[ObjectId, object],
        times: Sequence[float] = (),
        *,
        later: Sequence[KubeObject] = (),
    ) -> _FreshOutcome | str:
        """What a fresh controller makes of objects; or why it does not come to rest.

        - `statuses`: what the cluster's controllers write of what it has made.
        - `times`: the seconds at which the objects are created, and at which it starts; by default at once.
        - `later`: objects that come one after the other when it has started.
        """
        parts = [objects, sorted(statuses.items()), times, later]
        key = msgspec.json.encode(parts, order="deterministic")
        if key not in self._references:
            self._references[key] = self._start_fresh(objects, statuses, times, later)
        return self._references[key]

    def _start_fresh(
        self,
        objects: Sequence[KubeObject],
        statuses: Mapping[ObjectId, object],
        times: Sequence[float],
        later: Sequence[KubeObject],
    ) -> _FreshOutcome | str:
        *created, begin = times or [*(0.0 for _ in objects), 0.0]
        try:
            with World(self._bundle, objects, created, begin) as fresh:
                for each in later:
                    fresh.apply(each)
                fresh.converge()
                made = fresh.state()
                for each, status in statuses.items():
                    if each in made and made[each].get("status") != status:
                        fresh.set_status(each, status)
                fresh.converge()
                return _FreshOutcome(fresh.state(), fresh.played)
        except Restless as restless:
            return str(restless)


def _untouched(obj: KubeObject) -> KubeObject:
    annotations = {**(obj["metadata"].get("annotations") or {})}
    annotations.pop(TOUCH, None)
    metadata = {name: value for name, value in obj["metadata"].items() if name != "annotations"}
    return {**obj, "metadata": {**metadata, **({"annotations": annotations} if annotations else {})}}


def _lacking(references: Sequence[State], state: State) -> Sequence[StateDifference]:
    """What a state lacks of several others, where these do not contradict each other."""
    found = [{_key(one): one for one in differences(each, state)} for each in references]
    by_key = {key: one for each in found for key, one in each.items()}
    return [
        one
        for key, one in by_key.items()
        # Nothing that is there is too much, and a generated name is of one reference alone.
        if one.expected is not None
        and not one.number
        and all(
            key in lacking
            for lacking, reference in zip(found, references, strict=True)
            if one.object in reference and is_written(reference[one.object])
        )
    ]


def _key(difference: StateDifference) -> bytes:
    """Where a difference is, and the value that a field should have."""
    expected = difference.expected if difference.steps else None
    return msgspec.json.encode([difference.object, difference.steps, expected], order="deterministic")


def _sentences(found: Sequence[StateDifference]) -> str:
    shown = "; ".join(map(str, found[:3]))
    return shown if len(found) <= 3 else f"{shown}; and {len(found) - 3} more"


def _violation(
    invariant: Invariant, message: str, played: Sequence[PlayedStep], found: Sequence[StateDifference]
) -> Violation:
    steps = [each.document for each in played]
    return Violation(invariant, message, steps, [one for each in found for one in expectations_of(each)])


def expectations_of(difference: StateDifference) -> Sequence[KubeObject]:
    """What a test says of an object that is not as it has to be."""
    api_version, kind, namespace, name = difference.object
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    if name.endswith("*"):
        metadata = {**metadata, "generateName": name.removesuffix("*")}
        del metadata["name"]
    of: KubeObject = {"apiVersion": api_version, "kind": kind, "metadata": metadata}
    steps, expected, found = difference.steps, difference.expected, difference.found
    if not steps:
        if difference.number:
            return [{"match": of, "count": difference.number}]
        return [{"absent": of} if expected is None else {"match": of}]
    # An element that must not be there: a list has no pattern for this.
    if expected is None and hasattr(steps[-1], "keys"):
        return [{"absent": _merged(of, _path(steps))}]
    if _is_masked(expected, steps[-1]):
        # A time or a generation has no fixed value: any will do, but the one that was found.
        if found is None:
            return [{"match": _merged(of, _path(steps, ANY_VALUE))}]
        if str(found).startswith(OLD_GENERATION):
            found = int(found.removeprefix(OLD_GENERATION))
        return [] if _is_masked(found, steps[-1]) else [{"absent": _merged(of, _path(steps, found))}]
    return [{"match": _merged(of, _path(steps, _without_masks(expected)))}]


_NOTHING: Final[KubeObject] = {}


def _path(steps: Sequence[str], value: object = _NOTHING) -> object:
    """A pattern for an object that has a value at the path; by default any."""
    pattern = value
    for step in reversed(steps):
        keys = getattr(step, "keys", None)
        if keys is None:
            pattern = {step: pattern}
        elif "" in keys:
            pattern = [keys[""]]
        else:
            pattern = [{**keys, **pattern}] if isinstance(pattern, dict) else [keys]
    return pattern


def _merged(of: KubeObject, pattern: object) -> KubeObject:
    assert isinstance(pattern, dict)
    found = {**of, **pattern}
    if "metadata" in pattern:
        found["metadata"] = {**of["metadata"], **pattern["metadata"]}
    return found


def _without_masks(value: object) -> object:
    """An expected value without what has no fixed value."""
    if isinstance(value, dict):
        return {name: _without_masks(each) for name, each in value.items() if not _is_masked(each, name)}
    if isinstance(value, list):
        return [_without_masks(each) for each in value if not _is_masked(each, "")]
    return value


def _is_masked(value: object, name: str) -> bool:
    """Whether a value stands for others, as states are compared."""
    if not isinstance(value, str):
        return False
    if name == "observedGeneration":
        return value == CURRENT_GENERATION or value.startswith(OLD_GENERATION)
    return TIME_MASK in value or value.startswith(UID_MASK)
