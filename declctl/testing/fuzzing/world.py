"""Plays lives: a controller over an API server in memory, and what users and others do there.

The clock stands still between two steps. A world may play one life after the other, as a start takes as long
as a short life: but only after one that has left all objects as it has found them.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from functools import reduce
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from declctl.errors import SandboxError
from declctl.kit import AdvancingClock
from declctl.objects import KubeObject
from declctl.objects.managed_fields import ElementStep, Steps, owned_values
from declctl.sandbox import Sandbox, SandboxThread, immutable
from declctl.sandbox.faults import LedgerEntry
from declctl.sandbox.kinds import ServedKind
from declctl.sandbox.patches import MERGE_PATCH, MERGES
from declctl.testing.fuzzing import lives
from declctl.testing.fuzzing.bundle import FuzzedBundle
from declctl.testing.fuzzing.lives import Step
from declctl.testing.fuzzing.states import USERS, ObjectId, State, id_of, is_written, state_of

if TYPE_CHECKING:
    from declctl.runtime.runtime import Runtime
    from declctl.testing.controller import ControllerUnderTest

USER: Final = "declctl-test"
TOUCH: Final = "declctl.dev/touched"
"""An annotation that a user sets, to have an object reconciled again."""
_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_LONGEST: Final = 3600.0  # seconds until everything has to be done after the last fault
_MOST_STOPS: Final = 150  # of them: more is no rest
_RETRY_SECONDS: Final = 600  # that a document gives for retries after faults
_REQUEUES: Final = 3  # that are waited for, as long as each of them changes something
_REST_SECONDS: Final = 5.0  # of this machine, without time passing
_NO_STATE: Final = frozenset({"Event", "Lease", "CustomResourceDefinition"})
_WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})


class LifeClock(AdvancingClock):
    """A clock that stands, begins with the year 2026, and has no jitter."""

    def __init__(self) -> None:
        super().__init__(stands=True)
        self._first = self.monotonic()

    def now(self) -> datetime:
        """The time of the life."""
        return _BEGIN + timedelta(seconds=self.monotonic() - self._first)

    @property
    def seconds(self) -> float:
        """Those of the life so far."""
        return self.monotonic() - self._first

    def random(self) -> float:
        """Always the same."""
        return 0.5


class PlayedStep(NamedTuple):
    """A step as a document has it, and the requests that the controller has made in it."""

    document: KubeObject
    writes: Sequence[LedgerEntry]


class Restless(Exception):
    """The controller does not come to rest; the message says why."""

    def __init__(self, message: str, handler: str = "") -> None:
        super().__init__(message)
        self.handler = handler  # whose calls fail; empty if it goes on without failures


class World:
    """A server and a controller, for one life or, with `begin_again`, for several ones.

    Use it in a with statement, or end it by `close`: the controller runs from its beginning to its end.

    `created` are the seconds at which each of the objects was created, in their order; None: with the world.
    `begin` are those at which the controller starts.
    """

    def __init__(
        self,
        bundle: FuzzedBundle,
        objects: Sequence[KubeObject],
        created: Sequence[float] | None = None,
        begin: float = 0.0,
    ) -> None:
        self.bundle = bundle
        self.clock = LifeClock()
        self.played: list[PlayedStep] = []
        self.wanted: dict[ObjectId, KubeObject] = {}  # what users want, by id
        self._deleted: dict[ObjectId, KubeObject] = {}  # as they were when users deleted them
        self._objects = list(zip(objects, created or [0.0] * len(objects), strict=True))
        self._sandbox = SandboxThread(clock=self.clock, seed=1, garbage_collection=True)
        self._controller: ControllerUnderTest | None = None
        self._has_faults = False  # now
        self._had_faults = False  # since it converged last
        self._is_at_rest = False
        self._kinds: dict[tuple[str, str], ServedKind] = {}
        self._touches = 0
        self._read = 0  # lines of the log of the controller
        self._sandbox.__enter__()
        try:
            self._sandbox.load(self.bundle.definitions)
            for each, seconds in self._objects:
                self._pass_until(seconds)
                self._sandbox.load([each])
            self._want()
            self._pass_until(begin)
            # They are no doing of a life: a controller that is called for namespaces finds the same in each.
            for each in self.bundle.primaries:
                if each.namespace:
                    self._sandbox.ensure_namespace(each.namespace)
            self._start()
        except BaseException:
            self._sandbox.__exit__(None, None, None)
            raise
        self._first = _versions(self.state())  # what was there before the life

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the controller and the server."""
        try:
            self._stop()
        finally:
            self._sandbox.__exit__(None, None, None)

    def begin_again(self) -> bool:
        """Be ready for a further life; False if the objects are not all as they were before the last one.

        False after a reload, too: the search for what holds the old code, once a minute of each life, takes
        longer than a start.
        """
        reloaded = any("reload" in each.document for each in self.played)
        if reloaded or self._has_faults or _versions(self.state()) != self._first:
            return False
        self.played, self.wanted, self._deleted, self._had_faults = [], {}, {}, False
        self._want()
        return True

    def _want(self) -> None:
        for each, _ in self._objects:
            self.wanted[id_of(self._stored(each))] = each

    # Steps

    def play(self, step: Step) -> None:
        """Let a step happen, and rest. Nothing happens if it can't. Raises Restless."""
        match step:
            case lives.Create():
                self._create(step)
            case lives.Edit():
                self._edit(step)
            case lives.Delete():
                self.delete(self._primary(step.primary))
            case lives.ChildEdit():
                self._edit_child(step)
            case lives.ChildDelete():
                children = self._watched_children()
                if children:
                    self.delete(id_of(children[step.child % len(children)]))
            case lives.ChildStatus():
                self._write_status(step)
            case lives.ServerFault():
                self._order(dict(step.order))
            case lives.Restart():
                self.restart()
            case lives.Reload():
                self._reload()
            case lives.Advance():
                self._advance(float(step.seconds))

    def apply(self, obj: KubeObject) -> None:
        """A user creates an object; nothing happens if a rule of its schema refuses it."""
        try:
            self._sandbox.apply(obj, manager=USER)
        except SandboxError:
            return
        self.wanted[id_of(obj)] = obj
        self._end({"apply": obj})

    def delete(self, of: ObjectId) -> None:
        """A user deletes an object."""
        if self._get(of) is None:
            return
        if of in self.wanted:
            self._deleted[of] = self.wanted.pop(of)
        self._sandbox.delete(self._kind(of[0], of[1]), of[3], of[2] or None)
        self._end({"delete": _target(of)})

    def touch(self, of: ObjectId) -> None:
        """A user sets an annotation of an object, and so has it reconciled."""
        self._touches += 1
        self._patch(of, {"metadata": {"annotations": {TOUCH: str(self._touches)}}})

    def restart(self) -> None:
        """The controller ends and starts again."""
        self.clear_faults()
        self._stop()
        self._start()
        self._end({"restart": {}})

    def clear_faults(self) -> None:
        """Faults are over."""
        if self._has_faults:
            self._has_faults = False
            self._sandbox.order({"fault": "clear"})
            self._end({"fault": {"fault": "clear"}}, rests=False)

    def converge(self) -> None:
        """Let time pass until nothing is left to do, an hour at most. Raises Restless."""
        passed = self._until_idle(_LONGEST)
        for _ in range(_REQUEUES):
            due = self._next_due()
            if due is None or due > _LONGEST:
                break
            before = self.state()
            self._within(lambda due=due: self.clock.advance(due, timeout=_REST_SECONDS))
            passed += due + self._until_idle(_LONGEST)
            if _versions(before) == _versions(self.state()):
                break
        # A controller without the fault that is found may need time for its retries.
        least, self._had_faults = _RETRY_SECONDS * self._had_faults, False
        if passed or least:
            self._end({"advance": f"{max(int(passed) + 1, least)}s"}, rests=False)

    # What there is

    def state(self) -> State:
        """All objects but Events and Leases."""
        return state_of(each for each in self._sandbox.everything() if each["kind"] not in _NO_STATE)

    def live_primaries(self) -> Sequence[ObjectId]:
        """The objects that users want, and that handlers are called for."""
        own = [(each.api_version, each.kind, each.namespace, each.name) for each in self.bundle.primaries]
        return [each for each in own if each in self.wanted]

    def all_primaries(self) -> Sequence[ObjectId]:
        """The ids of all objects that a life may have."""
        return [(each.api_version, each.kind, each.namespace, each.name) for each in self.bundle.primaries]

    def failure(self) -> tuple[str, str]:
        """The handler that fails now, and its error; empty if none does."""
        assert self._controller is not None
        for each in self._controller.status().handlers:
            if each.queued and each.last_error:
                return each.name, each.last_error
        return "", ""

    def undeclared(self) -> tuple[str, str]:
        """A handler whose write declctl has refused to send, and why; empty if there is none."""
        assert self._controller is not None
        lines = self._controller.log.lines
        for line in lines[self._read :]:
            if "UndeclaredWrite" in line.event:
                return str(line.fields.get("handler", "")), line.event
        self._read = len(lines)
        return "", ""

    def created(self, of: ObjectId) -> float:
        """The second at which an object was created; 0 for one that is gone."""
        obj = self._get(of)
        if obj is None:
            return 0.0
        return (datetime.fromisoformat(obj["metadata"]["creationTimestamp"]) - _BEGIN).total_seconds()

    def set_status(self, of: ObjectId, status: Any) -> None:
        """Give an object a status, as others have written it."""
        self._patch(of, {"status": status})

    def rest(self) -> None:
        """Let happen what needs no time. Raises Restless."""
        self._within(lambda: self.clock.rest(timeout=_REST_SECONDS))
        self._is_at_rest = True

    # The steps in detail

    def _create(self, step: lives.Create) -> None:
        primary = self.bundle.primaries[step.primary]
        of = self._primary(step.primary)
        if self._get(of) is not None:
            return
        if step.body is None:
            if of in self._deleted:
                self.apply(self._deleted[of])
            return
        body = deepcopy(step.body)
        given: KubeObject = body.pop("metadata", {})
        labels = {**(given.get("labels") or {}), **primary.labels}
        metadata = {"name": primary.name, **given, **({"labels": labels} if labels else {})}
        if primary.namespace:
            metadata["namespace"] = primary.namespace
        self.apply({"apiVersion": primary.api_version, "kind": primary.kind, "metadata": metadata, **body})

    def _edit(self, step: lives.Edit) -> None:
        self._patch(self._primary(step.primary), _at(step.path, step.value))

    def _edit_child(self, step: lives.ChildEdit) -> None:
        children = self._watched_children()
        if not children:
            return
        child = children[step.child % len(children)]
        fields = list(_changeable(child))
        if fields:
            steps, value = fields[step.field % len(fields)]
            self._patch(id_of(child), _at(steps, _other(value)))

    def _write_status(self, step: lives.ChildStatus) -> None:
        found = [each for each in self._children(surroundings=True) if _status(each, step.state) is not None]
        if found:
            obj = found[step.child % len(found)]
            status = _status(obj, step.state) or {}
            # A merge patch replaces a list: the conditions of the controller would go.
            if not _condition_types(obj.get("status")) <= _condition_types(status):
                status.pop("conditions", None)
            self._patch(id_of(obj), {"status": status})

    def _patch(self, of: ObjectId, patch: Any) -> None:
        old = self._get(of)
        if old is None:
            return
        kind = self._kind(of[0], of[1])
        new = MERGES[MERGE_PATCH](deepcopy(old), deepcopy(patch))
        if new == old or any(True for _ in immutable.changed_fields(kind, old, new)):
            return
        try:
            self._sandbox.patch(kind, of[3], patch, namespace=of[2])
        except SandboxError:
            return
        if of in self.wanted:
            self.wanted[of] = MERGES[MERGE_PATCH](deepcopy(self.wanted[of]), deepcopy(patch))
        self._end({"patch": {**_target(of), "patch": patch}})

    def _order(self, order: KubeObject) -> None:
        self._has_faults = self._had_faults = True
        self._sandbox.order(order)
        self._end({"fault": order}, rests=False)

    def _reload(self) -> None:
        assert self._controller is not None
        self._controller.reload(force=True)
        self._end({"reload": {}})

    def _advance(self, seconds: float) -> None:
        self._within(lambda: self.clock.advance(seconds, timeout=_REST_SECONDS))
        self._end({"advance": f"{seconds:g}s"}, rests=False)

    # How they are played

    def _start(self) -> None:
        from declctl.testing.controller import ControllerUnderTest  # late: it loads a whole controller

        self._controller = ControllerUnderTest(
            self.bundle.manifest, sandbox=self._sandbox, files=self.bundle.files
        )
        self._controller.start()
        self._read = 0

    def _pass_until(self, seconds: float) -> None:
        if seconds > self.clock.seconds:
            self.clock.advance(seconds - self.clock.seconds, timeout=_REST_SECONDS)

    def _stop(self) -> None:
        """End the controller, which waits for its calls: and these may wait for time to pass."""
        if self._controller is None:
            return
        runtime = self._controller.runtime
        with suppress(TimeoutError, RuntimeError):  # it has ended
            for number in range(2 * _MOST_STOPS):
                if not self._controller.on_machinery(_running(runtime), _REST_SECONDS):
                    break
                if number == _MOST_STOPS:
                    runtime.stop()  # each call leads to the next one: let no other one begin
                self.clock.step(_LONGEST, timeout=_REST_SECONDS)
        self._controller.stop()

    def _end(self, document: KubeObject, *, rests: bool = True) -> None:
        """A step has happened: rest, and keep it with the writes of the controller."""
        self._is_at_rest = False
        if rests:
            try:
                self.rest()
            finally:
                self._keep(document)
        else:
            self._keep(document)

    def _keep(self, document: KubeObject) -> None:
        self.played.append(PlayedStep(document, self._sandbox.do(_taken_writes)))

    def _until_idle(self, limit: float) -> float:
        """Let time pass until no call is left, and return the seconds. Raises Restless."""
        assert self._controller is not None
        passed, runtime = 0.0, self._controller.runtime
        if not self._is_at_rest:
            self.rest()
        for _ in range(_MOST_STOPS):
            if self._controller.on_machinery(_is_idle(runtime), _REST_SECONDS):
                return passed
            if passed >= limit:
                break
            step = limit - passed
            passed += self._within(lambda step=step: self.clock.step(step, timeout=_REST_SECONDS))
        handler, error = self.failure()
        if not error and (loops := runtime.parts.slots.write_loops()):
            raise Restless("; ".join(map(str, loops)))
        if not error and self._ends_late():
            return passed
        handler, error = self.failure()
        after = f"after {passed:,.0f} s"
        if error:
            raise Restless(f"the handler {handler} still fails {after}: {error}", handler)
        raise Restless(f"the controller goes on and on {after}: {runtime.unfinished()}")

    def _ends_late(self) -> bool:
        """Whether all calls end within some seconds of this machine.

        On a busy one, a call that is only slow looks as if it waited for time, and an hour passes over it.
        """
        assert self._controller is not None
        until = time.monotonic() + _REST_SECONDS
        while time.monotonic() < until:
            self._within(lambda: self.clock.step(1.0, timeout=_REST_SECONDS))
            if self._controller.on_machinery(_is_idle(self._controller.runtime), _REST_SECONDS):
                return True
        return False

    def _within(self, work: Any) -> Any:
        try:
            return work()
        except TimeoutError:
            raise Restless("the controller is never at rest: its own writes call it again") from None

    def _next_due(self) -> float | None:
        """Seconds until a key is reconciled again that asked for it; None if none did."""
        assert self._controller is not None
        return self._controller.on_machinery(_due(self._controller.runtime), _REST_SECONDS)

    def _primary(self, number: int) -> ObjectId:
        return self.all_primaries()[number]

    def _children(self, *, surroundings: bool = False) -> list[KubeObject]:
        """The objects that the controller has written; with `surroundings`, those of users, too."""
        own = set() if surroundings else set(self.all_primaries())
        found = (each for each in self._sandbox.everything() if each["kind"] not in _NO_STATE)
        return [
            each
            for each in sorted(found, key=id_of)
            if id_of(each) not in own and (is_written(each) or (surroundings and id_of(each) in self.wanted))
        ]

    def _watched_children(self) -> list[KubeObject]:
        """The children whose changes the manifest asks for: what is not watched can't be healed."""
        watched = self.bundle.watched
        return [each for each in self._children() if (each["apiVersion"], each["kind"]) in watched]

    def _get(self, of: ObjectId) -> KubeObject | None:
        with suppress(SandboxError):
            return self._sandbox.get(self._kind(of[0], of[1]), of[3], of[2] or None)
        return None

    def _stored(self, obj: KubeObject) -> KubeObject:
        """An object with the namespace that it has in the server."""
        kind = self._kind(obj["apiVersion"], obj["kind"])
        metadata = {**obj["metadata"]}
        if kind.namespaced:
            metadata.setdefault("namespace", "default")
        return {**obj, "metadata": metadata}

    def _kind(self, api_version: str, kind: str) -> ServedKind:
        if (api_version, kind) not in self._kinds:
            self._kinds[api_version, kind] = self._sandbox.served(api_version, kind)
        return self._kinds[api_version, kind]


def _taken_writes(server: Sandbox) -> Sequence[LedgerEntry]:
    """The writes in the ledger of requests, which is empty afterwards."""
    found = [each for each in server.ledger.requests() if each.verb in _WRITES]
    server.ledger.clear()
    return found


async def _is_idle(runtime: "Runtime") -> bool:
    return all(slot.is_idle for slot in runtime.parts.slots.all())


async def _running(runtime: "Runtime") -> int:
    return sum(slot.queue.statistics().running for slot in runtime.parts.slots.all())


async def _due(runtime: "Runtime") -> float | None:
    found = (slot.queue.next_due() for slot in runtime.parts.slots.all())
    return min((each for each in found if each is not None), default=None)


def _versions(state: State) -> dict[ObjectId, str]:
    return {of: obj["metadata"]["resourceVersion"] for of, obj in state.items()}


def _target(of: ObjectId) -> KubeObject:
    api_version, kind, namespace, name = of
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        **({"namespace": namespace} if namespace else {}),
    }


def _changeable(child: KubeObject) -> Iterator[tuple[Steps, Any]]:
    """The plain values that the controller has written, outside of lists and the status."""
    for entry in child["metadata"].get("managedFields") or ():
        if entry.get("manager") in USERS or entry.get("subresource"):
            continue
        for steps, value in owned_values(entry.get("fieldsV1") or {}, child):
            is_plain = isinstance(value, str | int) and not any(
                isinstance(each, ElementStep) for each in steps
            )
            if is_plain and steps[0] not in ("status", "metadata"):
                yield steps, value


def _at(steps: Sequence[str], value: object) -> object:
    """A merge patch that sets a value at a path."""
    return reduce(lambda patch, name: {name: patch}, reversed(steps), value)


def _other(value: object) -> object:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case _:
            return f"{value}x"


def _condition_types(status: KubeObject | None) -> set[str]:
    conditions: Sequence[KubeObject] = (status or {}).get("conditions") or ()
    return {each["type"] for each in conditions}


def _status(obj: KubeObject, state: str) -> KubeObject | None:
    """A status as the controllers of a cluster write it; None for a kind that has none."""
    spec: KubeObject = obj.get("spec") or {}
    ready, failed = state == "ready", state == "failed"
    said = "True" if ready else "False"
    match obj["kind"]:
        case "Deployment" | "StatefulSet" | "ReplicaSet":
            wanted = spec.get("replicas", 1)
            there = wanted if ready else 0
            counts = {
                "replicas": wanted,
                "readyReplicas": there,
                "availableReplicas": there,
                "updatedReplicas": wanted,
            }
            conditions = [{"type": "Available", "status": said, "reason": "Replicas", "message": state}]
            generation = obj["metadata"].get("generation", 1)
            return {"observedGeneration": generation, **counts, "conditions": conditions}
        case "DaemonSet":
            there = 2 if ready else 0
            return {"desiredNumberScheduled": 2, "currentNumberScheduled": 2, "numberReady": there}
        case "Pod":
            phase = {"ready": "Running", "waiting": "Pending", "failed": "Failed"}[state]
            return {"phase": phase, "conditions": [{"type": "Ready", "status": said}]}
        case "Job":
            how = "Complete" if ready else "Failed"
            conditions = [{"type": how, "status": "True"}] if ready or failed else []
            return {"succeeded": int(ready), "failed": int(failed), "conditions": conditions}
        case "PersistentVolumeClaim":
            return {"phase": {"ready": "Bound", "waiting": "Pending", "failed": "Lost"}[state]}
        case "Service" | "Ingress":
            return {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]} if ready else {}}
        case _:
            return None
