"""The query parameters of LIST and WATCH.

Read, checked as kube-apiserver checks them, and refused in its words.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from declctl.objects import FieldSelector, LabelSelector
from declctl.sandbox import status
from declctl.sandbox.history import Stored
from declctl.sandbox.status import Cause

_ANY_LABELS: Final = LabelSelector()
_ANY_FIELDS: Final = FieldSelector()


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a resource: one namespace or all (empty), by labels and by fields."""

    namespace: str = ""
    labels: LabelSelector = _ANY_LABELS
    fields: FieldSelector = _ANY_FIELDS

    @property
    def is_everything(self) -> bool:
        """Whether no selector narrows it down (a namespace is part of the address, not a selector)."""
        return not self.labels.requirements and not self.fields.conditions

    def matches(self, stored: Stored) -> bool:
        """Whether the object is selected."""
        if self.namespace and stored.namespace != self.namespace:
            return False
        if not self.labels.matches(stored.labels):
            return False
        deep = False
        for path, operator, value in self.fields.conditions:
            if path not in ("metadata.name", "metadata.namespace"):
                deep = True
            elif ((stored.name if path == "metadata.name" else stored.namespace) == value) != (
                operator == "="
            ):
                return False
        # Decoding is what costs, so it comes last.
        return not deep or self.fields.matches(stored.decode())


@dataclass(frozen=True, slots=True)
class ListOptions:
    """What a LIST or WATCH asks for.

    `version` is None if unset; `limit` 0 means no paging; `timeout` is in seconds.
    """

    selection: Selection
    version: int | None = None
    match: str = ""
    limit: int = 0
    token: str = ""
    bookmarks: bool = False
    initial_events: bool | None = None
    timeout: int | None = None


def read_options(params: Mapping[str, str], namespace: str, *, watch: bool) -> ListOptions:
    """From query parameters; refused with 400, 422 or 500, as the real server does."""
    version = params.get("resourceVersion", "")
    options = ListOptions(
        selection=_selection(params, namespace),
        version=_version(version, watch=watch),
        match=params.get("resourceVersionMatch", ""),
        limit=_integer(params, "limit") or 0,
        token=params.get("continue", ""),
        bookmarks=truth(params.get("allowWatchBookmarks")),
        initial_events=truth(params["sendInitialEvents"]) if "sendInitialEvents" in params else None,
        timeout=_integer(params, "timeoutSeconds"),
    )
    causes = list(_watch_faults(options) if watch else _list_faults(options, version))
    if causes:
        raise status.invalid_options("ListOptions", causes)
    if not watch and options.token and version not in ("", "0"):
        raise status.bad_request("specifying resource version is not allowed when using continue")
    return options


def truth(text: str | None) -> bool:
    """A boolean query parameter: anything but empty, 0 and false is true."""
    return (text or "").lower() not in ("", "0", "false")


def _selection(params: Mapping[str, str], namespace: str) -> Selection:
    text = params.get("labelSelector", "")
    if unknown := re.match(r"^\s*\S+\s+(?!in\b|notin\b|=|!|,)(\S+)", text):
        raise status.bad_request(
            f"unable to parse requirement: found '{unknown[1]}', expected: in, notin, =, ==, !=, gt, lt"
        )
    try:
        labels = LabelSelector.parse(text)
    except ValueError as error:
        raise status.bad_request(f"unable to parse requirement: {error}") from error
    try:
        fields = FieldSelector.parse(params.get("fieldSelector", ""))
    except ValueError as error:
        raise status.bad_request(f"invalid selector: '{params['fieldSelector']}'; {error}") from error
    return Selection(namespace, labels, fields)


def _version(text: str, *, watch: bool) -> int | None:
    if not text:
        return None
    if text.isascii() and text.isdecimal():
        return int(text)
    fault = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
    if watch:
        raise status.Refusal(500, "", fault)
    raise status.bad_request(f"invalid resource version: {fault}")


def _integer(params: Mapping[str, str], name: str) -> int | None:
    text = params.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise status.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def _forbidden(message: str, field: str = "resourceVersionMatch") -> Cause:
    return Cause("FieldValueForbidden", f"Forbidden: {message}", field)


def _unsupported(value: str, supported: str) -> Cause:
    message = f'Unsupported value: "{value}": supported values: {supported}'
    return Cause("FieldValueNotSupported", message, "resourceVersionMatch")


def _list_faults(options: ListOptions, version: str) -> Iterator[Cause]:
    if options.initial_events is not None:
        yield _forbidden("sendInitialEvents is forbidden for list", "sendInitialEvents")
    if not options.match:
        return
    if not version:
        yield _forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided")
    if options.token:
        yield _forbidden("resourceVersionMatch is forbidden when continue is provided")
    if options.match not in ("Exact", "NotOlderThan"):
        yield _unsupported(options.match, '"Exact", "NotOlderThan", ""')
    if options.match == "Exact" and version == "0":
        yield _forbidden('resourceVersionMatch "exact" is forbidden for resourceVersion "0"')


def _watch_faults(options: ListOptions) -> Iterator[Cause]:
    if options.initial_events is None:
        if options.match:
            yield _forbidden(
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            )
        return
    if options.match != "NotOlderThan":
        yield _forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
    if options.match not in ("", "NotOlderThan"):
        yield _unsupported(options.match, '"NotOlderThan"')
    if options.token:
        yield _forbidden("continue is forbidden for watch", "continue")
