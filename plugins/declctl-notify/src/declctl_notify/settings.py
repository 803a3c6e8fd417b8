"""The plugin's `config`: its JSON Schema, and the settings that are read from it.

The schema has every description and default. The README's tables are made from it, and reading fills in its
defaults.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from declctl import ChangeType

from declctl_notify.differences import Path, parse_path
from declctl_notify.templates import Expression, Template, TemplateFault

SEVERITIES: Final = ("info", "warning", "critical")
"""From the least to the most severe."""

_DURATION_PART: Final = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)"
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NAME: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
_BODY: Final = (
    "{% for one in differences %}\n{{ one }}\n{% else %}\n{{ change.received_at | time }}\n{% endfor %}\n"
)

Schema = dict[str, Any]


class SettingsFault(Exception):
    """A `config` that fits the schema, and can't be used. Its text names the place, and shows no secret.

    `path` is the place in the config, as far as it is known.
    """

    def __init__(self, message: str, path: Sequence[str | int] = ()) -> None:
        super().__init__(message)
        self.path = tuple(path)


def _duration(description: str, default: str | None) -> Schema:
    made: Schema = {"description": description, "type": "string", "pattern": f"^({_DURATION_PART})+$"}
    return made if default is None else {**made, "default": default}


def _text(description: str, default: str | None = None) -> Schema:
    made: Schema = {"description": description, "type": "string"}
    return made if default is None else {**made, "default": default}


def _number(description: str, default: int, *, least: int, most: int) -> Schema:
    return {
        "description": description,
        "type": "integer",
        "minimum": least,
        "maximum": most,
        "default": default,
    }


def _list(description: str, items: Schema, default: Sequence[str] | None = None) -> Schema:
    made: Schema = {"description": description, "type": "array", "items": items}
    return made if default is None else {**made, "default": list(default)}


def _object(description: str, properties: Schema, *, required: Sequence[str] = ()) -> Schema:
    return {
        "description": description,
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


_POLICY: Final[Schema] = {
    "targets": {
        **_list("The names of targets. A rule without any is refused.", {"type": "string"}),
        "minItems": 1,
        "uniqueItems": True,
    },
    "events": _list(
        "The types of changes.",
        {"enum": ["Added", "Modified", "Deleted"]},
        ("Added", "Modified", "Deleted"),
    ),
    "severity": {
        "description": "How urgent a message is. It gives the colour or priority that a service has.",
        "enum": list(SEVERITIES),
        "default": "info",
    },
    "title": _text(
        "A template for the title of one change.",
        "[{{ severity }}] {{ change.type }} {{ kind }} {{ key }}"
        "{% if change.reason == 'OutOfScope' %} (out of scope){% endif %}",
    ),
    "body": _text(
        "A template for the body. The default has the changed fields of a Modified, else the time.", _BODY
    ),
    "groupBy": _list(
        "Expressions. Changes for which all of them have equal values become one message. Changes of "
        "different rules are never one message.",
        {"type": "string", "minLength": 1},
        ("namespace", "kind"),
    ),
    "groupWait": _duration("How long the first change of a group waits for others.", "10s"),
    "groupInterval": _duration(
        "How long after a message of a group the next message of the group is sent.", "5m"
    ),
    "repeatInterval": _duration(
        "How long a change is not repeated: one of the same object with the same fingerprint. Repeats are "
        "counted, and one message tells of them at the end of the interval. `0s` repeats all.",
        "1h",
    ),
    "fingerprint": _text(
        "A template. Two changes of an object with the same result are one that repeats. The default is the "
        "type with the changed fields and their new values, without times."
    ),
    "maxChanges": _number(
        "How many changes are listed in a message; the others are counted.", 20, least=1, most=1000
    ),
}

_RATE_LIMIT: Final = _object(
    "A token bucket: the most messages for the target. Messages that find no token wait, the most severe "
    "first; those beyond 10 are counted, and the next message has the number of their changes.",
    {
        "messages": _number("How many messages in each interval.", 10, least=1, most=100_000),
        "interval": _duration("The interval.", "1m"),
        "burst": _number("How many messages at once, after a quiet time.", 5, least=1, most=100_000),
    },
)

_TARGET: Final = _object(
    "A place that gets messages.",
    {
        "name": {"description": "The name by which rules refer to it.", "type": "string", "pattern": _NAME},
        "urlFrom": {
            **_object(
                "Where the apprise URL is. It is a secret, so it is never a part of a manifest.",
                {
                    "env": {
                        "description": "The name of an environment variable.",
                        "type": "string",
                        "pattern": "^[A-Za-z_][A-Za-z0-9_]*$",
                    },
                    "file": {
                        "description": "The absolute path of a file with one URL. It is read for each "
                        "message, so that a Secret may be rotated.",
                        "type": "string",
                        "pattern": "^/",
                    },
                },
            ),
            "minProperties": 1,
            "maxProperties": 1,
        },
        "rateLimit": _RATE_LIMIT,
        "maxLength": _number(
            "The most characters of a message. The limits of the service hold as well.",
            4000,
            least=100,
            most=32_768,
        ),
    },
    required=("name", "urlFrom"),
)

_RULE: Final = _object(
    "The changes of which targets are told. Each rule is looked at, and each that matches sends.",
    {
        "name": {"description": "The name, which messages show.", "type": "string", "pattern": _NAME},
        "resources": _list(
            "The names of resources of the manifest. Without it, all resources of handlers that refer to the "
            "plugin.",
            {"type": "string"},
        ),
        "when": _text("An expression that must be true, such as `obj.status.phase == 'Failed'`."),
        **{
            name: {key: value for key, value in field.items() if key != "default"}
            for name, field in _POLICY.items()
        },
    },
    required=("name",),
)

SCHEMA: Final = _object(
    "The config of declctl-notify.",
    {
        "targets": {**_list("Places that get messages.", _TARGET), "minItems": 1},
        "rules": {**_list("Which changes are sent, where, and how.", _RULE), "minItems": 1},
        "defaults": _object(
            "Values for rules that lack them: each of these may also stand in a rule.", _POLICY
        ),
        "ignore": _list(
            "Field paths. A Modified in which nothing else has changed is no change, and they are not shown. "
            "`[*]` stands for any item of a list.",
            {"type": "string", "minLength": 1},
            ("metadata.resourceVersion", "metadata.generation", "metadata.managedFields"),
        ),
        "initialSync": {
            "description": "Whether the objects that exist at the start are Added (`Deliver`) or no changes "
            "(`Skip`).",
            "enum": ["Skip", "Deliver"],
            "default": "Skip",
        },
        "dryRun": {
            "description": "Print messages on stdout instead of sending them. URLs are not needed then. "
            "`declctl run --dry-run` does the same.",
            "type": "boolean",
            "default": False,
        },
        "retry": _object(
            "How a message is sent again after a failure. Delays double.",
            {
                "initialBackoff": _duration("The first delay.", "1s"),
                "maxBackoff": _duration("The longest delay.", "1m"),
                "maxAttempts": _number(
                    "How often a message is tried. Then its changes are counted in the next message.",
                    10,
                    least=1,
                    most=100,
                ),
            },
        ),
        "sendTimeout": _duration("How long one try may take.", "30s"),
        "shutdownTimeout": _duration(
            "How long waiting messages are sent at the end of the process; 50s at most.", "10s"
        ),
        "logInterval": _duration("How often failures of a target are logged at most.", "1m"),
    },
    required=("targets", "rules"),
)

_LONGEST_SHUTDOWN: Final = 50.0  # seconds; declctl waits for a hook for a minute


def seconds_of(text: str) -> float:
    """The seconds of a duration such as `1h30m`, which fits the schema."""
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(_DURATION_PART, text))


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A token bucket: `burst` messages at once, then `qps` a second."""

    qps: float
    burst: int


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """One target. `env` or `file` says where its URL is; the other one is empty."""

    name: str
    env: str
    file: str
    rate_limit: RateLimit
    max_length: int


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """One rule. Times are in seconds; `resources` is None for all."""

    name: str
    targets: tuple[str, ...]
    resources: frozenset[str] | None
    events: frozenset[ChangeType]
    when: Expression | None
    severity: str
    title: Template
    body: Template
    fingerprint: Template | None
    group_by: tuple[Expression, ...]
    group_wait: float
    group_interval: float
    repeat_interval: float
    max_changes: int


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """Delays in seconds between `max_attempts` tries."""

    initial_backoff: float = 1.0
    max_backoff: float = 60.0
    max_attempts: int = 10


@dataclass(frozen=True, slots=True)
class Settings:
    """All of the `config`, compiled. Times are in seconds."""

    targets: Mapping[str, TargetSettings]
    rules: tuple[RuleSettings, ...]
    ignore: tuple[Path, ...]
    initial_sync: bool
    dry_run: bool
    retry: RetrySettings
    send_timeout: float
    shutdown_timeout: float
    log_interval: float

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Read a `config` that fits the schema.

        Raises SettingsFault for a name that stands twice, a target that is not there, and a template that
        can't be compiled.
        """
        full = with_defaults(config, SCHEMA)
        targets = {one["name"]: _target(one) for one in full["targets"]}
        _refuse_twins("targets", full["targets"])
        _refuse_twins("rules", full["rules"])
        retry = full["retry"]
        return cls(
            targets=targets,
            rules=tuple(_rule({**full["defaults"], **one}, targets) for one in full["rules"]),
            ignore=tuple(parse_path(path) for path in full["ignore"]),
            initial_sync=full["initialSync"] == "Deliver",
            dry_run=full["dryRun"],
            retry=RetrySettings(
                seconds_of(retry["initialBackoff"]), seconds_of(retry["maxBackoff"]), retry["maxAttempts"]
            ),
            send_timeout=seconds_of(full["sendTimeout"]),
            shutdown_timeout=min(seconds_of(full["shutdownTimeout"]), _LONGEST_SHUTDOWN),
            log_interval=seconds_of(full["logInterval"]),
        )

    @staticmethod
    def faults(config: Mapping[str, Any], resources: Iterable[str]) -> "Iterator[SettingsFault]":
        """All faults of a `config` that fits the schema, of which `of` and `check_resources` raise the first.

        `resources` are the names of those of the manifest.
        """
        full, known, targets = with_defaults(config, SCHEMA), set(resources), dict[str, TargetSettings]()
        for place, one in enumerate(full["targets"]):
            # A target with a fault is one all the same: rules may name it.
            targets[one["name"]] = _target({**one, "rateLimit": with_defaults({}, _RATE_LIMIT)})
            if seconds_of(one["rateLimit"]["interval"]) <= 0:
                yield _no_interval(one["name"], place)
        for field in ("targets", "rules"):
            try:
                _refuse_twins(field, full[field])
            except SettingsFault as fault:
                yield fault
        for place, one in enumerate(full["rules"]):
            try:
                rule = _rule({**full["defaults"], **one}, targets)
                _check_resources(rule, known)
            except SettingsFault as fault:
                # A field that the rule does not have is that of the defaults.
                is_own = not fault.path or fault.path[0] in one
                at = ("rules", place) if is_own else ("defaults",)
                yield SettingsFault(str(fault), (*at, *fault.path))

    def check_resources(self, known: Iterable[str]) -> None:
        """Raise SettingsFault for a rule with a resource that the manifest, with these names, lacks."""
        names = set(known)
        for rule in self.rules:
            _check_resources(rule, names)


def with_defaults(value: Any, schema: Mapping[str, Any]) -> Any:
    """A copy of a value, with the defaults of the schema for what is missing."""
    if schema.get("type") == "object":
        given = cast("Mapping[str, Any]", value)
        filled: dict[str, Any] = {}
        for name, field in schema["properties"].items():
            if name in given:
                filled[name] = with_defaults(given[name], field)
            elif "default" in field:
                filled[name] = field["default"]
            elif field.get("type") == "object" and not field["required"] and "minProperties" not in field:
                filled[name] = with_defaults({}, field)
        return filled
    if schema.get("type") == "array":
        return [with_defaults(item, schema["items"]) for item in value]
    return value


def _check_resources(rule: "RuleSettings", known: set[str]) -> None:
    for name in sorted((rule.resources or frozenset()) - known):
        listed = ", ".join(sorted(known)) or "none"
        message = f"the rule {rule.name} has the resource {name}; the manifest has: {listed}"
        raise SettingsFault(message, ("resources",))


def _no_interval(name: str, place: int = 0) -> SettingsFault:
    message = f"the target {name}: rateLimit.interval has to be longer than 0s"
    return SettingsFault(message, ("targets", place, "rateLimit", "interval"))


def _target(full: Mapping[str, Any]) -> TargetSettings:
    limit = full["rateLimit"]
    interval = seconds_of(limit["interval"])
    if interval <= 0:
        raise _no_interval(full["name"])
    return TargetSettings(
        name=full["name"],
        env=full["urlFrom"].get("env", ""),
        file=full["urlFrom"].get("file", ""),
        rate_limit=RateLimit(limit["messages"] / interval, limit["burst"]),
        max_length=full["maxLength"],
    )


def _rule(full: Mapping[str, Any], targets: Mapping[str, TargetSettings]) -> RuleSettings:
    name = full["name"]
    if "targets" not in full:
        raise SettingsFault(f"the rule {name} has no targets: add some to it, or to defaults")
    for target in full["targets"]:
        if target not in targets:
            known = ", ".join(targets)
            message = f"the rule {name} has the target {target}, and there is none; known: {known}"
            raise SettingsFault(message, ("targets",))
    field = "when"
    try:
        when = Expression(full["when"]) if "when" in full else None
        field = "title"
        title = Template(full["title"])
        field = "body"
        body = Template(full["body"])
        field = "fingerprint"
        fingerprint = Template(full["fingerprint"]) if "fingerprint" in full else None
        field = "groupBy"
        group_by = tuple(Expression(text) for text in full["groupBy"])
    except TemplateFault as fault:
        raise SettingsFault(f"{field} of the rule {name} can't be read: {fault}", (field,)) from None
    resources = full.get("resources")
    return RuleSettings(
        name=name,
        targets=tuple(full["targets"]),
        resources=None if resources is None else frozenset(resources),
        events=frozenset(ChangeType(event) for event in full["events"]),
        when=when,
        severity=full["severity"],
        title=title,
        body=body,
        fingerprint=fingerprint,
        group_by=group_by,
        group_wait=seconds_of(full["groupWait"]),
        group_interval=seconds_of(full["groupInterval"]),
        repeat_interval=seconds_of(full["repeatInterval"]),
        max_changes=full["maxChanges"],
    )


def _refuse_twins(field: str, items: Sequence[Mapping[str, Any]]) -> None:
    names = [item["name"] for item in items]
    for name in names:
        if names.count(name) > 1:
            message = f"{field}: two have the name {name}; give each a name of its own"
            raise SettingsFault(message, (field, names.index(name, names.index(name) + 1), "name"))
