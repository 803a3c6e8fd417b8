"""Requests of tests to the API server of a cluster, and the definitions that they need there."""

import time
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec

from declctl.errors import NotFound, UsageError
from declctl.kit import LoopThread
from declctl.manifest.controller_test import defined_kinds
from declctl.manifest.values import value_at
from declctl.objects import GroupVersionKind, KubeObject, Resource
from declctl.transport import Client

T = TypeVar("T")
DEFINITION: Final = "CustomResourceDefinition"
LOOK_SECONDS: Final = 0.1  # between two looks at what has to come
_DEFINITIONS: Final = GroupVersionKind("apiextensions.k8s.io", "v1", DEFINITION)
_ANSWER_SECONDS: Final = 60.0  # for one request, with its login
_SERVED_SECONDS: Final = 30.0  # until a definition is served, or is gone
_NO_PARAMS: Final[Mapping[str, str]] = MappingProxyType({})


class ClusterChoice(msgspec.Struct, frozen=True):
    """The cluster of a command line, and how long each step is waited for there, in seconds."""

    kubeconfig: str | None = None
    context: str | None = None
    timeout: float = 30.0


class BlockingClient:
    """A client with a loop of its own. Methods block, and raise the ApiError family."""

    def __init__(self, cluster: ClusterChoice) -> None:
        self._cluster = cluster
        self._loop = LoopThread("declctl-test")
        self._client: Client | None = None
        self._defined: list[str] = []  # the names of definitions that were created here

    def request(
        self,
        method: str,
        path: str,
        body: KubeObject | None = None,
        content_type: str = "application/json",
        params: Mapping[str, str] = _NO_PARAMS,
    ) -> KubeObject:
        """One request; the JSON object of the answer."""
        work = self.client.request_json(method, path, body=body, content_type=content_type, params=params)
        return self._on_loop(work)

    def resource(self, kind: GroupVersionKind) -> Resource:
        """A kind as the server serves it. Raises NotFound."""
        return self._on_loop(self.client.discover(kind))

    def define(self, definition: KubeObject) -> None:
        """Create a definition that is missing, and wait until its kinds are served."""
        name = str(value_at(definition, "metadata", "name"))
        if (there := self._definition(name)) is not None and value_at(there, "metadata", "deletionTimestamp"):
            self._wait_until_gone(name)  # it was removed by another run
            there = None
        if there is None:
            self.request("POST", self.resource(_DEFINITIONS).path(), definition)
            self._defined.append(name)
        for kind in defined_kinds([definition]):
            self._wait_until_served(kind)

    def remove_definitions(self) -> None:
        """Remove the definitions that were created here, with all of their objects."""
        names, self._defined = self._defined, []
        for name in names:
            with suppress(NotFound):
                self.request("DELETE", self.resource(_DEFINITIONS).path(None, name))
        for name in names:
            self._wait_until_gone(name)

    @property
    def client(self) -> Client:
        """The client; used on its loop."""
        assert self._client is not None, "it is entered before it is used"
        return self._client

    def __enter__(self) -> Self:
        """Connect. Raises UsageError if no cluster is configured."""
        self._loop.start()
        chosen = self._cluster
        try:
            self._client = self._on_loop(Client.connect(kubeconfig=chosen.kubeconfig, context=chosen.context))
        except BaseException:
            self._loop.stop(_ANSWER_SECONDS)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.remove_definitions()
        finally:
            self._on_loop(self.client.close())
            self._loop.stop(_ANSWER_SECONDS)

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.submit(work).result(_ANSWER_SECONDS)
        except NotInTime:
            raise UsageError(f"the cluster has not answered within {_ANSWER_SECONDS:g} s") from None

    def _definition(self, name: str) -> KubeObject | None:
        with suppress(NotFound):
            return self.request("GET", self.resource(_DEFINITIONS).path(None, name))
        return None

    def _wait_until_gone(self, name: str) -> None:
        until = time.monotonic() + _SERVED_SECONDS
        while self._definition(name) is not None and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)

    def _wait_until_served(self, kind: GroupVersionKind) -> None:
        until = time.monotonic() + _SERVED_SECONDS
        while True:
            try:
                # It may be in discovery before it takes requests.
                self.request("GET", self.resource(kind).path(), params={"limit": "1"})
                return
            except NotFound:
                if time.monotonic() > until:
                    raise
            time.sleep(LOOK_SECONDS)


class DefinedOnCluster:
    """Definitions on a cluster from enter to exit: those that are missing are created, and removed again."""

    def __init__(self, cluster: ClusterChoice, definitions: Iterable[KubeObject]) -> None:
        self._access = BlockingClient(cluster)
        self._definitions = list(definitions)

    def __enter__(self) -> Self:
        self._access.__enter__()
        try:
            for each in self._definitions:
                self._access.define(each)
        except BaseException:
            self._access.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._access.__exit__(kind, error, trace)
