"""The user code of one generation: imported, checked, and ready to be called.

`load_code` imports what a `Declaration` names. It finds all faults at once, and returns no code if one is an
error. `RegistrationWatch` notes the logging handlers and exit functions that an import registers in the
process.
"""

import atexit
import json
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import msgspec

from declctl import codes
from declctl.decoding.decoders import Transform
from declctl.errors import EntryPointError, HandlerFailed
from declctl.hooks import faults as hook_faults
from declctl.hooks.calls import (
    HookTarget,
    Implementation,
    KeyFunction,
    ReconcileTarget,
    call,
    end_of_traceback,
    without_prefix,
)
from declctl.hooks.loader import CodeTrace, GenerationNamespace
from declctl.hooks.plugin_config import (
    UNQUOTE,
    ConfigFault,
    PluginConfigError,
    check_config,
    faults_of_hook,
    with_known_later,
    without_known_later,
)
from declctl.hooks.plugins import find, load, loaded_version, require_loaded
from declctl.hooks.registry import SCHEDULE, PluginRegistry, Predicate, key_function, predicate
from declctl.kit import yield_interpreter
from declctl.kit.documents import document_of
from declctl.kit.text import exception_text
from declctl.objects import KubeObject, ObjectView
from declctl.objects.custom_resource import custom_resource_of
from declctl.objects.typed import Object, typed_fields
from declctl.runtime.checking.declaration import (
    CodeRule,
    Declaration,
    DeclaredEntry,
    DeclaredPlugin,
    Fault,
    FromHooks,
)
from declctl.runtime.checking.rules import rules_of

if TYPE_CHECKING:
    from declctl.hooks.metrics import MetricsRegistry
    from declctl.objects.structural import SchemaFault

_RBAC, _METRICS, _COMMANDS = "declctl_rbac", "declctl_metrics", "declctl_commands"
# Hooks that a process of an isolated handler does not call, and whose effects its hooks may rely on.
_OUTSIDE_OF_CHILDREN = (
    *("declctl_startup", "declctl_prepare", "declctl_shutdown", "declctl_teardown"),
    *("declctl_export_state", "declctl_import_state", _METRICS),
)
READY, DISABLED = "Ready", "Disabled"
IndexFunction = Callable[[ObjectView], Iterable[str]]


class Registrations(msgspec.Struct, frozen=True):
    """Registrations in the process during an import. They do not show which code made them."""

    handlers: tuple[weakref.ref[logging.Handler], ...] = ()  # of the root logger
    at_exit: bool = False  # functions were registered with `atexit`, which only counts them

    @property
    def attached(self) -> list[logging.Handler]:
        """The handlers that the root logger still has."""
        there = logging.getLogger().handlers
        return [handler for made in self.handlers if (handler := made()) is not None and handler in there]


class RegistrationWatch:
    """Notes registrations from its making to `registrations`, also those of other code."""

    def __init__(self) -> None:
        self._handlers = tuple(logging.getLogger().handlers)  # at the begin
        self._at_exit = _registered_at_exit()  # at the begin

    def registrations(self) -> Registrations:
        """The registrations since the begin."""
        new = [handler for handler in logging.getLogger().handlers if handler not in self._handlers]
        return Registrations(tuple(map(weakref.ref, new)), _registered_at_exit() > self._at_exit)


def _registered_at_exit() -> int:
    """The number of functions that Python calls at exit; 0 if this Python does not count them."""
    count = getattr(atexit, "_ncallbacks", None)
    return count() if count is not None else 0


class LoadedIndexer(msgspec.Struct, frozen=True):
    """An index function with its origin."""

    name: str
    origin: str  # an entry point or the name of a plugin
    function: IndexFunction


class LoadedPlugin(msgspec.Struct, frozen=True):
    """An installed plugin in a generation."""

    name: str
    version: str
    state: str  # READY or DISABLED
    reason: str | None = None  # why it is disabled
    suggestion: str | None = None  # what to do about that
    traceback: str | None = None  # its end, if the plugin has raised

    def document(self) -> dict[str, Any]:
        """As `status` shows it."""
        return document_of(self, without=("suggestion", "traceback"))


class LoadedCode:
    """All user code that a generation calls. It is built once, and read by any thread."""

    def __init__(self, namespace: GenerationNamespace, registry: PluginRegistry) -> None:
        self._namespace = namespace
        self._registry = registry
        self._steps: dict[str, list[Implementation]] = {}  # of `spec.lifecycle`, by their hook
        # By the name of the handler.
        self.targets: dict[str, HookTarget] = {}
        self.configs: dict[str, Mapping[str, Any]] = {}  # of handlers that are plugins
        self.filters: dict[str, Predicate] = {}  # and by the name of a declared watch of a reconciler
        self.mappings: dict[str, KeyFunction] = {}  # by the name of a declared watch of a reconciler
        self.schedules: dict[str, Implementation] = {}  # by the name of the schedule
        # By the name of the plugin, also of plugins that could not be loaded.
        self.plugin_configs: dict[str, Mapping[str, Any]] = {}
        # By the name of the resource: from the manifest and from hooks.
        self.types: dict[str, type[Object[Any, Any]]] = {}  # classes of the objects
        self.transforms: dict[str, Transform] = {}  # several are composed, in the order of the manifest
        self.indexers: dict[str, list[LoadedIndexer]] = {}
        self.from_hooks = FromHooks()  # those of them that are from hooks
        self.plugins: list[LoadedPlugin] = []  # in the order of the manifest
        self.registrations = Registrations()  # by its import
        self.installed: dict[str, tuple[object, str]] = {}  # ready plugins: object, version with config
        self.metrics: dict[str, MetricsRegistry] = {}  # by plugin or module, those with `declctl_metrics`

    @property
    def versions(self) -> str:
        """Names, versions and configs of the ready plugins, as one text for a digest."""
        return ";".join(f"{name} {stamp}" for name, (_, stamp) in self.installed.items())

    @property
    def disabled(self) -> Sequence[LoadedPlugin]:
        """The plugins that could not be loaded and are left out (`onError: Disable`)."""
        return [plugin for plugin in self.plugins if plugin.state == DISABLED]

    def same_plugins(self, other: "LoadedCode") -> frozenset[str]:
        """The installed plugins that both share as one object, with the same version and config."""
        theirs = other.installed
        return frozenset(
            name
            for name, (plugin, stamp) in self.installed.items()
            if name in theirs and theirs[name][0] is plugin and theirs[name][1] == stamp
        )

    def reconfigured(self, other: "LoadedCode") -> frozenset[str]:
        """The installed plugins that both share as one object, with another version or config."""
        same, theirs = self.same_plugins(other), other.installed
        return frozenset(
            name
            for name, (plugin, _) in self.installed.items()
            if name in theirs and theirs[name][0] is plugin and name not in same
        )

    def lifecycle(self, hook: str) -> tuple[Implementation, ...]:
        """The implementations of a life-cycle hook, in the order of their calls.

        Plugins and handler files come first, in manifest order; then the steps of `spec.lifecycle`.
        """
        return (*self._registry.of(hook), *self._steps.get(hook, ()))

    def view_of(self, resource: str) -> type[ObjectView]:
        """The class of the objects of a resource that its handlers and listers make."""
        return self.types.get(resource, ObjectView)

    def add_step(self, hook: str, implementation: Implementation) -> None:
        """Add a step of `spec.lifecycle`."""
        self._steps.setdefault(hook, []).append(implementation)

    def share(self) -> None:
        """Make its modules importable in processes that its code starts. Blocks."""
        self._namespace.share()

    def trace(self) -> CodeTrace:
        """A trace that shows later whether the code was freed."""
        return self._namespace.trace()

    def close(self) -> None:
        """Remove the modules of the generation from the process."""
        self._namespace.close()


def load_code(
    declaration: Declaration,
    *,
    number: int,
    at: Callable[[int], object] = lambda _: None,
    at_plugin: Callable[[int], object] = lambda _: None,
    known: Sequence[LoadedCode] = (),
) -> tuple[LoadedCode | None, Sequence[Fault]]:
    """Import and check the declared code for generation `number`. Blocks.

    Returns None and the faults if one of them is an error. `at_plugin` is called with the index of each
    plugin before its import, and `at` with that of each entry. Between two entries the interpreter lock is
    yielded. An installed plugin that `known` code has as the same object keeps its metrics.
    """
    builder = _Builder(declaration, number, known)
    builder.plugins(at_plugin)
    for index, entry in enumerate(declaration.entries):
        yield_interpreter()
        at(index)
        builder.entry(entry)
    # Last: the entries have added plugins and files to the registry.
    builder.hooks_of_resources()
    if declaration.asks_definitions:
        builder.definitions()
    if declaration.asks_rights:
        builder.rules()
    else:
        builder.metrics()
    if any(fault.severity == "error" for fault in builder.faults):
        builder.loaded_code.close()
        return None, builder.faults
    return builder.loaded_code, builder.faults


_OF_IMPORTS = frozenset({codes.HANDLER_SYNTAX, codes.IMPORT_RAISED, codes.IMPORT_EXITED})


class _Builder:
    def __init__(self, declaration: Declaration, number: int, known: Sequence[LoadedCode]) -> None:
        self._declaration = declaration
        self._known = known  # the code of generations that live
        self._namespace = GenerationNamespace(number, declaration.bundle)
        self._registry = PluginRegistry(declaration.bundle)
        self._serving: dict[str, list[str]] = {}  # resource → plugin names of its handlers
        self._disabled: dict[str, str] = {}  # plugin → reason
        self._wanted_indexes: list[DeclaredEntry] = []  # that a hook has to declare
        self._defined: list[type[Object[Any, Any]]] = []  # of `declctl generate crd`
        self._metric_names: dict[str, str] = {}  # name of a metric → plugin or module
        self.loaded_code = LoadedCode(self._namespace, self._registry)
        self.faults: list[Fault] = []

    def plugins(self, at: Callable[[int], object]) -> None:
        for index, declared in enumerate(self._declaration.plugins):
            at(index)
            config = cast("dict[str, Any]", json.loads(declared.config))
            self.loaded_code.plugin_configs[declared.name] = config
            try:
                version = self._plugin(declared, config)
            except EntryPointError as error:
                self._not_loaded(declared, error)
            except PluginConfigError as error:
                self.faults += [_config_fault(declared, fault) for fault in error.faults]
            else:
                self.loaded_code.plugins.append(LoadedPlugin(declared.name, version, READY))

    def _not_loaded(self, declared: DeclaredPlugin, error: EntryPointError) -> None:
        """Report a plugin as an error or, with `onError: Disable`, as a warning, and leave it out.

        A plugin that `--no-plugins` leaves out is a warning in any case: the user has asked for it.
        """
        fault = Fault.of(error, (*declared.path, "name"))
        if error.code == codes.PLUGIN_LEFT_OUT:
            fault = msgspec.structs.replace(
                fault, message=f"{fault.message}; its handlers are not called", severity="warning"
            )
        elif declared.disable_on_error:
            left_out = f"{fault.message}; it is left out (onError: Disable), and its handlers are not called"
            fault = msgspec.structs.replace(fault, message=left_out, severity="warning")
        self.faults.append(fault)
        # Handlers that name a disabled plugin are loaded without a function to call.
        self._disabled[declared.name] = error.message
        self._registry.discard(declared.name)
        self.loaded_code.plugins.append(
            LoadedPlugin(declared.name, "", DISABLED, error.message, error.suggestion, error.traceback)
        )

    def _plugin(self, declared: DeclaredPlugin, config: Mapping[str, Any]) -> str:
        found = find(declared.name, declared.version)
        plugin = load(found)
        # Python imports a distribution once: after an upgrade, the older version may still be loaded.
        require_loaded(found, declared.version)
        version = loaded_version(found)  # an installed newer one needs a new process
        try:
            self._registry.add_plugin(declared.name, plugin)
            for implementation in self._registry.of("declctl_config_schema", [declared.name]):
                schema = _called(implementation, {}, code=codes.PLUGIN_LOAD_FAILED)
                if not self._declaration.asks_rights:
                    check_config(schema, config, known_later=[each.name for each in declared.unread])
            if self._declaration.checks_configs:
                self._check_by_hook(declared, config)
            if not self._declaration.asks_rights:
                hooks = self._registry.of(_METRICS, [declared.name])
                if hooks:
                    self._metrics_of(hooks, declared.name, is_plugin=True)
        except EntryPointError as error:
            # The message is about a function of the plugin, and may not name the plugin.
            error.message = f"{found.described}: {error.message}"
            raise
        self.loaded_code.installed[declared.name] = (plugin, f"{version} {declared.config}")
        return version

    def _check_by_hook(self, declared: DeclaredPlugin, config: Mapping[str, Any]) -> None:
        """Add the faults that a plugin finds in its own config. Raises EntryPointError."""
        known_later = [each.name for each in declared.unread]
        complete = with_known_later(config, known_later)
        arguments = {"config": complete, "resources": self._declaration.resources}
        for implementation in self._registry.of("declctl_check_config", [declared.name]):
            try:
                returned = _called(implementation, arguments, code=codes.PLUGIN_LOAD_FAILED)
            except EntryPointError:
                if known_later:
                    continue  # it may have raised because of the text that stands for a value
                raise
            for found in without_known_later(faults_of_hook(returned), known_later):
                fault = _config_fault(declared, found)
                self.faults.append(msgspec.structs.replace(fault, severity=found.severity))

    def _add_once(self, fault: Fault) -> None:
        """Add a fault; that of a module only once, whichever modules import it."""
        place = fault.code, fault.file, fault.line, fault.column
        known = ((each.code, each.file, each.line, each.column) for each in self.faults)
        if fault.file is None or fault.code not in _OF_IMPORTS or place not in known:
            self.faults.append(fault)

    def entry(self, entry: DeclaredEntry) -> None:
        try:
            if entry.use in ("handler", "reconciler"):
                self._handler(entry, reconciles=entry.use == "reconciler")
            elif entry.use == "finalizer":
                self._finalizer(entry)
            elif entry.use == "index":
                self._wanted_indexes.append(entry)
            elif entry.use == "mapping":
                made = key_function(str(entry.entry_point), self._function(entry), self._declaration.bundle)
                self.loaded_code.mappings[entry.name] = made
            elif entry.use == "filter":
                found = predicate(str(entry.entry_point), self._function(entry), self._declaration.bundle)
                self.loaded_code.filters[entry.name] = found
            elif entry.use == "type":
                self.loaded_code.types[entry.resource] = self._class(entry)
            elif entry.use == "definition":
                self._defined.append(self._custom_class(entry))
            elif entry.use == "transform":
                self._compose(entry.resource, self._function(entry))
            elif entry.use == "indexer":
                function = self._function(entry)
                self._add_indexer(entry.resource, LoadedIndexer(entry.name, str(entry.entry_point), function))
            elif entry.use == "schedule":
                made = self._registry.implement(SCHEDULE, str(entry.entry_point), self._function(entry))
                self.loaded_code.schedules[entry.name] = made
            else:
                # The function may take ctx or nothing, as the hook of that name does.
                hook = f"declctl_{entry.use}"
                made = self._registry.implement(hook, str(entry.entry_point), self._function(entry))
                self.loaded_code.add_step(hook, made)
        except EntryPointError as error:
            self._add_once(Fault.of(error, entry.path))

    def _handler(self, entry: DeclaredEntry, *, reconciles: bool) -> None:
        if entry.plugin is not None:
            name = entry.plugin
            if name in self._disabled:
                make = ReconcileTarget if reconciles else HookTarget
                self.loaded_code.targets[entry.name] = make((), disabled=self._disabled[name])
                return
            if name not in self._registry.names():
                return  # its fault is reported where the manifest lists the plugin
            self.loaded_code.configs[entry.name] = self.loaded_code.plugin_configs.get(name, {})
        else:
            text = str(entry.entry_point)
            name = self._registry.add_entry(text, self._namespace.resolve(text), reconciles=reconciles)
        find = self._registry.reconcile_target if reconciles else self._registry.target
        self.loaded_code.targets[entry.name] = find(name)
        if reconciles and self._registry.of("declctl_finalize", [name]) and not self._has_finalizer(entry):
            self.faults.append(
                Fault(
                    codes.NO_HOOK,
                    f"{name} implements declctl_finalize, which is never called: the handler {entry.name} "
                    "has no finalizer",
                    entry.path,
                    "add one to the handler, such as finalizer: example.dev/webapp, or remove the hook",
                    severity="warning",
                )
            )
        outside = [hook for hook in _OUTSIDE_OF_CHILDREN if self._registry.of(hook, [name])]
        if entry.isolated and outside:
            self.faults.append(
                Fault(
                    codes.OUTSIDE_OF_CHILDREN,
                    f"{name} implements {', '.join(outside)}, called in the main process: the processes of "
                    f"the isolated handler {entry.name} do not see what it sets",
                    entry.path,
                    "make what its hooks need at the first use of it, in the hook",
                    severity="warning",
                )
            )
        # Resource hooks are called once for each plugin, also if it has several handlers for the resource.
        serving = self._serving.setdefault(entry.resource, [])
        if name not in serving:
            serving.append(name)

    def _has_finalizer(self, entry: DeclaredEntry) -> bool:
        return any(each.use == "finalizer" and each.name == entry.name for each in self._declaration.entries)

    def _finalizer(self, entry: DeclaredEntry) -> None:
        """Add the finalize hooks to the target of a reconciler, whose own entry comes before this one."""
        target = self.loaded_code.targets.get(entry.name)
        if not isinstance(target, ReconcileTarget) or target.disabled:
            return  # the fault is reported where the manifest names the code
        name, module = str(entry.plugin), None
        if entry.entry_point is not None:
            code = self._namespace.resolve(entry.entry_point)
            name = self._registry.add_entry(entry.entry_point, code, reconciles=True)
            if not isinstance(code, ModuleType | type):  # a function: its module has the hook
                module = self._namespace.module(entry.entry_point.partition(":")[0])
        finalizing, where = self._registry.finalize_hooks(name, module)
        if not finalizing:
            raise EntryPointError(
                f"{without_prefix(where)} does not implement declctl_finalize, which a handler with a "
                "finalizer has to have",
                code=codes.NO_HOOK,
                suggestion="write a function declctl_finalize(request, ctx) there, marked with "
                "@declctl.hookimpl, or remove the finalizer",
            )
        self.loaded_code.targets[entry.name] = ReconcileTarget(target.reconciling, finalizing)

    def _function(self, entry: DeclaredEntry) -> Callable[..., Any]:
        target = self._namespace.resolve(str(entry.entry_point))
        if not callable(target):
            raise EntryPointError(
                f"{entry.entry_point} is a {type(target).__name__}, and a function is wanted here",
                code=codes.UNUSABLE,
                suggestion="write module:function",
            )
        return target

    def _class(self, entry: DeclaredEntry) -> type[Object[Any, Any]]:
        """The class of typed objects of a resource, whose types can be read."""
        found, text = self._namespace.resolve(str(entry.entry_point)), str(entry.entry_point)
        if not isinstance(found, type) or not issubclass(found, Object):
            what = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
            raise EntryPointError(
                f"{text} is {what}, and a class that derives from declctl.Object is wanted here",
                code=codes.UNUSABLE,
                suggestion="write class Name(declctl.Object[Spec, Status]), and name it here",
            )
        for each in typed_fields(found):
            try:
                each.check()
            except Exception as fault:
                raise EntryPointError(
                    f"{text}: {each.name} can't be read from JSON: {exception_text(fault)}",
                    code=codes.UNREADABLE_TYPE,
                    suggestion="use structs, dataclasses, TypedDicts, models of pydantic, and types of JSON",
                ) from fault
        return cast("type[Object[Any, Any]]", found)

    def _custom_class(self, entry: DeclaredEntry) -> type[Object[Any, Any]]:
        """A class that declares a custom resource."""
        found = self._class(entry)
        if custom_resource_of(found) is None:
            raise hook_faults.of_class(
                found,
                "",
                f"{entry.entry_point} declares no custom resource",
                code=codes.NO_DEFINITION,
                suggestion='decorate it: @declctl.custom_resource("acme.dev/v1", plural="…")',
                bundle=self._declaration.bundle,
            )
        return found

    def definitions(self) -> None:
        """Make the definitions of all custom resources; other versions of a kind are beside its class."""
        from declctl.objects.definitions import definitions_of, versions_beside  # late: few checks ask for it
        from declctl.objects.rule_checks import INSTALL, are_unchecked, unchecked
        from declctl.objects.structural import SchemaErrors

        typed = [each for each in self.loaded_code.types.values() if custom_resource_of(each) is not None]
        classes = [version for each in (*self._defined, *typed) for version in versions_beside(each)]
        try:
            made = definitions_of(classes)
        except SchemaErrors as error:
            self.faults += [self._schema_fault(each) for each in error.faults]
            return
        kinds = [each["spec"]["names"]["kind"] for each in made if are_unchecked(each)]
        if kinds:
            resources = [(each, custom_resource_of(each)) for each in classes]
            cls = next(each for each, of in resources if of is not None and of.kind == kinds[0])
            message, bundle = unchecked(" and ".join(kinds)), self._declaration.bundle
            located = hook_faults.of_class(
                cls, "", message, code=codes.UNCHECKED_RULES, suggestion=INSTALL, bundle=bundle
            )
            fault = Fault.of(located, self._path_of_types())
            self.faults.append(msgspec.structs.replace(fault, severity="warning"))
        found = self.loaded_code.from_hooks
        self.loaded_code.from_hooks = msgspec.structs.replace(found, definitions=tuple(map(dict, made)))

    def _schema_fault(self, fault: "SchemaFault") -> Fault:
        message, bundle = f"{fault.path}: {fault.message}", self._declaration.bundle
        cls = fault.cls if fault.cls is not None else Object
        located = hook_faults.of_class(
            cls,
            fault.field,
            message,
            code=codes.NO_DEFINITION,
            suggestion=fault.suggestion,
            bundle=bundle,
            text=fault.text,
        )
        return Fault.of(located, self._path_of_types())

    def _path_of_types(self) -> tuple[str | int, ...]:
        return next(
            (each.path for each in self._declaration.entries if each.use in ("type", "definition")), ()
        )

    def hooks_of_resources(self) -> None:
        for resource, names in self._serving.items():
            path = next((e.path for e in self._declaration.entries if e.resource == resource), ())
            # The transform of the manifest comes first: hooks receive its result.
            for implementation in self._registry.of("declctl_transform", names):
                self._compose(resource, _transform_of(implementation, resource))
                _append(self.loaded_code.from_hooks.transforms, resource, implementation.plugin)
            for implementation in self._registry.of("declctl_indexers", names):
                try:
                    self._indexers_of(implementation, resource)
                except EntryPointError as error:
                    self.faults.append(Fault.of(error, path))
        for wanted in self._wanted_indexes:
            known = [each.name for each in self.loaded_code.indexers.get(wanted.resource, ())]
            if wanted.name not in known:
                similar = get_close_matches(wanted.name, [*wanted.others, *known], n=1)
                meant = f'did you mean "{similar[0]}"? Otherwise ' if similar else ""
                self.faults.append(
                    Fault(
                        codes.UNKNOWN_REFERENCE,
                        f"there is no index {wanted.name!r} of {wanted.resource}",
                        wanted.path,
                        f"{meant}add it to the indexers of {wanted.resource} in spec.resources",
                    )
                )

    def _metrics_of(self, hooks: Sequence[Implementation], owner: str, *, is_plugin: bool = False) -> None:
        """Call `declctl_metrics`, unless the same functions have made metrics for a generation that lives.

        They are the same if their module is installed: then it is shared, and a second call would replace
        metrics that are in use. Raises EntryPointError.
        """
        from declctl.hooks.metrics import MetricsRegistry  # late: most code has no metrics

        functions = tuple(hook.function for hook in hooks)
        used = (code.metrics.get(owner) for code in self._known)
        registry = next((each for each in used if each is not None and each.made_by == functions), None)
        try:
            if registry is not None:
                registry.claim(self._metric_names)
            else:
                registry = MetricsRegistry(owner, self._metric_names, functions, is_plugin=is_plugin)
                for hook in hooks:
                    call(hook, {"registry": registry})
        except (ValueError, HandlerFailed) as failure:
            # A plugin that is left out has no names.
            for name in [name for name, other in self._metric_names.items() if other == owner]:
                del self._metric_names[name]
            raised = failure.__cause__ or failure
            raise hook_faults.of_metrics(raised, owner, self._declaration.bundle) from failure
        self.loaded_code.metrics[owner] = registry

    def metrics(self) -> None:
        """Call `declctl_metrics` of the handler files. That of a plugin was called when it was loaded."""
        for origin, hooks in self._in_files(_METRICS).items():
            # A module may have the name of an installed plugin.
            owner = f"{origin} (beside the manifest)" if origin in self.loaded_code.metrics else origin
            try:
                self._metrics_of(hooks, owner)
            except EntryPointError as error:
                self.faults.append(Fault.of(error, self._path_of(origin)))
        for origin in self._in_files(_COMMANDS):
            self.faults.append(
                Fault(
                    codes.NO_HOOK,
                    f"{origin} implements declctl_commands, which is never called there: the command line "
                    "knows no manifest",
                    self._path_of(origin),
                    "move it into an installed plugin (`declctl new plugin`), or remove it",
                    severity="warning",
                )
            )

    def _in_files(self, hook: str) -> Mapping[str, Sequence[Implementation]]:
        """As `_everywhere`, without installed plugins, by entry point or module."""
        plugins = {declared.name for declared in self._declaration.plugins}
        found: dict[str, list[Implementation]] = {}
        for each, origin in self._everywhere(hook):
            if each.plugin not in plugins:
                found.setdefault(origin, []).append(each)
        return found

    def _everywhere(self, hook: str) -> list[tuple[Implementation, str]]:
        """The implementations of a hook: of plugins, of entry points, and of the modules of functions.

        Each with the name of the plugin, the entry point or the module.
        """
        found = list(self._registry.of(hook))
        try:
            for module in dict.fromkeys(
                entry.entry_point.partition(":")[0]
                for entry in self._declaration.entries
                if entry.entry_point is not None and ":" in entry.entry_point
            ):
                found += self._registry.module_hooks(hook, self._namespace.module(module))
        except EntryPointError as error:
            # Its import has failed before, and that is reported already.
            if not any(fault.severity == "error" for fault in self.faults):
                self.faults.append(Fault.of(error, ()))
        # A module may be an entry point itself, and have one that is a function.
        return [(each, without_prefix(each.plugin)) for each in {i.function: i for i in found}.values()]

    def rules(self) -> None:
        """Call the hooks `declctl_rbac`: of plugins, of entry points, and of the modules of functions."""
        rules: list[CodeRule] = []
        for implementation, origin in self._everywhere(_RBAC):
            served = tuple(
                resource
                for resource, names in self._serving.items()
                if any(name == origin or name.partition(":")[0] == origin for name in names)
            )
            try:
                returned = _called(implementation, {}, code=codes.PLUGIN_LOAD_FAILED)
                rules += rules_of(returned, origin, served)
            except EntryPointError as error:
                self.faults.append(Fault.of(error, self._path_of(origin)))
        self.loaded_code.from_hooks = msgspec.structs.replace(self.loaded_code.from_hooks, rules=tuple(rules))

    def _path_of(self, origin: str) -> tuple[str | int, ...]:
        """The place of the manifest that names a plugin or a module."""
        for entry in self._declaration.entries:
            if origin in (entry.plugin, entry.entry_point, (entry.entry_point or "").partition(":")[0]):
                return entry.path
        return next((plugin.path for plugin in self._declaration.plugins if plugin.name == origin), ())

    def _indexers_of(self, implementation: Implementation, resource: str) -> None:
        declared = _called(implementation, {"resource": resource}, code=codes.BAD_INDEX_DECLARATION)
        if not isinstance(declared, Mapping):
            raise EntryPointError(
                f"declctl_indexers of {implementation.plugin} returned a {type(declared).__name__}",
                code=codes.BAD_INDEX_DECLARATION,
                suggestion="return a mapping of names to functions",
            )
        for name, function in cast("Mapping[Any, Any]", declared).items():
            if not isinstance(name, str) or not callable(function):
                raise EntryPointError(
                    f"declctl_indexers of {implementation.plugin} has {name!r}: {type(function).__name__}",
                    code=codes.BAD_INDEX_DECLARATION,
                    suggestion="return a mapping of names to functions",
                )
            self._add_indexer(
                resource, LoadedIndexer(name, implementation.plugin, cast("IndexFunction", function))
            )
            _append(self.loaded_code.from_hooks.indexers, resource, name)

    def _add_indexer(self, resource: str, indexer: LoadedIndexer) -> None:
        # Listers find an index by its name alone, so a second one would hide the first.
        indexers = self.loaded_code.indexers.setdefault(resource, [])
        other = next((i for i in indexers if i.name == indexer.name), None)
        if other is not None:
            raise EntryPointError(
                f"the index {indexer.name!r} of {resource} is declared by {other.origin} "
                f"and by {indexer.origin}",
                code=codes.BAD_INDEX_DECLARATION,
                suggestion="give one of them another name",
            )
        indexers.append(indexer)

    def _compose(self, resource: str, then: Transform) -> None:
        first = self.loaded_code.transforms.get(resource)
        self.loaded_code.transforms[resource] = then if first is None else _in_order(first, then)


def _config_fault(declared: DeclaredPlugin, fault: ConfigFault) -> Fault:
    """The fault of a config, at its place in the manifest, or in the file that `configFrom` names."""
    message = f"{declared.name}: {fault.where}: {fault.message}"
    source = next((each for each in declared.sources if fault.path[:1] == (each.name,)), None)
    if source is None:
        # Without a config in the manifest, the place is the name of the plugin: not its key, its value.
        at_key = fault.at_key and declared.config_path[-1] == "config"
        path = (*declared.config_path, *fault.path)
        return Fault(codes.PLUGIN_CONFIG, message, path, fault.suggestion, key=at_key)
    if fault.is_unknown:
        return Fault(codes.PLUGIN_CONFIG, message, (*source.path, "name"), fault.suggestion)
    suggestion = fault.suggestion
    if suggestion == UNQUOTE:  # the source has no quotes
        suggestion = "a value of configFrom is always text: write it under config, or ask the plugin for text"
    if source.secret is not None:
        where = f"of the key {source.secret.key} of the Secret {source.secret.name}"
        return Fault(codes.PLUGIN_CONFIG, f"{message} ({where})", (*source.path, "secretKeyRef"), suggestion)
    if source.file is None:
        return Fault(
            codes.PLUGIN_CONFIG,
            f"{message} (of the variable {source.env})",
            (*source.path, "env"),
            suggestion,
        )
    # The whole file is the value, so that every fault of it begins with its first character.
    return Fault(codes.PLUGIN_CONFIG, message, source.path, suggestion, source.file, 1, 1)


def _append(lists: dict[str, tuple[str, ...]], name: str, value: str) -> None:
    lists[name] = (*lists.get(name, ()), value)


def _in_order(first: Transform, then: Transform) -> Transform:
    def both(obj: KubeObject) -> KubeObject | None:
        between = first(obj)
        return None if between is None else then(between)

    return both


def _transform_of(implementation: Implementation, resource: str) -> Transform:
    def transform(obj: KubeObject) -> KubeObject | None:
        return call(implementation, {"obj": obj, "resource": resource})

    return transform


def _called(implementation: Implementation, arguments: Mapping[str, object], *, code: str) -> Any:
    try:
        return call(implementation, arguments)
    except HandlerFailed as failure:
        raised = failure.__cause__ or failure
        raise EntryPointError(str(failure), code=code, traceback=end_of_traceback(raised)) from failure
