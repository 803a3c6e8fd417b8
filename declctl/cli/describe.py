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
