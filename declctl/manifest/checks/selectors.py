"""Label selectors: each condition is judged alone, so that the fault is shown where it stands."""

from collections.abc import Callable

from declctl.manifest import codes
from declctl.manifest.checks.findings import Findings
from declctl.manifest.document import Place
from declctl.manifest.json_values import Json, Path, dotted, entries_at, mapping_at
from declctl.objects.fields import LabelSelector

_ADVICE = "write it like {matchLabels: {app: web}} or app=web,tier in (a,b)"


def check_label_selector(findings: Findings, path: Path, value: Json) -> None:
    """Report what is wrong with a selector, in metav1's form or in kubectl's, but for wrong types."""
    if isinstance(value, str):
        _report(findings, path, lambda: LabelSelector.parse(value))
    for key, label in mapping_at(value, "matchLabels").items():
        where = (*path, "matchLabels", key)
        if isinstance(label, str) and not findings.is_blamed(where):
            _report(findings, where, _reader("matchLabels", {key: label}))
    for below, expression in entries_at(value, "matchExpressions"):
        where = (*path, *below)
        if not findings.is_blamed_within(where) and "key" in expression and "operator" in expression:
            _report(findings, where, _reader("matchExpressions", [dict(expression)]))


def _reader(field: str, condition: Json) -> Callable[[], object]:
    return lambda: LabelSelector.from_mapping({field: condition})


def _report(findings: Findings, path: Path, read: Callable[[], object]) -> None:
    try:
        read()
    except ValueError as error:
        reason = str(error)
        if findings.document.has_environment_within(path):
            reason = "the value from the environment is not usable here"
        findings.add(codes.BAD_LABEL_SELECTOR, Place(path), f"{dotted(path)}: {reason}", suggestion=_ADVICE)
