"""`schema`, `explain` and `plugins`: what may be written in a manifest, and which plugins are installed."""

from typing import TYPE_CHECKING, Annotated

import typer

from declctl.cli.options import Output, OutputOption
from declctl.errors import UsageError

if TYPE_CHECKING:
    from declctl.manifest import Explanation
plugins = typer.Typer(help="Installed plugins.", no_args_is_help=True, rich_markup_mode=None)


def schema(
    kind: Annotated[
        str | None, typer.Option("--kind", help="Of one kind alone: Controller or ControllerTest.")
    ] = None,
) -> None:
    """Print the JSON Schema of manifests."""
    from declctl.cli.terminal import print_json
    from declctl.manifest import schema as schema_of

    print_json(schema_of(kind))


def explain(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH|CODE", help="Such as spec.handlers.retry, or DCL012."),
    ] = "",
) -> None:
    """Describe a field of the manifest, or an error code.

    Of a field it says type, default, whether a reload changes it, and an example. Of a code it says what
    is wrong and what to do, as docs/errors.md does.
    """
    from declctl.cli.terminal import block, line
    from declctl.manifest import explain as explanation_of
    from declctl.manifest.codes import CODE_PATTERN, explain_code

    if CODE_PATTERN.fullmatch(path.strip()):
        block(explain_code(path.strip()))
        return
    found = explanation_of(path)
    for fact in _facts(found):
        line(fact)
    if found.fields:
        width = max(len(name) for name, _, _ in found.fields)
        kind_width = max(len(kind) for _, kind, _ in found.fields)
        line()
        line("FIELDS")
        for name, kind, description in found.fields:
            line(f"  {name:<{width}}  {kind:<{kind_width}}  {description}")


def _facts(found: "Explanation") -> list[str]:
    required = ", required" if found.required else ""
    facts = [f"{found.path}  <{found.type}{required}>", "", f"  {found.description}"]
    named = [("One of", ", ".join(found.enum))]
    if found.default is not None:
        named.append(("Default", _written(found.default)))
    if found.example is not None:
        named.append(("Example", _written(found.example)))
    named.append(("Changes", "live, by a reload" if found.live == "live" else "need a new process"))
    if found.note is not None:
        named.append(("Note", found.note))
    return [*facts, "", *(f"  {name + ':':<9}{value}" for name, value in named if value)]


def _written(value: object) -> str:
    """As a person would write it on one line of YAML."""
    if isinstance(value, str):
        return value
    import json

    return json.dumps(value, ensure_ascii=False)


@plugins.callback()
def _group() -> None:
    """Installed plugins."""


@plugins.command("list")
def list_plugins(*, output: OutputOption = Output.TEXT) -> None:
    """List installed plugins, their hooks, and what is wrong with those that can't be used.

    Each is imported in a child process. A plugin that hangs, or ends the process, is a line of the list.
    """
    # Late: `declctl version` shall not load it. Nothing of a plugin is imported into this process.
    from contextlib import closing

    from declctl.runtime.checking.preflight import list_plugins as examined
    from declctl.runtime.checking.preflight_pool import PreflightPool

    # A pool for this command alone: each plugin is imported in a child of its own.
    with closing(PreflightPool()) as children:
        try:
            listed = examined(children.begin)
        except OSError as error:
            raise UsageError(
                f"Plugins are imported in a child process, and none can be started: {error}."
            ) from error
    if output is Output.JSON:
        import msgspec

        from declctl.cli.terminal import print_json

        print_json(msgspec.to_builtins(listed))
    elif listed:
        from declctl.cli.terminal import print_table

        headers = ("PLUGIN", "DISTRIBUTION", "VERSION", "STATE", "HOOKS", "REASON")
        rows = [(p.name, p.distribution, p.version, p.state, " ".join(p.hooks), p.reason) for p in listed]
        print_table(headers, rows)
    else:
        from declctl.cli.terminal import line

        line("No plugin is installed, or none may be loaded (--no-plugins, DECLCTL_LOAD_PLUGINS).", err=True)
