"""A manifest as values: what the person declared, with the defaults filled in.

Everything here is frozen and equal by what it says; where it stands in the document (`path`)
doesn't count, so that moving a handler in a file changes nothing. Durations are seconds as float,
sizes are bytes as int.
"""

import json
from dataclasses import dataclass, field
from enum import StrEnum

from declctl.manifest.json_values import Json, Path

ALL_EVENTS = ("Added", "Modified", "Deleted", "Resync")
DEFAULT_DROP_FIELDS = ("metadata.managedFields",)


class CacheMode(StrEnum):
    """How objects are kept: compressed until they are read, decoded, or without all but their metadata."""

    FRAMES = "Frames"
    OBJECTS = "Objects"
    METADATA_ONLY = "MetadataOnly"


class InitialSync(StrEnum):
    """Whether a handler hears the objects that are there when it joins."""

    DELIVER = "Deliver"
    SKIP = "Skip"


class Replay(StrEnum):
    """Whether a handler hears the cache again."""

    NEVER = "Never"
    ON_CODE_CHANGE = "OnCodeChange"


class Delivery(StrEnum):
    """Whether a handler hears every change, or the changes of one key merged."""

    EVENT = "Event"
    KEYED = "Keyed"


class OnFailure(StrEnum):
    """What happens to a change when its attempts are used up."""

    IGNORE = "Ignore"
    RETRY = "Retry"


class OnError(StrEnum):
    """What a plugin that fails to load, or fails again and again, does to the others."""

    FAIL = "Fail"
    DISABLE = "Disable"


class WatchFiles(StrEnum):
    """How changed files are noticed."""

    AUTO = "Auto"
    POLL = "Poll"
    OFF = "Off"


class DrainPolicy(StrEnum):
    """Who gets what is queued at a reload: the old code (up to the fence), or the new code at once."""

    FENCE = "Fence"
    HANDOVER = "Handover"


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """`module` or `module:attribute`; says nothing about whether they exist."""

    module: str
    attribute: str | None = None

    def __str__(self) -> str:
        return self.module if self.attribute is None else f"{self.module}:{self.attribute}"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. An empty host means all interfaces, port 0 any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class FrozenJson:
    """Any JSON value, frozen: equal by what it says, and never shown by `repr`, as it may hold secrets."""

    canonical: str = field(default="{}", repr=False)

    @classmethod
    def of(cls, value: Json) -> "FrozenJson":
        """From plain data; the order of keys is forgotten."""
        return cls(json.dumps(value, sort_keys=True, separators=(",", ":")))

    def value(self) -> Json:
        """A private copy, made anew at each call."""
        return json.loads(self.canonical)


@dataclass(frozen=True, slots=True)
class TransformSpec:
    """What happens to an object before it is cached: fields dropped, then a function asked."""

    drop_fields: tuple[str, ...] = DEFAULT_DROP_FIELDS  # canonical, sorted
    entry_point: EntryPoint | None = None
    path: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class IndexerSpec:
    """One index; exactly one of `field_path` and `entry_point` is set."""

    name: str
    field_path: str | None = None
    entry_point: EntryPoint | None = None
    path: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """What is watched. Selectors are canonical texts, empty for everything.

    `namespaces` is None for all of them; `namespaces_inherited` says that they come from
    `spec.namespaces`, which doesn't apply to a kind that turns out to be cluster-scoped.
    `resync_period` is None for never.
    """

    name: str
    api_version: str
    kind: str
    namespaces: tuple[str, ...] | None = None
    namespaces_inherited: bool = False
    names: tuple[str, ...] = ()
    label_selector: str = ""
    field_selector: str = ""
    resync_period: float | None = None
    idle_timeout: float = 90.0
    transform: TransformSpec = TransformSpec()
    cache: CacheMode = CacheMode.FRAMES
    indexers: tuple[IndexerSpec, ...] = ()
    path: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """One value of a plugin's config that comes from elsewhere; exactly one of `env` and `file` is set."""

    name: str
    env: str | None = None
    file: str | None = None
    path: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PluginSpec:
    """An installed plugin. `version` is a range such as `>=1.2,<2`, None for any."""

    name: str
    version: str | None = None
    on_error: OnError = OnError.FAIL
    config: FrozenJson = FrozenJson()
    config_from: tuple[ConfigSource, ...] = ()
    path: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """The queue of a handler; never two calls for one key, whatever `concurrency` says."""

    name: str = "default"
    concurrency: int = 1


@dataclass(frozen=True, slots=True)
class RetrySpec:
    """How often a failing change is tried, the first time included, and how long is waited between."""

    max_attempts: int = 5
    initial_backoff: float = 1.0
    max_backoff: float = 300.0


@dataclass(frozen=True, slots=True)
class FilterSpec:
    """Which changes a handler is told; every part that is given has to agree.

    `label_selector` and `entry_point` judge an object, `changed_paths` what a Modified has changed.
    """

    label_selector: str = ""  # canonical, empty for everything
    changed_paths: tuple[str, ...] = ()  # canonical, sorted
    entry_point: EntryPoint | None = None
    path: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """Who listens to what; exactly one of `entry_point` and `plugin` is set.

    `resync_period` is None for the resource's own, 0 for never. `timeout` is None for none, and so is
    a `filter` that lets everything pass.
    """

    name: str
    resource: str
    entry_point: EntryPoint | None = None
    plugin: str | None = None
    events: tuple[str, ...] = ALL_EVENTS  # in the order of ALL_EVENTS
    initial_sync: InitialSync = InitialSync.DELIVER
    resync_period: float | None = None
    delivery: Delivery = Delivery.EVENT
    buffer_bytes: int = 64 * 1024 * 1024
    queue: QueueSpec = QueueSpec()
    retry: RetrySpec = RetrySpec()
    timeout: float | None = None
    on_failure: OnFailure = OnFailure.IGNORE
    filter: FilterSpec | None = None
    replay: Replay = Replay.NEVER
    path: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class LifecycleStep:
    """One function to call when the process starts or stops."""

    entry_point: EntryPoint
    order: int = 0
    path: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class LifecycleSpec:
    """What is called once in the life of the process, in the order of calling."""

    startup: tuple[LifecycleStep, ...] = ()
    shutdown: tuple[LifecycleStep, ...] = ()


@dataclass(frozen=True, slots=True)
class ReloadSpec:
    """How changed files become a new generation."""

    watch: WatchFiles = WatchFiles.AUTO
    settle: float = 0.3
    drain_policy: DrainPolicy = DrainPolicy.FENCE
    drain_timeout: float = 20.0
    preflight: bool = True
    preflight_timeout: float = 5.0
    warm_timeout: float = 60.0
    probation_period: float = 0.0
    min_calls: int = 20
    max_error_ratio: float = 0.5
    informer_linger: float = 60.0
    path: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AdminSpec:
    """Where probes, status, metrics and the page are served.

    `allowed_hosts` are names that a request may be sent to, besides those of this machine and IP addresses.
    """

    bind_address: Address = Address("127.0.0.1", 8081)
    allowed_hosts: tuple[str, ...] = ()
    path: Path = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Controller:
    """A whole manifest."""

    name: str
    resources: tuple[ResourceSpec, ...] = ()
    handlers: tuple[HandlerSpec, ...] = ()
    plugins: tuple[PluginSpec, ...] = ()
    lifecycle: LifecycleSpec = LifecycleSpec()
    reload: ReloadSpec = ReloadSpec()
    admin: AdminSpec = AdminSpec()
    path: Path = field(default=(), compare=False, repr=False)
