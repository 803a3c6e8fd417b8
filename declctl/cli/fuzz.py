"""`declctl fuzz`: random lives of objects, and the shortest one that a controller does not stand."""

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path

from declctl.cli.report import show_faults
from declctl.cli.sandbox import read_objects
from declctl.cli.terminal import line, print_or_write
from declctl.errors import ManifestErrors, UsageError

_BAD_INPUT = 2
_INSTALL = "pip install 'declctl[fuzz]'"


def search(
    manifest: str,
    handler: str | None,
    *,
    runs: int,
    seed: int | None,
    allow: Sequence[str],
    objects: Sequence[str],
    output: Path | None,
) -> int:
    """Let lives happen, and print the shortest one that breaks an invariant; returns the exit status.

    The document goes to `output`, by default to stdout. Raises UsageError.
    """
    gc.enable()  # it was off for the start
    try:
        from declctl.testing.fuzzing import run_lives  # late: hypothesis is an extra
    except ModuleNotFoundError as missing:
        if missing.name != "hypothesis":
            raise
        raise UsageError(f"declctl fuzz needs hypothesis: {_INSTALL}.") from missing
    allowed = _reasons(allow)
    documents = read_objects(objects) if objects else None
    try:
        found = run_lives(manifest, handler, runs=runs, seed=seed, allow=allowed, objects=documents)
    except ManifestErrors as error:
        show_faults(error.diagnostics)
        return _BAD_INPUT
    pace = f"{found.runs:,} different lives, in {found.seconds:.1f} s"
    if found.violation is None:
        off = f", without {', '.join(allowed)}" if allowed else ""
        line(f"nothing found: {found.most:,} runs, {pace}, seed {found.seed}{off}", err=True)
        if output is not None and output.exists():
            line(f"{output} is of an earlier run: it was not written now", err=True)
        return 0
    line(f"{found.violation.invariant}: {found.violation.message}", err=True)
    save = "" if output is not None else " Save this beside the manifest:"
    line(f"found after {pace}; {found.options()} repeats it.{save}", err=True)
    print_or_write(found.text(), output)
    return 1


def _reasons(allow: Sequence[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for each in allow:
        name, equal, reason = each.partition("=")
        if not equal:
            raise UsageError(f"--allow {each}: say why, as in --allow {name}='it is meant'.")
        found[name] = reason
    return found
