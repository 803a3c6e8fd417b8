"""Whole writes of a handler against the sandbox: what is stored in the end."""

import asyncio
from typing import Any

import pytest

from declctl import SharedInformerFactory
from declctl.errors import CrossNamespaceOwner, NotFound
from declctl.kit import SystemClock
from declctl.objects import GroupVersionKind
from declctl.sandbox import Sandbox
from declctl.transport import Client
from declctl.writes import (
    CallScope,
    DeclaredWrites,
    WriteLedger,
    WritePolicy,
    WriterFactory,
    document_of,
    documents_of,
    status_change,
)

CONFIG_MAP = GroupVersionKind.of("v1", "ConfigMap")


class Stage:
    """A sandbox with a Deployment, and the writer of one handler."""

    def __init__(self, client: Client, **policy: Any) -> None:
        self.client = client
        factory = WriterFactory(
            client,
            WriteLedger(),
            controller="demo",
            discover=client.discover,
            forget=client.forget,
            version="1",
            clock=SystemClock(),
            policy=WritePolicy(**policy),
        )
        self.writer = factory.writer("webapp", 1, declared=DeclaredWrites((CONFIG_MAP,)))

    async def parent(self) -> CallScope:
        async with SharedInformerFactory(self.client) as factory:
            deployments = factory.informer("apps/v1", "Deployment")
            await factory.wait_for_cache_sync()
            obj = deployments.lister.get("default/web")
        assert obj is not None
        return CallScope("default/web", obj, "id-1")

    async def names(self) -> list[str]:
        found = await self.client.request_json("GET", "/api/v1/namespaces/default/configmaps")
        return sorted(item["metadata"]["name"] for item in found["items"])

    async def get(self, path: str) -> dict[str, Any]:
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


def test_a_dry_run_writes_nothing():
    async def scene(stage: Stage):
        written = await stage.writer.apply(document_of(_config_map("one")), await stage.parent())
        assert written.dry_run
        with pytest.raises(NotFound):
            await stage.get("/api/v1/namespaces/default/configmaps/one")

    _play(scene, dry_run=True)
