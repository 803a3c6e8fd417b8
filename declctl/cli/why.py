"""`declctl why`: which handler wrote the fields of an object, and what caused that call."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from declctl.cli.admin_client import admin_address, ask, expect
from declctl.cli.report import age
from declctl.cli.terminal import line, print_json, print_table
from declctl.errors import UsageError

_SECONDS = 30.0  # the process asks the API server
_NEWEST = 10  # writes that are listed as text
_WITHOUT_MANAGERS = "it has no metadata.managedFields, as an object that a sandbox has loaded from a file"
_NEWEST_WRITE = "newest write of this manager"  # if it can't be told which one gave the field its value


def show_reasons(what: str, field: str | None, admin: str | None, *, as_json: bool) -> int:
    """Print the owners of the fields of an object, and the writes of the process to it.

    Returns the exit status: 1 if the object does not have the field. Raises UsageError.
    """
    resource, slash, key = _split(what)
    if not slash or not resource or not key:
        raise UsageError(
            f"{what!r} names no object: write RESOURCE/KEY, such as configmaps/default/settings."
        )
    query = "" if field is None else f"?{urlencode({'field': field})}"
    path = f"/why/{quote(resource, safe='')}/{quote(key)}{query}"
    found = expect(
        ask(admin_address(admin), "GET", path, timeout=_SECONDS), "kind", "key", "fields", "writes"
    )
    if as_json:
        print_json(found)
    else:
        _print(found, field, now=datetime.now(UTC))
    return int(not found.get("hasField", True))


def _split(what: str) -> tuple[str, str, str]:
    """The resource, the slash and the key. `apps/v1/deployments/default/web` begins with a group."""
    parts = what.split("/")
    if len(parts) >= 4 and parts[1][:1] == "v" and parts[1][1:2].isdigit():
        return "/".join(parts[:3]), "/", "/".join(parts[3:])
    return what.partition("/")


def _print(found: dict[str, Any], field: str | None, *, now: datetime) -> None:
    state = f"version {found['resourceVersion']}" if found["exists"] else "is gone"
    line(f"{found['kind']} {found['key']} ({state})")
    rows = [
        (
            each["path"],
            _entry(each),
            each["handler"] or "-",
            _of(each["write"], "generation"),
            _cause(each),
        )
        for each in found["fields"]
    ]
    if rows:
        line()
        print_table(("FIELD", "MANAGER", "HANDLER", "GENERATION", "BECAUSE OF"), rows)
    elif found["exists"] and found.get("hasField", True):
        none = f"no manager owns {field}" if field else "no manager owns a field"
        line(none if found.get("hasManagers", True) else f"{none}: {_WITHOUT_MANAGERS}", err=True)
    if not found.get("hasField", True):
        near = f"; did you mean {found['suggestion']}?" if found["suggestion"] else ""
        line(f"{found['kind']} {found['key']} has no field {field}{near}", err=True)
    for loop in found.get("writeLoops", ()):
        line()
        line(f"write loop: {loop}")
    writes = found["writes"][-_NEWEST:]
    if writes and not field:
        line()
        print_table(
            ("WRITE", "RESULT", "AGE", "HANDLER", "GENERATION", "VERSION", "CALLED FOR", "BECAUSE OF"),
            [
                (
                    each["verb"],
                    each["result"],
                    age(each["time"], now=now),
                    each["handler"],
                    each["generation"],
                    each["resourceVersion"] or "-",
                    each["calledFor"] or "-",
                    "; ".join(each["causes"]) or each["error"] or "-",
                )
                for each in writes
            ],
        )


def _entry(owned: dict[str, Any]) -> str:
    """The entry of `managedFields` that holds a field: its manager, and what is not that of an apply."""
    named = [owned["operation"]] if owned["operation"] != "Apply" or owned["subresource"] else []
    named += [owned["subresource"]] if owned["subresource"] else []
    return f"{owned['manager']} ({', '.join(named)})" if named else str(owned["manager"])


def _of(write: dict[str, Any] | None, name: str) -> object:
    return "-" if write is None else write[name]


def _cause(owned: dict[str, Any]) -> str:
    """What caused the call that wrote a field, in words."""
    write = owned["write"]
    if owned.get("elsewhere"):
        return f"another process that writes as {owned['manager']}, after the newest write of this one"
    if write is not None:
        causes = "; ".join(write["causes"]) or "a life-cycle hook or a schedule"
        # A process of an older version does not say.
        return causes if owned.get("exact", True) else f"{causes} ({_NEWEST_WRITE})"
    if owned["handler"] is not None:
        return "a write that this process does not remember"
    return "-"
