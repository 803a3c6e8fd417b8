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
    """Not in pluggy's own, which is the other way round."""
    table = PluginRegistry(Bundle("", {}))
    for name in ("b", "a", "c"):
        table.add_plugin(name, plugin_with(declctl_startup=startup()))
    assert [i.plugin for i in table.of("declctl_startup")] == ["b", "a", "c"]
    assert [i.plugin for i in table.of("declctl_startup", ["c", "b", "nobody"])] == ["c", "b"]


def test_a_new_generation_keeps_the_order():
    """Editing one plugin and registering again does not move it to the front, as pluggy would."""
    orders = []
    plugins = {name: plugin_with(declctl_startup=startup()) for name in "abc"}
    for _ in range(3):
        plugins["b"] = plugin_with(declctl_startup=startup())
        table = PluginRegistry(Bundle("", {}))
        for name, plugin in plugins.items():
            table.add_plugin(name, plugin)
        orders.append([i.plugin for i in table.of("declctl_startup")])
    assert orders == [["a", "b", "c"]] * 3


def test_tryfirst_and_trylast_are_honoured():
    """Among several of the same kind manifest order counts."""
    table = PluginRegistry(Bundle("", {}))
    marks = {"last": {"trylast": True}, "one": {}, "first": {"tryfirst": True}, "two": {}}
    for name, options in marks.items():
        table.add_plugin(name, plugin_with(declctl_startup=startup(**options)))
    assert [i.plugin for i in table.of("declctl_startup")] == ["first", "one", "two", "last"]


def test_a_class_is_made_once_for_a_generation(listening):
    """Two handlers that name the same class share one object, and so its state."""
    source = """
        from declctl import hookimpl
        class Guard:
            @hookimpl
            def declctl_added(self): ...
    """
    table, targets = listening(
        {"pods.py": source, "again.py": "from pods import Guard"}, "pods:Guard", "pods:Guard"
    )
    guards = {target.implementations[0].function.__self__ for target in targets}
    assert len(guards) == 1
    assert table.names() == ("pods:Guard",)


def test_one_class_under_two_names_is_one_plugin(listening):
    """A class that is imported elsewhere is the same class."""
    source = "from declctl import hookimpl\nclass Guard:\n    @hookimpl\n    def declctl_event(self): ..."
    files = {"pods.py": source, "again.py": "from pods import Guard"}
    table, targets = listening(files, "pods:Guard", "again:Guard")
    assert table.names() == ("pods:Guard",)
    assert targets[0].implementations == targets[1].implementations


def test_the_next_generation_makes_its_own_object(listening):
    """Nothing of the old code is left in the new one."""
    files = {
        "pods.py": "from declctl import hookimpl\nclass G:\n    @hookimpl\n    def declctl_event(self): ..."
    }
    objects = [listening(files, "pods:G")[1][0].implementations[0].function.__self__ for _ in range(2)]
    assert type(objects[0]) is not type(objects[1])


def test_a_plain_function_hears_of_every_change(listening):
    """With the arguments that it takes, in any order."""
    _, (target,) = listening({"pods.py": "def on_pod(ctx, obj): ..."}, "pods:on_pod")
    (made,) = target.implementations
    assert (made.hook, made.parameters, made.is_async) == ("declctl_event", ("ctx", "obj"), False)
    assert all(target.select(kind) == (made,) for kind in ChangeType)


def test_a_marked_function_hears_of_its_hook_only(listening):
    """Named by itself, a marked function is the hook that it is marked as."""
    _, (target,) = listening({"pods.py": module_with(hook="declctl_deleted")}, "pods:declctl_deleted")
    assert [kind for kind in ChangeType if target.select(kind)] == [ChangeType.DELETED]


def test_a_function_with_another_name_is_marked_by_specname(listening):
    """Pluggy's own option."""
    source = module_with(mark="@hookimpl(specname='declctl_added')", hook="greet")
    _, (target,) = listening({"pods.py": source}, "pods")
    assert [i.hook for i in target.implementations] == ["declctl_added"]


def test_each_type_calls_its_hooks(listening):
    """declctl_event first, then the hook of the type; a resync is a modification."""
    hooks = ("declctl_deleted", "declctl_modified", "declctl_added", "declctl_event")
    source = "".join(module_with(hook=hook) for hook in hooks)
    _, (target,) = listening({"pods.py": source}, "pods")
    assert {kind: [i.hook for i in target.select(kind)] for kind in ChangeType} == {
        ChangeType.ADDED: ["declctl_event", "declctl_added"],
        ChangeType.MODIFIED: ["declctl_event", "declctl_modified"],
        ChangeType.RESYNC: ["declctl_event", "declctl_modified"],
        ChangeType.DELETED: ["declctl_event", "declctl_deleted"],
    }


def test_methods_of_one_class_are_called_as_they_are_written(listening):
    """Not in alphabetical order; tryfirst goes before."""
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


def test_defaults_and_keyword_arguments_are_allowed(listening):
    """A parameter with a default is the person's own; ** takes all."""
    source = "def some(obj, color='red', *rest, old): ...\ndef everything(**given): ..."
    _, targets = listening({"pods.py": source}, "pods:some", "pods:everything")
    assert [t.implementations[0].parameters for t in targets] == [
        ("obj", "old"),
        ("change", "obj", "old", "ctx"),
    ]


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


def test_a_builtin_gets_every_argument():
    """Who tells nobody what it takes gets what there is."""
    table = PluginRegistry(Bundle("", {}))
    assert table.implement("declctl_startup", "dict", dict).parameters == ("ctx",)


def test_a_step_takes_ctx_or_nothing(generation):
    """Functions that the manifest names for the life cycle are checked as hooks are."""
    namespace = generation({"a.py": "def migrate(): ...\ndef broken(context): ..."})
    table = PluginRegistry(namespace.bundle)
    made = table.implement("declctl_prepare", "a:migrate", namespace.resolve("a:migrate"))
    assert (made.hook, made.parameters) == ("declctl_prepare", ())
    with pytest.raises(EntryPointError, match="broken takes 'context'"):
        table.implement("declctl_prepare", "a:broken", namespace.resolve("a:broken"))


def test_a_plugin_and_a_file_of_one_name_are_two(generation):
    """The entry point `slack` is the file beside the manifest, whatever is installed under that name."""
    namespace = generation({"slack.py": module_with()})
    table = PluginRegistry(namespace.bundle)
    table.add_plugin("slack", plugin_with(declctl_startup=startup()))
    name = table.add_entry("slack", namespace.resolve("slack"))
    assert name != "slack"
    assert table.add_entry("slack", namespace.resolve("slack")) == name
    assert len(table.target(name).implementations) == 1


def test_an_entry_point_that_names_an_installed_plugin_is_that_plugin(generation):
    """Its hooks are not called twice."""
    plugin = plugin_with(
        declctl_startup=startup(), declctl_event=hookimpl(specname="declctl_event")(lambda obj: None)
    )
    namespace = generation({"a.py": "plugin = None"})
    namespace.module("a").plugin = plugin
    table = PluginRegistry(namespace.bundle)
    table.add_plugin("installed", plugin)
    assert table.add_entry("a:plugin", namespace.resolve("a:plugin")) == "installed"
    assert len(table.of("declctl_startup")) == 1


def test_one_object_as_two_plugins_is_refused():
    """The host couldn't tell whose config it has."""
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


def test_optional_hooks_of_another_version_are_left_out(listening):
    """Pluggy's optionalhook says that the host may not know it."""
    source = module_with() + module_with(mark="@hookimpl(optionalhook=True)", hook="declctl_tomorrow")
    _, (target,) = listening({"pods.py": source}, "pods")
    assert [i.hook for i in target.implementations] == ["declctl_event"]
