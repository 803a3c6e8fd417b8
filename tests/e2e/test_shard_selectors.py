"""Shard selectors as the API server serves them behind its feature gate, and ignores them without it.

What the real server does is of 1.36; the sandbox does the same.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

import pytest
from clusters import Cluster, definition_of, new_namespace, served
from rest import path

from declctl.objects.shards import Sharding, ShardKey
from tests.rooms.sandbox.shard_table import GOOD, REFUSED

_SHARDING = Sharding(3, ShardKey.UID)
_SELECTOR = _SHARDING.selector([0, 2], is_namespaced=True)
_STREAM = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
_NUMBER = 24


class Shards:
    """The objects of one kind in a namespace, some of which are in the shards that are asked for."""

    def __init__(self, cluster: Cluster, url: str, api_version: str, kind: str) -> None:
        self.cluster = cluster
        self.url = url
        self._head = {"apiVersion": api_version, "kind": kind}
        self.names: list[str] = []
        self.inside: set[str] = set()
        for number in range(_NUMBER):
            self._create(f"o{number:02}", {"odd": str(number % 2)})

    def _create(self, name: str, labels: dict[str, str]) -> None:
        obj = {**self._head, "metadata": {"name": name, "labels": labels}}
        if self._head["kind"] == "Event":
            where = self.url.split("/")[4]
            obj = {**obj, "involvedObject": {"namespace": where}, "reason": "Made", "type": "Normal"}
        metadata = self.cluster.rest.request("POST", self.url, obj)["metadata"]
        self.names.append(name)
        if _SHARDING.shard_of(metadata["namespace"], metadata["uid"]) in (0, 2):
            self.inside.add(name)

    def expected(self, labels: Sequence[str] = ("0", "1")) -> list[str]:
        """The names that an answer has, by the value of the label."""
        visible = self.inside if self.cluster.has_shard_selectors else set(self.names)
        return [each for at, each in enumerate(self.names) if each in visible and str(at % 2) in labels]

    def listed(self, **params: str) -> tuple[list[str], dict[str, Any]]:
        """The names in a list, and the metadata of it."""
        page = self.ask("application/json", **params)
        return [each["metadata"]["name"] for each in page["items"]], page["metadata"]

    def ask(self, accept: str, method: str = "GET", **params: str) -> Any:
        """The answer to a request for these shards, as a document or as a list of lines."""
        connection = self.cluster.rest.connection()
        query = urlencode({"shardSelector": _SELECTOR, **params})
        headers = {**self.cluster.rest.authorization, "Accept": accept}
        connection.request(method, f"{self.url}?{query}", headers=headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if "watch" in params and answer.status == 200:
            return [json.loads(line) for line in text.splitlines()]
        return json.loads(text)

    def watch(self, **params: str) -> list[tuple[str, str]]:
        """The events of a second, with the names of their objects."""
        lines = self.ask("application/json", watch="true", timeoutSeconds="1", **params)
        return [(line["type"], line["object"]["metadata"].get("name", "")) for line in lines]

    def patch(self, name: str) -> None:
        """Change an object."""
        change = {"metadata": {"annotations": {"turn": "2"}}}
        media = "application/merge-patch+json"
        self.cluster.rest.request("PATCH", f"{self.url}/{name}", change, media=media)


def shown(metadata: dict[str, Any]) -> str:
    """What a list says of its shards."""
    return metadata.get("shardInfo", {}).get("selector", "")


@pytest.fixture
def secrets(gated_cluster: Cluster) -> Shards:
    """Objects of a built-in kind."""
    return Shards(gated_cluster, path("secrets", new_namespace(gated_cluster)), "v1", "Secret")


@pytest.fixture
def shelves(gated_cluster: Cluster) -> Iterator[Shards]:
    """Objects of a custom kind."""
    definition = definition_of("shards.example.com", "shelves", "Shelf")
    for url in served(gated_cluster, definition, new_namespace(gated_cluster)):
        yield Shards(gated_cluster, url, "shards.example.com/v1", "Shelf")


def test_a_list_has_the_objects_of_its_shards(secrets: Shards) -> None:
    """At every version, with other selectors, and in pages, whose count of the rest is that of all shards."""
    names, metadata = secrets.listed()
    selector = _SELECTOR if secrets.cluster.has_shard_selectors else ""
    assert (names, shown(metadata)) == (secrets.expected(), selector)
    exact = {"resourceVersion": metadata["resourceVersion"], "resourceVersionMatch": "Exact"}
    secrets.patch("o00")
    for params in (exact, {"resourceVersion": "0"}, {"resourceVersion": "0", "limit": "1"}):
        found, metadata = secrets.listed(**params)
        assert (found, shown(metadata)) == (names, selector)
    labelled, _ = secrets.listed(labelSelector="odd=1")
    assert labelled == secrets.expected(["1"])
    found, metadata = secrets.listed(limit="2")
    assert metadata["remainingItemCount"] == _NUMBER - 2
    while metadata.get("continue"):
        page, metadata = secrets.listed(**{"limit": "2", "continue": metadata["continue"]})
        assert shown(metadata) == selector
        found += page
    assert found == names


def test_a_page_that_others_follow_has_a_token(secrets: Shards) -> None:
    """Although none of them is selected: the last page may be empty."""
    names = secrets.expected(["0"])
    found, metadata = secrets.listed(labelSelector="odd=0", limit=str(len(names)))
    assert found == names
    assert metadata["continue"]  # an odd one follows
    last = {"labelSelector": "odd=0", "limit": "1", "continue": metadata["continue"]}
    assert secrets.listed(**last)[0] == []


def test_a_watch_has_the_events_of_its_shards(secrets: Shards) -> None:
    """From a version on, and in a streaming list, whose bookmark says nothing of shards."""
    _, metadata = secrets.listed()
    names, at = secrets.expected(), {"resourceVersion": metadata["resourceVersion"]}
    for name in secrets.names:
        secrets.patch(name)
    stream = secrets.watch(**_STREAM)
    assert stream[: len(names)] == [("ADDED", name) for name in names]
    assert set(stream[len(names) :]) == {("BOOKMARK", "")}
    for name in secrets.names:
        secrets.cluster.rest.request("DELETE", f"{secrets.url}/{name}")
    expected = [(event, name) for event in ("MODIFIED", "DELETED") for name in names]
    assert secrets.watch(**at) == expected


def test_a_server_hides_that_it_selects(shelves: Shards, secrets: Shards) -> None:
    """Only lists of built-in kinds, whole, say of which shards they are; the others are selected as well."""
    assert shelves.listed()[0] == shelves.expected()
    assert [name for _, name in shelves.watch()] == shelves.expected()
    for shards in (shelves, secrets):
        for form in ("PartialObjectMetadataList", "Table"):
            answer = shards.ask(f"application/json;as={form};g=meta.k8s.io;v=v1")
            assert answer["kind"] == form
            assert len(answer.get("items", answer.get("rows"))) == len(shards.expected())
            assert "shardInfo" not in answer["metadata"]
    assert "shardInfo" not in shelves.listed()[1]


def test_watches_of_events_have_all_shards(gated_cluster: Cluster) -> None:
    """There is no watch cache of Events: a watch has all of them, unless it has another selector too."""
    url = path("events", new_namespace(gated_cluster))
    events = Shards(gated_cluster, url, "v1", "Event")
    assert events.listed()[0] == events.expected()
    assert [name for _, name in events.watch()] == events.names
    assert [name for _, name in events.watch(labelSelector="odd=1")] == events.expected(["1"])


def test_a_collection_is_deleted_by_shards(secrets: Shards) -> None:
    """Without the feature, the whole of it."""
    secrets.ask("application/json", "DELETE")
    left, _ = secrets.listed(shardSelector="")
    assert left == [name for name in secrets.names if name not in secrets.expected()]


def test_what_can_not_be_read_is_refused(secrets: Shards) -> None:
    """In the same words by both servers; without the feature nobody looks at it."""
    for text, why in REFUSED.items():
        for watch in ({}, {"watch": "true", "timeoutSeconds": "1"}):
            if not secrets.cluster.has_shard_selectors:
                assert secrets.listed(shardSelector=text)[0] == secrets.names
                break
            answer = secrets.ask("application/json", shardSelector=text, **watch)
            assert (answer["code"], answer.get("reason", "")) == (500, ""), text
            assert answer["message"].startswith(f"invalid shard selector: {why}"), text
    other = GOOD.replace("'", '"').replace(" ", "  ")
    _, metadata = secrets.listed(shardSelector=other)
    assert shown(metadata) == (GOOD if secrets.cluster.has_shard_selectors else "")
