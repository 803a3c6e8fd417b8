"""The alarms at the top of the page: what is wrong, what has happened, and what to do.

They are derived from the status of one moment. Times in them are moments and no ages, so that the text of an
alarm stays the same, and a screen reader reads it once.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from declctl.admin.access import type_name
from declctl.admin.page.elements import Element, element
from declctl.admin.page.values import MOST, Document, document_moment, is_failing, moment, prose
from declctl.kit.text import excerpt
from declctl.runtime.checking.loaded_code import READY as LOADED
from declctl.runtime.handling.binding import HandlerStatistics
from declctl.runtime.reasons import DEGRADED, FILES_FOLLOWED, HANDLERS_HEALTHY, READY, RELOADED, reason_of
from declctl.runtime.reporting.status import ControllerStatus, PluginStatus, ResourceStatus
from declctl.runtime.scheduling.schedules import RunOutcome, ScheduleStatistics

_LOST = "Lost"  # state of an election
_NO_LEADER = "Waiting"
_HIDDEN = "The text is shown with the token."


class Level(StrEnum):
    """How urgent an alarm is."""

    ALARM = "Alarm"  # something does not work
    WARNING = "Warning"  # somebody has to act, and everything works until then


_MARKS = {Level.ALARM: "✗", Level.WARNING: "⚠"}


class Alarm(NamedTuple):
    """One entry. `key` names the subject, and stays the same while the alarm lasts."""

    key: str
    level: Level
    title: str
    what: str
    advice: str


# Reasons of which the status has the subjects: each of these is an alarm of its own.
_WITH_SUBJECTS = frozenset(
    {
        "ServerUnreachable",
        "ResourceError",
        "PluginDisabled",
        "PluginSuspended",
        "KeysUnknown",
        "FileWatchFailed",
    }
)
# By state of a plugin.
_PLUGINS: Mapping[str, str] = {
    "Disabled": "could not be loaded, and its handlers are not called",
    "Suspended": "is not called, because its calls have failed",
}
_RELOAD_ADVICE = (
    "Mend the files and save: each change is tried. `declctl validate` shows every fault with its line."
)


def alarms(
    status: ControllerStatus, document: Document, history: Document, *, now: datetime
) -> Sequence[Alarm]:
    """All alarms, the most urgent first.

    - `document`, `history`: the documents of `GET /status` and `GET /history`. If they are redacted, an alarm
      names subjects and types alone.
    - `now`: the present time, in UTC.
    """
    found = [*_all(status, document, history, now=now)]
    if document.get("redacted"):
        found = [alarm._replace(what=_HIDDEN if alarm.what else "") for alarm in found]
    return sorted(found, key=lambda alarm: alarm.level is not Level.ALARM)


def _all(
    status: ControllerStatus, document: Document, history: Document, *, now: datetime
) -> Iterator[Alarm]:
    conditions: dict[str, Document] = {each["type"]: each for each in document["conditions"]}
    if not status.generation:
        yield Alarm("starting", Level.WARNING, "The controller is starting", "", "Wait a moment.")
    yield from _of_the_files(conditions.get(RELOADED), status, history)
    yield from _of_the_config_map(conditions.get(FILES_FOLLOWED))
    yield from _of_the_lease(status)
    yield from _of_the_slots(status)
    if status.server.unreachable_since is not None:
        yield Alarm(
            "server",
            Level.ALARM,
            f"The API server can't be reached since {moment(status.server.unreachable_since)}",
            f"{status.server.url}: {excerpt(status.server.error or '', most=MOST)}",
            _advice(DEGRADED, "ServerUnreachable"),
        )
    else:  # its failed watches have this one cause, which is named already
        ready = conditions.get(READY)
        is_cold = ready is not None and ready["reason"] == "Following"  # another process leads
        yield from () if is_cold else _of_resources(status.resources)
        yield from _degraded(conditions.get(DEGRADED))
    yield from _of_plugins(status.plugins)
    for handler in status.handlers:
        yield from _of_handler(handler, now=now)
    for schedule in status.schedules:
        yield from _of_schedule(schedule)
    if status.file_watch.error is not None:
        yield Alarm(
            "files",
            Level.ALARM,
            "Edits are not noticed: the files can't be checked",
            excerpt(status.file_watch.error, most=MOST),
            _advice(DEGRADED, "FileWatchFailed"),
        )
    if status.abandoned_calls:
        calls = "; ".join(f"{call.name} at {call.place}" for call in status.abandoned_calls)
        yield Alarm(
            "abandoned",
            Level.WARNING,
            "Code of an edit does not return",
            excerpt(calls, most=MOST),
            "Mend the named lines. The threads of these calls are occupied until the calls return, or until "
            "the process starts again.",
        )


def _of_the_files(reloaded: Document | None, status: ControllerStatus, history: Document) -> Iterator[Alarm]:
    """Files that do not run: refused, taken back, or waiting for a new process."""
    if reloaded is None:
        return
    goes_on = f"Generation {status.generation} goes on."
    if reloaded["status"] == "True":
        if reloaded["reason"] == "RestartRequired":
            yield Alarm(
                "reloaded",
                Level.WARNING,
                "An edit waits for a new process",
                excerpt(reloaded["message"], most=MOST),
                "Start the process again, or let it do that by itself with `declctl run --exec-on-restart`.",
            )
        return
    # The condition has the message, and the newest attempt the advice.
    newest: Document = next(
        (each for each in reversed(history["attempts"]) if each["result"] in ("Refused", "RolledBack")), {}
    )
    if reloaded["reason"] == "RolledBack":
        title = "New code has failed, and the code before it runs again"
    else:
        title = f"The last edit was refused: {reloaded['reason']}"
    if newest.get("time"):
        title += f", at {document_moment(newest['time'])}"
    retry = "" if status.reload_retry is None else " It is tried again by itself."
    yield Alarm(
        "reloaded",
        Level.ALARM,
        title,
        f"{excerpt(reloaded['message'], most=MOST)}. {goes_on}{retry}",
        _sentence(newest.get("suggestion") or _RELOAD_ADVICE),
    )


def _of_the_config_map(followed: Document | None) -> Iterator[Alarm]:
    """A ConfigMap that is deleted, or that can't be watched: no edit of it arrives."""
    if followed is None or followed["status"] == "True":
        return
    title = reason_of(FILES_FOLLOWED, followed["reason"]).title
    yield Alarm(
        "followed",
        Level.ALARM,
        f"{title}, since {document_moment(followed['lastTransitionTime'])}",
        excerpt(followed["message"], most=MOST),
        _advice(FILES_FOLLOWED, followed["reason"]),
    )


def _of_the_slots(status: ControllerStatus) -> Iterator[Alarm]:
    sharding = status.sharding
    if sharding is None or (problem := sharding.fault or sharding.error) is None:
        return
    yield Alarm(
        "slots",
        Level.ALARM,
        "This process can't take part in the sharing of slots",
        excerpt(f"{sharding.leases}: {problem}", most=MOST),
        "Grant list, get, create and update on leases of coordination.k8s.io, see whether the API server "
        "answers, or end the process that shares the slots in another way.",
    )


def _of_the_lease(status: ControllerStatus) -> Iterator[Alarm]:
    election = status.leader_election
    if election is None:
        return
    if election.state == _LOST:
        yield Alarm(
            "lease",
            Level.ALARM,
            "This process has lost the lease, and acts no more",
            excerpt(f"{election.lease}: {election.error or 'another process may lead'}", most=MOST),
            "It ends, and its pod starts again as a follower. If this recurs, see whether the API server is "
            "slow, or the process short of processor time; a longer leaseDuration allows for that.",
        )
    elif election.error is not None:
        yield Alarm(
            "lease",
            Level.ALARM,
            "The lease can't be read or renewed",
            excerpt(f"{election.lease}: {election.error}", most=MOST),
            "Grant get, create and update on leases of coordination.k8s.io, or see whether the API server "
            "answers. A leader that can't renew its lease stops.",
        )
    elif election.state == _NO_LEADER:
        yield Alarm(
            "lease",
            Level.WARNING,
            "No process leads",
            f"{election.lease}",
            "Wait for the end of the old lease: then this process, or another one, takes over.",
        )


def _of_resources(resources: Sequence[ResourceStatus]) -> Iterator[Alarm]:
    for resource in resources:
        if not resource.synced:
            title = f"The cache of {resource.name} has not synced"
            listed = f"{resource.items_listed:,} objects so far. Reads of the cache raise NotSynced."
            what = f"{excerpt(resource.error, most=MOST)}. {listed}" if resource.error else listed
        elif resource.error:
            title = f"The cache of {resource.name} gets no changes"
            what = excerpt(resource.error, most=MOST)
        else:
            continue
        kind = type_name(resource.error_type)
        yield Alarm(
            f"resource {resource.name}",
            Level.ALARM,
            f"{title}: {kind}" if kind else title,
            what,
            _sentence(resource.advice),
        )
    for resource in resources:
        for index, count in resource.index_failures.items():
            yield Alarm(
                f"index {resource.name}.{index}",
                Level.WARNING,
                f"The index {resource.name}.{index} lacks objects: its function has failed {_times(count)}",
                "",
                "The log names the objects. Mend the function, and save: the index is built anew.",
            )


def _degraded(degraded: Document | None) -> Iterator[Alarm]:
    if degraded is None or degraded["status"] != "True" or degraded["reason"] in _WITH_SUBJECTS:
        return
    title, what = reason_of(DEGRADED, degraded["reason"]).title, excerpt(degraded["message"], most=MOST)
    yield Alarm("degraded", Level.ALARM, title, what, _advice(DEGRADED, degraded["reason"]))


def _of_plugins(plugins: Sequence[PluginStatus]) -> Iterator[Alarm]:
    for plugin in plugins:
        if plugin.state != LOADED:
            yield Alarm(
                f"plugin {plugin.name}",
                Level.ALARM,
                f"The plugin {plugin.name} {_PLUGINS[plugin.state]}",
                excerpt(plugin.reason or "", most=MOST),
                _advice(DEGRADED, f"Plugin{plugin.state}"),
            )


def _of_handler(handler: HandlerStatistics, *, now: datetime) -> Iterator[Alarm]:
    key = f"handler {handler.name}"
    if is_failing(handler, now=now):
        kind = type_name(handler.last_error_type) or "see its dead letters"
        when = f", last at {moment(handler.last_error_time)}" if handler.last_error_time else ""
        advice = "Mend the handler, and save: waiting retries use the new code."
        if handler.dead_letters:
            letters = (
                "1 change was" if handler.dead_letters == 1 else f"{handler.dead_letters:,} changes were"
            )
            advice += (
                f" {letters} given up: `declctl get deadletters` lists them, and `declctl requeue` queues "
                "them again."
            )
        yield Alarm(
            key,
            Level.ALARM,
            f"The handler {handler.name} fails{when}: {kind}",
            excerpt(handler.last_error or "", most=MOST),
            advice,
        )
    if handler.unmapped:
        yield Alarm(
            f"{key} mapping",
            Level.ALARM,
            f"A filter or a mapping of the handler {handler.name} fails: {handler.unmapped:,} changes wait",
            "",
            _advice(DEGRADED, "KeysUnknown"),
        )
    for problem in handler.problems:
        if problem.reason != "CallsFail":  # it is the alarm above
            yield Alarm(
                f"{key} {problem.reason}",
                Level.ALARM,
                f"The handler {handler.name} is unhealthy: {problem.reason}",
                excerpt(str(problem), most=MOST),
                _advice(HANDLERS_HEALTHY, problem.reason),
            )
    if handler.zombies and not handler.problems:
        calls = "1 call" if handler.zombies == 1 else f"{handler.zombies:,} calls"
        yield Alarm(
            f"{key} hangs",
            Level.ALARM,
            f"The handler {handler.name} hangs: {calls} over the time limit",
            "",
            "The log names each call. Give requests of the handler time limits; an edit gets new workers.",
        )


def _of_schedule(schedule: ScheduleStatistics) -> Iterator[Alarm]:
    if schedule.last_outcome is not None and schedule.last_outcome is not RunOutcome.SUCCEEDED:
        kind = type_name(schedule.last_error_type) or str(schedule.last_outcome)
        yield Alarm(
            f"schedule {schedule.name}",
            Level.ALARM,
            f"The last call of the schedule {schedule.name} has failed: {kind}",
            excerpt(schedule.last_error or "", most=MOST),
            f"Mend the function; `declctl trigger {schedule.name}` calls it now.",
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _advice(condition: str, reason: str) -> str:
    return _sentence(reason_of(condition, reason).advice)


def _sentence(advice: str) -> str:
    """An advice that begins in small letters as a sentence."""
    shown = excerpt(advice, most=MOST)
    return f"{shown[:1].upper()}{shown[1:]}{'' if shown.endswith(('.', '!', '?')) else '.'}"


def alarm_elements(found: Sequence[Alarm]) -> Sequence[Element]:
    """The alarms as articles; one line if there are none."""
    if not found:
        return [element("p", "✓ No alarms", class_="good", data_key="none")]
    return [
        element(
            "article",
            element("h2", f"{_MARKS[alarm.level]} {alarm.level}: {alarm.title}"),
            element("p", alarm.what, class_="what") if alarm.what else None,
            element("p", element("b", "What to do: "), *prose(alarm.advice)),
            class_=f"alarm {'bad' if alarm.level is Level.ALARM else 'warn'}",
            data_key=alarm.key,
        )
        for alarm in found
    ]
