"""Plays ControllerTest documents: does their steps, and says where what is there is not what is expected.

`play` plays one document, on a stage. On the API server in memory a step ends when the controller is at rest,
and expectations are judged then, once: what is not there at rest does not come without time. So a failure is
told at once, and a test takes milliseconds.
"""

import fnmatch
import io
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
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
from declctl.testing.documents import BundleUnderTest
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


class PlayedTest(msgspec.Struct, frozen=True):
    """What became of a document. `place` is `file:line:column` of what was not met, or of the document.

    `details` are the lines below the message: differences, and the last errors of handlers.
    """

    name: str
    file: str
    outcome: Outcome
    seconds: float  # of this machine
    place: str = ""
    message: str = ""  # why it has failed, or was skipped
    details: Sequence[str] = ()


class _Unmet(Exception):
    """An expectation is not met, or a step can't be done; the first line, and those below it."""

    def __init__(self, path: Path, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.path = path
        self.message = message
        self.details = details


class _Refused(_Unmet):
    """The document can't be played on this stage."""


@dataclass
class _Begin:
    """The figures at the beginning of a step; differences to them are what has happened in it."""

    calls: int  # of handlers, so far
    schedules: Mapping[str, tuple[int, int]]  # by name: calls so far, and those that have failed
    last_write: WriteRecord | None
    events: Mapping[str, str]  # versions, by uid
    version: int  # of the server
    before: Sequence[WriteRecord] = field(default_factory=list[WriteRecord])  # a restart, in this step


def play(test: LoadedTest, cluster: ClusterChoice | None = None) -> PlayedTest:
    """Play a document over an API server in memory, or in a namespace of a cluster.

    Raises nothing that a document or its controller can be the cause of. Raises UsageError and ApiError for a
    cluster that can't be used.
    """
    begin, printed = time.monotonic(), io.StringIO()
    # What handlers print is of use where a test has failed, and would be in the way elsewhere.
    with redirect_stdout(printed):
        try:
            failure = _played(test, cluster)
        except AssertionError as error:  # the controller has not ended
            failure = _Unmet(("spec",), str(error))
    name, file, seconds = test.name, test.document.path, time.monotonic() - begin
    place = test.place(("metadata", "name") if failure is None else failure.path)
    if failure is None:
        return PlayedTest(name, file, "passed", seconds, place)
    if isinstance(failure, _Refused):
        return PlayedTest(name, file, "skipped", seconds, place, failure.message)
    lines = [f"printed: {each}" for each in printed.getvalue().splitlines()[-_MOST_PRINTED:]]
    return PlayedTest(name, file, "failed", seconds, place, failure.message, [*failure.details, *lines])


def _played(test: LoadedTest, cluster: ClusterChoice | None) -> "_Unmet | None":
    with SandboxStage(test) if cluster is None else ClusterStage(test, cluster) as stage:
        if refusal := stage.prepare():
            return _Refused(("metadata", "name"), refusal)
        return _Player(test, stage).run()


class _Player:
    """One document, while it is played."""

    def __init__(self, test: LoadedTest, stage: TestingStage) -> None:
        self._test = test
        self._stage = stage
        self._begin = _Begin(0, {}, None, {}, 0)

    def run(self) -> _Unmet | None:
        """Play all steps; the first thing that is not met, None if all are."""
        replaces = any(step.reload is not None and step.reload.files for step in self._test.spec.steps)
        try:
            if replaces:
                self._stage.copy_bundle()
            self._start()
            for number, step in enumerate(self._test.spec.steps):
                try:
                    # A first step without an action is about the start itself.
                    if number or step.has_action:
                        self._stage.rest()
                        self._begin = self._now()
                    self._play(step)
                except (DeclctlError, AssertionError, OSError, RuntimeError) as error:
                    raise _Unmet(step.path, str(error)) from error
            self._check_mutations()
        except _Unmet as unmet:
            return _Unmet(unmet.path, unmet.message, [*unmet.details, *self._errors()])
        return None

    def _check_mutations(self) -> None:
        """Fail if a handler has changed an object that others share; these are looked at each second."""
        assert isinstance(self._test.bundle, BundleUnderTest)
        if all(each.cache is not CacheMode.OBJECTS for each in self._test.bundle.controller.resources):
            return
        self._stage.controller.advance(_LOOK_SECONDS)
        if mutations := self._stage.controller.mutations:
            message = "a handler changed objects of the cache, which others read"
            raise _Unmet(("spec",), message, list(map(str, mutations)))

    def _start(self) -> None:
        path: Path = ("spec", "objects")
        objects = [each for entry in self._test.spec.objects for each in self._test.objects_of(entry)]
        try:
            self._begin.version = self._stage.begin(objects)
        except (DeclctlError, AssertionError, OSError, RuntimeError) as error:
            raise _Unmet(path, f"the test can't begin: {error}") from error

    def _play(self, step: TestingStep) -> None:
        wait = step.wait or 0.0
        self._act(step)
        self._stage.rest()
        while (unmet := self._first_unmet(step)) is not None:
            if wait > _LEAST_WAIT:
                wait -= self._stage.controller.step(wait)
            elif not self._stage.wait():
                if step.wait is not None:
                    written = self._test.document.written((*step.path, "wait")) or f"{step.wait:g}s"
                    raise _Unmet(unmet.path, f"{unmet.message}, after waiting {written}", unmet.details)
                raise unmet
        for each in step.expect:
            if each.quiet is not None:
                self._stay_quiet(each, each.quiet)

    def _act(self, step: TestingStep) -> None:
        stage, test = self._stage, self._test
        if step.apply is not None:
            for obj in test.objects_of(step.apply):
                stage.apply(obj)
        elif step.patch is not None:
            one = step.patch
            kind = test.kind_of(one.api_version, one.kind)
            stage.patch(kind, one.namespace, one.name, one.patch)
        elif step.delete is not None:
            one = step.delete
            kind = test.kind_of(one.api_version, one.kind)
            stage.delete(kind, one.namespace, one.name)
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
            self._begin.before = self._writes()
            stage.restart()
            self._begin = _Begin(0, {}, None, self._begin.events, self._begin.version, self._begin.before)

    def _stay_quiet(self, expected: Expectation, seconds: float) -> None:
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
            raise _Unmet((*expected.path, "quiet"), f"not quiet for {seconds:g} s", details)

    # -- what is there

    def _now(self) -> _Begin:
        newest = self._ledger()
        last, calls = newest[-1] if newest else None, len(self._stage.controller.calls)
        return _Begin(calls, self._schedules(), last, self._versions(), self._stage.version())

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
        newest = list(self._ledger())
        last = self._begin.last_write
        begin = next((at + 1 for at in range(len(newest) - 1, -1, -1) if newest[at] is last), 0)
        return [*self._begin.before, *filter(self._has_changed, newest[begin:])]

    def _has_changed(self, write: WriteRecord) -> bool:
        """Whether the server has taken a write, and its object was another one when the step began.

        A process that has just started does not know what was there: its record says that all is new.
        """
        if write.result is not WriteResult.SUCCEEDED or not write.changed:
            return False
        version = write.resource_version
        return write.verb is WriteVerb.DELETE or not version or int(version) > self._begin.version

    def _versions(self) -> Mapping[str, str]:
        events = (each["metadata"] for each in self._stage.objects(_EVENTS))
        return {str(each.get("uid")): str(each.get("resourceVersion")) for each in events}

    def _events(self) -> Sequence[KubeObject]:
        """The Events that came or were counted up in this step."""
        return [
            each
            for each in self._stage.objects(_EVENTS)
            if self._begin.events.get(each["metadata"].get("uid")) != each["metadata"].get("resourceVersion")
        ]

    def _errors(self) -> Sequence[str]:
        """The last errors of handlers, with their tracebacks if the log has them."""
        if not self._stage.has_begun:
            return ()
        last = {each.handler: each for each in self._stage.controller.calls if each.outcome in _FAILURES}
        lines: list[str] = []
        schedules: Sequence[ScheduleStatistics] = ()  # of a controller that can be asked
        for name, call in last.items():
            lines.append(f"the last error of {name}, for {call.key}: {call.error}")
            lines += self._traceback(name)
        with suppress(AssertionError, DeclctlError, RuntimeError):
            schedules = self._stage.controller.status().schedules
        for schedule in schedules:
            if schedule.last_error is not None:
                lines.append(f"the last error of {schedule.name}: {schedule.last_error}")
        return lines

    def _traceback(self, handler: str) -> Sequence[str]:
        for logged in reversed(self._stage.controller.log.lines):
            text = logged.fields.get("traceback")
            if text and logged.fields.get("handler") == handler:
                return [f"  {line}" for line in str(text).rstrip().splitlines()]
        return ()

    # -- what is expected

    def _first_unmet(self, step: TestingStep) -> _Unmet | None:
        judges: Sequence[tuple[str, Callable[[Expectation], _Unmet | None]]] = (
            ("match", self._judge_match),
            ("absent", self._judge_absent),
            ("condition", self._judge_condition),
            ("event", self._judge_event),
            ("calls", self._judge_calls),
            ("writes", self._judge_writes),
        )
        for each in step.expect:
            for name, judge in judges:
                if getattr(each, name) is not None and (unmet := judge(each)) is not None:
                    return unmet
        return None

    def _judge_match(self, expected: Expectation) -> _Unmet | None:
        path, pattern = (*expected.path, "match"), self._pattern(expected.match)
        objects = self._objects(pattern)
        fitting = [each for each in objects if matches(pattern, each)]
        if expected.count is not None:
            if len(fitting) == expected.count:
                return None
            names = _named(fitting)
            message = f"expected {expected.count} of {_described(pattern)}, found {len(fitting)}{names}"
            near = () if fitting else self._near(pattern, objects)
            return _Unmet((*expected.path, "count"), message, near)
        if fitting:
            return None
        if not objects:
            return _Unmet(path, f"there is no {_described(pattern)}", self._others(pattern))
        return _Unmet(path, f"no {_described(pattern)} matches", self._near(pattern, objects))

    def _judge_absent(self, expected: Expectation) -> _Unmet | None:
        pattern = self._pattern(expected.absent)
        fitting = [each for each in self._objects(pattern) if matches(pattern, each)]
        if not fitting:
            return None
        path = (*expected.path, "absent")
        details = [
            f"{_name(each)} is being deleted, and has the finalizers {shown(each['metadata']['finalizers'])}"
            for each in fitting
            if each["metadata"].get("deletionTimestamp") and each["metadata"].get("finalizers")
        ]
        return _Unmet(path, f"{len(fitting)} of {_described(pattern)} are there{_named(fitting)}", details)

    def _judge_condition(self, expected: Expectation) -> _Unmet | None:
        one = expected.condition
        assert one is not None
        path = (*expected.path, "condition")
        kind = self._test.kind_of(one.api_version, one.kind)
        pattern: JsonObject = {"kind": one.kind, "apiVersion": kind.api_version}
        pattern["metadata"] = {"name": one.name, "namespace": one.namespace}
        pattern = self._pattern(pattern)
        objects = [each for each in self._objects(pattern) if matches(pattern, each)]
        if not objects:
            return _Unmet(path, f"there is no {_described(pattern)}", self._others(pattern))
        conditions: list[Any] = list((objects[0].get("status") or {}).get("conditions") or ())
        found = next((each for each in conditions if each.get("type") == one.type), None)
        if found is None:
            types = ", ".join(str(each.get("type")) for each in conditions) or "none"
            return _Unmet(path, f"{_described(pattern)} has no condition {one.type}", [f"it has {types}"])
        wrong = _wrong_texts(one, found)
        about = f"{_described(pattern)}: the condition {one.type} differs"
        return _Unmet(path, about, wrong) if wrong else None

    def _judge_event(self, expected: Expectation) -> _Unmet | None:
        one = expected.event
        assert one is not None
        events = self._events()
        fitting = [each for each in events if self._is_event(one, each)]
        if (len(fitting) == one.count) if one.count is not None else fitting:
            return None
        wanted = "an Event" if one.count is None else f"{one.count} Events"
        details = [
            f"{each.get('type')} {each.get('reason')}: {each.get('message')}" for each in events[:_MOST_NAMED]
        ] or ["no Event came in this step"]
        message = f"expected {wanted} like this in this step, found {len(fitting)}"
        return _Unmet((*expected.path, "event"), message, details)

    def _is_event(self, expected: EventExpectation, event: KubeObject) -> bool:
        return (
            expected.type in ("", event.get("type"))
            and _like(expected.reason, event.get("reason"))
            and _like(expected.message, event.get("message"))
            and matches(expected.regarding or {}, event.get("involvedObject") or {})
        )

    def _judge_calls(self, expected: Expectation) -> _Unmet | None:
        one = expected.calls
        assert one is not None
        calls, failed = self._calls().get(one.handler, (0, 0))
        wrong = _wrong_number(one, calls)
        if wrong:
            message = f"expected {wrong} of {one.handler} in this step, found {calls} ({failed} failed)"
            return _Unmet((*expected.path, "calls"), message, self._called(one.handler))
        if one.failed is not None and failed != one.failed:
            wanted = _number(one.failed, "failed call")
            message = f"expected {wanted} of {one.handler} in this step, found {failed} of {calls}"
            return _Unmet((*expected.path, "calls"), message, self._called(one.handler))
        return None

    def _called(self, handler: str) -> Sequence[str]:
        """The calls of a handler in this step: the key, the outcome, and the error or the cause."""
        calls = [each for each in self._ended() if each.handler == handler]
        lines = [f"{each.key}: {each.outcome}, {each.error or each.cause}" for each in calls[:_MOST_NAMED]]
        more = len(calls) - len(lines)
        return [*lines, f"and {_number(more, 'more call')}"] if more else lines

    def _judge_writes(self, expected: Expectation) -> _Unmet | None:
        one = expected.writes
        assert one is not None
        kind = self._test.kind_of(one.api_version, one.kind)
        writes = self._writes()
        fitting = [
            each
            for each in writes
            if each.kind.kind == kind.kind
            and each.kind.group == kind.group
            and one.verb in ("", str(each.verb))
            and one.name in ("", each.key.name)
            and one.handler in ("", each.origin.handler)
        ]
        wrong = _wrong_number(one, len(fitting))
        if not wrong:
            return None
        # Where none is like it, the others may tell what is misspelt.
        texts = Counter(map(self._told, fitting or writes))
        details = [text if count == 1 else f"{count} times {text}" for text, count in texts.items()]
        message = f"expected {wrong} like this in this step, found {len(fitting)}"
        none = ["the controller has written nothing in this step"]
        return _Unmet((*expected.path, "writes"), message, details[:_MOST_NAMED] or none)

    def _told(self, write: WriteRecord) -> str:
        changed = ", ".join(self._stage.changed_by(write))
        return f"{_written(write)}: {changed}" if changed else _written(write)

    # -- objects

    def _pattern(self, given: JsonObject | None) -> JsonObject:
        """A pattern with its apiVersion and its namespace."""
        pattern = dict(given or {})
        version = pattern.get("apiVersion")
        kind = self._test.kind_of(str(version or ""), str(pattern["kind"]))
        pattern["apiVersion"] = kind.api_version
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
