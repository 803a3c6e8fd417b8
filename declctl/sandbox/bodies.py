"""What a request brings.

Its body and the options of writing and deleting, read and refused in the real server's words.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from declctl.errors import SandboxError
from declctl.sandbox import protobuf, status
from declctl.sandbox.documents import read_documents
from declctl.sandbox.options import truth
from declctl.sandbox.routes import Call
from declctl.sandbox.status import Cause
from declctl.sandbox.targets import Deletion, Write

_ACCEPTED = ("application/json", "application/yaml", protobuf.MEDIA_TYPE)


def read_object(call: Call, media_type: str, body: bytes) -> Any:
    """The object of a create or update; refused with 400 or 415."""
    if media_type not in ("", *_ACCEPTED):
        raise status.unsupported_media_type(_ACCEPTED)
    return _parse(call, media_type, body)


def read_patch(call: Call, media_type: str, body: bytes) -> Any:
    """The body of a patch, whatever kind of patch it is."""
    return _parse(call, media_type, body)


def read_write(call: Call, params: Mapping[str, str], user_agent: str) -> Write:
    """How to write; refused with 422 for a dryRun that isn't All."""
    options = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}
    dry_run = _dry_run(params.get("dryRun", ""), options.get(call.verb, "UpdateOptions"))
    manager = params.get("fieldManager") or user_agent.partition("/")[0] or "unknown"
    return Write(dry_run=dry_run, manager=manager, subresource=call.subresource)


def read_deletion(call: Call, params: Mapping[str, str], media_type: str, body: bytes) -> Deletion:
    """How to delete, from the body or the query; refused with 400 or 422."""
    given = _parse(call, media_type, body) if body.strip() else {}
    if not isinstance(given, dict):
        raise status.bad_request("DeleteOptions must be an object")
    preconditions = given.get("preconditions") or {}
    dry_run = given.get("dryRun") or ([params["dryRun"]] if "dryRun" in params else [])
    policy = given.get("propagationPolicy") or params.get("propagationPolicy", "")
    if policy not in ("", "Orphan", "Background", "Foreground"):
        known = '"Foreground", "Background", "Orphan", "nil"'
        message = f'Unsupported value: "{policy}": supported values: {known}'
        cause = Cause("FieldValueNotSupported", message, "propagationPolicy")
        raise status.invalid_options("DeleteOptions", [cause])
    return Deletion(
        dry_run=_dry_run(dry_run[0] if dry_run else "", "DeleteOptions"),
        grace=_seconds(given.get("gracePeriodSeconds", params.get("gracePeriodSeconds"))),
        uid=preconditions.get("uid") or "",
        version=preconditions.get("resourceVersion") or "",
    )


def forced(params: Mapping[str, str]) -> bool:
    """Whether server-side apply may take fields from others."""
    return truth(params.get("force"))


def decoded(media_type: str, body: bytes) -> Any:
    """A body by its media type, by default JSON; raises ValueError, or SandboxError for YAML."""
    if media_type == protobuf.MEDIA_TYPE:
        return protobuf.decode(body)
    if media_type.endswith(("/yaml", "+yaml")):
        return next(iter(read_documents(body)), None)
    return msgspec.json.decode(body)


def _parse(call: Call, media_type: str, body: bytes) -> Any:
    try:
        return decoded(media_type, body)
    except (ValueError, SandboxError, RecursionError) as error:
        shown = body[:64].decode(errors="replace") or "<empty>"
        raise status.bad_request(
            f"the object provided is unrecognized (must be of type {call.kind.kind}): couldn't get "
            f"version/kind; "
            f"json parse error: {error} ({shown})"
        ) from error


def _dry_run(value: str, options: str) -> bool:
    if value in ("", "All"):
        return value == "All"
    cause = Cause(
        "FieldValueNotSupported", f'Unsupported value: ["{value}"]: supported values: "All"', "dryRun"
    )
    raise status.invalid_options(options, [cause])


def _seconds(value: Any) -> int | None:
    if value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        raise status.bad_request(f'strconv.ParseInt: parsing "{value}": invalid syntax') from None
