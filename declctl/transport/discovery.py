"""Discovery: a kind or the name of a resource, as the server in front of us serves it.

Asked for each group and version when it is needed, not for the whole server; what was found is
remembered until `forget`.
"""

import difflib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from declctl.errors import MalformedAnswer, NotFound, UsageError
from declctl.objects import GroupVersionKind, KubeObject, Resource

Get = Callable[[str], Awaitable[KubeObject]]


_Document = TypeVar("_Document", bound="_ApiResourceList | _ApiGroup")
_MOST_CANDIDATES, _LONGEST_NAME = 1000, 63
_VERSION = re.compile(r"v[0-9]+((alpha|beta)[0-9]+)?")


@dataclass(frozen=True, slots=True)
class ResourceName:
    """What people call a resource. `version` is None where the server shall choose."""

    group: str
    version: str | None
    resource: str

    @classmethod
    def parse(cls, text: str) -> "ResourceName":
        """From `pods`, `deployments.apps`, `deployments.v1.apps` or `apps/v1/deployments`.

        Between two dots `v1`, `v2beta1` and the like are versions. Raises UsageError.
        """
        if "/" in text:
            *group, version, resource = text.split("/")
            found = cls("/".join(group), version, resource)
            fits = len(group) <= 1 and _VERSION.fullmatch(version) and "." not in resource
        else:
            resource, _, rest = text.partition(".")
            first, _, more = rest.partition(".")
            found = cls(more, first, resource) if _VERSION.fullmatch(first) else cls(rest, None, resource)
            fits = True
        if not fits or not found.resource or text != text.strip():
            raise UsageError(
                f"{text!r} is no name of a resource; deployments.apps, deployments.v1.apps "
                "and apps/v1/deployments are"
            )
        return found

    def __str__(self) -> str:
        return ".".join(part for part in (self.resource, self.version, self.group) if part)


class _ApiResource(msgspec.Struct):
    """metav1.APIResource, as far as it matters here. Go writes `null` for an empty list."""

    name: str = "/"
    kind: str = ""
    namespaced: bool | None = None
    verbs: list[str] | None = None
    singularName: str | None = None  # noqa: N815 - the fields' names on the wire
    shortNames: list[str] | None = None  # noqa: N815


class _ApiResourceList(msgspec.Struct):
    resources: list[_ApiResource] | None = None


class _ApiVersion(msgspec.Struct):
    version: str | None = None


class _ApiGroup(msgspec.Struct):
    preferredVersion: _ApiVersion | None = None  # noqa: N815
    versions: list[_ApiVersion] | None = None


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
        try:
            entries = await self._entries(gvk.group, gvk.version)
        except NotFound as fault:
            raise self._missing(
                f"{self._server} does not serve {gvk.api_version}, and so no {gvk.kind}"
            ) from fault
        for entry in entries:
            if entry.kind == gvk.kind:
                return self._known.setdefault(gvk, _resource(gvk, entry))
        near = _near(gvk.kind, [entry.kind for entry in entries])
        hint = f"; did you mean {near[0]}?" if near else ""
        raise self._missing(f"{self._server} serves {gvk.api_version}, but no {gvk.kind} in it{hint}")

    async def find_resource(self, name: str) -> Resource:
        """The resource that people call so; the version that the server prefers unless one is named.

        Names are plural, singular or short, as for kubectl; one without a group is of the core
        group. Raises NotFound, with a sentence, and UsageError for what can't be a name.
        """
        wanted = ResourceName.parse(name)
        others: list[str] = []
        async for version in self._versions(wanted):
            try:
                entries = await self._entries(wanted.group, version)
            except NotFound:
                continue
            for entry in entries:
                if wanted.resource in _names(entry):
                    gvk = GroupVersionKind(wanted.group, version, entry.kind)
                    return self._known.setdefault(gvk, _resource(gvk, entry))
            others += [entry.name for entry in entries]
        near = _near(wanted.resource, others)
        hint = f"; did you mean {near[0]}?" if near else ""
        if not wanted.group:
            hint += "; a resource of another group is named with it, as deployments.apps is"
        raise self._missing(f"{self._server} serves no {wanted}{hint}")

    def forget(self, gvk: GroupVersionKind) -> None:
        """Ask again next time; unknown kinds are ignored."""
        self._known.pop(gvk, None)

    async def _versions(self, wanted: ResourceName) -> AsyncIterator[str]:
        """The versions to look in, the preferred one first."""
        if wanted.version is not None:
            yield wanted.version
        elif not wanted.group:
            yield "v1"
        else:
            try:
                group = await self._document(f"/apis/{wanted.group}", _ApiGroup)
            except NotFound:
                return
            for version in dict.fromkeys(
                each.version for each in (group.preferredVersion, *(group.versions or ())) if each is not None
            ):
                if version:
                    yield version

    async def _entries(self, group: str, version: str) -> Sequence[_ApiResource]:
        listed = await self._document(
            f"/apis/{group}/{version}" if group else f"/api/{version}", _ApiResourceList
        )
        # A subresource, such as pods/log, may have the kind of a resource.
        return [entry for entry in listed.resources or () if "/" not in entry.name]

    async def _document(self, path: str, kind: type[_Document]) -> _Document:
        found = await self._get(path)
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError as fault:
            raise MalformedAnswer(
                f"what {self._server} answers to GET {path} is no discovery document: {fault}"
            ) from fault

    def _missing(self, message: str) -> NotFound:
        return NotFound(404, "NotFound", message)


def _near(word: str, names: Sequence[str]) -> list[str]:
    # What a server calls its kinds may be long, and much: comparing costs the product of both lengths.
    candidates = [name for name in names[:_MOST_CANDIDATES] if len(name) <= _LONGEST_NAME]
    return difflib.get_close_matches(word[:_LONGEST_NAME], candidates, n=1)


def _names(entry: _ApiResource) -> set[str]:
    return {entry.name, entry.singularName or "", *(entry.shortNames or ())}


def _resource(gvk: GroupVersionKind, entry: _ApiResource) -> Resource:
    return Resource(
        gvk=gvk,
        plural=entry.name,
        namespaced=bool(entry.namespaced),
        verbs=frozenset(entry.verbs or ()),
    )
