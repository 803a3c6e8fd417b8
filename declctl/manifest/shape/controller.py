"""The shape of the document of kind Controller, without its resources and handlers."""

from typing import Final

from declctl.manifest import codes
from declctl.manifest.shape import handlers
from declctl.manifest.shape.handlers import Schema

API_VERSION: Final = "declctl.dev/v1alpha1"


def plugins() -> Schema:
    """`spec.plugins`."""
    item = handlers.record(
        "One installed package that plugs in through the entry-point group declctl.",
        {
            "name": handlers.text("The name of its entry point.", value="pluginName", examples=["slack"]),
            "version": handlers.text("Which versions will do.", value="versionRange", examples=[">=1.2,<2"]),
            "onError": handlers.choice(
                "Whether a plugin that can't be loaded stops the start (Fail) or is left out (Disable).",
                ["Fail", "Disable"],
                default="Fail",
            ),
            "config": handlers.mapping(
                "What the plugin is told; the plugin says what is allowed.",
                examples=[{"channel": "#ops"}],
            ),
            "configFrom": handlers.listing(
                "Values of the config that come from elsewhere.", _config_source()
            ),
        },
        required=("name",),
    )
    return handlers.listing("Installed plugins that are used.", item)


def lifecycle() -> Schema:
    """`spec.lifecycle`."""
    step = handlers.record(
        "One function.",
        {
            "entryPoint": handlers.entry_point("What is called.", examples=["handlers.boot:run"]),
            "order": handlers.whole("Lower numbers first; then as written.", default=0, examples=[10]),
        },
        required=("entryPoint",),
    )
    return handlers.record(
        "What is called once in the life of the process.",
        {
            "startup": handlers.restart(handlers.listing("Before the first list.", step)),
            "shutdown": handlers.listing("After the last call of a handler.", step),
        },
    )


def reload() -> Schema:
    """`spec.reload`."""
    return handlers.record("How changed files take effect.", {**_trigger(), **_cut(), **_probation()})


def leader_election() -> Schema:
    """`spec.leaderElection`."""
    return handlers.restart(
        handlers.record(
            "Whether only one of several processes acts.",
            {
                "enabled": handlers.refused(
                    handlers.flag("Whether there is an election.", default=False),
                    codes.LEADER_ELECTION,
                    accepts=(False,),
                ),
                "leaseDuration": handlers.duration("How long a lease holds.", minimum=1, default="15s"),
            },
        )
    )


def admin() -> Schema:
    """`spec.admin`."""
    fields = {
        "bindAddress": handlers.restart(
            handlers.text(
                "Where probes, status and metrics are served; port 0 takes any free one.",
                value="address",
                default="127.0.0.1:8081",
            )
        ),
        "allowedHosts": handlers.listing(
            "Names under which it may be asked, besides those of this machine and IP addresses; "
            "with any port.",
            handlers.text("A host name, such as that of a Service.", value="subdomain"),
            examples=[["pod-guard.monitoring.svc"]],
        ),
    }
    return handlers.record("The admin address.", fields)


def metrics() -> Schema:
    """`spec.metrics`."""
    address = handlers.text("An address of their own.", value="address", examples=["0.0.0.0:9090"])
    fields = {"bindAddress": handlers.refused(address, codes.METRICS_ADDRESS)}
    return handlers.restart(
        handlers.record("Where metrics are served; absent, on the admin address.", fields)
    )


def sharding() -> Schema:
    """`spec.sharding`."""
    schema = handlers.mapping("How several processes share the objects.")
    return handlers.restart(handlers.refused(schema, codes.SHARDING, accepts=({},)))


def _config_source() -> Schema:
    secret = handlers.record(
        "A key of a Secret.",
        {"name": handlers.text("The name of the Secret."), "key": handlers.text("The key in it.")},
        required=("name", "key"),
    )
    item = handlers.record(
        "One value; exactly one source.",
        {
            "name": handlers.text("The key of the config that gets the value.", examples=["token"]),
            "env": handlers.text("An environment variable.", value="variable", examples=["SLACK_TOKEN"]),
            "file": handlers.text(
                "A file, from the folder of the manifest.",
                value="fileName",
                examples=["secrets/token"],
            ),
            "secretKeyRef": handlers.refused(secret, codes.SECRET_REFERENCE),
        },
        required=("name",),
    )
    return handlers.exactly_one(item, "env", "file", "secretKeyRef")


def _trigger() -> dict[str, Schema]:
    return {
        "watch": {
            "enum": ["Auto", "Poll", "Off", False],
            "default": "Auto",
            "description": "How changed files are noticed. false is Off: YAML 1.1 tools write it so.",
        },
        "settle": handlers.duration(
            "How long files must be quiet before they are read. Files that never are, are read after four "
            "times that long, or two seconds.",
            default="300ms",
        ),
        "preflight": {
            "enum": ["On", "Off", True, False],
            "default": "On",
            "description": "Whether handlers are first imported in a child process; true is On, false Off.",
        },
        "preflightTimeout": handlers.duration("How long that import may take.", default="5s"),
    }


def _cut() -> dict[str, Schema]:
    return {
        "warmTimeout": handlers.duration(
            "How long new resources may take to sync, and how long handlers wait for that at the start.",
            default="60s",
        ),
        "drainPolicy": handlers.choice(
            "Who gets what was queued before the reload: the old code (Fence) or the new (Handover).",
            ["Fence", "Handover"],
            default="Fence",
        ),
        "drainTimeout": handlers.duration(
            "How long the old code may take for it; then the new code gets the rest.",
            zero=True,
            default="20s",
        ),
        "informerLinger": handlers.duration(
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
        "probationPeriod": handlers.duration(
            "How long new code is watched, and the code before kept, which comes back if it fails.",
            zero=True,
            default="0s",
            examples=["60s"],
        ),
        "minCalls": handlers.whole(
            "Calls of handlers before new code is judged; five of one handler are enough where all fail.",
            minimum=1,
            default=20,
        ),
        "maxErrorRatio": ratio,
    }


def controller() -> Schema:
    """A whole Controller."""
    return envelope("Controller", "A controller: what is watched, and who is called.", _spec())


def envelope(kind: str, description: str, spec: Schema) -> Schema:
    """A Kubernetes object with this spec."""
    return handlers.record(
        description,
        {
            "apiVersion": {"const": API_VERSION, "description": "The version of this shape."},
            "kind": {"const": kind, "description": "The kind of document."},
            "metadata": _metadata(),
            "spec": spec,
        },
        required=("apiVersion", "kind", "metadata", "spec"),
    )


def _metadata() -> Schema:
    notes = handlers.mapping("As on any Kubernetes object; not read.", values={"type": "string"})
    return handlers.restart(
        handlers.record(
            "As on any Kubernetes object.",
            {
                "name": handlers.text(
                    "The name, in status, logs and metrics.",
                    value="subdomain",
                    examples=["pod-guard"],
                ),
                "namespace": handlers.text("As on any Kubernetes object; not read.", value="label"),
                "labels": notes,
                "annotations": notes,
            },
            required=("name",),
        )
    )


def _spec() -> Schema:
    fields: dict[str, Schema] = {
        "namespaces": handlers.namespaces("The default for resources; absent, all namespaces."),
        "plugins": plugins(),
        "resources": handlers.resources(),
        "handlers": handlers.handlers(),
        "schedules": handlers.schedules(),
        "lifecycle": lifecycle(),
        "reload": reload(),
        "leaderElection": leader_election(),
        "sharding": sharding(),
        "admin": admin(),
        "metrics": metrics(),
    }
    hints = {
        "namespace": "namespaces",
        "hooks": "handlers",
        "listeners": "handlers",
        "watches": "resources",
    }
    return handlers.noted(handlers.record("What the controller does.", fields), hints=dict(hints))
