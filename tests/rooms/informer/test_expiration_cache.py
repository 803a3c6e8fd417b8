"""ExpirationCache: what is old is forgotten when it is asked for."""

import threading

import pytest

from declctl.informer.stores.caches import ExpirationCache, FakeExpirationPolicy, TimestampedEntry, TTLPolicy
from declctl.kit import ManualClock
from tests.rooms.informer.shapes import record


@pytest.fixture
def cache(clock: ManualClock) -> ExpirationCache:
    return ExpirationCache.with_ttl(10.0, clock=clock)


@pytest.mark.client_go(99, 100, "ExpirationCache / TTLStore")
def test_an_old_record_is_gone_when_it_is_asked_for(cache, clock):
    """Older than its time, a record can't be had any more; a younger one can (client-go 99).

    What was forgotten and put again stays: no late deletion takes it away (client-go 100).
    """
    cache.add(record("old"))
    clock.set(6.0)
    cache.add(record("young"))
    clock.set(6.0)
    assert cache.get_by_key("demo/old") is None
    assert cache.get(record("young")) == record("young")
    assert list(cache.list_keys()) == ["demo/young"]
    cache.add(record("old", 2))
    assert cache.get_by_key("demo/old") == record("old", 2)


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
        cache.add(record("a", 2))

    cache, adding = ExpirationCache(Slow(), clock=clock), threading.Thread(target=add)
    cache.add(record("a", 1))
    assert cache.get_by_key("demo/a") is None
    adding.join(10)
    assert cache.get_by_key("demo/a") == record("a", 2)


@pytest.mark.client_go(101, "ExpirationCache / TTLStore")
def test_a_list_has_only_what_has_not_expired(cache, clock):
    """A list leaves out what is old and forgets it; the keys show it until then (client-go 101)."""
    cache.replace([record("a"), record("b")])
    clock.set(8.0)
    cache.update(record("b", 2))
    clock.set(8.0)
    assert list(cache.list_keys()) == ["demo/a", "demo/b"]
    assert cache.list() == [record("b", 2)]
    assert list(cache.list_keys()) == ["demo/b"]


@pytest.mark.client_go(102, "ExpirationCache / TTLStore")
@pytest.mark.parametrize(
    ("ttl", "age", "expired"),
    [(10.0, 10.0, False), (10.0, 10.1, True), (0.0, 1e9, False), (-1.0, 1e9, False)],
)
def test_the_last_moment_still_counts(clock, ttl, age, expired):
    """At exactly its time a record is there yet; without a time it is there for ever (client-go 102)."""
    entry = TimestampedEntry(record("a"), clock.monotonic())
    clock.set(age)
    assert TTLPolicy(ttl, clock).is_expired(entry) is expired


@pytest.mark.client_go("ExpirationCache / TTLStore")
def test_a_policy_of_ones_own_decides(clock):
    """A test can say which records are old, without any time passing."""
    cache = ExpirationCache(FakeExpirationPolicy(lambda held: held.key == "demo/kept"), clock=clock)
    cache.add(record("kept"))
    cache.add(record("lost"))
    assert cache.list() == [record("kept")]
