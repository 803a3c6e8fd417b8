"""ExpirationCache: what is old is forgotten when it is asked for."""

import threading

import msgspec
import pytest

from declctl.decoding import Projection
from declctl.informer.stores.caches import (
    ExpirationCache,
    FakeExpirationPolicy,
    TimestampedEntry,
    TTLPolicy,
)
from declctl.kit import ManualClock
from declctl.objects import Record

_PODS = Projection(api_version="v1", kind="Pod")


def pod(name: str, version: int = 1) -> Record:
    metadata = {"namespace": "team-a", "name": name, "uid": name, "resourceVersion": str(version)}
    record = _PODS.record(msgspec.json.encode({"metadata": metadata}))
    assert record is not None
    return record


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cache(clock: ManualClock) -> ExpirationCache:
    return ExpirationCache.with_ttl(10.0, clock=clock)


@pytest.mark.client_go(99, "ExpirationCache / TTLStore")
def test_an_old_record_is_gone_when_it_is_asked_for(cache, clock):
    """Older than its time, a record can't be had any more; a younger one can (client-go 99)."""
    cache.add(pod("old"))
    clock.set(6.0)
    cache.add(pod("young"))
    clock.set(6.0)

    assert cache.get_by_key("team-a/old") is None
    assert cache.get(pod("young")) == pod("young")
    assert list(cache.list_keys()) == ["team-a/young"]


@pytest.mark.client_go(100)
def test_an_expired_key_can_be_put_again(cache, clock):
    """What was forgotten and put again stays: no late deletion takes it away (client-go 100)."""
    cache.add(pod("a"))
    clock.set(11.0)
    assert cache.get_by_key("team-a/a") is None
    cache.add(pod("a", 2))

    assert cache.get_by_key("team-a/a") == pod("a", 2)


@pytest.mark.client_go(100)
def test_what_is_put_again_while_it_expires_stays(clock):
    """A thread that adds between the look at an old record and its removal waits for the removal."""
    begun = threading.Event()

    class Slow:
        """Judges while somebody else adds."""

        def is_expired(self, entry):
            if entry.record.resource_version == "1" and not adding.is_alive():
                adding.start()
                assert begun.wait(10)
                return True
            return False

    def add():
        begun.set()
        cache.add(pod("a", 2))

    cache, adding = ExpirationCache(Slow(), clock=clock), threading.Thread(target=add)
    cache.add(pod("a", 1))
    assert cache.get_by_key("team-a/a") is None
    adding.join(10)

    assert cache.get_by_key("team-a/a") == pod("a", 2)


@pytest.mark.client_go(101, "ExpirationCache / TTLStore")
def test_a_list_has_only_what_has_not_expired(cache, clock):
    """A list leaves out what is old and forgets it; the keys show it until then (client-go 101)."""
    cache.replace([pod("a"), pod("b")])
    clock.set(8.0)
    cache.update(pod("b", 2))
    clock.set(8.0)

    assert list(cache.list_keys()) == ["team-a/a", "team-a/b"]
    assert cache.list() == [pod("b", 2)]
    assert list(cache.list_keys()) == ["team-a/b"]


@pytest.mark.client_go(102, "ExpirationCache / TTLStore")
@pytest.mark.parametrize(
    ("ttl", "age", "expired"),
    [(10.0, 10.0, False), (10.0, 10.1, True), (0.0, 1e9, False), (-1.0, 1e9, False)],
)
def test_the_last_moment_still_counts(clock, ttl, age, expired):
    """At exactly its time a record is there yet; without a time it is there for ever (client-go 102)."""
    entry = TimestampedEntry(pod("a"), clock.monotonic())
    clock.set(age)

    assert TTLPolicy(ttl, clock).is_expired(entry) is expired


@pytest.mark.client_go("ExpirationCache / TTLStore")
def test_a_policy_of_ones_own_decides(clock):
    """A test can say which records are old, without any time passing."""
    cache = ExpirationCache(FakeExpirationPolicy(lambda record: record.key == "team-a/kept"), clock=clock)
    cache.add(pod("kept"))
    cache.add(pod("lost"))

    assert cache.list() == [pod("kept")]


def test_deleting_and_replacing(cache):
    """A delete of what isn't there is harmless, a replacement drops the rest (client-go 87)."""
    cache.add(pod("a"))
    cache.delete(pod("missing"))
    cache.delete(pod("a"))
    assert len(cache) == 0

    cache.add(pod("b"))
    cache.replace([pod("c")])
    cache.resync()
    assert cache.list() == [pod("c")]
