"""SelfSubjectAccessReview: everybody may do everything, unless a fault forbids it."""

from typing import Any, Final

from declctl.errors import SandboxError
from declctl.objects import KubeObject
from declctl.sandbox import requests, status
from declctl.sandbox.faults import Faults

PATH: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def review(media_type: str, body: bytes, faults: Faults) -> KubeObject:
    """The review with its status; refused with 400 if it isn't one."""
    try:
        given: Any = requests.decoded(media_type, body)
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
