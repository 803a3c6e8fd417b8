"""`schema`, `explain` and `plugins list`: the fields of a manifest, codes, reasons, and installed plugins."""

import json
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from declctl.cli.terminal import block, line, print_json, print_table
from declctl.codes import CODE_PATTERN, explain_code
from declctl.errors import UsageError
from declctl.manifest import Explanation, explain, schema, schema_with_plugins
from declctl.manifest.diagnostics import did_you_mean
from declctl.manifest.schema import KINDS
from declctl.runtime.reasons import CONDITIONS, ConditionReason, reason_names, reasons_named

if TYPE_CHECKING:
    from declctl.runtime.checking.declaration import ListedPlugin

_CHANGES = {"live": "live, by a reload", "restart": "need a new process"}


def show_schema(kind: str | None, *, with_plugins: bool) -> None:
    """Print the JSON Schema of manifests, or of one kind alone; perhaps with those of plugins' configs.

    Plugins that can't be used are left out, and named on stderr.
    """
    if not with_plugins:
        print_json(schema(kind))
        return
    listed = _installed_plugins()
    for plugin in listed:
        if plugin.reason is not None:
            line(f"the plugin {plugin.name} is left out: {plugin.reason}", err=True)
    usable = {plugin.name: plugin.config_schema for plugin in listed if plugin.reason is None}
    print_json(schema_with_plugins(kind, {name: dict(c) if c else None for name, c in usable.items()}))


def show_explanation(path: str) -> None:
    """Print the description of a manifest's field, of an error code, or of a condition and its reasons.

    Raises UsageError, with a suggestion, for anything else.
    """
    path = path.strip()
    if CODE_PATTERN.fullmatch(path):
        block(explain_code(path))
        return
    is_field = path.partition(".")[0] in KINDS  # such as ControllerTest.spec
    # Other fields begin with a small letter, and no field is called as a reason is.
    if reasons := reasons_named(path):
        _show_reasons(path, reasons)
        return
    if path[:1].isupper() and not is_field:
        similar = did_you_mean(path, (*reason_names(), *KINDS))
        known = f"conditions are {', '.join(CONDITIONS)}; `declctl explain Reloaded` lists the reasons of one"
        raise UsageError(f"There is no condition or reason {path}; {similar or f'{known}.'}")
    found = explain(path)
    for fact in _facts(found):
        line(fact)
    if found.fields:
        width = max(len(name) for name, _, _ in found.fields)
        kind_width = max(len(kind) for _, kind, _ in found.fields)
        line()
        line("FIELDS")
        for name, kind, description in found.fields:
            line(f"  {name:<{width}}  {kind:<{kind_width}}  {description}")


def _show_reasons(asked: str, reasons: Sequence[ConditionReason]) -> None:
    """Print one reason, with each condition that may have it, or a condition with all of its reasons."""
    condition = next((each for each in CONDITIONS if each.lower() == asked.lower()), None)
    if condition is not None:
        line(f"{condition}  <condition>")
        line()
        line(f"  {CONDITIONS[condition]}")
    for reason in reasons:
        if condition is not None or reason is not reasons[0]:
            line()
        status = "True or False" if reason.holds is None else str(reason.holds)
        where = f"{reason.condition} {status}" if reason.condition else "of an attempt to reload"
        line(f"{reason.name}  <{where}>")
        line()
        line(f"  {reason.meaning}")
        line(f"  Do: {reason.advice}")


def _facts(found: Explanation) -> list[str]:
    required = ", required" if found.required else ""
    facts = [f"{found.path}  <{found.type}{required}>", "", f"  {found.description}"]
    named = [("One of", ", ".join(found.enum))]
    if found.default is not None:
        named.append(("Default", _written(found.default)))
    if found.example is not None:
        named.append(("Example", _written(found.example)))
    if found.live is not None:
        named.append(("Changes", _CHANGES[found.live]))
    return [*facts, "", *(f"  {name + ':':<9}{value}" for name, value in named if value)]


def _written(value: object) -> str:
    """The value in one line of YAML."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _installed_plugins() -> "Sequence[ListedPlugin]":
    """Each installed plugin, imported in a child. Raises UsageError if no child process can be started."""
    # Late: `explain`, and `schema` alone, need no children.
    from declctl.runtime.checking.preflight import list_plugins
    from declctl.runtime.checking.preflight_pool import PreflightPool

    # A pool for this command alone: each plugin is imported in a child of its own.
    with closing(PreflightPool()) as children:
        try:
            return list_plugins(children.begin)
        except OSError as error:
            raise UsageError(
                f"Plugins are imported in a child process, and none can be started: {error}."
            ) from error


def show_plugins(*, as_json: bool) -> None:
    """Print the installed plugins, their hooks, and the faults of unusable ones.

    No code of a plugin is imported into this process. Raises UsageError if no child process can be started.
    """
    listed = _installed_plugins()
    if as_json:
        print_json(msgspec.to_builtins(listed))
    elif listed:
        headers = ("PLUGIN", "DISTRIBUTION", "VERSION", "HOOKSPEC", "STATE", "HOOKS", "REASON")
        rows = [
            (p.name, p.distribution, p.version, p.hookspec or "any", p.state, " ".join(p.hooks), p.reason)
            for p in listed
        ]
        print_table(headers, rows)
        for plugin in listed:
            # A terminal cuts the table, and a reason is long.
            if plugin.reason is not None:
                who = f"the plugin {plugin.name} ({plugin.distribution} {plugin.version})"
                line()
                line(plugin.reason if plugin.reason.startswith(who) else f"{who}: {plugin.reason}")
                block("".join(f"  {each}\n" for each in (plugin.traceback or "").splitlines()))
    else:
        line("No plugin is installed, or none may be loaded (--no-plugins, DECLCTL_LOAD_PLUGINS).", err=True)
