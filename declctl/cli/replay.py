"""`declctl replay`: code on the night of a recording, and what it does otherwise."""

import contextlib
import gc
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from declctl.cli.logging import OWN_LOGGER, set_up_logs, stderr_screen
from declctl.cli.options import duration_of
from declctl.cli.report import show_faults
from declctl.cli.terminal import line, print_json
from declctl.errors import ManifestErrors, ReloadRefused, UsageError
from declctl.kit import SystemClock, figures
from declctl.kit.documents import document_of
from declctl.replay.differences import CallDifference, ReplayReport
from declctl.replay.replay import ReplayOptions, replay
from declctl.replay.tape import Tape, read_tape
from declctl.runtime.checking.preflight_pool import PreflightPool

_BAD_INPUT = 2
_MOST_SHOWN = 50  # differences in the text; those that are alike count as one
_MOST_KEYS = 3  # of differences that are alike
# What tells differences of the same fields apart.
_VALUES = re.compile(r" was .*? and is .*?(?=; |$)|[0-9.]+ s(?: before)?$")


def replay_recording(  # noqa: PLR0913 - one parameter for each option of the command line
    file: str,
    manifest: str | None,
    *,
    until: str | None,
    speed: float,
    key: str | None,
    handler: str | None,
    log_level: str,
    as_json: bool,
) -> int:
    """Replay a recording, and print what differs: 0 for nothing, 1 for something, 2 for faulty code.

    Raises UsageError.
    """
    gc.enable()  # it was off for the start
    path = Path(file)
    tape = read_tape(path)
    if until is not None:
        tape = read_tape(path, until=_seconds_until(until, tape))
    _require_names(tape, handler=handler, key=key)
    clock = SystemClock()
    log = set_up_logs(stderr_screen(), form="text", level=log_level, clock=clock).bind(logger=OWN_LOGGER)
    options = ReplayOptions(manifest=manifest, key=key, handler=handler, speed=speed)
    with contextlib.closing(PreflightPool()) as children:
        try:
            report = replay(tape, options, log=log, children=children)
        except ManifestErrors as error:
            show_faults(error.diagnostics)
            return _BAD_INPUT
        except ReloadRefused as refused:  # the start of this code
            if not refused.diagnostics:
                raise UsageError(str(refused)) from refused
            show_faults(refused.diagnostics)
            return _BAD_INPUT
    if as_json:
        print_json(_document(report))
    else:
        _show(report)
    return 0 if report.is_alike else 1


def _seconds_until(text: str, tape: Tape) -> float:
    """The end of the replay, in seconds of the recording: after a duration, or at a time."""
    began = tape.began
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return duration_of("--until", text)
        except UsageError as error:
            raise UsageError(
                f"--until: {text!r} is neither a time, such as {began.isoformat(timespec='seconds')}, "
                "nor a time since the begin of the recording, such as 10m."
            ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=began.tzinfo)
    if moment < began:
        raise UsageError(
            f"--until: {text} is before the recording, which is from {began.isoformat(timespec='seconds')} "
            f"to {(began + timedelta(seconds=tape.ends_at)).isoformat(timespec='seconds')}."
        )
    return (moment - began).total_seconds()


def _require_names(tape: Tape, *, handler: str | None, key: str | None) -> None:
    """Raise UsageError for a handler or a key without calls: nothing would be compared."""
    handlers = {name for name, _ in tape.begins}
    if handler is not None and handler not in handlers:
        known = ", ".join(sorted(handlers)) or "none"
        raise UsageError(
            f"--handler: the recording has no call of {handler!r}; those with calls are: {known}."
        )
    if key is not None and not any(key == of for name, of in tape.begins if handler in (None, name)):
        near = [of for _, of in tape.begins if of.rpartition("/")[2] == key.rpartition("/")[2]]
        shown = f"did you mean {near[0]}?" if near else "a key is namespace/name, as `declctl tap` shows it."
        raise UsageError(f"--key: the recording has no call for {key!r}; {shown}")


def _document(report: ReplayReport) -> Mapping[str, Any]:
    return {**document_of(report), "alike": report.is_alike}


def _show(report: ReplayReport) -> None:
    then = f"{report.began.isoformat(timespec='seconds')}, {figures.duration(report.seconds)}"
    speed = report.seconds / report.took if report.took else 0.0
    line(
        f"{report.controller}, recorded by declctl {report.version}: {then}, {report.events:,} changes; "
        f"played in {report.took:.1f} s, {speed:.0f} times as fast"
    )
    line(
        f"calls   {report.calls:,}: {report.same:,} the same, {report.different:,} different, "
        f"{report.missing:,} missing, and {report.extra:,} extra"
    )
    line(f"writes  {report.writes_alike:,} of {report.writes:,} the same")
    for mark in report.marks:
        line(f"reload  {mark}")
    if report.torn:
        line(f"torn    the last {report.torn:,} bytes are left out: no whole block, as of a killed process")
    for note in report.notes:
        line(f"note    {note}")
    groups = _alike(report.differences)
    for group in groups[:_MOST_SHOWN]:
        _show_differences(group)
    if more := sum(map(len, groups[_MOST_SHOWN:])):
        line(f"and {more:,} more; -o json has them all")


def _alike(differences: Sequence[CallDifference]) -> Sequence[Sequence[CallDifference]]:
    """Differences of one handler with the same fields, whatever their keys and values, in one group each."""
    groups: dict[object, list[CallDifference]] = {}
    for each in differences:
        own = "|".join(re.escape(part) for part in each.key.split("/"))
        fields = (_VALUES.sub("", re.sub(rf"\b({own})\b", "", detail)) for detail in each.details)
        groups.setdefault((each.kind, each.handler, *fields), []).append(each)
    return [*groups.values()]


def _show_differences(group: Sequence[CallDifference]) -> None:
    first, *others = group
    line("")
    line(f"{first.time.isoformat(timespec='milliseconds')} {first.handler} {first.key}: {first.kind}")
    for detail in first.details:
        line(f"  {detail}")
    if others:
        keys = [*dict.fromkeys(each.key for each in others)]
        dots = ", …" if len(keys) > _MOST_KEYS else ""
        line(f"  and {len(others):,} more like it: {', '.join(keys[:_MOST_KEYS])}{dots}")
