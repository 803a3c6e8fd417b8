"""Each fault of a handler file, at its exact place and with the advice that mends it."""

import pytest

from declctl.errors import EntryPointError
from declctl.hooks.bundle import Bundle
from declctl.hooks.calls import describe_with_place
from declctl.hooks.loader import GenerationNamespace
from declctl.hooks.registry import PluginRegistry


def test_a_misspelled_module_is_told_with_the_nearest(fault):
    """Who writes handlers.pod is pointed to handlers.pods."""
    error = fault({"handlers/pods.py": "", "handlers/nodes.py": ""}, "handlers.pod")
    assert error.code == "DCL040"
    assert error.suggestion == 'did you mean "handlers.pods"?'


def test_a_missing_top_level_module_says_where_it_was_looked_for(fault):
    """The folder is named, and the file to create."""
    error = fault({"pods.py": ""}, "completely_different")
    assert error.code == "DCL040"
    assert "app" in error.message
    assert error.suggestion == "create completely_different.py beside the manifest"


def test_a_module_below_a_module_is_not_found(fault):
    """`pods` is a file, so that `pods.extra` can't exist."""
    assert fault({"pods.py": "x = 1"}, "pods.extra").code == "DCL040"


def test_a_misspelled_attribute_is_told_with_the_nearest(fault):
    """Who writes on_chnage is pointed to on_change."""
    error = fault({"pods.py": "def on_change(obj): ..."}, "pods:on_chnage")
    assert error.code == "DCL041"
    assert error.message == "pods has no 'on_chnage'"
    assert error.suggestion == 'did you mean "pods:on_change"?'


def test_an_attribute_like_no_other_lists_what_there_is(fault):
    """Only what the module defines itself is listed, not what it imports."""
    source = "from json import dumps\ndef a(obj): ...\nclass B: ..."
    assert fault({"pods.py": source}, "pods:zzz").suggestion == "it defines a, B"


def test_a_submodule_after_a_colon_is_explained(fault):
    """handlers:pods is told to be written handlers.pods."""
    error = fault({"handlers/__init__.py": "", "handlers/pods.py": ""}, "handlers:pods")
    assert (error.code, error.suggestion) == ("DCL041", 'pods is a module: write "handlers.pods"')


def test_an_attribute_that_is_none_is_not_taken_for_the_module(fault):
    """`x = None` is a NoneType, which can't listen."""
    error = fault(
        {"pods.py": "import declctl\n@declctl.hookimpl\ndef declctl_event(): ...\nx = None"}, "pods:x"
    )
    assert (error.code, error.message) == ("DCL048", "pods:x is a NoneType, which can't listen")


def test_broken_python_is_shown_at_its_character(fault):
    """Line and column are those of Python, with its reason."""
    error = fault({"pods.py": 'x = 1\ny = "ä" §$ 2\n'}, "pods")
    assert (error.code, error.message) == ("DCL042", "this is not valid Python: invalid syntax")


def test_broken_python_in_a_sibling_is_shown_there(fault):
    """The entry point is fine; the file that it imports is not."""
    error = fault({"pods.py": "import rules", "rules.py": "def f(:\n    pass".replace("(:", "(§:")}, "pods")
    assert error.code == "DCL042"


@pytest.mark.parametrize(
    "data", [b"x = '\xff'", b"# coding: klingon\nx = 1", b"x = " + b"(" * 5000 + b")" * 5000]
)
def test_what_is_no_text_is_broken_python(data):
    """A wrong encoding and a nesting without end are shown in their file, and end nothing."""
    namespace = GenerationNamespace(99, Bundle("app", {"pods.py": data}))
    try:
        with pytest.raises(EntryPointError) as caught:
            namespace.resolve("pods")
    finally:
        namespace.close()
    assert (caught.value.code, caught.value.file, caught.value.line) == ("DCL042", "app/pods.py", 1)


def test_zero_bytes_are_broken_python(fault):
    """A binary file with a Python name is told as such."""
    assert fault({"pods.py": "§x = 1\0"}, "pods").code == "DCL042"


def test_a_raise_at_import_is_shown_at_its_line(fault):
    """A missing environment variable is shown where it is read, even behind a wide character."""
    error = fault({"pods.py": 'import os\nx = ("ä", §os.environ["DECLCTL_NO_SUCH_THING"])\n'}, "pods")
    assert error.code == "DCL043"
    assert error.message == "importing pods raises KeyError: 'DECLCTL_NO_SUCH_THING'"


def test_a_raise_inside_a_library_is_shown_where_the_file_called_it(fault):
    """The innermost line of the person's own files is shown, not one of the library."""
    error = fault({"pods.py": 'import json\nx = §json.loads("{")\n'}, "pods")
    assert error.code == "DCL043"
    assert "JSONDecodeError" in error.message


def test_a_raise_in_a_sibling_is_shown_in_the_sibling(fault):
    """Not at the import that led there."""
    assert fault({"pods.py": "import rules", "rules.py": "§1 / 0"}, "pods").code == "DCL043"


def test_a_missing_package_is_shown_at_its_import(fault):
    """Who forgot to install something sees which line wants it, and two ways out."""
    error = fault({"pods.py": "import os\n§import not_installed.part\n"}, "pods")
    assert error.code == "DCL043"
    advice = "install the package that has not_installed, or put not_installed.py beside the manifest"
    assert error.suggestion == advice


def test_a_missing_sibling_is_shown_with_the_nearest(fault):
    """Names of the person's own package are shown as they are written, without the private prefix."""
    error = fault({"handlers/pods.py": "§import handlers.rule", "handlers/rules.py": ""}, "handlers.pods")
    assert (
        error.message == "importing handlers.pods raises ModuleNotFoundError: No module named 'handlers.rule'"
    )
    assert error.suggestion == 'did you mean "handlers.rules"?'


def test_a_name_that_a_sibling_does_not_have_is_shown_without_the_prefix(fault):
    """`cannot import name` speaks of `rules`, as the person does."""
    error = fault({"pods.py": "§from rules import nothing", "rules.py": ""}, "pods")
    assert error.message.startswith(
        "importing pods raises ImportError: cannot import name 'nothing' from 'rules'"
    )


def test_an_import_that_ends_the_process_does_not(fault):
    """sys.exit at the top of a file is a fault like any other, and the process lives."""
    error = fault({"pods.py": "import sys\n§sys.exit('bye')"}, "pods")
    assert error.code == "DCL044"
    assert error.message == "importing pods ends the process: it raises SystemExit('bye')"


def test_an_exception_that_cannot_be_shown_is_told_all_the_same(fault):
    """An exception whose own text raises is user code, too."""
    source = "class Bad(Exception):\n    def __str__(self):\n        raise ValueError\n§raise Bad\n"
    assert (
        fault({"pods.py": source}, "pods").message == "importing pods raises Bad: (its text can't be shown)"
    )


def test_a_module_attribute_that_raises_is_told(fault):
    """A module's own __getattr__ is user code."""
    source = (
        "def __getattr__(name):\n    if name == 'lazy':\n        §1 / 0\n    raise AttributeError(name)\n"
    )
    assert fault({"pods.py": source}, "pods:lazy").code == "DCL043"


def test_an_unknown_parameter_is_shown_at_its_name(fault):
    """`object` is not what hooks give: `obj` is, and the others are listed."""
    error = fault({"pods.py": "def on_pod(change, §object):\n    ..."}, "pods:on_pod")
    assert error.code == "DCL046"
    assert error.message == "on_pod takes 'object', which declctl_event does not give"
    assert error.suggestion == 'did you mean "obj"? declctl_event gives change, obj, old, ctx'


def test_an_unknown_parameter_of_a_decorated_method_is_shown_at_its_name(fault):
    """Decorators and line breaks don't mislead the search."""
    source = """
        from declctl import hookimpl

        class Guard:
            @hookimpl(
                tryfirst=True,
            )
            async def declctl_deleted(
                self,
                obj,
                *,
                §old,
            ): ...
    """
    error = fault({"pods.py": source}, "pods:Guard")
    assert error.message == "declctl_deleted takes 'old', which declctl_deleted does not give"


def test_an_unknown_parameter_behind_wraps_is_shown_in_the_original(fault):
    """A decorator in another file isn't where the fault is."""
    files = {
        "timing.py": """
            import functools
            def timed(function):
                @functools.wraps(function)
                def inner(*args, **kwargs):
                    return function(*args, **kwargs)
                return inner
        """,
        "pods.py": """
            from timing import timed
            @timed
            def on_pod(§pod): ...
        """,
    }
    assert fault(files, "pods:on_pod").code == "DCL046"


def test_a_positional_only_parameter_is_explained(fault):
    """Its name is right; the slash is what is wrong."""
    error = fault({"pods.py": "def on_pod(§obj, /): ..."}, "pods:on_pod")
    assert (error.code, error.suggestion) == ("DCL046", "remove the `/` from its parameters")


def test_a_lambda_with_an_unknown_parameter_is_shown_at_its_line(fault):
    """A lambda has no name to point at, but it has a line."""
    assert fault({"pods.py": "\n§on_pod = lambda pod: None"}, "pods:on_pod").code == "DCL046"


def test_a_module_without_hooks_cannot_listen(fault):
    """The advice names both ways to make it listen."""
    error = fault({"pods.py": "def on_pod(obj): ..."}, "pods")
    assert error.code == "DCL047"
    assert "@declctl.hookimpl" in error.suggestion


def test_a_class_without_hooks_cannot_listen(fault):
    """Even if its objects can be called: a class listens with its hooks."""
    assert fault({"pods.py": "class Guard:\n    def __call__(self): ..."}, "pods:Guard").code == "DCL047"


def test_a_module_with_lifecycle_hooks_only_cannot_listen(fault):
    """declctl_startup does not hear of objects."""
    source = "import declctl\n@declctl.hookimpl\ndef declctl_startup(ctx): ..."
    assert fault({"pods.py": source}, "pods").code == "DCL047"


def test_a_hook_without_its_mark_is_told(fault):
    """Who forgets @hookimpl would wait for ever for a call."""
    source = """
        from declctl import hookimpl
        @hookimpl
        def declctl_added(obj): ...
        def §declctl_deleted(obj): ...
    """
    error = fault({"pods.py": source}, "pods")
    assert error.code == "DCL047"
    assert error.suggestion == "put @declctl.hookimpl above it, or give it another name"


def test_a_hook_without_its_mark_is_told_as_a_function_too(fault):
    """Named by itself it would be called for every change, which its name denies."""
    assert fault({"pods.py": "def §declctl_added(obj): ..."}, "pods:declctl_added").code == "DCL047"


def test_a_misspelled_hook_is_shown_at_its_name(fault):
    """Pluggy's check_pending made precise: the `def` is shown, and the nearest hook."""
    source = "from declctl import hookimpl\n@hookimpl\nasync def  §declctl_addedd(obj): ...\n"
    error = fault({"pods.py": source}, "pods")
    assert (error.code, error.suggestion) == ("DCL084", 'did you mean "declctl_added"?')


@pytest.mark.parametrize("hook", ["declctl_commands", "declctl_metrics"])
def test_a_hook_of_the_host_is_never_asynchronous(fault, hook):
    """There is no loop where it is called."""
    error = fault({"pods.py": f"from declctl import hookimpl\n@hookimpl\nasync def §{hook}(): ...\n"}, "pods")
    assert (error.code, error.suggestion) == ("DCL048", "write `def` instead of `async def`")


@pytest.mark.parametrize("option", ["wrapper", "hookwrapper"])
def test_a_wrapper_is_refused(fault, option):
    """There is nothing to wrap: each implementation is called by itself."""
    source = f"from declctl import hookimpl\n@hookimpl({option}=True)\ndef §declctl_event(obj):\n    yield\n"
    assert fault({"pods.py": source}, "pods").code == "DCL048"


@pytest.mark.parametrize("prefix", ["", "async "])
def test_a_generator_is_refused(fault, prefix):
    """Calling it would make a generator and do nothing at all."""
    error = fault({"pods.py": f"{prefix}def §on_pod(obj):\n    yield obj\n"}, "pods:on_pod")
    assert (error.code, error.suggestion) == ("DCL048", "remove the `yield`")


@pytest.mark.parametrize(
    "hook", ["declctl_indexers", "declctl_transform", "declctl_config_schema", "declctl_rbac"]
)
def test_hooks_between_the_wire_and_the_cache_cannot_wait(fault, hook):
    """A coroutine in the cache would be nobody's object."""
    source = f"from declctl import hookimpl\n@hookimpl\nasync def §{hook}(): ...\n"
    assert fault({"pods.py": source}, "pods").code == "DCL048"


def test_a_number_cannot_listen(fault):
    """Wrong kinds are named."""
    assert fault({"pods.py": "x = 3"}, "pods:x").message == "pods:x is a int, which can't listen"


def test_a_class_that_cannot_be_made_is_shown_where_it_raises(fault):
    """Its __init__ is user code."""
    source = """
        class Guard:
            def __init__(self):
                §raise OSError("no socket")
    """
    error = fault({"pods.py": source}, "pods:Guard")
    assert (error.code, error.message) == ("DCL043", "making pods:Guard raises OSError: no socket")


def test_a_class_that_wants_arguments_is_told(fault):
    """The host has none to give."""
    error = fault({"pods.py": "class Guard:\n    def __init__(self, url): ..."}, "pods:Guard")
    assert "missing 1 required positional argument: 'url'" in error.message


def test_what_is_refused_is_not_registered(generation):
    """A second, correct entry point works after a broken one."""
    namespace = generation({"pods.py": "def good(obj): ...\ndef bad(pod): ..."})
    table = PluginRegistry(namespace.bundle)
    with pytest.raises(EntryPointError):
        table.add_entry("pods:bad", namespace.resolve("pods:bad"))
    table.add_entry("pods:good", namespace.resolve("pods:good"))
    assert table.names() == ("pods:good",)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"pods.py": "def f():\n    raise ValueError('no')\n"}, "ValueError: no (app/pods.py:2)"),
        (
            {"pods.py": "import json\ndef f():\n    json.loads('{')\n"},
            "(app/pods.py:3)",
        ),
        ({"pods.py": "import util\ndef f(): util.g()\n", "util.py": "def g(): 1 / 0\n"}, "(app/util.py:1)"),
    ],
)
def test_what_a_call_raised_is_told_with_the_line_of_the_handler_file(generation, files, told):
    """The innermost line that the user wrote, not that of the library which it called."""
    function = generation(files).resolve("pods:f")
    with pytest.raises(Exception) as raised:
        function()
    assert describe_with_place(raised.value).endswith(told)


def test_what_was_never_raised_has_no_line():
    """An exception out of nowhere is told as it is."""
    assert describe_with_place(ValueError("no")) == "ValueError: no"
