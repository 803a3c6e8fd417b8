"""The plugin table of one generation: everything foreign, registered with one pluggy manager in manifest order.

A new manager is built for each generation, never changed: registering again would move a plugin to
the front, and so change the order of handlers by editing one of them.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pluggy

from declctl.errors import EntryPointError
from declctl.hooks import faults, specs
from declctl.hooks.bundle import Bundle
from declctl.hooks.calling import EventTarget, Implementation
from declctl.hooks.loading import EntryPoint
from declctl.hooks.markers import PROJECT, hookimpl
from declctl.hooks.signatures import ARGUMENTS, implementation

_EVENT_HOOKS = ("declctl_event", "declctl_added", "declctl_modified", "declctl_deleted")


@dataclass(frozen=True, slots=True)
class _Member:
    """One function of a plugin that is marked as an implementation."""

    hook: str
    function: Callable[..., Any]
    options: dict[str, Any]


class GenerationPlugins:
    """Who implements which hook, in manifest order; `tryfirst` and `trylast` are honoured.

    `add_entry` and `add_plugin` raise EntryPointError for what breaks the contract, and then
    nothing of it is registered.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(specs)
        self._implementations: dict[str, tuple[Implementation, ...]] = {}
        self._ranks: dict[int, int] = {}
        self._instances: dict[type, Any] = {}

    def add_entry(self, entry: EntryPoint) -> str:
        """Register what an entry point names: a module, a class, or a plain function; returns its plugin name.

        A class is instantiated once for the generation. The same entry point twice is registered
        once.
        """
        if entry.text in self._implementations:
            return entry.text
        target = entry.target
        if inspect.isclass(target):
            target = self._instance(target, entry.text)
        elif not isinstance(target, ModuleType) and callable(target):
            self._add(entry.text, _Function(target), [self._of_function(target)])
            return entry.text
        elif not isinstance(target, ModuleType) and not _members(target):
            kind = type(target).__name__
            raise EntryPointError(
                f"{entry.text} is a {kind}, which can't listen",
                code=faults.WRONG_KIND,
                suggestion="name a module, a class or a function",
            )
        self.add_plugin(entry.text, target)
        return entry.text

    def add_plugin(self, name: str, plugin: object) -> None:
        """Register an object whose marked functions implement hooks."""
        if name not in self._implementations:
            self._add(name, plugin, _members(plugin))

    def names(self) -> tuple[str, ...]:
        """The plugins in the order in which they were added."""
        return tuple(self._implementations)

    def target(self, name: str) -> EventTarget:
        """What listens behind a plugin name; raises EntryPointError if nothing does."""
        listening = tuple(i for i in self._implementations[name] if i.hook in _EVENT_HOOKS)
        if not listening:
            raise EntryPointError(
                f"{name} implements none of {', '.join(_EVENT_HOOKS)}, so that it can't listen",
                code=faults.NO_HOOK,
                suggestion="mark a function of one of these names with @declctl.hookimpl",
            )
        return EventTarget(listening)

    def of(self, hook: str, names: Iterable[str] | None = None) -> tuple[Implementation, ...]:
        """The implementations of a hook, of some plugins or of all, in their order."""
        wanted = self._implementations if names is None else dict.fromkeys(names)
        found = [i for name in wanted for i in self._implementations.get(name, ()) if i.hook == hook]
        return tuple(sorted(found, key=lambda i: self._ranks[id(i)]))

    def implement(self, hook: str, name: str, function: Callable[..., Any]) -> Implementation:
        """A function that a manifest names for a hook without being a plugin; raises EntryPointError."""
        made = implementation(hook, name, function, self._bundle)
        self._ranks[id(made)] = 1
        return made

    def _add(self, name: str, plugin: object, members: list[_Member]) -> None:
        found = [self._implementation(name, member) for member in members]
        self._manager.register(plugin, name=name)
        self._manager.check_pending()
        self._implementations[name] = tuple(found)
        for made, member in zip(found, members, strict=True):
            options = member.options
            self._ranks[id(made)] = 0 if options.get("tryfirst") else 2 if options.get("trylast") else 1

    def _implementation(self, name: str, member: _Member) -> Implementation:
        if member.hook not in ARGUMENTS:
            near = faults.closest(member.hook, ARGUMENTS)
            raise self._fault(
                member,
                f"there is no hook {member.hook!r}",
                code=faults.UNKNOWN_HOOK,
                suggestion=f'did you mean "{near}"?' if near else f"the hooks are {', '.join(ARGUMENTS)}",
            )
        if member.hook in specs.NOT_YET:
            message = f"this version does not call {member.hook} yet"
            raise self._fault(
                member, message, code=faults.HOOK_NOT_YET, suggestion=specs.NOT_YET[member.hook]
            )
        if member.options.get("wrapper") or member.options.get("hookwrapper"):
            message = f"{member.hook} of {name} is a wrapper, and each implementation is called by itself"
            raise self._fault(member, message, code=faults.WRONG_KIND, suggestion="remove wrapper=True")
        return implementation(member.hook, name, member.function, self._bundle)

    def _fault(self, member: _Member, message: str, *, code: str, suggestion: str) -> EntryPointError:
        return faults.of_function(
            member.function, message, code=code, suggestion=suggestion, bundle=self._bundle
        )

    def _of_function(self, function: Callable[..., Any]) -> _Member:
        options = getattr(function, f"{PROJECT}_impl", None)
        if options is None:
            return _Member("declctl_event", function, {})
        return _Member(options.get("specname") or getattr(function, "__name__", ""), function, options)

    def _instance(self, kind: type, text: str) -> object:
        if kind not in self._instances:
            try:
                self._instances[kind] = kind()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                raise faults.of_import(error, f"{text}()", self._bundle) from error
        return self._instances[kind]


class _Function:
    """Carries a plain function as the plugin that pluggy registers."""

    def __init__(self, function: Callable[..., Any]) -> None:
        def declctl_event(change: object, obj: object, old: object, ctx: object) -> object:
            given = {"change": change, "obj": obj, "old": old, "ctx": ctx}
            names = inspect.signature(function).parameters
            return function(**{name: value for name, value in given.items() if name in names})

        self.declctl_event = hookimpl(declctl_event)


def _members(plugin: object) -> list[_Member]:
    """The marked functions of a plugin, in the order in which they are defined."""
    members: list[_Member] = []
    names = vars(plugin) if isinstance(plugin, ModuleType) else dir(plugin)
    for name in names:
        function = getattr(plugin, name, None)
        options = getattr(function, f"{PROJECT}_impl", None) if inspect.isroutine(function) else None
        if isinstance(options, dict):
            members.append(_Member(options.get("specname") or name, function, options))
    return members
