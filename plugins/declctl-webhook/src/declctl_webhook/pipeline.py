"""The pipeline of one process: from the hooks of declctl, through the spool, to the receiver.

A hook writes an event to the spool and returns. A thread of its own, with a loop, sends it. So a slow
receiver delays no handler, and a hook that blocks the loop of declctl's handlers delays no event.

There is one pipeline for the process. It outlives generations: an edit of the config gives it other settings,
and it keeps the spool and all events in it.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from declctl_webhook.backlog import Backlog
from declctl_webhook.circuit import CircuitState
from declctl_webhook.dead_letters import DeadLetters
from declctl_webhook.endpoint import Endpoint, tls_context
from declctl_webhook.events import Event, EventError, EventMaker, ObjectChange
from declctl_webhook.metrics import REQUEST_SECONDS, Figures
from declctl_webhook.sender import Clock, Sender, SystemClock
from declctl_webhook.settings import Settings, SettingsError
from declctl_webhook.spool import EventTooLarge, SpoolFull

T = TypeVar("T")

STATUS_FILE: Final = "status.json"
_MAKERS: Final = 8  # generations that are under way at one time are few
_GRACE_SECONDS: Final = 1.0  # after the time limit of a request
_CALL_SECONDS: Final = 10.0  # for a call on the loop, which a slow disk may delay


class NotSpooled(Exception):
    """An event that could not be written to the spool. declctl calls the handler again for its change."""


class Context(Protocol):
    """What is needed of a hook's `ctx`."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The plugin's `config`, valid by its schema."""
        ...

    @property
    def generation(self) -> int:
        """The generation whose hook is called."""
        ...

    @property
    def dry_run(self) -> bool:
        """Whether nothing shall be changed outside."""
        ...

    @property
    def log(self) -> Any:
        """A structlog logger."""
        ...


class Pipeline:
    """One spool and the thread that sends its events. Any thread may use it."""

    def __init__(self, settings: Settings, log: Any, *, clock: Clock | None = None) -> None:
        """Take the spool, and begin to send what is in it. Blocks. Raises SettingsError."""
        clock = clock or SystemClock()
        self.settings = settings
        spool = settings.spool
        self._backlog = Backlog(
            spool, monotonic=clock.monotonic, now=lambda: clock.now().timestamp(), changed=self._wake
        )
        self._dead_letters = DeadLetters(spool.path, max_bytes=spool.dead_letter_bytes)
        self._endpoint = Endpoint(settings.endpoint)
        self._retired: set[asyncio.Task[None]] = set()  # one for each former endpoint that is not closed
        self._lock = threading.Lock()  # for the counts that hooks write
        recovery = self._backlog.open()
        self._sender = Sender(
            self._backlog,
            self._dead_letters,
            settings.delivery,
            self._endpoint.send,
            clock=clock,
            log=log,
            status_file=spool.path / STATUS_FILE,
        )
        self._sender.took = REQUEST_SECONDS.observe
        self._sender.configure(settings.delivery, None, self._endpoint.name, log)
        self._sender.counts.recovered = len(recovery.entries)
        self._sender.counts.damaged = recovery.damaged
        if recovery.entries:
            log.info(
                f"{len(recovery.entries):,} events of an earlier process are sent", spool=str(spool.path)
            )
        if recovery.damaged:
            log.error(f"{recovery.damaged:,} events in the spool are damaged and lost", spool=str(spool.path))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="declctl-webhook", daemon=True)
        self._thread.start()
        self._running = asyncio.run_coroutine_threadsafe(self._sender.run(), self._loop)

    def add(self, event: Event, log: Any) -> None:
        """Write an event to the spool. Blocks for the write. Raises NotSpooled."""
        counts = self._sender.counts
        path = self.settings.spool.path
        with self._lock:
            counts.received += 1
        try:
            if not self._backlog.add(event.key, event.body):
                log.debug("the spool is full: the event is dropped", spool=str(path))
        except EventTooLarge as error:
            # A retry would fail for ever.
            with self._lock:
                counts.too_large += 1
            log.error(f"the event is larger than the spool, and is dropped: {error}")
        except SpoolFull as error:
            self._count_refusal()
            raise NotSpooled(
                f"the spool {path} is full, as the receiver takes no events or is too slow: declctl keeps "
                "the change and tries again (spool.whenFull: Refuse)"
            ) from error
        except OSError as error:
            self._count_refusal()
            raise NotSpooled(f"the spool {path} can't be written: {error.strerror}") from error

    def __len__(self) -> int:
        """The events that are not delivered."""
        return len(self._backlog)

    def configure(self, settings: Settings, log: Any) -> None:
        """Use other settings from now on, for the events that wait too. Blocks for a moment."""
        self._backlog.configure(settings.spool)
        self._call(self._configure(settings, log), _CALL_SECONDS)

    async def _configure(self, settings: Settings, log: Any) -> None:
        self._dead_letters.max_bytes = settings.spool.dead_letter_bytes
        is_same = settings.endpoint == self.settings.endpoint
        self.settings = settings
        if not is_same:
            task = self._loop.create_task(_retire(self._endpoint))
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)
            self._endpoint = Endpoint(settings.endpoint)
        send = None if is_same else self._endpoint.send
        self._sender.configure(settings.delivery, send, self._endpoint.name, log)

    @property
    def figures(self) -> Figures:
        """The counts and the state, for metrics. Does not wait for the loop."""
        counts, backlog = self._sender.counts, self._backlog
        return Figures(
            received=counts.received,
            recovered=counts.recovered,
            sent=counts.delivered,
            failed_requests=counts.failed_requests,
            dead_letters=dict(counts.dead_letters),
            dropped={
                "SpoolFull": backlog.dropped,
                "TooLarge": counts.too_large,
                "Damaged": counts.damaged,
            },
            refused=counts.refused,
            waiting=len(backlog),
            oldest=backlog.oldest,
            spool_bytes=backlog.disk_bytes,
            circuit_open=self._sender.circuit.state is not CircuitState.CLOSED,
        )

    def status(self) -> dict[str, Any]:
        """The state and the counts. Blocks for a moment."""

        async def status() -> dict[str, Any]:
            return self._sender.status()

        return self._call(status(), _CALL_SECONDS)

    def close(self) -> None:
        """Send what waits, for `flushTimeout` at most, and give the spool back with the rest. Blocks."""
        seconds = self.settings.delivery.flush_timeout
        log = self._sender.log
        left = len(self._backlog)
        with suppress(TimeoutError):
            left = self._call(self._sender.flush(seconds), seconds + _CALL_SECONDS)
        with suppress(TimeoutError):
            self._call(self._end(), _CALL_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_SECONDS)
        self._backlog.close()
        if left:
            log.warning(
                f"{left:,} events stay in the spool, and the next process sends them",
                spool=str(self.settings.spool.path),
            )

    async def _end(self) -> None:
        self._running.cancel()
        for task in self._retired:
            task.cancel()
        await asyncio.gather(*self._retired, return_exceptions=True)
        await self._endpoint.close()
        self._sender.log_counts()
        self._sender.write_status()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.close()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop has ended: the next process sends the event
            self._loop.call_soon_threadsafe(self._sender.wake)

    def _count_refusal(self) -> None:
        with self._lock:
            self._sender.counts.refused += 1

    def _call(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run a coroutine on the loop. Blocks. Raises TimeoutError."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(seconds)


class Lifetimes:
    """Opens, configures and closes the pipeline as declctl calls the hooks. Any thread may use it.

    A generation is prepared before the one that runs is replaced, and may be refused. So its settings are
    used from its first event on, or from the outcome of the reload, whatever comes first. declctl prepares
    and tears down a config once, for all generations that have it.
    """

    def __init__(self, open_pipeline: Callable[[Settings, Any], Pipeline] = Pipeline) -> None:
        self._open = open_pipeline
        self._lock = threading.Lock()  # for all fields
        self._pipeline: Pipeline | None = None  # None with --dry-run, too
        self._prepared: dict[str, Prepared] = {}  # by config: prepared, and not torn down
        self._staged: dict[int, str] = {}  # by generation: configs that were prepared for it
        self._config = ""  # that the pipeline uses
        self._active = -1  # the newest generation that has run
        self._makers: dict[int, EventMaker] = {}  # by generation

    def prepare(self, ctx: Context) -> None:
        """Check a config, and open the pipeline for the first one. Blocks. Raises SettingsError."""
        config = _text(ctx.config)
        settings = Settings.of(ctx.config)
        prepared = Prepared(settings, ctx.log, _maker(settings))
        settings.check()
        tls_context(settings.endpoint)
        if warning := settings.endpoint.plain_text_warning():
            ctx.log.warning(warning)
        with self._lock:
            if self._pipeline is None and not ctx.dry_run:
                self._pipeline = self._open(settings, ctx.log)
                self._config, self._active = config, ctx.generation
            elif self._pipeline is not None and settings.spool.path != self._pipeline.settings.spool.path:
                raise SettingsError(
                    f"spool.path can't be edited while the process runs: {len(self._pipeline):,} events wait "
                    f"in {self._pipeline.settings.spool.path}. Restart the process with the new path when "
                    "they are sent"
                )
            self._staged[ctx.generation] = config
            self._prepared[config] = prepared

    def event(self, change: ObjectChange, ctx: Context) -> None:
        """Write the event of a change to the spool. Blocks for the write. Raises NotSpooled.

        With --dry-run it is logged instead.
        """
        with self._lock:
            maker = self._makers.get(ctx.generation) or self._new_maker(ctx)
            pipeline = self._pipeline
        if ctx.dry_run:
            event = maker.event_of(change)
            ctx.log.info(
                "an event is not sent, as this is a dry run", type=str(change.type), subject=event.key
            )
        elif pipeline is None:
            raise NotSpooled("the plugin was not prepared, or is shut down")
        else:
            pipeline.add(maker.event_of(change), ctx.log)

    def reloaded(self, generation: int) -> None:
        """Use the settings of the generation that runs after a reload. Blocks for a moment."""
        with self._lock:
            config = self._staged.get(generation)
            if config is not None:
                self._activate(generation, config)

    def tear_down(self, ctx: Context) -> None:
        """End a config: the pipeline is closed with the last one. Blocks for `flushTimeout` at most."""
        config = _text(ctx.config)
        with self._lock:
            self._prepared.pop(config, None)
            self._staged = {number: text for number, text in self._staged.items() if text != config}
            is_last = not self._prepared
        if is_last:
            self.shut_down()

    def shut_down(self) -> None:
        """Close the pipeline. Blocks for `flushTimeout` at most."""
        with self._lock:
            pipeline, self._pipeline = self._pipeline, None
            self._prepared.clear()
            self._staged.clear()
            self._makers.clear()
            self._config, self._active = "", -1
        if pipeline is not None:
            pipeline.close()

    @property
    def pipeline(self) -> Pipeline | None:
        """The pipeline; None before the first generation is prepared, after the end, and with --dry-run."""
        return self._pipeline

    @property
    def figures(self) -> Figures | None:
        """The figures of the pipeline; None without one."""
        pipeline = self._pipeline
        return None if pipeline is None else pipeline.figures

    def _new_maker(self, ctx: Context) -> EventMaker:
        """The maker of a generation whose first event this is; its settings are used from now on."""
        config = _text(ctx.config)
        if ctx.generation > self._active:
            self._activate(ctx.generation, config)
        prepared = self._prepared.get(config)
        maker = prepared.maker if prepared is not None else _maker(Settings.of(ctx.config))
        self._makers[ctx.generation] = maker
        for old in sorted(self._makers)[:-_MAKERS]:
            del self._makers[old]
        return maker

    def _activate(self, generation: int, config: str) -> None:
        self._active = max(self._active, generation)
        self._staged = {number: text for number, text in self._staged.items() if number > generation}
        prepared = self._prepared.get(config)
        if self._pipeline is not None and prepared is not None and config != self._config:
            self._config = config
            self._pipeline.configure(prepared.settings, prepared.log)


async def _retire(endpoint: Endpoint) -> None:
    """Close a former endpoint when its requests under way have ended, with its own settings."""
    try:
        await asyncio.sleep(endpoint.timeout + _GRACE_SECONDS)
    finally:
        await endpoint.close()


class Prepared(NamedTuple):
    """A config that was prepared."""

    settings: Settings
    log: Any
    maker: EventMaker


def _maker(settings: Settings) -> EventMaker:
    try:
        return EventMaker(settings.event)
    except EventError as error:
        raise SettingsError(str(error)) from error


def _text(config: Mapping[str, Any]) -> str:
    """A config as a text that is the same for equal configs."""
    return json.dumps(dict(config), sort_keys=True, default=dict)
