"""The model of a manifest: frozen values with all defaults, and the declaration of each field.

Two specs are equal if their values are equal. Their places in the document (`path`) do not count, so a
handler that moves within a file does not change. Durations are seconds as float; sizes are bytes as int. Each
field is declared once, here, in the order of the published schema; `fields` describes the uses of a
declaration.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

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
    nested_record,
    option,
    quantity,
    read_label_selector,
    record,
    reference,
    restart,
    schema_of,
    text,
    whole,
)
from declctl.manifest.values import Address, EntryPoint, FrozenJson, Json, items_at, parse_duration, value_at
from declctl.objects import GroupVersionKind
from declctl.objects.expressions import compile_expression
from declctl.objects.fields import FieldPath
from declctl.objects.shards import Sharding, ShardKey

ALL_EVENTS = ("Added", "Modified", "Deleted", "Resync")
_SNAPSHOTS = listing(
    "Resources that each call gets a view of, as ctx.snapshots: their cached objects, as they were when the "
    "call began. Nothing is called before they have synced.",
    text("The name of a resource."),
    uniqueItems=True,
    examples=[["settings"]],
)


class CacheMode(StrEnum):
    """The form of cached objects: compressed until they are read, decoded, or metadata alone."""

    FRAMES = "Frames"
    OBJECTS = "Objects"
    METADATA_ONLY = "MetadataOnly"


class InitialSync(StrEnum):
    """Whether a new handler receives an Added for each object that is already in the cache."""

    DELIVER = "Deliver"
    SKIP = "Skip"


class ReplayPolicy(StrEnum):
    """Whether a handler receives all cached objects again after an edit of its code."""

    NEVER = "Never"
    ON_CODE_CHANGE = "OnCodeChange"


class Delivery(StrEnum):
    """Whether a handler receives every change, or the waiting changes of a key as one."""

    EVENT = "Event"
    KEYED = "Keyed"


class Mode(StrEnum):
    """Whether a handler receives changes, or keys that it reconciles."""

    EVENT = "Event"
    RECONCILE = "Reconcile"


class OwnerSelection(StrEnum):
    """The owner references that `mapTo.owner` follows: the controlling one, or all."""

    CONTROLLER = "Controller"
    ANY = "Any"


class FieldConflicts(StrEnum):
    """What an apply does with fields of other managers that it would change."""

    FORCE = "Force"
    FAIL = "Fail"


class OnExisting(StrEnum):
    """What `ctx.apply_set` does with a child that exists and that its object does not own."""

    ADOPT = "Adopt"
    FAIL = "Fail"


class OnImmutable(StrEnum):
    """What an apply does with an object that the server refuses to change."""

    FAIL = "Fail"
    RECREATE = "Recreate"


class OnFailure(StrEnum):
    """What happens to a change after the last attempt."""

    RETRY = "Retry"
    IGNORE = "Ignore"
    DEAD_LETTER = "DeadLetter"


class OnInvalid(StrEnum):
    """What happens with an object that does not fit the class of its resource."""

    CONDITION = "Condition"
    SKIP = "Skip"
    CALL = "Call"


class OnError(StrEnum):
    """Whether a plugin that fails stops the start, or is left out until it works."""

    FAIL = "Fail"
    DISABLE = "Disable"


class AdminAuthorization(StrEnum):
    """Whose tokens the admin address takes: one that declctl is given, or those of Kubernetes."""

    TOKEN = "Token"
    KUBERNETES = "Kubernetes"


class MissedRuns(StrEnum):
    """What happens to the times of a schedule at which its function could not be called."""

    SKIP = "Skip"
    RUN_ONCE = "RunOnce"


class WatchFiles(StrEnum):
    """How declctl notices changed files."""

    AUTO = "Auto"
    POLL = "Poll"
    OFF = "Off"


class Followers(StrEnum):
    """What a process does while another one leads: it keeps its caches current, or starts no informer."""

    WARM = "Warm"
    COLD = "Cold"


class DrainPolicy(StrEnum):
    """The code that gets the changes which are queued at a commit: the old (Fence) or the new (Handover)."""

    FENCE = "Fence"
    HANDOVER = "Handover"


def _sorted_paths(value: list[str]) -> tuple[str, ...]:
    return tuple(sorted({str(FieldPath.parse(text)) for text in value}))


def _kinds(value: list[Json]) -> tuple[GroupVersionKind, ...]:
    return tuple(
        GroupVersionKind.of(str(value_at(each, "apiVersion")), str(value_at(each, "kind"))) for each in value
    )


def _recreated_kinds(value: list[Json]) -> tuple[GroupVersionKind, ...]:
    return _kinds([each for each in value if value_at(each, "onImmutable") == OnImmutable.RECREATE])


def _texts(value: list[Json]) -> tuple[str, ...]:
    return tuple(map(str, value))


def _name(value: Json) -> str:
    return str(value_at(value, "name"))


def _namespaces(value: Json) -> tuple[str, ...] | None:
    names = items_at(value)
    return None if not names or names == ["*"] else tuple(map(str, names))


def _namespace_selector(value: Json) -> str:
    selector = value_at(value, "labelSelector")
    return "" if selector is None else read_label_selector(selector)


DROPPED_BY_DEFAULT = ("metadata.managedFields",)
"""Fields that a cache does not have, unless it is one of children or the manifest says so."""


@dataclass(frozen=True, slots=True)
class TransformSpec(LocatedSpec):
    """The changes to an object before it is cached.

    `drop_fields` are canonical and sorted; None for the default, which `plan` decides.
    """

    ABOUT = about(
        "The changes to an object before it is cached: first fields are dropped, then the function is called."
    )
    drop_fields: tuple[str, ...] | None = field(
        listing(
            "Fields that are not cached; an empty list keeps all fields. The default is "
            "`[metadata.managedFields]`, and an empty list for children: a kind that a handler names in "
            "`applies`, and watches by `mapTo: {owner: …}` without a filter. `declctl plan` says which "
            "fields are cut out of the bytes, and which ones need every object decoded.",
            text("A field path.", value="droppedPath"),
            uniqueItems=True,
        ),
        read=_sorted_paths,
    )
    entry_point: EntryPoint | None = field(
        entry_point(
            "A function that takes the object and returns the object to cache, or None to leave it out. "
            "Every object is decoded for it, and encoded again.",
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
    name: str = field(
        text("The name of the index in `by_index`.", value="indexName", examples=["byNode"]), required=True
    )
    field_path: str | None = field(
        text("The field whose value is indexed.", value="fieldPath", examples=["spec.nodeName"])
    )
    entry_point: EntryPoint | None = field(
        entry_point(
            "A function that takes the object and returns the texts under which it is found, always the "
            "same for the same object. The fields that it reads are decoded, about 15 µs for each object. "
            "For objects that are equal in these fields it may be called only once.",
            function=True,
            examples=["handlers.index:by_team"],
        )
    )


@dataclass(frozen=True, slots=True)
class ResourceSpec(LocatedSpec):
    """One kind of objects to watch. Selectors are canonical texts; an empty text selects everything.

    `namespaces` is None for all namespaces, and for those that `namespace_selector` matches; an empty
    selector matches all. `namespaces_inherited` is True if either comes from `spec.namespaces`; a kind that
    turns out to be cluster-scoped then ignores them. `resync_period` is None for never.
    `object_type` is None for plain views.
    """

    ABOUT = about(
        "One kind of objects. It is watched and cached once for all handlers that refer to it.",
        any_of=(("apiVersion", "kind"), ("type",)),
        hints={
            "class": "type",
            "model": "type",
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
        text("The name that handlers and listers use.", value="label", examples=["pods"]), required=True
    )
    api_version: str = field(
        text(
            "Group and version; required without a type that says it.",
            value="apiVersion",
            examples=["v1", "apps/v1"],
        ),
        absent="",
    )
    kind: str = field(
        text(
            "The kind, as in an object's `kind`; required without a type that says it.",
            value="kind",
            examples=["Pod"],
        ),
        absent="",
    )
    object_type: EntryPoint | None = field(
        text(
            "The class of the objects that handlers and listers receive, which derives from declctl.Object. "
            "With `@declctl.custom_resource` it says apiVersion and kind.",
            value="class",
            examples=["models:Preview"],
        ),
        key="type",
    )
    namespaces: tuple[str, ...] | None = field(
        namespaces("Only these namespaces; by default those of spec.namespaces."), read=_namespaces
    )
    namespace_selector: str = ""
    namespaces_inherited: bool = False
    names: tuple[str, ...] = field(
        listing(
            "Only the objects with these names. Each name has a watch of its own.",
            text("The name of an object.", value="objectName"),
            minItems=1,
            uniqueItems=True,
            examples=[["guard-settings"]],
        ),
        absent=(),
    )
    label_selector: str = field(
        label_selector("Only objects with these labels. The server selects them."), absent=""
    )
    field_selector: str = field(
        text(
            "Only objects with these field values. The server selects them, and allows few fields of "
            "each kind.",
            value="fieldSelector",
            examples=["status.phase=Running"],
        ),
        absent="",
    )
    resync_period: float | None = field(
        duration(
            "The interval at which handlers receive all cached objects as Resync, without a request to the "
            "server; by default never.",
            minimum=1,
            zero=True,
            examples=["10m"],
        ),
        # No period is above that of a resource, so 0s is the same as an absent field.
        read=lambda value: parse_duration(value) or None,
    )
    idle_timeout: float = field(
        duration(
            "A watch that receives no event and no bookmark for this time is closed and opened again.",
            minimum=1,
            default="90s",
        )
    )
    transform: TransformSpec = nested(TransformSpec)
    cache: CacheMode = field(
        record(
            "The form of the cached objects.",
            {
                "mode": choice(
                    "Frames are compressed, and decoded at each read, about 15 µs for each object. Objects "
                    "are kept decoded, for small sets that are read often. MetadataOnly asks the server for "
                    "the metadata alone.",
                    [mode.value for mode in CacheMode],
                    default="Frames",
                )
            },
        ),
        read=lambda value: CacheMode(value_at(value, "mode") or CacheMode.FRAMES),
        absent=CacheMode.FRAMES,
    )
    sharded: bool = field(
        flag(
            "Whether processes with spec.sharding share its objects. With false, each process watches and "
            "caches all of them, such as settings, and the process with slot 0 handles them.",
            default=True,
        )
    )
    indexers: tuple[IndexerSpec, ...] = nested_list(IndexerSpec, "Indexes.")


@dataclass(frozen=True, slots=True)
class SecretKeyRef(LocatedSpec):
    """A key of a Secret in the namespace of the process. Its value is read when a generation is staged."""

    ABOUT = about(
        "A key of a Secret in the namespace of the process (--namespace, that of its pod, or of the context "
        "of the kubeconfig). The value is read from the API server at the start and at each reload. Needs "
        "the right to get this Secret.",
        examples=[{"name": "slack", "key": "token"}],
    )
    name: str = field(text("The name of the Secret.", value="subdomain", examples=["slack"]), required=True)
    key: str = field(text("The key in the Secret.", value="dataKey", examples=["token"]), required=True)


@dataclass(frozen=True, slots=True)
class ConfigSource(LocatedSpec):
    """A value of a plugin's config; exactly one of `env`, `file` and `secret_key_ref` is set."""

    ABOUT = about("One value, with exactly one source.", one_of=("env", "file", "secretKeyRef"))
    name: str = field(text("The key of the config that gets the value.", examples=["token"]), required=True)
    env: str | None = field(text("An environment variable.", value="variable", examples=["SLACK_TOKEN"]))
    file: str | None = field(
        text(
            "A file; a relative path begins at the folder of the manifest.",
            value="fileName",
            examples=["secrets/token"],
        )
    )
    secret_key_ref: SecretKeyRef | None = nested_record(SecretKeyRef)


@dataclass(frozen=True, slots=True)
class CircuitBreakerSpec(Spec):
    """When a plugin with `onError: Disable` that fails in its calls is suspended, and for how long."""

    ABOUT = about(
        "When a plugin with onError: Disable is suspended because its calls fail, and when a call is tried.",
        examples=[{"failures": 5, "initialBackoff": "30s", "maxBackoff": "10m"}],
    )
    failures: int = field(
        whole(
            "The number of failed calls in a row, of all handlers of the plugin and not all for one object, "
            "after which the plugin is not called.",
            minimum=1,
            default=5,
        )
    )
    initial_backoff: float = field(
        duration(
            "The wait before one call is tried. After each one that fails, the wait is twice as long.",
            default="30s",
        )
    )
    max_backoff: float = field(duration("The longest wait.", default="10m"))


@dataclass(frozen=True, slots=True)
class PluginSpec(LocatedSpec):
    """An installed plugin. `version` is a range such as `>=1.2,<2`; None allows every version."""

    ABOUT = about("One installed package with an entry point in the group declctl.")
    name: str = field(
        text("The name of the entry point.", value="pluginName", examples=["slack"]), required=True
    )
    version: str | None = field(
        text("The range of allowed versions.", value="versionRange", examples=[">=1.2,<2"])
    )
    on_error: OnError = option(
        OnError,
        "Fail: a plugin that can't be loaded stops the start. Disable: it is left out, and a plugin whose "
        "calls fail is not called for a while (circuitBreaker).",
        default=OnError.FAIL,
    )
    circuit_breaker: CircuitBreakerSpec = nested(CircuitBreakerSpec)
    config: FrozenJson = field(
        mapping(
            "The settings of the plugin; the plugin has the schema of them.", examples=[{"channel": "#ops"}]
        ),
        read=FrozenJson.of,
        absent=FrozenJson(),
    )
    config_from: tuple[ConfigSource, ...] = nested_list(
        ConfigSource, "Values of the config that come from the environment, from files or from Secrets."
    )


@dataclass(frozen=True, slots=True)
class QueueSpec(Spec):
    """The queue of a handler. With every `concurrency`, only one call at a time has the same key."""

    ABOUT = about("The queue of the handler.")
    name: str = field(
        text(
            "Handlers with the same queue share its workers and take turns. The queue default is not shared.",
            value="label",
            default="default",
            examples=["slow"],
        )
    )
    concurrency: int = field(
        whole(
            "The number of calls at a time, of all handlers that share the queue; never two of a handler for "
            "the same key. One handler of a shared queue names it, or all name the same.",
            minimum=1,
            default=1,
            examples=[4],
        )
    )

    @property
    def is_shared(self) -> bool:
        """Whether handlers with the same name of a queue share its workers."""
        return self.name != "default"


class IsolationMode(StrEnum):
    """Where the hooks of a handler are called."""

    THREAD = "Thread"
    PROCESS = "Process"


@dataclass(frozen=True, slots=True)
class IsolationSpec(Spec):
    """Where the hooks of a handler are called, and when a process of it is replaced."""

    ABOUT = about(
        "Where the hooks of the handler are called. With Process, queue.concurrency processes of the handler "
        "call them: a loop that computes, a call that hangs, a leak or a crash hurts no other handler.",
        hints={"memory": "maxMemory", "calls": "maxCalls", "type": "mode"},
        examples=[{"mode": "Process", "maxMemory": "512Mi", "maxCalls": 10000}],
    )
    mode: IsolationMode = option(
        IsolationMode,
        "Thread calls the hooks in this process: `def` in a thread, `async def` on the loop of all handlers. "
        "Process calls them in processes of the handler.",
        default=IsolationMode.THREAD,
    )
    max_memory: int | None = field(
        quantity(
            "With mode Process: a process whose resident memory is above this after a call is replaced. One "
            "that has twice as much amid a call is ended, and the call has failed. By default there is no "
            "limit.",
            examples=["512Mi"],
        )
    )
    max_calls: int | None = field(
        whole(
            "With mode Process: a process that has made so many calls is replaced. By default there is no "
            "limit.",
            minimum=1,
            examples=[10000],
        )
    )


@dataclass(frozen=True, slots=True)
class RetrySpec(Spec):
    """The number of attempts for a change, the first one included, and the waits between them.

    `max_attempts` is None for no limit, as in controller-runtime and kopf.
    """

    ABOUT = about(
        "The retries of a change for which the handler raised.",
        examples=[{"maxAttempts": 5, "initialBackoff": "1s", "maxBackoff": "5m"}],
    )
    max_attempts: int | None = field(
        whole(
            "The number of calls for one change, the first one included; by default there is no limit.",
            minimum=1,
            examples=[5],
        )
    )
    initial_backoff: float = field(
        duration("The wait before the second attempt. Each further wait is twice as long.", default="1s")
    )
    max_backoff: float = field(duration("The longest wait.", default="5m"))


@dataclass(frozen=True, slots=True)
class FilterSpec(LocatedSpec):
    """The changes that a handler receives: those that pass every part of the filter.

    `label_selector` (canonical; an empty text selects everything) and `entry_point` judge the object.
    `changed_paths` (canonical, sorted) judges the difference of a Modified. `expression` (empty for none)
    judges the object if it reads nothing else, and otherwise the change.
    """

    ABOUT = about("The changes that the handler receives: those that pass every part of the filter.")
    label_selector: str = field(
        label_selector(
            "Only objects with these labels. An object that gets them is Added, and one that loses them is "
            "Deleted."
        ),
        absent="",
    )
    changed_paths: tuple[str, ...] = field(
        listing(
            "A Modified passes only if a value at or below one of these paths has changed.",
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
            "A function that takes the object and returns whether it passes; it is called for each change.",
            function=True,
            examples=["handlers.filters:interesting"],
        )
    )
    expression: str = field(
        text(
            "A CEL expression. If it reads only obj, it judges objects: an object that begins to pass is "
            "Added, and one that no longer passes is Deleted. If it reads old (null except for Modified and "
            "Resync), change.type, change.reason or change.initial, it judges changes: each is delivered or "
            "not. An error, such as a missing field, counts as false. Needs declctl[cel].",
            value="expression",
            examples=[
                "has(obj.spec.nodeName) && obj.status.phase == 'Running'",
                "old == null || obj.status.phase != old.status.phase",
            ],
        ),
        absent="",
    )

    @property
    def judges_changes(self) -> bool:
        """Whether the expression judges changes, and not objects."""
        return bool(self.expression) and not compile_expression(self.expression).judges_objects

    @property
    def object_part(self) -> "FilterSpec":
        """The part that judges an object, without the parts that judge a change.

        These are `changed_paths`, and an expression that reads more than the object.
        """
        return replace(self, changed_paths=(), expression="" if self.judges_changes else self.expression)


def filters_differ(old: FilterSpec | None, new: FilterSpec | None, *, same_code: bool) -> bool:
    """Whether two filters may judge one object differently.

    `same_code`: no handler file has changed, so that one entry point names one function.
    """
    before, after = (FilterSpec() if each is None else each.object_part for each in (old, new))
    return before != after or (before.entry_point is not None and not same_code)


@dataclass(frozen=True, slots=True)
class MappingSpec(LocatedSpec):
    """The way from a changed object to keys of the handler's resource; exactly one field is set."""

    ABOUT = about(
        "How a changed object leads to the keys to reconcile; exactly one way.",
        one_of=("owner", "index", "label", "annotation", "fieldPath", "entryPoint"),
        hints={"ownerReferences": "owner", "field": "fieldPath", "function": "entryPoint"},
        examples=[{"owner": "Controller"}, {"index": "bySettings"}],
    )
    owner: OwnerSelection | None = field(
        choice(
            "The owners of the object that are of the kind of the handler's resource. Controller follows the "
            "reference with `controller: true`, Any all of them.",
            [each.value for each in OwnerSelection],
        ),
        read=OwnerSelection,
    )
    index: str | None = field(
        text(
            "An index of the handler's resource: it leads to the objects that the index has under the key "
            "of the changed object (namespace/name), and to those of its namespace under its name.",
            value="indexName",
            examples=["bySettings"],
        )
    )
    label: str | None = field(
        text(
            "A label of the changed object; its value is the name of an object in the same namespace.",
            value="labelKey",
            examples=["example.dev/webapp"],
        )
    )
    annotation: str | None = field(
        text(
            "An annotation of the changed object; its value is namespace/name, or the name of an object in "
            "the same namespace.",
            value="labelKey",
            examples=["example.dev/webapp"],
        )
    )
    field_path: str | None = field(
        text(
            "A field of the changed object; its values are names or keys, as of an annotation.",
            value="fieldPath",
            examples=["spec.webappRef.name"],
        )
    )
    entry_point: EntryPoint | None = field(
        entry_point(
            "A function that takes the changed object and returns texts: keys namespace/name, or names of "
            "objects in the same namespace. It is called between the cache and the queue, so it must be "
            "quick.",
            function=True,
            examples=["handlers.webapp:of_node"],
        )
    )

    def __str__(self) -> str:
        ways = {
            "owner": self.owner,
            "index": self.index,
            "label": self.label,
            "annotation": self.annotation,
            "fieldPath": self.field_path,
            "entryPoint": self.entry_point,
        }
        return next(f"{way} ({value})" for way, value in ways.items() if value is not None)


@dataclass(frozen=True, slots=True)
class SecondaryWatchSpec(LocatedSpec):
    """A further resource whose changes lead to keys of the handler's resource."""

    ABOUT = about(
        "A resource whose changes lead to keys of the handler's resource.",
        hints={"resource": "resourceRef", "when": "filter", "map": "mapTo", "enqueue": "mapTo"},
    )
    resource: str = field(
        reference("The resource that is listened to.", "a resource in spec.resources"),
        key="resourceRef",
        read=_name,
        required=True,
    )
    map_to: MappingSpec = nested_record(MappingSpec, required=True)
    filter: FilterSpec | None = nested(FilterSpec, optional=True)

    @property
    def leads_to_owner(self) -> bool:
        """Whether each change of an object leads to the key of its owner."""
        return self.map_to.owner is not None and self.filter is None

    def __str__(self) -> str:
        return f"{self.resource} → {self.map_to}"


_APPLIES = listing(
    "The kinds that the handler writes by ctx.apply, ctx.apply_set and ctx.delete. A write "
    "of another kind is refused. apply_set looks for former children of these kinds only. By default "
    "nothing is declared, and every kind may be written.",
    record(
        "One kind.",
        {
            "apiVersion": text("Group and version.", value="apiVersion", examples=["apps/v1"]),
            "kind": text("The kind, as in an object's `kind`.", value="kind"),
            "onImmutable": choice(
                "Whether an object of the handler that the server refuses to change, such as a "
                "Deployment with another selector, is deleted and made again (Recreate), or the apply "
                "raises the refusal (Fail).",
                list(OnImmutable),
                default=OnImmutable.FAIL,
            ),
        },
        required=("apiVersion", "kind"),
    ),
    minItems=1,
    uniqueItems=True,
    examples=[[{"apiVersion": "apps/v1", "kind": "Deployment"}]],
)


@dataclass(frozen=True, slots=True)
class HandlerSpec(LocatedSpec):
    """One handler of one resource; exactly one of `entry_point` and `plugin` is set.

    `replay` is None for the default of the mode. `resync_period` is None for the period of the resource,
    and 0 for never. `timeout` is None for no limit. `filter` is None if every change passes. `events` are
    in the order of ALL_EVENTS. `applies` is empty and `status` is None if the manifest declares nothing;
    `on_immutable` has those of `applies` whose objects are made again if the server refuses to change them.
    `field_manager` is empty for the default, and `finalizer` for none. `on_invalid` is None for the default,
    which `plan` decides.
    """

    ABOUT = about(
        "One handler. The name is its identity: its waiting changes survive a reload if the name stays.",
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
            "writes": "applies",
            "owns": "applies",
            "manager": "fieldManager",
            "force": "fieldConflicts",
            "adopt": "onExisting",
            "finalizers": "finalizer",
        },
    )
    name: str = field(text("The name of the handler.", value="label", examples=["notify"]), required=True)
    resource: str = field(
        reference("The resource whose changes it receives.", "a resource in spec.resources"),
        key="resourceRef",
        read=_name,
        required=True,
    )
    mode: Mode = option(
        Mode,
        "Event calls the handler for each change. Reconcile calls it for a key, with the newest state from "
        "the cache: any number of changes lead to one call.",
        default=Mode.EVENT,
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
            "The types of changes that the handler receives; by default all.",
            choice("A type of change.", list(ALL_EVENTS)),
            minItems=1,
            uniqueItems=True,
            default=list(ALL_EVENTS),
            examples=[["Added", "Deleted"]],
        ),
        read=lambda given: tuple(event for event in ALL_EVENTS if event in given),
    )
    filter: FilterSpec | None = nested(FilterSpec, optional=True)
    watches: tuple[SecondaryWatchSpec, ...] = nested_list(
        SecondaryWatchSpec,
        "With mode Reconcile: further resources, whose changes lead to keys of the handler's resource.",
    )
    applies: tuple[GroupVersionKind, ...] = field(_APPLIES, read=_kinds, absent=())
    on_immutable: tuple[GroupVersionKind, ...] = field(
        _APPLIES, key="applies", read=_recreated_kinds, absent=()
    )
    status: bool | None = field(
        flag(
            "Whether the handler writes the status of its resource's objects. With false, ctx.patch_status "
            "is refused. By default nothing is declared, and the status may be written."
        )
    )
    field_manager: str = field(
        text(
            "The name under which the fields that the handler applies are owned. By default "
            "declctl/<controller>/<handler>. After a rename, the former name keeps its fields and children.",
            value="fieldManager",
            examples=["declctl/pod-guard/notify"],
        ),
        absent="",
    )
    adopt_fields_from: tuple[str, ...] = field(
        listing(
            "Field managers whose fields the handler takes over at its first apply of an object, as it does "
            "with those of ctx.client: fields that they have set by create or update. Those that the apply "
            "does not have are removed.",
            text("A field manager.", value="fieldManager"),
            minItems=1,
            uniqueItems=True,
            examples=[["old-operator"]],
        ),
        read=_texts,
        absent=(),
    )
    field_conflicts: FieldConflicts = option(
        FieldConflicts,
        "Whether ctx.apply and ctx.apply_set take fields that other managers have set to another value "
        "(Force), or raise a Conflict that names fields and managers (Fail).",
        default=FieldConflicts.FORCE,
    )
    on_existing: OnExisting = option(
        OnExisting,
        "Whether ctx.apply_set adopts a child that exists and that no object controls, which the log tells "
        "(Adopt), or raises AlreadyExists (Fail).",
        default=OnExisting.ADOPT,
    )
    finalizer: str = field(
        text(
            "With mode Reconcile: a finalizer that each object gets before its first call. An object that is "
            "deleted stays until the hook declctl_finalize has succeeded. For an entry point that is a "
            "function, it is the hook of that name in its module.",
            value="finalizer",
            examples=["example.dev/webapp"],
        ),
        absent="",
    )
    include_snapshots_from: tuple[str, ...] = field(_SNAPSHOTS, absent=())
    initial_sync: InitialSync = option(
        InitialSync,
        "Whether a new handler receives an Added for each object that is already in the cache.",
        default=InitialSync.DELIVER,
    )
    resync_period: float | None = field(
        duration(
            "The resync period of this handler; by default that of the resource. 0s means never.",
            minimum=1,
            zero=True,
            examples=["5m"],
        )
    )
    replay: ReplayPolicy | None = field(
        choice(
            "Whether changed code receives all cached objects again, as Resync with the reason Replay; by "
            "default OnCodeChange with mode Reconcile, else Never.",
            list(ReplayPolicy),
        ),
        read=ReplayPolicy,
    )
    delivery: Delivery = option(
        Delivery,
        "Event delivers every change, up to bufferBytes; Keyed merges the waiting changes of a key.",
        default=Delivery.EVENT,
    )
    buffer_bytes: int = field(
        quantity(
            "The size of the waiting changes from which the changes of a key are merged.",
            default="64Mi",
            examples=["16Mi"],
        )
    )
    queue: QueueSpec = nested(QueueSpec)
    isolation: IsolationSpec = nested(IsolationSpec)
    debounce: float = field(
        duration(
            "A change is delivered when its key has not changed for this time, and after ten times this time "
            "at the latest. The changes of a key in between are delivered as one. 0s means at once.",
            zero=True,
            default="0s",
            examples=["500ms"],
        )
    )
    retry: RetrySpec = nested(RetrySpec)
    timeout: float | None = field(
        duration("The time that one call may take; by default there is no limit.", examples=["30s"])
    )
    on_failure: OnFailure = option(
        OnFailure,
        "After retry.maxAttempts, Ignore counts the change as failed. DeadLetter also keeps it in memory, "
        "until `declctl requeue` or a newer success of its key. With mode Reconcile, DeadLetter needs no "
        "maxAttempts: then it keeps only keys for which the reconciler has raised Terminal. Retry tries a "
        "change again without end, as without maxAttempts.",
        default=OnFailure.IGNORE,
    )
    on_invalid: OnInvalid | None = field(
        choice(
            "With a type of its resource: what happens with an object that does not fit. Condition does not "
            "call the handler, and writes the condition SpecValid into the status, and a Kubernetes Event; "
            "Skip does not call it; Call does, and reading the field raises. By default Condition with "
            "status: true, else Skip. An object that is being deleted is always handled.",
            [each.value for each in OnInvalid],
        ),
        read=OnInvalid,
    )

    keep_previous: bool = field(
        flag(
            "With mode Reconcile: whether each object is kept as the last call that succeeded had it, for "
            "request.previous. It takes the bytes of one compressed object for each.",
            default=False,
        )
    )

    @property
    def code(self) -> tuple[EntryPoint | None, ...]:
        """The entry points of the handler, of its filters and of its mappings."""
        filters = (self.filter, *(watch.filter for watch in self.watches))
        return (
            self.entry_point,
            *(each.entry_point for each in filters if each is not None),
            *(watch.map_to.entry_point for watch in self.watches),
        )

    @property
    def most_attempts(self) -> int | None:
        """The number of attempts after which a change is given up; None if it never is."""
        return None if self.on_failure is OnFailure.RETRY else self.retry.max_attempts


@dataclass(frozen=True, slots=True)
class ScheduleSpec(LocatedSpec):
    """One function that is called at given times; exactly one of `cron` and `every` (seconds) is set.

    `timeout` is None for no limit.
    """

    ABOUT = about(
        "One function that is called at given times, one call at a time. The name is its identity: if it "
        "stays, a reload does not begin its interval anew.",
        one_of=("cron", "every"),
        hints={
            "schedule": "cron",
            "interval": "every",
            "timezone": "timeZone",
            "tz": "timeZone",
            "function": "entryPoint",
            "catchUp": "missedRuns",
            "startingDeadlineSeconds": "missedRuns",
        },
    )
    name: str = field(text("The name of the schedule.", value="label", examples=["nightly"]), required=True)
    entry_point: EntryPoint = field(
        entry_point(
            "The function. It takes any of the arguments schedule and ctx.",
            function=True,
            examples=["handlers.jobs:nightly"],
        ),
        required=True,
    )
    cron: str | None = field(
        text(
            "The times, as in crontab(5): minute, hour, day of the month, month, day of the week. Or one of "
            "@hourly, @daily, @weekly, @monthly, @yearly.",
            value="cron",
            examples=["0 2 * * *", "@daily"],
        )
    )
    every: float | None = field(
        duration(
            "The interval between the begins of two calls; the first call is one interval after the start.",
            minimum=1,
            examples=["10m"],
        )
    )
    time_zone: str = field(
        text(
            "The time zone of cron. Where clocks change, a line with a fixed hour and minute fires once.",
            value="timeZone",
            default="UTC",
            examples=["Europe/Berlin"],
        )
    )
    include_snapshots_from: tuple[str, ...] = field(_SNAPSHOTS, absent=())
    missed_runs: MissedRuns = option(
        MissedRuns,
        "What happens to times at which the function could not be called: the call before took longer, the "
        "machine slept, or caches were still being filled. RunOnce calls it once for the newest of them, as "
        "soon as it can be called. Skip waits for the next time.",
        default=MissedRuns.RUN_ONCE,
    )
    timeout: float | None = field(
        duration("The time that one call may take; by default there is no limit.", examples=["10m"])
    )

    @property
    def times(self) -> tuple[str | None, float | None, str]:
        """Everything that the times depend on: schedules with equal values have the same times."""
        return self.cron, self.every, self.time_zone


def _in_order(steps: "Sequence[LifecycleStep]") -> "list[LifecycleStep]":
    """The steps in the order of calling: by `order`; equal ones as written, as Python's sort is stable."""
    return sorted(steps, key=lambda step: step.order)


@dataclass(frozen=True, slots=True)
class LifecycleStep(LocatedSpec):
    """One function to call when the process starts or stops."""

    ABOUT = about("One function.")
    entry_point: EntryPoint = field(
        entry_point("The function.", examples=["handlers.boot:run"]), required=True
    )
    order: int = field(
        whole(
            "Lower numbers are called first; equal ones in the order of the list.", default=0, examples=[10]
        )
    )


@dataclass(frozen=True, slots=True)
class LifecycleSpec(Spec):
    """The functions that are called once in the life of the process, in the order of calling."""

    ABOUT = about("Functions that are called once in the life of the process.")
    startup: tuple[LifecycleStep, ...] = nested_list(
        LifecycleStep, "Functions to call before the first LIST.", live=False, ordered=_in_order
    )
    shutdown: tuple[LifecycleStep, ...] = nested_list(
        LifecycleStep, "Functions to call after the last call of a handler.", ordered=_in_order
    )
    grace_period: float = field(
        duration(
            "The time from SIGTERM to the end of the process: for running calls, Events, the Lease and hooks "
            "together. Calls have all of it but three seconds. `terminationGracePeriodSeconds` of the pod "
            "should be two seconds more.",
            default="28s",
        )
    )


@dataclass(frozen=True, slots=True)
class ReloadSpec(LocatedSpec):
    """How changed files become a new generation."""

    ABOUT = about("How changed files take effect.")
    watch: WatchFiles = field(
        {
            "enum": [*(each.value for each in WatchFiles), False],
            "default": "Auto",
            "description": (
                "How declctl notices changed files. false means Off, as YAML 1.1 reads off as false."
            ),
        },
        read=lambda value: WatchFiles.OFF if value is False else WatchFiles(value),
    )
    settle: float = field(
        duration(
            "The time without a change after which changed files are read. Files that go on changing are "
            "read after four times this time, and after two seconds at the earliest.",
            default="300ms",
        )
    )
    preflight: bool = field(
        {
            "enum": ["On", "Off", True, False],
            "default": "On",
            "description": "Whether a child process imports the handlers first; true is On, false is Off.",
        },
        read=lambda value: value in (True, "On"),
    )
    preflight_timeout: float = field(
        duration("The time that the import in the child process may take.", default="30s")
    )
    allowed_digests: str | None = field(
        text(
            "A file with the digests of the manifests that may run, one in each line, as `declctl digest` "
            "prints them. Other files are refused before their code is imported. Whoever edits the manifest "
            "must not be able to edit this file.",
            value="absoluteFile",
            examples=["/etc/declctl-allowed/digests"],
        )
    )
    warm_timeout: float = field(
        duration(
            "The time that new resources may take to sync. At the start, handlers wait as long for the sync.",
            default="60s",
        )
    )
    drain_policy: DrainPolicy = option(
        DrainPolicy,
        "The code that gets the changes from before the reload: the old code (Fence) or the new (Handover).",
        default=DrainPolicy.FENCE,
    )
    drain_timeout: float = field(
        duration(
            "The time that the old code may take for these changes; then the new code gets the rest.",
            zero=True,
            default="20s",
        )
    )
    informer_linger: float = field(
        duration(
            "The time for which a resource that is not used any more is still watched.",
            zero=True,
            default="60s",
        )
    )
    probation_period: float = field(
        duration(
            "The time for which the old code stays in memory and comes back if the new code fails.",
            zero=True,
            default="0s",
            examples=["60s"],
        )
    )
    min_calls: int = field(
        whole(
            "The number of calls after which new code is judged. Five calls are enough for a handler whose "
            "calls all fail, and did not fail before.",
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
            "description": (
                "The share of the calls of new code that may fail. The old code comes back after more "
                "failures, if its own share was smaller."
            ),
        },
        read=float,
    )


@dataclass(frozen=True, slots=True)
class WritesSpec(Spec):
    """The client-side rate limit of all writes together: `burst` at once, then `qps` each second.

    There is no limit if `qps` is 0.
    """

    ABOUT = about("The rate of all writes of the process. Handlers whose writes wait for it take turns.")
    qps: float = field(
        {
            "type": "number",
            "minimum": 0,
            "default": 50,
            "description": (
                "The writes that may be sent each second; 0 means no limit. The API server protects itself "
                "by priority and fairness."
            ),
        },
        read=float,
    )
    burst: int = field(whole("The writes that may be sent at once.", minimum=1, default=100))


@dataclass(frozen=True, slots=True)
class LeaderElectionSpec(LocatedSpec):
    """The election of one among several processes. Durations are in seconds.

    `lease_name` is None for the name of the controller. `namespace` is None for that of the
    process.
    """

    ABOUT = about(
        "The election of one among several processes by a Lease. The leader alone calls handlers and "
        "schedules, and writes.",
        hints={
            "resourceName": "leaseName",
            "resourceNamespace": "namespace",
            "leaderElect": "enabled",
            "id": "leaseName",
        },
    )
    enabled: bool = field(flag("Whether there is an election.", default=False))
    lease_duration: float = field(
        duration(
            "The time after the last renewal that another process has seen, after which it takes the lease.",
            minimum=1,
            default="15s",
        )
    )
    renew_deadline: float = field(
        duration(
            "The time after its last renewal for which the leader acts and writes. Shorter than "
            "leaseDuration.",
            minimum=0.5,
            default="10s",
        )
    )
    retry_period: float = field(
        duration(
            "The time between two requests for the lease. renewDeadline is longer than 1.2 of them.",
            minimum=0.1,
            default="2s",
        )
    )
    followers: Followers = option(
        Followers,
        "What a process does while another one leads. Warm fills its caches and keeps them current; Cold "
        "starts no watch before it leads.",
        default=Followers.WARM,
    )
    lease_name: str | None = field(
        text(
            "The name of the Lease; by default that of the controller.",
            value="subdomain",
            examples=["pod-guard"],
        )
    )
    namespace: str | None = field(
        text(
            "The namespace of the Lease; by default that of the pod. Outside of a cluster it is needed, "
            "unless `declctl run` has --namespace or follows a ConfigMap.",
            value="label",
            examples=["team-a"],
        )
    )


@dataclass(frozen=True, slots=True)
class ShardingSpec(LocatedSpec):
    """The sharing of objects among several processes. Durations are in seconds.

    `lease_name` is None for the name of the controller. `namespace` is None for that of the process.
    """

    ABOUT = about(
        "How several processes share the objects. Objects are cut into slots by a hash; each slot has a "
        "Lease, and its holder alone calls handlers for these objects, and writes.",
        hints={"shards": "slots", "replicas": "slots", "key": "by", "resourceNamespace": "namespace"},
    )
    slots: int = field(
        whole(
            "Into how many slots the objects are cut: no more processes than that have work. All processes "
            "need the same number.",
            minimum=1,
            maximum=4096,
            examples=[16],
        ),
        required=True,
    )
    by: ShardKey = option(
        ShardKey,
        "What is hashed. Namespace: all objects of a namespace are in one slot, so that handlers have owners "
        "and children together; objects without a namespace are cut by uid. UID: each object alone, for "
        "handlers that need no other sharded object.",
        default=ShardKey.NAMESPACE,
    )
    lease_duration: float = field(
        duration(
            "The time after the last renewal that another process has seen, after which it takes a slot.",
            minimum=1,
            default="15s",
        )
    )
    renew_deadline: float = field(
        duration(
            "The time after its last renewal of a slot for which a process acts and writes for it. Shorter "
            "than leaseDuration.",
            minimum=0.5,
            default="10s",
        )
    )
    retry_period: float = field(
        duration(
            "The time between two requests for a Lease. renewDeadline is longer than 1.2 of them.",
            minimum=0.1,
            default="2s",
        )
    )
    lease_name: str | None = field(
        text(
            "What the names of the Leases begin with, as in NAME-shard-0 and NAME-member-0; by default the "
            "name of the controller.",
            value="label",
            examples=["pod-guard"],
        )
    )
    namespace: str | None = field(
        text(
            "The namespace of the Leases; by default that of the pod. Outside of a cluster it is needed, "
            "unless `declctl run` has --namespace or follows a ConfigMap.",
            value="label",
            examples=["team-a"],
        )
    )

    @property
    def sharding(self) -> Sharding:
        """How objects are cut."""
        return Sharding(self.slots, self.by)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of a certificate with its chain, and of its private key, both in PEM."""

    cert_file: str
    key_file: str


ADMIN_AT_START = ("token_file", "authorization", "tls")
"""The fields of the admin address that take effect at the next start, besides the address itself."""


@dataclass(frozen=True, slots=True)
class AdminSpec(LocatedSpec):
    """The address that serves probes, status, metrics and the page.

    `allowed_hosts` are names that a request may have in `Host`, besides those of this machine and IP
    addresses. Relative paths begin at the folder of the manifest. `tls` is None for plain HTTP.
    """

    ABOUT = about("The admin address.")
    bind_address: Address = field(
        restart(
            text(
                "The address of probes, status and metrics; port 0 takes any free port.",
                value="address",
                default="127.0.0.1:8081",
            )
        )
    )
    allowed_hosts: tuple[str, ...] = field(
        listing(
            "Names that requests may use for the address, with any port, besides those of this machine and "
            "IP addresses.",
            text("A host name, such as that of a Service.", value="subdomain"),
            examples=[["pod-guard.monitoring.svc"]],
        ),
        absent=(),
    )
    token_file: str | None = field(
        restart(
            text(
                "The file of the token that guarded requests need; it may be replaced at any time. A "
                "relative path begins at the folder of the manifest.",
                value="fileName",
                examples=["/var/run/secrets/declctl/token"],
            )
        )
    )
    authorization: AdminAuthorization = field(
        restart(
            choice(
                "Whose tokens count. Token: the one of tokenFile or of the environment. Kubernetes: those of "
                "users and ServiceAccounts, which the API server reviews; RBAC for nonResourceURLs says who "
                "may get and post which path.",
                [each.value for each in AdminAuthorization],
                default="Token",
            )
        ),
        read=AdminAuthorization,
    )
    tls: TlsFiles | None = field(
        restart(
            record(
                "Serves HTTPS, with a certificate and a key that may be replaced at any time. Relative paths "
                "begin at the folder of the manifest.",
                {
                    "certFile": text(
                        "The certificate and its chain, as PEM.",
                        value="fileName",
                        examples=["/var/run/secrets/tls/tls.crt"],
                    ),
                    "keyFile": text(
                        "The private key, as PEM without a password.",
                        value="fileName",
                        examples=["/var/run/secrets/tls/tls.key"],
                    ),
                },
                required=("certFile", "keyFile"),
            )
        ),
        read=lambda value: TlsFiles(value["certFile"], value["keyFile"]),
    )


@dataclass(frozen=True, slots=True)
class MetricsSpec(LocatedSpec):
    """The address that serves the metrics alone; None for the admin address only."""

    ABOUT = about("The address of the metrics; by default the admin address.")
    bind_address: Address | None = field(
        restart(
            text(
                "An address for metrics alone, which needs no token; the admin address has them, too. It "
                "serves HTTPS if admin.tls is set. Port 0 takes any free port.",
                value="address",
                examples=["0.0.0.0:9090"],
            )
        )
    )


@dataclass(frozen=True, slots=True)
class StateSpec(LocatedSpec):
    """Where the process keeps its caches for the next one; without a path it keeps none."""

    ABOUT = about("What outlives the process, in a folder on a volume.")
    folder: str | None = field(
        text(
            "The folder; it is made if it does not exist. Each process needs one of its own. A relative path "
            "begins at the folder of the manifest.",
            value="fileName",
            examples=["/var/lib/declctl"],
        ),
        key="path",
    )


@dataclass(frozen=True, slots=True)
class ControllerSpec(LocatedSpec):
    """A whole manifest: `spec` of the document, and the name in its metadata."""

    ABOUT = about(
        "The resources, handlers and settings of the controller.",
        hints={
            "namespace": "namespaces",
            "hooks": "handlers",
            "listeners": "handlers",
            "watches": "resources",
        },
    )
    name: str
    namespaces: ClassVar[Schema] = namespaces(
        "The namespaces of resources that name none; by default all namespaces."
    )
    plugins: tuple[PluginSpec, ...] = nested_list(
        PluginSpec, "The installed plugins that the controller uses.", kw_only=True
    )
    resources: tuple[ResourceSpec, ...] = nested_list(ResourceSpec, "The kinds of objects to watch.")
    handlers: tuple[HandlerSpec, ...] = nested_list(HandlerSpec, "The handlers of changes.")
    schedules: tuple[ScheduleSpec, ...] = nested_list(
        ScheduleSpec, "Functions that are called at given times.", kw_only=True
    )
    lifecycle: LifecycleSpec = nested(LifecycleSpec)
    writes: WritesSpec = nested(WritesSpec)
    reload: ReloadSpec = nested(ReloadSpec)
    leader_election: LeaderElectionSpec = nested(LeaderElectionSpec, live=False)
    state: StateSpec = nested(StateSpec, live=False)
    sharding: ShardingSpec | None = nested_record(ShardingSpec, live=False)
    admin: AdminSpec = nested(AdminSpec)
    metrics: MetricsSpec = nested(MetricsSpec, live=False)

    def indexes_of(self, resource: str) -> tuple[str, ...]:
        """The names of the indexes that a resource declares."""
        return tuple(
            indexer.name for each in self.resources if each.name == resource for indexer in each.indexers
        )


CONTROLLER = document_schema(
    "Controller", "A controller: the kinds to watch, and their handlers.", schema_of(ControllerSpec)
)
"""The schema of a document of kind Controller."""


def build_controller(data: Json) -> ControllerSpec:
    """The manifest that a checked document declares."""
    spec = build(
        ControllerSpec, value_at(data, "spec"), ("spec",), name=str(value_at(data, "metadata", "name"))
    )
    inherited = value_at(data, "spec", "namespaces")
    given = items_at(data, "spec", "resources")
    resources = tuple(
        _in_namespaces(resource, value_at(item, "namespaces"), inherited)
        for resource, item in zip(spec.resources, given, strict=True)
    )
    return replace(spec, resources=resources)


def _in_namespaces(resource: ResourceSpec, own: Json, inherited: Json) -> ResourceSpec:
    """A resource with its own namespaces, or else with those of the spec: `build` reads each one alone."""
    if own is None and inherited is None:
        return resource
    value = inherited if own is None else own
    return replace(
        resource,
        namespaces=_namespaces(value),
        namespace_selector=_namespace_selector(value),
        namespaces_inherited=own is None,
    )
