"""The writes of handlers: the gate with a scripted server, and whole writes against the sandbox."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest

from declctl import SharedInformerFactory
from declctl.errors import (
    Conflict,
    CrossNamespaceOwner,
    Forbidden,
    InvalidWrite,
    NotFound,
    NotLeader,
    ServerError,
    TooManyRequests,
)
from declctl.kit import ManualClock, SystemClock
from declctl.objects import GroupVersionKind, ObjectKey, Resource
from declctl.sandbox import Sandbox
from declctl.testing import Logged
from declctl.transport import Client
from declctl.writes import (
    CallScope,
    DeclaredWrites,
    EventRecorder,
    EventText,
    WriteGate,
    WriteLedger,
    WriteOrigin,
    WritePolicy,
    WriterFactory,
    WriteVerb,
    document_of,
    documents_of,
    status_change,
)
from declctl.writes.apply import field_manager
from declctl.writes.gate import MOST_CONFLICTS, ApiWrite

CONFIG_MAPS = Resource(GroupVersionKind.of("v1", "ConfigMap"), "configmaps", True)
ORIGIN = WriteOrigin("webapp", 3, "id-1")
ANSWER = {"metadata": {"name": "one", "namespace": "default", "uid": "u", "resourceVersion": "7"}}


@dataclass
class Scripted:
    """A server that gives these answers, and keeps what it was sent."""

    answers: list[Any]
    sent: list[tuple[str, str, dict[str, str], str]] = field(default_factory=list)

    async def request_json(self, method, path, *, params=None, body=None, content_type="application/json"):
        """One request."""
        del body
        self.sent.append((method, path, dict(params or {}), content_type))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _apply(*, repeats=True) -> ApiWrite:
    return ApiWrite(
        WriteVerb.APPLY,
        CONFIG_MAPS,
        ObjectKey("default/one"),
        body={},
        manager="declctl/demo/webapp",
        repeats_conflict=repeats,
    )


def _send(server: Scripted, write: ApiWrite, **policy: Any):
    """The result of a write or its error, the ledger, and the seconds that it took."""
    clock, ledger = ManualClock(), WriteLedger()

    async def scene():
        gate = WriteGate(server, ledger, clock=clock, **policy)
        task = asyncio.ensure_future(gate.send(write, ORIGIN))
        began = clock.monotonic()
        while not task.done():
            await clock.advance(0.5)
        try:
            return await task, clock.monotonic() - began
        except Exception as error:
            return error, clock.monotonic() - began

    result, seconds = asyncio.run(scene())
    return result, ledger, seconds


def _totals(ledger: WriteLedger) -> dict[str, int]:
    return {total.result: total.count for total in ledger.totals()}


def test_an_apply_is_forced_under_the_manager_of_its_handler():
    """Server-side apply: one PATCH, whose result has the version that the server returned."""
    server = Scripted([ANSWER])
    written, ledger, _ = _send(server, _apply())
    params = {"fieldManager": "declctl/demo/webapp", "force": "true"}
    path = "/api/v1/namespaces/default/configmaps/one"
    assert server.sent == [("PATCH", path, params, "application/apply-patch+yaml")]
    assert (written.key, written.uid, written.resource_version) == ("default/one", "u", "7")
    (entry,) = ledger.of_object("default/one")
    assert (entry.origin, entry.result, entry.resource_version) == (ORIGIN, "succeeded", "7")


def test_a_throttled_write_waits_as_long_as_the_server_says():
    """429 with Retry-After is repeated and counted."""
    server = Scripted([TooManyRequests(429, "TooManyRequests", "slow", retry_after=3.0), ANSWER])
    written, ledger, seconds = _send(server, _apply())
    assert written.resource_version == "7"
    assert seconds >= 3.0
    assert ledger.retries() == {"too_many_requests": 1, "conflict": 0}


def test_a_429_without_a_time_is_raised():
    """The handler is retried with its own back-off, as client-go has none for that either."""
    error, ledger, _ = _send(Scripted([TooManyRequests(429, "TooManyRequests", "slow")]), _apply())
    assert isinstance(error, TooManyRequests)
    assert _totals(ledger) == {"throttled": 1}


def test_a_conflict_of_an_apply_is_repeated_for_a_bounded_number_of_times():
    """Its result does not depend on what somebody else wrote."""
    conflict = Conflict(409, "Conflict", "changed")
    written, ledger, _ = _send(Scripted([conflict, ANSWER]), _apply())
    assert written.resource_version == "7"
    assert ledger.retries()["conflict"] == 1
    server = Scripted([conflict] * 20)
    error, ledger, _ = _send(server, _apply())
    assert isinstance(error, Conflict)
    assert len(server.sent) == MOST_CONFLICTS + 1
    assert _totals(ledger) == {"conflict": 1}


def test_a_conflict_with_a_precondition_is_raised_at_once():
    """The object is not the one that the handler has seen."""
    server = Scripted([Conflict(409, "Conflict", "another uid")])
    error, _, _ = _send(server, _apply(repeats=False))
    assert isinstance(error, Conflict)
    assert len(server.sent) == 1


def test_a_fault_of_the_server_is_raised_and_counted():
    """The server may have stored the object: the handler is called again."""
    error, ledger, _ = _send(Scripted([ServerError(500, "InternalError", "oh")]), _apply())
    assert isinstance(error, ServerError)
    assert _totals(ledger) == {"failed": 1}


def test_who_does_not_lead_sends_nothing():
    """A named error, and an entry in the ledger."""
    server = Scripted([])
    error, ledger, _ = _send(server, _apply(), may_write=lambda: False)
    assert isinstance(error, NotLeader)
    assert (server.sent, _totals(ledger)) == ([], {"not_leader": 1})


def test_a_dry_run_lets_the_server_check_and_store_nothing():
    """The answer is kept, for a diff."""
    server = Scripted([ANSWER])
    written, ledger, _ = _send(server, _apply(), dry_run=True)
    assert server.sent[0][2]["dryRun"] == "All"
    assert written.dry_run
    assert ledger.dry_runs() == (written,)
    assert _totals(ledger) == {"dry_run": 1}


def test_a_missing_right_is_named_with_the_rule_that_gives_it():
    """The rule can be copied into a Role."""
    refusal = 'configmaps "one" is forbidden: User "me" cannot patch resource "configmaps" in API group ""'
    error, _, _ = _send(Scripted([Forbidden(403, "Forbidden", refusal)]), _apply())
    assert '{apiGroups: [""], resources: ["configmaps"], verbs: ["create", "patch"]}' in str(error)
    assert "a Role of the namespace default" in str(error)


def test_a_field_manager_is_stable_and_not_too_long():
    """At most 128 characters, which the API server accepts."""
    assert field_manager("demo", "webapp") == "declctl/demo/webapp"
    long = field_manager("demo", "w" * 300)
    assert len(long) == 128
    assert long == field_manager("demo", "w" * 300) != field_manager("demo", "w" * 301)


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        (3, "a int can't be applied"),
        ({"kind": "ConfigMap", "metadata": {"name": "a"}}, "apiVersion is missing"),
        ({"apiVersion": "v1", "kind": "ConfigMap"}, "without metadata"),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}, "metadata.name is missing"),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "a-"}}, "generateName"),
        (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": {1, 2}}},
            "at data.x",
        ),
    ],
)
def test_what_can_t_be_applied_is_said_before_anything_is_sent(obj, words):
    """With what to do, or with the place of the value."""
    with pytest.raises(InvalidWrite, match=words):
        document_of(obj)


class Stage:
    """A sandbox with a Deployment, and the writer of one handler."""

    def __init__(self, client: Client, **policy: Any) -> None:
        self.client, self.ledger = client, WriteLedger()
        factory = WriterFactory(
            client,
            self.ledger,
            controller="demo",
            discover=client.discover,
            forget=client.forget,
            version="1",
            clock=SystemClock(),
            policy=WritePolicy(**policy),
        )
        self.writer = factory.writer("webapp", 1, declared=DeclaredWrites((CONFIG_MAPS.gvk,)))
        self.other = factory.writer("other", 1, declared=DeclaredWrites((CONFIG_MAPS.gvk,)))

    async def parent(self) -> CallScope:
        """The call for the Deployment, in its present state."""
        async with SharedInformerFactory(self.client) as factory:
            deployments = factory.informer("apps/v1", "Deployment")
            await factory.wait_for_cache_sync()
            obj = deployments.lister.get("default/web")
        assert obj is not None
        return CallScope("default/web", obj, "id-1")

    async def names(self) -> list[str]:
        """The ConfigMaps of the namespace."""
        found = await self.client.request_json("GET", "/api/v1/namespaces/default/configmaps")
        return sorted(item["metadata"]["name"] for item in found["items"])

    async def get(self, path: str) -> dict[str, Any]:
        """One object."""
        return await self.client.request_json("GET", path)


def _play(scene, **policy: Any) -> None:
    async def play():
        async with Sandbox() as server:
            client = await Client.from_kubeconfig_dict(server.kubeconfig())
            try:
                deployment = {
                    "apiVersion": "apps/v1",
                    "kind": "Deployment",
                    "metadata": {"name": "web", "namespace": "default"},
                    "spec": {
                        "selector": {"matchLabels": {"app": "web"}},
                        "template": {
                            "metadata": {"labels": {"app": "web"}},
                            "spec": {"containers": [{"name": "web", "image": "web"}]},
                        },
                    },
                }
                path = "/apis/apps/v1/namespaces/default/deployments"
                await client.request_json("POST", path, body=deployment)
                await scene(Stage(client, **policy))
            finally:
                await client.close()

    asyncio.run(play())


def _config_map(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **more}, "data": {"a": "b"}}


def test_an_object_is_applied_into_the_namespace_of_the_call():
    """It is there afterwards, with the fields of the handler's manager."""

    async def scene(stage: Stage):
        written = await stage.writer.apply(document_of(_config_map("one")), await stage.parent())
        stored = await stage.get("/api/v1/namespaces/default/configmaps/one")
        assert stored["data"] == {"a": "b"}
        assert stored["metadata"]["resourceVersion"] == written.resource_version
        assert written.key == "default/one"

    _play(scene)


def test_a_set_deletes_what_is_not_in_it_any_more():
    """And nothing that somebody else has made, also under the same label."""

    async def scene(stage: Stage):
        scope = await stage.parent()
        assert scope.obj is not None
        documents = documents_of([_config_map("one"), _config_map("two")])
        first = await stage.writer.apply_set(scope.obj, documents, scope)
        assert [str(each.key) for each in first.applied] == ["default/one", "default/two"]
        child = await stage.get("/api/v1/namespaces/default/configmaps/one")
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["name"], owner["controller"]) == ("web", True)
        labels = child["metadata"]["labels"]
        foreign = _config_map("foreign", namespace="default", labels=labels)
        await stage.client.request_json("POST", "/api/v1/namespaces/default/configmaps", body=foreign)
        scope = await stage.parent()
        assert scope.obj is not None
        second = await stage.writer.apply_set(scope.obj, documents_of([_config_map("two")]), scope)
        assert [str(each.key) for each in second.pruned] == ["default/one"]
        assert await stage.names() == ["foreign", "two"]

    _play(scene)


def test_a_set_has_no_children_in_other_namespaces():
    """The garbage collector would delete them: nothing is written."""

    async def scene(stage: Stage):
        scope = await stage.parent()
        assert scope.obj is not None
        elsewhere = documents_of([_config_map("one"), _config_map("two", namespace="kube-system")])
        with pytest.raises(CrossNamespaceOwner):
            await stage.writer.apply_set(scope.obj, elsewhere, scope)
        assert await stage.names() == []

    _play(scene)


def test_an_unchanged_status_is_not_written():
    """The time of a transition moves only with the status; the second call sends nothing."""

    async def scene(stage: Stage):
        ready = {"type": "Ready", "status": True, "reason": "AllThere", "message": "one"}
        scope = await stage.parent()
        first = await stage.writer.patch_status(status_change(scope, [ready], {"replicas": 1}), scope)
        assert first.changed
        path = "/apis/apps/v1/namespaces/default/deployments/web"
        (condition,) = (await stage.get(path))["status"]["conditions"]
        assert (condition["type"], condition["status"]) == ("Ready", "True")
        assert condition["lastTransitionTime"]
        scope = await stage.parent()
        again = await stage.writer.patch_status(status_change(scope, [ready], {"replicas": 1}), scope)
        assert not again.changed
        assert again.resource_version == first.resource_version
        other = {**ready, "message": "two"}
        await stage.writer.patch_status(status_change(await stage.parent(), [other], {}), scope)
        (later,) = (await stage.get(path))["status"]["conditions"]
        assert (later["message"], later["lastTransitionTime"]) == ("two", condition["lastTransitionTime"])

    _play(scene)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ({"type": "Ready", "status": "Yes", "reason": "A"}, "True, False or Unknown"),
        ({"type": "Ready", "status": True, "reason": "not a word"}, "CamelCase"),
        ({"type": "Ready", "status": True, "reason": "A", "mesage": ""}, "did you mean message"),
    ],
)
def test_a_wrong_condition_is_refused_before_anything_is_sent(condition, words):
    """The API server would accept most of them, and no reader would understand them."""

    async def scene(stage: Stage):
        scope = await stage.parent()
        with pytest.raises(InvalidWrite, match=words):
            status_change(scope, [condition], {})

    _play(scene)


def test_a_dry_run_writes_nothing():
    """The server has checked the object."""

    async def scene(stage: Stage):
        written = await stage.writer.apply(document_of(_config_map("one")), await stage.parent())
        assert written.dry_run
        with pytest.raises(NotFound):
            await stage.get("/api/v1/namespaces/default/configmaps/one")

    _play(scene, dry_run=True)


def test_a_repeated_event_becomes_a_series():
    """The second one is a patch of the first, further ones are only counted (client-go 293)."""
    created = {"metadata": {"name": "web.1", "namespace": "default", "uid": "e", "resourceVersion": "1"}}
    server = Scripted([created, created, created])

    async def scene(stage: Stage):
        scope, clock = await stage.parent(), ManualClock()
        assert scope.obj is not None
        gate = WriteGate(server, WriteLedger(0), clock=clock)
        recorder = EventRecorder(gate, controller="demo", instance="pod", clock=clock, log=Logged())
        running = asyncio.ensure_future(recorder.run())
        for _ in range(4):
            recorder.record(scope.obj, EventText("Scaled", "to 3"), ORIGIN)
        for _ in range(20):
            await asyncio.sleep(0)
        assert [(method, path) for method, path, _, _ in server.sent] == [
            ("POST", "/apis/events.k8s.io/v1/namespaces/default/events"),
            ("PATCH", "/apis/events.k8s.io/v1/namespaces/default/events/web.1"),
        ]
        counts = recorder.statistics()
        assert (counts.posted, counts.repeated, counts.dropped) == (1, 3, 0)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    _play(scene)
