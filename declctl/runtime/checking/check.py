"""The check of a manifest and its handlers: read, load, plan, and import in a child process.

`validate` does only this; every start and reload begins with it. All faults are reported together, each with
its place in the manifest or in a handler file.
"""

import asyncio
import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from declctl import codes
from declctl.errors import InvalidRequest, ManifestErrors
from declctl.hooks.bundle import Bundle
from declctl.hooks.lint import lint
from declctl.kit.files import is_exhausted, shown
from declctl.manifest import Diagnostic, LoadedManifest
from declctl.manifest.diagnostics import in_order
from declctl.manifest.document import Document, Location
from declctl.manifest.model import (
    ConfigSource,
    ControllerSpec,
    HandlerSpec,
    IsolationMode,
    Mode,
    OnError,
    PluginSpec,
    ResourceSpec,
)
from declctl.manifest.values import EntryPoint, FrozenJson
from declctl.runtime.checking.declaration import (
    Declaration,
    DeclaredEntry,
    DeclaredPlugin,
    DeclaredSource,
    Fault,
    FromHooks,
    ManifestPath,
    SecretKey,
    Use,
)
from declctl.runtime.checking.inputs import InputFiles, Inputs
from declctl.runtime.checking.preflight import Preflight
from declctl.runtime.checking.preflight_pool import PreflightPool

_IS_IT_THERE = "check that it is there, is a file, and may be read"
_ADVICE: Mapping[int | None, str] = {  # for unreadable files, by errno
    errno.EFBIG: "make it smaller; docs/reference/limits.md has the limits",
    errno.ETIMEDOUT: "see whether its file system answers, such as a network mount, and reload again",
    errno.EAGAIN: "raise the limits on processes and memory, or end other processes",
    errno.ENOMEM: "raise the limits on processes and memory, or end other processes",
}


class CheckResult(msgspec.Struct, frozen=True):
    """The inputs of a generation, and the diagnostics about them."""

    diagnostics: tuple[Diagnostic, ...]
    inputs: Inputs | None = None  # None if the manifest or its files have errors
    declaration: Declaration | None = None  # of the user code in `inputs`
    hooks: FromHooks | None = None  # that hooks add to the caches; None if nothing was imported
    import_seconds: float = 0.0  # duration of the import in the child
    exhausted: BaseException | None = None  # the process could not read any file (`is_exhausted`)

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """The diagnostics that keep the inputs from running."""
        return tuple(d for d in self.diagnostics if d.severity == "error")

    def forced(self, number: int) -> "CheckResult":
        """A copy in which `number` is the generation that made all code anew (`Inputs.forced`)."""
        if self.inputs is None or self.inputs.forced == number:
            return self
        return replace(self, inputs=msgspec.structs.replace(self.inputs, forced=number))

    @property
    def has_to_be_imported(self) -> bool:
        """Whether there is user code without known errors, and `spec.reload.preflight` is on."""
        if self.inputs is None or self.declaration is None or self.errors:
            return False
        return self.declaration.has_user_code and self.inputs.loaded.controller.reload.preflight


def check_rights(
    manifest: str, *, at: Path | None = None, children: PreflightPool | None = None
) -> CheckResult:
    """As `check`, with the rules of the hooks `declctl_rbac` in `hooks`. Blocks.

    The code is imported whatever `spec.reload.preflight` says. Configs of plugins are not checked, and may
    lack values: the variables and Secrets that they come from are those of the cluster.
    """
    checked = read_files(InputFiles(manifest, at=at))
    known = tuple(each for each in checked.diagnostics if each.code != codes.PLUGIN_CONFIG)
    checked = replace(checked, diagnostics=known)
    if checked.inputs is None or checked.declaration is None or checked.errors:
        return checked
    if not checked.declaration.has_user_code:
        return checked
    checked = replace(checked, declaration=replace(checked.declaration, asks_rights=True))
    if children is not None:
        return _imported(checked, Preflight(children.begin))
    with closing(PreflightPool()) as own:
        return _imported(checked, Preflight(own.begin))


def import_definitions(
    bundle: Bundle, classes: Iterable[EntryPoint], *, timeout: float
) -> tuple[Sequence[Mapping[str, Any]], Sequence[Fault]]:
    """The CustomResourceDefinitions of classes of a bundle, and the faults of the classes. Blocks.

    A child process imports them, within `timeout` seconds. Raises OSError if no process can be started.
    """
    entries = tuple(DeclaredEntry("definition", str(each), "", str(each), None, ()) for each in classes)
    declaration = Declaration(
        root=bundle.root,
        folder=os.fsencode(bundle.folder),
        files=dict(bundle.files),
        entries=entries,
        plugins=(),
        asks_definitions=True,
    )
    with closing(PreflightPool()) as children:
        result = Preflight(children.begin).run(declaration, timeout=timeout)
    return result.hooks.definitions if result.hooks is not None else (), result.faults


def check(
    manifest: str,
    *,
    at: Path | None = None,
    in_child: bool = True,
    checks_configs: bool = False,
    children: PreflightPool | None = None,
) -> CheckResult:
    """Check a manifest (a file, a folder, or `-`) and its handlers. Blocks.

    The files are read `at` a path, by default `manifest` itself; messages show `manifest`. Without `in_child`
    nothing is imported. With `checks_configs`, plugins look at their configs themselves, too
    (`declctl_check_config`), and definitions are made of the classes of custom resources. `children` is the
    pool for the child, by default one of its own.
    """
    checked = read_files(InputFiles(manifest, at=at))
    if not in_child:
        return checked
    if checks_configs and checked.declaration is not None:
        checked = replace(checked, declaration=replace(checked.declaration, checks_configs=True))
    if not checked.has_to_be_imported:
        return _linted(checked)
    if children is not None:
        return import_aside(checked, Preflight(children.begin))
    with closing(PreflightPool()) as own:
        return import_aside(checked, Preflight(own.begin))


def _linted(checked: CheckResult) -> CheckResult:
    """Add the faults of the lint rules, which otherwise the child adds."""
    if checked.inputs is None or checked.declaration is None:
        return checked
    bundle, declaration = checked.inputs.bundle, checked.declaration
    findings = lint(bundle, declaration.entry_points, declaration.reconcilers)
    faults = [Fault.of_finding(finding) for finding in findings]
    found = diagnose(faults, checked.inputs.loaded.document, bundle)
    return replace(checked, diagnostics=(*checked.diagnostics, *found))


def read_files(files: InputFiles) -> CheckResult:
    """Read the files, and find the faults that can be found without an import. Blocks."""
    try:
        inputs = files.read()
    except ManifestErrors as error:
        exhausted = error.__cause__ if is_exhausted(error.__cause__) else None
        return CheckResult(
            tuple(d for d in error.diagnostics if isinstance(d, Diagnostic)), exhausted=exhausted
        )
    except OSError as error:
        return CheckResult((_unreadable(files, error),), exhausted=error if is_exhausted(error) else None)
    return check_inputs(inputs)


def check_inputs(inputs: Inputs) -> CheckResult:
    """Find the faults of inputs that can be found without an import. Blocks."""
    configs, faults = _configs(inputs)
    found = diagnose(faults, inputs.loaded.document, inputs.bundle)
    return CheckResult((*inputs.loaded.warnings, *found), inputs, _declare(inputs, configs))


def import_aside(checked: CheckResult, preflight: Preflight) -> CheckResult:
    """Import the inputs in a child process, and add the faults found there. Blocks.

    No file is read again: the bytes that are checked are the bytes that will run.
    """
    return _imported(checked, preflight) if checked.has_to_be_imported else checked


def _imported(checked: CheckResult, preflight: Preflight) -> CheckResult:
    inputs, declaration = checked.inputs, checked.declaration
    assert inputs is not None
    assert declaration is not None
    controller = inputs.loaded.controller
    has_types = any(each.object_type for each in controller.resources)
    try:
        asked = replace(declaration, asks_definitions=has_types)
        result = preflight.run(asked, timeout=controller.reload.preflight_timeout)
    except OSError as error:
        # A warning: a process that cannot fork still runs, as with preflight: Off.
        return CheckResult((*checked.diagnostics, _no_child(inputs, error)), inputs, declaration)
    faults, is_run = result.faults, not (declaration.checks_configs or declaration.asks_rights)
    if is_run:
        # Code runs without a definition, and with an older one: each edit of a class comes before it.
        faults = [
            replace(each, severity="warning") if each.code == codes.NO_DEFINITION else each for each in faults
        ]
    found = diagnose(faults, inputs.loaded.document, inputs.bundle)
    checked = CheckResult((*checked.diagnostics, *found), inputs, declaration, result.hooks, result.seconds)
    return _with_differing_definitions(checked) if is_run else checked


def _with_differing_definitions(checked: CheckResult) -> CheckResult:
    """Add warnings for definitions beside the manifest: not those of their classes, or with broken rules."""
    from declctl.runtime.checking.definition_checks import differing_files  # late: many checks import nothing

    found: dict[tuple[str, str], Diagnostic] = {}
    for each in differing_files(checked.inputs, checked.hooks, ()):
        found.setdefault((each.file, each.suggestion or ""), replace(each, severity="warning"))
    return replace(checked, diagnostics=(*checked.diagnostics, *found.values()))


async def import_in_child(checked: CheckResult, children: PreflightPool) -> CheckResult:
    """Do `import_aside` in a thread. If nothing is imported, end the process that children come from.

    A cancellation ends the child, and is raised when the child is gone.
    """
    if not checked.has_to_be_imported:
        # A manifest with errors is edited again soon, and the process is needed then.
        if not checked.errors:
            await asyncio.to_thread(children.close)
        return checked
    preflight = Preflight(children.begin)
    with children.in_use():
        work = asyncio.ensure_future(asyncio.to_thread(import_aside, checked, preflight))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            preflight.give_up()
            # The thread closes the child: the caller may rely on its end.
            await asyncio.wait([work])
            raise


def diagnose(faults: Iterable[Fault], document: Document, bundle: Bundle) -> Sequence[Diagnostic]:
    """The faults as located diagnostics, each once: two handlers of one broken file give one."""
    found: list[Diagnostic] = []
    for fault in faults:
        # A fault without a file is shown where the manifest names the code.
        if fault.file is None:
            diagnostic = document.fault(
                fault.code,
                Location(fault.path, key=fault.key),
                fault.message,
                suggestion=fault.suggestion,
                severity=fault.severity,
            )
            found.append(replace(diagnostic, traceback=fault.traceback))
        else:
            line, column = fault.line or 1, fault.column or 1
            found.append(
                Diagnostic(
                    file=fault.file,
                    line=line,
                    column=column,
                    code=fault.code,
                    message=fault.message,
                    suggestion=fault.suggestion,
                    severity=fault.severity,
                    source_line=_source_line(bundle, fault.file, line),
                )
            )
    return in_order(found)


def _declare(inputs: Inputs, configs: Mapping[str, FrozenJson]) -> Declaration:
    controller = inputs.loaded.controller
    return Declaration(
        root=inputs.bundle.root,
        folder=os.fsencode(inputs.bundle.folder),
        files=dict(inputs.bundle.files),
        entries=tuple(_entries(controller)),
        plugins=tuple(_plugin(spec, inputs, configs[spec.name]) for spec in controller.plugins),
        resources=tuple(resource.name for resource in controller.resources),
        is_reviewed=inputs.bundle.is_reviewed,
    )


def _plugin(spec: PluginSpec, inputs: Inputs, config: FrozenJson) -> DeclaredPlugin:
    path = (*spec.path, "config")
    return DeclaredPlugin(
        name=spec.name,
        version=spec.version,
        disable_on_error=spec.on_error is OnError.DISABLE,
        config=config.canonical,
        path=spec.path,
        config_path=path if path in inputs.loaded.document.nodes else (*spec.path, "name"),
        sources=tuple(
            DeclaredSource(
                source.name,
                source.path,
                env=source.env,
                file=None if source.file is None else shown(Path(inputs.bundle.root) / source.file),
                secret=None
                if source.secret_key_ref is None
                else SecretKey(source.secret_key_ref.name, source.secret_key_ref.key),
            )
            for source in spec.config_from
        ),
    )


def _unreadable(files: InputFiles, error: OSError) -> Diagnostic:
    reason = error.strerror or str(error)
    if error.filename:
        reason = f"{shown(str(error.filename))}: {reason[:1].lower()}{reason[1:]}"
    return Diagnostic(
        file=shown(files.manifest),
        line=1,
        column=1,
        code=codes.UNREADABLE,
        message=f"a file of the bundle can't be read: {reason}",
        suggestion=getattr(error, "suggestion", None) or _ADVICE.get(error.errno, _IS_IT_THERE),
    )


def _no_child(inputs: Inputs, error: OSError) -> Diagnostic:
    return inputs.loaded.document.fault(
        codes.NO_CHILD_PROCESS,
        Location(inputs.loaded.controller.reload.path),
        f"the handlers were not imported in a child process first: {error.strerror or error}",
        suggestion="let the process start others, or write preflight: Off under spec.reload",
        severity="warning",
    )


def _configs(inputs: Inputs) -> tuple[dict[str, FrozenJson], list[Fault]]:
    """The config of each plugin: from the manifest, overlaid with `configFrom`, but for values of Secrets."""
    configs: dict[str, FrozenJson] = {}
    faults: list[Fault] = []
    for plugin in inputs.loaded.controller.plugins:
        # The manifest's checks have reported a config that is no mapping.
        config = plugin.config.value()
        complete = dict(config) if isinstance(config, dict) else {}
        for source in plugin.config_from:
            if source.secret_key_ref is not None:
                continue  # no check needs a cluster: it is read when a generation is staged
            try:
                complete[source.name] = _value(source, inputs)
            except LookupError as missing:
                faults.append(Fault(codes.PLUGIN_CONFIG, str(missing.args[0]), source.path))
        configs[plugin.name] = FrozenJson.of(complete)
    return configs, faults


def _value(source: ConfigSource, inputs: Inputs) -> str:
    if source.env is not None:
        if source.env not in os.environ:
            raise LookupError(f"the environment variable {source.env} is not set")
        return os.environ[source.env]
    name, root = str(source.file), Path(inputs.bundle.root)
    if name not in inputs.config_files:
        reason = inputs.config_faults[name]
        raise LookupError(f"{shown(root / name)} is not there, or can't be read: {reason}")
    try:
        return inputs.config_files[name].decode("utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise LookupError(f"{shown(root / name)} is not UTF-8: {error.reason}") from error


def _entries(controller: ControllerSpec) -> Iterable[DeclaredEntry]:
    for handler in controller.handlers:
        field = "entryPoint" if handler.entry_point else "pluginRef"
        yield DeclaredEntry(
            use="reconciler" if handler.mode is Mode.RECONCILE else "handler",
            name=handler.name,
            resource=handler.resource,
            entry_point=None if handler.entry_point is None else str(handler.entry_point),
            plugin=handler.plugin,
            path=(*handler.path, field),
            isolated=handler.isolation.mode is IsolationMode.PROCESS,
            keeps_previous=handler.keep_previous,
        )
        if handler.finalizer:
            entry = None if handler.entry_point is None else str(handler.entry_point)
            path = (*handler.path, "finalizer")
            yield DeclaredEntry("finalizer", handler.name, handler.resource, entry, handler.plugin, path)
    for handler in controller.handlers:
        if handler.filter is not None and handler.filter.entry_point is not None:
            path = (*handler.filter.path, "entryPoint")
            yield _entry("filter", handler.name, handler.resource, handler.filter.entry_point, path)
        yield from _watch_entries(handler, controller)
    for resource in controller.resources:
        yield from _resource_entries(resource)
    for step in controller.lifecycle.startup:
        yield _entry("startup", str(step.entry_point), "", step.entry_point, (*step.path, "entryPoint"))
    for step in controller.lifecycle.shutdown:
        yield _entry("shutdown", str(step.entry_point), "", step.entry_point, (*step.path, "entryPoint"))
    for schedule in controller.schedules:
        yield _entry("schedule", schedule.name, "", schedule.entry_point, (*schedule.path, "entryPoint"))


def _resource_entries(resource: ResourceSpec) -> Iterable[DeclaredEntry]:
    if resource.object_type is not None:
        yield _entry("type", resource.name, resource.name, resource.object_type, (*resource.path, "type"))
    if resource.transform.entry_point is not None:
        path = (*resource.path, "transform", "entryPoint")
        yield _entry("transform", resource.name, resource.name, resource.transform.entry_point, path)
    for indexer in resource.indexers:
        if indexer.entry_point is not None:
            path = (*indexer.path, "entryPoint")
            yield _entry("indexer", indexer.name, resource.name, indexer.entry_point, path)


def _watch_entries(handler: HandlerSpec, controller: ControllerSpec) -> Iterable[DeclaredEntry]:
    for number, watch in enumerate(handler.watches):
        name, way = f"{handler.name} {number}", watch.map_to
        if way.entry_point is not None:
            yield _entry("mapping", name, watch.resource, way.entry_point, (*way.path, "entryPoint"))
        if watch.filter is not None and watch.filter.entry_point is not None:
            path = (*watch.filter.path, "entryPoint")
            yield _entry("filter", name, watch.resource, watch.filter.entry_point, path)
        if way.index is None:
            continue
        declared = controller.indexes_of(handler.resource)
        if way.index not in declared:
            path = (*way.path, "index")
            yield DeclaredEntry("index", way.index, handler.resource, None, None, path, declared)


def _entry(use: Use, name: str, resource: str, entry_point: EntryPoint, path: ManifestPath) -> DeclaredEntry:
    return DeclaredEntry(use, name, resource, str(entry_point), None, path)


def _source_line(bundle: Bundle, file: str, line: int) -> str | None:
    # A diagnostic shows the path that the user gave: the folder, then the name in the bundle.
    for name, data in bundle.files.items():
        if file == name or file.endswith(f"/{name}"):
            lines = data.decode("utf-8", "replace").splitlines()
            return lines[line - 1] if line <= len(lines) else None
    return None


def refused_request(loaded: LoadedManifest, resource: str, fault: InvalidRequest) -> Diagnostic:
    """The fault of a manifest whose resource the server refuses to list: as a rule, a field selector."""
    spec = next(each for each in loaded.controller.resources if each.name == resource)
    if spec.field_selector and fault.code == HTTPStatus.BAD_REQUEST:
        return loaded.fault(
            codes.BAD_FIELD_SELECTOR,
            (*spec.path, "fieldSelector"),
            f"the server refuses the field selector {spec.field_selector} of a {spec.kind}: {fault.message}",
            suggestion="all kinds have metadata.name and metadata.namespace, and a custom one the "
            "`selectableFields` of its definition; a labelSelector, or the filter of a handler, may do",
        )
    message = f"the server can't list {spec.kind} as it is asked to: {fault.message}"
    return loaded.fault(codes.UNKNOWN_KIND, (*spec.path, "kind"), message)
