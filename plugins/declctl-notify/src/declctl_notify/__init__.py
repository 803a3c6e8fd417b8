"""A declctl plugin: changes of watched objects as messages to chats, mail and pagers.

These are the hooks. A change goes through `service` (rules, templates), `channel` (one target and its
thread), `groups` (which changes become one message, and when), `outbox` (rate limit, retries), `compose` and
`sending`. It imports nothing of declctl but public names, as any third-party plugin should.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from declctl import Change, hookimpl

from declctl_notify.metrics import SEND_SECONDS, ChannelCollector
from declctl_notify.sending import target_fault
from declctl_notify.service import Service
from declctl_notify.settings import SCHEMA, Settings

__all__ = [
    "declctl_check_config",
    "declctl_commands",
    "declctl_config_schema",
    "declctl_event",
    "declctl_hookspec_version",
    "declctl_metrics",
    "declctl_prepare",
    "declctl_reload",
    "declctl_shutdown",
    "declctl_teardown",
]

declctl_hookspec_version = ">=1.1,<2"


class Context(Protocol):
    """The parts of a hook's `ctx` that the plugin reads."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The plugin's `config` in the manifest, valid by `declctl_config_schema`."""
        ...

    @property
    def generation(self) -> int:
        """The number of the generation."""
        ...

    @property
    def dry_run(self) -> bool:
        """Whether the process changes nothing."""
        ...

    @property
    def listers(self) -> Mapping[str, Any]:
        """The caches, by the names of the manifest's resources."""
        ...

    @property
    def log(self) -> Any:
        """A structlog logger."""
        ...


class Outcome(Protocol):
    """The part of an outcome of a reload that the plugin reads."""

    @property
    def generation(self) -> int:
        """The number of the generation that is active now."""
        ...


class Notifier:
    """The plugin in one process: settings for each generation, and the service that outlives them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._service = Service(
            clock=time, took=lambda target, seconds: SEND_SECONDS.labels(target).observe(seconds)
        )
        # Prepared configs that were not torn down, with their settings. Generations with equal configs share
        # one, as declctl prepares and tears down a plugin only when its config changes.
        self._prepared: list[tuple[Mapping[str, Any], Settings]] = []
        self._staged: tuple[int, Settings, Context] | None = None  # the last that was prepared
        self._active = -1  # the generation of the settings in use

    @property
    def service(self) -> Service:
        """The service."""
        return self._service

    def prepare(self, ctx: Context) -> None:
        """Check the config of a generation before its commit. Raises SettingsFault."""
        settings = Settings.of(ctx.config)
        settings.check_resources(ctx.listers)
        self._service.check(settings, dry_run=ctx.dry_run)
        with self._lock:
            # In one step, as `event` reads it without the lock.
            others = [one for one in self._prepared if one[0] != ctx.config]
            self._prepared = [*others, (ctx.config, settings)]
            self._staged = (ctx.generation, settings, ctx)
            first = self._active < 0
        if first:
            self._activate(ctx.generation)

    def event(self, change: Change, ctx: Context) -> None:
        """Give a change to the service, with the settings of its generation."""
        if self._active < ctx.generation:
            self._activate(ctx.generation)
        settings = next((found for config, found in self._prepared if config is ctx.config), None)
        if settings is None:
            settings = next(found for config, found in self._prepared if config == ctx.config)
        self._service.take(change, settings, log=ctx.log)

    def reloaded(self, generation: int) -> None:
        """Use the settings of the generation that is active now."""
        self._activate(generation)

    def teardown(self, ctx: Context) -> None:
        """Forget the settings of a generation. The last one ends the service: the plugin was removed."""
        with self._lock:
            self._prepared = [one for one in self._prepared if one[0] != ctx.config]
            if self._staged is not None and self._staged[0] == ctx.generation:
                self._staged = None  # it was refused
            last = not self._prepared
        if last:
            self.shutdown()

    def shutdown(self) -> None:
        """Send what waits, and end."""
        self._service.stop()
        with self._lock:
            self._staged, self._active = None, -1

    def _activate(self, generation: int) -> None:
        with self._lock:
            if generation <= self._active:
                return
            self._active = generation
            # A generation with an unchanged config has none. A later one may be staged already.
            if self._staged is not None and self._staged[0] <= generation:
                _, settings, ctx = self._staged
                self._staged = None
                self._service.configure(settings, dry_run=ctx.dry_run, log=ctx.log)


_NOTIFIER = Notifier()


@hookimpl
def declctl_config_schema() -> dict[str, Any]:
    """What `config` may hold."""
    return SCHEMA


@hookimpl
def declctl_check_config(config: Mapping[str, Any], resources: Sequence[str]) -> list[Mapping[str, Any]]:
    """All faults at once, for `declctl validate`: templates, names, and URLs that apprise can't read.

    A URL that is not there is a warning: its Secret may be where the process runs. Nothing is sent.
    """
    found: list[Mapping[str, Any]] = [
        {"path": list(fault.path), "message": str(fault)} for fault in Settings.faults(config, resources)
    ]
    if found:
        return found
    settings = Settings.of(config)
    for place, target in enumerate(() if settings.dry_run else settings.targets.values()):
        wrong = target_fault(target)
        if wrong is not None:
            message, is_there = wrong
            found.append(
                {
                    "path": ["targets", place, "urlFrom"],
                    "message": f"the target {target.name}: {message}",
                    "suggestion": "`declctl-notify test` sends a test message to each target",
                    "severity": "error" if is_there else "warning",
                }
            )
    return found


@hookimpl
def declctl_prepare(ctx: Context) -> None:
    """Refuse a config that can't be used: a template with a fault, a URL that is not there."""
    _NOTIFIER.prepare(ctx)


@hookimpl
def declctl_event(change: Change, ctx: Context) -> None:
    """Let a change wait for its message. Never waits for a service."""
    _NOTIFIER.event(change, ctx)


@hookimpl
def declctl_reload(outcome: Outcome) -> None:
    """Use an edited config, also if no change comes."""
    _NOTIFIER.reloaded(outcome.generation)


@hookimpl
def declctl_teardown(ctx: Context) -> None:
    """Forget the config of a generation; end if no generation has the plugin any more."""
    _NOTIFIER.teardown(ctx)


@hookimpl
def declctl_shutdown() -> None:
    """Send what waits, for `shutdownTimeout` at most."""
    _NOTIFIER.shutdown()


@hookimpl
def declctl_metrics(registry: Any) -> None:
    """What was sent to each target, what waits, and how long a send takes."""
    registry.register(ChannelCollector(lambda: _NOTIFIER.service.statistics))
    registry.register(SEND_SECONDS)


@hookimpl
def declctl_commands(app: Any) -> None:
    """`declctl notify test`: a test message to the targets of a manifest."""
    from declctl_notify.command import add_commands  # late: a process that runs has no command line

    add_commands(app)
