"""Which caches live on under a new plan, and which have to be listed."""

from dataclasses import replace

import pytest

from declctl.manifest.model import CacheMode
from declctl.manifest.plan import TransformId, WatchKey
from declctl.manifest.values import EntryPoint
from declctl.runtime.caching.identities import CacheIdentity, can_reproject, match_caches

MANAGED = "metadata.managedFields"
FRAMES, OBJECTS, METADATA = CacheMode.FRAMES, CacheMode.OBJECTS, CacheMode.METADATA_ONLY


def _identity(
    *drops: str, cache: CacheMode = FRAMES, entry: EntryPoint | None = None, code: str = "", **key: str
) -> CacheIdentity:
    return CacheIdentity(
        WatchKey("v1", "Pod", transform=TransformId((MANAGED, *drops), entry), cache=cache, **key), code
    )


BASE = _identity()
SLIM = EntryPoint("handlers", "slim")


@pytest.mark.parametrize(
    ("old", "new", "can"),
    [
        (BASE, BASE, True),
        (BASE, _identity(cache=OBJECTS), True),
        (_identity(cache=OBJECTS), BASE, True),
        (BASE, _identity(cache=METADATA), False),
        (_identity(cache=METADATA), BASE, False),
        (_identity(cache=METADATA), _identity("metadata.annotations", cache=METADATA), True),
        (BASE, _identity("status"), True),
        (_identity("status"), BASE, False),
        (_identity("status"), _identity("spec"), False),
        (_identity("spec.a", "spec.b"), _identity("spec"), True),
        (_identity("spec"), _identity("spec.a"), False),
        (_identity("spec.a"), _identity("spec.a", "status", cache=OBJECTS), True),
        (_identity("spec.list[0]"), _identity("spec.list[0]", cache=OBJECTS), True),
        (_identity("spec.list[0]"), _identity("spec.list[0]", "status"), False),
        (BASE, _identity("spec.list[0]"), False),
        (BASE, _identity(namespace="a"), False),
        (BASE, _identity(label_selector="a=b"), False),
        (BASE, _identity(field_selector="metadata.name=b"), False),
        (BASE, _identity(entry=SLIM, code="1"), False),
        (_identity(entry=SLIM, code="1"), _identity(entry=SLIM, code="2"), False),
        (_identity(entry=SLIM, code="1"), _identity(entry=SLIM, code="1", cache=OBJECTS), True),
        (_identity(entry=SLIM, code="1"), _identity("status", entry=SLIM, code="1"), False),
        (_identity(code="1"), _identity("status", code="1"), False),
    ],
)
def test_a_cache_becomes_another_if_it_holds_all_that_the_other_one_would(
    old: CacheIdentity, new: CacheIdentity, *, can: bool
) -> None:
    """Kept another way, or with less in it; never what was dropped, transformed or not asked for."""
    assert can_reproject(old, new) is can


def test_one_cache_becomes_one_other() -> None:
    """Whoever comes first has it, unless it is wanted as it is."""
    objects = _identity(cache=OBJECTS)
    assert match_caches([BASE], (BASE, objects)) == {BASE: BASE, objects: None}
    assert match_caches([BASE], (objects, BASE)) == {BASE: BASE, objects: None}
    assert match_caches([BASE], (objects,)) == {objects: BASE}
    first, second = _identity("status"), _identity("spec")
    assert match_caches([BASE], (first, second)) == {first: BASE, second: None}
    other = replace(BASE, watch=replace(BASE.watch, cache=OBJECTS))
    assert match_caches([BASE, other], (first, second)) == {first: BASE, second: other}
