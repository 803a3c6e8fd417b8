"""From a source to a checked Controller, or to every fault at once.

Environment variables are read here, for `${env:NAME}`, and nowhere else in this room. No cluster is asked, no
handler is imported. Building the model can't fail: `checks` has read the same values with the same functions.
Fields that are absent are left to the model, where the defaults are.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from declctl.errors import ManifestErrors
from declctl.manifest import codes, model
from declctl.manifest.checks import check
from declctl.manifest.diagnostics import Diagnostic, bounded_suggestions, closest, in_order
from declctl.manifest.document import Document, Node, Place, UnreadableYaml, parse_documents, read_document
from declctl.manifest.json_values import Json, Path, entries_at, items_at, mapping_at, value_at
from declctl.manifest.model import Controller
from declctl.manifest.shape.controller import API_VERSION
from declctl.manifest.sources import ManifestSource, Position, SourceText, decode
from declctl.manifest.values import parse_address, parse_duration, parse_entry_point, parse_quantity
from declctl.objects.fields import FieldPath, FieldSelector, LabelSelector

_Spec = TypeVar("_Spec")
_Table = Mapping[str, tuple[str, Callable[..., object]]]  # field → parameter of the model, and how it is read
_ALL_NAMESPACES = "*"
_QUEUE: _Table = {"name": ("name", str), "concurrency": ("concurrency", int)}
_RETRY: _Table = {
    "maxAttempts": ("max_attempts", int),
    "initialBackoff": ("initial_backoff", parse_duration),
    "maxBackoff": ("max_backoff", parse_duration),
}
_PLUGIN: _Table = {
    "name": ("name", str),
    "version": ("version", str),
    "onError": ("on_error", model.OnError),
    "config": ("config", model.FrozenJson.of),
}
_CONFIG_SOURCE: _Table = {"name": ("name", str), "env": ("env", str), "file": ("file", str)}
_STEP: _Table = {"entryPoint": ("entry_point", parse_entry_point), "order": ("order", int)}
_GROUP = API_VERSION.partition("/")[0]
_KINDS = ("Controller", "ControllerTest")


def build(data: Json) -> model.Controller:
    """The Controller that a document declares."""
    spec: Path = ("spec",)
    inherited = value_at(data, *spec, "namespaces")
    return model.Controller(
        name=str(value_at(data, "metadata", "name")),
        resources=tuple(
            _resource(path, item, inherited) for path, item in entries_at(data, *spec, "resources")
        ),
        handlers=tuple(_handler(path, item) for path, item in entries_at(data, *spec, "handlers")),
        plugins=tuple(_plugin(path, item) for path, item in entries_at(data, *spec, "plugins")),
        lifecycle=model.LifecycleSpec(
            startup=_steps(entries_at(data, *spec, "lifecycle", "startup")),
            shutdown=_steps(entries_at(data, *spec, "lifecycle", "shutdown")),
        ),
        reload=_read(model.ReloadSpec, mapping_at(data, *spec, "reload"), _RELOAD, path=(*spec, "reload")),
        admin=_read(model.AdminSpec, mapping_at(data, *spec, "admin"), _ADMIN, path=(*spec, "admin")),
        path=spec,
    )


def _read(kind: Callable[..., _Spec], fields: Mapping[str, Json], table: _Table, **more: object) -> _Spec:
    """The value of the model for the fields that are there."""
    present = {name: read(fields[field]) for field, (name, read) in table.items() if field in fields}
    return kind(**present, **more)


def _resource(path: Path, fields: dict[str, Json], inherited: Json) -> model.ResourceSpec:
    own = "namespaces" in fields
    return _read(
        model.ResourceSpec,
        fields,
        _RESOURCE,
        namespaces=_namespaces(fields["namespaces"] if own else inherited),
        namespaces_inherited=not own and inherited is not None,
        transform=_read(
            model.TransformSpec,
            mapping_at(fields, "transform"),
            _TRANSFORM,
            path=(*path, "transform"),
        ),
        cache=model.CacheMode(str(value_at(fields, "cache", "mode") or model.CacheMode.FRAMES)),
        indexers=tuple(
            _read(model.IndexerSpec, item, _INDEXER, path=(*path, *where))
            for where, item in entries_at(fields, "indexers")
        ),
        path=path,
    )


def _handler(path: Path, fields: dict[str, Json]) -> model.HandlerSpec:
    plugin = value_at(fields, "pluginRef", "name")
    return _read(
        model.HandlerSpec,
        fields,
        _HANDLER,
        resource=str(value_at(fields, "resourceRef", "name")),
        plugin=plugin if isinstance(plugin, str) else None,
        queue=_read(model.QueueSpec, mapping_at(fields, "queue"), _QUEUE),
        retry=_read(model.RetrySpec, mapping_at(fields, "retry"), _RETRY),
        filter=_filter((*path, "filter"), mapping_at(fields, "filter")),
        path=path,
    )


def _filter(path: Path, fields: dict[str, Json]) -> model.FilterSpec | None:
    """None for a filter that lets everything pass."""
    found = _read(model.FilterSpec, fields, _FILTER, path=path)
    return None if found == model.FilterSpec() else found


def _plugin(path: Path, fields: dict[str, Json]) -> model.PluginSpec:
    return _read(
        model.PluginSpec,
        fields,
        _PLUGIN,
        config_from=tuple(
            _read(model.ConfigSource, item, _CONFIG_SOURCE, path=(*path, *where))
            for where, item in entries_at(fields, "configFrom")
        ),
        path=path,
    )


def _steps(entries: Iterable[tuple[Path, dict[str, Json]]]) -> tuple[model.LifecycleStep, ...]:
    """In the order of calling: by `order`, and then as written (Python's sort keeps that)."""
    steps = [_read(model.LifecycleStep, item, _STEP, path=path) for path, item in entries]
    return tuple(sorted(steps, key=lambda step: step.order))


def _namespaces(value: Json) -> tuple[str, ...] | None:
    names = _texts(value)
    return None if not names or names == (_ALL_NAMESPACES,) else names


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(str(item) for item in items_at(value))


def _label_selector(value: Json) -> str:
    selector = (
        LabelSelector.parse(value)
        if isinstance(value, str)
        else LabelSelector.from_mapping(mapping_at(value))
    )
    return str(selector)


def _field_selector(value: str) -> str:
    return str(FieldSelector.parse(value))


def _field_path(value: str) -> str:
    return str(FieldPath.parse(value))


def _paths(value: Json) -> tuple[str, ...]:
    return tuple(sorted({_field_path(text) for text in _texts(value)}))


def _events(value: Json) -> tuple[str, ...]:
    wanted = _texts(value)
    return tuple(event for event in model.ALL_EVENTS if event in wanted)


def _period(value: str) -> float | None:
    """A resource's resync: 0s is the same as none."""
    return parse_duration(value) or None


def _watch(value: Json) -> model.WatchFiles:
    return model.WatchFiles.OFF if value is False else model.WatchFiles(str(value))


def _switch(value: Json) -> bool:
    return value in (True, "On")


_RESOURCE: _Table = {
    "name": ("name", str),
    "apiVersion": ("api_version", str),
    "kind": ("kind", str),
    "names": ("names", _texts),
    "labelSelector": ("label_selector", _label_selector),
    "fieldSelector": ("field_selector", _field_selector),
    "resyncPeriod": ("resync_period", _period),
    "idleTimeout": ("idle_timeout", parse_duration),
}
_TRANSFORM: _Table = {
    "dropFields": ("drop_fields", _paths),
    "entryPoint": ("entry_point", parse_entry_point),
}
_INDEXER: _Table = {
    "name": ("name", str),
    "fieldPath": ("field_path", _field_path),
    "entryPoint": ("entry_point", parse_entry_point),
}
_HANDLER: _Table = {
    "name": ("name", str),
    "entryPoint": ("entry_point", parse_entry_point),
    "events": ("events", _events),
    "initialSync": ("initial_sync", model.InitialSync),
    "resyncPeriod": ("resync_period", parse_duration),
    "delivery": ("delivery", model.Delivery),
    "bufferBytes": ("buffer_bytes", parse_quantity),
    "timeout": ("timeout", parse_duration),
    "onFailure": ("on_failure", model.OnFailure),
    "replay": ("replay", model.Replay),
}
_FILTER: _Table = {
    "labelSelector": ("label_selector", _label_selector),
    "changedPaths": ("changed_paths", _paths),
    "entryPoint": ("entry_point", parse_entry_point),
}
_RELOAD: _Table = {
    "watch": ("watch", _watch),
    "settle": ("settle", parse_duration),
    "drainPolicy": ("drain_policy", model.DrainPolicy),
    "drainTimeout": ("drain_timeout", parse_duration),
    "preflight": ("preflight", _switch),
    "preflightTimeout": ("preflight_timeout", parse_duration),
    "warmTimeout": ("warm_timeout", parse_duration),
    "probationPeriod": ("probation_period", parse_duration),
    "minCalls": ("min_calls", int),
    "maxErrorRatio": ("max_error_ratio", float),
    "informerLinger": ("informer_linger", parse_duration),
}
_ADMIN: _Table = {
    "bindAddress": ("bind_address", parse_address),
    "allowedHosts": ("allowed_hosts", _texts),
}


class Loaded(msgspec.Struct, frozen=True):
    """A manifest without errors; `document` leads from the path of each spec back to the text."""

    controller: Controller
    document: Document
    warnings: tuple[Diagnostic, ...] = ()

    def fault(
        self,
        code: str,
        path: Path,
        message: str,
        *,
        suggestion: str | None = None,
        key: bool = False,
    ) -> Diagnostic:
        """A fault that others have found, located at the value at `path` (or with `key` at its key)."""
        return self.document.fault(code, Place(path, key=key), message, suggestion=suggestion)


class _Candidate(msgspec.Struct, frozen=True):
    """A document that is, or was meant to be, a Controller."""

    source: SourceText
    root: Node


class _Found(msgspec.Struct):
    """What the files of a source hold."""

    candidates: list[_Candidate]
    faults: list[Diagnostic]
    others: list[str]  # kinds that are left alone
    last: SourceText | None = None


def load(source: ManifestSource, *, environ: Mapping[str, str] | None = None) -> Loaded:
    """The Controller of the source; `environ` (by default the process's) is for `${env:NAME}`.

    Raises ManifestErrors with every fault, sorted by position.
    """
    found = _search(source)
    errors = list(found.faults)
    if not found.candidates:
        raise ManifestErrors(in_order(errors or [_nothing_found(source, found)]))
    first, *more = found.candidates
    errors += [_second(first, other) for other in more]
    document = read_document(first.source, first.root, os.environ if environ is None else environ)
    with bounded_suggestions():
        diagnostics = check(document)
    errors += [fault for fault in diagnostics if fault.severity == "error"]
    if errors:
        warnings = [fault for fault in diagnostics if fault.severity == "warning"]
        raise ManifestErrors(in_order([*errors, *warnings]))
    return Loaded(build(document.data), document, in_order(diagnostics))


def _search(source: ManifestSource) -> _Found:
    """All files, one after the other.

    A folder may hold other people's YAML, such as templates: what can't be read there counts only
    if no Controller is elsewhere.
    """
    found = _Found([], [], [])
    doubtful: list[Diagnostic] = []
    for file in source.files:
        faults = _look_into(file, found)
        is_ours = not source.is_folder or _GROUP.encode() in file.data
        (found.faults if is_ours else doubtful).extend(faults)
    if not found.candidates:
        found.faults += doubtful
    return found


def _look_into(file: ManifestSource, found: _Found) -> list[Diagnostic]:
    """Add the documents of one file; what stops the reading is returned."""
    try:
        found.last = decode(file)
        _sort(found.last, found)
    except ManifestErrors as error:
        return [fault for fault in error.diagnostics if isinstance(fault, Diagnostic)]
    except UnreadableYaml as error:
        return [error.diagnostic]
    return []


def _sort(text: SourceText, found: _Found) -> None:
    for root in parse_documents(text):
        fields = {key.text: value for key, value in root.pairs if key.kind == "scalar"}
        kind, version = _text(fields.get("kind")), _text(fields.get("apiVersion"))
        if _is_ours(root, kind=kind, version=version):
            found.candidates.append(_Candidate(text, root))
        elif root.kind != "scalar" or root.text:
            found.others.append(kind or "a document without kind")


def _text(node: Node | None) -> str:
    return node.text if node is not None and node.kind == "scalar" else ""


def _is_ours(root: Node, *, kind: str, version: str) -> bool:
    """Whether a document is a Controller, or so like one that its faults are worth reporting."""
    if root.kind != "mapping" or not root.pairs or kind == "ControllerTest":
        return False
    if not kind and not version:
        return any(key.text in ("spec", "resources", "handlers") for key, _ in root.pairs)
    group = version.partition("/")[0]
    if group == _GROUP:
        return True
    group_is_close = not version or closest(group, [_GROUP]) is not None
    return group_is_close and (not kind or closest(kind, _KINDS) is not None)


def _second(first: _Candidate, other: _Candidate) -> Diagnostic:
    position = next((key.start for key, _ in other.root.pairs if key.text == "kind"), other.root.start)
    line = next((key.start for key, _ in first.root.pairs if key.text == "kind"), first.root.start).line
    message = f"there is a Controller already, at {first.source.name}:{line}, and one process runs one"
    advice = "keep each in a file of its own, and name that file"
    return other.source.fault(codes.SECOND_CONTROLLER, position, message, suggestion=advice)


def _nothing_found(source: ManifestSource, found: _Found) -> Diagnostic:
    text = found.last or SourceText(source.name, "")
    if source.is_folder or found.others:
        seen = f"; found {', '.join(dict.fromkeys(found.others))}" if found.others else ""
        message = f"no document here is a Controller{seen}"
        suggestion = f"begin it with apiVersion: {API_VERSION} and kind: Controller"
        return text.fault(codes.NO_CONTROLLER, Position(1, 1), message, suggestion=suggestion)
    message = "the manifest is empty"
    suggestion = f"begin it with apiVersion: {API_VERSION} and kind: Controller"
    return text.fault(codes.NOT_A_MAPPING, Position(1, 1), message, suggestion=suggestion)
