"""The plugin registry of one generation: all user code, in manifest order, checked against the hooks.

Each generation has a new registry: in a changed one, an edited plugin would lose its place in the order.
pluggy only checks the functions; `of` gives their order.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, Final

import msgspec
import pluggy
from msgspec.structs import replace

from declctl import codes
from declctl.errors import EntryPointError
from declctl.hooks import PROJECT, faults, specs
from declctl.hooks.bundle import Bundle
from declctl.hooks.calls import EventTarget, Implementation, KeyFunction, Predicate, ReconcileTarget

ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    name: tuple(inspect.signature(function).parameters)
    for name, function in vars(specs).items()
    if name.startswith("declctl_")
}
"""The arguments of every hook, in the order of its specification."""

SCHEDULE: Final = "the schedule"
"""Stands for a hook where the function of a schedule is meant. Only a manifest names such functions."""

_GIVEN: Final[Mapping[str, tuple[str, ...]]] = {**ARGUMENTS, SCHEDULE: ("schedule", "ctx")}
_SPECIFIED = {name: pluggy.PluginManager(PROJECT).parse_hookspec_opts(specs, name) for name in ARGUMENTS}
_MARK = f"{PROJECT}_impl"  # the attribute that `hookimpl` sets on a function
_EVENT_HOOKS = ("declctl_event", "declctl_added", "declctl_modified", "declctl_deleted")
_RECONCILE, _FINALIZE = "declctl_reconcile", "declctl_finalize"
# The expressions for values that other frameworks pass as parameters.
_ELSEWHERE: Final[Mapping[str, tuple[str, str]]] = {
    **{name: ("obj", f'obj["{name}"]') for name in ("spec", "status", "metadata")},
    **{name: ("obj", f"obj.{name}") for name in ("name", "namespace", "uid", "labels", "annotations")},
    **{name: ("ctx", f"ctx.{name}") for name in ("log", "memo", "listers", "client", "config")},
    **{name: ("change", f"change.{name}") for name in ("key", "type", "reason")},
    "meta": ("obj", 'obj["metadata"]'),
    "logger": ("ctx", "ctx.log"),
    "obj": ("request", "request.obj"),
    "old": ("request", "request.previous, which needs keepPrevious: true"),
    "change": ("request", "request.causes"),
    "time": ("schedule", "schedule.time"),
}


class PluginRegistry:
    """The implementations of hooks by plugins, in manifest order, with `tryfirst` and `trylast`.

    `add_entry` and `add_plugin` raise EntryPointError for a broken contract, and register nothing then. Used
    in one thread.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._manager = _Manager()
        # By plugin name, in the order of registration.
        self._implementations: dict[str, tuple[Implementation, ...]] = {}
        # By identity: the name of a plugin and the plugin, whose reference keeps the identity unique.
        self._objects: dict[int, tuple[str, object]] = {}
        self._names: dict[tuple[str, bool], str] = {}  # plugin names, by entry point and use as a reconciler
        self._instances: dict[type, Any] = {}  # the only instance of each class that is an entry point

    def add_entry(self, text: str, target: Any, *, reconciles: bool = False) -> str:
        """Register the target of an entry point: a module, a class, an object or a plain function.

        Returns the name of the plugin. A class is instantiated once in a generation. A target that is named
        twice is registered once. A plain function implements `declctl_event` or, with `reconciles`,
        `declctl_reconcile`.
        """
        known = (text, reconciles)
        if known not in self._names:
            self._names[known] = self._add_target(text, target, _RECONCILE if reconciles else _EVENT_HOOKS[0])
        return self._names[known]

    def add_plugin(self, name: str, plugin: object) -> None:
        """Register an object whose marked functions implement hooks. No effect for a known name."""
        if name in self._implementations:
            return
        if id(plugin) in self._objects:
            other, _ = self._objects[id(plugin)]
            raise EntryPointError(
                f"the plugins {name} and {other} are one and the same object",
                code=codes.PLUGIN_LOAD_FAILED,
                suggestion=f"remove {name} or {other} from the manifest",
            )
        self._add(name, plugin, self._members(plugin))

    def discard(self, name: str) -> None:
        """Forget an unusable plugin: none of its hooks is called."""
        self._implementations.pop(name, None)
        self._objects = {key: owner for key, owner in self._objects.items() if owner[0] != name}

    def names(self) -> tuple[str, ...]:
        """The plugin names in the order of registration."""
        return tuple(self._implementations)

    def target(self, name: str) -> EventTarget:
        """The event hooks of a plugin; raises EntryPointError if it has none."""
        listening = tuple(i for i in self._implementations[name] if i.hook in _EVENT_HOOKS)
        if not listening:
            raise EntryPointError(
                f"{name} implements none of {', '.join(_EVENT_HOOKS)}, so that it can't listen",
                code=codes.NO_HOOK,
                suggestion="mark a function of one of these names with @declctl.hookimpl, "
                "or name any function as module:function",
            )
        return EventTarget(listening)

    def reconcile_target(self, name: str) -> ReconcileTarget:
        """The reconcile hooks of a plugin; raises EntryPointError if it has none."""
        reconciling = self.of(_RECONCILE, [name])
        if not reconciling:
            raise EntryPointError(
                f"{name} does not implement {_RECONCILE}, which mode: Reconcile calls",
                code=codes.NO_HOOK,
                suggestion=f"mark a function {_RECONCILE}(request, ctx) with @declctl.hookimpl, "
                "or name any such function as module:function",
            )
        return ReconcileTarget(reconciling)

    def module_hooks(self, hook: str, module: ModuleType) -> tuple[Implementation, ...]:
        """The marked functions of a module for a hook, whether or not the module is a plugin.

        An entry point may be one function of it. Raises EntryPointError for a function of that name without a
        mark.
        """
        # Only these are looked at: the module may be no plugin, and large.
        shown = {
            name: value
            for name, value in list(vars(module).items())
            if inspect.isfunction(value) and hook in (name, _hook_of(name, value))
        }
        functions = [member for member in self._members(_MarkedFunctions(shown)) if member.hook == hook]
        made = [self._implementation(module.__name__, member) for member in functions]
        return tuple(sorted(made, key=lambda i: i.rank))

    def finalize_hooks(
        self, name: str, module: ModuleType | None = None
    ) -> tuple[tuple[Implementation, ...], str]:
        """The finalize hooks of a plugin, and where they were looked for.

        For a plugin that is a plain function, they are those of its `module`. Raises EntryPointError for a
        function of that name without a mark.
        """
        found = self.of(_FINALIZE, [name])
        if found or module is None:
            return found, name
        return self.module_hooks(_FINALIZE, module), module.__name__

    def of(self, hook: str, names: Iterable[str] | None = None) -> tuple[Implementation, ...]:
        """The implementations of a hook, of some plugins or of all, in order."""
        wanted = self._implementations if names is None else dict.fromkeys(names)
        found = [i for name in wanted for i in self._implementations.get(name, ()) if i.hook == hook]
        return tuple(sorted(found, key=lambda i: i.rank))

    def implement(self, hook: str, name: str, function: Callable[..., Any]) -> Implementation:
        """A function that a manifest names for a hook, outside of a plugin. Raises EntryPointError."""
        return implementation(hook, name, function, self._bundle)

    def _add_target(self, text: str, target: Any, hook: str) -> str:
        is_class = inspect.isclass(target)
        if is_class:
            target = self._instance(target, text)
        if id(target) in self._objects:
            return self._objects[id(target)][0]
        members = self._members(target)
        if not members and not is_class and not isinstance(target, ModuleType):
            if not callable(target):
                raise EntryPointError(
                    f"{text} is a {type(target).__name__}, which can't listen",
                    code=codes.UNUSABLE,
                    suggestion="name a module, a class or a function",
                )
            # A function that is itself an entry point and has no mark implements the hook of its mode.
            called = getattr(target, "__name__", "function")
            marked = _marked(called, target)
            members = [marked or _HookFunction(called, hook, target, {})]
        # An installed plugin may have the name of a module beside the manifest.
        name = text if text not in self._implementations else f"{text} (beside the manifest)"
        self._add(name, target, members)
        return name

    def _add(self, name: str, plugin: object, members: "list[_HookFunction]") -> None:
        found = tuple(self._implementation(name, member) for member in members)
        # pluggy sees only the marked functions. They are in a new namespace, as pluggy takes equal plugins
        # for the same one.
        shown = _MarkedFunctions({member.name: member.function for member in members if member.options})
        try:
            self._manager.register(shown, name=name)
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise EntryPointError(f"{name}: {error}", code=codes.UNUSABLE) from error
        self._implementations[name] = found
        self._objects[id(plugin)] = (name, plugin)

    def _members(self, plugin: object) -> "list[_HookFunction]":
        """The marked functions of a plugin, in the order of their definition.

        Raises EntryPointError for a function that has the name of a hook and no mark: it would never be
        called.
        """
        try:
            functions = _functions(plugin)
            for name, function in [(plugin.__name__, plugin)] if inspect.isfunction(plugin) else functions:
                if name in ARGUMENTS and not isinstance(getattr(function, _MARK, None), dict):
                    raise faults.of_function(
                        function,
                        f"{name} has the name of a hook, and is not marked as one",
                        code=codes.NO_HOOK,
                        suggestion="put @declctl.hookimpl above it, or give it another name",
                        bundle=self._bundle,
                    )
            members = [found for name, each in functions if (found := _marked(name, each))]
        except (EntryPointError, KeyboardInterrupt):
            raise
        except BaseException as error:  # user code: a computed attribute may raise
            raise faults.of_import(error, "looking for hooks", self._bundle) from error
        return [m for m in members if m.hook in ARGUMENTS or not m.options.get("optionalhook")]

    def _implementation(self, name: str, member: "_HookFunction") -> Implementation:
        hook, options = member.hook, member.options
        if hook not in ARGUMENTS:
            near = faults.closest(hook, ARGUMENTS)
            code, message = codes.UNKNOWN_HOOK, f"there is no hook {hook!r}"
            advice = f'did you mean "{near}"?' if near else f"the hooks are {', '.join(ARGUMENTS)}"
        elif options.get("wrapper") or options.get("hookwrapper"):
            code = codes.UNUSABLE
            message = f"{hook} of {name} is a wrapper, and each implementation is called by itself"
            advice = "remove wrapper=True"
        else:
            made = implementation(hook, name, member.function, self._bundle)
            return replace(made, rank=0 if options.get("tryfirst") else 2 if options.get("trylast") else 1)
        raise faults.of_function(member.function, message, code=code, suggestion=advice, bundle=self._bundle)

    def _instance(self, kind: type, text: str) -> object:
        if kind not in self._instances:
            try:
                self._instances[kind] = kind()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # user code
                raise faults.of_import(error, f"making {text}", self._bundle) from error
        return self._instances[kind]


class _Manager(pluggy.PluginManager):
    """A pluggy manager that parses each hook specification once, and of a plugin only the marked functions.

    Without this, parsing the specifications takes most of the time of a small import.
    """

    def __init__(self) -> None:
        super().__init__(PROJECT)
        self.add_hookspecs(specs)

    def parse_hookspec_opts(
        self,
        module_or_class: ModuleType | type,  # noqa: ARG002 - the signature of pluggy
        name: str,
    ) -> pluggy.HookspecOpts | None:
        return _SPECIFIED.get(name)

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        return super().parse_hookimpl_opts(plugin, name) if name in vars(plugin) else None


class _MarkedFunctions:
    def __init__(self, functions: dict[str, Callable[..., Any]]) -> None:
        self.__dict__.update(functions)


class _HookFunction(msgspec.Struct, frozen=True):
    """A function that implements a hook, with the options of its mark, if it has one."""

    name: str
    hook: str
    function: Callable[..., Any]
    options: dict[str, Any]


def _hook_of(name: str, function: Callable[..., Any]) -> str:
    """The hook that a function of this name implements; empty for a function without a mark."""
    found = _marked(name, function)
    return "" if found is None else found.hook


def _marked(name: str, function: Callable[..., Any]) -> _HookFunction | None:
    options = getattr(function, _MARK, None)
    if not isinstance(options, dict):
        return None
    return _HookFunction(name, options.get("specname") or name, function, options)


def _functions(plugin: object) -> list[tuple[str, Callable[..., Any]]]:
    """The functions and methods of a module or an object, in the order of their definition."""
    if isinstance(plugin, ModuleType):
        names = list(vars(plugin))
    else:
        # Base classes of an object come first, so that an overridden method keeps its place.
        bases = [kind for kind in reversed(type(plugin).__mro__) if kind is not object]
        found = (name for holder in (*bases, plugin) for name in getattr(holder, "__dict__", {}))
        names = list(dict.fromkeys(found))
    functions: list[tuple[str, Callable[..., Any]]] = []
    for name in names:
        # Properties may compute anything, so they are not read.
        if isinstance(inspect.getattr_static(plugin, name, None), property):
            continue
        value: Any = getattr(plugin, name, None)
        if inspect.isroutine(value):
            functions.append((name, value))
    return functions


def implementation(hook: str, plugin: str, function: Callable[..., Any], bundle: Bundle) -> Implementation:
    """The function as an implementation of the hook.

    A parameter with a default may have any name; `**kwargs` takes every argument. Raises EntryPointError if
    the function takes an argument that the hook does not give, or can't be called as the hook is.
    """
    # An object may have an asynchronous `__call__`.
    called = (function, getattr(function, "__call__", None))  # noqa: B004
    is_async = any(map(inspect.iscoroutinefunction, called))
    name = getattr(function, "__name__", repr(function))
    message = advice = ""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        message = f"{name} is a generator: calling it for {hook} would do nothing"
        advice = "remove the `yield`"
    elif is_async and hook in specs.SYNCHRONOUS:
        message = f"{name} is asynchronous, and {hook} is called where it cannot be awaited"
        advice = "write `def` instead of `async def`"
    if message:
        raise faults.of_function(function, message, code=codes.UNUSABLE, suggestion=advice, bundle=bundle)
    return Implementation(hook, plugin, function, _taken(hook, function, bundle), is_async)


def _taken(hook: str, function: Callable[..., Any], bundle: Bundle) -> tuple[str, ...]:
    """The arguments of the hook that the function takes."""
    known = _GIVEN[hook]
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature: every argument
        return known
    taken: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            taken += [name for name in known if name not in taken]
        elif parameter.kind is parameter.VAR_POSITIONAL:
            continue
        elif parameter.name in known and parameter.kind is not parameter.POSITIONAL_ONLY:
            taken.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise _unknown(hook, function, parameter, bundle)
    return tuple(taken)


def _unknown(
    hook: str, function: Callable[..., Any], parameter: inspect.Parameter, bundle: Bundle
) -> EntryPointError:
    known = _GIVEN[hook]
    listed = ", ".join(known) or "no arguments"
    name = getattr(function, "__name__", repr(function))
    message = f"{name} takes {parameter.name!r}, which {hook} does not give"
    suggestion = f"{_instead_of(parameter.name, known)}{hook} gives {listed}"
    if parameter.name in known:
        message = f"{name} takes {parameter.name!r} by position only, and hooks are given arguments by name"
        suggestion = "remove the `/` from its parameters"
    return faults.of_function(
        function,
        message,
        code=codes.UNKNOWN_PARAMETER,
        suggestion=suggestion,
        bundle=bundle,
        parameter=parameter.name,
    )


def _instead_of(name: str, known: tuple[str, ...]) -> str:
    """A suggestion for a parameter that a hook does not give: the beginning of a sentence, or nothing."""
    parameter, read = _ELSEWHERE.get(name, ("", ""))
    if parameter == "obj" and "obj" not in known:  # a reconciler has it in its request
        parameter, read = "request", f"request.{read}"
    if parameter in known:
        return f'write "{parameter}" and read {read}; '
    near = faults.closest(name, known)
    if near is not None and near[0] == name[0]:
        return f'did you mean "{near}"? '
    # Often the kind of the object, such as pod, or the word of another framework, such as body.
    return 'write "obj" for the object, whatever its kind; ' if "obj" in known else ""


def predicate(name: str, function: Callable[..., Any], bundle: Bundle) -> Predicate:
    """The function of an entry point, as a filter.

    Raises EntryPointError with the place of the function if it is asynchronous, a generator or a class, or
    can't be called with one object.
    """
    called = getattr(function, "__name__", name)
    if inspect.isgeneratorfunction(function):
        message, advice = (
            f"{called} is a generator: calling it decides nothing",
            "write `return`, not `yield`",
        )
        raise faults.of_function(function, message, code=codes.UNUSABLE, suggestion=advice, bundle=bundle)
    _check_one_object(called, function, bundle, what="filter")
    return Predicate(name, function)


def key_function(name: str, function: Callable[..., Any], bundle: Bundle) -> KeyFunction:
    """The function of an entry point, as a mapping from an object to keys. Raises EntryPointError.

    It may be a generator; else as `predicate`.
    """
    _check_one_object(getattr(function, "__name__", name), function, bundle, what="mapping")
    return KeyFunction(name, function)


def _check_one_object(called: str, function: Callable[..., Any], bundle: Bundle, *, what: str) -> None:
    """Raise EntryPointError unless the function can be called with one object, and returns at once."""
    code = codes.UNUSABLE
    # An object may have an asynchronous `__call__`.
    each = (function, getattr(function, "__call__", None))  # noqa: B004
    if inspect.isclass(function):
        message, advice = f"{called} is a class, and a {what} is a function", "write module:function"
    elif any(inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call) for call in each):
        message = f"{called} is asynchronous, and a {what} is called where it cannot be awaited"
        advice = "write `def` instead of `async def`"
    elif not _takes_one(function):
        code = codes.UNKNOWN_PARAMETER
        message = f"{called} can't be called with one argument, and a {what} is given the object alone"
        advice = f"write def {called}(obj)"
    else:
        return
    raise faults.of_function(function, message, code=code, suggestion=advice, bundle=bundle)


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return True
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True
