"""The shape of resources, handlers and schedules, and the words in which a shape is written.

Each word gives a piece of JSON Schema. Any of them takes these keywords besides its own: `default` (as a
person would write it), `examples`, and whatever else JSON Schema knows. Notes for declctl alone:

    value      how a text is read (`duration`, `entryPoint`, …): `checks.values` has one check for each
    minimum    of a duration, in seconds; `zero` says that `0s` is fine too, and what it means
    live       False for what takes a restart to change; holds for everything below
    refuses    the code of what this version doesn't do yet; `accepts` are the values that are fine
    hints      field names of other systems, each with the field that is meant
"""

from collections.abc import Mapping
from typing import Final

from declctl.manifest import codes
from declctl.manifest.json_values import Json

Schema = dict[str, Json]

NOTES: Final = "x-declctl"

DURATION_PATTERN: Final = r"^(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+$|\$\{env:"


def notes_of(schema: Mapping[str, Json]) -> dict[str, Json]:
    """What declctl alone knows about a piece of the schema."""
    notes = schema.get(NOTES)
    return notes if isinstance(notes, dict) else {}


def noted(schema: Schema, **notes: Json) -> Schema:
    """The same piece with more notes."""
    return {**schema, NOTES: {**notes_of(schema), **notes}}


def text(description: str, *, value: str | None = None, **more: Json) -> Schema:
    """A text that isn't empty; `value` says how it is read."""
    schema: Schema = {"type": "string", "minLength": 1, "description": description, **more}
    return schema if value is None else noted(schema, value=value)


def choice(description: str, values: list[str], **more: Json) -> Schema:
    """One of a few words."""
    return {"type": "string", "enum": list[Json](values), "description": description, **more}


def flag(description: str, **more: Json) -> Schema:
    """True or false."""
    return {"type": "boolean", "description": description, **more}


def whole(description: str, *, minimum: int | None = None, **more: Json) -> Schema:
    """A whole number."""
    schema: Schema = {"type": "integer", "description": description, **more}
    return schema if minimum is None else {**schema, "minimum": minimum}


def duration(description: str, *, minimum: float = 0.001, zero: bool = False, **more: Json) -> Schema:
    """A length of time in Go's form, with a unit."""
    schema: Schema = {
        "type": "string",
        "pattern": DURATION_PATTERN,
        "description": description,
        **more,
    }
    schema.setdefault("examples", ["500ms", "10s", "1h30m"])
    return noted(schema, value="duration", minimum=minimum, zero=zero)


def quantity(description: str, **more: Json) -> Schema:
    """A size in bytes, as Kubernetes writes them."""
    schema: Schema = {"type": ["string", "integer"], "description": description, **more}
    return noted(schema, value="quantity")


def entry_point(description: str, *, function: bool = False, **more: Json) -> Schema:
    """A Python module, or something in it; with `function` only the latter."""
    more.setdefault("examples", ["handlers.pods:on_change"])
    return text(description, value="function" if function else "entryPoint", **more)


def record(
    description: str, fields: Mapping[str, Schema], *, required: tuple[str, ...] = (), **more: Json
) -> Schema:
    """A mapping with these fields and no others."""
    schema: Schema = {
        "type": "object",
        "description": description,
        "properties": dict[str, Json](fields),
    }
    if required:
        schema["required"] = list[Json](required)
    return {**schema, "additionalProperties": False, **more}


def mapping(description: str, *, values: Schema | None = None, **more: Json) -> Schema:
    """A mapping with any keys."""
    schema: Schema = {"type": "object", "description": description, **more}
    return schema if values is None else {**schema, "additionalProperties": values}


def listing(description: str, item: Schema, **more: Json) -> Schema:
    """A list."""
    return {"type": "array", "description": description, "items": item, **more}


def reference(description: str, what: str) -> Schema:
    """`{name: …}` of something that is declared in the same manifest."""
    return record(description, {"name": text(f"The name of {what}.")}, required=("name",))


def exactly_one(schema: Schema, *names: str) -> Schema:
    """Of these fields one is needed, and only one."""
    return {**schema, "oneOf": [{"required": [name]} for name in names]}


def refused(schema: Schema, code: str, *, accepts: tuple[Json, ...] = ()) -> Schema:
    """Documented, and not done yet by this version, but for the values that change nothing."""
    return noted(schema, refuses=code, accepts=list(accepts))


def restart(schema: Schema) -> Schema:
    """Takes effect when the process starts again, not at a reload."""
    return noted(schema, live=False)


def label_selector(description: str) -> Schema:
    """A selector in metav1's form, or in kubectl's."""
    expression = record(
        "One condition on one label.",
        {
            "key": text("The label."),
            "operator": choice("How the label is compared.", ["In", "NotIn", "Exists", "DoesNotExist"]),
            "values": listing(
                "The values, for In and NotIn.", {"type": "string", "description": "A label value."}
            ),
        },
        required=("key", "operator"),
    )
    fields: dict[str, Schema] = {
        "matchLabels": mapping(
            "Labels and the values that they must have.",
            values={"type": "string", "description": "A label value."},
            examples=[{"app": "web"}],
        ),
        "matchExpressions": listing("Conditions that must all hold.", expression),
    }
    selector = record(
        description, fields, examples=[{"matchLabels": {"app": "web"}}, "app=web,tier in (a,b)"]
    )
    return noted({**selector, "type": ["object", "string"]}, value="labelSelector")


def namespaces(description: str) -> Schema:
    """A list of namespaces, or a selector of them."""
    name = text("The name of a namespace, or * for all of them.", value="namespace")
    schema = record(
        description,
        {"labelSelector": refused(label_selector("Namespaces by their labels."), codes.NAMESPACE_SELECTOR)},
        required=("labelSelector",),
        examples=[["default", "team-a"], ["*"]],
    )
    return {
        **schema,
        "type": ["array", "object"],
        "items": name,
        "minItems": 1,
        "uniqueItems": True,
    }


def resources() -> Schema:
    """`spec.resources`."""
    fields = {**_identity(), **_watched_objects(), **_cache()}
    item = record(
        "One kind of objects, watched and cached once for all handlers that refer to it.",
        fields,
        required=("name", "apiVersion", "kind"),
    )
    hints = {
        "namespace": "namespaces",
        "selector": "labelSelector",
        "labels": "labelSelector",
        "version": "apiVersion",
    }
    hints |= {
        "resync": "resyncPeriod",
        "indexes": "indexers",
        "indices": "indexers",
        "fields": "fieldSelector",
    }
    return listing("What is watched.", noted(item, hints=dict(hints)))


def _identity() -> dict[str, Schema]:
    return {
        "name": text("How handlers and listers call it.", value="label", examples=["pods"]),
        "apiVersion": text("Group and version.", value="apiVersion", examples=["v1", "apps/v1"]),
        "kind": text("The kind, as in an object's `kind`.", value="kind", examples=["Pod"]),
    }


def _watched_objects() -> dict[str, Schema]:
    name = text("The name of an object.", value="objectName")
    return {
        "namespaces": namespaces("Only these namespaces; absent, those of spec.namespaces."),
        "names": listing(
            "Only the objects with these names, each with a watch of its own.",
            name,
            minItems=1,
            uniqueItems=True,
            examples=[["guard-settings"]],
        ),
        "labelSelector": label_selector("Only objects with these labels; the server selects."),
        "fieldSelector": text(
            "Only objects with these field values; the server selects, by the fields that the kind allows.",
            value="fieldSelector",
            examples=["status.phase=Running"],
        ),
    }


def _cache() -> dict[str, Schema]:
    return {
        "resyncPeriod": duration(
            "How often the cache is replayed to the handlers, without asking the server; absent, never.",
            minimum=1,
            zero=True,
            examples=["10m"],
        ),
        "idleTimeout": duration(
            "A watch that hears nothing for so long, not even a bookmark, is taken for dead and opened anew.",
            minimum=1,
            default="90s",
        ),
        "transform": _transform(),
        "cache": record(
            "How the objects are kept.",
            {
                "mode": choice(
                    "Frames are compressed, and decoded when read, about 15 µs each; Objects are kept "
                    "decoded, for small sets that are read often; MetadataOnly asks the server for nothing "
                    "but metadata.",
                    ["Frames", "Objects", "MetadataOnly"],
                    default="Frames",
                )
            },
        ),
        "indexers": _indexers(),
    }


def _transform() -> Schema:
    return record(
        "What happens to an object before it is cached: fields are dropped, then the function is asked.",
        {
            "dropFields": listing(
                "Fields that no handler needs; an empty list keeps everything. `declctl plan` says which "
                "are cut out of the bytes, and for which every object is decoded.",
                text("A field path.", value="droppedPath"),
                default=["metadata.managedFields"],
                uniqueItems=True,
            ),
            "entryPoint": entry_point(
                "A function that takes the object and returns it changed, or None to leave it out; every "
                "object is decoded and written for it.",
                function=True,
                examples=["handlers.trim:slim"],
            ),
        },
    )


def _indexers() -> Schema:
    item = record(
        "One index over the cache, for `listers[…].by_index(name, value)`.",
        {
            "name": text("How listers call it.", value="indexName", examples=["byNode"]),
            "fieldPath": text(
                "The field whose value is indexed.", value="fieldPath", examples=["spec.nodeName"]
            ),
            "entryPoint": entry_point(
                "A function that takes the object and returns the texts under which it is found: "
                "always the same for the same object. What it reads of each is decoded, about 15 µs each; "
                "of objects that are alike in all that it reads it may be asked once.",
                function=True,
                examples=["handlers.index:by_team"],
            ),
        },
        required=("name",),
    )
    hints = {"field": "fieldPath", "path": "fieldPath", "function": "entryPoint"}
    return listing(
        "Indexes.",
        noted(exactly_one(item, "fieldPath", "entryPoint"), hints=dict(hints)),
    )


def handlers() -> Schema:
    """`spec.handlers`."""
    item = record(
        "One listener. Its name is its identity: what waits for it survives a reload if the name does.",
        {**_target(), **_selection(), **_pace(), **_failure()},
        required=("name", "resourceRef"),
    )
    hints = {
        "on": "events",
        "resource": "resourceRef",
        "plugin": "pluginRef",
        "resync": "resyncPeriod",
    }
    hints |= {
        "retries": "retry",
        "when": "filter",
        "function": "entryPoint",
        "buffer": "bufferBytes",
    }
    item = exactly_one(item, "entryPoint", "pluginRef")
    return listing("Who listens, in the order of calling.", noted(item, hints=dict(hints)))


def schedules() -> Schema:
    """`spec.schedules`."""
    item = record(
        "A function that is called by the clock.",
        {
            "name": text("The name of the schedule.", value="label", examples=["nightly"]),
            "cron": text("When, as in crontab(5).", examples=["0 2 * * *"]),
            "timeZone": text("The time zone of cron.", default="UTC", examples=["Europe/Berlin"]),
            "entryPoint": entry_point("What is called.", examples=["handlers.jobs:nightly"]),
            "includeSnapshotsFrom": _snapshots(),
        },
        required=("name", "cron", "entryPoint"),
    )
    schema = listing("What is called by the clock.", item)
    return refused(schema, codes.SCHEDULES, accepts=([],))


def _target() -> dict[str, Schema]:
    return {
        "name": text("The name of the handler.", value="label", examples=["notify"]),
        "resourceRef": reference("The resource that it listens to.", "a resource in spec.resources"),
        "mode": refused(
            choice(
                "Event hears each change; Reconcile gets a key, and looks itself.",
                ["Event", "Reconcile"],
                default="Event",
            ),
            codes.MODE_RECONCILE,
            accepts=("Event",),
        ),
        "entryPoint": entry_point("A module with hooks, a class with hooks, or a function."),
        "pluginRef": reference("An installed plugin, instead of an entry point.", "a plugin in spec.plugins"),
    }


def _selection() -> dict[str, Schema]:
    event = choice("A type of change.", ["Added", "Modified", "Deleted", "Resync"])
    return {
        "events": listing(
            "Which changes; absent, all of them.",
            event,
            minItems=1,
            uniqueItems=True,
            default=["Added", "Modified", "Deleted", "Resync"],
            examples=[["Added", "Deleted"]],
        ),
        "filter": _filter(),
        "includeSnapshotsFrom": _snapshots(),
        "initialSync": choice(
            "Whether it hears the objects that are there when it joins.",
            ["Deliver", "Skip"],
            default="Deliver",
        ),
        "resyncPeriod": duration(
            "This handler's own period; absent, the resource's; 0s, never.",
            minimum=1,
            zero=True,
            examples=["5m"],
        ),
        "replay": choice(
            "Whether changed code hears the cache again, as Resync with the reason Replay.",
            ["Never", "OnCodeChange"],
            default="Never",
        ),
    }


def _filter() -> Schema:
    expression = "obj.status.phase != old.status.phase"
    return record(
        "Which changes, by what is in the objects; every part that is given has to agree.",
        {
            "labelSelector": label_selector(
                "Only objects with these labels: one that gets them is Added, one that loses them Deleted."
            ),
            "changedPaths": listing(
                "A Modified is told only if something changed at or below one of these.",
                text("A field path.", value="fieldPath"),
                minItems=1,
                uniqueItems=True,
                examples=[["spec", "metadata.labels"]],
            ),
            "entryPoint": entry_point(
                "A function that takes the object and says whether it is wanted, asked for each change.",
                function=True,
                examples=["handlers.filters:interesting"],
            ),
            "expression": refused(
                text("A CEL expression over obj and old.", examples=[expression]), codes.FILTER
            ),
        },
    )


def _pace() -> dict[str, Schema]:
    return {
        "delivery": choice(
            "Event keeps every change, up to bufferBytes; Keyed merges the waiting changes of a key.",
            ["Event", "Keyed"],
            default="Event",
        ),
        "bufferBytes": quantity(
            "How much may wait before the changes of a key are merged.",
            default="64Mi",
            examples=["16Mi"],
        ),
        "queue": record(
            "The queue that the handler works from.",
            {
                "name": refused(
                    text("Handlers with the same queue share its workers.", default="default"),
                    codes.NAMED_QUEUE,
                    accepts=("default",),
                ),
                "concurrency": whole(
                    "How many calls at a time; never two for one key.",
                    minimum=1,
                    default=1,
                    examples=[4],
                ),
            },
        ),
        "debounce": refused(
            duration("Wait until a key has been quiet for so long.", zero=True, examples=["500ms"]),
            codes.DEBOUNCE,
            accepts=("0s",),
        ),
    }


def _failure() -> dict[str, Schema]:
    return {
        "retry": record(
            "What follows when the handler raises.",
            {
                "maxAttempts": whole("Calls for one change, the first included.", minimum=1, default=5),
                "initialBackoff": duration("The wait before the second attempt; it doubles.", default="1s"),
                "maxBackoff": duration("The longest wait.", default="5m"),
            },
            examples=[{"maxAttempts": 5, "initialBackoff": "1s", "maxBackoff": "5m"}],
        ),
        "timeout": duration("How long one call may take; absent, for ever.", examples=["30s"]),
        "onFailure": refused(
            choice(
                "When the attempts are used up: Ignore counts it as failed, Retry goes on for ever.",
                ["Retry", "Ignore", "DeadLetter"],
                default="Ignore",
            ),
            codes.DEAD_LETTER,
            accepts=("Retry", "Ignore"),
        ),
    }


def _snapshots() -> Schema:
    schema = listing(
        "Resources of which the hook gets a view.",
        text("The name of a resource."),
        examples=[["settings"]],
    )
    return refused(schema, codes.INCLUDE_SNAPSHOTS, accepts=([],))
