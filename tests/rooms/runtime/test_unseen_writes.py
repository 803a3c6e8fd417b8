"""Reads follow writes: a key is not reconciled before the caches have what the handler has written."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from declctl.decoding import Projection
from declctl.informer.stores.thread_safe_store import Indexer
from declctl.kit import ManualClock
from declctl.manifest.plan import WatchKey
from declctl.objects import Cause, GroupVersionKind, ObjectKey, Record
from declctl.runtime.caching.identities import CacheIdentity
from declctl.runtime.reconciling.unseen_writes import OTHERS_SECONDS, OWN_SECONDS, UnseenWrites
from declctl.workqueue import Reasons, ReconcileQueue
from declctl.writes import WriteOrigin, WriteVerb, Written

POD, MAP = GroupVersionKind.of("v1", "Pod"), GroupVersionKind.of("v1", "ConfigMap")
CHANGED = Cause("Modified", "pods", "a/web", "Watch")
OWN = ("", "Pod")


@dataclass(eq=False)
class State:
    """An informer, as far as this room asks it."""

    indexer: Indexer = field(default_factory=Indexer)
    is_stopped: bool = False
    has_synced: bool = True
    name: str = "ConfigMap"
    selected: dict[str, str] | None = None  # versions by namespace, of a selector of namespaces
    observers: list[Any] = field(default_factory=list)
    looks: int = 0  # how often its store or its version was read

    def version_in(self, namespace: str | None) -> str | None:
        """That of the namespace; without a selector, that of the store."""
        self.looks += 1
        if self.selected is None:
            return self.indexer.last_store_sync_resource_version
        return self.selected.get(namespace or "") or None

    def observe(self, call: Any) -> None:
        self.observers.append(call)

    def unobserve(self, call: Any) -> None:
        self.observers.remove(call)

    def tell(self, *keys: str) -> None:
        """The cache has applied changes of these keys, or a bookmark or a list."""
        for call in tuple(self.observers):
            call(list(keys) or None)


class Cache:
    """A cache whose watch brings what the test says."""

    def __init__(self, kind: GroupVersionKind = MAP, **watch: Any) -> None:
        self.identity = CacheIdentity(WatchKey(kind.api_version, kind.kind, **watch))
        self.informer = State()
        self._projection = Projection(api_version=kind.api_version, kind=kind.kind)

    def record(self, key: str, version: int, uid: str | None = None) -> Record:
        namespace, _, name = key.rpartition("/")
        metadata = {"name": name, "namespace": namespace, "uid": uid or f"uid-{key}"}
        body = {"metadata": {**metadata, "resourceVersion": str(version)}}
        record = self._projection.record(json.dumps(body).encode())
        assert record is not None
        return record

    def store(self, key: str, version: int, uid: str | None = None) -> None:
        self.informer.indexer.put(key, self.record(key, version, uid))
        self.informer.indexer.bookmark(str(version))
        self.informer.tell(key)

    def remove(self, key: str, version: int) -> None:
        self.informer.indexer.take(key)
        self.informer.indexer.bookmark(str(version))
        self.informer.tell(key)

    def bookmark(self, version: int) -> None:
        self.informer.indexer.bookmark(str(version))
        self.informer.tell()


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
        self.woken = 0
        self.unseen = UnseenWrites("web", clock=self.clock, report=self.reports.append, wake=self.wake)
        self.queue = ReconcileQueue[str](clock=self.clock, gate=self.unseen)
        self.queue.max_running = 2

    def wake(self) -> None:
        self.woken += 1

    def wrote(self, by: str, written: Written, *caches: Cache) -> None:
        """A call for a key has written."""
        self.unseen.note(written, WriteOrigin("web", 1, key=by), caches, own_kind=OWN)

    def add(self, *keys: str) -> None:
        """Something has changed."""
        for key in keys:
            self.queue.add(key, Reasons({CHANGED: None}))

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
    assert not keys.queue.idle
    assert keys.queue.statistics().waiting == 1
    assert (keys.queue.next_due(), keys.woken) == (OTHERS_SECONDS, 0)  # the cache wakes the workers before
    cache.store("a/settings", 7)
    assert (keys.queue.next_due(), keys.woken) == (0.0, 1)
    keys.add("a/web")  # the event of the child leads to the key, too
    assert (keys.take(), keys.take()) == ("a/web", None)
    assert (keys.unseen.held_back, keys.queue.idle) == (1, True)
    assert cache.informer.observers == []


@pytest.mark.parametrize("way", ["newer object", "bookmark", "another object", "stopped"])
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
        case _:
            cache.informer.is_stopped = True
            cache.informer.tell()
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
    cache.informer.tell("quiet/map")
    assert keys.take() is None
    cache.informer.selected = then
    cache.informer.tell()
    assert keys.take() == "a/web"


def test_an_object_that_leaves_a_selector_is_awaited(keys) -> None:
    """The cache has it still: the key would count it."""
    cache = Cache(label_selector="app=web")
    cache.store("a/settings", 5)
    keys.hold(cache)
    cache.remove("a/settings", 7)
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
    assert keys.unseen.lagging == 1
    assert "a cache lags: it has lacked version 7 of a/settings (ConfigMap) for 10 s" in keys.reports[0]
    keys.clock.set(OWN_SECONDS)
    assert keys.take() == "a/web"
    assert len(keys.reports) == 1


def test_a_key_of_which_nothing_is_known_yet_is_not_called() -> None:
    """What decides about its object adds it again."""
    undecided = {"a/web"}
    unseen = UnseenWrites(
        "web", clock=ManualClock(), report=pytest.fail, is_undecided=lambda key: key in undecided
    )
    queue = ReconcileQueue[str](clock=ManualClock(), gate=unseen)
    for key in ("a/web", "a/other"):
        queue.add(key, Reasons({CHANGED: None}))
    assert [queue.take().key, queue.take()] == ["a/other", None]
    undecided.clear()
    queue.add("a/web", Reasons({CHANGED: None}))
    assert (queue.take().key, unseen.own_writes) == ("a/web", 0)


def test_no_more_keys_are_held_back_than_there_are_workers(keys, cache) -> None:
    """A key that is held back is compared with the writes from before: it must run soon after."""
    keys.wrote("a/web", applied("a/settings", 7), cache)
    keys.add("a/1", "a/2", "a/3", "a/4")
    assert keys.take() is None
    assert keys.unseen.held_back == 2
    cache.bookmark(7)
    assert [keys.take() for _ in range(5)] == ["a/1", "a/2", "a/3", "a/4", None]


def test_a_removed_handler_drops_what_it_has_held_back(keys, cache) -> None:
    """Nothing waits for a cache any more."""
    keys.hold(cache)
    assert keys.queue.clear() == 1
    assert (keys.queue.idle, keys.queue.next_due()) == (True, None)


def test_a_key_that_is_dropped_is_held_back_no_longer(keys, cache) -> None:
    """Its shard has left: the others wait as before, and the key may come again."""
    keys.wrote("a/other", applied("a/settings", 7), cache)
    keys.add("a/1", "a/2")
    assert keys.take() is None
    assert keys.queue.drop_chosen(lambda item: item.key == "a/1") == 1
    keys.add("a/3")
    assert keys.take() is None
    cache.store("a/settings", 7)
    assert [keys.take() for _ in range(3)] == ["a/2", "a/3", None]
    keys.add("a/1")
    assert keys.take() == "a/1"
    assert (keys.queue.idle, keys.unseen.others) == (True, 0)


def test_an_add_looks_at_no_held_key(keys) -> None:
    """However many keys wait for their own writes, an event and a look of a worker cost the same.

    A cache that advances releases those whose writes it has, and looks at one further write.
    """
    caches = [Cache(POD) for _ in range(2)]
    for number in range(2000):
        keys.wrote(f"b/{number}", applied(f"b/{number}", number + 2, kind=POD), *caches)
        keys.add(f"b/{number}")
    assert keys.take() is None
    for each in caches:
        each.informer.looks = 0
    for number in range(100):
        keys.add(f"c/{number}", "b/7")
        assert keys.take() == f"c/{number}"
        assert 0 < keys.queue.next_due() <= OTHERS_SECONDS
    assert [each.informer.looks for each in caches] == [0, 0]
    for each in caches:
        each.store("b/9", 11)
    assert [keys.take() for _ in range(11)] == [*(f"b/{number}" for number in range(10)), None]
    assert [each.informer.looks for each in caches] == [11, 11]
