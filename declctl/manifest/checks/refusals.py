"""What is documented and not done yet by this version: refused with a code of its own, never ignored."""

from declctl.manifest import codes
from declctl.manifest.checks.findings import Findings
from declctl.manifest.document import Place
from declctl.manifest.json_values import Json, Path, dotted, value_at
from declctl.manifest.shape import Schema, notes_of


def check_refusals(findings: Findings, shape: Schema) -> None:
    """Report each feature that the shape marks as not done, unless its value changes nothing."""
    refused: set[Path] = set()
    for path, value, piece in findings.walk(shape):
        notes = notes_of(piece)
        code, accepts = notes.get("refuses"), notes.get("accepts")
        if not isinstance(code, str) or findings.is_blamed(path) or _within(path, refused):
            continue
        if isinstance(accepts, list) and any(_same(value, accepted) for accepted in accepts):
            continue
        if code == codes.METRICS_ADDRESS and value == _admin_address(findings.data):
            continue
        refused.add(path)
        _refuse(findings, path, code, choices=_choices(accepts))


def _within(path: Path, refused: set[Path]) -> bool:
    """Below what is refused nothing is refused again. There may be thousands of refused paths."""
    return any(path[:length] in refused for length in range(1, len(path) + 1))


def _same(value: Json, accepted: Json) -> bool:
    return value == accepted and isinstance(value, bool) == isinstance(accepted, bool)


def _admin_address(data: Json) -> Json:
    address = value_at(data, "spec", "admin", "bindAddress")
    return "127.0.0.1:8081" if address is None else address


def _choices(accepts: Json) -> list[str]:
    choices = accepts if isinstance(accepts, list) else []
    return [
        "false" if choice is False else str(choice) for choice in choices if isinstance(choice, str | bool)
    ]


def _refuse(findings: Findings, path: Path, code: str, *, choices: list[str]) -> None:
    suggestion = f"{codes.how_to_explain(code)} says what to do meanwhile"
    if choices:
        suggestion = f"write {' or '.join(choices)}, or remove it; {suggestion}"
    else:
        suggestion = f"remove it; {suggestion}"
    message = f"{dotted(path)}: {codes.CODES[code][0].lower()}{codes.CODES[code][1:].rstrip('.')}"
    findings.add(code, Place(path, key=not choices), message, suggestion=suggestion)
