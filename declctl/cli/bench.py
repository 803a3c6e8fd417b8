"""`declctl bench reload`: the costs of a restart and of a reload, measured on this machine."""

import gc
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from declctl.bench.controller import BenchFiles, built_in, copied
from declctl.bench.reload import Comparison, ReloadCost, compare
from declctl.cli.report import show_faults
from declctl.cli.sandbox import read_objects
from declctl.cli.terminal import line, print_json, print_table
from declctl.runtime.checking.check import check


def compare_restart_with_reload(
    manifest: str | None, *, handlers: int, objects: int, samples: Sequence[str], as_json: bool
) -> None:
    """Measure both ways, and print the costs. Without a manifest, a built-in one has `handlers` handlers.

    Raises UsageError, and typer.Exit for a manifest with faults.
    """
    gc.enable()  # it was off during the start
    bundle = built_in(handlers) if manifest is None else _copied(manifest)
    documents = read_objects(samples)
    with _sigterm_interrupts():
        found = compare(bundle, documents, objects=objects, tell=lambda text: line(text, err=True))
    if as_json:
        print_json(_document(found, manifest))
    else:
        _print(found)


@contextmanager
def _sigterm_interrupts() -> Generator[None]:
    """Make SIGTERM raise KeyboardInterrupt, so that child processes are ended and the folder is removed."""
    # As KeyboardInterrupt, the with statements around the children and the folder are left in order.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _copied(manifest: str) -> BenchFiles:
    checked = check(manifest)
    show_faults(checked.diagnostics)
    if checked.errors or checked.inputs is None:
        raise typer.Exit(1)
    return copied(checked.inputs)


def _document(found: Comparison, manifest: str | None) -> dict[str, Any]:
    return {
        "manifest": manifest,
        "objects": found.objects,
        "handlers": found.handlers,
        "restart": _figures(found.restart),
        "reload": _figures(found.reload),
    }


def _figures(one: ReloadCost) -> dict[str, Any]:
    return {
        "lists": one.lists,
        "watches": one.watches,
        "addedAgain": one.added_again,
        "retries": one.retries,
        "retriesLost": one.retries_lost,
        "memos": one.memos,
        "memosLost": one.memos_lost,
        "changes": one.changes,
        "changesUndelivered": one.undelivered,
        "secondsToEffect": round(one.effect, 6),
        "longestWaitSeconds": round(one.longest_wait, 6),
    }


def _print(found: Comparison) -> None:
    handlers = f"{found.handlers} handler{'s' * (found.handlers != 1)}"
    line(f"one edit, {found.objects:,} objects, {handlers}, changes all the time")
    line()
    columns = zip(_rows(found.restart), _rows(found.reload), strict=True)
    print_table(
        ("", "RESTART", "RELOAD"), [(name, restart, reload) for (name, restart), (_, reload) in columns]
    )


def _rows(one: ReloadCost) -> Iterator[tuple[str, str]]:
    yield "LISTs asked of the API server", f"{one.lists:,}"
    yield "WATCHes asked of the API server", f"{one.watches:,}"
    yield "objects delivered again (Added)", f"{one.added_again:,}"
    yield "retries lost", _of(one.retries_lost, one.retries)
    yield "memos lost", _of(one.memos_lost, one.memos)
    yield "changes that were never delivered", _of(one.undelivered, one.changes)
    yield "until the edited code receives changes", _seconds(one.effect)
    yield "longest wait of a change meanwhile", _seconds(one.longest_wait)


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}" if whole else "none to lose"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.0f} ms"
