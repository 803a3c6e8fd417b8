"""`declctl finalizers list` and `release`: the objects that have a finalizer of a manifest.

The finalizers are those of the manifest and, as an edit may have removed one, those of the running process of
the same name, and those that handlers of a controller of this name have added by what the server knows of the
objects (`find_added`). The objects are looked for in the whole cluster or, without the right to that, in the
namespaces of the manifest; of the kinds that the manifest or the process watches or, with `--all-kinds`, of
all kinds.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer
from msgspec.structs import replace

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
    PAGE,
    AddedFinalizer,
    FinalizedObject,
    FinalizerCarrier,
    FinalizerWriter,
    WriteGate,
    WriteLedger,
    WriteOrigin,
    find_added,
    find_in_any,
)

_OK = 200
_SECONDS = 2.0  # for a process that may not be there
_MANAGER = "declctl/finalizers"  # field manager of a release
_MOST_PAGES = 400  # of a kind that is in no manifest
_SHOWN = 20  # objects that are listed before the question


class NamedFinalizer(msgspec.Struct, frozen=True):
    """A finalizer of one handler."""

    handler: str
    finalizer: str
    kind: GroupVersionKind
    in_manifest: bool = True  # False: only the running process, or an object, has it


class KindScope(msgspec.Struct, frozen=True):
    """A kind whose objects are looked at, and where."""

    kind: GroupVersionKind
    namespaces: tuple[str, ...] | None  # without the right to look at the whole cluster


class FinalizerSearch(msgspec.Struct, frozen=True):
    """What is looked for."""

    controller: str
    named: Sequence[NamedFinalizer]  # of the manifest and of the running process
    scopes: Sequence[KindScope]
    handler: str | None = None  # the only one; None for all
    all_kinds: bool = False  # also of kinds that are in no scope


class _Found(msgspec.Struct, frozen=True):
    named: NamedFinalizer
    carriers: list[FinalizerCarrier]

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
    all_kinds: bool,
    cluster: tuple[str | None, str | None],
    admin: str | None,
) -> int:
    """Print the objects that have a finalizer of a manifest. `cluster`: kubeconfig and context.

    Raises UsageError and typer.Exit.
    """
    with manifest_folder(manifest, *cluster) as at:
        search = finalizer_search(manifest, admin, at=at)
    search = replace(search, handler=handler, all_kinds=all_kinds)
    found = asyncio.run(_connected(cluster, lambda client: _find(client, search)))
    if as_json:
        names = ("handler", "finalizer", "kind", "key", "deletionTimestamp")
        rows = [dict(zip(names, row, strict=True)) for each in found for row in each.rows()]
        print_json({"objects": rows})
        return 0
    rows = [row for each in found for row in each.rows()]
    if rows:
        print_table(("HANDLER", "FINALIZER", "KIND", "OBJECT", "DELETED"), rows)
    line(_sentence(found, search), err=True)
    return 0


def release_finalizers(
    manifest: str,
    *,
    handler: str | None,
    yes: bool,
    all_kinds: bool,
    cluster: tuple[str | None, str | None],
    admin: str | None,
) -> int:
    """Remove the finalizers of a manifest from all objects, after a question; returns the exit status.

    Raises UsageError and typer.Exit.
    """
    with manifest_folder(manifest, *cluster) as at:
        search = finalizer_search(manifest, admin, at=at)
    search = replace(search, handler=handler, all_kinds=all_kinds)
    return asyncio.run(_connected(cluster, lambda client: _release(client, search, yes=yes)))


def finalizer_search(manifest: str, admin: str | None, *, at: Path | None = None) -> FinalizerSearch:
    """The finalizers and the kinds of a manifest, and of the running process of its name.

    The manifest is read `at` a path, by default its own. Raises typer.Exit for a manifest with faults.
    """
    checked = read_files(InputFiles(manifest, at=at))
    if checked.errors:
        show_faults(checked.diagnostics)
        raise typer.Exit(1)
    assert checked.inputs is not None
    controller = checked.inputs.loaded.controller
    plans = [plan(controller)]
    running = _running_plan(LocalManifest.of(manifest, controller), admin)
    if running is not None:
        plans.append(running)
    # By kind in whatever version: the manifest comes first.
    named: dict[tuple[str, str, str], NamedFinalizer] = {}
    scopes: dict[tuple[str, str], KindScope] = {}
    for of in plans:
        for resource in of.resources:
            watch = resource.watches[0]
            kind = GroupVersionKind.of(watch.api_version, watch.kind)
            scopes.setdefault((kind.group, kind.kind), KindScope(kind, resource.namespaces))
            for each in of.handlers:
                if each.finalizer and each.resource == resource.name:
                    one = NamedFinalizer(each.name, each.finalizer, kind, in_manifest=of is plans[0])
                    named.setdefault((kind.group, kind.kind, each.finalizer), one)
    return FinalizerSearch(controller.name, tuple(named.values()), tuple(scopes.values()))


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


async def _find(client: Client, search: FinalizerSearch) -> list[_Found]:
    """The objects of each finalizer; those of the manifest and the process first, also without objects.

    Raises ApiError for a kind of a scope, and UsageError if nothing is known of the handler that is named.
    """
    found = {
        (each.kind.group, each.kind.kind, each.finalizer): _Found(each, [])
        for each in search.named
        if search.handler in (None, each.handler)
    }
    scopes = [(scope, None) for scope in search.scopes]
    if search.all_kinds:
        known = {(scope.kind.group, scope.kind.kind) for scope in search.scopes}
        scopes += [
            (KindScope(resource.gvk, None), _MOST_PAGES)
            for resource in await client.served()
            if {"list", "patch"} <= resource.verbs and (resource.gvk.group, resource.gvk.kind) not in known
        ]
    missed: list[str] = []
    for number, (scope, most_pages) in enumerate(scopes, 1):
        if search.all_kinds and sys.stderr.isatty():
            line(f"{number} of {len(scopes)}: {scope.kind}", err=True)
        try:
            await _find_in(client, search, scope, most_pages, found, missed)
        except ApiError as error:
            if most_pages is None:
                raise
            missed.append(f"{scope.kind} ({error})")
    if missed:
        line(f"not looked at: {'; '.join(missed)}", err=True)
    if search.handler and not found:
        raise UsageError(_sentence([], search))
    return list(found.values())


async def _find_in(
    client: Client,
    search: FinalizerSearch,
    scope: KindScope,
    most_pages: int | None,
    found: dict[tuple[str, str, str], _Found],
    missed: list[str],
) -> None:
    """Add the objects of one kind to `found`, and what was not looked at to `missed`. Raises ApiError."""
    of_kind = scope.kind.group, scope.kind.kind
    names = {name for *kind, name in found if tuple(kind) == of_kind}
    alone: list[str] = []  # the namespaces that are looked at, without the right to the whole cluster

    async def find(namespace: str | None) -> list[AddedFinalizer]:
        if namespace is not None:
            alone.append(namespace)
        added, is_whole = await find_added(
            client, scope.kind, search.controller, names=names, namespace=namespace, most_pages=most_pages
        )
        if not is_whole:
            missed.append(f"{scope.kind} after the first {_MOST_PAGES * PAGE:,} objects")
        return added

    for each in await find_in_any(find, scope.namespaces):
        key = (*of_kind, each.finalizer)
        if key not in found:
            if search.handler not in (None, each.handler):
                continue
            stray = NamedFinalizer(each.handler, each.finalizer, scope.kind, in_manifest=False)
            found[key] = _Found(stray, [])
        found[key].carriers.append(each.carrier)
    if alone:
        there = ", ".join(alone)
        missed.append(f"{scope.kind} outside of {there} (no right to list it in the whole cluster)")


async def _release(client: Client, search: FinalizerSearch, *, yes: bool) -> int:
    found = await _find(client, search)
    count = sum(len(each.carriers) for each in found)
    if not count:
        line(_sentence(found, search), err=True)
        return 0
    if not yes:
        _ask(found, count, search)
    left = [each for one in found if one.named.in_manifest for each in one.carriers[:1]]
    if left:
        line(
            "a process that runs this manifest adds the finalizer again: stop it, or take the finalizer out "
            "of its manifest",
            err=True,
        )
    writer = FinalizerWriter(WriteGate(client, WriteLedger(0), clock=SystemClock()))
    for one in found:
        if one.carriers:
            resource = await client.discover(one.named.kind)
            origin = WriteOrigin(one.named.handler, 0)
            for each in one.carriers:
                target = FinalizedObject(resource, each.key, each.uid, one.named.finalizer, _MANAGER, origin)
                await writer.remove(target, None)
                line(f"released {one.named.kind.kind} {each.key} of {one.named.finalizer}")
    return 0


def _ask(found: Sequence[_Found], count: int, search: FinalizerSearch) -> None:
    """Ask whether to release the objects. Raises typer.Exit for a no, and UsageError without a terminal."""
    if not sys.stdin.isatty():
        what = _sentence(found, search)
        raise UsageError(
            f"{what}; without declctl_finalize, what it would clean up stays. Add --yes to release them."
        )
    for row in [row for each in found for row in each.rows()][:_SHOWN]:
        line(f"  {row[2]} {row[3]} ({row[1]})", err=True)
    if count > _SHOWN:
        line(f"  and {count - _SHOWN:,} more", err=True)
    question = f"Release {count:,} objects? declctl_finalize is not called for them"
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def _sentence(found: Sequence[_Found], search: FinalizerSearch) -> str:
    if not found:
        of = f"the handler {search.handler}" if search.handler else "a handler"
        where = "" if search.all_kinds else "; only kinds of the manifest were looked at: --all-kinds for all"
        return f"no object has a finalizer of {of} of {search.controller}{where}"
    parts: list[str] = []
    for each in found:
        number = len(each.carriers)
        have = "1 object has" if number == 1 else f"{number:,} objects have"
        going = sum(carrier.deletion_timestamp is not None for carrier in each.carriers)
        more = f", {going:,} of them being deleted" if going else ""
        parts.append(f"{have} {each.named.finalizer} ({each.named.kind.kind}){more}")
    return "; ".join(parts)
