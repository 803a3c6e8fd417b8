"""Lists and watches of shards: each object is in one, and costs the others nothing."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declctl.objects.shards import Sharding, ShardKey, fnv1a
from declctl.sandbox.lists import list_page, read_options
from declctl.sandbox.requests import Plain
from declctl.sandbox.shards import ShardSelector
from declctl.sandbox.status import Refusal
from declctl.sandbox.watches import Hub, Subscription, Watcher
from tests.rooms.sandbox.shapes import config_map, store
from tests.rooms.sandbox.shard_table import GOOD, REFUSED

MAPS = ("", "configmaps")


def filled(count):
    cluster = store()
    for number in range(count):
        cluster.create(config_map(f"c{number:02}"))
    return cluster


def options(selector, *, watch=False, **params):
    return read_options({"shardSelector": selector, **params}, "", watch=watch, shard_selectors=True)


@given(st.integers(1, 40), st.data())
def test_shards_part_the_objects(shards, data):
    """A list of some shards has the objects of these, and says in its own words which they are."""
    held = data.draw(st.sets(st.integers(0, shards - 1), min_size=1))
    cluster, sharding = filled(12), Sharding(shards, ShardKey.UID)
    selector = sharding.selector(held, is_namespaced=True)
    found = list_page(cluster.history, MAPS, options(selector))
    everything = list_page(cluster.history, MAPS, options("")).items
    assert found.items == [each for each in everything if sharding.shard_of("default", each.uid) in held]
    assert str(found.shards or "") == selector


def test_other_spellings_are_read():
    """Quotes and blanks as a client likes them; the answer has the server's own."""
    other = GOOD.replace("'", '"').replace(", ", " ,\n").replace("(", "( ")
    assert str(ShardSelector.parse(f" {other}||{GOOD} ")) == f"{GOOD} || {GOOD}"


@pytest.mark.parametrize(("resource", "hashed"), [(MAPS, "default"), (("", "namespaces"), "")])
def test_a_namespace_is_hashed_too(resource, hashed):
    """An object without a namespace has the hash of an empty text."""
    cluster, at = filled(1), fnv1a(hashed)
    one = f"shardRange(object.metadata.namespace, '{at:#018x}', '{at + 1:#018x}')"
    others = one.replace(f"'{at:#018x}'", f"'{0:#018x}'").replace(f"'{at + 1:#018x}'", f"'{at:#018x}'")
    everything = list_page(cluster.history, resource, options("")).items
    assert list_page(cluster.history, resource, options(one)).items == everything
    assert not list_page(cluster.history, resource, options(others)).items


def test_pages_count_the_objects_of_all_shards():
    """A page has as many objects as asked for; what remains is counted as if there were no shards."""
    cluster = filled(12)
    selector = Sharding(2, ShardKey.UID).selector([0], is_namespaced=True)
    wanted = [stored.name for stored in list_page(cluster.history, MAPS, options(selector)).items]
    assert 2 < len(wanted) < 12
    first = list_page(cluster.history, MAPS, options(selector, limit="2"))
    assert first.remaining == 12 - 2
    rest = list_page(cluster.history, MAPS, options(selector, **{"continue": first.token}))
    assert [stored.name for stored in (*first.items, *rest.items)] == wanted
    # A token knows no shards: who forgets them gets everything from there on.
    forgotten = list_page(cluster.history, MAPS, options("", **{"continue": first.token}))
    assert len(forgotten.items) > len(rest.items)
    assert forgotten.shards is None


@dataclass(frozen=True)
class Counting(Plain):
    """Plain objects; says which were encoded."""

    encoded: list[str] = field(default_factory=list, compare=False)

    def item(self, kind, stored):
        self.encoded.append(stored.name)
        return super().item(kind, stored)


@pytest.mark.parametrize("shards", [[0], [1], [0, 1]])
def test_a_watch_has_the_events_of_its_shards(shards):
    """Those that it begins with, and those that come; others are not even encoded."""
    cluster, sharding, form = filled(6), Sharding(2, ShardKey.UID), Counting()
    hub = Hub(cluster.history)
    cluster.history.subscribe(hub.tell)
    asked = options(sharding.selector(shards, is_namespaced=True), watch=True)
    subscription = Subscription(cluster.kind("ConfigMap"), asked.selection, form)
    watcher = Watcher(subscription, bookmarks=False, wake=lambda: None)
    hub.open(watcher, asked)
    made = filled_after(cluster)
    expected = [
        (event, stored["metadata"]["name"])
        for event, stored in made
        if sharding.shard_of("default", stored["metadata"]["uid"]) in shards
    ]
    events = [json.loads(text) for text in watcher.take().splitlines()]
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == expected
    assert sorted(form.encoded) == sorted(name for _, name in expected)


def filled_after(cluster):
    """The events of all shards: what there is, and then changes and deletes of it."""
    there = cluster.objects("ConfigMap")
    for obj in there:
        cluster.update({**obj, "data": {"turn": "2"}})
    for obj in there:
        cluster.delete("ConfigMap", obj["metadata"]["name"])
    return [(event, obj) for event in ("ADDED", "MODIFIED", "DELETED") for obj in there]


@pytest.mark.parametrize(("text", "why"), REFUSED.items())
def test_what_can_not_be_read_is_refused(text, why):
    """With 500 and no reason, in the words of the real server; without the feature it is not looked at."""
    with pytest.raises(Refusal) as refused:
        options(text)
    assert refused.value.message.startswith(f"invalid shard selector: {why}")
    assert (refused.value.code, refused.value.reason) == (500, "")
    assert read_options({"shardSelector": text}, "", watch=False).selection.shards is None
