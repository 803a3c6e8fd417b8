"""`declctl validate`: check manifests and their handlers without running them."""

from contextlib import closing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from declctl.cli.options import ContextOption, KubeconfigOption
from declctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from declctl.manifest import Diagnostic, Loaded
    from declctl.runtime.checking.check import Checked
    from declctl.runtime.checking.children import Children


class Report(StrEnum):
    """How faults are printed."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


def validate(
    manifests: Annotated[list[str], typer.Argument(metavar="MANIFEST...", help="Files, folders, or -.")],
    *,
    output: Annotated[
        Report,
        typer.Option("--output", "-o", help="text on stderr; json or github (workflow commands) on stdout."),
    ] = Report.TEXT,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster", help="Also ask the cluster whether it has the kinds and allows to watch them."
        ),
    ] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Check manifests; the handlers are imported in a child process, as a reload does."""
    if (kubeconfig or context) and not cluster:
        raise UsageError("--kubeconfig and --context are for --cluster: add it, or leave them out.")
    from declctl.runtime.checking.children import Children

    with closing(Children()) as children:
        children.warm()  # it loads what it needs while this process does
        checked = _check(manifests, children)
    faults = [fault for one in checked for fault in one.diagnostics]
    if cluster:
        import asyncio

        faults += asyncio.run(_ask_cluster(checked, kubeconfig, context))
    _print(output, faults, checked)
    if any(fault.severity == "error" for fault in faults):
        raise typer.Exit(1)


def _check(manifests: list[str], children: "Children") -> "list[Checked]":
    from declctl.runtime.checking.check import check

    return [check(manifest, children=children) for manifest in manifests]


async def _ask_cluster(
    checked: "list[Checked]", kubeconfig: str | None, context: str | None
) -> "list[Diagnostic]":
    from declctl.cli.cluster_check import check_against_cluster
    from declctl.transport import Client

    loaded = [one.inputs.loaded for one in checked if one.inputs is not None]
    client = await Client.connect(kubeconfig=kubeconfig, context=context)
    try:
        return [fault for one in loaded for fault in await check_against_cluster(one, client)]
    finally:
        await client.close()


def _print(output: Report, faults: "list[Diagnostic]", checked: "list[Checked]") -> None:
    if output is Report.JSON:
        import json

        from declctl.manifest import render_json

        typer.echo(json.dumps(render_json(faults), indent=2, ensure_ascii=False))
    elif output is Report.GITHUB:
        from declctl.manifest import render_github

        typer.echo(render_github(faults), nl=False)
    else:
        from declctl.cli.faults import count, show_faults

        show_faults(faults)
        if faults:
            typer.echo(count(faults), err=True)
        for one in checked:
            if one.inputs is not None and not one.errors:
                typer.echo(_sentence(one.inputs.loaded))
                for line in _costs(one):
                    typer.echo(f"  {line}")


def _sentence(loaded: "Loaded") -> str:
    resources, handlers = len(loaded.controller.resources), len(loaded.controller.handlers)
    parts = f"{_number(resources, 'resource')}, {_number(handlers, 'handler')}"
    return f"{loaded.document.path}: {loaded.controller.name} is valid ({parts})"


def _costs(checked: "Checked") -> "Sequence[str]":
    from declctl.runtime.planning.planned import notable_costs

    return notable_costs(checked)


def _number(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
