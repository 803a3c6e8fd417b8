"""The informer factory of the library, over an API server."""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from clusters import Cluster, new_namespace

from declctl.informer import ResourceEventHandlerFuncs, Selection
from declctl.runtime.library import SharedInformerFactory
from declctl.transport import Client

_SECONDS = 20


def _map(name: str, namespace: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"size": "1"}}


class Told:
    """What handlers were told, as `add a`."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = asyncio.Event()

    def handler(self) -> ResourceEventHandlerFuncs:
        async def add(obj: Any, initial: bool) -> None:
            self.tell("add", obj)

        async def update(old: Any, new: Any) -> None:
            self.tell("update", new)

        async def delete(obj: Any) -> None:
            self.tell("delete", obj)

        return ResourceEventHandlerFuncs(add, update, delete)

    def tell(self, what: str, obj: Any) -> None:
        # Every namespace of a real cluster has a ConfigMap of its own.
        if obj.name != "kube-root-ca.crt":
            self.lines.append(f"{what} {obj.name}")
            self._changed.set()

    async def until(self, line: str) -> None:
        while line not in self.lines:
            self._changed.clear()
            await self._changed.wait()


def _run(cluster: Cluster, scenario: Callable[[Client], Any]) -> Any:
    async def go() -> Any:
        client = await Client.from_kubeconfig_dict(yaml.safe_load(cluster.kubeconfig.read_text("utf-8")))
        try:
            async with asyncio.timeout(_SECONDS):
                return await scenario(client)
        finally:
            await client.close()

    return asyncio.run(go())


def _change(cluster: Cluster, verb: str, *arguments: Any) -> Any:
    return asyncio.to_thread(getattr(cluster.rest, verb), *arguments)


@pytest.mark.client_go(229, "Dynamic factory")
def test_a_factory_of_a_namespace_hears_nothing_of_others(cluster: Cluster, namespace: str) -> None:
    """What is there and what happens in another namespace is not delivered; in its own it is."""
    other = new_namespace(cluster)
    cluster.rest.create(_map("there", namespace))
    cluster.rest.create(_map("elsewhere", other))
    told = Told()

    async def scenario(client: Client) -> list[str]:
        async with SharedInformerFactory(client, namespace=namespace) as factory:
            maps = await factory.for_resource("configmaps")
            maps.add_event_handler(told.handler())
            await factory.wait_for_cache_sync()
            await _change(cluster, "create", _map("elsewhere-2", other))
            await _change(cluster, "create", _map("there-2", namespace))
            await told.until("add there-2")
            return [obj.name for obj in maps.lister.list() if obj.name != "kube-root-ca.crt"]

    assert sorted(_run(cluster, scenario)) == ["there", "there-2"]
    assert told.lines == ["add there", "add there-2"]


@pytest.mark.client_go(230, "Options", "Dynamic factory")
@pytest.mark.parametrize(
    ("label", "field"), [("team=a", ""), ("", "metadata.name=mine"), ("team=a", "metadata.name=mine")]
)
def test_a_tweak_reaches_lists_and_watches(cluster: Cluster, namespace: str, label: str, field: str) -> None:
    """Only what both selectors leave is delivered, of what is there and of what happens."""
    cluster.rest.create(_map("mine", namespace, team="a"))
    cluster.rest.create(_map("theirs", namespace, team="b"))
    told = Told()

    def ours(asked: Selection) -> Selection:
        return dataclasses.replace(asked, label_selector=label, field_selector=field)

    async def scenario(client: Client) -> None:
        async with SharedInformerFactory(client, namespace=namespace, tweak_list_options=ours) as factory:
            maps = await factory.for_resource("configmaps")
            maps.add_event_handler(told.handler())
            await factory.wait_for_cache_sync()
            await _change(cluster, "delete", "configmaps", "theirs", namespace)
            await _change(cluster, "delete", "configmaps", "mine", namespace)
            await told.until("delete mine")

    _run(cluster, scenario)
    assert told.lines == ["add mine", "delete mine"]


@pytest.mark.client_go("Metadata factory")
def test_metadata_informers_have_metadata_and_nothing_else(cluster: Cluster, namespace: str) -> None:
    """Lists and events bring PartialObjectMetadata, which is enough for labels and owners."""
    cluster.rest.create(_map("listed", namespace, team="a"))
    told = Told()

    async def scenario(client: Client) -> list[dict[str, Any]]:
        async with SharedInformerFactory(client, namespace=namespace) as factory:
            maps = factory.informer("v1", "ConfigMap", metadata_only=True, label_selector="team")
            maps.add_event_handler(told.handler())
            await factory.wait_for_cache_sync()
            await _change(cluster, "create", _map("told", namespace, team="b"))
            await told.until("add told")
            assert [obj.name for obj in maps.lister.list(selector="team=b")] == ["told"]
            return [obj.to_dict() for obj in maps.lister.list()]

    found = _run(cluster, scenario)
    assert sorted(obj["metadata"]["name"] for obj in found) == ["listed", "told"]
    for obj in found:
        assert obj["kind"] == "PartialObjectMetadata"
        assert obj["apiVersion"] == "meta.k8s.io/v1"
        assert "data" not in obj
