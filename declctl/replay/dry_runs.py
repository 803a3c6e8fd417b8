"""Answers to requests that a recording does not have: of a sandbox that has the objects of the tape."""

from collections.abc import Mapping
from typing import cast

from declctl.objects import KubeObject, RequestSender
from declctl.objects.api_path import ApiPath, parse_api_path
from declctl.replay.server import TapeServer
from declctl.runtime.recording import SentRequest
from declctl.sandbox import Sandbox


class DryRuns:
    """Lets a sandbox check requests, as of the present moment of the tape. It stores nothing.

    Used on the machinery loop. `sandbox` and `sender`, which sends to it, are set before the first request.
    """

    sandbox: Sandbox
    sender: RequestSender

    def __init__(self, server: TapeServer) -> None:
        self._server = server
        # Versions in the sandbox, by group, plural and key; empty for an object that is gone.
        self._versions: dict[tuple[str, str, str], str] = {}

    async def answer(self, request: SentRequest) -> KubeObject:
        """The answer to a request. Raises ApiError.

        Versions are not checked: those of the sandbox are other ones, and the objects are as code sees them.
        """
        about = parse_api_path(request.path)
        if about is not None:
            self._mirror(about)
        if request.method == "GET":
            return await self._sent(request, request.params)
        body = request.body
        if isinstance(body, dict) and isinstance(metadata := cast("KubeObject", body).get("metadata"), dict):
            kept = {name: each for name, each in metadata.items() if name != "resourceVersion"}
            request = request._replace(body={**body, "metadata": kept})
        return await self._sent(request, {**request.params, "dryRun": "All"})

    def keep_status(self, path: str, status: object) -> None:
        """Let an object have the status that a call has written otherwise than then; None: that of then."""
        about = parse_api_path(path)
        if about is not None and about.subresource == "status":
            of = about.group, about.plural, str(about.key)
            self._server.keep_status(*of, status)
            self._versions.pop(of, None)

    async def _sent(self, request: SentRequest, params: Mapping[str, str]) -> KubeObject:
        return await self.sender.request_json(
            request.method, request.path, params=params, body=request.body, content_type=request.content_type
        )

    def _mirror(self, about: ApiPath) -> None:
        """Let the sandbox have the objects of the tape that a request is about."""
        store, resource = self.sandbox.store, (about.group, about.plural)
        if about.namespace:
            store.ensure_namespace(about.namespace)
        if about.name:
            found = self._server.find(*resource, str(about.key))
            there = {str(about.key): found}
        else:
            known = [key for group, plural, key in self._versions if (group, plural) == resource]
            there = {**dict.fromkeys(known), **self._server.all_of(*resource)}
        for key, obj in there.items():
            version = "" if obj is None else str(obj["metadata"].get("resourceVersion"))
            if self._versions.get((*resource, key), "") == version:
                continue
            self._versions[*resource, key] = version
            if obj is not None:
                store.history.put(resource, obj)
            elif store.history.get(resource, key) is not None:
                store.history.drop(resource, key)
