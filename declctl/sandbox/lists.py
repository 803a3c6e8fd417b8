"""LIST: which objects at which version, in pages; and the query parameters of LIST and WATCH.

Follows the table of resourceVersion and resourceVersionMatch in the Kubernetes API docs. Parameters are
checked as kube-apiserver checks them, and refused in its words. A continue token holds the key after which a
list goes on, and its version, in the shape of kube-apiserver's: base64 of a small JSON document.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from declctl.objects import FieldSelector, LabelSelector
from declctl.sandbox import status
from declctl.sandbox.history import EtcdHistory, Snapshot, Stored
from declctl.sandbox.kinds import ResourceId
from declctl.sandbox.shards import ShardSelector
from declctl.sandbox.status import Refusal, StatusCause

CURRENT: Final = -1
"""The version of a token that continues with the present state; an expired token is exchanged for one."""

_HINT: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new "
    "list without the continue parameter, or use the continue token in this response to retrieve the "
    "remainder of the results. Continuing with the provided token results in an inconsistent list - objects "
    "that were created, modified, or deleted between the time the first chunk was returned and now may show "
    "up in the list."
)


@dataclass(frozen=True, slots=True)
class Token:
    """A list goes on after `key`, at `version` (CURRENT: at the newest)."""

    version: int
    key: str

    def encode(self) -> str:
        """As it goes over the wire."""
        document = {"v": "meta.k8s.io/v1", "rv": self.version, "start": self.key}
        return base64.urlsafe_b64encode(msgspec.json.encode(document)).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> "Token":
        """Read a token; refused with 400 if it isn't one."""
        try:
            document = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            if document["v"] == "meta.k8s.io/v1" and isinstance(document["start"], str):
                return cls(int(document["rv"]), document["start"])
        except (binascii.Error, ValueError, KeyError, TypeError) as error:
            raise status.bad_request(f"invalid continue token: continue key is not valid: {error}") from error
        raise status.bad_request(
            "invalid continue token: continue key is not valid: server does not recognize this encoded "
            "version"
        )

    def expired(self) -> status.Refusal:
        """410 with a token that goes on inconsistently."""
        refusal = status.Refusal(410, "Expired", _HINT)
        refusal.metadata = {"continue": Token(CURRENT, self.key).encode()}
        return refusal


_MATCH: Final = "resourceVersionMatch"
_ANY_LABELS: Final = LabelSelector()
_ANY_FIELDS: Final = FieldSelector()


@dataclass(frozen=True, slots=True)
class ObjectFilter:
    """Which objects of a resource: one namespace or all (empty), some shards or all, by labels and fields."""

    namespace: str = ""
    labels: LabelSelector = _ANY_LABELS
    fields: FieldSelector = _ANY_FIELDS
    shards: ShardSelector | None = None

    @property
    def has_selectors(self) -> bool:
        """Whether labels or fields narrow it down: what the server asks before it counts or filters.

        A namespace is part of the address, and shards are not thought of.
        """
        return bool(self.labels.requirements or self.fields.conditions)

    def matches(self, stored: Stored) -> bool:
        """Whether the object is selected."""
        return self.covers(stored) and self.selects(stored)

    def covers(self, stored: Stored) -> bool:
        """Whether the object is in its namespace and shards: that never changes."""
        if self.namespace and stored.namespace != self.namespace:
            return False
        return self.shards is None or self.shards.matches(stored)

    def selects(self, stored: Stored) -> bool:
        """Whether the object has its labels and fields."""
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
class ListQuery:
    """What a LIST or WATCH asks for.

    `version` is None if unset; `limit` 0 means no paging; `timeout` is in seconds.
    """

    selection: ObjectFilter
    version: int | None = None
    match: str = ""
    limit: int = 0
    token: str = ""
    bookmarks: bool = False
    initial_events: bool | None = None
    timeout: int | None = None


def read_options(
    params: Mapping[str, str], namespace: str, *, watch: bool, shard_selectors: bool = False
) -> ListQuery:
    """From query parameters; refused with 400, 422 or 500, as the real server does.

    A server without `shard_selectors` does not look at one.
    """
    version = params.get("resourceVersion", "")
    options = ListQuery(
        selection=_selection(params, namespace, shard_selectors=shard_selectors),
        version=_version(version, watch=watch),
        match=params.get("resourceVersionMatch", ""),
        limit=integer(params.get("limit")) or 0,
        token=params.get("continue", ""),
        bookmarks=truth(params.get("allowWatchBookmarks")),
        initial_events=truth(params["sendInitialEvents"]) if "sendInitialEvents" in params else None,
        timeout=integer(params.get("timeoutSeconds")),
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


def _selection(params: Mapping[str, str], namespace: str, *, shard_selectors: bool) -> ObjectFilter:
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
    shards = ShardSelector.parse(params.get("shardSelector", "")) if shard_selectors else None
    return ObjectFilter(namespace, labels, fields, shards)


def _version(text: str, *, watch: bool) -> int | None:
    if not text:
        return None
    if text.isascii() and text.isdecimal():
        return int(text)
    fault = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
    if watch:
        raise status.Refusal(500, "", fault)
    raise status.bad_request(f"invalid resource version: {fault}")


def integer(given: Any) -> int | None:
    """The number of a query parameter or option, None if it is not given; refused with 400 if it is none."""
    if given in (None, ""):
        return None
    try:
        return int(given)
    except (TypeError, ValueError):
        raise status.bad_request(f'strconv.ParseInt: parsing "{given}": invalid syntax') from None


def _list_faults(options: ListQuery, version: str) -> Iterator[StatusCause]:
    if options.initial_events is not None:
        yield StatusCause.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
    if not options.match:
        return
    if not version:
        yield StatusCause.forbidden(
            _MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided"
        )
    if options.token:
        yield StatusCause.forbidden(_MATCH, "resourceVersionMatch is forbidden when continue is provided")
    if options.match not in ("Exact", "NotOlderThan"):
        yield StatusCause.unsupported(_MATCH, options.match, '"Exact", "NotOlderThan", ""')
    if options.match == "Exact" and version == "0":
        yield StatusCause.forbidden(
            _MATCH, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        )


def _watch_faults(options: ListQuery) -> Iterator[StatusCause]:
    if options.initial_events is None:
        if options.match:
            yield StatusCause.forbidden(
                _MATCH, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            )
        return
    if options.match != "NotOlderThan":
        yield StatusCause.forbidden(
            _MATCH, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        )
    if options.match not in ("", "NotOlderThan"):
        yield StatusCause.unsupported(_MATCH, options.match, '"NotOlderThan"')
    if options.token:
        yield StatusCause.forbidden("continue", "continue is forbidden for watch")


@dataclass(frozen=True, slots=True)
class Page:
    """One page. `remaining` is None where the real server does not count.

    On the last page, and with selectors. Objects of all `shards` are counted.
    """

    version: int
    items: Sequence[Stored]
    token: str = ""
    remaining: int | None = None
    shards: ShardSelector | None = None


def list_page(history: EtcdHistory, resource: ResourceId, options: ListQuery) -> Page:
    """The page that is asked for; refused with 400, 410 or 504."""
    snapshot, after = _snapshot(history, resource, options)
    # A watch cache answers version "0" as a whole, whatever the limit: client-go counts on it.
    limit = 0 if options.version == 0 and not options.token else options.limit
    selection = options.selection
    items: list[Stored] = []
    objects = snapshot.within(selection.namespace, after)
    for stored in objects:
        if selection.matches(stored):
            items.append(stored)
        if limit and len(items) == limit:
            break
    # One more is looked for, selected or not: a page that ends with the last object has no token.
    if next(objects, None) is None:
        return Page(snapshot.version, items, shards=selection.shards)
    token = Token(snapshot.version, items[-1].key).encode()
    remaining = None
    if not selection.has_selectors:
        # A watch cache counts the objects of all shards, those before this page's end as well.
        remaining = sum(1 for _ in snapshot.within(selection.namespace, after)) - len(items)
    return Page(snapshot.version, items, token, remaining, selection.shards)


def check_reached(history: EtcdHistory, version: int | None) -> None:
    """Refuse with 504 a version that the server has not reached."""
    if version is not None and version > history.version:
        raise status.too_large(version, history.version)


def _snapshot(history: EtcdHistory, resource: ResourceId, options: ListQuery) -> tuple[Snapshot, str]:
    collection = history.collection(resource)
    if options.token:
        token = Token.decode(options.token)
        # The client took the token of a 410 and accepts that the list is inconsistent.
        if token.version == CURRENT:
            return collection.present(history.version), token.key
        try:
            return collection.at(token.version), token.key
        except Refusal as refusal:
            raise token.expired() from refusal
    check_reached(history, options.version)
    # A limit with a version and no match is a legacy form of Exact.
    exact = options.match == "Exact" or (not options.match and options.limit > 0 and bool(options.version))
    if not exact or options.version is None:
        return collection.present(history.version), ""
    try:
        return collection.at(options.version), ""
    except Refusal as refusal:
        raise status.compacted() from refusal
