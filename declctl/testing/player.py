"""Plays ControllerTest documents: does their steps, and says where what is there is not what is expected.

`play` plays one document, on a stage. On the API server in memory a step ends when the controller is at rest,
and expectations are judged then, once: what is not there at rest does not come without time. So a failure is
told at once, and a test takes milliseconds.
"""

import fnmatch
import io
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from declctl.errors import DeclctlError
from declctl.manifest.controller_test import (
    DEFAULT_NAMESPACE,
    CallsExpectation,
    ConditionExpectation,
    EventExpectation,
    Expectation,
    JsonObject,
    LoadedTest,
    TestingStep,
    WritesExpectation,
)
from declctl.manifest.model import CacheMode
from declctl.manifest.values import Json, Path, mapping_at, value_at
from declctl.objects import GroupVersionKind, KubeObject
from declctl.runtime.handling.tap import TapOutcome
from declctl.runtime.reloading.changes import Result
from declctl.runtime.scheduling.schedules import ScheduleStatistics
from declctl.testing.blocking_client import ClusterChoice
from declctl.testing.cluster_stage import ClusterStage
from declctl.testing.matching import matches, nearest, sentence, shown
from declctl.testing.stages import SandboxStage, TestingStage
from declctl.writes import WriteRecord, WriteResult, WriteVerb

if TYPE_CHECKING:  # late: it has the whole runtime
    from declctl.testing.controller import HandlerCall

Outcome = Literal["passed", "failed", "skipped"]
_FAILURES = frozenset({TapOutcome.FAILED, TapOutcome.RETRIED, TapOutcome.DEAD_LETTER, TapOutcome.OVERDUE})
_EVENTS = GroupVersionKind("", "v1", "Event")
_MOST_NAMED = 5  # objects, Events or writes that a message names
_LOOK_SECONDS = 2.0  # after which all shared objects were looked at
_LEAST_WAIT = 1e-3  # seconds: less is lost in the sum of a clock
_MOST_PRINTED = 20  # lines of handlers
_MOST_DIFFERENCES = 20  # of an object, that a message has


class OutcomeReason(msgspec.Struct, frozen=True):
    """Why a test has failed or was skipped: one expectation that is not met, or a step that can't be done."""

    place: str  # `file:line:column` in the document
    message: str
    details: Sequence[str] = ()  # lines below it, such as differences


class PlayedTest(msgspec.Struct, frozen=True):
    """What became of a document. `reasons` are all that is not met after the first step that has failed."""

    name: str
    file: str
    outcome: Outcome
    seconds: float  # of this machine
    reasons: Sequence[OutcomeReason] = ()
    notes: Sequence[str] = ()  # of a failed test: the last errors of handlers, and what they have printed


class _Unmet(Exception):
    """An expectation is not met, or a step can't be done; the first line, and those below it."""

    def __init__(self, path: Path, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.path = path
        self.message = message
        self.details = details


class _Begin(msgspec.Struct, frozen=True):
    """The figures at the beginning of a step; differences to them are what has happened in it."""

    version: int = 0  # of the server
    events: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])  # versions, by uid
    calls: int = 0  # of handlers, so far
    # By name: calls so far, and those that have failed.
    schedules: Mapping[str, tuple[int, int]] = msgspec.field(default_factory=dict[str, tuple[int, int]])
    last_write: WriteRecord | None = None


def play(test: LoadedTest, cluster: ClusterChoice | None = None) -> PlayedTest:
    """Play a document over an API server in memory, or in namespaces of a cluster.

    Raises nothing that a document or its controller can be the cause of. Raises UsageError and ApiError for a
    cluster that can't be used.
    """
    begin, printed = time.monotonic(), io.StringIO()
    outcome: Outcome = "passed"
    unmet: Sequence[_Unmet] = ()
    notes: list[str] = []
    # What handlers print is of use where a test has failed, and would be in the way elsewhere.
    with redirect_stdout(printed):
        try:
            with SandboxStage(test) if cluster is None else ClusterStage(test, cluster) as stage:
                if refusal := stage.prepare():
                    outcome, unmet = "skipped", [_Unmet(("metadata", "name"), refusal)]
                elif unmet := _Player(test, stage).run():
                    outcome, notes = "failed", list(_errors(stage))
        except AssertionError as error:  # the controller has not ended
            outcome, unmet = "failed", [*unmet, _Unmet(("spec",), str(error))]
    if outcome == "failed":
        notes += [f"printed: {each}" for each in printed.getvalue().splitlines()[-_MOST_PRINTED:]]
    reasons = [OutcomeReason(test.place(each.path), each.message, each.details) for each in unmet]
    return PlayedTest(test.name, test.document.path, outcome, time.monotonic() - begin, reasons, notes)


class _Player:
    """One document, while it is played."""

    def __init__(self, test: LoadedTest, stage: TestingStage) -> None:
        self._test = test
        self._stage = stage
        self._begin = _Begin()

    def run(self) -> Sequence[_Unmet]:
        """Play the steps up to the first one that fails; returns what is not met then, nothing if all is."""
        spec = self._test.spec
        path, context = (*spec.path, "objects"), "the test can't begin: "
        try:
            self._start()
            for number, step in enumerate(spec.steps):
                path, context = step.path, ""
                # A first step without an action is about the start itself.
                if number or step.has_action:
                    self._begin = self._now()
                if unmet := self._play(step):
                    return unmet
            self._check_mutations()
        except _Unmet as unmet:
            return [unmet]
        except (DeclctlError, AssertionError, OSError, RuntimeError) as error:
            return [_Unmet(path, f"{context}{error}")]
        return ()

    def _check_mutations(self) -> None:
        """Fail if a handler has changed an object that others share; these are looked at each second."""
        if all(each.cache is not CacheMode.OBJECTS for each in self._stage.bundle.controller.resources):
            return
        self._stage.controller.advance(_LOOK_SECONDS)
        if mutations := self._stage.controller.mutations:
            message = "a handler changed objects of the cache, which others read"
            raise _Unmet(self._test.spec.path, message, list(map(str, mutations)))

    def _start(self) -> None:
        spec = self._test.spec
        if any(step.reload is not None and step.reload.files for step in spec.steps):
            self._stage.copy_bundle()
        objects = [each for entry in spec.objects for each in self._test.objects_of(entry)]
        self._begin = _Begin(self._stage.begin(objects))
        if spec.steps[0].has_action:
            self._stage.rest()

    def _play(self, step: TestingStep) -> Sequence[_Unmet]:
        """Play one step, which ends with the controller at rest; returns what is not met then."""
        wait = step.wait or 0.0
        self._act(step)
        self._stage.rest()
        while unmet := self._unmet(step):
            if wait > _LEAST_WAIT:
                wait -= self._stage.controller.step(wait)
            elif not self._stage.wait():
                break
        if unmet and step.wait is not None:
            written = self._test.document.written((*step.path, "wait")) or f"{step.wait:g}s"
            unmet = [
                _Unmet(each.path, f"{each.message}, after waiting {written}", each.details) for each in unmet
            ]
        return [*unmet, *self._noise(step)]

    def _act(self, step: TestingStep) -> None:
        stage, test = self._stage, self._test
        if step.apply is not None:
            for obj in test.objects_of(step.apply):
                stage.apply(obj)
        elif step.patch is not None:
            one = step.patch
            stage.patch(test.kind_of(one.api_version, one.kind), one.namespace, one.name, one.patch)
        elif step.delete is not None:
            one = step.delete
            stage.delete(test.kind_of(one.api_version, one.kind), one.namespace, one.name)
        elif step.advance is not None:
            stage.controller.advance(step.advance)
        elif step.fault is not None:
            stage.fault(step.fault.order)
        elif step.reload is not None:
            stage.replace({name: test.folder / file for name, file in (step.reload.files or {}).items()})
            outcome = stage.controller.reload(force=not step.reload.files)
            if outcome.result is Result.REFUSED:
                raise _Unmet(step.reload.path, f"the reload was refused: {outcome.line}")
        elif step.restart is not None:
            stage.restart()
            self._begin = _Begin(self._begin.version, self._begin.events)

    def _noise(self, step: TestingStep) -> Iterator[_Unmet]:
        """What is not quiet in the times for which a step expects that. The clock moves by them."""
        for each in step.expect:
            if (seconds := each.quiet) is None:
                continue
            before, calls = self._writes(), self._calls()
            self._stage.controller.advance(seconds)
            self._stage.rest()
            written = self._writes()[len(before) :]
            called = [
                f"{name} was called {_times(count - calls.get(name, (0, 0))[0])}"
                for name, (count, _) in self._calls().items()
                if count != calls.get(name, (0, 0))[0]
            ]
            if written or called:
                details = [*called, *map(_written, written[:_MOST_NAMED])]
                yield _Unmet((*each.path, "quiet"), f"not quiet for {seconds:g} s", details)

    # -- what is there

    def _now(self) -> _Begin:
        last, calls = next(iter(self._ledger()[-1:]), None), len(self._stage.controller.calls)
        events = (each["metadata"] for each in self._stage.objects(_EVENTS))
        versions = {str(each.get("uid")): str(each.get("resourceVersion")) for each in events}
        return _Begin(self._stage.version(), versions, calls, self._schedules(), last)

    def _schedules(self) -> Mapping[str, tuple[int, int]]:
        schedules = self._stage.controller.status().schedules
        return {each.name: (each.succeeded + each.failed, each.failed) for each in schedules}

    def _calls(self) -> Mapping[str, tuple[int, int]]:
        """By handler or schedule: the calls that ended in this step, and those of them that have failed."""
        found: dict[str, tuple[int, int]] = {}
        for name, (calls, failed) in self._schedules().items():
            before, failed_before = self._begin.schedules.get(name, (0, 0))
            found[name] = (calls - before, failed - failed_before)
        for each in self._ended():
            calls, failed = found.get(each.handler, (0, 0))
            found[each.handler] = (calls + 1, failed + (each.outcome in _FAILURES))
        return found

    def _ended(self) -> Sequence["HandlerCall"]:
        """The calls of handlers that ended in this step, without those that waited for a cache that fills."""
        calls = self._stage.controller.calls[self._begin.calls :]
        return [each for each in calls if each.outcome is not TapOutcome.WAITING]

    def _ledger(self) -> Sequence[WriteRecord]:
        return self._stage.controller.runtime.parts.writing.ledger.newest()

    def _writes(self) -> Sequence[WriteRecord]:
        """The writes of this step that the server has taken and that changed something, the oldest first."""
        newest, last = self._ledger(), self._begin.last_write
        begin = next((at for at, each in enumerate(newest, 1) if each is last), 0)
        return list(filter(self._has_changed, newest[begin:]))

    def _has_changed(self, write: WriteRecord) -> bool:
        """Whether the server has taken a write, and its object was another one when the step began.

        A process that has just started does not know what was there: its record says that all is new.
        """
        if write.result is not WriteResult.SUCCEEDED or not write.changed:
            return False
        version = write.resource_version
        return write.verb is WriteVerb.DELETE or not version or int(version) > self._begin.version

    def _events(self) -> Sequence[KubeObject]:
        """The Events that came or were counted up in this step."""
        return [
            each
            for each in self._stage.objects(_EVENTS)
            if self._begin.events.get(each["metadata"].get("uid")) != each["metadata"].get("resourceVersion")
        ]

    # -- what is expected

    def _unmet(self, step: TestingStep) -> Sequence[_Unmet]:
        """What is not met now of the expectations of a step, but for `quiet`."""
        found: list[_Unmet] = []
        for each in step.expect:
            try:
                self._judge(each)
            except _Unmet as unmet:
                found.append(unmet)
        return found

    def _judge(self, expected: Expectation) -> None:
        """Raise _Unmet if an expectation is not met."""
        if expected.match is not None:
            self._judge_match(expected, self._pattern(expected.match))
        elif expected.absent is not None:
            self._judge_absent((*expected.path, "absent"), self._pattern(expected.absent))
        elif expected.condition is not None:
            self._judge_condition(expected.condition)
        elif expected.event is not None:
            self._judge_event(expected.event)
        elif expected.calls is not None:
            self._judge_calls(expected.calls)
        elif expected.writes is not None:
            self._judge_writes(expected.writes)

    def _judge_match(self, expected: Expectation, pattern: JsonObject) -> None:
        path, objects = (*expected.path, "match"), self._objects(pattern)
        fitting = [each for each in objects if matches(pattern, each)]
        if expected.count is not None:
            if len(fitting) != expected.count:
                names = _named(fitting)
                message = f"expected {expected.count} of {_described(pattern)}, found {len(fitting)}{names}"
                near = () if fitting else self._near(pattern, objects)
                raise _Unmet((*expected.path, "count"), message, near)
        elif not objects:
            raise _Unmet(path, f"there is no {_described(pattern)}", self._others(pattern))
        elif not fitting:
            raise _Unmet(path, f"no {_described(pattern)} matches", self._near(pattern, objects))

    def _judge_absent(self, path: Path, pattern: JsonObject) -> None:
        if not (fitting := [each for each in self._objects(pattern) if matches(pattern, each)]):
            return
        details = [
            f"{_name(each)} is being deleted, and has the finalizers {shown(each['metadata']['finalizers'])}"
            for each in fitting
            if each["metadata"].get("deletionTimestamp") and each["metadata"].get("finalizers")
        ]
        raise _Unmet(path, f"{len(fitting)} of {_described(pattern)} are there{_named(fitting)}", details)

    def _judge_condition(self, one: ConditionExpectation) -> None:
        metadata: JsonObject = {"name": one.name, "namespace": one.namespace}
        written: JsonObject = {"apiVersion": one.api_version, "kind": one.kind, "metadata": metadata}
        pattern = self._pattern(written)
        if not (objects := self._objects(pattern)):
            raise _Unmet(one.path, f"there is no {_described(pattern)}", self._others(pattern))
        conditions: list[Any] = list((objects[0].get("status") or {}).get("conditions") or ())
        found = next((each for each in conditions if each.get("type") == one.type), None)
        if found is None:
            types = ", ".join(str(each.get("type")) for each in conditions) or "none"
            raise _Unmet(one.path, f"{_described(pattern)} has no condition {one.type}", [f"it has {types}"])
        if wrong := _wrong_texts(one, found):
            raise _Unmet(one.path, f"{_described(pattern)}: the condition {one.type} differs", wrong)

    def _judge_event(self, one: EventExpectation) -> None:
        events = self._events()
        fitting = [each for each in events if _is_event(one, each)]
        if (len(fitting) == one.count) if one.count is not None else fitting:
            return
        wanted = "an Event" if one.count is None else f"{one.count} Events"
        details = [
            f"{each.get('type')} {each.get('reason')}: {each.get('message')}" for each in events[:_MOST_NAMED]
        ] or ["no Event came in this step"]
        raise _Unmet(one.path, f"expected {wanted} like this in this step, found {len(fitting)}", details)

    def _judge_calls(self, one: CallsExpectation) -> None:
        calls, failed = self._calls().get(one.handler, (0, 0))
        if wrong := _wrong_number(one, calls):
            found = f"{calls} ({failed} failed)"
        elif one.failed is not None and failed != one.failed:
            wrong, found = _number(one.failed, "failed call"), f"{failed} of {calls}"
        else:
            return
        message = f"expected {wrong} of {one.handler} in this step, found {found}"
        raise _Unmet(one.path, message, self._called(one.handler))

    def _called(self, handler: str) -> Sequence[str]:
        """The calls of a handler in this step: the key, the outcome, and the error or the cause."""
        calls = [each for each in self._ended() if each.handler == handler]
        lines = [f"{each.key}: {each.outcome}, {each.error or each.cause}" for each in calls[:_MOST_NAMED]]
        more = len(calls) - len(lines)
        return [*lines, f"and {_number(more, 'more call')}"] if more else lines

    def _judge_writes(self, one: WritesExpectation) -> None:
        kind, writes = one.kind and self._test.kind_of(one.api_version, one.kind), self._writes()
        fitting = [
            each
            for each in writes
            if (not kind or (each.kind.group, each.kind.kind) == (kind.group, kind.kind))
            and one.verb in ("", str(each.verb))
            and one.name in ("", each.key.name)
            and one.handler in ("", each.origin.handler)
        ]
        if not (wrong := _wrong_number(one, len(fitting))):
            return
        # Where none is like it, the others may tell what is misspelt.
        texts = Counter(map(self._told, fitting or writes))
        details = [text if count == 1 else f"{count} times {text}" for text, count in texts.items()]
        message = f"expected {wrong} like this in this step, found {len(fitting)}"
        none = ["the controller has written nothing in this step"]
        raise _Unmet(one.path, message, details[:_MOST_NAMED] or none)

    def _told(self, write: WriteRecord) -> str:
        changed = ", ".join(self._stage.changed_by(write))
        return f"{_written(write)}: {changed}" if changed else _written(write)

    # -- objects

    def _pattern(self, given: JsonObject) -> JsonObject:
        """A pattern with its apiVersion and its namespace."""
        kind = self._test.kind_of(str(given.get("apiVersion") or ""), str(given["kind"]))
        pattern: JsonObject = {**given, "apiVersion": kind.api_version}
        metadata = dict(mapping_at(pattern, "metadata"))
        if self._stage.is_namespaced(kind):
            metadata["namespace"] = metadata.get("namespace") or DEFAULT_NAMESPACE
        else:
            metadata.pop("namespace", None)
        return {**pattern, "metadata": metadata} if metadata else pattern

    def _objects(self, pattern: JsonObject) -> Sequence[KubeObject]:
        """The objects that a pattern is about: those in its namespace, and of its name."""
        kind = GroupVersionKind.of(str(pattern["apiVersion"]), str(pattern["kind"]))
        identity: dict[str, Json] = {
            name: value
            for name in ("namespace", "name")
            if (value := value_at(pattern, "metadata", name)) is not None
        }
        try:
            found = self._stage.objects(kind)
        except DeclctlError:  # its definition is not there (any more)
            return ()
        # A List has them without these two.
        whole = [{**each, "apiVersion": kind.api_version, "kind": kind.kind} for each in found]
        return [each for each in whole if matches(identity, each["metadata"])]

    def _others(self, pattern: JsonObject) -> Sequence[str]:
        metadata = dict(mapping_at(pattern, "metadata"))
        metadata = {name: each for name, each in metadata.items() if name == "namespace"}
        others = self._objects({**pattern, "metadata": metadata})
        return [f"there are {', '.join(map(_name, others[:_MOST_NAMED]))}"] if others else ()

    def _near(self, pattern: JsonObject, objects: Sequence[KubeObject]) -> Sequence[str]:
        found = nearest(pattern, objects)
        if found is None:
            return ()
        obj, differing = found
        lines = [f"{_name(obj)}: {sentence(each)}" for each in differing[:_MOST_DIFFERENCES]]
        if (more := len(differing) - len(lines)) > 0:
            lines.append(f"and {more} more differences")
        if len(objects) > 1:
            lines.append(f"it is the nearest of {len(objects)}")
        return lines


def _errors(stage: TestingStage) -> Sequence[str]:
    """The last errors of handlers, with their tracebacks if the log has them."""
    if not stage.has_begun:
        return ()
    lines: list[str] = []
    calls = stage.controller.calls
    last = {each.handler: each for each in calls if each.outcome in _FAILURES}
    newest = {(each.handler, each.key): each for each in calls}
    for name, call in last.items():
        is_to_come = call.retry_in is not None and call is newest[name, call.key]
        again = " (again later)" if is_to_come else ""
        lines.append(f"the last error of {name}, for {call.key}{again}: {call.error}")
        lines += _traceback(stage, name, call.error)
    schedules: Sequence[ScheduleStatistics] = ()  # of a controller that can be asked
    with suppress(AssertionError, DeclctlError, RuntimeError):
        schedules = stage.controller.status().schedules
    found = ((each.name, each.last_error) for each in schedules if each.last_error is not None)
    return [*lines, *(f"the last error of {name}: {error}" for name, error in found)]


def _traceback(stage: TestingStage, handler: str, error: str) -> Sequence[str]:
    """The last traceback of a handler in the log; if it is that of the error, its frames alone."""
    logged = (line.fields for line in reversed(stage.controller.log.lines) if "traceback" in line.fields)
    text = next((str(each["traceback"]).rstrip() for each in logged if each.get("handler") == handler), "")
    lines = text.splitlines()
    if lines and text.endswith(error) and lines.count(lines[0]) == 1:  # it has no other cause
        return lines[1 : -len(error.splitlines())]
    return [f"  {line}" for line in lines]


def _is_event(expected: EventExpectation, event: KubeObject) -> bool:
    return (
        expected.type in ("", event.get("type"))
        and _like(expected.reason, event.get("reason"))
        and _like(expected.message, event.get("message"))
        and matches(expected.regarding or {}, event.get("involvedObject") or {})
    )


def _like(pattern: str, text: object) -> bool:
    """Whether a text is as a pattern in which * stands for any characters. An empty pattern is any text."""
    # Brackets and question marks are common in messages: they stand for themselves.
    escaped = pattern.replace("[", "[[]").replace("?", "[?]")
    return not pattern or fnmatch.fnmatchcase(str(text or ""), escaped)


def _wrong_texts(expected: ConditionExpectation, found: Mapping[str, Any]) -> list[str]:
    wrong: list[str] = []
    for name in ("status", "reason", "message"):
        wanted = str(getattr(expected, name))
        if not _like(wanted, found.get(name)):
            wrong.append(f"{name}: expected {shown(wanted)}, found {shown(found.get(name))}")
    return wrong


def _wrong_number(expected: CallsExpectation | WritesExpectation, found: int) -> str:
    """What is expected, in words, if the number is another one; else an empty text."""
    what = "call" if isinstance(expected, CallsExpectation) else "write"
    if expected.count is not None and found != expected.count:
        return _number(expected.count, what)
    if expected.min is not None and found < expected.min:
        return f"{_number(expected.min, what)} at least"
    if expected.max is not None and found > expected.max:
        return f"{_number(expected.max, what)} at most"
    return ""


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _written(record: WriteRecord) -> str:
    return f"{record.origin.handler}: {record.verb} {record.kind.kind} {record.key}"


def _name(obj: KubeObject) -> str:
    return str(obj["metadata"].get("name"))


def _named(objects: Sequence[KubeObject]) -> str:
    names = ", ".join(map(_name, objects[:_MOST_NAMED]))
    more = ", …" if len(objects) > _MOST_NAMED else ""
    return f" ({names}{more})" if objects else ""


def _described(pattern: JsonObject) -> str:
    name = value_at(pattern, "metadata", "name")
    return f"{pattern['kind']} {name}" if name else str(pattern["kind"])


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
