"""From a change to the entries of targets, and the life of the channels.

One `Service` lives as long as the process. It keeps groups, tokens and waiting messages over edits of the
config. `take` is called by the threads of handlers, and never waits for a service.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from declctl import Change, ChangeReason, ChangeType

from declctl_notify.channel import Channel, ChannelStatistics, ChannelThread, dropped_line
from declctl_notify.differences import (
    Difference,
    differences,
    is_same_branch,
    parse_path,
    without_secrets,
)
from declctl_notify.groups import Entry, GroupKey
from declctl_notify.outbox import Clock
from declctl_notify.sending import Send, SendFailed, check_target, print_message, send_by_apprise
from declctl_notify.settings import RuleSettings, Settings, SettingsFault
from declctl_notify.templates import Missing, TemplateFault
from declctl_notify.text import one_line, plain_text

_NOT_NEW: Final = (ChangeReason.INITIAL, ChangeReason.REPLAY)


class Service:
    """Takes changes, and sends them. From any thread.

    `clock` is monotonic, and `send` sends one message. `took` is called with a target and the seconds
    of a try.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        send: Send = send_by_apprise,
        took: Callable[[str, float], object] = lambda _target, _seconds: None,
    ) -> None:
        self._clock = clock
        self._send = send
        self._took = took
        self._lock = threading.Lock()
        self._channels: dict[str, ChannelThread] = {}  # by the name of the target
        self._ending: list[ChannelThread] = []  # of targets that an edit has removed
        self._settings: Settings | None = None
        self._dry_run = False
        self._log: Any = None
        self._faulty: dict[tuple[str, str], float] = {}  # rule and fault, by the time of their last line

    @property
    def statistics(self) -> Mapping[str, ChannelStatistics]:
        """The figures of each target."""
        with self._lock:
            return {name: thread.channel.statistics for name, thread in self._channels.items()}

    def check(self, settings: Settings, *, dry_run: bool) -> None:
        """Raise SettingsFault if the URL of a target is not there, or not one of apprise. Blocks."""
        if dry_run or settings.dry_run:
            return
        for target in settings.targets.values():
            try:
                check_target(target)
            except SendFailed as fault:
                raise SettingsFault(f"the target {target.name}: {fault}") from None

    def configure(self, settings: Settings, *, dry_run: bool, log: Any) -> None:
        """Use these settings from now on. Targets that stay keep their groups, tokens and messages.

        A target that is not there any more sends what waits, within `shutdown_timeout`.
        """
        with self._lock:
            self._settings, self._log, self._dry_run = settings, log, dry_run or settings.dry_run
            for name, target in settings.targets.items():
                thread = self._channels.get(name)
                if thread is not None:
                    thread.channel.configure(target, settings, log=log)
                    thread.wake()
                    continue
                channel = Channel(target, settings, log=log, clock=self._clock)
                thread = self._channels[name] = ChannelThread(
                    channel, self._sender, clock=self._clock, took=partial(self._took, name)
                )
                thread.start()
            for name in [name for name in self._channels if name not in settings.targets]:
                thread = self._channels.pop(name)
                thread.stop(settings.shutdown_timeout)
                self._ending.append(thread)

    def take(self, change: Change, settings: Settings, *, log: Any) -> None:
        """Give a change to the targets of each rule that it matches. `settings`: of the calling generation.

        A change of a target that an edit has removed is not sent.
        """
        if change.type is ChangeType.RESYNC:
            return
        if not settings.initial_sync and (change.initial or change.reason in _NOT_NEW):
            return
        rules = [rule for rule in settings.rules if _is_wanted(rule, change)]
        if not rules:
            return
        values = _values(change, settings)
        if values is None:
            return
        for rule in rules:
            mine = {**values, "rule": rule.name, "severity": rule.severity}
            if self._holds(rule, mine, log):
                self._add(rule, mine, log)

    def stop(self) -> None:
        """Send what waits within `shutdown_timeout`, log what is dropped, and end all threads. Blocks."""
        with self._lock:
            settings, log = self._settings, self._log
            threads = [*self._channels.values(), *self._ending]
            self._channels, self._ending, self._settings = {}, [], None
        if settings is None:
            return
        for thread in threads:
            thread.stop(settings.shutdown_timeout)
        for thread in threads:
            if dropped := thread.join():
                name = thread.channel.target.name
                log.warning(dropped_line(name, dropped, settings.shutdown_timeout), target=name)

    def _sender(self) -> Send:
        with self._lock:
            return print_message if self._dry_run else self._send

    def _holds(self, rule: RuleSettings, values: Mapping[str, Any], log: Any) -> bool:
        """Whether the condition of a rule is true. One that fails counts as false, and is logged."""
        if rule.when is None:
            return True
        try:
            return bool(rule.when.evaluate(values))
        except TemplateFault as fault:
            line = f"when of the rule {rule.name} has failed, and counts as false: {fault}"
            self._log_fault(rule, line, log)
            return False

    def _add(self, rule: RuleSettings, values: Mapping[str, Any], log: Any) -> None:
        def rendered(what: str, render: Callable[[], str], otherwise: str) -> str:
            # A template that fails for one object does not lose its change.
            try:
                return render()
            except TemplateFault as fault:
                self._log_fault(rule, f"{what} of the rule {rule.name} has failed: {fault}", log)
                return otherwise

        plain = f"{values['change'].type} {values['kind']} {values['key']}"
        title = one_line(rendered("title", lambda: rule.title.render(values), plain))
        body = rendered("body", lambda: rule.body.render(values), "(its template has failed)")
        fingerprint = _fingerprint(values)
        if (template := rule.fingerprint) is not None:
            fingerprint = rendered("fingerprint", lambda: template.render(values), fingerprint)
        grouped = tuple(
            (one.text, rendered("groupBy", lambda one=one: _group_value(one.evaluate(values)), ""))
            for one in rule.group_by
        )
        for name in rule.targets:
            # Each target has an entry of its own, which it changes.
            entry = Entry((f"{values['resource']} {values['key']}", fingerprint), title, body)
            with self._lock:
                thread = self._channels.get(name)
            if thread is not None:
                thread.channel.add(rule, GroupKey(rule.name, grouped), entry)
                thread.wake()

    def _log_fault(self, rule: RuleSettings, line: str, log: Any) -> None:
        """Log a fault of a template, once in a `log_interval`."""
        now = self._clock.monotonic()
        with self._lock:
            interval = self._settings.log_interval if self._settings is not None else 0.0
            known = (rule.name, line)
            if now < self._faulty.get(known, now):
                return
            self._faulty = {one: at for one, at in self._faulty.items() if at > now}
            self._faulty[known] = now + interval
        log.warning(line, rule=rule.name)


def _is_wanted(rule: RuleSettings, change: Change) -> bool:
    return change.type in rule.events and (rule.resources is None or change.resource in rule.resources)


def _values(change: Change, settings: Settings) -> dict[str, Any] | None:
    """What templates and expressions may use; None for a change of ignored fields alone."""
    obj, old = without_secrets(change.obj), change.old
    found: Sequence[Difference] = ()
    if change.type is ChangeType.MODIFIED and old is not None:
        found = differences(old, change.obj, ignore=settings.ignore)
        if not found:
            return None
    key = change.key
    return {
        "change": _ChangeFacts(
            change.type, change.reason, change.received_at, change.final_state_unknown, change.initial
        ),
        "obj": obj,
        "old": None if old is None else without_secrets(old),
        "resource": change.resource,
        "kind": plain_text(obj.get("kind") or change.resource),
        "namespace": change.obj.namespace or "",
        "name": change.obj.name,
        "key": str(key),
        "differences": found,
        "changed": _Changed(found),
    }


@dataclass(frozen=True, slots=True)
class _ChangeFacts:
    """`change` of a template: that of the hook without its objects, which may be Secrets."""

    type: ChangeType
    reason: ChangeReason
    received_at: datetime
    final_state_unknown: bool
    initial: bool


class _Changed:
    """`changed("spec.replicas")`: whether a field at or below a path, or above it, has changed."""

    def __init__(self, found: Sequence[Difference]) -> None:
        self._found = found

    def __call__(self, path: str) -> bool:
        wanted = parse_path(path)
        return any(is_same_branch(one.steps, wanted) for one in self._found)


def _fingerprint(values: Mapping[str, Any]) -> str:
    """The type of the change, with the changed fields and their new values, unless these are times."""
    found: Sequence[Difference] = values["differences"]
    shown = (f"{one.path}={one.digest}" for one in found)
    return "\n".join((str(values["change"].type), *shown))


def _group_value(value: Any) -> str:
    if isinstance(value, Missing) or value is None:
        return ""
    return one_line(plain_text(value))
