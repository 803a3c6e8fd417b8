"""The caches: shared by what they watch, kept while somebody wants them, gone after that."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from msgspec import structs

from declctl.errors import ReloadRefused
from declctl.informer import field_index, function_index
from declctl.kit import SystemClock
from declctl.manifest import ManifestSource, load, plan
from declctl.runtime.caching.identities import CacheIdentity
from declctl.runtime.caching.informer_pool import InformerPool
from declctl.runtime.caching.managed_informer import ManagedInformer, ResourceIndex, ResourceRequirement

TEXT = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: guard}
spec:
  resources:
    - {name: one, apiVersion: v1, kind: Pod, idleTimeout: 30s}
    - {name: two, apiVersion: v1, kind: Pod, idleTimeout: 60s}
    - {name: other, apiVersion: v1, kind: Pod, namespaces: [a, b]}
"""
MODES = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: guard}
spec:
  resources:
    - {name: framed, apiVersion: v1, kind: Pod, cache: {mode: Frames}}
    - {name: held, apiVersion: v1, kind: Pod, cache: {mode: Objects}}
    - name: partial
      apiVersion: v1
      kind: Pod
      cache: {mode: MetadataOnly}
      transform: {dropFields: [metadata.managedFields, status]}
"""


class _Cluster:
    """Makes sources that are never asked, and counts them."""

    def __init__(self) -> None:
        self.made: list[str | None] = []
        self.asked: list[dict] = []

    def source(self, gvk, *, namespace=None, projection, **asked):
        self.made.append(namespace)
        self.asked.append(asked)
        return SimpleNamespace(projection=projection)


def _wanted(*, index: str | None = None, text: str = TEXT) -> list[ResourceRequirement]:
    resources = plan(load(ManifestSource.of([("m.yaml", text.encode())])).controller).resources
    indexes = () if index is None else (ResourceIndex("it", f"it@{index}", field_index(index)),)
    return [
        ResourceRequirement(
            resource, tuple(CacheIdentity(watch) for watch in resource.watches), indexes, None
        )
        for resource in resources
    ]


def _run(scenario) -> None:
    async def main() -> None:
        cluster = _Cluster()
        async with asyncio.TaskGroup() as tasks:
            await scenario(InformerPool(cluster, tasks=tasks, clock=SystemClock()), cluster)

    asyncio.run(main())


@pytest.mark.client_go(319, "Separate caches")
def test_resources_with_one_watch_share_a_cache() -> None:
    """Two resources watch the same pods: one informer, with the shorter of their idle timeouts."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        one, two, other = wanted = _wanted()
        fresh = caches.prepare(wanted)
        assert cluster.made == [None, "a", "b"]
        assert len(fresh) == len(caches.all()) == 3
        assert caches.of(one) == caches.of(two)
        assert len(caches.of(other)) == 2

    _run(scenario)


def test_a_cache_that_the_next_generation_wants_is_kept() -> None:
    """A reload that keeps a resource makes no new cache and closes none."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        old = _wanted()
        caches.prepare(old)
        before = caches.all()
        assert caches.prepare(_wanted()) == []
        caches.release(old, linger=0.0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert caches.all() == before

    _run(scenario)


@pytest.mark.guarantee("G14")
def test_a_cache_that_nobody_wants_lingers_and_closes() -> None:
    """Released, wanted again within its time, released again: it closes only then."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        old, new = _wanted()[:1], _wanted()[:1]
        caches.prepare(old)
        caches.release(old, linger=60.0)
        assert caches.prepare(new) == []
        caches.release(new, linger=0.0)
        async with asyncio.timeout(5):
            while caches.all():
                await asyncio.sleep(0)
        assert len(caches.prepare(_wanted()[:1])) == 1

    _run(scenario)


@pytest.mark.guarantee("G12")
def test_an_index_is_built_once_and_kept_while_a_generation_reads_it() -> None:
    """The index of an old generation stays until nobody who reads it is left (G12)."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        old, new = _wanted(index="spec.nodeName")[:1], _wanted(index="spec.nodeName")[:1]
        for wanted in (_wanted()[:1], old, new):
            caches.prepare(wanted)
        assert await caches.build_indexes(old, timeout=60.0) == 1
        assert await caches.build_indexes(new, timeout=60.0) == 0
        caches.drop_indexes(old, kept=new)
        assert list(caches.lister(new[0]).index_names()) == ["it"]
        caches.of(new[0])[0].informer.synced.open()
        assert caches.lister(new[0]).by_index("it", "n1") == []
        caches.drop_indexes(new, kept=[])
        assert caches.of(new[0])[0].informer.indexer.get_indexers() == {}

    _run(scenario)


def test_a_new_index_field_is_decoded_from_then_on() -> None:
    """An index over another field: the projection of the living source takes it along."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        first, same, other = _wanted()[:1], _wanted()[:1], _wanted(index="spec.nodeName")[:1]
        caches.prepare(first)
        (cached,) = caches.of(first[0])
        before = cached.informer.source.projection
        caches.prepare(same)
        await caches.build_indexes(same, timeout=60.0)
        assert cached.informer.source.projection is before
        caches.prepare(other)
        await caches.build_indexes(other, timeout=60.0)
        assert cached.informer.source.projection is not before

    _run(scenario)


@pytest.mark.client_go("Separate caches")
def test_each_mode_has_a_cache_of_its_own() -> None:
    """One kind kept in three ways: three watches, of which one asks for metadata only."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        wanted = _wanted(text=MODES)
        assert len(caches.prepare(wanted)) == 3
        assert [asked["metadata_only"] for asked in cluster.asked] == [False, False, True]
        framed, held, partial = (caches.of(one)[0] for one in wanted)
        assert framed.mutations is None
        assert held.mutations is not None
        raw = b'{"metadata":{"name":"a","resourceVersion":"1"},"spec":{}}'
        read = [cached.informer.source.projection.record(raw).read for cached in (framed, held, partial)]
        assert [each() is each() for each in read] == [False, True, False]
        assert [each()["kind"] for each in read] == ["Pod"] * 3

    _run(scenario)


def test_a_field_that_the_server_never_sends_is_not_looked_for() -> None:
    """`dropFields: [status]` beside MetadataOnly costs nothing: no object is decoded for it."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        wanted = _wanted(text=MODES)
        caches.prepare(wanted)
        projection = caches.of(wanted[2])[0].informer.source.projection
        projection.record(b'{"metadata":{"name":"a","resourceVersion":"1"}}')
        assert projection.statistics().decoded_whole == 0

    _run(scenario)


def _keeping(rest: str) -> list[ResourceRequirement]:
    """One resource that is kept in some way."""
    return _wanted(
        text=f"{TEXT.partition('    - ')[0]}    - {{name: one, apiVersion: v1, kind: Pod{rest}}}\n"
    )


_DROPPING = ", transform: {dropFields: [metadata.managedFields, spec.secret]}"
_RAW = b'{"metadata":{"name":"a","uid":"u","resourceVersion":"1"},"spec":{"secret":"x","nodeName":"n1"}}'
_ODD = b'{"metadata":{"name":"odd","uid":"o","resourceVersion":"2"},"spec":{"n":1e999}}'


async def _filled(caches: InformerPool, wanted: list[ResourceRequirement], *raws: bytes) -> ManagedInformer:
    caches.prepare(wanted)
    (cached,) = caches.of(wanted[0])
    for raw in raws:
        record = cached.informer.source.projection.record(raw)
        assert record is not None
        cached.informer.indexer.add(record)
    cached.informer.synced.open()
    return cached


async def _taken_over() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_cache_becomes_another_at_the_commit_and_not_before() -> None:
    """More dropped fields: staged beside, then the same informer has the new records."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        old, new = _keeping(""), _keeping(_DROPPING)
        cached = await _filled(caches, old, _RAW)
        (before,) = cached.informer.indexer.list()
        assert caches.prepare(new) == []
        await caches.build_indexes(new, timeout=60.0)
        assert cached.informer.indexer.list() == [before]
        assert cached.identity == old[0].identities[0]
        caches.commit_staged(new)
        await _taken_over()
        (after,) = cached.informer.indexer.list()
        assert after.decode()["spec"] == {"nodeName": "n1"}
        assert caches.of(old[0]) == caches.of(new[0]) == (cached,)
        assert cached.identity == new[0].identities[0]
        caches.release(old, linger=0.0)
        await _taken_over()
        assert caches.all() == (cached,)
        assert len(cluster.made) == 1

    _run(scenario)


def test_what_can_not_be_made_anew_changes_nothing() -> None:
    """The bytes of an object in memory can't be read: refused, and all is as it was (G6)."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        old, new = _keeping(""), _keeping(_DROPPING)
        cached = await _filled(caches, old, _RAW, _ODD)
        (odd,) = (record for record in cached.informer.indexer.list() if record.key == "odd")
        cached.informer.indexer.update(structs.replace(odd, frame=b"\x00broken"))
        before, projection = cached.informer.indexer.list(), cached.informer.source.projection
        caches.prepare(new)
        with pytest.raises(ReloadRefused, match="odd can't be made anew") as refused:
            await caches.build_indexes(new, timeout=60.0)
        assert refused.value.reason == "ReprojectFailed"
        caches.release(new, linger=0.0)
        await _taken_over()
        assert all(a is b for a, b in zip(cached.informer.indexer.list(), before, strict=True))
        assert cached.informer.source.projection is projection
        assert caches.all() == (cached,)
        caches.commit_staged(new)
        assert cached.identity == old[0].identities[0]

    _run(scenario)


def test_objects_that_can_not_be_decoded_are_kept_another_way_all_the_same() -> None:
    """Nothing is dropped from them: as frames or as objects, they are what they were."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        old, new = _keeping(""), _keeping(", cache: {mode: Objects}")
        cached = await _filled(caches, old, _ODD)
        caches.prepare(new)
        await caches.build_indexes(new, timeout=60.0)
        caches.commit_staged(new)
        await _taken_over()
        (record,) = cached.informer.indexer.list()
        assert record.layout.codec.decode(record.frame) == _ODD
        assert cached.mutations is not None

    _run(scenario)


def test_an_object_without_a_name_after_its_transform_is_kept_under_its_own() -> None:
    """A transform may take all metadata away; the cache knows whose frame it is."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        wanted = [_keeping(""), _keeping(", cache: {mode: Objects}")]
        old, new = ([replace(one, transform=lambda obj: {"spec": obj["spec"]})] for (one,) in wanted)
        cached = await _filled(caches, old, _RAW)
        caches.prepare(new)
        await caches.build_indexes(new, timeout=60.0)
        caches.commit_staged(new)
        await _taken_over()
        (record,) = cached.informer.indexer.list()
        assert (record.key, record.uid, record.resource_version) == ("a", "u", "1")
        assert record.read()["spec"] == {"secret": "x", "nodeName": "n1"}
        assert record.read() is record.read()

    _run(scenario)


def test_a_cache_that_somebody_else_wants_as_it_is_stays() -> None:
    """A second resource is kept another way: it has a cache of its own, and is listed."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        old, new = _keeping(""), _keeping(_DROPPING)
        cached = await _filled(caches, old, _RAW)
        fresh = caches.prepare([*_keeping(""), *new])
        assert [one.identity for one in fresh] == [new[0].identities[0]]
        assert caches.of(old[0]) == (cached,)

    _run(scenario)


def test_an_index_field_is_at_hand_before_the_index_is_built() -> None:
    """The frames are kept, and what stands in them is read once for all."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        old, new = _keeping(""), _wanted(index="spec.nodeName")[:1]
        cached = await _filled(caches, old, _RAW)
        (before,) = cached.informer.indexer.list()
        caches.prepare(new)
        assert await caches.build_indexes(new, timeout=60.0) == 1
        (record,) = cached.informer.indexer.list()
        assert (record.values, record.frame) == (("n1",), before.frame)
        assert [view.name for view in caches.lister(new[0]).by_index("it", "n1")] == ["a"]

    _run(scenario)


def _becoming_again() -> tuple[
    list[ResourceRequirement], list[ResourceRequirement], list[ResourceRequirement]
]:
    """Three generations of one resource: the third wants the cache as the first had it."""
    return _keeping(""), _keeping(", cache: {mode: Objects}"), _keeping("")


async def _third_is_staged(
    caches: InformerPool,
    oldest: list[ResourceRequirement],
    old: list[ResourceRequirement],
    new: list[ResourceRequirement],
) -> ManagedInformer:
    """The second runs, the first has not been released, and the third is ready for its commit."""
    cached = await _filled(caches, oldest, _RAW)
    caches.commit_staged(oldest)
    caches.prepare(old)
    await caches.build_indexes(old, timeout=60.0)
    caches.commit_staged(old)
    await _taken_over()
    caches.prepare(new)
    await caches.build_indexes(new, timeout=60.0)
    return cached


@pytest.mark.guarantee("G1", "G6")
def test_a_generation_that_retires_takes_nothing_from_the_one_that_is_staged() -> None:
    """The oldest drains until a third is staged that wants just what it wanted: the cache becomes that."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        oldest, old, new = _becoming_again()
        cached = await _third_is_staged(caches, oldest, old, new)
        caches.release(oldest, linger=60.0)
        caches.commit_staged(new)
        await _taken_over()
        assert cached.identity == new[0].identities[0]
        assert cached.mutations is None
        (record,) = cached.informer.indexer.list()
        assert record.read() is not record.read()

    _run(scenario)


def test_what_is_given_up_turns_nothing_even_if_somebody_else_wants_the_same() -> None:
    """A staged generation is undone while an older one that drains wants the same cache: it stays."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        oldest, old, new = _becoming_again()
        cached = await _third_is_staged(caches, oldest, old, new)
        caches.release(new, linger=0.0)
        caches.commit_staged(new)
        assert cached.identity == old[0].identities[0]
        assert caches.all() == (cached,)

    _run(scenario)


@pytest.mark.guarantee("G12")
def test_an_index_that_a_staged_generation_counts_on_stays() -> None:
    """The index that it found there belongs to one that retires before the commit."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        oldest, old, new = (
            _wanted(index="spec.nodeName")[:1],
            _keeping(""),
            _wanted(index="spec.nodeName")[:1],
        )
        await _filled(caches, oldest, _RAW)
        for later in (old, new):
            caches.prepare(later)
        assert await caches.build_indexes(new, timeout=60.0) == 0
        caches.drop_indexes(oldest, kept=old)
        caches.release(oldest, linger=60.0)
        caches.commit_staged(new)
        assert [view.name for view in caches.lister(new[0]).by_index("it", "n1")] == ["a"]
        caches.drop_indexes(new, kept=old)
        assert caches.of(old[0])[0].informer.indexer.get_indexers() == {}

    _run(scenario)


@pytest.mark.guarantee("G6", "G14")
def test_what_lingers_lingers_on_after_an_attempt_that_wanted_it() -> None:
    """A resource is taken out, then back in by an edit that is refused: its cache keeps its time."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        old, refused, new = (_keeping("") for _ in range(3))
        cached = await _filled(caches, old, _RAW)
        caches.commit_staged(old)
        caches.release(old, linger=60.0)
        assert caches.prepare(refused) == []
        caches.release(refused, linger=0.0)
        await _taken_over()
        assert caches.all() == (cached,)
        assert caches.prepare(new) == []
        assert cluster.made == [None]

    _run(scenario)


@pytest.mark.guarantee("G6", "G14")
def test_what_an_attempt_alone_kept_from_lingering_lingers_after_it() -> None:
    """The last user goes while a generation is staged, which is undone: the time runs from the former."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        old, refused = _keeping(""), _keeping("")
        cached = await _filled(caches, old, _RAW)
        caches.commit_staged(old)
        caches.prepare(refused)
        caches.release(old, linger=60.0)
        caches.release(refused, linger=0.0)
        await _taken_over()
        assert caches.all() == (cached,)

    _run(scenario)


def test_what_only_an_attempt_wanted_is_gone_when_it_is_undone() -> None:
    """A new cache, not filled yet: the next attempt makes another, and does not take it for a synced one."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        refused, new = _keeping(""), _keeping("")
        caches.prepare(refused)
        caches.release(refused, linger=0.0)
        assert caches.all() == ()
        assert len(caches.prepare(new)) == 1

    _run(scenario)


@pytest.mark.guarantee("G12")
def test_a_field_is_brought_to_hand_while_an_old_generation_retires() -> None:
    """Between two slices of it the last that had the cache before goes: what is made is complete."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        old, new = _keeping(""), _wanted(index="spec.nodeName")[:1]
        raws = [_RAW.replace(b'"a"', b'"a%d"' % n) for n in range(350)]
        await _filled(caches, old, *raws)
        caches.commit_staged(old)
        caches.prepare(new)
        building = asyncio.ensure_future(caches.build_indexes(new, timeout=60.0))
        await asyncio.sleep(0)  # the first slice is made
        caches.drop_indexes(old, kept=[])
        caches.release(old, linger=0.0)
        assert await building == 1
        caches.commit_staged(new)
        assert len(caches.lister(new[0]).by_index("it", "n1")) == 350
        assert {record.values for record in caches.of(new[0])[0].informer.indexer.list()} == {("n1",)}

    _run(scenario)


@pytest.mark.guarantee("G5", "G22")
def test_a_cache_calls_functions_of_a_generation_that_uses_it() -> None:
    """Index and transform are defined alike in three: when one goes, nothing of its code is kept."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        asked: list[str] = []

        def by(who: str) -> list[ResourceRequirement]:
            def transform(obj):
                asked.append(f"transform of {who}")
                return obj

            def index(obj):
                asked.append(f"index of {who}")
                return [obj.name]

            (one,) = _keeping("")
            identity = CacheIdentity(one.identities[0].watch, "digest")
            indexes = (ResourceIndex("it", "it@digest", function_index(index)),)
            return [replace(one, identities=(identity,), indexes=indexes, transform=transform)]

        def heard() -> list[str]:
            asked.clear()
            record = cached.informer.source.projection.record(_RAW)
            assert record is not None
            cached.informer.indexer.add(record)
            return asked

        oldest, old, staged = by("oldest"), by("old"), by("staged")
        caches.prepare(oldest)
        (cached,) = caches.of(oldest[0])
        caches.commit_staged(oldest)
        caches.prepare(old)
        assert heard() == ["transform of oldest", "index of oldest"]
        caches.commit_staged(old)
        caches.prepare(staged)
        caches.drop_indexes(oldest, kept=old)
        caches.release(oldest, linger=60.0)
        assert heard() == ["transform of old", "index of old"]
        caches.drop_indexes(staged, kept=old)
        caches.release(staged, linger=0.0)
        assert heard() == ["transform of old", "index of old"]

    _run(scenario)


@pytest.mark.guarantee("G6", "G12")
def test_an_attempt_is_given_up_while_a_field_takes_its_place() -> None:
    """Some records have the field and others not: readers see each object, and the next attempt all of it."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        old, given_up, new = _keeping(""), *(_wanted(index="spec.nodeName")[:1] for _ in range(2))
        raws = [_RAW.replace(b'"a"', b'"a%d"' % n) for n in range(600)]
        cached = await _filled(caches, old, *raws)
        caches.commit_staged(old)
        caches.prepare(given_up)
        building = asyncio.ensure_future(caches.build_indexes(given_up, timeout=60.0))
        while len({record.values for record in cached.informer.indexer.list()}) == 1:
            await asyncio.sleep(0)
        building.cancel()
        with pytest.raises(asyncio.CancelledError):
            await building
        caches.drop_indexes(given_up, kept=old)
        caches.release(given_up, linger=0.0)
        assert (cached.generation_count, cached.informer.indexer.get_indexers()) == (1, {})
        assert len(caches.lister(old[0]).list()) == 600
        caches.prepare(new)
        assert await caches.build_indexes(new, timeout=60.0) == 1
        caches.commit_staged(new)
        assert len(caches.lister(new[0]).by_index("it", "n1")) == 600
        assert {record.values for record in cached.informer.indexer.list()} == {("n1",)}

    _run(scenario)


@pytest.mark.guarantee("G6")
def test_a_source_that_cannot_be_made_leaves_nothing_counted() -> None:
    """Of two new caches the second can't be had: the first is forgotten, and what lives on is as it was."""

    async def scenario(caches: InformerPool, cluster: _Cluster) -> None:
        old = _wanted()[:1]
        cached = await _filled(caches, old)
        caches.commit_staged(old)
        made, cluster.source = cluster.source, lambda gvk, **asked: _refuse_the_last(made, gvk, asked)
        with pytest.raises(ValueError, match="no source"):
            caches.prepare(_wanted())
        assert (caches.all(), cached.generation_count) == ((cached,), 1)
        caches.release(old, linger=0.0)
        assert caches.all() == ()

    def _refuse_the_last(made, gvk, asked):
        if asked["namespace"] == "b":
            raise ValueError("no source")
        return made(gvk, **asked)

    _run(scenario)
