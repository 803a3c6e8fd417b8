"""Sets of children beside others, restarts, failures and caches that lag: no write is missing."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declctl.decoding import Projection
from declctl.errors import NotFound, ServerError
from declctl.kit import ManualClock
from declctl.objects import GroupVersionKind, ObjectView, Resource
from declctl.objects.answers import status_error
from declctl.sandbox import SandboxThread
from declctl.writes import CallScope, ChildCache, DeclaredWrites, WriteLedger, WriterFactory, documents_of

KIND = GroupVersionKind.of("v1", "ConfigMap")
PATH = "/api/v1/namespaces/default/configmaps"
MEMBERS = f"{PATH}?labelSelector=applyset.kubernetes.io/part-of"
MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"
NAME, VALUE = st.sampled_from("abc"), st.sampled_from("12")
SET = st.dictionaries(NAME, st.dictionaries(st.sampled_from("xy"), VALUE))
STEPS = st.one_of(
    st.tuples(st.just("call"), SET),
    st.tuples(st.sampled_from(["restart", "lose marks"])),
    st.tuples(st.sampled_from(["synchronise", "delete"]), NAME),
    st.tuples(st.sampled_from(["lost", "error"]), st.integers(0, 4)),
    st.tuples(st.sampled_from(["edit", "apply", "take"]), NAME, VALUE),  # by somebody else
)


def config_map(name: str, data: Any, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data}


class World:
    """An owner, its handler, and a cache that has children as they were when it was synchronised last."""

    has_synced = True

    def __init__(self, http: HTTPConnection, *, watches: bool) -> None:
        self.http, self.watches = http, watches
        self.cached: dict[str, ObjectView] = {}
        self.wanted: dict[str, dict[str, str]] = {}
        self.faults: list[str] = []  # of the next requests of the handler
        for item in self.ask("GET", PATH)["items"]:
            self.ask("DELETE", f"{PATH}/{item['metadata']['name']}")
        self.ask("POST", PATH, config_map("owner", {}))
        self.restart()

    def ask(self, method: str, path: str, body: Any = None, media: str = "application/json") -> Any:
        self.http.request(method, path, None if body is None else json.dumps(body), {"Content-Type": media})
        answer = self.http.getresponse()
        found = json.loads(answer.read())
        if answer.status >= 400:
            raise status_error(found)
        return found

    async def request_json(self, method: str, path: str, *, params: Any = (), **more: Any) -> Any:
        """A request of the handler, which may fail before or after it is done."""
        fault = self.faults.pop(0) if self.faults else ""
        media = more.get("content_type", "application/json")
        if fault != "error":
            answer = self.ask(method, f"{path}?{urlencode(dict(params))}", more.get("body"), media)
        if fault:
            raise ServerError(500, "InternalError", fault)
        return answer

    def get(self, key: str) -> ObjectView | None:
        return self.cached.get(key)

    def list(self, *, namespace: str | None = None, selector: str = "") -> Any:
        label, _, value = selector.partition("=")
        return [each for each in self.cached.values() if each.labels.get(label) == value]

    def view(self, name: str) -> ObjectView:
        found = json.dumps(self.ask("GET", f"{PATH}/{name}")).encode()
        record = Projection(api_version="v1", kind="ConfigMap", drop_fields=()).record(found)
        assert record is not None
        return ObjectView(record)

    def synchronise(self, name: str) -> None:
        self.cached.pop(f"default/{name}", None)
        with suppress(NotFound):
            self.cached[f"default/{name}"] = self.view(name)

    def restart(self) -> None:
        """A new process begins with a list."""
        for name in "abc":
            self.synchronise(name)
        factory = WriterFactory(
            self,
            WriteLedger(),
            controller="guard",
            discover=lambda kind: asyncio.sleep(0, Resource(kind, "configmaps", True)),
            forget=lambda kind: None,
            version="1",
            clock=ManualClock(),
        )
        factory.budget.limit(0, 0)
        children = (ChildCache(KIND, self),) if self.watches else ()
        self.writer = factory.writer("web", 1, declared=DeclaredWrites((KIND,), children=children))

    def call(self) -> None:
        owner, documents = self.view("owner"), [config_map(*each) for each in self.wanted.items()]
        asyncio.run(self.writer.apply_set(owner, documents_of(documents), CallScope(owner.key, owner)))

    def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("call", wanted):
                self.wanted = wanted
                with suppress(ServerError):
                    self.call()
                self.faults = []
            case ("lost" | "error" as fault, int(after)):
                self.faults = [""] * after + [fault]
            case ("restart",):
                self.restart()
            case ("synchronise", name):
                self.synchronise(name)
            case ("delete", name):
                self.ask("DELETE", f"{PATH}/{name}")
            case ("lose marks",) if self.watches:  # others are known by a child that is there
                marks = {"metadata": {"annotations": None, "labels": None}}
                self.ask("PATCH", f"{PATH}/owner", marks, MERGE)
            case (how, name, value):
                data = dict(self.view(name)["data"] or {}) if how == "take" else {"x": value}
                media = MERGE if how == "edit" else APPLY
                path = f"{PATH}/{name}?fieldManager=other&force=true"
                self.ask("PATCH", path, config_map(name, data), media)
            case _:
                pass


@pytest.fixture(scope="module")
def http() -> Iterator[HTTPConnection]:
    """A connection to a server."""
    with SandboxThread() as sandbox:
        yield HTTPConnection(urlsplit(sandbox.url).netloc)


@given(st.lists(STEPS, max_size=12), st.booleans(), SET)
@settings(max_examples=50)
def test_each_child_is_as_an_apply_would_leave_it(
    http: HTTPConnection, steps: list[tuple[Any, ...]], watches: bool, last: dict[str, Any]
) -> None:
    """When the cache has caught up, one call is enough: then a real apply of each child changes nothing."""
    world = World(http, watches=watches)
    for step in steps:
        with suppress(NotFound, KeyError):  # the child is not there, or has no data
            world.do(step)
    for name in "abc":
        world.synchronise(name)
    world.wanted, world.faults = last, []
    world.call()
    found = {each["metadata"]["name"]: each["metadata"] for each in world.ask("GET", MEMBERS)["items"]}
    assert found.keys() == last.keys()
    uid = world.view("owner").uid
    for name, data in last.items():
        owners = [each for each in found[name]["ownerReferences"] if each["uid"] == uid]
        child = config_map(name, data, labels=found[name]["labels"], ownerReferences=owners)
        query = urlencode({"fieldManager": "declctl/guard/web", "force": "true"})
        after = world.ask("PATCH", f"{PATH}/{name}?{query}", child, APPLY)
        assert after["metadata"]["resourceVersion"] == found[name]["resourceVersion"], (after, found[name])
