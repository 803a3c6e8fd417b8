"""Reads follow writes: a key is not reconciled before the caches have what the handler has written."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from declctl.decoding import Projection
from declctl.informer.stores.thread_safe_store import Indexer
from declctl.kit import ManualClock
from declctl.manifest.plan import WatchKey
from declctl.objects import Cause, GroupVersionKind, ObjectKey
from declctl.runtime.caching.identities import CacheIdentity
from declctl.runtime.reconciling.reconcile_slot import ReconcileQueue
from declctl.runtime.reconciling.unseen_writes import OTHERS_SECONDS, OWN_SECONDS
from declctl.workqueue import Priority
from declctl.writes import WriteOrigin, WriteVerb, Written

POD, MAP = GroupVersionKind.of("v1", "Pod"), GroupVersionKind.of("v1", "ConfigMap")
CHANGED = Cause("Modified", "pods", "a/web", "Watch")
OWN = ("", "Pod")


@dataclass
class State:
    """An informer, as far as this room asks it."""

    indexer: Indexer = field(default_factory=Indexer)
    is_stopped: bool = False
    has_synced: bool = True
    name: str = "ConfigMap"
    selected: dict[str, str] | None = None  # versions by namespace, of a selector of namespaces

    def follows(self, namespace: str | None) -> bool:
        return self.selected is None or namespace in self.selected

    def version_in(self, namespace: str | None) -> str | None:
        """That of the namespace; without a selector, that of the store."""
        if self.selected is None:
            return self.indexer.last_store_sync_resource_version
        return self.selected.get(namespace or "") or None


class Cache:
    """A cache whose watch brings what the test says."""

    def __init__(self, kind: GroupVersionKind = MAP, **watch: Any) -> None:
        self.identity = CacheIdentity(WatchKey(kind.api_version, kind.kind, **watch))
        self.informer = State()
        self._projection = Projection(api_version=kind.api_version, kind=kind.kind)

    def store(self, key: str, version: int, uid: str | None = None) -> None:
        namespace, _, name = key.rpartition("/")
        metadata = {"name": name, "namespace": namespace, "uid": uid or f"uid-{key}"}
        body = {"metadata": {**metadata, "resourceVersion": str(version)}}
        record = self._projection.record(json.dumps(body).encode())
        assert record is not None
        self.informer.indexer.put(key, record)
        self.informer.indexer.bookmark(str(version))

    def remove(self, key: str, version: int) -> None:
        self.informer.indexer.take(key)
        self.informer.indexer.bookmark(str(version))

    def bookmark(self, version: int) -> None:
        self.informer.indexer.bookmark(str(version))


def applied(
    key: str, version: int, *, kind: GroupVersionKind = MAP, labels: dict[str, str] | None = None
) -> Written:
    obj = {"metadata": {"name": key.rpartition("/")[2], "labels": labels or {}}}
    return Written(WriteVerb.APPLY, kind, ObjectKey(key), f"uid-{key}", str(version), obj)


def deleted(key: str, *, version: int = 0, terminating: bool = False) -> Written:
    """The result of a delete; with `terminating` the object stays for its finalizers."""
    obj = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}} if terminating else {}
    return Written(WriteVerb.DELETE, MAP, ObjectKey(key), f"uid-{key}", str(version or ""), obj)


class Keys:
    """The queue of a reconciler of pods for two workers, and the messages about caches that lag."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.reports: list[str] = []
        self.queue = ReconcileQueue(clock=self.clock, epochs=None, report=self.reports.append)
        self.queue.max_running = 2

    def wrote(self, by: str, written: Written, *caches: Cache) -> None:
        """A call for a key has written."""
        self.queue.unseen.note(written, WriteOrigin("web", 1, key=by), caches, own_kind=OWN)

    def add(self, *keys: str) -> None:
        """Something has changed."""
        for key in keys:
            self.queue.add(key, CHANGED, Priority.LIVE)

    def hold(self, *caches: Cache, written: Written | None = None) -> None:
        """The key a/web has written version 7 of a/settings, unless told otherwise, and waits for it."""
        self.wrote("a/web", written or applied("a/settings", 7), *caches)
        self.add("a/web")
        assert self.take() is None

    def take(self) -> str | None:
        """The key that a worker gets, and is done with at once."""
        item = self.queue.take()
        if item is None:
            return None
        self.queue.done(item)
        return item.key


@pytest.fixture
def keys() -> Keys:
    return Keys()


@pytest.fixture
def cache() -> Cache:
    return Cache()


def test_a_key_waits_until_the_cache_has_what_it_wrote(keys, cache) -> None:
    """The watch brings the object: the key is reconciled, once, with what was added meanwhile."""
    keys.hold(cache)
    assert len(keys.queue.unseen.before("a/web")) == 1  # however often it is asked
    assert not keys.queue.idle
    assert keys.queue.statistics().waiting == 1
    assert 0 < keys.queue.next_due() <= 0.25
    cache.store("a/settings", 7)
    keys.add("a/web")  # the event of the child leads to the key, too
    assert (keys.take(), keys.take()) == ("a/web", None)
    assert (keys.queue.held_back, keys.queue.idle) == (1, True)


@pytest.mark.parametrize("way", ["newer object", "bookmark", "another object", "not synced", "stopped"])
def test_what_shows_that_a_cache_is_new_enough(keys, cache, way) -> None:
    """A later version of anything, or a bookmark (9 is before 10); or that nobody can read the cache."""
    keys.hold(cache, written=applied("a/settings", 10))
    cache.store("a/settings", 9)
    assert keys.take() is None
    match way:
        case "newer object":
            cache.store("a/settings", 13)
        case "bookmark":
            cache.bookmark(13)
        case "another object":
            cache.store("a/other", 11)
        case "not synced":
            cache.informer.has_synced = False
        case _:
            cache.informer.is_stopped = True
    assert keys.take() == "a/web"


@pytest.mark.parametrize(
    ("watch", "waits"),
    [
        ({"namespace": "a"}, True),
        ({"namespace": "b"}, False),
        ({"label_selector": "app=web"}, True),
        ({"label_selector": "app=other"}, False),
        ({"field_selector": "metadata.name=settings"}, True),
        ({"field_selector": "metadata.name=other"}, False),
    ],
)
def test_a_cache_that_will_never_have_the_object_is_not_waited_for(keys, watch, waits) -> None:
    """A quiet watch with another selector would hold the key back for a minute, until a bookmark."""
    keys.wrote("a/web", applied("a/settings", 7, labels={"app": "web"}), Cache(**watch), Cache(POD))
    keys.add("a/web")
    assert keys.take() == (None if waits else "a/web")


@pytest.mark.parametrize("then", [{"a": "7"}, {}])
def test_of_namespaces_by_label_only_the_one_of_the_object_is_waited_for(keys, then) -> None:
    """A quiet namespace holds no key back, and one that the selector does not match has no object.

    The objects of a namespace that leaves do so, too, whatever was written there.
    """
    cache = Cache(namespace_selector="team=web")
    cache.informer.selected = {"a": "3", "quiet": "1", "new": ""}
    for namespace in ("other", "new"):
        keys.wrote("a/web", applied(f"{namespace}/settings", 7), cache)
        keys.add("a/web")
        assert keys.take() == "a/web"
    keys.hold(cache)
    cache.informer.selected = then
    assert keys.take() == "a/web"


def test_an_object_that_leaves_a_selector_is_awaited(keys) -> None:
    """The cache has it still: the key would count it."""
    cache = Cache(label_selector="app=web")
    cache.store("a/settings", 5)
    keys.hold(cache)
    cache.informer.indexer.take("a/settings")
    assert keys.take() == "a/web"


def test_a_delete_is_awaited_by_uid(keys, cache) -> None:
    """A newer version of another object shows nothing; the object of the name may be another one by now."""
    cache.store("a/settings", 5)
    keys.wrote("a/web", deleted("a/settings"), cache)
    keys.add("a/web")
    cache.bookmark(99)
    assert keys.take() is None
    cache.store("a/settings", 100, uid="another")
    assert keys.take() == "a/web"


def test_a_delete_of_an_object_with_finalizers_is_seen_when_it_is_marked(keys, cache) -> None:
    """It stays in the cache until its finalizers are gone, maybe for ever."""
    cache.store("a/settings", 5)
    keys.hold(cache, written=deleted("a/settings", version=8, terminating=True))
    cache.store("a/settings", 8)
    assert keys.take() == "a/web"


def test_other_keys_wait_for_ten_seconds_at_most_and_that_is_told(keys, cache) -> None:
    """A list of children would miss one. A cache that lags for long must not stop the handler."""
    keys.wrote("a/web", applied("a/settings", 7), cache)
    keys.add("a/db", "a/web")
    assert keys.take() is None
    keys.clock.set(OTHERS_SECONDS - 0.1)
    assert keys.take() is None
    keys.clock.set(0.2)
    assert (keys.take(), keys.take()) == ("a/db", None)
    assert keys.queue.unseen.lagging == 1
    assert "a cache lags: it has lacked version 7 of a/settings (ConfigMap) for 10 s" in keys.reports[0]
    keys.clock.set(OWN_SECONDS)
    assert keys.take() == "a/web"
    assert len(keys.reports) == 1


def test_a_status_holds_back_its_own_key_only(keys) -> None:
    """Most reconcilers write the status of their object in each call: other keys go on."""
    cache = Cache(POD)
    keys.wrote("a/web", applied("a/web", 7, kind=POD), cache)
    keys.add("a/web", "a/db")
    assert (keys.take(), keys.take()) == ("a/db", None)
    cache.store("a/web", 7)
    assert keys.take() == "a/web"


def test_no_more_keys_are_held_back_than_there_are_workers(keys, cache) -> None:
    """A key that is held back is compared with the writes from before: it must run soon after."""
    keys.wrote("a/web", applied("a/settings", 7), cache)
    keys.add("a/1", "a/2", "a/3", "a/4")
    assert keys.take() is None
    assert keys.queue.held_back == 2
    cache.bookmark(7)
    assert [keys.take() for _ in range(5)] == ["a/1", "a/2", "a/3", "a/4", None]


def test_a_removed_handler_drops_what_it_has_held_back(keys, cache) -> None:
    """Nothing waits for a cache any more."""
    keys.hold(cache)
    assert keys.queue.clear() == 1
    assert (keys.queue.idle, keys.queue.next_due()) == (True, None)


def test_writes_of_keys_that_never_come_again_are_forgotten(keys, cache) -> None:
    """Ten thousand objects, each written once, leave nothing behind when the cache has them."""
    cache.store("a/settings", 1)
    for number in range(2, 5000):
        keys.wrote(f"a/{number}", applied("a/settings", number), cache)
        cache.bookmark(number)
    assert keys.queue.unseen.kept < 2000


class Reconciling(RuleBasedStateMachine):
    """A reconciler that counts the children in its cache, and creates one if there is none.

    The watch lags as long as it wants, less than a key waits.
    """

    @initialize()
    def begin(self) -> None:
        self.keys, self.cache = Keys(), Cache()
        self.version = 1
        self.created: dict[str, list[str]] = {}  # by key, its children in the cluster
        self.events: list[tuple[str, int]] = []  # those that the watch has not brought

    @rule(key=st.sampled_from(["a/1", "a/2", "a/3"]))
    def change(self, key: str) -> None:
        self.keys.add(key)

    @rule()
    def work(self) -> None:
        """A worker takes a key, if it gets one, and creates what is missing."""
        item = self.keys.queue.take()
        if item is None:
            return
        key = item.key
        cached = [each for each in self.cache.informer.indexer.list_keys() if each.startswith(f"{key}-")]
        if not cached:
            self.version += 1
            child = f"{key}-{self.version}"
            self.created.setdefault(key, []).append(child)
            self.events.append((child, self.version))
            self.keys.wrote(key, applied(child, self.version), self.cache)
        self.keys.queue.done(item)

    @rule()
    def deliver(self) -> None:
        if self.events:
            child, version = self.events.pop(0)
            self.cache.store(child, version)

    @rule(seconds=st.floats(min_value=0, max_value=OTHERS_SECONDS / 20))
    def wait(self, seconds: float) -> None:
        self.keys.clock.set(seconds)

    @invariant()
    def no_key_has_two_children(self) -> None:
        """The cache lagged, and nobody has created a duplicate."""
        assert all(len(children) == 1 for children in getattr(self, "created", {}).values())


TestReconciling = Reconciling.TestCase
TestReconciling.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
