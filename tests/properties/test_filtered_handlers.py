"""Filtered library handlers with a full buffer: random histories against a model.

The model knows no notifications. What waits for a handler is a step from one state to another, where None
is an object that is not there; two steps of a key that are merged are the way from the first state to the
last. A filter judges both ends.
"""

import os
import random
from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from declctl.decoding import Projection
from declctl.informer import (
    DeletedFinalStateUnknown,
    FilteringResourceEventHandler,
    ProcessorListener,
    ResourceEventHandler,
)
from declctl.informer.applier import resync_of
from declctl.informer.listener import call_handler
from declctl.kit import ManualClock
from declctl.objects import ChangeReason, ChangeType, Notification, ObjectView, Record

_LIMIT = 1024  # bytes: three or four changes
_HISTORIES, _STEPS = 400, 60
_KEYS, _NODES = ("a", "b", "c"), ("in-1", "in-2", "out-1", "out-2")
_PROJECTION = Projection(api_version="v1", kind="Pod")


def _accepts_node(obj: ObjectView) -> bool:
    return str(obj["spec"]["nodeName"]).startswith("in")


def _accepts_team(obj: ObjectView) -> bool:
    return obj.labels["team"] == "red"


def _passes(record: Record) -> bool:
    obj = ObjectView(record)
    return _accepts_node(obj) and _accepts_team(obj)


class Written:
    """The handler behind the filters: what it is called with, and what exists as far as it knows."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.exists: dict[str, str] = {}
        self.wrong: list[str] = []

    def on_add(self, obj: ObjectView, is_in_initial_list: bool) -> None:
        self.calls.append(("add", obj.name, obj.resource_version))
        if obj.name in self.exists or is_in_initial_list:
            self.wrong.append(f"{obj.name} is added twice, or as if it were of the first list")
        self.exists[obj.name] = obj.resource_version

    def on_update(self, old: ObjectView, new: ObjectView) -> None:
        self.calls.append(("update", new.name, old.resource_version, new.resource_version))
        if self.exists.get(new.name) != old.resource_version:
            self.wrong.append(f"{new.name} is updated from what it was not")
        self.exists[new.name] = new.resource_version

    def on_delete(self, obj: ObjectView | DeletedFinalStateUnknown) -> None:
        self.calls.append(("delete", obj.name, obj.resource_version))
        if self.exists.pop(obj.name, None) is None:
            self.wrong.append(f"{obj.name} is deleted and was never there")


@dataclass
class Step:
    """Pending for a handler: from `before` to `after`; `last` is the final state of what is deleted."""

    key: str
    before: Record | None
    after: Record | None
    last: Record | None = None
    resync: bool = False

    def weight(self) -> int:
        if self.after is None:
            assert self.last is not None
            merged = self.before is not self.last
            return _weight(self.last, self.before if merged else None)
        return _weight(self.after, None if self.resync else self.before)

    def told(self) -> list[tuple[str, ...]]:
        """What the handler behind the filters is called with."""
        knows = self.before is not None and _passes(self.before)
        now = self.after is not None and _passes(self.after)
        if now and knows:
            return [("update", self.key, _version(self.before), _version(self.after))]
        if now:
            return [("add", self.key, _version(self.after))]
        if knows:
            return [("delete", self.key, _version(self.last or self.before))]
        return []


class Model:
    """What waits, merged by the contract's table where the buffer is full."""

    def __init__(self) -> None:
        self.waiting: deque[Step] = deque()

    def add(self, step: Step) -> None:
        tail = next((each for each in reversed(self.waiting) if each.key == step.key), None)
        full = sum(each.weight() for each in self.waiting) >= _LIMIT
        if not full or tail is None or not self._merge(tail, step):
            self.waiting.append(step)

    def take(self) -> list[tuple[str, ...]]:
        return self.waiting.popleft().told() if self.waiting else []

    def _merge(self, tail: Step, step: Step) -> bool:
        if step.resync:
            return True
        if tail.resync:
            tail.before, tail.after, tail.last, tail.resync = step.before, step.after, step.last, False
            return True
        if tail.after is None:
            return False  # deleted, and made again: both are told
        if tail.before is None and step.after is None:
            self.waiting = deque(each for each in self.waiting if each is not tail)
            return True  # it came and went, and nobody has heard of it
        tail.after, tail.last = step.after, step.last
        return True


def _weight(record: Record, old: Record | None) -> int:
    return 256 + len(record.frame) + (len(old.frame) if old is not None else 0)


def _version(record: Record | None) -> str:
    assert record is not None
    return record.resource_version


class History:
    """One handler behind two filters, fed by chance and called by hand; the model beside it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.handler, self.model = Written(), Model()
        self.ideal = Written()  # the same handler with a buffer that never fills
        self.listener = _listener(_filtered(self.handler), _LIMIT)
        self.unmerged = _listener(_filtered(self.ideal), 1 << 40)
        self.there: dict[str, Record] = {}
        self.expected: list[tuple[str, ...]] = []
        self.versions = 0

    def play(self) -> None:
        for _ in range(_STEPS):
            act = self.chance.choices((self.put, self.delete, self.resync, self.call), (8, 4, 2, 3))[0]
            act()
        while self.listener.queue.statistics().waiting:
            self.call()
        while (item := self.unmerged.queue.take()) is not None:
            call_handler(self.unmerged.handler, item.value)
            self.unmerged.queue.done(item)
        assert self.handler.calls == self.expected
        assert self.handler.wrong == self.ideal.wrong == []
        assert self.handler.exists == self.ideal.exists
        there = {k: _version(record) for k, record in self.there.items() if _passes(record)}
        assert self.handler.exists == there
        assert not self.model.waiting

    def put(self) -> None:
        key, old = self.chance.choice(_KEYS), None
        old, made = self.there.get(key), self.record(key)
        self.there[key] = made
        kind = ChangeType.ADDED if old is None else ChangeType.MODIFIED
        self.tell(Notification(kind, made, old), Step(key, old, made))

    def delete(self) -> None:
        key = self.chance.choice(_KEYS)
        held = self.there.pop(key, None)
        if held is None:
            return
        missed = self.chance.random() < 0.3
        last = held if missed else self.record(key, like=held)
        notification = Notification(ChangeType.DELETED, last, final_state_unknown=missed)
        # What was not merged is judged by its final state, which is like the one before.
        self.tell(notification, Step(key, last, None, last))

    def resync(self) -> None:
        if self.there:
            key = self.chance.choice(sorted(self.there))
            held = self.there[key]
            self.tell(resync_of(held, 0.0), Step(key, held, held, resync=True))

    def call(self) -> None:
        self.expected += self.model.take()
        item = self.listener.queue.take()
        if item is not None:
            call_handler(self.listener.handler, item.value)
            self.listener.queue.done(item)

    def tell(self, notification: Notification, step: Step) -> None:
        reason = self.chance.choice((ChangeReason.WATCH, ChangeReason.RELIST))
        told = msgspec.structs.replace(notification, reason=reason)
        for listener in (self.listener, self.unmerged):
            listener.queue.add_all([(told.key, told)])
        self.model.add(step)

    def record(self, key: str, *, like: Record | None = None) -> Record:
        """The next version of an object: another state, or the same as `like`."""
        self.versions += 1
        if like is not None:
            obj: dict[str, Any] = ObjectView(like).to_dict()
        else:
            team = self.chance.choice(("red", "red", "blue"))
            obj = {
                "metadata": {"name": key, "uid": f"uid-{key}", "labels": {"team": team}},
                "spec": {"nodeName": self.chance.choice(_NODES)},
            }
        obj["metadata"]["resourceVersion"] = str(self.versions)
        made = _PROJECTION.record(msgspec.json.encode(obj))
        assert made is not None
        return made


def _filtered(handler: ResourceEventHandler) -> FilteringResourceEventHandler:
    return FilteringResourceEventHandler(_accepts_node, FilteringResourceEventHandler(_accepts_team, handler))


def _listener(handler: ResourceEventHandler, limit: int) -> ProcessorListener:
    return ProcessorListener(handler, clock=ManualClock(), limit=limit)


@pytest.mark.client_go(96, "FilteringResourceEventHandler", "Per-handler buffer")
@pytest.mark.timeout(0)
async def test_a_filtered_handler_with_a_full_buffer_knows_what_exists(seed: int) -> None:
    """No object stays for ever that is gone, and none is deleted that never came.

    400 random histories, 10,000 in a soak. Each call is what the model expects of the merged pair, and at
    the end the handler knows what one knows that never had to merge.
    """
    for number in range(seed, seed + (10_000 if os.environ.get("DECLCTL_SOAK") else _HISTORIES)):
        try:
            History(number).play()
        except Exception:
            print(f"DECLCTL_SEED={number}")
            raise
