"""Values of a manifest: plain data with paths into it, and the texts that have a form of their own.

These texts are durations, sizes, names, addresses, entry points and version ranges. Each `parse_` or `check_`
function reads one kind. For a wrong text it raises BadValue, often with the text that the user probably
meant.
"""

import json
import keyword
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from declctl.kit.timetable import SHORTHANDS, check_line, check_zone, zone_names
from declctl.objects.resource import MOST_FIELD_MANAGER

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A JSON value: the form of a document after YAML has been read."""

Schema: TypeAlias = dict[str, Json]
"""A piece of JSON Schema."""

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the root of a document: `("spec", "handlers", 0, "name")`."""

_NANOSECONDS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "ns": 1,
        "us": 1_000,
        "µs": 1_000,
        "μs": 1_000,
        "ms": 10**6,
        "s": 10**9,
        "m": 60 * 10**9,
        "h": 3600 * 10**9,
    }
)
_DURATION_PART = re.compile(
    r"(?P<number>[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?P<unit>ns|us|µs|μs|ms|s|m|h)(?![^0-9.])"
)
_DURATION_WORD = re.compile(r"\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*)\s*")
_LONGEST = 2**63 - 1  # nanoseconds, as in Go: about 292 years
_UNITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), "ms"),
        **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
        **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
        **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
    }
)
_DAY_HOURS: Final[Mapping[str, int]] = MappingProxyType(
    {**dict.fromkeys(("d", "day", "days"), 24), **dict.fromkeys(("w", "week", "weeks"), 168)}
)
_QUANTITY = re.compile(
    r"(?P<number>[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?P<suffix>Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?"
)
_FACTORS: Final[Mapping[str, int]] = MappingProxyType(
    {
        **{suffix: 1000**power for power, suffix in enumerate(("", "k", "M", "G", "T", "P", "E"))},
        **{suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    }
)
_IDENTIFIER_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_FILE_FORM = re.compile(r"(?:\./)?(?P<path>[\w/.-]+?)(?P<suffix>\.py)?(?::(?P<attribute>.*))?")
_SPECIFIER = re.compile(
    r"(?:~=|===?|!=|<=?|>=?)\s*[0-9]+(?:\.[0-9]+)*(?:(?:a|b|rc)[0-9]+)?(?:\.post[0-9]+)?(?:\.dev[0-9]+)?(?:\.\*)?",
    re.ASCII,
)
# The forms of names. ASCII only, as in the API server.
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_OBJECT = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.:]{0,251}[A-Za-z0-9])?", re.ASCII)
_INDEX = re.compile(r"[A-Za-z]([-A-Za-z0-9_]{0,61}[A-Za-z0-9])?", re.ASCII)
_QUALIFIED_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_PLUGIN = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,126}[A-Za-z0-9])?", re.ASCII)
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}", re.ASCII)
_VERSION = re.compile(r"v[0-9]+((alpha|beta)[0-9]+)?", re.ASCII)
_FIELDS_WITH_SECONDS = 6  # of a cron line in other systems
_DATA_KEY = re.compile(r"(?!\.{1,2}\Z)[-._a-zA-Z0-9]{1,253}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def dotted(path: Path) -> str:
    """The path in the form that people write, `spec.handlers[0].name`; the root is `the document`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text or "the document"


def value_at(data: Json, *path: str | int) -> Json:
    """The value at a path; None if there is none, or if a value on the way is of another type."""
    for step in path:
        match data, step:
            case dict(), str():
                data = data.get(step)
            case list(), int() if 0 <= step < len(data):
                data = data[step]
            case _:
                return None
    return data


def mapping_at(data: Json, *path: str | int) -> dict[str, Json]:
    """The mapping at a path; an empty one if there is none."""
    found = value_at(data, *path)
    return found if isinstance(found, dict) else {}


def items_at(data: Json, *path: str | int) -> list[Json]:
    """The list at a path; an empty one if there is none."""
    found = value_at(data, *path)
    return found if isinstance(found, list) else []


def entries_at(data: Json, *path: str | int) -> Iterator[tuple[Path, dict[str, Json]]]:
    """Each mapping in the list at a path, with its own path; items of other types are skipped."""
    for index, item in enumerate(items_at(data, *path)):
        if isinstance(item, dict):
            yield (*path, index), item


class EntryPoint(msgspec.Struct, frozen=True):
    """`module` or `module:attribute`. Neither has to exist."""

    module: str
    attribute: str | None = None

    def __str__(self) -> str:
        return self.module if self.attribute is None else f"{self.module}:{self.attribute}"


class Address(msgspec.Struct, frozen=True):
    """The address of a server. An empty host means all interfaces; port 0 means any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def covers(self, other: "Address") -> bool:
        """Whether a listener at this address takes the connections to the other one.

        That is one with the same port and host, or with all interfaces of the protocol of that host.
        """
        if not self.port or self.port != other.port:
            return False  # each port 0 is another one
        # On `::`, asyncio listens for IPv6 alone.
        every = "::" if ":" in other.host else "0.0.0.0"
        return self.host in (other.host, "") or (self.host == every and other.host != "")


@dataclass(frozen=True, slots=True)
class FrozenJson:
    """A frozen JSON value, equal by its content. `repr` does not show it, as it may contain secrets."""

    canonical: str = field(default="{}", repr=False)

    @classmethod
    def of(cls, value: Json) -> "FrozenJson":
        """The frozen form of plain data; the order of keys is lost."""
        return cls(json.dumps(value, sort_keys=True, separators=(",", ":")))

    def value(self) -> Json:
        """The value as a new copy."""
        return json.loads(self.canonical)


class BadValue(ValueError):
    """A text of the wrong form. `offset` is the position of the fault in the text, from 0."""

    def __init__(self, message: str, *, suggestion: str | None = None, offset: int = 0) -> None:
        super().__init__(message)
        self.suggestion = suggestion
        self.offset = offset


def parse_duration(text: str) -> float:
    """The seconds of a duration in Go's form (`500ms`, `10s`, `1h30m`). A unit is required, as in `0s`."""
    # Nanoseconds are counted as integers: a sum of floats would differ from Go in the last digits.
    total, at = 0, 0
    while at < len(text):
        part = _DURATION_PART.match(text, at)
        if part is None:
            break
        total += int(Decimal(part["number"]) * _NANOSECONDS[part["unit"]])
        at = part.end()
    if at < len(text) or not text:
        raise BadValue(f'"{text}" is not a duration', suggestion=_duration_advice(text), offset=at)
    if total > _LONGEST:
        raise BadValue(f'"{text}" is longer than 292 years', suggestion="leave the field out for no limit")
    return total / 1e9


def parse_quantity(value: str | int) -> int:
    """The bytes of a Kubernetes quantity (`64Mi`, `1.5G`, `65536`), rounded up to a whole byte."""
    # Python refuses to print very long integers: "1e30" stands for all of them, and is too large, too.
    text = str(value) if not isinstance(value, int) or abs(value) < 10**30 else "1e30"
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise BadValue(f'"{text}" is not a byte size', suggestion=_quantity_advice(text))
    size = Decimal(found["number"]) * _FACTORS[found["suffix"] or ""]
    if not 1 <= size < 2**63:
        raise BadValue(
            f'"{text}" is not a size that a buffer can have', suggestion="write a size such as 64Mi"
        )
    return int(size.to_integral_value(ROUND_CEILING))


def parse_address(text: str) -> Address:
    """Reads `host:port`; the host may be empty (all interfaces) or an IPv6 address in brackets."""
    found = re.fullmatch(
        r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]*):(?P<port>[0-9]{1,5})", text, re.ASCII
    )
    if found is None:
        raise BadValue(f'"{text}" is not an address', suggestion=_address_advice(text))
    port = int(found["port"])
    if port > 65535:
        raise BadValue(
            f"there is no port {port}", suggestion="ports end at 65535", offset=found.start("port")
        )
    return Address(found["host"].strip("[]"), port)


def parse_entry_point(text: str, *, needs: str = "") -> EntryPoint:
    """Reads `package.module` or `package.module:attribute`; each name must be a Python name.

    `needs` is what the attribute has to be, such as function; empty if there may be none.
    """
    module, colon, attribute = text.partition(":")
    if not _importable(module) or module.endswith(".py") or (colon and not _importable(attribute)):
        raise BadValue(f'"{text}" is not an entry point', suggestion=_entry_point_advice(text))
    if needs and not colon:
        raise BadValue(
            f'"{text}" names a module, and a {needs} is needed',
            suggestion=f'write "{text}:name_of_the_{needs}"',
        )
    return EntryPoint(module, attribute or None)


def check_version_range(text: str) -> str:
    """Checks a version range of PEP 440, such as `>=1.2,<2`."""
    parts = [part.strip() for part in text.split(",")]
    if all(_SPECIFIER.fullmatch(part) for part in parts):
        return text
    bare = re.fullmatch(r"[\^~v=]*\s*(?P<version>[0-9]+(?:\.[0-9]+)*)", text)
    example = f">={bare['version']}" if bare else ">=1.2,<2"
    raise BadValue(f'"{text}" is not a version range', suggestion=f'write it like "{example}"')


def _duration_advice(text: str) -> str:
    found = _DURATION_WORD.fullmatch(text)
    if found is None:
        return "write it like 500ms, 10s, 5m or 1h30m"
    number, unit = found["number"], found["unit"].lower()
    if not unit:
        return f'a unit is needed: did you mean "{number}s" or "{number}m"?'
    if unit in _DAY_HOURS and "." not in number and len(number) < 10:
        return f'did you mean "{int(number) * _DAY_HOURS[unit]}h"? Hours are the largest unit'
    if unit in _UNITS:
        return f'did you mean "{number}{_UNITS[unit]}"?'
    return "the units are ms, s, m and h"


def _quantity_advice(text: str) -> str:
    found = re.fullmatch(r"\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<letter>[kKmMgGtT])(?:i?[bB]|i)?\s*", text)
    if found is None:
        return "write it like 64Mi, 1Gi or 65536"
    letter = found["letter"].upper()
    return f'did you mean "{found["number"]}{letter}i"?'


def _address_advice(text: str) -> str:
    if re.fullmatch(r"[0-9]{1,5}", text):
        return f'did you mean "127.0.0.1:{text}"?'
    if re.fullmatch(r"[A-Za-z0-9.-]+", text):
        return f'a port is needed, as in "{text}:8081"'
    if found := re.fullmatch(r"[a-z]+://(?P<rest>[^/]+)/?.*", text):
        return f'did you mean "{found["rest"]}"?'
    return 'write host:port, as in "127.0.0.1:8081"'


def _importable(text: str) -> bool:
    return _IDENTIFIER_PATH.fullmatch(text) is not None and not any(map(keyword.iskeyword, text.split(".")))


def _entry_point_advice(text: str) -> str:
    """The advice for a wrong entry point: for a file or a call, the entry point that it probably means."""
    form = 'write "package.module" or "package.module:attribute"'
    found = _FILE_FORM.fullmatch(text.strip().removesuffix("()"))
    if found is None or found["path"].startswith(("/", "..")):
        return f"{form}; modules are found beside the manifest"
    # A path becomes a module: slashes become dots, and dashes underscores, as a Python name has no dash.
    module = found["path"].strip("./").replace("/", ".").replace("-", "_")
    attribute = found["attribute"]
    if not _importable(module) or (attribute and not _importable(attribute.replace("-", "_"))):
        return f"{form}, with names as Python has them"
    return f'did you mean "{module}{":" + attribute.replace("-", "_") if attribute else ""}"?'


def check_label(text: str) -> str:
    """Checks a DNS-1123 label, the form of names of resources and handlers."""
    if not _LABEL.fullmatch(text):
        raise _bad(
            text,
            "use lower-case letters, digits and dashes, at most 63 of them",
            fixed=_as_label(text),
        )
    return text


def check_namespace(text: str) -> str:
    """Checks the name of a namespace, or `*` for all namespaces."""
    return text if text == "*" else check_label(text)


def check_subdomain(text: str) -> str:
    """Checks a DNS-1123 subdomain, the form of most names of objects: labels with dots between them."""
    if len(text) > 253 or not _SUBDOMAIN.fullmatch(text):
        raise _bad(text, "use lower-case letters, digits, dashes and dots", fixed=_as_label(text))
    return text


def check_finalizer(text: str) -> str:
    """Checks the name of a finalizer: a DNS-1123 subdomain, a slash and a name, such as example.dev/webapp.

    The API server takes names without a domain for its own finalizers only.
    """
    domain, slash, name = text.rpartition("/")
    if not slash or len(domain) > 253 or not _SUBDOMAIN.fullmatch(domain):
        rule = "begin with a domain of yours and a slash, as in example.dev/webapp"
        raise _bad(text, rule)
    if not _QUALIFIED_NAME.fullmatch(name):
        raise _bad(
            text,
            "after the slash, use at most 63 letters, digits, dashes, dots and underscores",
        )
    return text


def check_label_key(text: str) -> str:
    """Checks the key of a label or an annotation: a name, or a DNS-1123 subdomain, a slash and a name."""
    domain, slash, name = text.rpartition("/")
    if slash and (len(domain) > 253 or not _SUBDOMAIN.fullmatch(domain)):
        raise _bad(text, "before the slash, write a domain, as in example.dev/app")
    if not _QUALIFIED_NAME.fullmatch(name):
        raise _bad(text, "write the key of a label or an annotation, as in example.dev/app")
    return text


def _name_check(form: re.Pattern[str], rule: str) -> Callable[[str], str]:
    """The check of names of one form; `rule` is the advice for any other text."""

    def check(text: str) -> str:
        if not form.fullmatch(text):
            raise _bad(text, rule)
        return text

    return check


check_object_name = _name_check(_OBJECT, "use the name that kubectl shows")
"""Checks the name of any object; names of roles may also have colons and capitals (`system:node`)."""
check_index_name = _name_check(_INDEX, "use letters and digits, as in byNode")
"""Checks the name of an index: letters, digits, dashes and underscores, with a letter first."""
check_data_key = _name_check(_DATA_KEY, "use letters, digits, dashes, dots and underscores")
"""Checks a key of the data of a Secret or a ConfigMap."""
check_plugin_name = _name_check(_PLUGIN, "use the name that `declctl plugins list` shows")
"""Checks the name of an entry point in the group `declctl`."""
check_variable = _name_check(_VARIABLE, "use letters, digits and underscores, without $ and braces")
"""Checks the name of an environment variable."""


def check_file_name(text: str) -> str:
    """Checks the path of a file: it must not contain a zero byte."""
    if "\0" in text:
        raise _bad(text.replace("\0", "\N{REPLACEMENT CHARACTER}"), "remove the zero byte")
    return text


def check_absolute_file(text: str) -> str:
    """Checks the path of a file that is not beside the manifest."""
    if not check_file_name(text).startswith("/"):
        raise _bad(text, "write a path that begins with /, outside of the folder of the manifest")
    return text


def check_field_manager(text: str) -> str:
    """Checks a field manager as an API server does: at most 128 printable characters."""
    if len(text) > MOST_FIELD_MANAGER or not text.isprintable():
        raise _bad(text, f"use at most {MOST_FIELD_MANAGER} printable characters")
    return text


def check_kind(text: str) -> str:
    """Checks a kind, which is in CamelCase."""
    if _KIND.fullmatch(text):
        return text
    fixed = text[:1].upper() + text[1:]
    raise _bad(
        text,
        "kinds are written in CamelCase, such as ConfigMap",
        fixed=fixed if _KIND.fullmatch(fixed) else None,
    )


def check_api_version(text: str) -> str:
    """Checks an apiVersion: `v1`, or group and version such as `apps/v1`.

    The version of a custom resource may be any label.
    """
    group, slash, version = text.rpartition("/")
    # Only the core group has no name, and its versions are v1, v1beta1, …
    if not slash and _VERSION.fullmatch(version):
        return text
    is_swapped = _VERSION.fullmatch(group) is not None
    if slash and _SUBDOMAIN.fullmatch(group) and _LABEL.fullmatch(version) and not is_swapped:
        return text
    advice = 'write "v1", or group and version such as "apps/v1"'
    if is_swapped:
        advice = f'did you mean "{version}/{group}"?'
    raise BadValue(f'"{text}" is not an apiVersion', suggestion=advice)


def check_cron(text: str) -> str:
    """Checks a cron line: five fields that can be read, and that fire some day."""
    try:
        return check_line(text)
    except ValueError as error:
        why = str(error)
        never = "never fires" in why
        message = f'"{text}": {why}' if never else f'"{text}" is not a cron line: {why}'
        raise BadValue(message, suggestion=_cron_advice(text, why)) from error


def check_time_zone(text: str) -> str:
    """Checks the name of a time zone, such as Europe/Berlin."""
    try:
        return check_zone(text)
    except ValueError as error:
        # Most often the name has another spelling (`europe/berlin`), or is the city alone (`Berlin`).
        names = sorted(zone_names())
        known = {name.lower(): name for name in names} | {
            name.rpartition("/")[2].lower(): name for name in names
        }
        near = next(iter(get_close_matches(text.replace(" ", "_").lower(), known, n=1, cutoff=0.75)), None)
        form = "write an IANA name such as Europe/Berlin, or UTC"
        raise BadValue(str(error), suggestion=f'did you mean "{known[near]}"?' if near else form) from error


def _cron_advice(text: str, reason: str) -> str:
    fields = text.split()
    if "never fires" in reason:
        return "name days and months that go together"
    if fields and fields[0].partition("=")[0] in ("TZ", "CRON_TZ"):
        return "name the zone in the field timeZone"
    if fields[:1] == ["@every"]:
        return f'write every: "{" ".join(fields[1:])}" instead of cron'
    if text.startswith("@"):
        return f"the words are {', '.join(SHORTHANDS)}"
    if len(fields) == _FIELDS_WITH_SECONDS:
        return 'seconds are not possible: write minute, hour, day, month and weekday, or every: "10s"'
    return 'write minute, hour, day of the month, month and day of the week, as in "0 2 * * *"'


def _as_label(text: str) -> str | None:
    fixed = re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", text).lower()).strip("-")
    return fixed if _LABEL.fullmatch(fixed) else None


def _bad(text: str, rule: str, *, fixed: str | None = None) -> BadValue:
    if "${" in text:
        rule = "for an environment variable write ${env:NAME}"
        fixed = None
    suggestion = rule if fixed is None else f'did you mean "{fixed}"? Rule: {rule}'
    return BadValue(f'"{text}" is not a valid name', suggestion=suggestion)
