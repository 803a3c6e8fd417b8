"""One target at work: its groups, its outbox, and the thread that sends.

`Channel` decides and counts, and its tests call it with a clock of their own. `ChannelThread` runs one, so
that a target that hangs delays no other one, and no handler.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from declctl_notify.groups import Entry, GroupKey, Groups, Timing
from declctl_notify.outbox import Clock, Delivery, Outbox
from declctl_notify.sending import Send, SendFailed
from declctl_notify.settings import RuleSettings, Settings, TargetSettings
from declctl_notify.text import counted, duration_text

_HANGS: Final = "no answer in time; the send still runs"


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """The figures of one target. taken = notified + dropped + waiting, all in changes."""

    taken: int  # changes that rules have sent to the target
    notified: int  # changes in messages that were sent, listed or in a count
    dropped: int  # changes of which no message tells
    waiting: int  # changes that wait
    sent: int  # messages
    failed: int  # tries that have failed
    lost: int  # messages that were given up; a later summary counts their changes
    suppressed: int  # messages that the rate limit has made a count of


class Channel:
    """The state of one target. Used by any thread; `log` is a structlog logger."""

    def __init__(self, target: TargetSettings, settings: Settings, *, log: Any, clock: Clock) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._log = log
        self._target = target
        self._settings = settings
        self._groups = Groups()
        self._outbox = Outbox(target.rate_limit, settings.retry, clock=clock)
        self._taken = self._notified = self._dropped = 0  # changes
        self._has_ended = False  # `give_up` was called
        self._unlogged: dict[str, int] = {}  # failures since the last line, by reason
        self._failing = False  # a line has told of failures, and none that it works again
        self._log_after: float | None = None  # the time of the next line; None for at once

    @property
    def statistics(self) -> ChannelStatistics:
        """The present figures."""
        with self._lock:
            return ChannelStatistics(
                taken=self._taken,
                notified=self._notified,
                dropped=self._dropped,
                waiting=0 if self._has_ended else self._groups.waiting + self._outbox.waiting,
                sent=self._outbox.sent,
                failed=self._outbox.failed_attempts,
                lost=self._outbox.lost,
                suppressed=self._outbox.suppressed_messages,
            )

    @property
    def target(self) -> TargetSettings:
        """The settings of the target."""
        with self._lock:
            return self._target

    @property
    def settings(self) -> Settings:
        """The settings of the plugin."""
        with self._lock:
            return self._settings

    def configure(self, target: TargetSettings, settings: Settings, *, log: Any) -> None:
        """Use other settings from now on. Groups, waiting messages and tokens stay."""
        with self._lock:
            self._target, self._settings, self._log = target, settings, log
            self._outbox.configure(target.rate_limit, settings.retry)

    def add(self, rule: RuleSettings, key: GroupKey, entry: Entry) -> None:
        """Take a change of a rule.

        It is dropped and counted after `close`, and if there are too many groups, which is logged.
        """
        with self._lock:
            self._taken += 1
            if self._outbox.closing:
                self._dropped += 1
                return
            taken = self._groups.add(
                key,
                entry,
                severity=rule.severity,
                timing=Timing(rule.group_wait, rule.group_interval, rule.repeat_interval),
                max_changes=rule.max_changes,
                now=self._clock.monotonic(),
            )
            if not taken:
                self._dropped += 1
                self._note_failure("too many groups: use fewer fields in groupBy, or a shorter groupWait")

    def close(self) -> None:
        """Make messages of all that waits; no message waits for a token any more."""
        with self._lock:
            for message in self._groups.drain():
                self._outbox.put(message)
            self._outbox.closing = True

    def give_up(self) -> int:
        """Drop all that waits, for good. Returns how many changes that were."""
        with self._lock:
            dropped = self._groups.waiting + self._outbox.waiting
            self._dropped += dropped
            self._has_ended = True
            return dropped

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits that could be sent."""
        with self._lock:
            return self._outbox.is_empty and self._groups.next_due is None

    @property
    def next_due(self) -> float | None:
        """When to call `take` next; None if nothing waits."""
        with self._lock:
            times = [at for at in (self._groups.next_due, self._outbox.next_due) if at is not None]
            return min(times, default=None)

    def take(self) -> Delivery | None:
        """The message that has to be sent now, if there is one; `finish` follows."""
        with self._lock:
            for message in self._groups.due(self._clock.monotonic()):
                self._outbox.put(message)
            return self._outbox.take()

    def finish(self, delivery: Delivery, failure: str) -> None:
        """Note the result of a message; `failure` is why it was not sent, empty if it was.

        No effect after `give_up`, which has counted its changes as dropped.
        """
        with self._lock:
            if self._has_ended:
                return
            self._outbox.finish(sent=not failure)
            if failure:
                self._note_failure(failure)
                return
            self._notified += delivery.changes
            if self._failing or self._unlogged:
                self._log_failures()
                self._log.info("messages are sent again", target=self._target.name)
                self._failing, self._log_after = False, None

    def _note_failure(self, reason: str) -> None:
        self._unlogged[reason] = self._unlogged.get(reason, 0) + 1
        now = self._clock.monotonic()
        if self._log_after is None or now >= self._log_after:
            self._log_failures()
            self._log_after = now + self._settings.log_interval

    def _log_failures(self) -> None:
        if not self._unlogged:
            return
        self._failing = True
        self._log.warning(
            f"notifications have failed: {', '.join(self._unlogged)}",
            target=self._target.name,
            failures=sum(self._unlogged.values()),
            waiting=self._groups.waiting + self._outbox.waiting,
        )
        self._unlogged.clear()


class _Attempt:
    """A call of `send` in a thread of its own, because it may hang for ever."""

    def __init__(self, send: Send, target: TargetSettings, delivery: Delivery, now: float) -> None:
        self.delivery = delivery
        self._call: Callable[[], None] = lambda: send(target, delivery, now)
        self._failure = ""
        self._done = threading.Event()
        # A daemon, so that a service that hangs does not keep the process.
        threading.Thread(target=self._run, name=f"notify-send-{target.name}", daemon=True).start()

    def wait(self, seconds: float) -> str | None:
        """Why it has failed, empty if it has not; None if it still runs after `seconds`."""
        return self._failure if self._done.wait(seconds) else None

    def _run(self) -> None:
        try:
            self._call()
        except SendFailed as error:
            self._failure = str(error)
        except BaseException as error:  # noqa: BLE001 - its text may have the URL, so it goes nowhere
            self._failure = f"{type(error).__name__} in declctl-notify; this is a fault of the plugin"
        finally:
            self._done.set()


class ChannelThread:
    """Runs a channel until `stop`.

    `send` is asked for before each message, as a dry run may begin. `took` is called with the seconds of each
    try; for one that hangs, with its time limit.
    """

    def __init__(
        self,
        channel: Channel,
        send: Callable[[], Send],
        *,
        clock: Clock,
        took: Callable[[float], object] = lambda _: None,
    ) -> None:
        self.channel = channel
        self._send = send
        self._took = took
        self._clock = clock
        self._changed = threading.Condition()
        self._ends_at: float | None = None  # set by `stop`
        self._late: _Attempt | None = None  # that had no result in time, and may still run
        name = f"notify-{channel.target.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Let the thread look at its channel, after a change of it."""
        with self._changed:
            self._changed.notify()

    def stop(self, seconds: float) -> None:
        """Send what waits, for so many seconds at most, then end. Returns at once: see `join`."""
        self.channel.close()
        with self._changed:
            self._ends_at = self._clock.monotonic() + seconds
            self._changed.notify()

    def join(self) -> int:
        """Wait for the end after `stop`. Returns how many changes were dropped."""
        ends_at = self._ends_at if self._ends_at is not None else self._clock.monotonic()
        self._thread.join(max(0.0, ends_at - self._clock.monotonic()) + 0.5)
        return self.channel.give_up()

    def _run(self) -> None:
        while (delivery := self._next()) is not None:
            failure = self._try(delivery)
            # A log that fails, as to a closed stream, does not end the messages. `finish` logs last.
            with suppress(Exception):
                self.channel.finish(delivery, failure)

    def _next(self) -> Delivery | None:
        """Wait for a message that may be sent; None at the end."""
        while True:
            with self._changed:
                if self._seconds_left() <= 0 or (self._ends_at is not None and self.channel.is_empty):
                    return None
                delivery = self.channel.take()
                if delivery is not None:
                    return delivery
                due = self.channel.next_due
                now = self._clock.monotonic()
                until = min(self._seconds_left(), threading.TIMEOUT_MAX if due is None else due - now)
                # `add` and `stop` notify under this lock, so no change is missed.
                self._changed.wait(max(0.0, until))

    def _try(self, delivery: Delivery) -> str:
        """Send a message, and wait for the result; why it failed, or an empty text."""
        timeout = self.channel.settings.send_timeout
        if (late := self._late) is not None:
            # A second send would double the message, or hang as well. So the result of the first one counts.
            failure = late.wait(min(timeout, self._seconds_left()))
            if failure is None:
                return _HANGS
            self._late = None
            if late.delivery is delivery and not failure:
                return failure
        began = self._clock.monotonic()
        try:
            attempt = _Attempt(self._send(), self.channel.target, delivery, began)
        except RuntimeError:  # the process has too many threads
            return "no thread could be started"
        failure = attempt.wait(min(timeout, self._seconds_left()))
        self._took(self._clock.monotonic() - began)
        if failure is None:
            self._late = attempt
            return _HANGS
        return failure

    def _seconds_left(self) -> float:
        return threading.TIMEOUT_MAX if self._ends_at is None else self._ends_at - self._clock.monotonic()


def dropped_line(target: str, dropped: int, seconds: float) -> str:
    """The log line about changes that were dropped at the end."""
    return f"{counted(dropped, 'change')} dropped: {target} did not take them within {duration_text(seconds)}"
