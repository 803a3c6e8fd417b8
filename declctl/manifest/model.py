"""A manifest as values: each field with its declaration, and the defaults filled in.

Everything here is frozen and equal by what it says; where it stands in the document (`path`)
doesn't count, so that moving a handler in a file changes nothing. Durations are seconds as float,
sizes are bytes as int. Each field is declared once, here, in the order of the published schema; `fields` says
what follows from a declaration.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from declctl.manifest import codes
from declctl.manifest.fields import (
    LocatedSpec,
    Schema,
    Spec,
    about,
    build,
    choice,
    document_schema,
    duration,
    entry_point,
    field,
    flag,
    label_selector,
    listing,
    mapping,
    namespaces,
    nested,
    nested_list,
    option,
    quantity,
    record,
    reference,
    refused,
    restart,
    schema_of,
    text,
    whole,
)
from declctl.manifest.values import Address, EntryPoint, FrozenJson, Json, items_at, parse_duration, value_at
from declctl.objects.fields import FieldPath

ALL_EVENTS = ("Added", "Modified", "Deleted", "Resync")
_SNAPSHOTS = refused(
    listing(
        "Resources of which the hook gets a view.",
        text("The name of a resource."),
        examples=[["settings"]],
    ),
    codes.INCLUDE_SNAPSHOTS,
    accepts=([],),
)


class CacheMode(StrEnum):
    """How objects are kept: compressed until they are read, decoded, or without all but their metadata."""

    FRAMES = "Frames"
    OBJECTS = "Objects"
    METADATA_ONLY = "MetadataOnly"


class InitialSync(StrEnum):
    """Whether a handler hears the objects that are there when it joins."""

    DELIVER = "Deliver"
    SKIP = "Skip"


class ReplayPolicy(StrEnum):
    """Whether a handler hears the cache again."""

    NEVER = "Never"
    ON_CODE_CHANGE = "OnCodeChange"


class Delivery(StrEnum):
    """Whether a handler hears every change, or the changes of one key merged."""

    EVENT = "Event"
    KEYED = "Keyed"


class OnFailure(StrEnum):
    """What happens to a change when its attempts are used up."""

    RETRY = "Retry"
    IGNORE = "Ignore"


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


def _sorted_paths(value: list[str]) -> tuple[str, ...]:
    return tuple(sorted({str(FieldPath.parse(text)) for text in value}))


def _name(value: Json) -> str:
    return str(value_at(value, "name"))


def _namespaces(value: list[str] | None) -> tuple[str, ...] | None:
    return None if not value or value == ["*"] else tuple(value)


@dataclass(frozen=True, slots=True)
class TransformSpec(LocatedSpec):
    """What happens to an object before it is cached. `drop_fields` are canonical and sorted."""

    ABOUT = about(
        "What happens to an object before it is cached: fields are dropped, then the function is asked."
    )
    drop_fields: tuple[str, ...] = field(
        listing(
            "Fields that no handler needs; an empty list keeps everything. `declctl plan` says which "
            "are cut out of the bytes, and for which every object is decoded.",
            text("A field path.", value="droppedPath"),
            default=["metadata.managedFields"],
            uniqueItems=True,
        ),
        read=_sorted_paths,
    )
    entry_point: EntryPoint | None = field(
        entry_point(
            "A function that takes the object and returns it changed, or None to leave it out; every "
            "object is decoded and written for it.",
            function=True,
            examples=["handlers.trim:slim"],
        )
    )


@dataclass(frozen=True, slots=True)
class IndexerSpec(LocatedSpec):
    """One index; exactly one of `field_path` and `entry_point` is set."""

    ABOUT = about(
        "One index over the cache, for `listers[…].by_index(name, value)`.",
        one_of=("fieldPath", "entryPoint"),
        hints={"field": "fieldPath", "path": "fieldPath", "function": "entryPoint"},
    )
    name: str = field(text("How listers call it.", value="indexName", examples=["byNode"]), required=True)
    field_path: str | None = field(
        text("The field whose value is indexed.", value="fieldPath", examples=["spec.nodeName"])
    )
    entry_point: EntryPoint | None = field(
        entry_point(
            "A function that takes the object and returns the texts under which it is found: "
            "always the same for the same object. What it reads of each is decoded, about 15 µs each; "
            "of objects that are alike in all that it reads it may be asked once.",
            function=True,
            examples=["handlers.index:by_team"],
        )
    )


@dataclass(frozen=True, slots=True)
class ResourceSpec(LocatedSpec):
    """What is watched. Selectors are canonical texts, empty for everything.

    `namespaces` is None for all of them; `namespaces_inherited` says that they come from
    `spec.namespaces`, which doesn't apply to a kind that turns out to be cluster-scoped.
    `resync_period` is None for never.
    """

    ABOUT = about(
        "One kind of objects, watched and cached once for all handlers that refer to it.",
        hints={
            "namespace": "namespaces",
            "selector": "labelSelector",
            "labels": "labelSelector",
            "version": "apiVersion",
            "resync": "resyncPeriod",
            "indexes": "indexers",
            "indices": "indexers",
            "fields": "fieldSelector",
        },
    )
    name: str = field(
        text("How handlers and listers call it.", value="label", examples=["pods"]), required=True
    )
    api_version: str = field(
        text("Group and version.", value="apiVersion", examples=["v1", "apps/v1"]), required=True
    )
    kind: str = field(
        text("The kind, as in an object's `kind`.", value="kind", examples=["Pod"]), required=True
    )
    namespaces: tuple[str, ...] | None = field(
        namespaces("Only these namespaces; absent, those of spec.namespaces."), read=_namespaces
    )
    namespaces_inherited: bool = False
    names: tuple[str, ...] = field(
        listing(
            "Only the objects with these names, each with a watch of its own.",
            text("The name of an object.", value="objectName"),
            minItems=1,
            uniqueItems=True,
            examples=[["guard-settings"]],
        ),
        absent=(),
    )
    label_selector: str = field(
        label_selector("Only objects with these labels; the server selects."), absent=""
    )
    field_selector: str = field(
        text(
            "Only objects with these field values; the server selects, by the fields that the kind allows.",
            value="fieldSelector",
            examples=["status.phase=Running"],
        ),
        absent="",
    )
    resync_period: float | None = field(
        duration(
            "How often the cache is replayed to the handlers, without asking the server; absent, never.",
            minimum=1,
            zero=True,
            examples=["10m"],
        ),
        # A resource has no period above it that 0s would switch off: it is the same as none.
        read=lambda value: parse_duration(value) or None,
    )
    idle_timeout: float = field(
        duration(
            "A watch that hears nothing for so long, not even a bookmark, is taken for dead and opened anew.",
            minimum=1,
            default="90s",
        )
    )
    transform: TransformSpec = nested(TransformSpec)
    cache: CacheMode = field(
        record(
            "How the objects are kept.",
            {
                "mode": choice(
                    "Frames are compressed, and decoded when read, about 15 µs each; Objects are kept "
                    "decoded, for small sets that are read often; MetadataOnly asks the server for nothing "
                    "but metadata.",
                    [mode.value for mode in CacheMode],
                    default="Frames",
                )
            },
        ),
        read=lambda value: CacheMode(value_at(value, "mode") or CacheMode.FRAMES),
        absent=CacheMode.FRAMES,
    )
    indexers: tuple[IndexerSpec, ...] = nested_list(IndexerSpec, "Indexes.")


@dataclass(frozen=True, slots=True)
class ConfigSource(LocatedSpec):
    """One value of a plugin's config that comes from elsewhere; exactly one of `env` and `file` is set."""

    ABOUT = about("One value; exactly one source.", one_of=("env", "file", "secretKeyRef"))
    name: str = field(text("The key of the config that gets the value.", examples=["token"]), required=True)
    env: str | None = field(text("An environment variable.", value="variable", examples=["SLACK_TOKEN"]))
    file: str | None = field(
        text("A file, from the folder of the manifest.", value="fileName", examples=["secrets/token"])
    )
    secret_key_ref: ClassVar[Schema] = refused(
        record(
            "A key of a Secret.",
            {"name": text("The name of the Secret."), "key": text("The key in it.")},
            required=("name", "key"),
        ),
        codes.SECRET_REFERENCE,
    )


@dataclass(frozen=True, slots=True)
class PluginSpec(LocatedSpec):
    """An installed plugin. `version` is a range such as `>=1.2,<2`, None for any."""

    ABOUT = about("One installed package that plugs in through the entry-point group declctl.")
    name: str = field(
        text("The name of its entry point.", value="pluginName", examples=["slack"]), required=True
    )
    version: str | None = field(text("Which versions will do.", value="versionRange", examples=[">=1.2,<2"]))
    on_error: OnError = option(
        OnError,
        "Whether a plugin that can't be loaded stops the start (Fail) or is left out (Disable).",
        default=OnError.FAIL,
    )
    config: FrozenJson = field(
        mapping("What the plugin is told; the plugin says what is allowed.", examples=[{"channel": "#ops"}]),
        read=FrozenJson.of,
        absent=FrozenJson(),
    )
    config_from: tuple[ConfigSource, ...] = nested_list(
        ConfigSource, "Values of the config that come from elsewhere."
    )


@dataclass(frozen=True, slots=True)
class QueueSpec(Spec):
    """The queue of a handler; never two calls for one key, whatever `concurrency` says."""

    ABOUT = about("The queue that the handler works from.")
    name: str = field(
        refused(
            text("Handlers with the same queue share its workers.", default="default"),
            codes.NAMED_QUEUE,
            accepts=("default",),
        )
    )
    concurrency: int = field(
        whole("How many calls at a time; never two for one key.", minimum=1, default=1, examples=[4])
    )


@dataclass(frozen=True, slots=True)
class RetrySpec(Spec):
    """How often a failing change is tried, the first time included, and how long is waited between."""

    ABOUT = about(
        "What follows when the handler raises.",
        examples=[{"maxAttempts": 5, "initialBackoff": "1s", "maxBackoff": "5m"}],
    )
    max_attempts: int = field(whole("Calls for one change, the first included.", minimum=1, default=5))
    initial_backoff: float = field(duration("The wait before the second attempt; it doubles.", default="1s"))
    max_backoff: float = field(duration("The longest wait.", default="5m"))


@dataclass(frozen=True, slots=True)
class FilterSpec(LocatedSpec):
    """Which changes a handler is told; every part that is given has to agree.

    `label_selector` (canonical, empty for everything) and `entry_point` judge an object, `changed_paths`
    (canonical, sorted) what a Modified has changed.
    """

    ABOUT = about("Which changes, by what is in the objects; every part that is given has to agree.")
    label_selector: str = field(
        label_selector(
            "Only objects with these labels: one that gets them is Added, one that loses them Deleted."
        ),
        absent="",
    )
    changed_paths: tuple[str, ...] = field(
        listing(
            "A Modified is told only if something changed at or below one of these.",
            text("A field path.", value="fieldPath"),
            minItems=1,
            uniqueItems=True,
            examples=[["spec", "metadata.labels"]],
        ),
        read=_sorted_paths,
        absent=(),
    )
    entry_point: EntryPoint | None = field(
        entry_point(
            "A function that takes the object and says whether it is wanted, asked for each change.",
            function=True,
            examples=["handlers.filters:interesting"],
        )
    )
    expression: ClassVar[Schema] = refused(
        text("A CEL expression over obj and old.", examples=["obj.status.phase != old.status.phase"]),
        codes.FILTER,
    )


@dataclass(frozen=True, slots=True)
class HandlerSpec(LocatedSpec):
    """Who listens to what; exactly one of `entry_point` and `plugin` is set.

    `resync_period` is None for the resource's own, 0 for never. `timeout` is None for none, and so is
    a `filter` that lets everything pass. `events` are in the order of ALL_EVENTS.
    """

    ABOUT = about(
        "One listener. Its name is its identity: what waits for it survives a reload if the name does.",
        one_of=("entryPoint", "pluginRef"),
        hints={
            "on": "events",
            "resource": "resourceRef",
            "plugin": "pluginRef",
            "resync": "resyncPeriod",
            "retries": "retry",
            "when": "filter",
            "function": "entryPoint",
            "buffer": "bufferBytes",
        },
    )
    name: str = field(text("The name of the handler.", value="label", examples=["notify"]), required=True)
    resource: str = field(
        reference("The resource that it listens to.", "a resource in spec.resources"),
        key="resourceRef",
        read=_name,
        required=True,
    )
    mode: ClassVar[Schema] = refused(
        choice(
            "Event hears each change; Reconcile gets a key, and looks itself.",
            ["Event", "Reconcile"],
            default="Event",
        ),
        codes.MODE_RECONCILE,
        accepts=("Event",),
    )
    entry_point: EntryPoint | None = field(
        entry_point("A module with hooks, a class with hooks, or a function.")
    )
    plugin: str | None = field(
        reference("An installed plugin, instead of an entry point.", "a plugin in spec.plugins"),
        key="pluginRef",
        read=_name,
    )
    events: tuple[str, ...] = field(
        listing(
            "Which changes; absent, all of them.",
            choice("A type of change.", list(ALL_EVENTS)),
            minItems=1,
            uniqueItems=True,
            default=list(ALL_EVENTS),
            examples=[["Added", "Deleted"]],
        ),
        read=lambda given: tuple(event for event in ALL_EVENTS if event in given),
    )
    filter: FilterSpec | None = nested(FilterSpec, optional=True)
    include_snapshots_from: ClassVar[Schema] = _SNAPSHOTS
    initial_sync: InitialSync = option(
        InitialSync,
        "Whether it hears the objects that are there when it joins.",
        default=InitialSync.DELIVER,
    )
    resync_period: float | None = field(
        duration(
            "This handler's own period; absent, the resource's; 0s, never.",
            minimum=1,
            zero=True,
            examples=["5m"],
        )
    )
    replay: ReplayPolicy = option(
        ReplayPolicy,
        "Whether changed code hears the cache again, as Resync with the reason Replay.",
        default=ReplayPolicy.NEVER,
    )
    delivery: Delivery = option(
        Delivery,
        "Event keeps every change, up to bufferBytes; Keyed merges the waiting changes of a key.",
        default=Delivery.EVENT,
    )
    buffer_bytes: int = field(
        quantity(
            "How much may wait before the changes of a key are merged.", default="64Mi", examples=["16Mi"]
        )
    )
    queue: QueueSpec = nested(QueueSpec)
    debounce: ClassVar[Schema] = refused(
        duration("Wait until a key has been quiet for so long.", zero=True, examples=["500ms"]),
        codes.DEBOUNCE,
        accepts=("0s",),
    )
    retry: RetrySpec = nested(RetrySpec)
    timeout: float | None = field(duration("How long one call may take; absent, for ever.", examples=["30s"]))
    on_failure: OnFailure = field(
        refused(
            choice(
                "When the attempts are used up: Ignore counts it as failed, Retry goes on for ever.",
                [*(each.value for each in OnFailure), "DeadLetter"],
                default="Ignore",
            ),
            codes.DEAD_LETTER,
            accepts=tuple(each.value for each in OnFailure),
        ),
        read=OnFailure,
    )


def _in_order(steps: "Sequence[LifecycleStep]") -> "list[LifecycleStep]":
    """In the order of calling: by `order`, and then as written (Python's sort keeps that)."""
    return sorted(steps, key=lambda step: step.order)


@dataclass(frozen=True, slots=True)
class LifecycleStep(LocatedSpec):
    """One function to call when the process starts or stops."""

    ABOUT = about("One function.")
    entry_point: EntryPoint = field(
        entry_point("What is called.", examples=["handlers.boot:run"]), required=True
    )
    order: int = field(whole("Lower numbers first; then as written.", default=0, examples=[10]))


@dataclass(frozen=True, slots=True)
class LifecycleSpec(Spec):
    """What is called once in the life of the process, in the order of calling."""

    ABOUT = about("What is called once in the life of the process.")
    startup: tuple[LifecycleStep, ...] = nested_list(
        LifecycleStep, "Before the first list.", live=False, ordered=_in_order
    )
    shutdown: tuple[LifecycleStep, ...] = nested_list(
        LifecycleStep, "After the last call of a handler.", ordered=_in_order
    )


@dataclass(frozen=True, slots=True)
class ReloadSpec(LocatedSpec):
    """How changed files become a new generation."""

    ABOUT = about("How changed files take effect.")
    watch: WatchFiles = field(
        {
            "enum": [*(each.value for each in WatchFiles), False],
            "default": "Auto",
            "description": "How changed files are noticed. false is Off: YAML 1.1 tools write it so.",
        },
        read=lambda value: WatchFiles.OFF if value is False else WatchFiles(value),
    )
    settle: float = field(
        duration(
            "How long files must be quiet before they are read. Files that never are, are read after four "
            "times that long, or two seconds.",
            default="300ms",
        )
    )
    preflight: bool = field(
        {
            "enum": ["On", "Off", True, False],
            "default": "On",
            "description": "Whether handlers are first imported in a child process; true is On, false Off.",
        },
        read=lambda value: value in (True, "On"),
    )
    preflight_timeout: float = field(duration("How long that import may take.", default="5s"))
    warm_timeout: float = field(
        duration(
            "How long new resources may take to sync, and how long handlers wait for that at the start.",
            default="60s",
        )
    )
    drain_policy: DrainPolicy = option(
        DrainPolicy,
        "Who gets what was queued before the reload: the old code (Fence) or the new (Handover).",
        default=DrainPolicy.FENCE,
    )
    drain_timeout: float = field(
        duration(
            "How long the old code may take for it; then the new code gets the rest.",
            zero=True,
            default="20s",
        )
    )
    informer_linger: float = field(
        duration("How long a resource that nobody uses any more is still watched.", zero=True, default="60s")
    )
    probation_period: float = field(
        duration(
            "How long new code is watched, and the code before kept, which comes back if it fails.",
            zero=True,
            default="0s",
            examples=["60s"],
        )
    )
    min_calls: int = field(
        whole(
            "Calls of handlers before new code is judged; five of one handler are enough where all fail.",
            minimum=1,
            default=20,
        )
    )
    max_error_ratio: float = field(
        {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "default": 0.5,
            "description": "Which share of its calls may fail, if more fail than of the code before.",
        },
        read=float,
    )


@dataclass(frozen=True, slots=True)
class AdminSpec(LocatedSpec):
    """Where probes, status, metrics and the page are served.

    `allowed_hosts` are names that a request may be sent to, besides those of this machine and IP addresses.
    """

    ABOUT = about("The admin address.")
    bind_address: Address = field(
        restart(
            text(
                "Where probes, status and metrics are served; port 0 takes any free one.",
                value="address",
                default="127.0.0.1:8081",
            )
        )
    )
    allowed_hosts: tuple[str, ...] = field(
        listing(
            "Names under which it may be asked, besides those of this machine and IP addresses; "
            "with any port.",
            text("A host name, such as that of a Service.", value="subdomain"),
            examples=[["pod-guard.monitoring.svc"]],
        ),
        absent=(),
    )


@dataclass(frozen=True, slots=True)
class ControllerSpec(LocatedSpec):
    """A whole manifest: `spec` of the document, and the name of its metadata."""

    ABOUT = about(
        "What the controller does.",
        hints={
            "namespace": "namespaces",
            "hooks": "handlers",
            "listeners": "handlers",
            "watches": "resources",
        },
    )
    name: str
    namespaces: ClassVar[Schema] = namespaces("The default for resources; absent, all namespaces.")
    plugins: tuple[PluginSpec, ...] = nested_list(
        PluginSpec, "Installed plugins that are used.", kw_only=True
    )
    resources: tuple[ResourceSpec, ...] = nested_list(ResourceSpec, "What is watched.")
    handlers: tuple[HandlerSpec, ...] = nested_list(HandlerSpec, "Who listens, in the order of calling.")
    schedules: ClassVar[Schema] = refused(
        listing(
            "What is called by the clock.",
            record(
                "A function that is called by the clock.",
                {
                    "name": text("The name of the schedule.", value="label", examples=["nightly"]),
                    "cron": text("When, as in crontab(5).", examples=["0 2 * * *"]),
                    "timeZone": text("The time zone of cron.", default="UTC", examples=["Europe/Berlin"]),
                    "entryPoint": entry_point("What is called.", examples=["handlers.jobs:nightly"]),
                    "includeSnapshotsFrom": _SNAPSHOTS,
                },
                required=("name", "cron", "entryPoint"),
            ),
        ),
        codes.SCHEDULES,
        accepts=([],),
    )
    lifecycle: LifecycleSpec = nested(LifecycleSpec)
    reload: ReloadSpec = nested(ReloadSpec)
    leader_election: ClassVar[Schema] = restart(
        record(
            "Whether only one of several processes acts.",
            {
                "enabled": refused(
                    flag("Whether there is an election.", default=False),
                    codes.LEADER_ELECTION,
                    accepts=(False,),
                ),
                "leaseDuration": duration("How long a lease holds.", minimum=1, default="15s"),
            },
        )
    )
    sharding: ClassVar[Schema] = restart(
        refused(mapping("How several processes share the objects."), codes.SHARDING, accepts=({},))
    )
    admin: AdminSpec = nested(AdminSpec)
    metrics: ClassVar[Schema] = restart(
        record(
            "Where metrics are served; absent, on the admin address.",
            {
                "bindAddress": refused(
                    text("An address of their own.", value="address", examples=["0.0.0.0:9090"]),
                    codes.METRICS_ADDRESS,
                )
            },
        )
    )


CONTROLLER = document_schema(
    "Controller", "A controller: what is watched, and who is called.", schema_of(ControllerSpec)
)
"""The schema of a document of kind Controller."""


def build_controller(data: Json) -> ControllerSpec:
    """The manifest that a checked document declares."""
    spec = build(
        ControllerSpec, value_at(data, "spec"), ("spec",), name=str(value_at(data, "metadata", "name"))
    )
    inherited: Any = value_at(data, "spec", "namespaces")
    # Resources are built without a look at the spec around them: what they inherit is added here.
    if inherited is None:
        return spec
    given = items_at(data, "spec", "resources")
    resources = tuple(
        resource
        if value_at(item, "namespaces") is not None
        else replace(resource, namespaces=_namespaces(inherited), namespaces_inherited=True)
        for resource, item in zip(spec.resources, given, strict=True)
    )
    return replace(spec, resources=resources)
