"""The player of a recording: its events reach the caches, and its calls are made, in the order of the tape.

A call begins when the caches have what they had then. It goes on when the tape comes to the answer of its
next request: so what happened between two requests of a call happens between them again, and other calls
begin beside it. At any moment code of one call runs, so that two replays do the same.

A call that makes another request than then gets the answer of a sandbox, which has the objects of the tape at
this moment and stores nothing.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from declctl import errors
from declctl.errors import Conflict, StatusError, from_status
from declctl.informer.informer import SharedIndexInformer
from declctl.kit.key_queue import Item
from declctl.kit.pending import ItemState
from declctl.kit.worker_pool import AsyncWorkerPool
from declctl.manifest.plan import WatchKey
from declctl.objects import Codec, KubeObject, RequestSender
from declctl.objects.api_path import is_about_secrets
from declctl.recording.entries import (
    BundleFiles,
    CallBegin,
    CallEnd,
    CallRequest,
    FrameDictionary,
    RecordingGap,
    ReloadMark,
    StreamChanges,
    StreamDeparture,
    StreamList,
    time_of,
)
from declctl.replay.causes import Causes
from declctl.replay.clients import MarkedRequests
from declctl.replay.clock import ReplayClock
from declctl.replay.differences import (
    CallDifference,
    ReplayReport,
    RequestContent,
    compare_ends,
    compare_writes,
)
from declctl.replay.dry_runs import DryRuns
from declctl.replay.server import TapeServer, TapeSource, readable_secrets
from declctl.replay.tape import CallKey, Tape, TapedCall, TapedRequest
from declctl.runtime.handling.handler_slot import HandlerSlot
from declctl.runtime.reconciling.reconcile_slot import ReconcileSlot
from declctl.runtime.recorder import CommittedFiles, EndedCall, current_call
from declctl.runtime.recording import SentRequest, hidden_content
from declctl.runtime.reloading.changes import Outcome
from declctl.transport.official import ClientObserver
from declctl.workqueue import Reasons

if TYPE_CHECKING:  # `replay` makes it
    from declctl.runtime.runtime import Runtime

_TOUCH_SECONDS = 30.0  # of the tape, between two signs of life of all watches
_MOST_TURNS = 5_000  # of the loop, until the caches count as having what was given to them
_LAST_TURNS = 3  # of the loop after that: listeners have it, too
_LOOK_AHEAD = 64  # entries after the begin of a call that its cache may have had already
_AHEAD_SECONDS = 0.5  # of the tape, for the same
_LONGEST_CALL = 30.0  # seconds of this machine that a call may take
_RELOAD_PATIENCE = 5.0  # seconds of this machine that a reload may wait for a cache while the time stands
_REQUEST_TURNS = 10  # of the loop, for a request that a call makes beside the one that it waits for
_FREE_SECONDS = 1.0  # of the tape: a key that was due for so long, while a worker was free, is not called
_LATE_SECONDS = 1.0  # of the tape: a change reaches a handler so long after its cache, at most
_MOST_THREADS = 256  # synchronous calls that wait for the tape at once
_MOST_KEYS = 10_000  # of one queue that are looked at


@dataclass(eq=False)
class _Playing:
    """One call that has begun in the replay."""

    call: int
    key: CallKey
    taped: TapedCall | None  # None for an extra call
    task: "asyncio.Future[Any]"
    left: list[TapedRequest] = field(default_factory=list[TapedRequest])  # what it has not made yet
    asked: list[tuple[int, asyncio.Future[None]]] = field(
        default_factory=list[tuple[int, asyncio.Future[None]]]
    )
    made: list[RequestContent] = field(default_factory=list[RequestContent])
    # By path: objects that it has written otherwise than then. It reads what it has written.
    otherwise: dict[str, KubeObject] = field(default_factory=dict[str, KubeObject])
    end: EndedCall | None = None
    rests: asyncio.Event = field(default_factory=asyncio.Event)  # it waits for the tape, or has ended


class Player:
    """Plays a tape to a runtime, whose recorder it is (`runtime.recorder.Recorder`).

    Used on the machinery loop.

    - `place`: puts the files of a generation in their place; None: today's code runs all the time.
    - `chosen`: whether a call is compared, by its handler and key. All calls are made.
    - `speed`: seconds of the tape in a second; 0 for as fast as possible.
    """

    def __init__(
        self,
        tape: Tape,
        clock: ReplayClock,
        report: ReplayReport,
        *,
        place: Callable[[Mapping[str, bytes]], None] | None,
        chosen: Callable[[str, str], bool],
        speed: float,
    ) -> None:
        self.server = TapeServer()
        self.dry_runs = DryRuns(self.server)
        self._tape = tape
        self._clock = clock
        self._report = report
        self._place = place
        self._chosen = chosen
        self._speed = speed
        self._informers: list[SharedIndexInformer] = []
        self._next_call = 0  # the number of the call that is about to begin
        self._extra_calls = 0  # their numbers are negative
        self._playing: dict[int, _Playing] = {}
        self._begun: dict[int, CallKey] = {}  # calls of then that have not ended then
        self._causes = Causes()
        self._files = tape.first_files  # of the generation of then
        self._position = 0  # of the tape
        self._given = False  # the server has changed since the caches have settled
        self._touched_at = 0.0
        self._looked_at = 0.0
        self._running: defaultdict[str, int] = defaultdict(int)  # calls of then that run, by handler
        self._free_since: dict[str, float] = {}  # by handler with a free worker then
        # Of a tape that begins amid a run: keys that are due only because of that; what has changed since.
        self._unclaimed: set[CallKey] = set()
        self._changed: set[str] = set()
        self._begins_amid = not tape.is_whole  # and no call was made yet
        # Of the last reload of then: its code may have received these again.
        self._replayed: set[CallKey] = set()
        # By key: when its last call has ended then, and what further calls may have been made for.
        self._merged: dict[CallKey, tuple[float, Reasons]] = {}
        self._times: dict[int, deque[float]] = {}  # by call: what `ctx.now` has still to return
        self._drained: set[int] = set()  # calls that were made at a reload, before their turn
        # A synchronous call that waits for the tape keeps its thread.
        self._pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="declctl-replay")
        self._began = 0.0
        self._noted: set[str] = set()  # texts

    # Recorder

    def follow(self, watch: WatchKey, informer: SharedIndexInformer, codec: Codec) -> None:  # noqa: ARG002
        """Know a cache."""
        self._informers.append(informer)

    def begins(self, handler: str, key: str, generation: int) -> int:  # noqa: ARG002 - a Recorder's
        """The number of the call that the player begins."""
        return self._next_call

    def ended(self, call: int, end: EndedCall) -> None:
        """Keep the end of a call, from any thread."""
        if (playing := self._playing.get(call)) is not None:
            playing.end = end

    def now(self, clock: Callable[[], datetime]) -> datetime:
        """The time of then, as often as the call has asked for it; after that, that of the replay."""
        times = self._times.get(current_call.get())
        return datetime.fromtimestamp(times.popleft(), UTC) if times else clock()

    def around(self, sender: RequestSender) -> RequestSender:
        """A sender that answers from the tape."""
        self.dry_runs.sender = sender
        return _TapeSender(self)

    def client_observer(self) -> ClientObserver:
        """What marks the requests of official clients."""
        return MarkedRequests()

    def committed(self, files: CommittedFiles) -> None:
        """No effect: the player has made the reload."""

    def reloaded(self, result: str, generation: int, line: str) -> None:
        """No effect, as above."""

    def close(self) -> None:
        """The process ends."""
        self._pool.shutdown(wait=False)

    # The tape

    def prepare(self) -> None:
        """Know all streams of the tape, before a cache asks for one. On the machinery loop."""
        self._clock.on_sleep = self._rests
        for stream in self._tape.streams:
            self.server.declare(stream)

    async def play(self, runtime: "Runtime") -> None:
        """Play all entries, and compare."""
        self._began = time.monotonic()
        _lift_limit(runtime)
        entries = self._tape.entries
        while self._position < len(entries):
            entry = entries[self._position]
            if (at := time_of(entry)) is not None:
                await self._move(runtime, at)
            self._position += 1
            match entry:
                case CallBegin():
                    await self._begin(runtime, entry)
                case CallRequest():
                    await self._answered(entry)
                case CallEnd():
                    await self._end(entry)
                case BundleFiles():
                    await self._reload(runtime, entry)
                case ReloadMark():
                    self._report.marks.append(f"{self._time()}: {entry.line}")
                case RecordingGap():
                    self._report.lost += entry.lost
                    self._report.notes.append(f"{self._time()}: {entry.lost:,} entries are missing here")
                case StreamList():
                    self._take(entry)
                    if not entry.more:
                        # A cache that fills now must not get what comes later as a part of it.
                        await self._settle()
                case _:
                    self._take(entry)
        for playing in tuple(self._playing.values()):
            await self._finish(playing)
        await self._look_for_extra(runtime)
        self._report.seconds = self._clock.monotonic()

    def _take(self, entry: Any) -> None:
        self._given = True
        match entry:
            case FrameDictionary():
                self.server.learn(entry)
            case StreamChanges():
                self._report.events += len(entry.objects)
                if not self._tape.is_whole:
                    self._changed.update(each.key for each in entry.objects)
                self.server.change(entry)
                self._causes.change(self.server.kind_of(entry.stream), entry)
            case StreamList() if entry.snapshot and self._position > self._tape.second:
                pass  # of caches that are known
            case StreamList():
                self.server.list(entry)
                self._causes.change(self.server.kind_of(entry.stream), entry)
            case StreamDeparture():
                self.server.depart(entry)
            case _:
                pass

    async def _move(self, runtime: "Runtime", at: float) -> None:
        """Let the time pass until a moment of the tape."""
        while self._touched_at + _TOUCH_SECONDS < at:
            self._touched_at += _TOUCH_SECONDS
            await self._wait_for_speed(self._touched_at)
            await self._pass(self._touched_at)
            self.server.touch()
            self._given = True
            await self._settle()
            await self._look_for_extra(runtime)
        await self._wait_for_speed(at)
        await self._pass(at)
        if at - self._looked_at >= _FREE_SECONDS:
            self._looked_at = at
            await self._settle()
            await self._look_for_extra(runtime)

    async def _pass(self, at: float) -> None:
        """Move the clock, and let the calls go on that wake."""
        for call in self._clock.move(at):
            if (playing := self._playing.get(call)) is not None:
                await asyncio.sleep(0)
                await self._until_it_rests(playing)

    async def _wait_for_speed(self, at: float) -> None:
        if self._speed:
            ahead = at / self._speed - (time.monotonic() - self._began)
            if ahead > 0:
                await asyncio.sleep(ahead)

    async def _settle(self) -> None:
        """Let the caches take what the server has."""
        if not self._given:
            return
        self._given = False
        self._informers = [each for each in self._informers if not each.is_stopped]
        for _ in range(_MOST_TURNS):
            await asyncio.sleep(0)
            if not self.server.pending and not any(map(_is_behind, self._informers)):
                break
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(0)

    # Calls

    async def _begin(self, runtime: "Runtime", entry: CallBegin) -> None:
        key = self._begun[entry.call] = entry.handler, entry.key
        before = self._causes.begin(entry)
        self._count_running(runtime, entry.handler, 1)
        if entry.call in self._drained:
            return
        taped = self._tape.call(entry.call)
        self._times[entry.call] = deque(taped.times)
        self._tape.begins[key] -= 1
        await self._settle()
        if self._begins_amid:
            self._begins_amid = False
            self._forget_initial(runtime)
        self._unclaimed.discard(key)
        if not self._has_state(runtime, entry, taped) and self._look_ahead(entry):
            await self._settle()
        playing = self._started(runtime, entry, taped)
        if playing is None and (self._replay(runtime, key) or self._part(runtime, entry)):
            playing = self._started(runtime, entry, taped)
        if playing is None and self._look_ahead(entry):
            await self._settle()
            playing = self._started(runtime, entry, taped)
        if playing is None:
            # Of a tape that begins amid a run, what was queued before is not known.
            is_known = self._tape.is_whole or entry.key in self._changed
            if is_known and taped.end is not None and self._compares(taped):
                self._is_missing(runtime, taped, before)
            return
        await self._until_it_rests(playing)

    def _is_missing(self, runtime: "Runtime", taped: TapedCall, before: float) -> None:
        """Count a call that is not made now, with its writes."""
        name, writes = taped.begin.handler, [each for each in taped.requests if each.content.is_write]
        self._report.missing += 1
        self._report.writes += len(writes)
        schedules = {each.name for each in runtime.plan.schedules}
        if runtime.parts.slots.get(name) is None and name not in schedules:
            self.note(f"the manifest has neither a handler nor a schedule {name}: none of its calls is made")
            reason = f"the manifest has no {name}"
        else:
            reason = self._causes.of(taped.begin, before)
        self._differs("missing", taped.key, [f"not made now: {reason}"])

    def _replay(self, runtime: "Runtime", key: CallKey) -> bool:
        """Queue an object again that the code of then has received again, as that code was new."""
        slot = runtime.parts.slots.get(key[0])
        if slot is None or key not in self._replayed:
            return False
        self._replayed.discard(key)
        for managed in slot.replayed_caches:
            if (record := managed.informer.indexer.get_by_key(key[1])) is not None:
                slot.replay(managed, [record], self._clock.now().timestamp())
                return True
        return False

    def _part(self, runtime: "Runtime", entry: CallBegin) -> bool:
        """Queue a key again for one of the changes that its last call was made for.

        Then, one of them reached the handler after that call had begun: a cache has a change a moment before
        its listeners.
        """
        key = entry.handler, entry.key
        slot, merged = runtime.parts.slots.get(entry.handler), self._merged.pop(key, None)
        if merged is None or not isinstance(slot, ReconcileSlot):
            return False
        ended, reasons = merged
        if entry.at - ended > _LATE_SECONDS:
            return False
        slot.add_again(entry.key, reasons)
        return True

    def _forget_initial(self, runtime: "Runtime") -> None:
        """Let the objects with which a segment begins lead to no call: they were there before."""
        for slot in runtime.parts.slots.all():
            for item in slot.queue.snapshot(_MOST_KEYS)[1]:
                if isinstance(slot, ReconcileSlot):
                    self._unclaimed.add((slot.name, item.key))
                else:
                    _drop(slot, item.key)

    def _started(self, runtime: "Runtime", entry: CallBegin, taped: TapedCall) -> _Playing | None:
        slot = runtime.parts.slots.get(entry.handler)
        if slot is None:
            schedule = runtime.parts.schedules
            with suppress(ValueError):
                self._next_call = entry.call
                task = schedule.call_for(entry.handler, datetime.fromisoformat(entry.key))
                return None if task is None else self._watched(entry.call, taped.key, taped, task)
            return None
        item = slot.queue.take_key(entry.key)
        return None if item is None else self._made(slot, item, entry.call, taped)

    def _made(
        self, slot: HandlerSlot[Any], item: Item[str, Any], call: int, taped: TapedCall | None
    ) -> _Playing:
        """Make the call for an item, as a worker would."""
        self._next_call = call
        self._merged.pop((slot.name, item.key), None)
        rest = item.value.without_first() if isinstance(slot, ReconcileSlot) else None
        if rest is not None and taped is not None and taped.end is not None:
            self._merged[taped.key] = taped.end.at, rest
        if isinstance(slot.workers, AsyncWorkerPool):
            work: asyncio.Future[Any] = asyncio.create_task(_worked(slot, item))
        else:
            work = asyncio.get_running_loop().run_in_executor(self._pool, _work, slot, item)
        return self._watched(call, (slot.name, item.key), taped, work)

    def _watched(
        self, call: int, key: CallKey, taped: TapedCall | None, work: "asyncio.Future[Any]"
    ) -> _Playing:
        left = [] if taped is None else list(taped.requests)
        playing = self._playing[call] = _Playing(call, key, taped, work, left)
        work.add_done_callback(lambda _: playing.rests.set())
        return playing

    def _has_state(self, runtime: "Runtime", entry: CallBegin, taped: TapedCall) -> bool:
        """Whether the cache has the object that the call has received, as far as that is known."""
        slot = runtime.parts.slots.get(entry.handler)
        if taped.end is None or not taped.end.revision or not isinstance(slot, ReconcileSlot):
            return True
        found = [each.informer.indexer.get_by_key(entry.key) for each in slot.binding.own_informers]
        return any(record is not None and record.revision == taped.end.revision for record in found)

    def _look_ahead(self, entry: CallBegin) -> bool:
        """Take the next changes: the cache had them before the call, and the tape has them right after it."""
        for following in self._tape.entries[self._position : self._position + _LOOK_AHEAD]:
            if (time_of(following) or 0.0) - entry.at > _AHEAD_SECONDS:
                break
            is_change = isinstance(following, StreamChanges)
            if is_change and any(each.key == entry.key for each in following.objects):
                self.server.change(following)  # what is taken again later changes nothing
                self._given = True
                return True
        return False

    async def _until_it_rests(self, playing: _Playing) -> None:
        """Wait until a call waits for the tape, be it an answer or the time, or has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_CALL):
                while not (
                    playing.task.done() or playing.asked or self._clock.wakes(playing.call) is not None
                ):
                    playing.rests.clear()
                    await playing.rests.wait()

    def _rests(self, call: int) -> None:
        """A call sleeps. On the machinery loop, or on that of a handler."""
        if (playing := self._playing.get(call)) is not None:
            playing.rests.set()

    async def _answered(self, entry: CallRequest) -> None:
        """The tape comes to the answer of a request."""
        playing = self._playing.get(entry.call)
        if playing is None:
            return
        position = self._position - 1
        if not any(at == position for at, _ in playing.asked) and any(
            each.position == position for each in playing.left
        ):
            # It may make the request in a moment, beside another one; or never, as its code has changed.
            for _ in range(_REQUEST_TURNS):
                await asyncio.sleep(0)
        if self._release(playing, until=position):
            await self._settle()
            await self._until_it_rests(playing)

    def _release(self, playing: _Playing, *, until: int) -> bool:
        """Give the answers up to a position of the tape; returns whether there was one."""
        due = [(at, waiter) for at, waiter in playing.asked if at <= until]
        playing.asked = [(at, waiter) for at, waiter in playing.asked if at > until]
        for _, waiter in due:
            if not waiter.done():
                waiter.set_result(None)
        return bool(due)

    async def _end(self, entry: CallEnd) -> None:
        key = self._begun.pop(entry.call, None)
        if key is None:
            return  # it began before the tape
        self._causes.end(key, entry)
        self._count_running(None, key[0], -1)
        if (playing := self._playing.get(entry.call)) is not None:
            await self._finish(playing)

    async def _finish(self, playing: _Playing) -> None:
        """Let a call come to its end, and compare it."""
        deadline = time.monotonic() + _LONGEST_CALL
        while not playing.task.done() and time.monotonic() < deadline:
            self._release(playing, until=len(self._tape.entries))
            if (due := self._clock.wakes(playing.call)) is not None:
                self._clock.move(due)
                await asyncio.sleep(0)
            await self._until_it_rests(playing)
        del self._playing[playing.call]
        self._times.pop(playing.call, None)
        if not playing.task.done():
            self.note(f"{' '.join(playing.key)} has not returned within {_LONGEST_CALL:g} s")
        elif not playing.task.cancelled():
            playing.task.result()  # raises a fault of this package
        self._compare(playing)

    def _compare(self, playing: _Playing) -> None:
        taped = playing.taped
        if taped is None:
            if self._chosen(*playing.key):
                self._report.extra += 1
                made = [f"{each}: only now" for each in playing.made if each.is_write]
                self._differs("extra", playing.key, ["only now there is this call", *made])
            return
        if taped.end is None or not self._compares(taped):
            return
        then = [each.content for each in taped.requests if each.content.is_write]
        alike, found = compare_writes(then, [each for each in playing.made if each.is_write])
        if playing.end is not None:
            lost_answer = any(not each.request.status for each in taped.requests)
            found = [*compare_ends(taped.end, playing.end, lost_answer=lost_answer), *found]
        self._report.writes += len(then)
        self._report.writes_alike += alike
        if found:
            self._report.different += 1
            self._differs("different", playing.key, found, at=taped.begin.at)
        else:
            self._report.same += 1

    def _compares(self, taped: TapedCall) -> bool:
        """Whether a call of the tape counts; it is counted here."""
        if not self._chosen(*taped.key):
            return False
        self._report.calls += 1
        return True

    def _differs(self, kind: str, key: CallKey, details: Sequence[str], *, at: float | None = None) -> None:
        moment = self._tape.moment(self._clock.monotonic() if at is None else at)
        self._report.differences.append(CallDifference(kind, moment, *key, tuple(details)))

    def _count_running(self, runtime: "Runtime | None", handler: str, change: int) -> None:
        """Count the calls of then, to know when a worker of the handler was free."""
        self._running[handler] += change
        slot = None if runtime is None else runtime.parts.slots.get(handler)
        if slot is not None and self._running[handler] >= slot.binding.plan.queue.concurrency:
            self._free_since.pop(handler, None)
        elif change < 0:
            self._free_since.setdefault(handler, self._clock.monotonic())

    async def _look_for_extra(self, runtime: "Runtime") -> None:
        """Make the calls that today's code makes, and the tape does not have."""
        now = self._clock.monotonic()
        for slot in runtime.parts.slots.all():
            free_since = self._free_since.get(slot.name, 0.0)
            if slot.name not in self._free_since and self._running[slot.name]:
                continue
            if slot.queue.next_due() != 0.0:
                continue  # no key is due: what waits is behind a change that backs off
            _, items = slot.queue.snapshot(_MOST_KEYS)
            for item in items:
                key = (slot.name, item.key)
                if item.is_taken or self._tape.begins.get(key) or key in self._unclaimed:
                    continue
                due = item.added_at if item.due is None else item.due
                if due > now or item.state is ItemState.BEHIND:
                    continue
                if _is_own_write(slot, item):
                    _drop(slot, item.key)
                elif now - max(due, free_since) > _FREE_SECONDS:
                    await self._make_extra(slot, item.key)

    async def _make_extra(self, slot: HandlerSlot[Any], key: str) -> None:
        item = slot.queue.take_key(key)
        if item is not None:
            self._extra_calls += 1
            playing = self._made(slot, item, -self._extra_calls, None)
            await self._until_it_rests(playing)
            await self._finish(playing)

    # Reloads

    async def _reload(self, runtime: "Runtime", files: BundleFiles) -> None:
        before, self._files = self._files, files
        if (before.generation, before.files) == (files.generation, files.files):
            return  # a segment begins with them
        self._causes.reload(files)
        self._report.reloads += 1
        if self._place is None:
            # Today's code runs all the time.
            self._replayed = {
                (slot.name, key)
                for slot in runtime.parts.slots.all()
                for managed in slot.replayed_caches
                for key in managed.informer.indexer.known()
            }
            return
        await self._drain(runtime, files.generation)
        # Workers have passed over them by now; new code receives the cache again once nothing waits.
        for slot in runtime.parts.slots.all():
            for item in slot.queue.snapshot(_MOST_KEYS)[1]:
                if not item.is_taken and _is_own_write(slot, item):
                    _drop(slot, item.key)
        self._place(files.files)
        outcome = await self._reloaded(runtime)
        _lift_limit(runtime)
        if str(outcome.result) == "Refused":
            self._report.notes.append(f"{self._time()}: the files of then are refused now: {outcome.message}")
        self._given = True
        await self._settle()

    async def _reloaded(self, runtime: "Runtime") -> Outcome:
        """Reload at this moment of the tape: the time stands, however long files are read and imported.

        It passes only for a wait that the clock ends, such as for a cache that the tape does not fill.
        """
        self._extra_calls += 1
        number = -self._extra_calls
        context = copy_context()
        context.run(current_call.set, number)  # so the clock knows what of the reload sleeps
        reload = asyncio.get_running_loop().create_task(runtime.reload(asked=True), context=context)
        while not (await asyncio.wait([reload], timeout=_RELOAD_PATIENCE))[0]:
            if (due := self._clock.wakes(number)) is not None:
                await self._pass(due)
        return reload.result()

    async def _drain(self, runtime: "Runtime", generation: int) -> None:
        """Make the calls that the code before a generation makes after its commit, while that code is loaded.

        Changes that were queued for it are drained by it. What they are does not depend on what comes later.
        """
        for call in self._tape.late_calls.get(generation, ()):
            taped = self._tape.call(call)
            slot = runtime.parts.slots.get(taped.begin.handler)
            if slot is None or isinstance(slot, ReconcileSlot):
                continue
            item = slot.queue.take_key(taped.begin.key)
            if item is not None:
                self._times[call] = deque(taped.times)
                self._drained.add(call)
                self._tape.begins[taped.key] -= 1
                await self._finish(self._made(slot, item, call, taped))

    # Requests

    async def answer(self, request: SentRequest, call: int) -> KubeObject:
        """Answer a request of a call, or of declctl itself (0). Raises the error of then."""
        playing = self._playing.get(call)
        if playing is None:
            return await self._unrecorded(request)
        taped = await self._taped(playing, request)
        return taped if isinstance(taped, dict) else _answer_of(taped)

    async def answer_client(self, request: SentRequest, call: int) -> tuple[int, Any]:
        """Status and document for a request of an official client; 0 for no answer. Raises StatusError."""
        playing = self._playing.get(call)
        if playing is None:
            self.note(f"{request.method} {request.path} of a client belongs to no call: nothing is stored")
            return 200, await self.dry_runs.answer(request)
        taped = await self._taped(playing, request)
        return (200, taped) if isinstance(taped, dict) else (taped.status, _readable(taped))

    def note(self, text: str) -> None:
        """Say something once, with its first time."""
        if text not in self._noted:
            self._noted.add(text)
            self._report.notes.append(f"{self._time()}: {text}")

    async def _taped(self, playing: _Playing, request: SentRequest) -> CallRequest | KubeObject:
        """The request of then, when the tape has come to its answer; else the answer of the sandbox."""
        body = b"" if request.body is None else msgspec.json.encode(request.body)
        content = RequestContent.of(request.method, *hidden_content(request.path, request.params, body))
        playing.made.append(content)
        about = request.path.removesuffix("/status")
        if not content.is_write and about in playing.otherwise:
            return playing.otherwise[about]
        found = next((each for each in playing.left if each.content == content), None)
        if found is not None:
            if content.is_write:
                playing.otherwise.pop(about, None)
                self.dry_runs.keep_status(request.path, None)
            await self._until_answered(playing, found)
            return found.request
        if not content.is_write:
            return await self.dry_runs.answer(request)
        # The write of then in its place, if there is one, tells when its answer comes, and its version.
        twin = next((each for each in playing.left if each.content.has_place_of(content)), None)
        if twin is not None:
            await self._until_answered(playing, twin)
        answer = await self.dry_runs.answer(request)
        if request.method == "POST":  # to the collection
            about += f"/{(answer.get('metadata') or {}).get('name')}"
        playing.otherwise[about] = answer
        if twin is not None:
            _take_version(answer, twin.request)
        self.dry_runs.keep_status(request.path, answer.get("status"))
        return answer

    async def _until_answered(self, playing: _Playing, taped: TapedRequest) -> None:
        """Wait until the tape has come to the answer of a request, which is not made again."""
        playing.left.remove(taped)
        if taped.position >= self._position:
            waiter = asyncio.get_running_loop().create_future()
            playing.asked.append((taped.position, waiter))
            playing.rests.set()
            await waiter

    async def _unrecorded(self, request: SentRequest) -> KubeObject:
        """What declctl asks for itself, such as to post an Event: nothing is stored."""
        if request.method == "GET":
            return await self.dry_runs.answer(request)
        return request.body if isinstance(request.body, dict) else {}

    def _time(self) -> str:
        return self._tape.moment(self._clock.monotonic()).isoformat(timespec="milliseconds")


class _TapeSender:
    """The sender of the requests of handlers."""

    def __init__(self, player: Player) -> None:
        self._player = player

    async def request_json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] = {},
        body: KubeObject | Sequence[KubeObject] | None = None,
        content_type: str = "application/json",
    ) -> KubeObject:
        request = SentRequest(method, path, params, body, content_type)
        return await self._player.answer(request, current_call.get())


def _lift_limit(runtime: "Runtime") -> None:
    """Let no write wait for the rate limit of the manifest: it has waited then."""
    runtime.parts.writing.writers.budget.limit(0, 1)


async def _worked(slot: HandlerSlot[Any], item: Item[str, Any]) -> None:
    try:
        await slot.work_async(item)
    except Exception as fault:  # noqa: BLE001 - as a worker does
        slot.recover(item, fault)


def _work(slot: HandlerSlot[Any], item: Item[str, Any]) -> None:
    try:
        slot.work(item)
    except Exception as fault:  # noqa: BLE001 - as a worker does
        slot.recover(item, fault)


def _is_behind(informer: SharedIndexInformer) -> bool:
    """Whether a cache has something to take in, as far as the tape is."""
    source = informer.source
    is_filled = informer.has_synced or not (isinstance(source, TapeSource) and source.is_listed)
    return not is_filled or len(informer.controller.queue) > 0 or informer.unfinished_work > 0


def _answer_of(recorded: CallRequest) -> KubeObject:
    """The recorded answer, or its error."""
    answer = _readable(recorded)
    if 0 < recorded.status < 300:
        return answer
    if not recorded.status:
        raise getattr(errors, answer["type"])(answer["message"])
    error: StatusError = from_status(
        recorded.status, answer["reason"], answer["message"], retry_after=answer.get("retryAfter")
    )
    if isinstance(error, Conflict):
        error.fields, error.managers = answer.get("fields", ()), answer.get("managers", ())
    raise error


def _take_version(answer: KubeObject, recorded: CallRequest) -> None:
    """Let the answer of a write have the version of then, which its change on the tape has, too."""
    then = msgspec.json.decode(recorded.answer) if 0 < recorded.status < 300 else None
    if isinstance(then, dict) and "metadata" in then and "metadata" in answer:
        version = cast("KubeObject", then)["metadata"].get("resourceVersion")
        answer["metadata"]["resourceVersion"] = version


def _readable(recorded: CallRequest) -> Any:
    """The recorded document. Hidden values of Secrets are base64, as code expects them."""
    answer = msgspec.json.decode(recorded.answer)
    return readable_secrets(answer) if is_about_secrets(recorded.path) else answer


def _drop(slot: HandlerSlot[Any], key: str) -> None:
    """Let a key that waits lead to no call."""
    if (taken := slot.queue.take_key(key)) is not None:
        slot.queue.drop(taken)


def _is_own_write(slot: HandlerSlot[Any], item: Item[str, Any]) -> bool:
    """Whether a key is due because of its own writes alone, and so is not called."""
    if not isinstance(slot, ReconcileSlot):
        return False
    versions = item.value.versions
    return bool(versions) and slot.unseen.loops.is_own(slot.name, item.key, versions)
