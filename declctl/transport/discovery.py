"""Discovery: the resource of a kind or of a name, as a server serves it.

It requests single groups and versions when they are needed. Results are kept until `forget`.
"""

import difflib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from declctl.errors import (
    ApiError,
    GroupUnavailable,
    MalformedAnswer,
    NotFound,
    ServerError,
    Unreachable,
    UsageError,
)
from declctl.objects import GroupVersionKind, KubeObject, Resource

Get = Callable[[str], Awaitable[KubeObject]]
"""Fetches the JSON object of a path; raises the ApiError family."""

_Document = TypeVar("_Document", bound="_ApiResourceList | _ApiGroup | _ApiGroupList")
_MOST_CANDIDATES, _LONGEST_NAME = 1000, 63  # of the names that are compared for a suggestion
_UNAVAILABLE = 503
_VERSION = re.compile(r"v[0-9]+((alpha|beta)[0-9]+)?")


class ResourceName(msgspec.Struct, frozen=True):
    """The name of a resource, as kubectl takes it."""

    group: str  # empty for the core group
    version: str | None  # None for the version that the server prefers
    resource: str  # plural, singular or short

    @classmethod
    def parse(cls, text: str) -> "ResourceName":
        """Parse `pods`, `deployments.apps`, `deployments.v1.apps` or `apps/v1/deployments`.

        A part such as `v1` or `v2beta1` between two dots is a version. Raises UsageError for any other text.
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
    """The fields of metav1.APIResource that are needed here. Go writes `null` for an empty list."""

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
    name: str | None = None
    preferredVersion: _ApiVersion | None = None  # noqa: N815
    versions: list[_ApiVersion] | None = None


class _ApiGroupList(msgspec.Struct):
    groups: list[_ApiGroup] | None = None


class Discovery:
    """Finds the resources of kinds and names. Used on one loop.

    `server` is the name of the server in messages.
    """

    def __init__(self, get: Get, *, server: str) -> None:
        self._get = get
        self._server = server
        self._known: dict[GroupVersionKind, Resource] = {}

    async def find(self, gvk: GroupVersionKind) -> Resource:
        """The resource of a kind. Raises NotFound, with a sentence, while the server does not serve it.

        Raises GroupUnavailable while the API service of its group does not answer, and the server does.
        An empty version stands for the newest one that the server prefers and that has the kind.
        """
        known = self._known.get(gvk)
        if known is not None:
            return known
        if not gvk.version:
            return await self._find_preferred(gvk)
        try:
            entries = await self._entries(gvk.group, gvk.version)
        except NotFound as fault:
            raise self._missing(
                f"{self._server} does not serve {gvk.api_version}, and so no {gvk.kind}"
            ) from fault
        for entry in _main(entries):
            if entry.kind == gvk.kind:
                return self._known.setdefault(gvk, _resource(gvk, entry, entries))
        near = _near(gvk.kind, [entry.kind for entry in _main(entries)])
        hint = f"; did you mean {near[0]}?" if near else ""
        raise self._missing(f"{self._server} serves {gvk.api_version}, but no {gvk.kind} in it{hint}")

    def known(self, gvk: GroupVersionKind) -> Resource | None:
        """The resource of a kind that was found before and not forgotten; None for any other. No request."""
        return self._known.get(gvk)

    def known_plural(self, group: str, version: str, plural: str) -> Resource | None:
        """A discovered resource by its name in URL paths; None if it is not known. From any thread."""
        return next(
            (
                each
                for gvk, each in tuple(self._known.items())
                if (gvk.group, gvk.version, each.plural) == (group, version, plural)
            ),
            None,
        )

    async def find_resource(self, name: str) -> Resource:
        """The resource of a name, which may be plural, singular or short, as for kubectl.

        A name without a group is of the core group, or else of the first group of the server that has it.
        Without a version, the server's preferred version is used. Raises NotFound, with a sentence, while the
        server does not serve it, and UsageError for a text that is no name.
        """
        wanted = ResourceName.parse(name)
        others: list[str] = []
        async for group, version in self._places(wanted):
            try:
                entries = await self._entries(group, version)
            except NotFound:
                continue
            except ApiError:
                # One aggregated API that does not answer hides no resource of the others.
                if group == wanted.group:
                    raise
                continue
            for entry in _main(entries):
                if wanted.resource in _names(entry):
                    gvk = GroupVersionKind(group, version, entry.kind)
                    return self._known.setdefault(gvk, _resource(gvk, entry, entries))
            others += [entry.name for entry in _main(entries)]
        near = _near(wanted.resource, others)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise self._missing(f"{self._server} serves no {wanted}{hint}")

    async def served(self) -> Sequence[Resource]:
        """All resources of the server, each in the version that the server prefers, by group and name.

        Without those of groups that do not answer, such as an API service that is away. Raises ApiError if
        the groups are not known.
        """
        found: list[Resource] = []
        for name, version in sorted([("", "v1"), *await self._preferred()]):
            try:
                entries = await self._entries(name, version)
            except ApiError:
                continue
            found += [
                _resource(GroupVersionKind(name, version, entry.kind), entry, entries)
                for entry in _main(entries)
            ]
        return found

    def forget(self, gvk: GroupVersionKind) -> None:
        """Request the kind again when it is needed next; no effect for an unknown kind."""
        self._known.pop(gvk, None)

    async def _find_preferred(self, gvk: GroupVersionKind) -> Resource:
        async for version in self._versions(ResourceName(gvk.group, None, gvk.kind)):
            try:
                return await self.find(GroupVersionKind(gvk.group, version, gvk.kind))
            except NotFound:
                continue
        group = f"the group {gvk.group}" if gvk.group else "the core group"
        raise self._missing(f"{self._server} serves no {gvk.kind} in {group}")

    async def _places(self, wanted: ResourceName) -> AsyncIterator[tuple[str, str]]:
        """The groups and versions in which to search for a name."""
        async for version in self._versions(wanted):
            yield wanted.group, version
        if wanted.group or wanted.version is not None:
            return
        try:
            preferred = await self._preferred()
        except NotFound:  # a server with the core group alone
            return
        for each in preferred:
            yield each

    async def _preferred(self) -> Sequence[tuple[str, str]]:
        """The groups of the server but for the core group, each with the version that it prefers."""
        listed = await self._document("/apis", _ApiGroupList)
        return [
            (group.name, group.preferredVersion.version)
            for group in listed.groups or ()
            if group.name and group.preferredVersion is not None and group.preferredVersion.version
        ]

    async def _versions(self, wanted: ResourceName) -> AsyncIterator[str]:
        """The versions of the group in which to search, the preferred one first."""
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
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        try:
            listed = await self._document(path, _ApiResourceList)
        except ServerError as fault:
            if group and fault.code == _UNAVAILABLE and await self._answers():
                raise GroupUnavailable(
                    fault.code,
                    fault.reason,
                    f"the API service of {group}/{version} does not answer {self._server}: {fault.message}",
                ) from fault
            raise
        return listed.resources or ()

    async def _answers(self) -> bool:
        """Whether the server itself answers."""
        try:
            await self._get("/version")
        except (Unreachable, ServerError, MalformedAnswer):
            return False
        except ApiError:
            pass  # a refusal is an answer
        return True

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
    # Limited, because a server may have many and long names: a comparison costs the product of both lengths.
    candidates = [name for name in names[:_MOST_CANDIDATES] if len(name) <= _LONGEST_NAME]
    return difflib.get_close_matches(word[:_LONGEST_NAME], candidates, n=1)


def _main(entries: Sequence[_ApiResource]) -> list[_ApiResource]:
    """Without subresources, such as pods/log, which may have the kind of a resource."""
    return [entry for entry in entries if "/" not in entry.name]


def _names(entry: _ApiResource) -> set[str]:
    return {entry.name, entry.singularName or "", *(entry.shortNames or ())}


def _resource(gvk: GroupVersionKind, entry: _ApiResource, entries: Sequence[_ApiResource]) -> Resource:
    prefix = f"{entry.name}/"
    return Resource(
        gvk=gvk,
        plural=entry.name,
        namespaced=bool(entry.namespaced),
        verbs=frozenset(entry.verbs or ()),
        subresources=frozenset(
            other.name.removeprefix(prefix) for other in entries if other.name.startswith(prefix)
        ),
    )
