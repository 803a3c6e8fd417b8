"""The shape of `spec.handlers` and `spec.schedules`: who is called, for what, and how."""

from declctl.manifest import codes
from declctl.manifest.shape import words
from declctl.manifest.shape.resources import label_selector
from declctl.manifest.shape.words import Schema


def handlers() -> Schema:
    """`spec.handlers`."""
    item = words.record(
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
    item = words.exactly_one(item, "entryPoint", "pluginRef")
    return words.listing("Who listens, in the order of calling.", words.noted(item, hints=dict(hints)))


def schedules() -> Schema:
    """`spec.schedules`."""
    item = words.record(
        "A function that is called by the clock.",
        {
            "name": words.text("The name of the schedule.", value="label", examples=["nightly"]),
            "cron": words.text("When, as in crontab(5).", examples=["0 2 * * *"]),
            "timeZone": words.text("The time zone of cron.", default="UTC", examples=["Europe/Berlin"]),
            "entryPoint": words.entry_point("What is called.", examples=["handlers.jobs:nightly"]),
            "includeSnapshotsFrom": _snapshots(),
        },
        required=("name", "cron", "entryPoint"),
    )
    schema = words.listing("What is called by the clock.", item)
    return words.refused(schema, codes.SCHEDULES, accepts=([],))


def _target() -> dict[str, Schema]:
    return {
        "name": words.text("The name of the handler.", value="label", examples=["notify"]),
        "resourceRef": words.reference("The resource that it listens to.", "a resource in spec.resources"),
        "mode": words.refused(
            words.choice(
                "Event hears each change; Reconcile gets a key, and looks itself.",
                ["Event", "Reconcile"],
                default="Event",
            ),
            codes.MODE_RECONCILE,
            accepts=("Event",),
        ),
        "entryPoint": words.entry_point("A module with hooks, a class with hooks, or a function."),
        "pluginRef": words.reference(
            "An installed plugin, instead of an entry point.", "a plugin in spec.plugins"
        ),
    }


def _selection() -> dict[str, Schema]:
    event = words.choice("A type of change.", ["Added", "Modified", "Deleted", "Resync"])
    return {
        "events": words.listing(
            "Which changes; absent, all of them.",
            event,
            minItems=1,
            uniqueItems=True,
            default=["Added", "Modified", "Deleted", "Resync"],
            examples=[["Added", "Deleted"]],
        ),
        "filter": _filter(),
        "includeSnapshotsFrom": _snapshots(),
        "initialSync": words.choice(
            "Whether it hears the objects that are there when it joins.",
            ["Deliver", "Skip"],
            default="Deliver",
        ),
        "resyncPeriod": words.duration(
            "This handler's own period; absent, the resource's; 0s, never.",
            minimum=1,
            zero=True,
            examples=["5m"],
        ),
        "replay": words.choice(
            "Whether changed code hears the cache again, as Resync with the reason Replay.",
            ["Never", "OnCodeChange"],
            default="Never",
        ),
    }


def _filter() -> Schema:
    expression = "obj.status.phase != old.status.phase"
    return words.record(
        "Which changes, by what is in the objects; every part that is given has to agree.",
        {
            "labelSelector": label_selector(
                "Only objects with these labels: one that gets them is Added, one that loses them Deleted."
            ),
            "changedPaths": words.listing(
                "A Modified is told only if something changed at or below one of these.",
                words.text("A field path.", value="fieldPath"),
                minItems=1,
                uniqueItems=True,
                examples=[["spec", "metadata.labels"]],
            ),
            "entryPoint": words.entry_point(
                "A function that takes the object and says whether it is wanted, asked for each change.",
                function=True,
                examples=["handlers.filters:interesting"],
            ),
            "expression": words.refused(
                words.text("A CEL expression over obj and old.", examples=[expression]), codes.FILTER
            ),
        },
    )


def _pace() -> dict[str, Schema]:
    return {
        "delivery": words.choice(
            "Event keeps every change, up to bufferBytes; Keyed merges the waiting changes of a key.",
            ["Event", "Keyed"],
            default="Event",
        ),
        "bufferBytes": words.quantity(
            "How much may wait before the changes of a key are merged.",
            default="64Mi",
            examples=["16Mi"],
        ),
        "queue": words.record(
            "The queue that the handler works from.",
            {
                "name": words.refused(
                    words.text("Handlers with the same queue share its workers.", default="default"),
                    codes.NAMED_QUEUE,
                    accepts=("default",),
                ),
                "concurrency": words.whole(
                    "How many calls at a time; never two for one key.",
                    minimum=1,
                    default=1,
                    examples=[4],
                ),
            },
        ),
        "debounce": words.refused(
            words.duration("Wait until a key has been quiet for so long.", zero=True, examples=["500ms"]),
            codes.DEBOUNCE,
            accepts=("0s",),
        ),
    }


def _failure() -> dict[str, Schema]:
    return {
        "retry": words.record(
            "What follows when the handler raises.",
            {
                "maxAttempts": words.whole("Calls for one change, the first included.", minimum=1, default=5),
                "initialBackoff": words.duration(
                    "The wait before the second attempt; it doubles.", default="1s"
                ),
                "maxBackoff": words.duration("The longest wait.", default="5m"),
            },
            examples=[{"maxAttempts": 5, "initialBackoff": "1s", "maxBackoff": "5m"}],
        ),
        "timeout": words.duration("How long one call may take; absent, for ever.", examples=["30s"]),
        "onFailure": words.refused(
            words.choice(
                "When the attempts are used up: Ignore counts it as failed, Retry goes on for ever.",
                ["Retry", "Ignore", "DeadLetter"],
                default="Ignore",
            ),
            codes.DEAD_LETTER,
            accepts=("Retry", "Ignore"),
        ),
    }


def _snapshots() -> Schema:
    schema = words.listing(
        "Resources of which the hook gets a view.",
        words.text("The name of a resource."),
        examples=[["settings"]],
    )
    return words.refused(schema, codes.INCLUDE_SNAPSHOTS, accepts=([],))
