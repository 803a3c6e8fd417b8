"""The shape of `spec.resources`: what is watched, cached and indexed."""

from declctl.manifest import codes
from declctl.manifest.shape import words
from declctl.manifest.shape.words import Schema


def label_selector(description: str) -> Schema:
    """A selector in metav1's form, or in kubectl's."""
    expression = words.record(
        "One condition on one label.",
        {
            "key": words.text("The label."),
            "operator": words.choice("How the label is compared.", ["In", "NotIn", "Exists", "DoesNotExist"]),
            "values": words.listing(
                "The values, for In and NotIn.", {"type": "string", "description": "A label value."}
            ),
        },
        required=("key", "operator"),
    )
    fields: dict[str, Schema] = {
        "matchLabels": words.mapping(
            "Labels and the values that they must have.",
            values={"type": "string", "description": "A label value."},
            examples=[{"app": "web"}],
        ),
        "matchExpressions": words.listing("Conditions that must all hold.", expression),
    }
    selector = words.record(
        description, fields, examples=[{"matchLabels": {"app": "web"}}, "app=web,tier in (a,b)"]
    )
    return words.noted({**selector, "type": ["object", "string"]}, value="labelSelector")


def namespaces(description: str) -> Schema:
    """A list of namespaces, or a selector of them."""
    name = words.text("The name of a namespace, or * for all of them.", value="namespace")
    schema = words.record(
        description,
        {
            "labelSelector": words.refused(
                label_selector("Namespaces by their labels."), codes.NAMESPACE_SELECTOR
            )
        },
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
    fields = {**_identity(), **_selection(), **_cache()}
    item = words.record(
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
    return words.listing("What is watched.", words.noted(item, hints=dict(hints)))


def _identity() -> dict[str, Schema]:
    return {
        "name": words.text("How handlers and listers call it.", value="label", examples=["pods"]),
        "apiVersion": words.text("Group and version.", value="apiVersion", examples=["v1", "apps/v1"]),
        "kind": words.text("The kind, as in an object's `kind`.", value="kind", examples=["Pod"]),
    }


def _selection() -> dict[str, Schema]:
    name = words.text("The name of an object.", value="objectName")
    return {
        "namespaces": namespaces("Only these namespaces; absent, those of spec.namespaces."),
        "names": words.listing(
            "Only the objects with these names, each with a watch of its own.",
            name,
            minItems=1,
            uniqueItems=True,
            examples=[["guard-settings"]],
        ),
        "labelSelector": label_selector("Only objects with these labels; the server selects."),
        "fieldSelector": words.text(
            "Only objects with these field values; the server selects, by the fields that the kind allows.",
            value="fieldSelector",
            examples=["status.phase=Running"],
        ),
    }


def _cache() -> dict[str, Schema]:
    return {
        "resyncPeriod": words.duration(
            "How often the cache is replayed to the handlers, without asking the server; absent, never.",
            minimum=1,
            zero=True,
            examples=["10m"],
        ),
        "idleTimeout": words.duration(
            "A watch that hears nothing for so long, not even a bookmark, is taken for dead and opened anew.",
            minimum=1,
            default="90s",
        ),
        "transform": _transform(),
        "cache": words.record(
            "How the objects are kept.",
            {
                "mode": words.choice(
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
    return words.record(
        "What happens to an object before it is cached: fields are dropped, then the function is asked.",
        {
            "dropFields": words.listing(
                "Fields that no handler needs; an empty list keeps everything. `declctl plan` says which "
                "are cut out of the bytes, and for which every object is decoded.",
                words.text("A field path.", value="droppedPath"),
                default=["metadata.managedFields"],
                uniqueItems=True,
            ),
            "entryPoint": words.entry_point(
                "A function that takes the object and returns it changed, or None to leave it out; every "
                "object is decoded and written for it.",
                function=True,
                examples=["handlers.trim:slim"],
            ),
        },
    )


def _indexers() -> Schema:
    item = words.record(
        "One index over the cache, for `listers[…].by_index(name, value)`.",
        {
            "name": words.text("How listers call it.", value="indexName", examples=["byNode"]),
            "fieldPath": words.text(
                "The field whose value is indexed.", value="fieldPath", examples=["spec.nodeName"]
            ),
            "entryPoint": words.entry_point(
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
    return words.listing(
        "Indexes.",
        words.noted(words.exactly_one(item, "fieldPath", "entryPoint"), hints=dict(hints)),
    )
