"""Reads of the live cache. They run in threads: listing a large cache must not hold up the machinery."""

import asyncio
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from declctl.admin.answers import answer, refusal
from declctl.admin.controlled import Controlled, Reading
from declctl.errors import MalformedAnswer
from declctl.objects import FieldSelector, ObjectKey, ObjectView


class CacheReads:
    """`/cache` and `/index`."""

    def __init__(self, runtime: Controlled) -> None:
        self._runtime = runtime

    async def keys(self, request: web.Request) -> web.StreamResponse:
        """The keys of a resource, of `?namespace=`, `?labelSelector=` and `?fieldSelector=` as far as given.

        Fields are those of the object as it is cached.
        """
        name = request.match_info["resource"]
        lister = self._runtime.lister(name)
        if lister is None:
            return self._no_resource(name)
        namespace, labels = request.query.get("namespace"), request.query.get("labelSelector")
        try:
            fields = FieldSelector.parse(request.query.get("fieldSelector", ""))
        except ValueError as error:
            return refusal(400, f"fieldSelector: {error}")
        try:
            found = await asyncio.to_thread(_keys, lister, namespace, labels, fields)
        except ValueError as error:  # the selector
            return refusal(400, f"labelSelector: {error}")
        return answer({"resource": name, "count": len(found), "keys": found})

    async def one(self, request: web.Request) -> web.StreamResponse:
        """The object of a key, as it is in the cache."""
        name, key = request.match_info["resource"], request.match_info["key"]
        lister = self._runtime.lister(name)
        if lister is None:
            return self._no_resource(name)
        found = await asyncio.to_thread(_object, lister, key)
        if found is None:
            return refusal(404, f"The cache of {name} has no {key}; a key is namespace/name, or name.")
        return answer(found)

    async def index(self, request: web.Request) -> web.StreamResponse:
        """The keys under a value of an index; without a value, the values that there are."""
        name, index, value = (request.match_info[part] for part in ("resource", "index", "value"))
        lister = self._runtime.lister(name)
        if lister is None:
            return self._no_resource(name)
        head = {"resource": name, "index": index}
        if not value:
            return answer({**head, "values": await asyncio.to_thread(_values, lister, index)})
        found = await asyncio.to_thread(_indexed, lister, index, value)
        return answer({**head, "value": value, "count": len(found), "keys": found})

    def _no_resource(self, name: str) -> web.Response:
        known = ", ".join(resource.name for resource in self._runtime.status().resources)
        return refusal(404, f"No resource is named {name}; the manifest declares {known or 'none'}.")


def _keys(lister: Reading, namespace: str | None, labels: str | None, fields: FieldSelector) -> list[str]:
    if namespace is None and labels is None and not fields.conditions:
        return _sorted(lister.keys())
    views = lister.list(namespace=namespace, selector=labels)
    return _sorted(view.key for view in views if _has(view, fields))


def _has(view: ObjectView, fields: FieldSelector) -> bool:
    if not fields.conditions:
        return True  # nothing is decoded
    try:
        return fields.matches(view)
    except MalformedAnswer:  # it says nothing of its fields
        return False


def _object(lister: Reading, key: str) -> dict[str, Any] | None:
    found = lister.get(key)
    return None if found is None else found.to_dict()


def _values(lister: Reading, index: str) -> list[str]:
    return sorted(lister.index_values(index))


def _indexed(lister: Reading, index: str, value: str) -> list[str]:
    return _sorted(view.key for view in lister.by_index(index, value))


def _sorted(keys: Iterable[ObjectKey]) -> list[str]:
    return sorted(str(key) for key in keys)
