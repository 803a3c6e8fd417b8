"""Sets of children beside others, restarts and caches that lag: what is left out is never missing.

The sandbox is the server. A cache shows children as they were when it was synchronised last.
"""

import asyncio
import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.decoding import Projection
from declctl.errors import ApiError, ServerError
from declctl.kit import ManualClock
from declctl.objects import GroupVersionKind, KubeObject, ObjectView, Resource
from declctl.objects.answers import status_error
from declctl.sandbox import SandboxThread
from declctl.writes import CallScope, ChildCache, DeclaredWrites, WriteLedger, WriterFactory, documents_of

KIND = GroupVersionKind.of("v1", "ConfigMap")
RESOURCE = Resource(KIND, "configmaps", True)
PATH = "/api/v1/namespaces/default/configmaps"
NAMES, VALUES = ("a", "b", "c"), ("1", "2")
SET = st.dictionaries(st.sampled_from(NAMES), st.dictionaries(st.sampled_from("xy"), st.sampled_from(VALUES)))
EDIT = st.tuples(st.sampled_from(["edit", "apply", "take"]), st.sampled_from(NAMES), st.sampled_from(VALUES))
STEPS = st.one_of(
    st.tuples(st.just("call"), SET),
    st.tuples(st.sampled_from(["call again", "restart", "lose marks"])),
    st.tuples(st.sampled_from(["synchronise", "delete"]), st.sampled_from(NAMES)),
    st.tuples(st.sampled_from(["lost", "error"]), st.integers(0, 4)),
    EDIT,
)


class World:
    """One owner, its handler, a cache of its children, and others who write them."""

    def __init__(self, http: HTTPConnection, *, watches: bool) -> None:
        self.http = http
        self.cached: dict[str, ObjectView] = {}
        self.wanted: dict[str, dict[str, str]] = {}
        self.faults: list[str] = []  # of the next requests
        self.has_synced = True
        self.declared = DeclaredWrites((KIND,), children=(ChildCache(KIND, self),) if watches else ())
        for item in self.ask("GET", PATH)["items"]:
            self.ask("DELETE", f"{PATH}/{item['metadata']['name']}")
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
        self.ask("POST", PATH, owner)
        self.restart()

    def ask(self, method: str, path: str, body: Any = None, media: str = "application/json") -> KubeObject:
        self.http.request(method, path, None if body is None else json.dumps(body), {"Content-Type": media})
        answer = self.http.getresponse()
        found = json.loads(answer.read())
        if answer.status >= 400:
            raise status_error(found)
        return found

    async def request_json(self, method: str, path: str, *, params: Any = (), **more: Any) -> KubeObject:
        """A request of the handler."""
        fault = self.faults.pop(0) if self.faults else ""
        if fault != "error":
            media = more.get("content_type", "application/json")
            answer = self.ask(method, f"{path}?{urlencode(dict(params))}", more.get("body"), media)
            if not fault:
                return answer
        raise ServerError(500, "InternalError", fault)

    def get(self, key: str) -> ObjectView | None:
        return self.cached.get(key)

    def list(self, *, namespace: str | None = None, selector: str = "") -> Any:
        label, _, value = selector.partition("=")
        return [each for each in self.cached.values() if each.labels.get(label) == value]

    def view(self, name: str) -> ObjectView | None:
        try:
            found = self.ask("GET", f"{PATH}/{name}")
        except ApiError:
            return None
        projection = Projection(api_version="v1", kind="ConfigMap", drop_fields=())
        record = projection.record(json.dumps(found).encode())
        return None if record is None else ObjectView(record)

    def synchronise(self, name: str) -> None:
        view = self.view(name)
        self.cached.pop(f"default/{name}", None)
        if view is not None:
            self.cached[view.key] = view

    def restart(self) -> None:
        """A new process begins with a list."""
        for name in NAMES:
            self.synchronise(name)
        self.ledger = WriteLedger()
        factory = WriterFactory(
            self,
            self.ledger,
            controller="guard",
            discover=lambda kind: asyncio.sleep(0, RESOURCE),
            forget=lambda kind: None,
            version="1",
            clock=ManualClock(),
        )
        factory.limit(0, 0)
        self.writer = factory.writer("web", 1, declared=self.declared)

    def call(self) -> None:
        """Call the handler."""
        owner = self.view("owner")
        assert owner is not None
        children = [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
            for name, data in self.wanted.items()
        ]
        asyncio.run(self.writer.apply_set(owner, documents_of(children), CallScope(owner.key, owner)))

    def other(self, how: str, name: str, value: str) -> None:
        """Somebody else changes a child, applies the same field, or takes all that it has."""
        media = {"edit": "merge-patch+json"}.get(how, "apply-patch+yaml")
        body: KubeObject = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"x": value}}
        live = self.view(name)
        if live is not None and how == "take":
            body["data"] = dict(live.get("data") or {})
        if live is not None:
            self.ask("PATCH", f"{PATH}/{name}?fieldManager=other&force=true", body, f"application/{media}")

    def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("lost" | "error" as fault, int(after)):
                self.faults = [""] * after + [fault]
                return
            case ("call", wanted):
                self.wanted = wanted
            case ("restart",):
                self.restart()
            case ("synchronise", name):
                self.synchronise(name)
            case ("delete", name):
                if self.view(name) is not None:
                    self.ask("DELETE", f"{PATH}/{name}")
            case ("lose marks",) if self.declared.children:  # others are known by a child that is there
                marks = {"metadata": {"annotations": None, "labels": None}}
                self.ask("PATCH", f"{PATH}/owner", marks, "application/merge-patch+json")
            case (how, name, value):
                self.other(how, name, value)
            case _:
                pass
        if step[0].startswith("call"):
            try:
                self.call()
            except ServerError:
                pass
            self.faults = []


@pytest.fixture(scope="module")
def http() -> Iterator[HTTPConnection]:
    """A connection to a server."""
    with SandboxThread() as sandbox:
        yield HTTPConnection(urlsplit(sandbox.url).netloc)


@given(steps=st.lists(STEPS, max_size=12), watches=st.booleans(), last=SET)
def test_each_child_is_as_it_would_be_by_applies(
    http: HTTPConnection, steps: list[tuple[Any, ...]], watches: bool, last: Any
) -> None:
    """When the cache has caught up, one call leaves what an apply of each child would leave, and no other."""
    world = World(http, watches=watches)
    for step in steps:
        world.do(step)
    world.wanted, world.faults = last, []
    for name in NAMES:
        world.synchronise(name)
    world.call()
    owner = world.view("owner")
    assert owner is not None
    members = world.ask("GET", f"{PATH}?labelSelector=applyset.kubernetes.io/part-of")["items"]
    found = {each["metadata"]["name"]: each["metadata"] for each in members}
    assert found.keys() == last.keys()
    for name, data in last.items():
        (reference,) = [each for each in found[name]["ownerReferences"] if each["uid"] == owner.uid]
        metadata = {"name": name, "labels": found[name]["labels"], "ownerReferences": [reference]}
        child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        path = f"{PATH}/{name}?fieldManager={quote('declctl/guard/web', safe='')}&force=true"
        after = world.ask("PATCH", path, child, "application/apply-patch+yaml")
        assert after["metadata"]["resourceVersion"] == found[name]["resourceVersion"], (after, found[name])
