"""An API server of a few lines that writes down requests, objects, and a writer with a clock of its own."""

import asyncio
import copy
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from declctl.decoding import Projection
from declctl.errors import Conflict, NotFound
from declctl.kit import ManualClock
from declctl.objects import GroupVersionKind, ObjectView, Resource
from declctl.testing import Logged
from declctl.writes import CallScope, HandlerWriter, WriteLedger, WritePolicy, WriterFactory

WEBAPP = GroupVersionKind.of("example.dev/v1", "WebApp")
RESOURCES = {
    kind.kind: Resource(kind, plural, namespaced, subresources=frozenset(below))
    for kind, plural, namespaced, below in (
        (WEBAPP, "webapps", True, ["status"]),
        (GroupVersionKind.of("example.dev/v1", "Fleet"), "fleets", False, ["status"]),
        (GroupVersionKind.of("apps/v1", "Deployment"), "deployments", True, ["status", "scale"]),
        (GroupVersionKind.of("v1", "ConfigMap"), "configmaps", True, []),
        (GroupVersionKind.of("autoscaling/v2", "HorizontalPodAutoscaler"), "autoscalers", True, []),
        (GroupVersionKind.of("rbac.authorization.k8s.io/v1", "ClusterRole"), "clusterroles", False, []),
    )
}


class FakeServer:
    """Answers each request from `errors` first, else with what `answers` has for its method and path.

    Other writes are answered with their body and a version that grows. What a GET finds is not created again.
    `requests` has method, path, parameters and body of each request, without the version that says so;
    `during` is called while a request is under way.
    """

    def __init__(self, *errors: Exception) -> None:
        self.errors: list[Exception | None] = list(errors)
        self.answers: dict[tuple[str, str], Any] = {}
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.content_types: list[str] = []
        self.during: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.version = 100

    async def request_json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] = {},
        body: Any = None,
        content_type: str = "",
        before_send: Callable[[], object] = lambda: None,
    ) -> Any:
        """One request."""
        before_send()
        body = copy.deepcopy(body)
        creates = method == "PATCH" and body.get("metadata", {}).get("resourceVersion") == str(2**63 - 1)
        if creates:
            del body["metadata"]["resourceVersion"]
        self.requests.append((method, path, dict(params), body))
        self.content_types.append(content_type)
        if self.during is not None:
            await self.during()
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        if creates and isinstance(self._there(path), dict):
            raise Conflict(409, "Conflict", "the object has been modified")
        answer = self._there(path) if method == "GET" else self.answers.get((method, path))
        if answer is not None:
            if isinstance(answer, Exception):
                raise answer
            return copy.deepcopy(answer)
        if method == "GET" and "labelSelector" in params:
            return {"items": []}
        if method == "GET":
            raise NotFound(404, "NotFound", f"{path} not found")
        self.version += 1
        answer = copy.deepcopy(body) or {}
        answer.setdefault("metadata", {}).update({"resourceVersion": str(self.version)})
        answer["metadata"].setdefault("uid", f"uid-of-{path.rpartition('/')[2]}")
        return answer

    def _there(self, path: str) -> Any:
        """The answer to a GET, also of an object that a list has."""
        holder, _, name = path.rpartition("/")
        listed = self.answers.get(("GET", holder), {})
        items = listed.get("items", ()) if isinstance(listed, dict) else ()
        one = next((each for each in items if each["metadata"]["name"] == name), None)
        return self.answers.get(("GET", path), one)

    def sent(self, *methods: str) -> list[tuple[str, str]]:
        return [(method, path) for method, path, _, _ in self.requests if not methods or method in methods]


class Scene:
    """A server, and the writers of a process that writes to it."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.server = FakeServer()
        self.ledger = WriteLedger()
        self.forgotten: list[GroupVersionKind] = []
        self.written: list[Any] = []
        self.leads = True
        self.cached = ""
        self.log = Logged()
        self.resources = dict(RESOURCES)

    def refusal(self) -> str:
        """Why a write is not sent."""
        return "" if self.leads else "this process does not lead"

    async def discover(self, kind: GroupVersionKind) -> Resource:
        """As a client: the kind in the version that is asked for, or NotFound."""
        if kind.kind not in self.resources:
            raise NotFound(404, "NotFound", f"no {kind.kind}")
        found = self.resources[kind.kind]
        return replace(found, gvk=kind) if kind.version else found

    def factory(self, *, dry_run: bool = False) -> WriterFactory:
        """The writers of a new process."""
        policy = WritePolicy(
            lambda _: self.refusal(),
            dry_run,
            lambda written, *_: self.written.append(written),
            cached_version=lambda kind, key: self.cached,
        )
        return WriterFactory(
            self.server,
            self.ledger,
            controller="guard",
            discover=self.discover,
            forget=self.forgotten.append,
            version="1.2.3",
            clock=self.clock,
            policy=policy,
            log=self.log,
        )

    def writer(self, handler: str = "web", **more: Any) -> HandlerWriter:
        """The writer of a handler of a new process."""
        return self.factory().writer(handler, 3, **more)

    def run(self, work: Coroutine[Any, Any, Any], *, seconds: float = 0.0) -> Any:
        """Run a write, while so many seconds pass."""

        async def scenario() -> Any:
            task = asyncio.ensure_future(work)
            await self.clock.settle()
            await self.clock.advance(seconds)
            return await task

        return asyncio.run(scenario())


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves when it is told to."""
    return ManualClock()


@pytest.fixture
def log() -> Logged:
    """A log that can be read."""
    return Logged()


@pytest.fixture
def scene(clock: ManualClock) -> Scene:
    """A server without objects."""
    return Scene(clock)


def make_view(
    name: str = "shop", *, kind: str = "WebApp", namespace: str | None = "team-a", **more: Any
) -> ObjectView:
    """An object as a handler receives it; `more` are its fields, and `metadata` is merged."""
    gvk = RESOURCES[kind].gvk
    metadata = {
        "name": name,
        **({"namespace": namespace} if namespace else {}),
        "uid": f"uid-{name}",
        "resourceVersion": "50",
        "generation": 7,
        **more.pop("metadata", {}),
    }
    body = {"apiVersion": gvk.api_version, "kind": kind, "metadata": metadata, **more}
    record = Projection(api_version=gvk.api_version, kind=kind).record(json.dumps(body).encode())
    assert record is not None
    return ObjectView(record)


@pytest.fixture(name="view")
def _view() -> Callable[..., ObjectView]:
    """Makes objects as handlers receive them."""
    return make_view


@pytest.fixture
def scope() -> Callable[..., CallScope]:
    """Makes the scope of a call about an object."""

    def make(obj: ObjectView | None = None, **more: Any) -> CallScope:
        obj = make_view() if obj is None else obj
        return CallScope(obj.key, obj, **more)

    return make
