"""The sender: takes batches from the backlog, sends them, and decides what becomes of each.

| answer | the events | the circuit |
|---|---|---|
| 2xx | are delivered | closes |
| 408, 429, 5xx, 3xx, none | are sent again, with growing delays | counts a failure |
| another 4xx | are dead letters; for 400, 413, 422 a batch is halved first | counts a failure; 410 opens it |

It runs on one loop, which is its own: a write to disk may block it.
"""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from declctl_webhook.backlog import Backlog, Batch
from declctl_webhook.circuit import Circuit, CircuitState, backoff
from declctl_webhook.dead_letters import DeadLetters, event_body, letters
from declctl_webhook.endpoint import Answer, Unreachable
from declctl_webhook.messages import Message, message_of, signed
from declctl_webhook.settings import DeliverySettings, Mode, SettingsError, WhenFull
from declctl_webhook.spool import Damaged, Entry, EventTooLarge, SpoolFull

_HALVED: Final = frozenset({400, 413, 422})  # one event of a batch may be the reason
_HALVED_AFTER: Final = 3  # attempts of a batch that fails while others succeed
_AGAIN: Final = frozenset({408, 429})
_TICK_SECONDS: Final = 2.0  # between two looks for files of `requeue`, and two writes of the status
_STATUS_SECONDS: Final = 10.0  # the longest time between two writes of the status
_LETTER_LOG_SECONDS: Final = 60.0  # between two log lines about dead letters

Send = Callable[[Mapping[str, str], bytes], Awaitable[Answer]]


class Clock(Protocol):
    """The time. `sleep` is for the loop, the rest for any thread."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        ...

    def now(self) -> datetime:
        """The time in UTC."""
        ...

    def random(self) -> float:
        """A number in [0, 1)."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after some seconds."""
        ...


@dataclass(slots=True)
class Counts:
    """What became of events since the start of the process."""

    received: int = 0  # calls of handlers
    delivered: int = 0
    failed_requests: int = 0  # which are repeated
    dead_letters: dict[str, int] = field(default_factory=dict[str, int])  # by reason
    refused: int = 0  # calls of a handler that have failed as the spool was full, or could not be written
    damaged: int = 0  # events that were lost on the disk
    recovered: int = 0  # events that an earlier process has left
    too_large: int = 0  # events that were larger than the whole spool, and were dropped


class Sender:
    """Delivers the events of a backlog until it is stopped. Used on one loop.

    `send` makes one attempt: it returns the answer, or raises Unreachable or SettingsError. `log` is a
    structlog logger.
    """

    def __init__(
        self,
        backlog: Backlog,
        dead_letters: DeadLetters,
        settings: DeliverySettings,
        send: Send,
        *,
        clock: Clock,
        log: Any,
        status_file: Path | None = None,
    ) -> None:
        self.counts = Counts()
        self.log = log
        self.circuit = Circuit(settings.circuit_failures)
        self.last_error = ""  # of a request, without secrets
        self._last_error_at: datetime | None = None
        self._last_success_at: datetime | None = None
        self._backlog = backlog
        self._dead_letters = dead_letters
        self._settings = settings
        self._send = send
        self._receiver = ""  # for the log
        self._clock = clock
        self._status_file = status_file
        self.took: Callable[[float], object] = lambda _: None  # gets the seconds of each request
        self._waiting: list[Batch] = []  # for their next attempt
        self._tasks: set[asyncio.Task[None]] = set()  # one for each request under way
        self._wake = asyncio.Event()
        self._ticked_at = float("-inf")
        self._logged_at = clock.monotonic()
        self._logged: object = None  # the counts of the last log line
        self._logged_faults = 0  # of the spool
        self._letters_logged_at = float("-inf")
        self._written = ""  # the status in the file
        self._written_at = float("-inf")
        self._started_at = clock.now()

    def configure(self, settings: DeliverySettings, send: Send | None, receiver: str, log: Any) -> None:
        """Use other settings for the next attempts.

        `send` is None if the receiver is the same. To another one, retries are sent at once.
        """
        self._settings, self._receiver, self.log = settings, receiver, log
        self.circuit.limit = settings.circuit_failures
        if send is not None:
            self._send = send
            self.circuit.until = self.circuit.paused_until = 0.0
            self._hurry()
        self._wake.set()

    def wake(self) -> None:
        """Look for events again. On the loop."""
        self._wake.set()

    async def run(self) -> None:
        """Deliver events until cancelled."""
        try:
            while True:
                self._wake.clear()
                try:
                    self._tick()
                    self._start_requests()
                    idle = self._idle_seconds()
                except Exception as error:  # a fault of the plugin must not end the sender
                    self.log.error("the sender has failed, and goes on", exc_info=error)
                    idle = _TICK_SECONDS
                await self._sleep(idle)
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def flush(self, seconds: float) -> int:
        """Wait until all events are delivered, or the circuit is open, for some seconds at most.

        Batches do not wait for their age meanwhile. Returns the number of events that are left.
        """
        deadline = self._clock.monotonic() + seconds
        self._settings = _without_waiting(self._settings)
        self._hurry()
        while len(self._backlog) and (left := deadline - self._clock.monotonic()) > 0:
            if self.circuit.state is CircuitState.OPEN or self.circuit.next_at >= deadline:
                break
            await self._clock.sleep(min(left, 0.02))
        return len(self._backlog)

    def status(self) -> dict[str, Any]:
        """The state and the counts, for people and programs. On the loop."""
        counts, oldest = self.counts, self._backlog.oldest
        wait = max(0.0, self.circuit.next_at - self._clock.monotonic())
        faults, last_fault = self._backlog.faults
        return {
            "startedAt": _stamp(self._started_at),
            "receiver": self._receiver,
            "circuit": {
                "state": str(self.circuit.state),
                "failures": self.circuit.failures,
                "nextRequestAt": _stamp(datetime.fromtimestamp(self._unix() + wait, UTC)) if wait else None,
            },
            "waiting": len(self._backlog),
            "spoolBytes": self._backlog.disk_bytes,
            "spoolFaults": faults,
            "lastSpoolFault": last_fault or None,
            "oldestSpooledAt": _stamp(datetime.fromtimestamp(oldest, UTC)) if oldest is not None else None,
            "received": counts.received,
            "recovered": counts.recovered,
            "delivered": counts.delivered,
            "failedRequests": counts.failed_requests,
            "deadLetters": dict(counts.dead_letters),
            "dropped": self._backlog.dropped,
            "refused": counts.refused,
            "damaged": counts.damaged,
            "tooLarge": counts.too_large,
            "lastError": self.last_error or None,
            "lastErrorAt": _stamp(self._last_error_at),
            "lastSuccessAt": _stamp(self._last_success_at),
        }

    def write_status(self) -> None:
        """Write the status into its file, if it has changed, or ten seconds after the last time. Blocks."""
        if self._status_file is None:
            return
        document = self.status()
        text, now = json.dumps(document), self._clock.monotonic()
        if text == self._written and now - self._written_at < _STATUS_SECONDS:
            return
        temporary = self._status_file.with_suffix(".json.new")
        with suppress(OSError):  # the log has the same counts
            temporary.touch()
            temporary.chmod(0o600)  # before it has a content: errors may quote answers
            temporary.write_text(
                json.dumps({"writtenAt": _stamp(self._clock.now()), **document}, indent=1), "utf-8"
            )
            temporary.replace(self._status_file)
            self._written, self._written_at = text, now

    # What to send next.

    def _start_requests(self) -> None:
        while len(self._tasks) < self._settings.concurrency:
            now = self._clock.monotonic()
            if not self._has_next(now) or not self.circuit.allows(now, len(self._tasks)):
                return
            batch = self._next(now)
            if batch is None:
                return
            task = asyncio.get_running_loop().create_task(self._deliver(batch))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()

    def _has_next(self, now: float) -> bool:
        return self._retry(now) is not None or self._ripe_in() == 0.0

    def _next(self, now: float) -> Batch | None:
        retry = self._retry(now)
        if retry is not None:
            self._waiting.remove(retry)
            return retry
        if self._ripe_in() != 0.0:
            return None
        return self._backlog.take(self._batch_events, self._settings.batch_bytes)

    def _retry(self, now: float) -> Batch | None:
        """The batch that is due first. A probe of an open circuit does not wait for the time of its batch."""
        is_closed = self.circuit.state is CircuitState.CLOSED
        ready = (each for each in self._waiting if (each.due if is_closed else each.held_until) <= now)
        return min(ready, key=lambda batch: batch.due, default=None)

    def _ripe_in(self) -> float | None:
        settings = self._settings
        age = settings.batch_age if settings.mode is Mode.BATCHED else 0.0
        return self._backlog.ripe_in(self._batch_events, settings.batch_bytes, age)

    @property
    def _batch_events(self) -> int:
        return self._settings.batch_events if self._settings.mode is Mode.BATCHED else 1

    def _idle_seconds(self) -> float:
        """How long nothing is to be done, unless an event comes or a request ends."""
        now = self._clock.monotonic()
        tick = self._ticked_at + _TICK_SECONDS - now
        if len(self._tasks) >= self._settings.concurrency:
            return max(0.0, tick)
        is_closed = self.circuit.state is CircuitState.CLOSED
        # An open circuit is probed by one request at a time, whose end wakes the loop.
        times = [(batch.due if is_closed else batch.held_until) - now for batch in self._waiting]
        if (ripe := self._ripe_in()) is not None:
            times.append(ripe)
        if not times or (self._tasks and not is_closed):
            return max(0.0, tick)
        return max(0.0, min(tick, max(min(times), self.circuit.next_at - now)))

    async def _sleep(self, seconds: float) -> None:
        if self._wake.is_set():
            await asyncio.sleep(0)
            return
        waits = asyncio.ensure_future(self._wake.wait())
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait([waits, timer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waits.cancel()
            timer.cancel()

    def _hurry(self) -> None:
        for batch in self._waiting:
            batch.due = 0.0
        self._wake.set()

    # One attempt.

    async def _deliver(self, batch: Batch) -> None:
        settings = self._settings
        try:
            await self._attempt(batch, settings)
        except OSError as error:
            self._note_error(f"the spool can't be read: {error.strerror}")
            batch.attempts += 1
            self._hold(batch, settings)
        except Exception as error:
            self.log.error("a request has failed by a fault of the plugin", exc_info=error)
            self._failed(batch, settings, f"a fault of the plugin ({type(error).__name__})", None)

    async def _attempt(self, batch: Batch, settings: DeliverySettings) -> None:
        batch.entries = self._backlog.live(batch.entries)
        if not self._without_expired(batch, settings):
            return
        # In another mode since an edit: its events are sent one by one, or together.
        if settings.mode is not Mode.BATCHED and len(batch.entries) > 1:
            self._split(batch)
            return
        events = self._events(batch)
        if not events:
            self._finished(batch)
            return
        message = message_of(settings.mode, events)
        began = self._clock.monotonic()
        try:
            answer = await self._send({**self._signature(message, settings), **message.headers}, message.body)
        except SettingsError as error:  # there was no request
            self._failed(batch, settings, str(error), None)
            return
        except Unreachable as error:
            self.took(self._clock.monotonic() - began)
            self._failed(batch, settings, str(error), None)
            return
        self.took(self._clock.monotonic() - began)
        if 200 <= answer.status < 300:
            self._succeeded(batch)
        elif 400 <= answer.status < 500 and answer.status not in _AGAIN:
            self._refused(batch, settings, events, answer)
        else:
            self._failed(batch, settings, f"status {answer.status}", answer.retry_after)

    def _signature(self, message: Message, settings: DeliverySettings) -> Mapping[str, str]:
        signature = settings.signature
        if signature is None:
            return {}
        return signed(signature.scheme, signature.keys(), message, timestamp=int(self._unix()))

    def _events(self, batch: Batch) -> list[bytes]:
        """The bodies of the events of a batch, without those that the disk has lost. Raises OSError."""
        bodies = [(entry, self._read(entry)) for entry in batch.entries]
        batch.entries = [entry for entry, body in bodies if body is not None]
        return [body for _, body in bodies if body is not None]

    def _read(self, entry: Entry) -> bytes | None:
        """The body of an event; None if the disk has lost it, which is counted.

        Raises OSError for a fault that may pass, such as too many open files.
        """
        try:
            return self._backlog.read(entry)
        except (Damaged, FileNotFoundError) as error:
            self.counts.damaged += 1
            self.log.error(f"an event about {entry.key} is lost: the spool is damaged: {error}")
            self._backlog.acknowledge([entry])
            return None

    def _without_expired(self, batch: Batch, settings: DeliverySettings) -> bool:
        """Make dead letters of the events that are too old; whether the batch may be sent. Raises OSError."""
        oldest = self._unix() - settings.max_age
        for entry in [entry for entry in batch.entries if entry.spooled_at < oldest]:
            body = self._read(entry)
            if body is not None and not self._bury(
                entry, body, "Expired", None, self.last_error, batch.attempts
            ):
                batch.attempts += 1
                self._hold(batch, settings)
                return False
        batch.entries = self._backlog.live(batch.entries)
        return True

    # What becomes of a batch.

    def _succeeded(self, batch: Batch) -> None:
        self.counts.delivered += len(batch.entries)
        self._last_success_at = self._clock.now()
        self._backlog.acknowledge(batch.entries)
        if self.circuit.succeeded():
            self.log.info(f"{self._name} takes events again", circuit="Closed", waiting=len(self._backlog))
            self.write_status()
            self._hurry()
        self._finished(batch)

    def _failed(
        self, batch: Batch, settings: DeliverySettings, reason: str, retry_after: float | None
    ) -> None:
        """The attempt is repeated later."""
        now = self._clock.monotonic()
        self.counts.failed_requests += 1
        self._note_error(reason)
        if retry_after is not None:
            self.circuit.pause(now + retry_after)
        self._count_failure(settings, reason)
        batch.attempts += 1
        # Others succeed meanwhile: one event of this batch may be the reason, and holds up the rest of it.
        is_alone = self.circuit.state is CircuitState.CLOSED and len(batch.entries) > 1
        if is_alone and batch.attempts >= _HALVED_AFTER and self.circuit.failures < batch.attempts:
            self._split(batch)
        else:
            self._later(batch, settings, retry_after or 0.0)

    def _refused(
        self, batch: Batch, settings: DeliverySettings, events: Sequence[bytes], answer: Answer
    ) -> None:
        """The receiver does not want these events: it would refuse them again."""
        reason = f"status {answer.status}"
        self._note_error(reason)
        if answer.status in _HALVED and len(batch.entries) > 1:
            self._split(batch)
            return
        self._count_failure(settings, reason, at_once=answer.status == 410)
        for entry, body in zip(batch.entries, events, strict=True):
            attempts = batch.attempts + 1
            if not self._bury(entry, body, f"Status{answer.status}", answer.status, answer.text, attempts):
                # The next attempt leaves out those that are dead letters already.
                batch.attempts += 1
                self._hold(batch, settings)
                return
        self._finished(batch)

    def _bury(
        self, entry: Entry, body: bytes, reason: str, status: int | None, text: str, attempts: int
    ) -> bool:
        """Write a dead letter, and forget the event. False if it can't be written: the event stays."""
        try:
            self._dead_letters.write(
                body, reason=reason, status=status, text=text, attempts=attempts, at=self._clock.now()
            )
        except OSError as error:
            self._note_error(f"a dead letter can't be written: {error.strerror}")
            self.log.error(
                f"a dead letter can't be written, the event is kept: {error.strerror}", key=entry.key
            )
            return False
        self._backlog.acknowledge([entry])
        counts = self.counts.dead_letters
        counts[reason] = counts.get(reason, 0) + 1
        now = self._clock.monotonic()
        if now - self._letters_logged_at >= _LETTER_LOG_SECONDS:
            self._letters_logged_at = now
            total = sum(counts.values())
            self.log.warning(
                f"{self._name} has refused an event, or it was too old: it is a dead letter ({total} in all)",
                reason=reason,
                key=entry.key,
            )
        return True

    def _split(self, batch: Batch) -> None:
        """Send a batch in halves."""
        for half in batch.split():
            half.due = 0.0
            self._waiting.append(half)
        self._wake.set()

    def _later(self, batch: Batch, settings: DeliverySettings, least: float = 0.0) -> None:
        """Send a batch again, after its delay."""
        batch.due = self._clock.monotonic() + max(least, self._delay(settings, max(1, batch.attempts)))
        self._waiting.append(batch)
        self._wake.set()

    def _hold(self, batch: Batch, settings: DeliverySettings) -> None:
        """Try a batch again later, after a fault of the disk; not before, even as a probe."""
        self._later(batch, settings)
        batch.held_until = batch.due

    def _finished(self, batch: Batch) -> None:
        if batch.rest:
            self._waiting.append(Batch(batch.rest))
        else:
            self._backlog.release(batch)
        self._wake.set()

    def _count_failure(self, settings: DeliverySettings, reason: str, *, at_once: bool = False) -> None:
        delay = self._delay(settings, self.circuit.openings + 1)
        if self.circuit.failed(self._clock.monotonic(), delay=delay, at_once=at_once):
            self.log.error(
                f"{self._name} takes no events: {reason}. They wait in the spool, and one request at a time "
                "probes it",
                circuit="Open",
                waiting=len(self._backlog),
            )
            self.write_status()

    def _delay(self, settings: DeliverySettings, failures: int) -> float:
        return backoff(
            failures,
            initial=settings.initial_backoff,
            longest=settings.max_backoff,
            random=self._clock.random(),
        )

    def _note_error(self, reason: str) -> None:
        self.last_error, self._last_error_at = reason, self._clock.now()

    @property
    def _name(self) -> str:
        return self._receiver or "the receiver"

    def _unix(self) -> float:
        return self._clock.now().timestamp()

    # Now and then.

    def _tick(self) -> None:
        now = self._clock.monotonic()
        if now - self._ticked_at < _TICK_SECONDS:
            return
        self._ticked_at = now
        self._take_requeued()
        faults, reason = self._backlog.faults
        if faults > self._logged_faults:
            self._logged_faults = faults
            self.log.error(f"the spool can't be written, so events may be sent twice: {reason}")
        self.write_status()
        if now - self._logged_at >= self._settings.log_every:
            self._logged_at = now
            self.log_counts()

    def log_counts(self) -> None:
        """Log the counts, if they have changed since the last time."""
        counts = self.counts
        figures = {
            "received": counts.received,
            "delivered": counts.delivered,
            "waiting": len(self._backlog),
            "failed_requests": counts.failed_requests,
            "dead_letters": sum(counts.dead_letters.values()),
            "dropped": self._backlog.dropped,
            "refused": counts.refused,
            "circuit": str(self.circuit.state),
        }
        if figures != self._logged:
            self._logged = figures
            self.log.info("counts of events", **figures)

    def _take_requeued(self) -> None:
        """Put the events of files of `requeue` into the spool, as far as it has room."""
        try:
            for path in self._dead_letters.requeued():
                if not self._take_file(path):
                    return
        except OSError as error:
            self._note_error(f"dead letters can't be requeued: {error.strerror}")

    def _take_file(self, path: Path) -> bool:
        """Whether all events of a file have found room. A process that ends meanwhile takes some twice."""
        found = list(letters(path))
        for position, letter in enumerate(found):
            if letter is None:
                self.counts.damaged += 1
                continue
            try:
                self._backlog.add(letter["event"]["subject"], event_body(letter), when_full=WhenFull.REFUSE)
            except EventTooLarge:
                self.counts.damaged += 1
            except SpoolFull:
                left = [each for each in found[position:] if each is not None]
                rest = path.with_suffix(".new")
                rest.write_text("".join(f"{json.dumps(each)}\n" for each in left), "utf-8")
                rest.chmod(0o600)
                rest.replace(path)
                return False
        path.unlink()
        self.log.info(f"{len(found)} dead letters are sent again")
        return True


class SystemClock:
    """The time of this machine."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    def now(self) -> datetime:
        """The time in UTC."""
        return datetime.now(UTC)

    def random(self) -> float:
        """A number in [0, 1), for jitter."""
        return random.random()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running loop."""
        await asyncio.sleep(seconds)


def _stamp(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _without_waiting(settings: DeliverySettings) -> DeliverySettings:
    """Settings with which a batch does not wait for its age."""
    return replace(settings, batch_age=0.0)
