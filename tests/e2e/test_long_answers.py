"""Long lists over the wire: read while they come, plain and in gzip."""

import asyncio
import secrets
from typing import Any

import yaml
from clusters import Cluster

from declctl.decoding import Projection
from declctl.objects import FieldPath, ListOptions, ListPage
from declctl.objects.resource import GroupVersionKind
from declctl.transport import Client

_OBJECTS = 150
_SIZE = FieldPath.parse("data.size")


def _fill(cluster: Cluster, namespace: str) -> dict[str, Any]:
    data = {}
    for number in range(_OBJECTS):
        name = f"c{number:03}"
        metadata = {"name": name, "namespace": namespace}
        data[name] = {
            "size": str(number),
            "text": secrets.token_hex(2000),
            "odd": '},{"metadata":{ é 😀 \u2028',
        }
        cluster.rest.create(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data[name]}
        )
    return data


def _content(page: ListPage) -> dict[str, Any]:
    found = {record.object_key.name: record for record in page.records}
    found.pop("kube-root-ca.crt", None)  # a real cluster puts it into every namespace
    assert all(record.field(_SIZE) == (record.decode()["data"]["size"],) for record in found.values())
    return {name: record.decode()["data"] for name, record in found.items()}


def test_long_lists_are_read_whole_in_pages_and_in_gzip(cluster: Cluster, namespace: str) -> None:
    """However a list comes, it has the objects that are there; in gzip it is fewer bytes."""
    expected = _fill(cluster, namespace)
    config = yaml.safe_load(cluster.kubeconfig.read_text("utf-8"))

    async def size_of_list(*, disable_compression: bool) -> int:
        for each in config["clusters"]:
            each["cluster"]["disable-compression"] = disable_compression
        client = await Client.from_kubeconfig_dict(config)
        try:
            maps = client.source(
                GroupVersionKind.of("v1", "ConfigMap"),
                namespace=namespace,
                projection=Projection(api_version="v1", kind="ConfigMap", paths=[_SIZE]),
            )
            await maps.namespaced()
            before = client.statistics().bytes_in
            assert _content(await maps.list(ListOptions(resource_version="0"))) == expected
            size = client.statistics().bytes_in - before
            first = await maps.list(ListOptions(limit=100))
            second = await maps.list(ListOptions(limit=100, continue_token=first.continue_token))
            assert _content(first) | _content(second) == expected
            return size
        finally:
            await client.close()

    plain = asyncio.run(size_of_list(disable_compression=True))
    assert plain > 600_000
    assert asyncio.run(size_of_list(disable_compression=False)) < 0.7 * plain
