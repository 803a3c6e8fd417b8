"""A handler moves from some caches to others: what it hears, and when it may move (G15)."""

from types import SimpleNamespace

import pytest

from declctl.manifest.plan import WatchKey
from declctl.runtime.moving import differences, is_behind


def _cache(*records, namespace=None, labels="", seen: int = 1000):
    indexer = SimpleNamespace(list=lambda: list(records), last_store_sync_resource_version=str(seen))
    watch = WatchKey("v1", "Pod", namespace=namespace, label_selector=labels)
    return SimpleNamespace(
        identity=SimpleNamespace(watch=watch, transform=""), informer=SimpleNamespace(indexer=indexer)
    )


def _told(gone, come):
    return [(str(n.type), n.key, str(n.reason)) for n in differences(gone, come)]


def test_only_true_differences_are_told(record) -> None:
    """New is Added, newer Modified, gone Deleted with OutOfScope, equal nothing."""
    before = _cache(record("same", version=1), record("newer", version=2), record("gone", version=3))
    after = _cache(record("same", version=1), record("newer", version=5), record("new", version=4))
    assert _told([before], [after]) == [
        ("Deleted", "default/gone", "OutOfScope"),
        ("Modified", "default/newer", "Relist"),
        ("Added", "default/new", "Initial"),
    ]


def test_what_a_handler_has_not_heard_of_yet_is_new(record) -> None:
    """It joined a moment ago, and leaves before it has heard all of the cache."""
    kept, left = record("kept", version=1), record("left", version=1)
    told = differences([_cache(kept, left)], [_cache(kept)], {"default/kept", "default/left"})
    assert [(str(n.type), n.key) for n in told] == [("Added", "default/kept")]


def test_an_object_that_was_made_again_is_two_changes(record) -> None:
    """Another uid under the same name: Deleted, then Added."""
    before, after = _cache(record("a", uid="1")), _cache(record("a", uid="2"))
    assert [row[0] for row in _told([before], [after])] == ["Deleted", "Added"]


def test_nothing_goes_back_in_time(record) -> None:
    """A new cache that is older than the old one takes nothing back."""
    assert _told([_cache(record("a", version=9))], [_cache(record("a", version=8))]) == []


@pytest.mark.parametrize(
    ("before", "after", "behind"),
    [
        ([("a", 5)], [("a", 5)], False),
        ([("a", 5)], [("a", 4)], True),
        ([("a", 5)], [("a", 6)], False),
        ([("a", 1005)], [], True),  # made after what the new cache has seen
        ([("a", 5)], [], False),  # deleted: the new cache has seen more
        ([], [("a", 5)], True),  # deleted in the old cache, not yet in the new one
        ([], [("a", 1005)], False),  # made after what the old cache has seen
    ],
)
def test_a_cache_that_has_to_catch_up_is_waited_for(before, after, behind, record) -> None:
    """Two watches of the same scope: the new one may not lack what the old one has told."""
    gone = _cache(*(record(name, version=version) for name, version in before))
    come = _cache(*(record(name, version=version) for name, version in after))
    assert is_behind([gone], [come]) is behind


def test_what_is_only_in_the_new_scope_is_not_waited_for(record) -> None:
    """Namespaces are widened: objects that the old watch never saw are no sign of a delay."""
    gone, come = _cache(namespace="a"), _cache(record("x", version=5, namespace="b"))
    assert not is_behind([gone], [come])


def test_what_is_only_in_the_old_scope_is_not_waited_for(record) -> None:
    """Namespaces are narrowed: objects that the new watch will never see are no sign of a delay."""
    gone, come = _cache(record("x", version=2000, namespace="b")), _cache(namespace="a")
    assert not is_behind([gone], [come])
