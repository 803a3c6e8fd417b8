"""`schema` and `explain`: what may be written in a manifest."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from declctl.manifest import Explanation


def schema(
    kind: Annotated[
        str | None, typer.Option("--kind", help="Of one kind alone: Controller or ControllerTest.")
    ] = None,
) -> None:
    """Print the JSON Schema of manifests."""
    import json

    from declctl.manifest import schema as schema_of

    typer.echo(json.dumps(schema_of(kind), indent=2, ensure_ascii=False))


def explain(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Such as spec.handlers.retry.")] = "",
) -> None:
    """Describe a field of the manifest: type, default, whether a reload changes it, and an example."""
    from declctl.manifest import explain as explanation_of

    found = explanation_of(path)
    typer.echo("\n".join(_facts(found)))
    if found.fields:
        width = max(len(name) for name, _, _ in found.fields)
        kind_width = max(len(kind) for _, kind, _ in found.fields)
        typer.echo("\nFIELDS")
        for name, kind, description in found.fields:
            typer.echo(f"  {name:<{width}}  {kind:<{kind_width}}  {description}")


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
