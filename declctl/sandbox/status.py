"""Refusals: Status documents with the messages of kube-apiserver 1.36.

The rules of this room raise a `Refusal`; `server` turns it into an answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from declctl.objects import KubeObject
from declctl.sandbox.kinds import ServedKind


@dataclass(frozen=True, slots=True)
class StatusCause:
    """One entry of `details.causes`.

    `reason` is a word such as FieldValueInvalid, `field` a path such as metadata.name.
    """

    reason: str
    message: str
    field: str = ""

    def document(self) -> KubeObject:
        """As it stands in a Status."""
        entry = {"reason": self.reason, "message": self.message}
        return {**entry, "field": self.field} if self.field else entry

    @classmethod
    def invalid(cls, field: str, value: Any, rule: str) -> "StatusCause":
        """A value that breaks a rule; names and labels are quoted."""
        shown = f'"{value}"' if isinstance(value, str) else value
        return cls("FieldValueInvalid", f"Invalid value: {shown}: {rule}", field)

    @classmethod
    def unsupported(cls, field: str, value: str, supported: str) -> "StatusCause":
        """A value that is none of those that exist; `supported` lists them in quotes."""
        message = f'Unsupported value: "{value}": supported values: {supported}'
        return cls("FieldValueNotSupported", message, field)

    @classmethod
    def forbidden(cls, field: str, why: str) -> "StatusCause":
        """A field that may not be set here."""
        return cls("FieldValueForbidden", f"Forbidden: {why}", field)

    @classmethod
    def required(cls, field: str, why: str = "") -> "StatusCause":
        """A field that must be set."""
        return cls("FieldValueRequired", f"Required value: {why}" if why else "Required value", field)


@dataclass(eq=False)
class Refusal(Exception):
    """A request that the server does not fulfil: the HTTP code and the fields of the Status.

    `retry_after` is in seconds; `metadata` carries the continue token of an expired list.
    """

    code: int
    reason: str
    message: str
    details: KubeObject | None = None
    retry_after: int | None = None
    metadata: KubeObject = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        return self.message

    def document(self) -> KubeObject:
        """The Status object that goes over the wire."""
        status: KubeObject = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        details = dict(self.details) if self.details is not None else None
        if self.retry_after is not None:
            details = {**(details or {}), "retryAfterSeconds": self.retry_after}
        if details is not None:
            status["details"] = details
        status["code"] = self.code
        return status


def success(kind: ServedKind, name: str, uid: str) -> KubeObject:
    """The answer to a delete that is done."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {**_details(kind, name), "uid": uid},
    }


def qualified(kind: ServedKind) -> str:
    """`deployments.apps`, or `pods` for the core group."""
    return f"{kind.plural}.{kind.group}" if kind.group else kind.plural


def not_found(kind: ServedKind, name: str) -> Refusal:
    """404: no such object."""
    return Refusal(404, "NotFound", f'{qualified(kind)} "{name}" not found', _details(kind, name))


def no_such_resource() -> Refusal:
    """404: the server serves nothing under this URL."""
    return Refusal(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(kind: ServedKind, name: str, *, leaving: bool = False) -> Refusal:
    """409: the name is taken, maybe by an object that is being deleted."""
    message = f'{qualified(kind)} "{name}" already exists'
    if leaving:
        message = f"object is being deleted: {message}"
    return Refusal(409, "AlreadyExists", message, _details(kind, name))


def conflict(kind: ServedKind, name: str, why: str) -> Refusal:
    """409: the object is in another state than the request expects."""
    message = f'Operation cannot be fulfilled on {qualified(kind)} "{name}": {why}'
    return Refusal(409, "Conflict", message, _details(kind, name))


def modified(kind: ServedKind, name: str) -> Refusal:
    """409: the resource version of the request is not the newest."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(kind, name, why)


def forbidden(kind: ServedKind, name: str, why: str, causes: Sequence[StatusCause] = ()) -> Refusal:
    """403."""
    details = _details(kind, name)
    if causes:
        details["causes"] = [cause.document() for cause in causes]
    subject = f'{qualified(kind)} "{name}"' if name else qualified(kind)
    return Refusal(403, "Forbidden", f"{subject} is forbidden: {why}", details)


def not_for_us(why: str) -> Refusal:
    """403: the request was sent under another host name, or by a web page."""
    return Refusal(403, "Forbidden", why, {})


def invalid(kind: str, name: str, causes: Sequence[StatusCause], *, group: str = "") -> Refusal:
    """422: fields that are missing or wrong; one cause for each."""
    parts = list(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in causes))
    text = parts[0] if len(parts) == 1 else f"[{', '.join(parts)}]"
    qualified_kind = f"{kind}.{group}" if group else kind
    details: KubeObject = {"name": name} if name else {}
    if group:
        details["group"] = group
    details |= {"kind": kind, "causes": [cause.document() for cause in causes]}
    return Refusal(422, "Invalid", f'{qualified_kind} "{name}" is invalid: {text}', details)


def invalid_options(kind: str, causes: Sequence[StatusCause]) -> Refusal:
    """422 for query parameters; `kind` is such as ListOptions."""
    return invalid(kind, "", causes, group="meta.k8s.io")


def bad_request(message: str) -> Refusal:
    """400."""
    return Refusal(400, "BadRequest", message)


def method_not_allowed() -> Refusal:
    """405."""
    message = "the server does not allow this method on the requested resource"
    return Refusal(405, "MethodNotAllowed", message, {})


def unsupported_media_type(accepted: Sequence[str]) -> Refusal:
    """415; names what is accepted."""
    known = ", ".join(accepted)
    message = f"the body of the request was in an unknown format - accepted media types include: {known}"
    return Refusal(415, "UnsupportedMediaType", message)


def not_acceptable() -> Refusal:
    """406: none of the formats that the client takes."""
    message = (
        "406: Not Acceptable\n\nAvailable representations: application/json, application/json;stream=watch"
    )
    return Refusal(406, "NotAcceptable", message, {})


def too_old(version: int, oldest: int) -> Refusal:
    """410: a resource version that was compacted."""
    return Refusal(410, "Expired", f"too old resource version: {version} ({oldest})")


def compacted() -> Refusal:
    """410: a list at exactly a version that was compacted."""
    return Refusal(410, "Expired", "The resourceVersion for the provided list is too old.")


def too_large(version: int, current: int) -> Refusal:
    """504: a resource version that this server has not reached."""
    cause = StatusCause("ResourceVersionTooLarge", "Too large resource version")
    message = f"Timeout: Too large resource version: {version}, current: {current}"
    return Refusal(504, "Timeout", message, {"causes": [cause.document()]}, retry_after=1)


def _details(kind: ServedKind, name: str) -> KubeObject:
    details: KubeObject = {"name": name} if name else {}
    if kind.group:
        details["group"] = kind.group
    details["kind"] = kind.plural
    return details
