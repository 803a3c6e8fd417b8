"""The plugin table of one generation: everything foreign, in manifest order.

A new pluggy manager is built for each generation, never changed: registering again would move a
plugin to the front, and so change the order of handlers by editing one of them.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pluggy

from declctl.errors import EntryPointError
from declctl.hooks import faults, specs
from declctl.hooks.bundle import Bundle
from declctl.hooks.calling import EventTarget, Implementation
from declctl.hooks.loading import EntryPoint
from declctl.hooks.markers import PROJECT
from declctl.hooks.members import Member, check_marks, marked, member_of_function, members_of
from declctl.hooks.signatures import ARGUMENTS, implementation

_EVENT_HOOKS = ("declctl_event", "declctl_added", "declctl_modified", "declctl_deleted")


_SPECIFIED = {name: pluggy.PluginManager(PROJECT).parse_hookspec_opts(specs, name) for name in ARGUMENTS}


class _Manager(pluggy.PluginManager):
    """Looks at each specification once for all generations, and at no name of a plugin that is no hook's.

    Such looks were most of what the import of a small bundle took. `rest` is called between two of them.
    """

    def __init__(self, *, rest: Callable[[], object]) -> None:
        super().__init__(PROJECT)
        self._rest = rest
        self.add_hookspecs(specs)

    def parse_hookspec_opts(
        self,
        module_or_class: ModuleType | type,  # noqa: ARG002 - the signature of pluggy
        name: str,
    ) -> pluggy.HookspecOpts | None:
        if name not in _SPECIFIED:
            return None
        self._rest()
        return _SPECIFIED[name]

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        return super().parse_hookimpl_opts(plugin, name) if name in vars(plugin) else None


class GenerationPlugins:
    """Who implements which hook, in manifest order; `tryfirst` and `trylast` are honoured.

    `add_entry` and `add_plugin` raise EntryPointError for what breaks the contract, and then
    nothing of it is registered. `rest` is called between two pieces of work.
    """

    def __init__(self, bundle: Bundle, *, rest: Callable[[], object] = lambda: None) -> None:
        self._bundle = bundle
        self._manager = _Manager(rest=rest)
        self._implementations: dict[str, tuple[Implementation, ...]] = {}
        self._objects: dict[
            int, tuple[str, object]
        ] = {}  # by identity: plugin name, and the plugin kept alive
        self._entries: dict[str, str] = {}  # text of an entry point → plugin name
        self._instances: dict[type, Any] = {}

    def add_entry(self, entry: EntryPoint) -> str:
        """Register what an entry point names; returns its plugin name.

        That is a module, a class, or a plain function. A class is instantiated once for the
        generation, and whatever is named twice is registered once.
        """
        if entry.text not in self._entries:
            self._entries[entry.text] = self._entry(entry)
        return self._entries[entry.text]

    def add_plugin(self, name: str, plugin: object) -> None:
        """Register an object whose marked functions implement hooks."""
        if name in self._implementations:
            return
        if id(plugin) in self._objects:
            other, _ = self._objects[id(plugin)]
            raise EntryPointError(
                f"the plugins {name} and {other} are one and the same object",
                code=faults.PLUGIN_LOAD_FAILED,
                suggestion=f"remove {name} or {other} from the manifest",
            )
        self._add(name, plugin, self._members(plugin))

    def discard(self, name: str) -> None:
        """Forget a plugin that has turned out to be unusable: none of its hooks is called."""
        self._implementations.pop(name, None)
        self._objects = {key: owner for key, owner in self._objects.items() if owner[0] != name}

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
                suggestion="mark a function of one of these names with @declctl.hookimpl, "
                "or name any function as module:function",
            )
        return EventTarget(listening)

    def of(self, hook: str, names: Iterable[str] | None = None) -> tuple[Implementation, ...]:
        """The implementations of a hook, of some plugins or of all, in their order."""
        wanted = self._implementations if names is None else dict.fromkeys(names)
        found = [i for name in wanted for i in self._implementations.get(name, ()) if i.hook == hook]
        return tuple(sorted(found, key=lambda i: i.rank))

    def implement(self, hook: str, name: str, function: Callable[..., Any]) -> Implementation:
        """A function that a manifest names for a hook without being a plugin; raises EntryPointError."""
        return implementation(hook, name, function, self._bundle)

    def _entry(self, entry: EntryPoint) -> str:
        target = entry.target
        is_class = inspect.isclass(target)
        if is_class:
            target = self._instance(target, entry.text)
        if id(target) in self._objects:
            return self._objects[id(target)][0]
        members = self._members(target)
        if not members and not is_class and not isinstance(target, ModuleType):
            members = [self._function(entry.text, target)]
        # An installed plugin may have the very name that a module beside the manifest has.
        name = (
            entry.text if entry.text not in self._implementations else f"{entry.text} (beside the manifest)"
        )
        self._add(name, target, members)
        return name

    def _function(self, text: str, target: Any) -> Member:
        if not callable(target):
            kind = type(target).__name__
            raise EntryPointError(
                f"{text} is a {kind}, which can't listen",
                code=faults.WRONG_KIND,
                suggestion="name a module, a class or a function",
            )
        return member_of_function(target)

    def _add(self, name: str, plugin: object, members: list[Member]) -> None:
        found = tuple(self._implementation(name, member) for member in members)
        try:
            self._manager.register(marked(members), name=name)
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise EntryPointError(f"{name}: {error}", code=faults.WRONG_KIND) from error
        self._implementations[name] = found
        self._objects[id(plugin)] = (name, plugin)

    def _members(self, plugin: object) -> list[Member]:
        try:
            check_marks(plugin, self._bundle)
            members = members_of(plugin)
        except EntryPointError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # foreign code: an attribute may be computed
            raise faults.of_import(error, "looking for hooks", self._bundle) from error
        return [m for m in members if m.hook in ARGUMENTS or not m.options.get("optionalhook")]

    def _implementation(self, name: str, member: Member) -> Implementation:
        options = member.options
        if member.hook not in ARGUMENTS:
            near = faults.closest(member.hook, ARGUMENTS)
            message = f"there is no hook {member.hook!r}"
            advice = f'did you mean "{near}"?' if near else f"the hooks are {', '.join(ARGUMENTS)}"
            raise self._fault(member, message, code=faults.UNKNOWN_HOOK, suggestion=advice)
        if member.hook in specs.NOT_YET:
            message, advice = f"this version does not call {member.hook} yet", specs.NOT_YET[member.hook]
            raise self._fault(member, message, code=faults.HOOK_NOT_YET, suggestion=advice)
        if options.get("wrapper") or options.get("hookwrapper"):
            message = f"{member.hook} of {name} is a wrapper, and each implementation is called by itself"
            raise self._fault(member, message, code=faults.WRONG_KIND, suggestion="remove wrapper=True")
        made = implementation(member.hook, name, member.function, self._bundle)
        return replace(made, rank=0 if options.get("tryfirst") else 2 if options.get("trylast") else 1)

    def _fault(self, member: Member, message: str, *, code: str, suggestion: str) -> EntryPointError:
        return faults.of_function(
            member.function, message, code=code, suggestion=suggestion, bundle=self._bundle
        )

    def _instance(self, kind: type, text: str) -> object:
        if kind not in self._instances:
            try:
                self._instances[kind] = kind()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # foreign code
                raise faults.of_import(error, f"making {text}", self._bundle) from error
        return self._instances[kind]
