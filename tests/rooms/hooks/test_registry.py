"""Who implements which hook, and in which order."""

import types

import pytest

from declctl import hookimpl
from declctl.errors import EntryPointError
from declctl.hooks.bundle import Bundle
from declctl.hooks.registry import PluginRegistry
from declctl.objects import ChangeType


def module_with(body="...", *, mark="@hookimpl", hook="declctl_event"):
    """A handler file with one hook."""
    return f"from declctl import hookimpl\n{mark}\ndef {hook}():\n    {body}\n"


def plugin_with(**functions):
    """An installed plugin, as far as the table is concerned."""
    module = types.ModuleType("plugin")
    for name, function in functions.items():
        setattr(module, name, function)
    return module


def startup(*, tryfirst=False, trylast=False):
    """One more implementation of a life-cycle hook."""

    @hookimpl(tryfirst=tryfirst, trylast=trylast)
    def declctl_startup(): ...

    return declctl_startup


def test_hooks_are_called_in_manifest_order():
    """Or in the one that is asked for; among several of the same kind, behind tryfirst and before trylast."""
    table = PluginRegistry(Bundle("", {}))
    for name in ("b", "a", "c"):
        table.add_plugin(name, plugin_with(declctl_startup=startup()))
    assert [i.plugin for i in table.of("declctl_startup")] == ["b", "a", "c"]
    assert [i.plugin for i in table.of("declctl_startup", ["c", "b", "nobody"])] == ["c", "b"]
    table = PluginRegistry(Bundle("", {}))
    marks = {"last": {"trylast": True}, "one": {}, "first": {"tryfirst": True}, "two": {}}
    for name, options in marks.items():
        table.add_plugin(name, plugin_with(declctl_startup=startup(**options)))
    assert [i.plugin for i in table.of("declctl_startup")] == ["first", "one", "two", "last"]


def test_a_class_is_made_once_for_a_generation(listening):
    """Under two names, too, so that handlers share its state; the next generation makes its own."""
    source = "from declctl import hookimpl\nclass Guard:\n    @hookimpl\n    def declctl_event(self): ..."
    files = {"pods.py": source, "again.py": "from pods import Guard"}
    table, targets = listening(files, "pods:Guard", "pods:Guard", "again:Guard")
    first, *others = [target.implementations for target in targets]
    assert others == [first, first]
    assert table.names() == ("pods:Guard",)
    _, (anew,) = listening(files, "pods:Guard")
    guards = [made[0].function.__self__ for made in (first, *others, anew.implementations)]
    assert guards[0] is guards[1] is guards[2]
    assert type(guards[3]) is not type(guards[0])


def test_a_plain_function_hears_of_every_change(listening):
    """With the arguments that it takes, in any order; a marked one of its hook only."""
    _, (target,) = listening({"pods.py": "def on_pod(ctx, obj): ..."}, "pods:on_pod")
    (made,) = target.implementations
    assert (made.hook, made.parameters, made.is_async) == ("declctl_event", ("ctx", "obj"), False)
    assert all(target.select(kind) == (made,) for kind in ChangeType)
    _, (target,) = listening({"pods.py": module_with(hook="declctl_deleted")}, "pods:declctl_deleted")
    assert [kind for kind in ChangeType if target.select(kind)] == [ChangeType.DELETED]
    source = module_with(mark="@hookimpl(specname='declctl_added')", hook="greet")
    _, (target,) = listening({"pods.py": source}, "pods")
    assert [i.hook for i in target.implementations] == ["declctl_added"]
    source = module_with() + module_with(mark="@hookimpl(optionalhook=True)", hook="declctl_tomorrow")
    _, (target,) = listening({"pods.py": source}, "pods")
    assert [i.hook for i in target.implementations] == ["declctl_event"]


def test_each_type_calls_its_hooks(listening):
    """declctl_event first; a resync is a modification; methods of one class as they are written."""
    hooks = ("declctl_deleted", "declctl_modified", "declctl_added", "declctl_event")
    source = "".join(module_with(hook=hook) for hook in hooks)
    _, (target,) = listening({"pods.py": source}, "pods")
    assert {kind: [i.hook for i in target.select(kind)] for kind in ChangeType} == {
        ChangeType.ADDED: ["declctl_event", "declctl_added"],
        ChangeType.MODIFIED: ["declctl_event", "declctl_modified"],
        ChangeType.RESYNC: ["declctl_event", "declctl_modified"],
        ChangeType.DELETED: ["declctl_event", "declctl_deleted"],
    }
    source = """
        from declctl import hookimpl
        class Guard:
            @hookimpl(specname="declctl_event")
            def z(self): ...
            @hookimpl(specname="declctl_event")
            def a(self): ...
            @hookimpl(specname="declctl_event", tryfirst=True)
            def m(self): ...
    """
    _, (target,) = listening({"pods.py": source}, "pods:Guard")
    names = [i.function.__name__ for i in target.select(ChangeType.ADDED)]
    assert names == ["m", "z", "a"]


def test_which_arguments_a_callable_takes(listening):
    """A parameter with a default is the person's own; ** and builtins take all."""
    source = "def some(obj, color='red', *rest, old): ...\ndef everything(**given): ..."
    _, targets = listening({"pods.py": source}, "pods:some", "pods:everything")
    assert [t.implementations[0].parameters for t in targets] == [
        ("obj", "old"),
        ("change", "obj", "old", "ctx"),
    ]
    table = PluginRegistry(Bundle("", {}))
    assert table.implement("declctl_startup", "dict", dict).parameters == ("ctx",)


def test_asynchronous_callables_are_recognised(listening):
    """Coroutine functions, partials of them, and objects whose call is one."""
    source = """
        import functools
        async def one(obj): ...
        async def _two(extra, obj): ...
        two = functools.partial(_two, 1)
        class _Three:
            async def __call__(self, obj): ...
        three = _Three()
    """
    _, targets = listening({"pods.py": source}, "pods:one", "pods:two", "pods:three")
    assert [target.all_async for target in targets] == [True, True, True]
    assert [target.implementations[0].parameters for target in targets] == [("obj",)] * 3


def test_a_step_takes_ctx_or_nothing(generation):
    """Functions that the manifest names for the life cycle are checked as hooks are."""
    namespace = generation({"a.py": "def migrate(): ...\ndef broken(context): ..."})
    table = PluginRegistry(namespace.bundle)
    made = table.implement("declctl_prepare", "a:migrate", namespace.resolve("a:migrate"))
    assert (made.hook, made.parameters) == ("declctl_prepare", ())
    with pytest.raises(EntryPointError, match="broken takes 'context'"):
        table.implement("declctl_prepare", "a:broken", namespace.resolve("a:broken"))


def test_plugins_are_told_apart_by_what_they_are(generation):
    """A file is not the installed plugin of its name, unless it names it; one object is not two plugins."""
    namespace = generation({"slack.py": module_with()})
    table = PluginRegistry(namespace.bundle)
    table.add_plugin("slack", plugin_with(declctl_startup=startup()))
    name = table.add_entry("slack", namespace.resolve("slack"))
    assert name != "slack"
    assert table.add_entry("slack", namespace.resolve("slack")) == name
    assert len(table.target(name).implementations) == 1
    plugin = plugin_with(
        declctl_startup=startup(), declctl_event=hookimpl(specname="declctl_event")(lambda obj: None)
    )
    namespace = generation({"a.py": "plugin = None"})
    namespace.module("a").plugin = plugin
    table = PluginRegistry(namespace.bundle)
    table.add_plugin("installed", plugin)
    assert table.add_entry("a:plugin", namespace.resolve("a:plugin")) == "installed"
    assert len(table.of("declctl_startup")) == 1
    plugin = plugin_with(declctl_startup=startup())
    table = PluginRegistry(Bundle("", {}))
    table.add_plugin("one", plugin)
    table.add_plugin("one", plugin)
    with pytest.raises(EntryPointError, match="the plugins two and one are one and the same object"):
        table.add_plugin("two", plugin)


def test_properties_are_not_asked_while_looking_for_hooks(listening):
    """A property that connects somewhere must not do so when a manifest is validated."""
    source = """
        from declctl import hookimpl
        class Guard:
            @property
            def connection(self):
                raise OSError("connected too early")
            @hookimpl
            def declctl_event(self): ...
    """
    _, (target,) = listening({"pods.py": source}, "pods:Guard")
    assert len(target.implementations) == 1
