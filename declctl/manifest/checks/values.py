"""Checks texts with a form of their own: durations, sizes, names, selectors, paths, addresses, entry points.

`fields.VALUE_KINDS` has the functions that read them. Each condition of a label selector is read alone, so
that a fault is at the place of its condition.
"""

from collections.abc import Callable, Mapping

from declctl import codes
from declctl.manifest.document import Findings, Location
from declctl.manifest.fields import VALUE_KINDS, Schema, notes_of
from declctl.manifest.values import BadValue, Json, Path, dotted, entries_at, mapping_at, parse_duration
from declctl.objects.fields import LabelSelector

_ADVICE: Mapping[str, str] = {
    codes.BAD_DURATION: "write it like 500ms, 10s, 5m or 1h30m",
    codes.BAD_QUANTITY: "write it like 64Mi, 1Gi or 65536",
    codes.BAD_LABEL_SELECTOR: "write it like {matchLabels: {app: web}} or app=web,tier in (a,b)",
    codes.BAD_FIELD_SELECTOR: "write it like status.phase=Running,spec.nodeName!=node-1",
    codes.BAD_FIELD_PATH: "write it like spec.nodeName or spec.containers[*].image",
    codes.BAD_NAME: "use lower-case letters, digits and dashes",
    codes.BAD_ADDRESS: 'write host:port, as in "127.0.0.1:8081"',
    codes.BAD_ENTRY_POINT: 'write "package.module" or "package.module:attribute"',
    codes.BAD_EXPRESSION: "write it like obj.status.phase == 'Running'",
    codes.BAD_VERSION_RANGE: 'write it like ">=1.2,<2"',
    codes.BAD_CRON: 'write minute, hour, day of the month, month and day of the week, as in "0 2 * * *"',
    codes.BAD_TIME_ZONE: "write an IANA name such as Europe/Berlin, or UTC",
}


def check_label_selector(findings: Findings, path: Path, value: Json) -> None:
    """Report the faults of a selector in metav1's or kubectl's form, except wrong types."""
    if isinstance(value, str):
        _report_selector(findings, path, lambda: LabelSelector.parse(value))
    for key, label in mapping_at(value, "matchLabels").items():
        where = (*path, "matchLabels", key)
        if isinstance(label, str) and not findings.is_blamed(where):
            _report_selector(findings, where, _reader("matchLabels", {key: label}))
    for below, expression in entries_at(value, "matchExpressions"):
        where = (*path, *below)
        if not findings.is_blamed_within(where) and "key" in expression and "operator" in expression:
            _report_selector(findings, where, _reader("matchExpressions", [dict(expression)]))


def _reader(field: str, condition: Json) -> Callable[[], object]:
    return lambda: LabelSelector.from_mapping({field: condition})


def _report_selector(findings: Findings, path: Path, read: Callable[[], object]) -> None:
    try:
        read()
    except ValueError as error:
        reason = str(error)
        if findings.document.has_environment_within(path):
            reason = "the value from the environment can't be used here"
        findings.add(
            codes.BAD_LABEL_SELECTOR,
            Location(path),
            f"{dotted(path)}: {reason}",
            suggestion=_ADVICE[codes.BAD_LABEL_SELECTOR],
        )


def check_values(findings: Findings) -> None:
    """Report durations, sizes, names, selectors, paths, addresses and entry points that can't be read."""
    for path, value, piece in findings.pieces:
        kind = notes_of(piece).get("value")
        if kind is None or findings.is_blamed(path):
            continue
        if kind == "labelSelector":
            check_label_selector(findings, path, value)
        elif kind == "duration" and isinstance(value, str):
            _check_duration(findings, path, value, piece=piece)
        # check_structure has reported empty texts and wrong types.
        elif (isinstance(value, str) and value) or (kind == "quantity" and type(value) is int):
            code, read = VALUE_KINDS[str(kind)]
            try:
                read(value)
            except ValueError as error:  # BadValue, or the errors of field paths and selectors
                _blame(findings, path, code, error)


def _check_duration(findings: Findings, path: Path, value: str, *, piece: Schema) -> None:
    notes = notes_of(piece)
    least = notes.get("minimum")
    try:
        seconds = parse_duration(value)
    except BadValue as error:
        _blame(findings, path, codes.BAD_DURATION, error)
        return
    if isinstance(least, int | float) and seconds < least and not (seconds == 0 and notes.get("zero")):
        shortest = "1s" if least == 1 else "1ms"
        message = f"{dotted(path)} is {findings.quoted(path, value)}, which is too short"
        suggestion = f"write {shortest} or more" + (", or 0s for none" if notes.get("zero") else "")
        findings.add(codes.BAD_DURATION, Location(path), message, suggestion=suggestion)


def _blame(findings: Findings, path: Path, code: str, error: ValueError) -> None:
    """Report a value that can't be read. The message does not show a value from the environment."""
    suggestion: str | None = getattr(error, "suggestion", None)
    offset: int = getattr(error, "offset", getattr(error, "column", 0))
    message = f"{dotted(path)}: {error}"
    # A variable may hold a secret, and the error quotes the value.
    if findings.document.from_environment(path) is not None:
        message, suggestion = (
            f"{dotted(path)}: the value from the environment can't be used here",
            _ADVICE[code],
        )
    findings.add(code, Location(path, offset=offset), message, suggestion=suggestion or _ADVICE[code])
