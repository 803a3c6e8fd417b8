"""The caches: shared by what they watch, kept while somebody wants them, gone after that."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import chain
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


@asynccontextmanager
async def _pool() -> AsyncIterator[tuple[InformerPool, _Cluster]]:
    cluster = _Cluster()
    async with asyncio.TaskGroup() as tasks:
        yield InformerPool(cluster, tasks=tasks, clock=SystemClock()), cluster


@pytest.mark.client_go(319, "Separate caches")
async def test_resources_with_one_watch_share_a_cache() -> None:
    """Two resources watch the same pods: one informer."""
    async with _pool() as (caches, cluster):
        one, two, other = wanted = _wanted()
        fresh = caches.prepare(wanted)
        assert cluster.made == [None, "a", "b"]
        assert len(fresh) == len(caches.all()) == 3
        assert caches.of(one) == caches.of(two)
        assert len(caches.of(other)) == 2


@pytest.mark.guarantee("G14")
async def test_a_cache_is_kept_while_a_generation_wants_it() -> None:
    """A reload that keeps a resource makes none anew. Released, wanted again, released again: it closes."""
    async with _pool() as (caches, _):
        old = _wanted()
        caches.prepare(old)
        before = caches.all()
        assert caches.prepare(_wanted()) == []
        caches.release(old, linger=0.0)
        await _taken_over()
        assert caches.all() == before
    async with _pool() as (caches, _):
        old, new = _keeping(""), _keeping("")
        caches.prepare(old)
        caches.release(old, linger=60.0)
        assert caches.prepare(new) == []
        caches.release(new, linger=0.0)
        async with asyncio.timeout(5):
            while caches.all():
                await asyncio.sleep(0)
        assert len(caches.prepare(_keeping(""))) == 1


@pytest.mark.guarantee("G12")
async def test_an_index_is_built_once_and_kept_while_a_generation_reads_it() -> None:
    """Until nobody who reads it is left, a staged generation included (G12)."""
    async with _pool() as (caches, _):
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
    async with _pool() as (caches, _):
        (oldest, new), old = (_wanted(index="spec.nodeName")[:1] for _ in range(2)), _keeping("")
        await _filled(caches, oldest, _RAW)
        caches.prepare(old)
        assert await _staged(caches, new) == 0
        caches.drop_indexes(oldest, kept=old)
        caches.release(oldest, linger=60.0)
        caches.commit_staged(new)
        assert [view.name for view in caches.lister(new[0]).by_index("it", "n1")] == ["a"]
        caches.drop_indexes(new, kept=old)
        assert caches.of(old[0])[0].informer.indexer.get_indexers() == {}


async def test_a_new_index_field_is_decoded_from_then_on() -> None:
    """The projection of the living source takes it along, and it is at hand before the index is built."""
    async with _pool() as (caches, _):
        first, same, other = _wanted()[:1], _wanted()[:1], _wanted(index="spec.nodeName")[:1]
        caches.prepare(first)
        (cached,) = caches.of(first[0])
        before = cached.informer.source.projection
        await _staged(caches, same)
        assert cached.informer.source.projection is before
        await _staged(caches, other)
        assert cached.informer.source.projection is not before
    async with _pool() as (caches, _):
        old, new = _keeping(""), _wanted(index="spec.nodeName")[:1]
        cached = await _filled(caches, old, _RAW)
        (before,) = cached.informer.indexer.list()
        assert await _staged(caches, new) == 1
        (record,) = cached.informer.indexer.list()
        assert (record.values, record.frame) == (("n1",), before.frame)
        assert [view.name for view in caches.lister(new[0]).by_index("it", "n1")] == ["a"]


@pytest.mark.client_go("Separate caches")
async def test_each_mode_has_a_cache_of_its_own() -> None:
    """Three watches, of which one asks for metadata; a field that the server never sends costs nothing."""
    async with _pool() as (caches, cluster):
        modes = ("Frames", "Objects", "MetadataOnly")
        wanted = [*chain.from_iterable(_keeping(f", cache: {{mode: {mode}}}") for mode in modes)]
        assert len(caches.prepare(wanted)) == 3
        assert [asked["metadata_only"] for asked in cluster.asked] == [False, False, True]
        framed, held, partial = (caches.of(one)[0] for one in wanted)
        assert framed.mutations is None
        assert held.mutations is not None
        projections = [cached.informer.source.projection for cached in (framed, held, partial)]
        raw = b'{"metadata":{"name":"a","resourceVersion":"1"}}'
        read = [projection.record(raw).read for projection in projections]
        assert projections[2].statistics().decoded_whole == 0
        assert [each() is each() for each in read] == [False, True, False]
        assert [each()["kind"] for each in read] == ["Pod"] * 3


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
        cached.informer.indexer.add(cached.informer.source.projection.record(raw))
    cached.informer.synced.open()
    return cached


async def _taken_over() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def _staged(caches: InformerPool, wanted: list[ResourceRequirement]) -> int:
    caches.prepare(wanted)
    return await caches.build_indexes(wanted, timeout=60.0)


async def _committed(caches: InformerPool, wanted: list[ResourceRequirement]) -> None:
    await _staged(caches, wanted)
    caches.commit_staged(wanted)
    await _taken_over()


async def test_a_cache_becomes_another_at_the_commit_and_not_before() -> None:
    """More dropped fields: staged beside, then the same informer has the new records."""
    async with _pool() as (caches, cluster):
        old, new = _keeping(""), _keeping(_DROPPING)
        cached = await _filled(caches, old, _RAW)
        (before,) = cached.informer.indexer.list()
        await _staged(caches, new)
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


async def test_what_can_not_become_another_cache_stays_as_it_is() -> None:
    """Bytes that can't be read refuse it (G6); one that a second resource wants as it is has its own."""
    async with _pool() as (caches, _):
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
    async with _pool() as (caches, _):
        old, new = _keeping(""), _keeping(_DROPPING)
        cached = await _filled(caches, old, _RAW)
        fresh = caches.prepare([*_keeping(""), *new])
        assert [one.identity for one in fresh] == [new[0].identities[0]]
        assert caches.of(old[0]) == (cached,)


async def test_odd_objects_are_kept_another_way_all_the_same() -> None:
    """Those that can't be decoded are what they were; one without a name after its transform has its own."""
    async with _pool() as (caches, _):
        old, new = _keeping(""), _keeping(", cache: {mode: Objects}")
        cached = await _filled(caches, old, _ODD)
        await _committed(caches, new)
        (record,) = cached.informer.indexer.list()
        assert record.layout.codec.decode(record.frame) == _ODD
        assert cached.mutations is not None
    async with _pool() as (caches, _):
        wanted = [_keeping(""), _keeping(", cache: {mode: Objects}")]
        old, new = ([replace(one, transform=lambda obj: {"spec": obj["spec"]})] for (one,) in wanted)
        cached = await _filled(caches, old, _RAW)
        await _committed(caches, new)
        (record,) = cached.informer.indexer.list()
        assert (record.key, record.uid, record.resource_version) == ("a", "u", "1")
        assert record.read()["spec"] == {"secret": "x", "nodeName": "n1"}
        assert record.read() is record.read()


async def _third_is_staged(caches: InformerPool) -> tuple[ManagedInformer, list[list[ResourceRequirement]]]:
    """Of three generations the third wants the cache as the first had it, and is ready for its commit.

    The second runs, and the first has not been released.
    """
    oldest, old, new = _keeping(""), _keeping(", cache: {mode: Objects}"), _keeping("")
    cached = await _filled(caches, oldest, _RAW)
    caches.commit_staged(oldest)
    await _committed(caches, old)
    await _staged(caches, new)
    return cached, [oldest, old, new]


@pytest.mark.guarantee("G1", "G6")
async def test_the_oldest_of_three_generations_drains_while_a_third_is_staged() -> None:
    """It wants what the third wants: the cache becomes that, or stays if the third is undone."""
    async with _pool() as (caches, _):
        cached, (oldest, _, new) = await _third_is_staged(caches)
        caches.release(oldest, linger=60.0)
        caches.commit_staged(new)
        await _taken_over()
        assert cached.identity == new[0].identities[0]
        assert cached.mutations is None
        (record,) = cached.informer.indexer.list()
        assert record.read() is not record.read()
    async with _pool() as (caches, _):
        cached, (_, old, new) = await _third_is_staged(caches)
        caches.release(new, linger=0.0)
        caches.commit_staged(new)
        assert cached.identity == old[0].identities[0]
        assert caches.all() == (cached,)


@pytest.mark.guarantee("G6", "G14")
async def test_what_lingers_lingers_on_after_an_attempt() -> None:
    """One that wanted it, or alone kept it from lingering; what only an attempt wanted is gone with it."""
    async with _pool() as (caches, cluster):
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
    async with _pool() as (caches, _):
        old, refused = _keeping(""), _keeping("")
        cached = await _filled(caches, old, _RAW)
        caches.commit_staged(old)
        caches.prepare(refused)
        caches.release(old, linger=60.0)
        caches.release(refused, linger=0.0)
        await _taken_over()
        assert caches.all() == (cached,)
    async with _pool() as (caches, _):
        refused, new = _keeping(""), _keeping("")
        caches.prepare(refused)
        caches.release(refused, linger=0.0)
        assert caches.all() == ()
        assert len(caches.prepare(new)) == 1


@pytest.mark.guarantee("G12")
async def test_a_field_is_brought_to_hand_while_an_old_generation_retires() -> None:
    """Between two slices of it the last that had the cache before goes: what is made is complete."""
    async with _pool() as (caches, _):
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


@pytest.mark.guarantee("G5", "G22")
async def test_a_cache_calls_functions_of_a_generation_that_uses_it() -> None:
    """Index and transform are defined alike in three: when one goes, nothing of its code is kept."""
    async with _pool() as (caches, _):
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
            cached.informer.indexer.add(cached.informer.source.projection.record(_RAW))
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


@pytest.mark.guarantee("G6", "G12")
async def test_an_attempt_is_given_up_while_a_field_takes_its_place() -> None:
    """Some records have the field and others not: readers see each object, and the next attempt all of it."""
    async with _pool() as (caches, _):
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
        assert await _staged(caches, new) == 1
        caches.commit_staged(new)
        assert len(caches.lister(new[0]).by_index("it", "n1")) == 600
        assert {record.values for record in cached.informer.indexer.list()} == {("n1",)}


@pytest.mark.guarantee("G6")
async def test_a_source_that_cannot_be_made_leaves_nothing_counted() -> None:
    """Of two new caches the second can't be had: the first is forgotten, and what lives on is as it was."""

    def _refuse_the_last(made, gvk, asked):
        if asked["namespace"] == "b":
            raise ValueError("no source")
        return made(gvk, **asked)

    async with _pool() as (caches, cluster):
        old = _wanted()[:1]
        cached = await _filled(caches, old)
        caches.commit_staged(old)
        made, cluster.source = cluster.source, lambda gvk, **asked: _refuse_the_last(made, gvk, asked)
        with pytest.raises(ValueError, match="no source"):
            caches.prepare(_wanted())
        assert (caches.all(), cached.generation_count) == ((cached,), 1)
        caches.release(old, linger=0.0)
        assert caches.all() == ()
