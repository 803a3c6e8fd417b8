"""The conformance of plugins: each check passes a plugin that is right, and fails one that is not."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from declctl.testing.conformance import CHECKS, check_plugin, conformance

HEAD = 'import declctl\n\ndeclctl_hookspec_version = ">=1.0,<2"\n'
SCHEMA = """
@declctl.hookimpl
def declctl_config_schema():
    return {
        "type": "object", "additionalProperties": False, "required": ["url"],
        "$defs": {"port": {"type": "integer", "minimum": 1}},
        "properties": {
            "url": {"type": "string", "pattern": "^https:", "description": "Where to.", "examples": ["https://a"]},
            "port": {"$ref": "#/$defs/port", "description": "The port.", "default": 443},
            "to": {
                "type": "array", "description": "To whom.",
                "items": {"properties": {"name": {"type": "string", "description": "Who."}}},
            },
            "free": {"description": "Any value."},
        },
    }
"""
EVENT = "\n@declctl.hookimpl\ndef declctl_event(obj, ctx):\n    ctx.log.warning('seen', name=obj.name)\n"
RECONCILER = """
import queue
import threading

work, threads = queue.Queue(), []

def _run():
    while work.get() is not None:
        pass

@declctl.hookimpl
def declctl_startup(ctx):
    threads.append(threading.Thread(target=_run, name="pager"))
    threads[0].start()

@declctl.hookimpl
def declctl_shutdown(ctx):
    work.put(None)
    threads.pop().join()

@declctl.hookimpl
async def declctl_reconcile(request, ctx):
    if request.obj is not None:
        metadata = {"name": request.name, "namespace": request.namespace}
        await ctx.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})

@declctl.hookimpl
def declctl_finalize(request):
    work.put(request.name)
"""
LEAKS_MODULES = """
import sys, types

@declctl.hookimpl
def declctl_reload(outcome):
    sys.modules[f"declctl_pager_{outcome.generation}"] = types.ModuleType("x")
"""
THREAD = """
from threading import Event, Thread

@declctl.hookimpl
def HOOK():
    Thread(target=Event().wait, args=(12,), name="NAME", daemon=True).start()
"""
LEAKS_THREADS = THREAD.replace("HOOK", "declctl_reload").replace("NAME", "leaked")
NEVER_ENDS = THREAD.replace("HOOK", "declctl_startup").replace("NAME", "immortal")
METRICS = """
@declctl.hookimpl
def declctl_metrics(registry):
    from prometheus_client import Counter
    Counter("declctl_pager_pages", "Pages.", registry=registry)
"""
BROKEN = ".set_function(lambda: 1 / 0)"
COMMANDS = """
@declctl.hookimpl
def declctl_commands(app):
    @app.command()
    def page(): 'Page somebody.'
"""
GIVEN = {"config": {"url": "https://pager"}}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Installs a plugin `pager` of this source, for this process and its children."""
    site = tmp_path / "site"
    info = site / "declctl_pager-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declctl-pager\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[declctl]\npager = declctl_pager_test\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.delenv("DECLCTL_LOAD_PLUGINS", raising=False)

    def install(source: str) -> None:
        (site / "declctl_pager_test.py").write_text(source)
        importlib.invalidate_caches()

    yield install
    for name in ("declctl_pager_test", "declctl_pager_later"):
        sys.modules.pop(name, None)


def failure(check: str, **given: object) -> str:
    """The message of a check that has to fail for the installed plugin."""
    test = conformance("pager", **{**GIVEN, **given})
    with pytest.raises(AssertionError) as caught:
        test(check)
    return str(caught.value)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("source", "given"),
    [
        (HEAD + SCHEMA + EVENT, GIVEN),
        (HEAD + EVENT, {}),
        (
            HEAD + SCHEMA + RECONCILER,
            {**GIVEN, "handler": {"applies": [{"apiVersion": "v1", "kind": "ConfigMap"}]}},
        ),
        (HEAD + "\n@declctl.hookimpl\ndef declctl_transform(obj): return obj\n", {}),
        (HEAD + EVENT + METRICS + COMMANDS, {}),
    ],
    ids=["events", "no config", "reconciler", "transform", "metrics and commands"],
)
def test_a_plugin_that_is_right_passes_every_check(install: Callable, source: str, given: dict) -> None:
    """Events, keys with a finalizer and writes, a thread that it ends; with a config and without."""
    install(source)
    check_plugin("pager", **given)


def test_each_check_is_a_test_of_pytest() -> None:
    """One line makes a test for each check, with its name."""
    test = conformance("pager")
    (mark,) = test.pytestmark  # pyright: ignore[reportFunctionMemberAccess]
    assert list(mark.args[1]) == list(CHECKS)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise OSError('no token')\n", "raise OSError('no token')\nOSError: no token"),
        (HEAD + "\n@declctl.hookimpl\ndef declctl_evnt(obj): ...\n", "there is no hook 'declctl_evnt'"),
        (HEAD + "\n@declctl.hookimpl\ndef declctl_event(pod): ...\n", "takes 'pod'"),
        (HEAD, "implements no hook"),
    ],
)
def test_a_plugin_that_can_not_be_loaded_fails(install: Callable, source: str, words: str) -> None:
    """With the message that a user would read, and what to do."""
    install(source)
    assert words in failure("loads")
    with pytest.raises(AssertionError, match="no plugin named 'nobody-has-this' is installed"):
        conformance("nobody-has-this")("loads")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (EVENT, "does not declare the versions of hooks"),
        (f"declctl_hookspec_version = '>=1' + ',<2'\n{EVENT}", "is not written as a text"),
        (f"declctl_hookspec_version = '>=2'\n{EVENT}", "supports the hook specification >=2"),
    ],
)
def test_a_plugin_has_to_declare_its_hooks(install: Callable, source: str, words: str) -> None:
    """Readable before the import, and with a range that has this version."""
    install(f"import declctl\n{source}")
    assert words in failure("declares-its-hookspec")


@pytest.mark.parametrize(
    ("check", "old", "new", "words"),
    [
        ("metrics", "declctl_pager_pages", "pages", "begin its name with declctl_pager_"),
        ("metrics", "pager_pages", "reloads", "the metric declctl_reloads is one of declctl's"),
        ("metrics", '"Pages."', '""', "the metric declctl_pager_pages has no help text"),
        ("metrics", ", registry=registry", "", "Duplicated timeseries"),
        ("commands", "'Page somebody.'", "...", "no docstring, which the help shows: page"),
        ("commands", "    @app.command()\n", "", "declctl_commands adds no command"),
        ("commands", "(app):", "(app):\n    1 / 0", "ZeroDivisionError"),
    ],
)
def test_what_a_plugin_adds_to_the_host_has_to_be_its_own(
    install: Callable, check: str, old: str, new: str, words: str
) -> None:
    """Names that no other plugin has, and texts for those who read them."""
    install((HEAD + EVENT + METRICS + COMMANDS).replace(old, new))
    assert words in failure({"metrics": "has-metrics-of-its-own", "commands": "has-commands"}[check])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("obj['spec']['nodeName']", "KeyError: 'spec'"),
        ("(obj.labels or {})['app']", "KeyError: 'app'"),
        ("obj['metadata']['labels']['x'] = 'y'", "fail on odd objects"),
    ],
)
def test_a_hook_that_trusts_objects_fails(install: Callable, code: str, words: str) -> None:
    """The message has the object, and the traceback with the line of the plugin."""
    install(f"{HEAD}\n@declctl.hookimpl\ndef declctl_event(obj):\n    {code}\n")
    message = failure("survives-odd-objects", config=None)
    assert words in message
    assert "declctl_pager_test.py" in message


COLLECTOR = METRICS.replace("Counter", "Gauge").replace("registry=registry)", "registry=registry)" + BROKEN)
TRANSFORM = "\n@declctl.hookimpl\ndef declctl_transform(obj): return {**obj, 'x': obj['spec']['x']}\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        # A scrape would leave it out.
        (COLLECTOR, "metrics of pager are left out of /metrics"),
        # The process goes on without the object and counts it, which is a fault of the plugin.
        (TRANSFORM, "declctl_transform of pager fails on odd objects: "),
    ],
    ids=["collector", "transform"],
)
def test_a_plugin_without_which_a_controller_goes_on_fails(install: Callable, code: str, words: str) -> None:
    install(HEAD + EVENT + code)
    assert words in failure("survives-odd-objects", config=None)


def _schema(text: str) -> str:
    return f"{HEAD}\n@declctl.hookimpl\ndef declctl_config_schema():\n    return {text}\n"


@pytest.mark.parametrize(
    ("check", "schema", "words"),
    [
        ("has-a-described-schema", "{'type': 'strange'}", "is not a JSON Schema"),
        (
            "has-a-described-schema",
            "{'properties': {'a': {'description': 'A.', 'items': {'properties': {'b': {}}}}}}",
            "no description in the schema, which messages show: config.a[].b",
        ),
        ("has-a-described-schema", "1/0", "ZeroDivisionError"),
        (
            "has-valid-defaults",
            "{'properties': {'url': {}, 'n': {'type': 'integer', 'default': '5'}}}",
            "a default or example of config.n does not match the schema: config: this is not of type",
        ),
        (
            "has-valid-defaults",
            "{'properties': {'url': {'examples': ['https://a', 5], 'type': 'string'}}}",
            "a default or example of config.url",
        ),
        ("has-valid-defaults", "{'required': ['token']}", "'token' is a required property"),
        (
            "tells-faults-of-a-config",
            "{'properties': {'url': {'type': 'string'}}}",
            "a misspelled key of the config goes unnoticed",
        ),
    ],
)
def test_a_schema_that_helps_nobody_fails(install: Callable, check: str, schema: str, words: str) -> None:
    """No schema, no descriptions, wrong defaults, silence about a misspelled key."""
    install(_schema(schema))
    assert words in failure(check)


def test_a_required_key_needs_a_config_of_the_test(install: Callable) -> None:
    """The message says how to give one."""
    install(HEAD + SCHEMA + EVENT)
    assert 'write conformance("pager", config={…})' in failure("has-valid-defaults", config=None)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (LEAKS_MODULES, "each reload adds modules to the process: declctl_pager_"),
        (LEAKS_THREADS, "two reloads have left 2 threads: leaked, leaked"),
        (NEVER_ENDS, "threads go on after the end; declctl_shutdown has to end them: immortal"),
    ],
    ids=["module", "thread", "end"],
)
def test_a_plugin_that_leaves_something_behind_fails(install: Callable, code: str, words: str) -> None:
    """A module or a thread more with each reload would fill a process that lives for months."""
    install(HEAD + EVENT + code)
    try:
        assert words in failure("survives-reloads", config=None)
    finally:
        for name in [name for name in sys.modules if name.startswith("declctl_pager_")]:
            del sys.modules[name]


def test_without_pytest_all_failures_come_at_once(install: Callable) -> None:
    """`check_plugin` makes all checks, and raises once."""
    install(_schema("{'properties': {'a': {'default': 1, 'type': 'string'}}}"))
    with pytest.raises(AssertionError) as caught:
        check_plugin("pager")
    heads = [line.partition(":")[0] for line in str(caught.value).splitlines()]
    failed = ["has-a-described-schema", "has-valid-defaults", "tells-faults-of-a-config"]
    assert [head for head in heads if head in CHECKS] == failed
