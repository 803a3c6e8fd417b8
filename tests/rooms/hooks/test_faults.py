"""Each fault of a handler file, at its exact place and with the advice that mends it."""

import pytest

from declctl.errors import EntryPointError
from declctl.hooks.bundle import Bundle
from declctl.hooks.calls import describe_with_place
from declctl.hooks.loader import GenerationNamespace
from declctl.hooks.registry import PluginRegistry

HOOK = "from declctl import hookimpl\n@hookimpl\n"
DECORATED = """
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
TIMING = """
    import functools
    def timed(function):
        @functools.wraps(function)
        def inner(*args, **kwargs):
            return function(*args, **kwargs)
        return inner
"""
BAD = "class Bad(Exception):\n    def __str__(self):\n        raise ValueError\n§raise Bad\n"
LAZY = "def __getattr__(name):\n    if name == 'lazy':\n        §1 / 0\n    raise AttributeError(name)\n"
IMPORTING = "importing pods raises "
TAKES = "def on_pod(change, §object):\n    ..."

# The entry point, pods.py, other files; the code, the message, the suggestion. `...` is not looked at.
FAULTS = {
    "a module that is one letter off": (
        *("handlers.pod", None, {"handlers/pods.py": "", "handlers/nodes.py": ""}),
        *("DCL040", ..., 'did you mean "handlers.pods"?'),
    ),
    "a module that is not there": (
        *("completely_different", "", {}, "DCL040"),
        "there is no module 'completely_different', neither beside the manifest (app) nor installed",
        "create completely_different.py beside the manifest",
    ),
    "a module below a module": ("pods.extra", "x = 1", {}, "DCL040", ..., ...),
    "an attribute that is misspelled": (
        *("pods:on_chnage", "def on_change(obj): ...", {}),
        *("DCL041", "pods has no 'on_chnage'", 'did you mean "pods:on_change"?'),
    ),
    "an attribute like no other, beside what is imported": (
        *("pods:zzz", "from json import dumps\ndef a(obj): ...\nclass B: ...", {}),
        *("DCL041", ..., "it defines a, B"),
    ),
    "a submodule after a colon": (
        *("handlers:pods", None, {"handlers/__init__.py": "", "handlers/pods.py": ""}),
        *("DCL041", ..., 'pods is a module: write "handlers.pods"'),
    ),
    "None, which is not taken for the module": (
        *("pods:x", "import declctl\n@declctl.hookimpl\ndef declctl_event(): ...\nx = None", {}),
        *("DCL048", "pods:x is a NoneType, which can't listen", ...),
    ),
    "a number": ("pods:x", "x = 3", {}, "DCL048", "pods:x is a int, which can't listen", ...),
    "broken Python": (
        *("pods", 'x = 1\ny = "ä" §$ 2\n', {}),
        *("DCL042", "this is not valid Python: invalid syntax", ...),
    ),
    "broken Python in a sibling": (
        *("pods", "import rules", {"rules.py": "def f(§:\n    pass"}, "DCL042", ..., ...),
    ),
    "zero bytes": ("pods", "§x = 1\0", {}, "DCL042", ..., ...),
    "a variable that is missing, behind a wide character": (
        *("pods", 'import os\nx = ("ä", §os.environ["DECLCTL_NO_SUCH_THING"])\n', {}),
        *("DCL043", IMPORTING + "KeyError: 'DECLCTL_NO_SUCH_THING'", ...),
    ),
    "a raise in a sibling": ("pods", "import rules", {"rules.py": "§1 / 0"}, "DCL043", ..., ...),
    "a package that is not installed": (
        *("pods", "import os\n§import not_installed.part\n", {}, "DCL043", ...),
        "install the package that has not_installed, or put not_installed.py beside the manifest",
    ),
    "a sibling that is one letter off, without the private prefix": (
        *("handlers.pods", None, {"handlers/pods.py": "§import handlers.rule", "handlers/rules.py": ""}),
        *("DCL043", "importing handlers.pods raises ModuleNotFoundError: No module named 'handlers.rule'"),
        'did you mean "handlers.rules"?',
    ),
    "the end of the process": (
        *("pods", "import sys\n§sys.exit('bye')", {}),
        *("DCL044", "importing pods ends the process: it raises SystemExit('bye')", ...),
    ),
    "an exception whose own text raises": (
        *("pods", BAD, {}, "DCL043", IMPORTING + "Bad: (its text can't be shown)", ...),
    ),
    "a module's own __getattr__": ("pods:lazy", LAZY, {}, "DCL043", ..., ...),
    "a parameter that is unknown": (
        *("pods:on_pod", TAKES, {}),
        *("DCL046", "on_pod takes 'object', which declctl_event does not give"),
        'did you mean "obj"? declctl_event gives change, obj, old, ctx',
    ),
    "a parameter of another framework, of a reconciler": (
        *("pods", "from declctl import hookimpl\n@hookimpl\ndef declctl_reconcile(§spec): ...", {}),
        *("DCL046", ...),
        'write "request" and read request.obj["spec"]; declctl_reconcile gives request, ctx',
    ),
    "an unknown parameter of a decorated method": (
        *("pods:Guard", DECORATED, {}),
        *("DCL046", "declctl_deleted takes 'old', which declctl_deleted does not give", ...),
    ),
    "an unknown parameter behind functools.wraps": (
        *("pods:on_pod", "from timing import timed\n@timed\ndef on_pod(§pod): ...", {"timing.py": TIMING}),
        *("DCL046", ..., ...),
    ),
    "a positional-only parameter": (
        *("pods:on_pod", "def on_pod(§obj, /): ...", {}),
        *("DCL046", ..., "remove the `/` from its parameters"),
    ),
    "an unknown parameter of a lambda": (
        *("pods:on_pod", "\n§on_pod = lambda pod: None", {}, "DCL046", ..., ...),
    ),
    "a class without hooks, though it can be called": (
        *("pods:Guard", "class Guard:\n    def __call__(self): ...", {}, "DCL047", ..., ...),
    ),
    "a module with life-cycle hooks only": (
        *("pods", f"{HOOK}def declctl_startup(ctx): ...", {}, "DCL047", ..., ...),
    ),
    "a hook without its mark": (
        *("pods", f"{HOOK}def declctl_added(obj): ...\ndef §declctl_deleted(obj): ...", {}),
        *("DCL047", ..., "put @declctl.hookimpl above it, or give it another name"),
    ),
    "a function that is called like a hook": (
        *("pods:declctl_added", "def §declctl_added(obj): ...", {}, "DCL047", ..., ...),
    ),
    "a hook that is misspelled": (
        *("pods", f"{HOOK}async def  §declctl_addedd(obj): ...\n", {}),
        *("DCL084", ..., 'did you mean "declctl_added"?'),
    ),
    "a class whose __init__ raises": (
        *("pods:Guard", 'class Guard:\n    def __init__(self):\n        §raise OSError("no socket")', {}),
        *("DCL043", "making pods:Guard raises OSError: no socket", ...),
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_shown_at_its_place_with_advice(fault, what):
    """The innermost place in the person's own files, in the person's own words, and what mends it."""
    entry, pods, others, code, message, suggestion = FAULTS[what]
    error = fault(others if pods is None else {"pods.py": pods, **others}, entry)
    assert error.code == code
    assert message in (..., error.message)
    assert suggestion in (..., error.suggestion)


def test_a_fault_whose_words_depend_on_python(fault):
    """A missing name or argument, and the advice for a module without hooks."""
    error = fault({"pods.py": "§from rules import nothing", "rules.py": ""}, "pods")
    assert error.message.startswith(f"{IMPORTING}ImportError: cannot import name 'nothing' from 'rules'")
    error = fault({"pods.py": "class Guard:\n    def __init__(self, url): ..."}, "pods:Guard")
    assert "missing 1 required positional argument: 'url'" in error.message
    error = fault({"pods.py": 'import json\nx = §json.loads("{")\n'}, "pods")
    assert error.code == "DCL043"
    assert "JSONDecodeError" in error.message  # and the line is that of the person's own file
    error = fault({"pods.py": "def on_pod(obj): ..."}, "pods")
    assert error.code == "DCL047"
    assert "@declctl.hookimpl" in error.suggestion


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


MARKED = "from declctl import hookimpl\n@hookimpl"
# There is no loop where the first two are called; a coroutine of the others would be nobody's object.
NEVER_ASYNC = ["commands", "metrics", "indexers", "transform", "config_schema", "rbac"]
UNFIT = [
    *(
        ("pods", f"{MARKED}\nasync def §declctl_{name}(): ...", "write `def` instead of `async def`")
        for name in NEVER_ASYNC
    ),
    # There is nothing to wrap: each implementation is called by itself.
    ("pods", f"{MARKED}(wrapper=True)\ndef §declctl_event(obj):\n    yield", "remove"),
    ("pods", f"{MARKED}(hookwrapper=True)\ndef §declctl_event(obj):\n    yield", "remove"),
    # Calling it would make a generator and do nothing at all.
    ("pods:on_pod", "def §on_pod(obj):\n    yield obj", "remove the `yield`"),
    ("pods:on_pod", "async def §on_pod(obj):\n    yield obj", "remove the `yield`"),
]


@pytest.mark.parametrize(("entry", "source", "suggestion"), UNFIT)
def test_what_could_not_be_called_is_refused(fault, entry, source, suggestion):
    error = fault({"pods.py": source}, entry)
    assert error.code == "DCL048"
    assert error.suggestion.startswith(suggestion)


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
        ({"pods.py": "import json\ndef f():\n    json.loads('{')\n"}, "(app/pods.py:3)"),
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
    assert describe_with_place(ValueError("no")) == "ValueError: no"
