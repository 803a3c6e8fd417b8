"""Requests: the verb and resource of a method and path; bodies and options; and the form of the answer.

Unreadable requests are refused in the real server's words. `discovery` answers paths that name no resource.
An answer has objects in one of three forms: whole, as metadata only, or as rows of a table.
A SelfSubjectAccessReview allows everything, unless a fault forbids it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from declctl.errors import SandboxError
from declctl.kit import Clock
from declctl.objects import KubeObject
from declctl.sandbox import status
from declctl.sandbox.faults import Faults
from declctl.sandbox.history import Stored
from declctl.sandbox.kinds import Registry, ServedKind
from declctl.sandbox.kubectl import protobuf, tables
from declctl.sandbox.lists import Page, integer, truth
from declctl.sandbox.remover import Deletion, Target, Write
from declctl.sandbox.status import StatusCause
from declctl.sandbox.validation import read_documents

_ON_ONE: Final = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_ON_ALL: Final = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_ACCEPTED = ("application/json", "application/yaml", protobuf.MEDIA_TYPE)
_META: Final = {"apiVersion": "meta.k8s.io/v1"}
_ENCODE: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A verb on a resource; `namespace`, `name` and `subresource` are empty where there is none.

    `warnings` are for the answer.
    """

    verb: str
    kind: ServedKind
    namespace: str
    name: str
    subresource: str
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: list[str] = field(default_factory=list[str])

    @property
    def target(self) -> Target:
        """The object that the request names."""
        return Target(self.kind, self.namespace, self.name)

    @property
    def resource(self) -> str:
        """The plural, with the subresource behind a slash."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


def resolve(method: str, path: str, query: Mapping[str, str], registry: Registry) -> RequestInfo | None:
    """The verb and resource of a request; None if the path names none. Refused with 404 or 405."""
    match [unquote(part) for part in path.strip("/").split("/")]:
        case ["api", version, *rest]:
            group = ""
        case ["apis", group, version, *rest]:
            pass
        case _:
            return None
    namespace = ""
    # /namespaces/x/pods is about pods; /namespaces/x and /namespaces/x/status are about the namespace itself.
    if len(rest) >= 3 and rest[0] == "namespaces" and (group or rest[2] not in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    if not rest or not registry.serves(group, version):
        return None
    plural, name, subresource = (*rest, "", "")[:3]
    kind = registry.at(group, version, plural)
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        raise status.no_such_resource()
    if subresource and not _has(kind, subresource):
        raise status.no_such_resource()
    method = "GET" if method == "HEAD" else method
    verb = (_ON_ONE if name else _ON_ALL).get(method)
    if verb == "list" and truth(query.get("watch")):
        verb = "watch"
    call = RequestInfo(verb or "", kind, namespace, name, subresource, query)
    if not _allowed(call):
        raise status.method_not_allowed()
    return call


def _has(kind: ServedKind, subresource: str) -> bool:
    return (subresource == "status" and kind.status) or (subresource == "scale" and kind.scale is not None)


def _allowed(call: RequestInfo) -> bool:
    if call.subresource:
        return call.verb in ("get", "update", "patch")
    across = call.kind.namespaced and not call.namespace
    if across and (call.name or call.verb in ("create", "deletecollection")):
        return False
    return call.verb in call.kind.verbs


def read_object(call: RequestInfo, media_type: str, body: bytes) -> Any:
    """The object of a create or update; refused with 400 or 415."""
    if media_type not in ("", *_ACCEPTED):
        raise status.unsupported_media_type(_ACCEPTED)
    return parse(call, media_type, body)


def read_write(call: RequestInfo, user_agent: str) -> Write:
    """How to write; refused with 422 for a dryRun or fieldValidation that there isn't."""
    options = {"create": "CreateOptions", "patch": "PatchOptions"}.get(call.verb, "UpdateOptions")
    dry_run = _dry_run(call.params.get("dryRun", ""), options)
    field_validation = call.params.get("fieldValidation") or "Warn"
    if field_validation not in ("Ignore", "Strict", "Warn"):
        known = '"", "Ignore", "Strict", "Warn"'
        cause = StatusCause.unsupported("fieldValidation", field_validation, known)
        raise status.invalid_options(options, [cause])
    return Write(
        dry_run=dry_run,
        manager=call.params.get("fieldManager") or user_agent.partition("/")[0] or "unknown",
        subresource=call.subresource,
        field_validation=field_validation,
        warnings=call.warnings,
    )


def read_deletion(call: RequestInfo, media_type: str, body: bytes) -> Deletion:
    """How to delete, from the body or the query; refused with 400 or 422."""
    given = parse(call, media_type, body) if body.strip() else {}
    if not isinstance(given, dict):
        raise status.bad_request("DeleteOptions must be an object")
    # As the real server: options in the body replace those of the query, a dryRun among them.
    params = {} if body.strip() else call.params
    preconditions = given.get("preconditions") or {}
    dry_run = given.get("dryRun") or ([params["dryRun"]] if "dryRun" in params else [])
    policy = given.get("propagationPolicy") or params.get("propagationPolicy", "")
    if policy not in ("", "Orphan", "Background", "Foreground"):
        cause = StatusCause.unsupported(
            "propagationPolicy", policy, '"Foreground", "Background", "Orphan", "nil"'
        )
        raise status.invalid_options("DeleteOptions", [cause])
    return Deletion(
        dry_run=_dry_run(dry_run[0] if dry_run else "", "DeleteOptions"),
        grace=integer(given.get("gracePeriodSeconds", params.get("gracePeriodSeconds"))),
        uid=preconditions.get("uid") or "",
        version=preconditions.get("resourceVersion") or "",
        orphans=policy == "Orphan",
    )


def decoded(media_type: str, body: bytes) -> Any:
    """A body by its media type, by default JSON; raises ValueError, or SandboxError for YAML."""
    if media_type == protobuf.MEDIA_TYPE:
        return protobuf.decode(body)
    if media_type.endswith(("/yaml", "+yaml")):
        # Clients apply JSON, which is YAML, and a hundred times faster to read.
        if body.startswith(b"{"):
            with suppress(ValueError, RecursionError):
                return msgspec.json.decode(body)
        return next(iter(read_documents(body)), None)
    return msgspec.json.decode(body)


def parse(call: RequestInfo, media_type: str, body: bytes) -> Any:
    """A body by its media type; refused with 400 if it can't be read."""
    try:
        return decoded(media_type, body)
    except (ValueError, SandboxError, RecursionError) as error:
        shown = body[:64].decode(errors="replace") or "<empty>"
        raise status.bad_request(
            f"the object provided is unrecognized (must be of type {call.kind.kind}): couldn't get "
            f"version/kind; json parse error: {error} ({shown})"
        ) from error


def _dry_run(value: str, options: str) -> bool:
    if value in ("", "All"):
        return value == "All"
    cause = StatusCause(
        "FieldValueNotSupported", f'Unsupported value: ["{value}"]: supported values: "All"', "dryRun"
    )
    raise status.invalid_options(options, [cause])


def review(media_type: str, body: bytes, faults: Faults) -> KubeObject:
    """The review with its status; refused with 400 if it isn't one."""
    try:
        given: Any = decoded(media_type, body)
        attributes: KubeObject = given["spec"].get("resourceAttributes") or {}
    except (ValueError, SandboxError, KeyError, TypeError, AttributeError) as error:
        raise status.bad_request(f"the body is no SelfSubjectAccessReview: {error}") from error
    resource = attributes.get("resource", "")
    if attributes.get("subresource"):
        resource = f"{resource}/{attributes['subresource']}"
    refused = faults.would_refuse(attributes.get("verb", ""), resource, attributes.get("namespace", ""))
    answer = {
        "allowed": not refused,
        "reason": "a fault forbids it" if refused else "the sandbox allows everything",
    }
    return {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {"creationTimestamp": None},
        "spec": given["spec"],
        "status": answer,
    }


@dataclass(frozen=True, slots=True)
class Plain:
    """Objects as they are."""

    def item(self, kind: ServedKind, stored: Stored) -> bytes:
        """The whole object."""
        return stored.encoded(kind)

    def bookmark(self, kind: ServedKind, metadata: KubeObject) -> bytes:
        """An object of the kind with metadata only."""
        return _ENCODE({"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata})

    def page(self, kind: ServedKind, page: Page) -> bytes:
        """A list; as in the real server, items of built-in kinds leave out apiVersion and kind."""
        start = f'{{"kind":"{kind.kind}List","apiVersion":"{kind.api_version}","metadata":'.encode()
        whole = kind.custom or kind.is_new_event
        items = [stored.encoded(kind) if whole else stored.data for stored in page.items]
        metadata = _list_metadata(page)
        # The server has a place for it in the lists of built-in kinds only, and in none of another form.
        if page.shards is not None and not kind.custom:
            metadata["shardInfo"] = {"selector": str(page.shards)}
        return b"".join((start, _ENCODE(metadata), b',"items":[', b",".join(items), b"]}"))


@dataclass(frozen=True, slots=True)
class MetadataOnly:
    """PartialObjectMetadata."""

    def item(self, kind: ServedKind, stored: Stored) -> bytes:  # noqa: ARG002 - the same for all kinds
        """The metadata of the object."""
        return _ENCODE(partial(stored.decode()["metadata"]))

    def bookmark(self, kind: ServedKind, metadata: KubeObject) -> bytes:  # noqa: ARG002 - the same for all kinds
        """A PartialObjectMetadata of the given metadata."""
        return _ENCODE(partial(metadata))

    def page(self, kind: ServedKind, page: Page) -> bytes:  # noqa: ARG002 - the same for all kinds
        """A PartialObjectMetadataList."""
        items = [partial(stored.decode()["metadata"]) for stored in page.items]
        return _ENCODE(
            {"kind": "PartialObjectMetadataList", **_META, "metadata": _list_metadata(page), "items": items}
        )


@dataclass(frozen=True, slots=True)
class TableRows:
    """Tables, as `kubectl get` asks for them.

    Each row carries the metadata of its object; all of it with `include` "Object", and nothing with "None".
    """

    clock: Clock
    include: str = ""

    def item(self, kind: ServedKind, stored: Stored) -> bytes:
        """A table of one row."""
        return self._table(kind, [stored], {"resourceVersion": str(stored.version)})

    def bookmark(self, kind: ServedKind, metadata: KubeObject) -> bytes:
        """A table with one empty row that carries the metadata."""
        row = {"cells": [""] * len(tables.columns_of(kind)), "object": partial(metadata)}
        columns = tables.definitions(kind)
        return _ENCODE(
            {"kind": "Table", **_META, "metadata": {}, "columnDefinitions": columns, "rows": [row]}
        )

    def page(self, kind: ServedKind, page: Page) -> bytes:
        """A table of all items."""
        return self._table(kind, page.items, _list_metadata(page))

    def _table(self, kind: ServedKind, items: Sequence[Stored], metadata: KubeObject) -> bytes:
        now = self.clock.now()
        rows: list[KubeObject] = []
        for stored in items:
            obj = stored.rendered(kind)
            row: KubeObject = {"cells": tables.cells(kind, obj, now)}
            if self.include != "None":
                row["object"] = obj if self.include == "Object" else partial(obj["metadata"])
            rows.append(row)
        columns = tables.definitions(kind)
        return _ENCODE(
            {"kind": "Table", **_META, "metadata": metadata, "columnDefinitions": columns, "rows": rows}
        )


AnyForm = Plain | MetadataOnly | TableRows


def partial(metadata: KubeObject) -> KubeObject:
    """A PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", **_META, "metadata": metadata}


def negotiate(accept: str, clock: Clock, *, include: str = "", several: bool = False) -> AnyForm:
    """The first form of an Accept header that this server writes; refused with 406 if there is none.

    `several`: for a list.
    """
    for offer in accept.split(",") if accept.strip() else ["*/*"]:
        media_type, *rest = (part.strip() for part in offer.split(";"))
        if media_type not in ("application/json", "*/*", "application/*"):
            continue
        params = dict(part.split("=", 1) for part in rest if "=" in part)
        form = _form(params, clock, include, several=several)
        if form is not None:
            return form
    raise status.not_acceptable()


def _form(params: dict[str, str], clock: Clock, include: str, *, several: bool) -> AnyForm | None:
    if "as" not in params:
        return Plain()
    if params.get("g") != "meta.k8s.io" or params.get("v") not in ("v1", "v1beta1"):
        return None
    if params["as"] == "Table":
        return TableRows(clock, include)
    wanted = "PartialObjectMetadataList" if several else "PartialObjectMetadata"
    return MetadataOnly() if params["as"] == wanted else None


def _list_metadata(page: Page) -> KubeObject:
    metadata: KubeObject = {"resourceVersion": str(page.version)}
    if page.token:
        metadata["continue"] = page.token
    if page.remaining is not None:
        metadata["remainingItemCount"] = page.remaining
    return metadata
