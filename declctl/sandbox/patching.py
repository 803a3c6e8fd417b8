"""PATCH: from a body and its media type to a write.

What each kind of patch means is in `patches`, `strategic` and `apply`.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from declctl.objects import KubeObject
from declctl.sandbox import scaling, status, validation
from declctl.sandbox.apply import server_side_apply
from declctl.sandbox.patches import json_patch, merge_patch
from declctl.sandbox.status import Cause
from declctl.sandbox.strategic import strategic_merge
from declctl.sandbox.targets import Target, Write
from declctl.sandbox.writing import Writer

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
_MERGES: Final[Mapping[str, Callable[[KubeObject, Any], Any]]] = {
    JSON_PATCH: json_patch,
    MERGE_PATCH: merge_patch,
    STRATEGIC_PATCH: strategic_merge,
}


@dataclass(frozen=True, slots=True)
class Patch:
    """What a PATCH request brings; `force` is server-side apply's."""

    media_type: str
    body: Any
    force: bool = False


class Patcher:
    """Applies patches through the one writer."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def patch(self, target: Target, patch: Patch, write: Write) -> tuple[KubeObject, bool]:
        """The object as stored, and whether the patch created it (only server-side apply does)."""
        if patch.media_type == APPLY_PATCH:
            return self._apply(target, patch, write)
        if patch.media_type not in _MERGES or (patch.media_type == STRATEGIC_PATCH and target.kind.custom):
            raise status.unsupported_media_type(accepted(target))
        change = _MERGES[patch.media_type]
        if patch.media_type != JSON_PATCH and not isinstance(patch.body, dict):
            raise status.bad_request("error decoding patch: a merge patch is a JSON object")
        if write.subresource == "scale":
            return self._writer.modify(target, _through_scale(target, change, patch.body), write), False
        return self._writer.modify(target, lambda live: change(live, patch.body), write), False

    def _apply(self, target: Target, patch: Patch, write: Write) -> tuple[KubeObject, bool]:
        if write.manager == "":
            cause = Cause("FieldValueRequired", "Required value: is required for apply patch", "fieldManager")
            raise status.invalid_options("PatchOptions", [cause])
        config = validation.check_shape(target.kind, copy.deepcopy(patch.body))
        metadata: KubeObject = config["metadata"]
        metadata.setdefault("name", target.name)
        if target.kind.namespaced:
            metadata.setdefault("namespace", target.namespace)
        if write.subresource == "status":
            config = {
                key: config[key] for key in ("apiVersion", "kind", "metadata", "status") if key in config
            }
        elif target.kind.status:
            config.pop("status", None)
        live = self._live(target, write)
        applied = server_side_apply(
            live, config, kind=target.kind, author=self._writer.author(write), force=patch.force
        )
        if live is None:
            return self._writer.create(target.kind, target.namespace, applied, write), True
        return self._writer.replace(target, applied, write), False

    def _live(self, target: Target, write: Write) -> KubeObject | None:
        try:
            return self._writer.existing(target).rendered(target.kind)
        except status.Refusal:
            if write.subresource:  # a subresource can't be created
                raise
            return None


def accepted(target: Target) -> list[str]:
    """The media types that a kind can be patched with."""
    strategic = [] if target.kind.custom else [STRATEGIC_PATCH]
    return [JSON_PATCH, MERGE_PATCH, *strategic, APPLY_PATCH]


def _through_scale(
    target: Target, change: Callable[[KubeObject, Any], Any], body: Any
) -> Callable[[KubeObject], KubeObject]:
    return lambda live: scaling.scaled(target.kind, live, change(scaling.scale_of(target.kind, live), body))
