"""The shape of what surrounds the handlers: plugins, life cycle, reload, leadership and addresses."""

from declctl.manifest import codes
from declctl.manifest.shape import words
from declctl.manifest.shape.words import Schema


def plugins() -> Schema:
    """`spec.plugins`."""
    item = words.record(
        "One installed package that plugs in through the entry-point group declctl.",
        {
            "name": words.text("The name of its entry point.", value="pluginName", examples=["slack"]),
            "version": words.text("Which versions will do.", value="versionRange", examples=[">=1.2,<2"]),
            "onError": words.choice(
                "Whether a plugin that can't be loaded stops the start (Fail) or is left out (Disable).",
                ["Fail", "Disable"],
                default="Fail",
            ),
            "config": words.mapping(
                "What the plugin is told; the plugin says what is allowed.",
                examples=[{"channel": "#ops"}],
            ),
            "configFrom": words.listing("Values of the config that come from elsewhere.", _config_source()),
        },
        required=("name",),
    )
    return words.listing("Installed plugins that are used.", item)


def lifecycle() -> Schema:
    """`spec.lifecycle`."""
    step = words.record(
        "One function.",
        {
            "entryPoint": words.entry_point("What is called.", examples=["handlers.boot:run"]),
            "order": words.whole("Lower numbers first; then as written.", default=0, examples=[10]),
        },
        required=("entryPoint",),
    )
    return words.record(
        "What is called once in the life of the process.",
        {
            "startup": words.restart(words.listing("Before the first list.", step)),
            "shutdown": words.listing("After the last call of a handler.", step),
        },
    )


def reload() -> Schema:
    """`spec.reload`."""
    return words.record("How changed files take effect.", {**_trigger(), **_cut(), **_probation()})


def leader_election() -> Schema:
    """`spec.leaderElection`."""
    return words.restart(
        words.record(
            "Whether only one of several processes acts.",
            {
                "enabled": words.refused(
                    words.flag("Whether there is an election.", default=False),
                    codes.LEADER_ELECTION,
                    accepts=(False,),
                ),
                "leaseDuration": words.duration("How long a lease holds.", minimum=1, default="15s"),
            },
        )
    )


def admin() -> Schema:
    """`spec.admin`."""
    fields = {
        "bindAddress": words.restart(
            words.text(
                "Where probes, status and metrics are served; port 0 takes any free one.",
                value="address",
                default="127.0.0.1:8081",
            )
        ),
        "allowedHosts": words.listing(
            "Names under which it may be asked, besides those of this machine and IP addresses; "
            "with any port.",
            words.text("A host name, such as that of a Service.", value="subdomain"),
            examples=[["pod-guard.monitoring.svc"]],
        ),
    }
    return words.record("The admin address.", fields)


def metrics() -> Schema:
    """`spec.metrics`."""
    address = words.text("An address of their own.", value="address", examples=["0.0.0.0:9090"])
    fields = {"bindAddress": words.refused(address, codes.METRICS_ADDRESS)}
    return words.restart(words.record("Where metrics are served; absent, on the admin address.", fields))


def sharding() -> Schema:
    """`spec.sharding`."""
    schema = words.mapping("How several processes share the objects.")
    return words.restart(words.refused(schema, codes.SHARDING, accepts=({},)))


def _config_source() -> Schema:
    secret = words.record(
        "A key of a Secret.",
        {"name": words.text("The name of the Secret."), "key": words.text("The key in it.")},
        required=("name", "key"),
    )
    item = words.record(
        "One value; exactly one source.",
        {
            "name": words.text("The key of the config that gets the value.", examples=["token"]),
            "env": words.text("An environment variable.", value="variable", examples=["SLACK_TOKEN"]),
            "file": words.text(
                "A file, from the folder of the manifest.",
                value="fileName",
                examples=["secrets/token"],
            ),
            "secretKeyRef": words.refused(secret, codes.SECRET_REFERENCE),
        },
        required=("name",),
    )
    return words.exactly_one(item, "env", "file", "secretKeyRef")


def _trigger() -> dict[str, Schema]:
    return {
        "watch": {
            "enum": ["Auto", "Poll", "Off", False],
            "default": "Auto",
            "description": "How changed files are noticed. false is Off: YAML 1.1 tools write it so.",
        },
        "settle": words.duration(
            "How long files must be quiet before they are read. Files that never are, are read after four "
            "times that long, or two seconds.",
            default="300ms",
        ),
        "preflight": {
            "enum": ["On", "Off", True, False],
            "default": "On",
            "description": "Whether handlers are first imported in a child process; true is On, false Off.",
        },
        "preflightTimeout": words.duration("How long that import may take.", default="5s"),
    }


def _cut() -> dict[str, Schema]:
    return {
        "warmTimeout": words.duration(
            "How long new resources may take to sync, and how long handlers wait for that at the start.",
            default="60s",
        ),
        "drainPolicy": words.choice(
            "Who gets what was queued before the reload: the old code (Fence) or the new (Handover).",
            ["Fence", "Handover"],
            default="Fence",
        ),
        "drainTimeout": words.duration(
            "How long the old code may take for it; then the new code gets the rest.",
            zero=True,
            default="20s",
        ),
        "informerLinger": words.duration(
            "How long a resource that nobody uses any more is still watched.",
            zero=True,
            default="60s",
        ),
    }


def _probation() -> dict[str, Schema]:
    ratio: Schema = {
        "type": "number",
        "minimum": 0,
        "maximum": 1,
        "default": 0.5,
        "description": "Which share of its calls may fail, if more fail than of the code before.",
    }
    return {
        "probationPeriod": words.duration(
            "How long new code is watched, and the code before kept, which comes back if it fails.",
            zero=True,
            default="0s",
            examples=["60s"],
        ),
        "minCalls": words.whole(
            "Calls of handlers before new code is judged; five of one handler are enough where all fail.",
            minimum=1,
            default=20,
        ),
        "maxErrorRatio": ratio,
    }
