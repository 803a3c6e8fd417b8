"""An informer whose scope of shards changes at any moment, against a server that changes and breaks off.

Whatever happens: a listener hears of open shards alone, and what it hears adds up to them; a shard that
leaves is no delete; a shard that comes is as new as that moment; the cache has the held shards and no other.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declctl.decoding import Projection
from declctl.errors import CacheError, Expired, Unreachable
from declctl.informer import FakeControllerSource, ReflectorOptions, SharedIndexInformer
from declctl.informer.scope import ShardScope
from declctl.kit import Latch
from declctl.objects import (
    ChangeReason,
    ChangeType,
    ListOptions,
    ListPage,
    Notification,
    Record,
    WatchEvent,
    WatchOptions,
)
from declctl.objects.shards import Sharding, ShardKey
from tests.properties.folding import State, states
from tests.properties.informer_world import QuickClock, instrumented

_SHARDS = 3
_KEYS = [f"{namespace}/{name}" for namespace in ("one", "two", "four") for name in "abc"]
_FAULTS: dict[str, Callable[[], Exception]] = {
    "unreachable": lambda: Unreachable("connection refused"),
    "expired": lambda: Expired(410, "Expired", "too old"),
}
_shards = st.sets(st.integers(0, _SHARDS - 1), min_size=1)
_STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(_KEYS)),
    st.tuples(st.just("put"), st.sampled_from(_KEYS)),
    st.tuples(st.just("delete"), st.sampled_from(_KEYS)),
    st.tuples(st.just("recreate"), st.sampled_from(_KEYS)),
    st.tuples(st.sampled_from(["widen", "narrow", "open", "close"]), _shards),
    st.tuples(st.sampled_from(["gain", "gain", "narrow", "gain_twice", "reopen"]), _shards),
    st.tuples(st.just("breathe"), st.integers(1, 6)),
    st.tuples(st.just("breathe"), st.integers(1, 12)),
    st.tuples(st.just("settle"), st.none()),
    st.tuples(st.just("cut"), st.sampled_from([None, *_FAULTS])),
    st.tuples(st.just("fail"), st.sampled_from(["list", "watch"])),
    st.tuples(st.sampled_from(["relist", "compact", "bookmark", "join", "filter", "decode"]), st.none()),
)


class _SlowServer(FakeControllerSource):
    """A server whose answers are decoded, and on their way, for a while."""

    async def list(self, options: ListOptions, **more: Any) -> ListPage:
        page = await super().list(options, **more)
        for _ in range(6):
            await asyncio.sleep(0)
        return page

    async def watch(self, options: WatchOptions, **more: Any) -> AsyncGenerator[Sequence[WatchEvent], None]:
        async with aclosing(super().watch(options, **more)) as batches:
            async for batch in batches:
                await asyncio.sleep(0)
                yield batch


class _Listener:
    """What was told, folded; and what may not be told."""

    def __init__(self, world: "_World") -> None:
        self.world = world
        self.view: dict[str, Record] = {}
        self.wrong: list[str] = []

    def add_all(self, notifications: Sequence[Notification]) -> None:
        for each in notifications:
            key, held = each.key, self.view.pop(each.key, None)
            if self.world.shard(each.record) not in self.world.opened:
                self.wrong.append(f"told of a closed shard: {each.type} {key}")
            if each.reason is ChangeReason.OUT_OF_SCOPE:
                self.wrong.append(f"told that a shard has left: {key}")
            if (each.type is ChangeType.ADDED) is not (held is None):
                self.wrong.append(f"{each.type} {key}, and it was {held and 'told before'}")
            if each.old is not None and held is not None and each.old.revision != held.revision:
                self.wrong.append(f"Modified {key}: the old state is not what was told last")
            if each.type is not ChangeType.DELETED:
                self.view[key] = each.record


class _World:
    def __init__(self, by: ShardKey, options: ReflectorOptions, *, streams: bool) -> None:
        self.sharding = Sharding(_SHARDS, by)
        self.clock, self.server = QuickClock(), _SlowServer()
        self.server.streams = streams
        self.scope = ShardScope(self.sharding)
        self.informer = SharedIndexInformer(
            self.server, name="pods", clock=self.clock, options=options, scope=self.scope
        )
        self.opened: set[int] = set()
        self.held: set[int] = set()
        self.listeners: list[_Listener] = []
        self.wrong: list[str] = []
        self._uids = itertools.count(1)
        self.join(None)
        self.task = asyncio.create_task(self.informer.run())

    def shard(self, record: Record) -> int:
        return self.sharding.shard_of(record.object_key.namespace, record.uid)

    def there(self, shards: set[int]) -> dict[str, State]:
        """Uid and version of the server's objects in these shards."""
        found: dict[str, State] = {}
        for key, obj in self.server.objects.items():
            meta = obj["metadata"]
            if self.sharding.shard_of(meta["namespace"], meta["uid"]) in shards:
                found[key] = meta["uid"], meta["resourceVersion"]
        return found

    def put(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        obj: Any = {"metadata": {"namespace": namespace, "name": name}}
        if key in self.server.objects:
            self.server.modify(obj)
        else:
            obj["metadata"]["uid"] = f"{next(self._uids)}-uid-{key}"
            self.server.add(obj)

    def delete(self, key: str) -> None:
        if key in self.server.objects:
            self.server.delete(key)

    def recreate(self, key: str) -> None:
        self.delete(key)
        self.put(key)

    def widen(self, shards: set[int]) -> None:
        then = self.there(shards - self.held)
        self.held |= shards
        latch = self.informer.widen(shards)
        latch.on_open(lambda: self._check_age(latch, then))

    def _check_age(self, latch: Latch, then: dict[str, State]) -> None:
        """A latch has opened: what was there when the shards came is in the cache, or a newer state of it."""
        cached = states(self.informer.indexer.known())
        for key, (uid, version) in then.items():
            if key in cached and int(cached[key][1]) >= int(version):
                continue
            now = self.server.objects.get(key)
            if now is not None and now["metadata"]["uid"] == uid:
                self.wrong.append(f"{latch}: {key} is not in the cache")

    async def gain(self, shards: set[int]) -> None:
        self.widen(shards)
        await self.clock.settle()
        self.open(shards)

    async def gain_twice(self, shards: set[int]) -> None:
        """Others come while a list of the first ones is under way."""
        self.widen(shards)
        await self.breathe(5)
        self.widen({0, 1, 2})

    async def reopen(self, shards: set[int]) -> None:
        """While the shards are introduced, they are closed, and opened again."""
        self.open(shards)
        await self.breathe(1)
        self.close(shards)
        await self.breathe(1)
        self.open(shards)

    def narrow(self, shards: set[int]) -> None:
        self.close(shards)
        self.held -= shards
        self.informer.narrow(shards)

    def open(self, shards: set[int]) -> None:
        before, self.opened = self.opened, self.opened | shards
        try:
            self.informer.open_shards(shards)
        except CacheError:
            self.opened = before  # it is not listed

    def close(self, shards: set[int]) -> None:
        self.opened -= shards
        self.informer.close_shards(shards)
        for listener in self.listeners:
            gone = [key for key, record in listener.view.items() if self.shard(record) in shards]
            for key in gone:
                del listener.view[key]

    def join(self, _: None) -> None:
        if len(self.listeners) < 4:
            listener = _Listener(self)
            self.listeners.append(listener)
            self.informer.add_listener(listener, deferred=len(self.listeners) % 2 == 0)

    async def breathe(self, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(0)

    async def settle(self, _: None) -> None:
        await self.clock.settle()

    def cut(self, fault: str | None) -> None:
        self.server.cut(_FAULTS[fault]() if fault else None)

    def fail(self, verb: str) -> None:
        self.server.fail_next(Unreachable("connection refused"), verb=verb)

    def relist(self, _: None) -> None:
        self.informer.request_relist()

    def compact(self, _: None) -> None:
        self.server.cut()
        self.server.compact()

    def bookmark(self, _: None) -> None:
        self.server.bookmark()

    def filter(self, _: None) -> None:
        """The server's feature gate is turned."""
        self.server.filters_shards = not self.server.filters_shards

    def decode(self, _: None) -> None:
        """A reload has another projection."""
        self.informer.reproject(Projection(api_version="v1", kind="Pod"))

    async def step(self, name: str, argument: Any) -> None:
        requests, idle = len(self.server.requests), not self.held
        result = getattr(self, name)(argument)
        if result is not None:
            await result
        if idle and not self.held and len(self.server.requests) > requests:
            self.wrong.append(f"a request without a shard: {self.server.requests[-1]}")

    async def end(self) -> None:
        self.server.calm()
        for _ in range(4):
            await self.clock.advance(40.0)
        self.server.bookmark()
        await self.clock.settle()
        cached = states(self.informer.indexer.known())
        told = [states(listener.view) for listener in self.listeners]
        self.task.cancel()
        await asyncio.wait([self.task])
        assert [*self.wrong, *(fault for each in self.listeners for fault in each.wrong)] == []
        assert self.informer.has_synced
        assert self.informer.statistics().reflector.inconsistencies == 0
        assert cached == self.there(self.held)
        assert told == [self.there(self.opened)] * len(told)


@pytest.mark.parametrize("by", ShardKey)
@given(
    options=st.builds(
        ReflectorOptions,
        page_size=st.sampled_from([None, 2]),
        watch_list=st.booleans(),
        check_consistency=st.booleans(),
    ),
    streams=st.booleans(),
    steps=st.lists(_STEPS, min_size=10, max_size=60),
)
@settings(max_examples=200, deadline=None)
def test_whatever_the_scope_listeners_and_cache_have_its_objects(
    by: ShardKey, options: ReflectorOptions, streams: bool, steps: Any
) -> None:
    async def scenario() -> None:
        world = _World(by, options, streams=streams)
        for name, argument in steps:
            await world.step(name, argument)
        await world.end()

    with instrumented():
        asyncio.run(scenario())
