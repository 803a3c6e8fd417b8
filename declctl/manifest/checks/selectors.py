"""Label selectors: each condition is judged alone, so that the fault is shown where it stands."""

from collections.abc import Callable

from declctl.manifest import codes
from declctl.manifest.checks.findings import Findings
from declctl.manifest.document import Place
from declctl.manifest.json_values import Json, Path, dotted, entries_at, mapping_at, value_at
from declctl.manifest.suggestions import did_you_mean
from declctl.objects.selector import LabelSelector

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def check_label_selector(findings: Findings, path: Path, value: Json) -> None:
    """Report what is wrong with a selector, in metav1's form or in kubectl's, but for wrong types."""
    if isinstance(value, str):
        _report(findings, path, lambda: LabelSelector.parse(value))
        return
    for key, label in mapping_at(value, "matchLabels").items():
        where = (*path, "matchLabels", key)
        if isinstance(label, str) and not findings.is_blamed(where):
            _report(
                findings, where, lambda pair={key: label}: LabelSelector.from_mapping({"matchLabels": pair})
            )
    for where, expression in entries_at(value, "matchExpressions"):
        if not findings.is_blamed_within((*path, *where)) and _is_whole(expression):
            _report(
                findings,
                (*path, *where),
                lambda item=expression: LabelSelector.from_mapping({"matchExpressions": [item]}),
            )


def _is_whole(expression: dict[str, Json]) -> bool:
    return isinstance(expression.get("key"), str) and isinstance(expression.get("operator"), str)


def _report(findings: Findings, path: Path, read: Callable[[], object]) -> None:
    try:
        read()
    except ValueError as error:
        operator = value_at(findings.data, *path, "operator")
        suggestion = did_you_mean(operator, _OPERATORS) if isinstance(operator, str) else None
        if operator in _OPERATORS or suggestion is None:
            suggestion = "write it like {matchLabels: {app: web}} or app=web,tier in (a,b)"
        message = f"{dotted(path)}: {error}"
        if findings.document.from_environment(path) is not None:
            message = f"{dotted(path)}: the value from the environment is not usable here"
        findings.add(codes.BAD_LABEL_SELECTOR, Place(path), message, suggestion=suggestion)
