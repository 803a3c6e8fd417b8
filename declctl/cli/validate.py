"""`declctl validate`: check manifests and their handlers without running them."""

from contextlib import closing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from declctl.cli.options import ContextOption, KubeconfigOption
from declctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from declctl.manifest import Diagnostic, Loaded
    from declctl.runtime.checking.check import Checked
    from declctl.runtime.checking.preflight_pool import PreflightPool


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
    from declctl.runtime.checking.preflight_pool import PreflightPool

    with closing(PreflightPool()) as children:
        children.warm()  # it loads what it needs while this process does
        checked = _check(manifests, children)
    faults = [fault for one in checked for fault in one.diagnostics]
    # After the files: a manifest that is wrong by itself needs no cluster to say so.
    if cluster:
        import asyncio

        faults += asyncio.run(_ask_cluster(checked, kubeconfig, context))
    _print(output, faults, checked)
    if any(fault.severity == "error" for fault in faults):
        raise typer.Exit(1)


def _check(manifests: list[str], children: "PreflightPool") -> "list[Checked]":
    from declctl.runtime.checking.check import check

    return [check(manifest, children=children) for manifest in manifests]


async def _ask_cluster(
    checked: "list[Checked]", kubeconfig: str | None, context: str | None
) -> "list[Diagnostic]":
    from declctl.cli.cluster_check import check_against_cluster
    from declctl.transport import Client

    client = await Client.connect(kubeconfig=kubeconfig, context=context)
    try:
        return [
            fault
            for one in checked
            if one.inputs is not None
            for fault in await check_against_cluster(
                one.inputs.loaded, client, records_events=_records_events(one.inputs.bundle.files)
            )
        ]
    finally:
        await client.close()


def _records_events(files: "Mapping[str, bytes]") -> bool:
    """Whether a handler file names `record_event`; what installed plugins do is not known."""
    return any(b"record_event" in source for source in files.values())


def _print(output: Report, faults: "list[Diagnostic]", checked: "list[Checked]") -> None:
    from declctl.cli.terminal import block, line, print_json

    if output is Report.JSON:
        from declctl.manifest import render_json

        print_json(render_json(faults))
    elif output is Report.GITHUB:
        from declctl.manifest import render_github

        block(render_github(faults))
    else:
        from declctl.cli.report import count, show_faults

        show_faults(faults)
        if faults:
            line(count(faults), err=True)
        # A manifest that the cluster refuses is not called valid.
        wrong = {fault.file for fault in faults if fault.severity == "error"}
        for one in checked:
            if one.inputs is not None and not one.errors and one.inputs.loaded.document.path not in wrong:
                line(_sentence(one.inputs.loaded))
                for cost in _costs(one):
                    line(f"  {cost}")


def _sentence(loaded: "Loaded") -> str:
    resources, handlers = len(loaded.controller.resources), len(loaded.controller.handlers)
    parts = f"{_number(resources, 'resource')}, {_number(handlers, 'handler')}"
    return f"{loaded.document.path}: {loaded.controller.name} is valid ({parts})"


def _costs(checked: "Checked") -> "Sequence[str]":
    from declctl.runtime.planning.comparison import notable_costs

    return notable_costs(checked)


def _number(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
