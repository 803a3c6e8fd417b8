"""The plugin's config: its JSON Schema, its defaults, and the settings that the other modules read.

A default stands in the schema alone. Secrets are never values of the config: a `ValueSource` names the
environment variable or the file that has one, and reads it at each use, so that a rotated file takes effect
without a reload.
"""

import base64
import binascii
import ipaddress
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

_LONGEST_SECRET = 64 * 1024  # bytes of a file with a secret
_SECRET_BYTES = range(24, 65)  # Standard Webhooks: 192 to 512 bits
_UNITS: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_FACTORS: Final[Mapping[str, int]] = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9} | {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SIZE = re.compile(r"(\d+)(Ki|Mi|Gi|k|M|G|)")

# Headers whose values are credentials, which a manifest must not have.
_NO_PLAIN_HEADER = "^(?!(?i:authorization|proxy-authorization|cookie|x-api-key|x-auth-token)$)"
# Headers that the plugin or aiohttp sets.
_NO_OWN_HEADER = (
    "^(?!(?i:ce-.*|content-.*|host|connection|transfer-.*|x-hub-signature-256|"
    "webhook-(?:id|timestamp|signature))$)[A-Za-z0-9!#$%&'*+.^_`|~-]+$"
)
_DURATION_SCHEMA: Final = {"type": "string", "pattern": r"^(\d+(\.\d+)?(ms|s|m|h))+$"}
_SIZE_SCHEMA: Final = {
    "anyOf": [
        {"type": "integer", "minimum": 1024},
        {"type": "string", "pattern": r"^[1-9]\d*(Ki|Mi|Gi|k|M|G)$"},
    ]
}
_FILE_SCHEMA: Final = {"type": "string", "pattern": "^/"}


class SettingsError(ValueError):
    """A setting that can't be used, in a sentence for users. It never has the value of a secret."""


class Mode(StrEnum):
    """The content modes of the HTTP binding of CloudEvents."""

    STRUCTURED = "Structured"
    BATCHED = "Batched"
    BINARY = "Binary"


class Include(StrEnum):
    """The fields of an object that an event has."""

    OBJECT = "Object"
    METADATA = "Metadata"
    FIELDS = "Fields"


class Scheme(StrEnum):
    """How requests are signed."""

    STANDARD_WEBHOOKS = "StandardWebhooks"
    GITHUB = "GitHub"


class WhenFull(StrEnum):
    """What becomes of a new event if the spool is full."""

    REFUSE = "Refuse"
    DROP_OLDEST = "DropOldest"
    DROP_NEWEST = "DropNewest"


def _section(description: str, properties: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "description": description,
        "type": "object",
        "additionalProperties": False,
        "properties": dict(properties),
        **more,
    }


def _source_schema(description: str, **more: Any) -> dict[str, Any]:
    properties = {
        **more,
        "env": {"description": "The environment variable that has it.", "type": "string", "minLength": 1},
        "file": {"description": "The file that has it, by its full path.", **_FILE_SCHEMA},
    }
    return _section(description, properties, oneOf=[{"required": ["env"]}, {"required": ["file"]}])


def _duration(description: str, default: str) -> dict[str, Any]:
    return {"description": description, **_DURATION_SCHEMA, "default": default}


def _size(description: str, default: str) -> dict[str, Any]:
    return {"description": description, **_SIZE_SCHEMA, "default": default}


def config_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the config, with a description and a default for each setting."""
    paths = {"type": "array", "items": {"type": "string", "minLength": 1}}
    header = _source_schema(
        "A header with a secret value.",
        name={"description": "The name of the header.", "type": "string", "pattern": _NO_OWN_HEADER},
        prefix={"description": "Text before the value, such as `Bearer `.", "type": "string", "default": ""},
    )
    header["required"] = ["name"]
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["spool"],
        "anyOf": [{"required": ["url"]}, {"required": ["urlFrom"]}],
        "properties": {
            "url": {
                "description": "The receiver. A URL that contains a secret belongs into `urlFrom`.",
                "type": "string",
                "pattern": "^https?://[^/?#@\\s]+(?:[/?][^#\\s]*)?$",
            },
            "urlFrom": _source_schema("Where the URL is read from, instead of `url`."),
            "headers": {
                "description": "Headers of each request. Headers with credentials are refused here.",
                "type": "object",
                "propertyNames": {
                    "allOf": [
                        {
                            "description": "Headers with credentials belong into `headersFrom`.",
                            "pattern": _NO_PLAIN_HEADER,
                        },
                        {
                            "description": "The names of headers that the plugin does not set itself.",
                            "pattern": _NO_OWN_HEADER,
                        },
                    ]
                },
                "additionalProperties": {"type": "string", "pattern": "^[ -~]*$"},
                "default": {},
            },
            "headersFrom": {
                "description": "Headers whose values are secrets. They are read for each request.",
                "type": "array",
                "items": header,
                "default": [],
            },
            "signature": _section(
                "How each request is signed; by default it is not.",
                {
                    "scheme": {
                        "description": "`StandardWebhooks`: the headers webhook-id, webhook-timestamp and "
                        "webhook-signature. `GitHub`: the header X-Hub-Signature-256.",
                        "enum": [*Scheme],
                        "default": Scheme.STANDARD_WEBHOOKS,
                    },
                    "secretsFrom": {
                        "description": "The secrets, the newest first. With `StandardWebhooks` each makes a "
                        "signature, so that a secret can be rotated; `GitHub` allows one.",
                        "type": "array",
                        "minItems": 1,
                        "items": _source_schema("One secret."),
                    },
                },
                required=["secretsFrom"],
            ),
            "mode": {
                "description": "`Structured`: one event as JSON. `Batched`: several events as a JSON array. "
                "`Binary`: attributes in headers, the data as the body.",
                "enum": [*Mode],
                "default": Mode.STRUCTURED,
            },
            "source": {
                "description": "The `source` of each event, a URI reference. Give each cluster its own.",
                "type": "string",
                "pattern": "^[!-~]+$",
                "default": "/declctl",
            },
            "typePrefix": {
                "description": "The `type` of an event is this with `.added`, `.modified`, `.deleted` or "
                "`.resync`.",
                "type": "string",
                "pattern": "^[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*$",
                "default": "dev.declctl.object",
            },
            "data": _section(
                "What the `data` of an event has.",
                {
                    "include": {
                        "description": "`Object`: the whole object. `Metadata`: apiVersion, kind, metadata. "
                        "`Fields`: apiVersion, kind, name, namespace, uid, and the `paths`.",
                        "enum": [*Include],
                        "default": Include.OBJECT,
                    },
                    "paths": {
                        "description": "Field paths for `Fields`, such as `spec.containers[*].image`.",
                        **paths,
                        "default": [],
                    },
                    "omit": {
                        "description": "Field paths that are left out, with all fields below them.",
                        **paths,
                        "default": [
                            "metadata.managedFields",
                            "metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]",
                        ],
                    },
                    "old": {
                        "description": "Whether a Modified has the object before the change, too.",
                        "type": "boolean",
                        "default": False,
                    },
                    "secretValues": {
                        "description": "Whether the values of Secrets are sent. Otherwise their keys alone.",
                        "type": "boolean",
                        "default": False,
                    },
                },
            ),
            "timeout": _duration("The time that one request may take.", "15s"),
            "concurrency": {
                "description": "How many requests may be under way. Never two with events of one object.",
                "type": "integer",
                "minimum": 1,
                "maximum": 100,
                "default": 4,
            },
            "tls": _section(
                "TLS to the receiver. The files are read again when they change.",
                {
                    "caFile": {
                        "description": "Certificates (PEM) to trust, instead of those of the system.",
                        **_FILE_SCHEMA,
                    },
                    "certFile": {
                        "description": "A client certificate (PEM), with `keyFile`.",
                        **_FILE_SCHEMA,
                    },
                    "keyFile": {"description": "The key (PEM) of `certFile`.", **_FILE_SCHEMA},
                },
                dependentRequired={"certFile": ["keyFile"], "keyFile": ["certFile"]},
            ),
            "proxyFromEnvironment": {
                "description": "Whether HTTPS_PROXY, HTTP_PROXY and NO_PROXY are followed.",
                "type": "boolean",
                "default": False,
            },
            "batch": _section(
                "When a batch is sent (`mode: Batched`): as soon as one of these limits is reached.",
                {
                    "maxEvents": {
                        "description": "The events of one batch.",
                        "type": "integer",
                        "minimum": 1,
                        "maximum": 10000,
                        "default": 100,
                    },
                    "maxBytes": _size("The size of one batch; a larger event is sent alone.", "512Ki"),
                    "maxAge": _duration("How long the oldest event of a batch waits for others.", "1s"),
                },
            ),
            "retry": _section(
                "When a request is repeated that has failed.",
                {
                    "initialBackoff": _duration(
                        "The delay after the first failure; it doubles each time.", "1s"
                    ),
                    "maxBackoff": _duration(
                        "The longest delay. Each is up to a half shorter, at random.", "5m"
                    ),
                    "maxAge": _duration("The age at which an event becomes a dead letter.", "72h"),
                },
            ),
            "circuit": _section(
                "When sending pauses because the receiver is down.",
                {
                    "failures": {
                        "description": "The failed requests in a row after which one at a time probes the "
                        "receiver, with the delays of `retry`.",
                        "type": "integer",
                        "minimum": 1,
                        "default": 5,
                    },
                },
            ),
            "spool": _section(
                "The folder that keeps events until they are delivered.",
                {
                    "path": {
                        "description": "The folder, by its full path, on a volume that outlives the process. "
                        "No other process may use it. It can't be edited while the process runs.",
                        **_FILE_SCHEMA,
                    },
                    "maxBytes": _size("The size of the events on disk.", "64Mi"),
                    "whenFull": {
                        "description": "`Refuse`: new changes wait in declctl's queue, which retries and "
                        "merges them by object. `DropOldest`, `DropNewest`: events are dropped, and counted.",
                        "enum": [*WhenFull],
                        "default": WhenFull.REFUSE,
                    },
                    "fsync": {
                        "description": "Whether each event is on the disk before its handler has succeeded. "
                        "Without it, a crash of the machine loses the last seconds; one of the process none.",
                        "type": "boolean",
                        "default": False,
                    },
                },
                required=["path"],
            ),
            "deadLetters": _section(
                "The file dead-letters.jsonl in the spool: events that the receiver has refused.",
                {"maxBytes": _size("The size at which it is renamed; one older file is kept.", "16Mi")},
            ),
            "flushTimeout": _duration(
                "How long the end of the process waits for the receiver. The rest stays in the spool.", "5s"
            ),
            "logEvery": _duration(
                "The time between two log lines with the counts, if they have changed.", "1m"
            ),
        },
    }


@dataclass(frozen=True, slots=True)
class ValueSource:
    """Where a secret is: an environment variable, or a file."""

    env: str | None
    file: str | None
    prefix: str = ""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "ValueSource":
        """From the config."""
        return cls(value.get("env"), value.get("file"), value.get("prefix", ""))

    def __str__(self) -> str:
        return f"the environment variable {self.env}" if self.env is not None else f"the file {self.file}"

    def read(self) -> str:
        """The secret, without the line end of a file. Blocks. Raises SettingsError, without the value."""
        if self.env is not None:
            if not os.environ.get(self.env):
                raise SettingsError(f"{self} is not set")
            return self.prefix + os.environ[self.env]
        return self.prefix + _file_text(Path(str(self.file)), str(self))


def _file_text(path: Path, name: str) -> str:
    """The text of a regular file; a pipe or a device, which may block a read, is refused."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SettingsError(f"{name} is not a regular file")
        with path.open("rb") as file:
            content = file.read(_LONGEST_SECRET + 1)
    except OSError as error:
        raise SettingsError(f"{name} can't be read: {error.strerror}") from error
    if len(content) > _LONGEST_SECRET:
        raise SettingsError(f"{name} is larger than {_LONGEST_SECRET // 1024} KiB")
    try:
        text = content.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        # Not the cause: its text has bytes of the secret.
        raise SettingsError(f"{name} is not UTF-8") from None
    if not text:
        raise SettingsError(f"{name} is empty")
    return text


@dataclass(frozen=True, slots=True)
class SignatureSettings:
    """How requests are signed."""

    scheme: Scheme
    secrets: tuple[ValueSource, ...]

    def keys(self) -> list[bytes]:
        """The keys, the newest first. Blocks. Raises SettingsError for one that can't be read or used."""
        return [self._key(source) for source in self.secrets]

    def _key(self, source: ValueSource) -> bytes:
        text = source.read()
        if self.scheme is Scheme.GITHUB:
            return text.encode("utf-8")
        try:
            key = base64.b64decode(text.removeprefix("whsec_"), validate=True)
        except (binascii.Error, ValueError):
            raise SettingsError(
                f"{source} is no secret of Standard Webhooks: whsec_ and 24 to 64 bytes as base64"
            ) from None
        if len(key) not in _SECRET_BYTES:
            raise SettingsError(
                f"{source} has a key of {len(key)} bytes, and Standard Webhooks has 24 to 64; "
                "`openssl rand -base64 32` makes one"
            )
        return key


@dataclass(frozen=True, slots=True)
class EventSettings:
    """What an event has."""

    source: str
    type_prefix: str
    include: Include
    paths: tuple[str, ...]
    omit: tuple[str, ...]
    old: bool
    secret_values: bool


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """How the receiver is reached."""

    url: str | ValueSource
    headers: Mapping[str, str]
    secret_headers: tuple[tuple[str, ValueSource], ...]
    timeout: float  # seconds
    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    proxy_from_environment: bool

    def plain_text_warning(self) -> str:
        """What to say of secret headers that leave this machine without TLS. Blocks.

        Empty if none do, or if the URL can't be read.
        """
        try:
            parts = urlsplit(self.url if isinstance(self.url, str) else self.url.read())
            host = parts.hostname or ""
        except ValueError:  # a SettingsError is one; the check of the URL says it
            return ""
        if parts.scheme != "http" or not self.secret_headers or _is_this_machine(host):
            return ""
        names = ", ".join(name for name, _ in self.secret_headers)
        return f"{names} is sent to {host} without TLS, where others may read it: use a URL with https://"


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """When events are sent, and sent again. Times are in seconds, sizes in bytes."""

    mode: Mode
    signature: SignatureSettings | None
    concurrency: int
    batch_events: int
    batch_bytes: int
    batch_age: float
    initial_backoff: float
    max_backoff: float
    max_age: float
    circuit_failures: int
    log_every: float
    flush_timeout: float


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """Where events wait. Sizes are in bytes."""

    path: Path
    max_bytes: int
    when_full: WhenFull
    fsync: bool
    dead_letter_bytes: int


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole config, with its defaults."""

    event: EventSettings
    endpoint: EndpointSettings
    delivery: DeliverySettings
    spool: SpoolSettings

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Settings":
        """From a config that is valid by the schema. Raises SettingsError for contradictions."""
        full = _with_defaults(config_schema(), config)
        data, batch, retry, spool, tls = (full[name] for name in ("data", "batch", "retry", "spool", "tls"))
        if data["include"] == Include.FIELDS and not data["paths"]:
            raise SettingsError("data.include is Fields, and data.paths is empty: name the fields to send")
        positive = {"timeout": full["timeout"], **{f"retry.{name}": value for name, value in retry.items()}}
        for name, value in positive.items():
            if seconds(value) <= 0:
                raise SettingsError(f"{name} is {value}, and has to be more than 0")
        if "url" in full and "urlFrom" in full:
            raise SettingsError("there are url and urlFrom: remove one of them")
        signature = _signature(config.get("signature") and full["signature"])
        if signature and signature.scheme is Scheme.GITHUB and len(signature.secrets) > 1:
            raise SettingsError(
                "signature.secretsFrom has several secrets, and GitHub's header has room for one"
            )
        return cls(
            EventSettings(
                source=full["source"],
                type_prefix=full["typePrefix"],
                include=Include(data["include"]),
                paths=tuple(data["paths"]),
                omit=tuple(data["omit"]),
                old=data["old"],
                secret_values=data["secretValues"],
            ),
            EndpointSettings(
                url=full["url"] if "url" in full else ValueSource.of(full["urlFrom"]),
                headers=dict(full["headers"]),
                secret_headers=tuple((each["name"], ValueSource.of(each)) for each in full["headersFrom"]),
                timeout=seconds(full["timeout"]),
                ca_file=tls.get("caFile"),
                cert_file=tls.get("certFile"),
                key_file=tls.get("keyFile"),
                proxy_from_environment=full["proxyFromEnvironment"],
            ),
            DeliverySettings(
                mode=Mode(full["mode"]),
                signature=signature,
                concurrency=full["concurrency"],
                batch_events=batch["maxEvents"],
                batch_bytes=size_bytes(batch["maxBytes"]),
                batch_age=seconds(batch["maxAge"]),
                initial_backoff=seconds(retry["initialBackoff"]),
                max_backoff=seconds(retry["maxBackoff"]),
                max_age=seconds(retry["maxAge"]),
                circuit_failures=full["circuit"]["failures"],
                log_every=seconds(full["logEvery"]),
                flush_timeout=seconds(full["flushTimeout"]),
            ),
            SpoolSettings(
                path=Path(spool["path"]),
                max_bytes=size_bytes(spool["maxBytes"]),
                when_full=WhenFull(spool["whenFull"]),
                fsync=spool["fsync"],
                dead_letter_bytes=size_bytes(full["deadLetters"]["maxBytes"]),
            ),
        )

    def check(self) -> None:
        """Read every secret and file once. Blocks. Raises SettingsError for the first that can't be used."""
        url = self.endpoint.url
        if isinstance(url, ValueSource):
            check_url(url.read(), str(url))
        else:
            check_url(url, "url")
        for name, source in self.endpoint.secret_headers:
            check_header(source.read(), f"the value of the header {name} in {source}")
        if self.delivery.signature is not None:
            self.delivery.signature.keys()


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_url(url: str, name: str) -> None:
    """Raise SettingsError, without the URL, for a text that is none."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or brackets without an address
        is_url = False
    if not is_url or re.search(r"[\s#]", url):
        raise SettingsError(f"{name} has no URL that begins with http:// or https:// and names a host")


def check_header(value: str, name: str) -> None:
    """Raise SettingsError, without the value, for a text that can't be the value of a header."""
    if re.fullmatch(r"[ -~]*", value) is None:
        raise SettingsError(f"{name} has a character that no header can have, such as a line end")


def _signature(value: Mapping[str, Any] | None) -> SignatureSettings | None:
    if not value:
        return None
    return SignatureSettings(
        Scheme(value["scheme"]), tuple(ValueSource.of(each) for each in value["secretsFrom"])
    )


def _with_defaults(schema: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with the defaults of its schema; sections are filled too, except those without a default."""
    full = dict(value)
    properties: Mapping[str, Any] = schema.get("properties", {})
    for name, field in properties.items():
        if "default" in field:
            full.setdefault(name, field["default"])
        elif "properties" in field and "oneOf" not in field:
            full[name] = _with_defaults(field, full.get(name, {}))
        elif "items" in field and "properties" in field["items"]:
            items: Sequence[Mapping[str, Any]] = full.get(name, [])
            full[name] = [_with_defaults(field["items"], item) for item in items]
    return full


def seconds(text: str) -> float:
    """A duration such as `1h30m` in seconds. Raises SettingsError for another text."""
    parts = _DURATION.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        raise SettingsError(f"{text!r} is no duration such as 500ms, 10s, 5m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def size_bytes(value: int | str) -> int:
    """A size such as `64Mi` in bytes. Raises SettingsError for another text."""
    match = _SIZE.fullmatch(str(value))
    if match is None:
        raise SettingsError(f"{value!r} is no size such as 512Ki, 64Mi or 1Gi")
    return int(match[1]) * _FACTORS[match[2]]
