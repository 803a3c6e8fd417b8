"""`declctl state inspect` and `clear`: the folder of `spec.state`."""

from datetime import datetime
from pathlib import Path

import msgspec

from declctl.cli.terminal import line, print_json, print_table
from declctl.errors import StateUnusable, UsageError
from declctl.kit import figures
from declctl.kit.documents import document_of
from declctl.recording.state_entries import CacheState, HandlerState
from declctl.recording.state_file import KeptState, StateFolder, read_state


class CacheSummary(msgspec.Struct, frozen=True):
    """One cache of a state."""

    name: str
    objects: int
    resource_version: str  # up to which it has all changes
    bytes: int  # of its objects and dictionaries, before the blocks of the file are compressed


class HandlerSummary(msgspec.Struct, frozen=True):
    """One handler of a state."""

    name: str
    kind: str  # of its objects
    goes_on: bool  # with the same files, it hears only of what has changed meanwhile
    pending: int  # keys that it has still to deal with
    memos: int
    dead_letters: int


class StateSummary(msgspec.Struct, frozen=True):
    """What is in the folder of a state."""

    controller: str
    server: str
    version: str  # of declctl
    began: datetime  # the process
    written: datetime | None
    ended_in_order: bool
    bytes: int  # of the file
    caches: tuple[CacheSummary, ...]
    handlers: tuple[HandlerSummary, ...]


def show_state(folder: str, *, as_json: bool) -> int:
    """Print what a state has: 0, or 1 if none can be read. Raises UsageError without a folder."""
    try:
        state = read_state(_folder(folder))
    except StateUnusable as why:
        line(f"declctl: {why}: the next process lists everything, and writes it anew", err=True)
        return 1
    if state is None:
        line(f"declctl: {folder} has no state: the next process lists everything", err=True)
        return 1
    summary = _summary(state)
    if as_json:
        print_json(document_of(summary))
    else:
        _show(summary)
    return 0


def clear_state(folder: str) -> None:
    """Remove a state. Raises UsageError without a folder, and while a process has it."""
    path = _folder(folder)
    try:
        held = StateFolder(path)
    except StateUnusable as why:
        raise UsageError(f"{why}; nothing was removed.") from why
    try:
        removed = held.clear()
    except OSError as error:
        raise UsageError(f"{path} can't be cleared: {error.strerror or error}.") from error
    finally:
        held.close()
    line(f"removed {figures.byte_size(removed)} in {path}" if removed else f"{path} has no state")


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise UsageError(f"{text} is no folder: name that of spec.state.path.")
    return path


def _summary(state: KeptState) -> StateSummary:
    header = state.header
    caches = sorted(map(_cache_summary, state.caches.values()), key=lambda each: each.name)
    began = datetime.fromisoformat(header.began)
    return StateSummary(
        header.controller,
        header.server,
        header.version,
        began,
        state.written,
        state.is_ended,
        state.bytes,
        tuple(caches),
        tuple(_handler_summary(name, each) for name, each in sorted(state.handlers.items())),
    )


def _handler_summary(name: str, handler: HandlerState) -> HandlerSummary:
    keys = handler.keys.values()
    return HandlerSummary(
        name,
        handler.kind,
        handler.is_known,
        sum(each.change is not None for each in keys),
        sum(each.memo is not None for each in keys),
        sum(each.letter is not None for each in keys),
    )


def _cache_summary(cache: CacheState) -> CacheSummary:
    kept = cache.objects.values()
    objects = sum(len(each.key) + len(each.revision) + len(each.labels) + len(each.frame) for each in kept)
    dictionaries = sum(map(len, cache.dictionaries.values()))
    return CacheSummary(cache.name, len(kept), cache.version, objects + dictionaries)


def _show(summary: StateSummary) -> None:
    ended = "ended in order" if summary.ended_in_order else "runs, or was killed"
    written = summary.written.isoformat() if summary.written is not None else "-"
    line(f"controller  {summary.controller}, of declctl {summary.version}")
    line(f"server      {summary.server}")
    line(f"process     began {summary.began.isoformat(timespec='seconds')}, {ended}")
    line(f"file        {figures.byte_size(summary.bytes)}, written {written}")
    line()
    headers = ("CACHE", "OBJECTS", "VERSION", "BYTES")
    print_table(
        headers,
        (
            (each.name, figures.count(each.objects), each.resource_version, figures.byte_size(each.bytes))
            for each in summary.caches
        ),
    )
    line()
    print_table(
        ("HANDLER", "KIND", "GOES ON", "PENDING", "MEMOS", "DEAD LETTERS"),
        (
            (
                each.name,
                each.kind,
                "yes" if each.goes_on else "no",
                *(figures.count(number) for number in (each.pending, each.memos, each.dead_letters)),
            )
            for each in summary.handlers
        ),
    )
