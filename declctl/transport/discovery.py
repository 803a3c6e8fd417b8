"""Discovery: a kind, as the server in front of us serves it.

Asked for each group and version when it is needed, not for the whole server; what was found is
remembered until `forget`.
"""

import difflib
from collections.abc import Awaitable, Callable
from typing import Any

from declctl.errors import NotFound
from declctl.objects import GroupVersionKind, KubeObject, Resource

Get = Callable[[str], Awaitable[KubeObject]]


class Discovery:
    """Which resource a kind is. `get` fetches JSON from a path; `server` is its name for people."""

    def __init__(self, get: Get, *, server: str) -> None:
        self._get = get
        self._server = server
        self._known: dict[GroupVersionKind, Resource] = {}

    async def find(self, gvk: GroupVersionKind) -> Resource:
        """The resource; raises NotFound, with a sentence, while the kind is not served."""
        known = self._known.get(gvk)
        if known is not None:
            return known
        path = f"/apis/{gvk.api_version}" if gvk.group else f"/api/{gvk.version}"
        try:
            listed = await self._get(path)
        except NotFound as fault:
            raise self._missing(
                f"{self._server} does not serve {gvk.api_version}, and so no {gvk.kind}"
            ) from fault
        # A subresource, such as pods/log, may have the kind of a resource.
        entries = [entry for entry in listed.get("resources") or () if "/" not in entry.get("name", "/")]
        for entry in entries:
            if entry.get("kind") == gvk.kind:
                return self._known.setdefault(gvk, _resource(gvk, entry))
        near = difflib.get_close_matches(gvk.kind, [str(entry.get("kind")) for entry in entries], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise self._missing(f"{self._server} serves {gvk.api_version}, but no {gvk.kind} in it{hint}")

    def forget(self, gvk: GroupVersionKind) -> None:
        """Ask again next time; unknown kinds are ignored."""
        self._known.pop(gvk, None)

    def _missing(self, message: str) -> NotFound:
        return NotFound(404, "NotFound", message)


def _resource(gvk: GroupVersionKind, entry: dict[str, Any]) -> Resource:
    return Resource(
        gvk=gvk,
        plural=str(entry["name"]),
        namespaced=bool(entry.get("namespaced")),
        verbs=frozenset(str(verb) for verb in entry.get("verbs") or ()),
    )
