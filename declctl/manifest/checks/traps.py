"""YAML 1.1 traps that break no type: an octal number where a number is wanted, `yes` in a plugin's config."""

from declctl.manifest import codes
from declctl.manifest.checks.findings import Findings
from declctl.manifest.document import Place, trap
from declctl.manifest.json_values import Path, dotted
from declctl.manifest.shape import Schema


def check_traps(findings: Findings, shape: Schema) -> None:
    """Report numbers that aren't read as written, and, as warnings, doubtful values of plugins' configs."""
    known: set[Path] = set()
    for path, value, piece in findings.walk(shape):
        known.add(path)
        written = findings.document.written(path)
        if written is None or isinstance(value, bool | str) or findings.is_blamed(path):
            continue
        if "properties" not in piece and (reading := trap(written)) is not None:
            message = f"{dotted(path)} is {written}, which YAML reads as {reading}"
            findings.add(codes.TRAP_VALUE, Place(path), message, suggestion=f"write {value} if that is meant")
    for path in findings.document.nodes:
        if path not in known and _is_free_form(path):
            _warn(findings, path)


def _is_free_form(path: Path) -> bool:
    return path[:2] == ("spec", "plugins") and path[3:4] == ("config",)


def _warn(findings: Findings, path: Path) -> None:
    written = findings.document.written(path)
    reading = trap(written) if written is not None else None
    if reading is None:
        return
    message = f"{dotted(path)} is {written}, which YAML reads as {reading}"
    suggestion = f'put it in quotes if text is meant: "{written}"'
    findings.add(codes.TRAP_VALUE, Place(path), message, suggestion=suggestion, severity="warning")
