"""`declctl finalizers list` and `release`: the objects that have a finalizer of a manifest.

The finalizers are those of the manifest and, as an edit may have removed one, those of the running process of
the same name. The objects are looked for in the whole cluster or, without the right to that, in the
namespaces of the manifest.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer

from declctl.cli.admin_client import LocalManifest, admin_address, ask
from declctl.cli.manifest_argument import manifest_folder
from declctl.cli.report import show_faults
from declctl.cli.terminal import line, print_json, print_table
from declctl.errors import ApiError, UsageError
from declctl.kit import SystemClock
from declctl.manifest import Plan, plan
from declctl.objects import GroupVersionKind
from declctl.runtime.checking.check import read_files
from declctl.runtime.checking.inputs import InputFiles
from declctl.runtime.planning.running_plan import read_running_plan
from declctl.transport import Client
from declctl.writes import (
    FinalizedObject,
    FinalizerCarrier,
    FinalizerWriter,
    WriteGate,
    WriteLedger,
    WriteOrigin,
    find_carriers_of,
)

_OK = 200
_SECONDS = 2.0  # for a process that may not be there
_MANAGER = "declctl/finalizers"  # field manager of a release
_SHOWN = 20  # objects that are listed before the question


class NamedFinalizer(msgspec.Struct, frozen=True):
    """A finalizer of one handler, and where its objects are looked for."""

    handler: str
    finalizer: str
    kind: GroupVersionKind
    namespaces: tuple[str, ...] | None  # without the right to look at the whole cluster
    in_manifest: bool = True  # False: only the running process has it


class _Found(msgspec.Struct, frozen=True):
    named: NamedFinalizer
    carriers: Sequence[FinalizerCarrier]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Handler, finalizer, kind, object, and since when it is being deleted."""
        for each in self.carriers:
            yield (
                self.named.handler,
                self.named.finalizer,
                self.named.kind.kind,
                each.key,
                each.deletion_timestamp,
            )


def show_finalizers(
    manifest: str,
    *,
    handler: str | None,
    as_json: bool,
    cluster: tuple[str | None, str | None],
    admin: str | None,
) -> int:
    """Print the objects that have a finalizer of a manifest. `cluster`: kubeconfig and context.

    Raises UsageError and typer.Exit.
    """
    with manifest_folder(manifest, *cluster) as at:
        named = named_finalizers(manifest, handler, admin, at=at)
    found = asyncio.run(_connected(cluster, lambda client: _find(client, named)))
    if as_json:
        names = ("handler", "finalizer", "kind", "key", "deletionTimestamp")
        rows = [dict(zip(names, row, strict=True)) for each in found for row in each.rows()]
        print_json({"objects": rows})
        return 0
    rows = [row for each in found for row in each.rows()]
    if rows:
        print_table(("HANDLER", "FINALIZER", "KIND", "OBJECT", "DELETED"), rows)
    line(_sentence(found), err=True)
    return 0


def release_finalizers(
    manifest: str,
    *,
    handler: str | None,
    yes: bool,
    cluster: tuple[str | None, str | None],
    admin: str | None,
) -> int:
    """Remove the finalizers of a manifest from all objects, after a question; returns the exit status.

    Raises UsageError and typer.Exit.
    """
    with manifest_folder(manifest, *cluster) as at:
        named = named_finalizers(manifest, handler, admin, at=at)
    return asyncio.run(_connected(cluster, lambda client: _release(client, named, yes=yes)))


def named_finalizers(
    manifest: str, handler: str | None, admin: str | None, *, at: Path | None = None
) -> list[NamedFinalizer]:
    """The finalizers of a manifest and of the running process of its name; of one handler, or of all.

    The manifest is read `at` a path, by default its own. Raises typer.Exit for a manifest with faults, and
    UsageError if there is no such finalizer.
    """
    checked = read_files(InputFiles(manifest, at=at))
    if checked.errors:
        show_faults(checked.diagnostics)
        raise typer.Exit(1)
    assert checked.inputs is not None
    controller = checked.inputs.loaded.controller
    written = list(_of_plan(plan(controller)))
    running = _running_plan(LocalManifest.of(manifest, controller), admin)
    known = {(each.finalizer, each.kind.group, each.kind.kind) for each in written}
    if running is not None:
        written += [
            each
            for each in _of_plan(running, in_manifest=False)
            if (each.finalizer, each.kind.group, each.kind.kind) not in known
        ]
    found = [each for each in written if handler in (None, each.handler)]
    if not found:
        what = f"no handler {handler} with a finalizer" if handler else "no handler with a finalizer"
        raise UsageError(
            f"{manifest} has {what}, and no running process of its name has one. Name an earlier manifest "
            "that has it."
        )
    return found


def _of_plan(of: Plan, *, in_manifest: bool = True) -> Iterator[NamedFinalizer]:
    resources = {resource.name: resource for resource in of.resources}
    for each in of.handlers:
        if each.finalizer:
            resource = resources[each.resource]
            watch = resource.watches[0]
            kind = GroupVersionKind.of(watch.api_version, watch.kind)
            yield NamedFinalizer(each.name, each.finalizer, kind, resource.namespaces, in_manifest)


def _running_plan(manifest: LocalManifest, admin: str | None) -> Plan | None:
    """The plan of the running process of this name; None without an answer."""
    try:
        answer = ask(admin_address(admin, manifest=manifest), "GET", "/plan", timeout=_SECONDS)
        if answer.status != _OK:
            return None
        found = read_running_plan(answer.document).plan
    except UsageError:
        if admin is not None:
            raise
        return None
    return found if found.name == manifest.name else None


async def _connected(cluster: tuple[str | None, str | None], work: Callable[[Client], Any]) -> Any:
    kubeconfig, context = cluster
    client = await Client.connect(kubeconfig=kubeconfig, context=context)
    try:
        return await work(client)
    except ApiError as error:
        raise UsageError(f"The cluster refused: {error}.") from error
    finally:
        await client.close()


async def _find(client: Client, named: Sequence[NamedFinalizer]) -> list[_Found]:
    return [
        _Found(each, await find_carriers_of(client, each.kind, each.finalizer, each.namespaces))
        for each in named
    ]


async def _release(client: Client, named: Sequence[NamedFinalizer], *, yes: bool) -> int:
    found = await _find(client, named)
    count = sum(len(each.carriers) for each in found)
    if not count:
        line(_sentence(found), err=True)
        return 0
    if not yes:
        _ask(found, count)
    left = [each for one in found if one.named.in_manifest for each in one.carriers[:1]]
    if left:
        line(
            "a process that runs this manifest adds the finalizer again: stop it, or take the finalizer out "
            "of its manifest",
            err=True,
        )
    clock = SystemClock()
    ledger = WriteLedger(0)
    writer = FinalizerWriter(WriteGate(client, ledger, clock=clock), ledger, clock)
    for one in found:
        if one.carriers:
            resource = await client.discover(one.named.kind)
            origin = WriteOrigin(one.named.handler, 0)
            for each in one.carriers:
                target = FinalizedObject(resource, each.key, each.uid, one.named.finalizer, _MANAGER, origin)
                await writer.remove(target, None)
                line(f"released {one.named.kind.kind} {each.key} of {one.named.finalizer}")
    return 0


def _ask(found: Sequence[_Found], count: int) -> None:
    """Ask whether to release the objects. Raises typer.Exit for a no, and UsageError without a terminal."""
    if not sys.stdin.isatty():
        raise UsageError(
            f"{_sentence(found)}; without declctl_finalize, what it would clean up stays. Add --yes to "
            "release them."
        )
    for row in [row for each in found for row in each.rows()][:_SHOWN]:
        line(f"  {row[2]} {row[3]} ({row[1]})", err=True)
    if count > _SHOWN:
        line(f"  and {count - _SHOWN:,} more", err=True)
    question = f"Release {count:,} objects? declctl_finalize is not called for them"
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def _sentence(found: Sequence[_Found]) -> str:
    parts: list[str] = []
    for each in found:
        number = len(each.carriers)
        have = "1 object has" if number == 1 else f"{number:,} objects have"
        going = sum(carrier.deletion_timestamp is not None for carrier in each.carriers)
        more = f", {going:,} of them being deleted" if going else ""
        parts.append(f"{have} {each.named.finalizer} ({each.named.kind.kind}){more}")
    return "; ".join(parts)
