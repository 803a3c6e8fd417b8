"""WATCH without sockets: what a watcher sees."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.sandbox.lists import read_options
from declctl.sandbox.requests import Plain
from declctl.sandbox.status import Refusal
from declctl.sandbox.watches import Hub, Subscription, Watcher
from tests.rooms.sandbox.shapes import config_map, definition, pod, store, widget


class Bench:
    """A cluster with a hub."""

    def __init__(self):
        self.cluster = store()
        self.hub = Hub(self.cluster.history)
        self.cluster.history.subscribe(self.hub.tell)

    def watch(self, kind="Pod", namespace="", **params):
        options = read_options({key: str(value) for key, value in params.items()}, namespace, watch=True)
        subscription = Subscription(self.cluster.kind(kind), options.selection, Plain())
        watcher = Watcher(subscription, bookmarks=options.bookmarks, wake=lambda: None)
        self.hub.open(watcher, options)
        return watcher


@pytest.fixture
def bench():
    return Bench()


def events(watcher):
    return [json.loads(text) for text in watcher.take().splitlines()]


def seen(watcher):
    return [(event["type"], event["object"]["metadata"].get("name")) for event in events(watcher)]


def test_a_watch_without_a_version_starts_with_what_is_there(bench):
    """Unset and 0 give an ADDED for each object, then what happens."""
    bench.cluster.create(pod("a"))
    for params in ({}, {"resourceVersion": "0"}):
        watcher = bench.watch(**params)
        bench.cluster.patch("Pod", "a", {"metadata": {"labels": {"turn": str(len(params))}}})
        assert seen(watcher) == [("ADDED", "a"), ("MODIFIED", "a")]


def test_a_watch_resumes(bench):
    """From a version it gets exactly what came after it."""
    bench.cluster.create(pod("a"))
    version = bench.cluster.create(pod("b"))["metadata"]["resourceVersion"]
    bench.cluster.delete("Pod", "a")
    assert seen(bench.watch(resourceVersion=version)) == [("DELETED", "a")]


def test_who_stops_matching_is_deleted(bench):
    """Leaving a selector is DELETED with the old content under the new version; entering it is ADDED."""
    watcher = bench.watch(labelSelector="app=web")
    bench.cluster.create(pod("a", labels={"app": "db"}))
    bench.cluster.patch("Pod", "a", {"metadata": {"labels": {"app": "web"}}})
    left = bench.cluster.patch("Pod", "a", {"metadata": {"labels": {"app": "db"}}})
    added, deleted = events(watcher)
    assert (added["type"], deleted["type"]) == ("ADDED", "DELETED")
    assert deleted["object"]["metadata"]["labels"] == {"app": "web"}
    assert deleted["object"]["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]


def test_fields_select_too(bench):
    """A watch of one object by name, or of one node's pods, sees nothing else."""
    one, node = bench.watch(fieldSelector="metadata.name=a"), bench.watch(fieldSelector="spec.nodeName=n1")
    bench.cluster.create(pod("a"))
    bench.cluster.create(pod("b"))
    bench.cluster.patch("Pod", "b", {"spec": {"nodeName": "n1"}})
    assert seen(one) == [("ADDED", "a")]
    assert seen(node) == [("ADDED", "b")]


def test_a_watch_list_ends_its_beginning(bench):
    """Initial events are ADDED, then a bookmark says that this was all (client-go 158)."""
    bench.cluster.create(pod("a"))
    watcher = bench.watch(
        sendInitialEvents="true", resourceVersionMatch="NotOlderThan", allowWatchBookmarks="true"
    )
    added, end = events(watcher)
    assert added["type"] == "ADDED"
    assert end["type"] == "BOOKMARK"
    assert end["object"]["metadata"] == {
        "resourceVersion": str(bench.cluster.version),
        "annotations": {"k8s.io/initial-events-end": "true"},
    }


def test_a_watch_list_of_the_future_is_too_large():
    """A version that isn't reached is 504 Timeout with the cause that clients look for."""
    with pytest.raises(Refusal, match="Too large resource version"):
        Bench().watch(sendInitialEvents="true", resourceVersionMatch="NotOlderThan", resourceVersion=999)


def test_bookmarks_only_for_those_who_want_them(bench):
    """A bookmark carries the newest version of the server, and goes to who allowed it."""
    without, with_them = bench.watch(), bench.watch(allowWatchBookmarks="true")
    bench.cluster.create(config_map("elsewhere"))
    assert bench.hub.bookmark("pods") == 1
    assert events(without) == []
    (bookmark,) = events(with_them)
    assert bookmark["object"]["metadata"] == {"resourceVersion": str(bench.cluster.version)}


def test_a_change_is_encoded_once(bench):
    """Watchers of the same things get the very same bytes, so that a thousand of them cost little."""
    watchers = [bench.watch() for _ in range(3)]
    other = bench.watch(labelSelector="app")
    bench.cluster.create(pod("a"))
    first, *others = [watcher.take() for watcher in (*watchers, other)]
    assert first
    assert all(taken is first for taken in others)  # a piece that waits alone is not copied


def test_versions_of_a_kind_are_watched_alike(bench):
    """A watch of v1beta1 sees objects that are written as v1, as v1beta1."""
    bench.cluster.create(definition())
    watcher = bench.watch("Widget")
    bench.cluster.create(widget("w", "v1beta1"))
    assert events(watcher)[0]["object"]["apiVersion"] == "example.com/v1"


def test_an_unserved_kind_ends_its_watches(bench):
    """When the definition goes, the watches get the DELETED events and end."""
    bench.cluster.load([definition(), widget("w")])
    watcher = bench.watch("Widget", resourceVersion=bench.cluster.version)
    bench.cluster.delete("crd", "widgets.example.com")
    bench.hub.end(("example.com", "widgets"))
    assert seen(watcher) == [("DELETED", "w")]
    assert watcher.ended


def test_a_closed_watch_gets_nothing(bench):
    """Once closed, a watcher is forgotten."""
    watcher = bench.watch()
    bench.hub.close(watcher)
    bench.hub.close(watcher)
    bench.cluster.create(pod("a"))
    assert events(watcher) == []
    assert bench.hub.count() == 0


def test_large_answers_come_in_pieces(bench):
    """A long backlog is written piece by piece, and nothing is lost between them."""
    for number in range(20):
        bench.cluster.create(pod(f"p{number}"))
    watcher = bench.watch()
    pieces = []
    while piece := watcher.take(500):
        pieces.append(piece)
    assert len(pieces) > 5
    assert b"".join(pieces).count(b'"ADDED"') == 20


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["create", "web", "db", "delete", "watch"])),
    max_size=30,
)


@given(STEPS)
def test_what_a_watcher_knows_is_what_is_there(steps):
    """Whenever a watch starts and whatever happens, its events add up to the selected objects."""
    bench = Bench()
    views = [({}, bench.watch(labelSelector="app=web"))]
    for name, action in steps:
        exists = bench.cluster.history.get(("", "pods"), f"default/{name}") is not None
        if action == "watch":
            views.append(({}, bench.watch(labelSelector="app=web")))
        elif action == "create" and not exists:
            bench.cluster.create(pod(name))
        elif action == "delete" and exists:
            bench.cluster.delete("Pod", name)
        elif action in ("web", "db") and exists:
            bench.cluster.patch("Pod", name, {"metadata": {"labels": {"app": action}}})
    expected = {
        obj["metadata"]["name"]: obj["metadata"]["resourceVersion"]
        for obj in bench.cluster.objects("Pod")
        if obj["metadata"]["labels"]["app"] == "web"
    }
    for view, watcher in views:
        for event in events(watcher):
            name = event["object"]["metadata"]["name"]
            assert (name in view) == (event["type"] != "ADDED")
            if event["type"] == "DELETED":
                del view[name]
            else:
                view[name] = event["object"]["metadata"]["resourceVersion"]
        assert view == expected
