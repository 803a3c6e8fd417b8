"""`declctl bench reload`: what a restart costs, and what a reload does, measured here and now."""

import gc
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from declctl.cli.options import Output, OutputOption
from declctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from declctl.bench.controller import BenchFiles
    from declctl.bench.reload import Comparison, ReloadCost

bench = typer.Typer(help="Measure on this machine.", no_args_is_help=True, rich_markup_mode=None)

_OBJECTS, _HANDLERS = 5000, 4


@bench.callback()
def _group() -> None:
    """Measure on this machine."""


@bench.command()
def reload(
    *,
    manifest: Annotated[
        str | None,
        typer.Option(
            "--manifest",
            metavar="FILE",
            help="A manifest whose handlers are run, or a folder that holds one; by default one of its own.",
        ),
    ] = None,
    objects: Annotated[
        int, typer.Option("--objects", metavar="N", min=1, help="How many objects there are.")
    ] = _OBJECTS,
    samples: Annotated[
        list[str] | None,
        typer.Option(
            "--samples",
            metavar="FILE",
            help="Objects (YAML) that the N are copies of; of any other kind they are little but metadata. "
            "May be repeated.",
        ),
    ] = None,
    handlers: Annotated[
        int | None,
        typer.Option(
            "--handlers",
            metavar="N",
            min=1,
            max=1000,
            help="How many handlers its own manifest has. [default: 4]",
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compare a restart with a reload: the same edit of the same handlers, made both ways.

    It takes about half a minute, needs no cluster and touches none: the API server is one in memory. Of a
    manifest with handlers of your own a copy is run, and edited.
    """
    from declctl.bench.reload import compare  # late: `declctl version` shall not load it
    from declctl.cli.sandbox import read_objects

    gc.enable()  # it was off for the start
    if manifest is not None and handlers is not None:
        raise UsageError("--handlers is for the manifest that bench has: leave it out, or --manifest.")
    bundle = _bundle(manifest, handlers or _HANDLERS)
    documents = read_objects(samples or [])
    with _sigterm_interrupts():
        found = compare(bundle, documents, objects=objects, tell=_say)
    if output is Output.JSON:
        from declctl.cli.terminal import print_json

        print_json(_document(found, manifest))
    else:
        _print(found)


@contextmanager
def _sigterm_interrupts() -> "Generator[None]":
    """What was started is ended, and the folder removed, as after Ctrl-C."""
    # As KeyboardInterrupt, the with statements around the children and the folder are left in order.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(sentence: str) -> None:
    from declctl.cli.terminal import line

    line(sentence, err=True)


def _bundle(manifest: str | None, handlers: int) -> "BenchFiles":
    from declctl.bench.controller import built_in, copied

    if manifest is None:
        return built_in(handlers)
    from declctl.cli.report import show_faults
    from declctl.runtime.checking.check import check

    checked = check(manifest)
    show_faults(checked.diagnostics)
    if checked.errors or checked.inputs is None:
        raise typer.Exit(1)
    return copied(checked.inputs)


def _document(found: "Comparison", manifest: str | None) -> dict[str, Any]:
    return {
        "manifest": manifest,
        "objects": found.objects,
        "handlers": found.handlers,
        "restart": _figures(found.restart),
        "reload": _figures(found.reload),
    }


def _figures(one: "ReloadCost") -> dict[str, Any]:
    return {
        "lists": one.lists,
        "watches": one.watches,
        "addedAgain": one.told_again,
        "retries": one.retries,
        "retriesLost": one.retries_lost,
        "memos": one.memos,
        "memosLost": one.memos_lost,
        "changes": one.changes,
        "changesUnheard": one.unheard,
        "secondsToEffect": round(one.effect, 6),
        "longestWaitSeconds": round(one.longest_wait, 6),
    }


def _print(found: "Comparison") -> None:
    from declctl.cli.terminal import line, print_table

    handlers = f"{found.handlers} handler{'s' * (found.handlers != 1)}"
    line(f"one edit, {found.objects:,} objects, {handlers}, changes all the time")
    line()
    columns = zip(_rows(found.restart), _rows(found.reload), strict=True)
    print_table(
        ("", "RESTART", "RELOAD"), [(name, restart, reload) for (name, restart), (_, reload) in columns]
    )


def _rows(one: "ReloadCost") -> "Iterator[tuple[str, str]]":
    yield "LISTs asked of the API server", f"{one.lists:,}"
    yield "WATCHes asked of the API server", f"{one.watches:,}"
    yield "objects told to handlers again (Added)", f"{one.told_again:,}"
    yield "retries lost", _of(one.retries_lost, one.retries)
    yield "memos lost", _of(one.memos_lost, one.memos)
    yield "changes that were never told", _of(one.unheard, one.changes)
    yield "until the edited code hears of changes", _seconds(one.effect)
    yield "longest wait of a change meanwhile", _seconds(one.longest_wait)


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}" if whole else "none to lose"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.0f} ms"
