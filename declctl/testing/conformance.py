"""The conformance of a plugin: what every manifest may rely on, checked by one line of its tests.

    from declctl.testing.conformance import conformance

    test_conformance = conformance("slack", config={"channel": "#ops"})

pytest makes a test of each check. Other test runners call `check_plugin`. The plugin has to be installed in
the environment of the tests, for example with `pip install -e .`.
"""

import json
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from declctl.codes import PLUGIN_CONFIG
from declctl.errors import EntryPointError, HandlerFailed
from declctl.hooks.bundle import Bundle
from declctl.hooks.calls import call
from declctl.hooks.plugin_config import PluginConfigError, check_config, check_schema
from declctl.hooks.plugins import (
    HOOKSPEC_VERSION,
    RANGE_ATTRIBUTE,
    find,
    load,
    require_hookspec,
    written_range,
)
from declctl.hooks.registry import ARGUMENTS, PluginRegistry
from declctl.objects import KubeObject
from declctl.runtime.checking.check import check
from declctl.testing.controller import CHILDREN, ControllerUnderTest, Line, until

__all__ = ["check_plugin", "conformance"]

_EVENT_HOOKS = ("declctl_event", "declctl_added", "declctl_modified", "declctl_deleted")
_API = "declctl.dev/v1alpha1"
_MISSPELLED = "conformanceMisspelled"
# Values of each JSON type: at least one of them does not fit a schema that says anything.
_WRONG: tuple[Any, ...] = ({"conformance": 1}, ["conformance"], "conformance: wrong", -987654.5, True, None)
_LONG = 100_000  # characters of a long text
_DEEP = 40  # levels of a nested object
_SECONDS = 30.0  # the longest wait for the plugin
_LOOK_SECONDS = 0.5  # between two looks whether a call has failed
_END_SECONDS = 5.0  # the longest wait for its threads to end


class _Plugin(NamedTuple):
    """What is checked, and how a manifest uses it."""

    name: str
    config: Mapping[str, Any]
    handler: Mapping[str, Any]
    objects: Sequence[KubeObject]
    resource: Mapping[str, Any]


def conformance(
    name: str,
    *,
    config: Mapping[str, Any] | None = None,
    handler: Mapping[str, Any] | None = None,
    resource: Mapping[str, Any] | None = None,
    objects: Iterable[KubeObject] = (),
) -> Callable[[str], None]:
    """A test function for pytest that is one test for each check.

    - `name`: that of the plugin in manifests, its entry point in the group `declctl`.
    - `config`: a valid config, if the schema requires keys.
    - `handler`: more fields of its handler in the manifest, such as `{"applies": […]}`.
    - `resource`: `apiVersion` and `kind` of the objects that it handles; pods by default.
    - `objects`: more objects for its hooks, beside the odd ones that each plugin has to survive.

    Calls of the plugin run as in production, over an API server in memory. A plugin that calls another
    service needs a fixture of its tests that stands in for it. Needs pytest.
    """
    import pytest  # late: other runners use `check_plugin`

    plugin = _plugin(name, config, handler, resource, objects)

    @pytest.mark.parametrize("check", CHECKS)
    def test_conformance(check: str) -> None:
        CHECKS[check](plugin)

    return test_conformance


def check_plugin(
    name: str,
    *,
    config: Mapping[str, Any] | None = None,
    handler: Mapping[str, Any] | None = None,
    resource: Mapping[str, Any] | None = None,
    objects: Iterable[KubeObject] = (),
) -> None:
    """Make all checks; raises AssertionError with all that fail. Parameters as of `conformance`."""
    plugin, failed = _plugin(name, config, handler, resource, objects), list[str]()
    for title, each in CHECKS.items():
        try:
            each(plugin)
        except AssertionError as error:
            failed.append(f"{title}: {error}")
    if failed:
        raise AssertionError("\n".join(failed))


def _plugin(
    name: str,
    config: Mapping[str, Any] | None,
    handler: Mapping[str, Any] | None,
    resource: Mapping[str, Any] | None,
    objects: Iterable[KubeObject],
) -> _Plugin:
    kind = {"apiVersion": "v1", "kind": "Pod", **(resource or {})}
    return _Plugin(name, config or {}, handler or {}, tuple(objects), kind)


# The checks


def _loads(plugin: _Plugin) -> None:
    """It is installed, can be imported, and its hooks match their specifications."""
    registry = _registry(plugin)
    hooks = [hook for hook in ARGUMENTS if registry.of(hook, [plugin.name])]
    assert hooks, f"{plugin.name} implements no hook: mark a function of its name with @declctl.hookimpl"


def _declares_its_hookspec(plugin: _Plugin) -> None:
    """It declares the range of versions of the hook specification that it supports, as a text."""
    with _as_assertion():
        found = find(plugin.name, None)
        loaded = load(found)
    declared = getattr(loaded, RANGE_ATTRIBUTE, None)
    example = f'such as {RANGE_ATTRIBUTE} = ">={HOOKSPEC_VERSION},<{int(HOOKSPEC_VERSION.split(".")[0]) + 1}"'
    assert declared is not None, (
        f"{plugin.name} does not declare the versions of hooks that it supports, {example}"
    )
    assert written_range(found) == declared, (
        f"{RANGE_ATTRIBUTE} is not written as a text in {found.entry.module}, so that it can't be read "
        f"before the import: write it there, {example}"
    )
    with _as_assertion():
        require_hookspec(found, declared)


def _has_a_described_schema(plugin: _Plugin) -> None:
    """The schema of its config is a JSON Schema, with a description for each property."""
    for schema in _schemas(plugin):
        with _as_assertion():
            check_schema(schema)
        lacking = [path for path, each in _properties(schema, "config") if not each.get("description")]
        assert not lacking, f"no description in the schema, which messages show: {', '.join(lacking)}"


def _has_valid_defaults(plugin: _Plugin) -> None:
    """Each default and example fits its own schema, and the config of all defaults is valid."""
    for schema in _schemas(plugin):
        for path, each in _properties(schema, "config"):
            samples = ([each["default"]] if "default" in each else []) + list(each.get("examples", ()))
            for sample in samples:
                # References are resolved in the whole schema.
                wanted = {**each, **{key: schema[key] for key in ("$defs", "definitions") if key in schema}}
                _assert_fits(wanted, sample, f"a default or example of {path}")
        properties = cast("Mapping[str, Any]", schema.get("properties", {}))
        defaults = {key: each["default"] for key, each in properties.items() if "default" in each}
        given = {**defaults, **plugin.config}
        advice = (
            ""
            if plugin.config
            else f'; if it requires keys, write conformance("{plugin.name}", config={{…}})'
        )
        _assert_fits(schema, given, f"the config {json.dumps(given)}{advice}")


def _tells_faults_of_a_config(plugin: _Plugin) -> None:
    """Wrong values of a config are faults at their places in the manifest, all at once."""
    for schema in _schemas(plugin):
        properties = cast("Mapping[str, Any]", schema.get("properties", {}))
        wrong: dict[str, Any] = {}
        for key in properties:
            bad = next((value for value in _WRONG if _faulty(schema, plugin.config, key, value)), _WRONG)
            if bad is not _WRONG:  # a schema may allow every value
                wrong[key] = bad
        is_open = schema.get("additionalProperties", True) is not False
        is_open = is_open and schema.get("unevaluatedProperties", True) is not False
        assert not is_open or "additionalProperties" in schema or not properties, (
            'a misspelled key of the config goes unnoticed: write "additionalProperties": False in the '
            "schema, or True if any key is meant"
        )
        config = {**plugin.config, **wrong} | ({} if is_open else {_MISSPELLED: 1})
        expected = [*wrong, *([] if is_open else [_MISSPELLED])]
        with _manifest(plugin, config=config) as path:
            lines = path.read_text("utf-8").splitlines()
            found = check(str(path), children=CHILDREN).errors
        told = [lines[fault.line - 1].strip() for fault in found if fault.code == PLUGIN_CONFIG]
        silent = [key for key in expected if not any(line.startswith(f'"{key}"') for line in told)]
        assert not silent, f"no fault was told at the place of: {', '.join(silent)}; told was: {found}"


def _has_metrics_of_its_own(plugin: _Plugin) -> None:
    """`declctl_metrics` raises nothing; each metric has a name of the plugin and a help, and can be read."""
    registry = _registry(plugin)
    for hook in registry.of("declctl_metrics", [plugin.name]):
        from declctl.hooks.metrics import MetricsRegistry, own_prefixes  # late: few plugins have metrics

        # Twice: a plugin may leave the manifest, and come back.
        for _ in range(2):
            metrics = MetricsRegistry(plugin.name, {}, (hook.function,), is_plugin=True)
            try:
                call(hook, {"registry": metrics})
            except HandlerFailed as failure:
                raise AssertionError(str(failure)) from failure
            prefixes = own_prefixes(plugin.name)
            for family in (each for collector in metrics.collectors for each in collector.collect()):
                assert family.name.startswith(prefixes), (
                    f"the metric {family.name} may be one of others: begin its name with {prefixes[0]}"
                )
                assert family.documentation, f"the metric {family.name} has no help text"


def _has_commands(plugin: _Plugin) -> None:
    """`declctl_commands` raises nothing, typer can read its commands, and each has a help text."""
    registry = _registry(plugin)
    for hook in registry.of("declctl_commands", [plugin.name]):
        import typer.main  # late: few plugins have commands

        app = typer.Typer(name=plugin.name, add_completion=False)
        app.callback()(lambda: None)
        try:
            call(hook, {"app": app})
        except HandlerFailed as failure:
            raise AssertionError(str(failure)) from failure
        commands = typer.main.get_group(app).commands
        assert commands, "declctl_commands adds no command"
        silent = [name for name, command in commands.items() if not command.get_short_help_str()]
        assert not silent, f"no docstring, which the help shows: {', '.join(silent)}"


def _survives_odd_objects(plugin: _Plugin) -> None:
    """Its hooks are called for empty and odd objects, and raise nothing."""
    with (
        _manifest(plugin) as path,
        ControllerUnderTest(str(path), objects=_odd_objects(plugin)) as controller,
    ):
        _use(plugin, controller)
        _assert_calm(plugin, controller)


def _survives_reloads(plugin: _Plugin) -> None:
    """Reloads and an end leave no generation, module or thread behind."""
    before = _threads()
    with _manifest(plugin) as path:
        with ControllerUnderTest(str(path), objects=_odd_objects(plugin)) as controller:
            _use(plugin, controller)
            _reload(plugin, controller)
            # What a plugin, or declctl, imports or starts once is no leak: two more reloads are compared.
            modules, threads = set(sys.modules), _kinds(_threads())
            for _ in range(2):
                _reload(plugin, controller)
            _assert_calm(plugin, controller)
            until(
                "the replaced generations are gone (status.oldGenerations says what holds them)",
                lambda: controller.status().generations_alive == 1,
                timeout=_SECONDS,
            )
            new = sorted(name for name in set(sys.modules) - modules if not _is_of_declctl(name))
            assert not new, f"each reload adds modules to the process: {', '.join(new)}"
            # A thread that is about to end is no leak.
            deadline = time.monotonic() + _END_SECONDS
            while (more := _kinds(_threads()) - threads) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not more, (
                f"two reloads have left {more.total()} threads: {', '.join(sorted(more.elements()))}"
            )
        deadline = time.monotonic() + _END_SECONDS
        while (left := _threads() - before) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left, f"threads go on after the end; declctl_shutdown has to end them: {_names(left)}"


CHECKS: Mapping[str, Callable[[_Plugin], None]] = {
    "loads": _loads,
    "declares-its-hookspec": _declares_its_hookspec,
    "has-a-described-schema": _has_a_described_schema,
    "has-valid-defaults": _has_valid_defaults,
    "tells-faults-of-a-config": _tells_faults_of_a_config,
    "has-metrics-of-its-own": _has_metrics_of_its_own,
    "has-commands": _has_commands,
    "survives-odd-objects": _survives_odd_objects,
    "survives-reloads": _survives_reloads,
}
"""The checks by name, in the order in which they are made."""


# What the checks share


@contextmanager
def _as_assertion() -> Generator[None]:
    """Turn a fault of the plugin into a failed test, with its advice and the end of its traceback."""
    try:
        yield
    except EntryPointError as error:
        parts = (error.message, error.suggestion, error.traceback)
        raise AssertionError("\n".join(part for part in parts if part)) from error


def _registry(plugin: _Plugin) -> PluginRegistry:
    registry = PluginRegistry(Bundle("", {}))
    with _as_assertion():
        registry.add_plugin(plugin.name, load(find(plugin.name, None)))
    return registry


def _schemas(plugin: _Plugin) -> Sequence[Mapping[str, Any]]:
    """What its hook `declctl_config_schema` returns: one schema, or none."""
    try:
        hooks = _registry(plugin).of("declctl_config_schema", [plugin.name])
        return [call(hook, {}) for hook in hooks]
    except HandlerFailed as failure:
        raise AssertionError(str(failure)) from failure


def _properties(schema: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The properties of a schema at any depth, with their places."""
    if not isinstance(schema, Mapping):
        return
    given = cast("Mapping[str, Any]", schema)
    for name, each in cast("Mapping[str, Any]", given.get("properties") or {}).items():
        if isinstance(each, Mapping) and "const" not in each:  # a constant tells alternatives apart
            yield f"{path}.{name}", cast("Mapping[str, Any]", each)
        yield from _properties(each, f"{path}.{name}")
    yield from _properties(given.get("items"), f"{path}[]")
    for keyword in ("allOf", "anyOf", "oneOf"):
        for each in cast("Iterable[Any]", given.get(keyword) or ()):
            yield from _properties(each, path)


def _assert_fits(schema: Mapping[str, Any], value: Any, what: str) -> None:
    try:
        check_config(schema, value)
    except PluginConfigError as error:
        faults = "; ".join(f"{fault.where}: {fault.message}" for fault in error.faults)
        raise AssertionError(f"{what} does not match the schema: {faults}") from error


def _faulty(schema: Mapping[str, Any], config: Mapping[str, Any], key: str, value: Any) -> bool:
    """Whether a value is wrong for a key by itself."""
    try:
        check_config(schema, {**config, key: value})
    except PluginConfigError as error:
        return any(fault.path == (key,) for fault in error.faults)
    return False


@contextmanager
def _manifest(plugin: _Plugin, *, config: Mapping[str, Any] | None = None) -> Generator[Path]:
    """A manifest with the plugin, and with a handler for each mode of which it has hooks."""
    registry = _registry(plugin)

    def has(*hooks: str) -> bool:
        return any(registry.of(hook, [plugin.name]) for hook in hooks)

    handler = {"resourceRef": {"name": "objects"}, "pluginRef": {"name": plugin.name}, **plugin.handler}
    handlers: list[dict[str, Any]] = []
    if has(*_EVENT_HOOKS):
        handlers.append({"name": "events", **handler})
    if has("declctl_reconcile"):
        finalizer = {"finalizer": "conformance.declctl.dev/check"} if has("declctl_finalize") else {}
        handlers.append({"name": "keys", "mode": "Reconcile", **finalizer, **handler})
    document = {
        "apiVersion": _API,
        "kind": "Controller",
        "metadata": {"name": "conformance"},
        "spec": {
            "plugins": [{"name": plugin.name, "config": dict(plugin.config if config is None else config)}],
            "reload": {"preflightTimeout": "60s"},  # conformance is no matter of speed
            "resources": [{"name": "objects", **plugin.resource}],
            "handlers": handlers,
        },
    }
    with tempfile.TemporaryDirectory(prefix="declctl-conformance-") as folder:
        path = Path(folder) / "manifest.yaml"
        # JSON is YAML; with a line for each key, a fault has a line of its own.
        path.write_text(json.dumps(document, indent=2), "utf-8")
        yield path


def _odd_objects(plugin: _Plugin) -> list[KubeObject]:
    """What an API server may send: a name alone, empty and null parts, long, deep and strange values."""
    deep: Any = "bottom"
    for _ in range(_DEEP):
        deep = {"next": deep}
    strange = {"unknownField": [1, None, {"a": []}], "text": "ä \u202e \x07 {} %s ${env:X} 🎉", "big": 2**63}
    odd: dict[str, dict[str, Any]] = {
        "bare": {},
        "empty": {"spec": {}, "status": {}},
        "null": {"spec": None, "status": None},
        "strange": {"spec": strange, "status": {"conditions": [{"type": "Ready"}], **strange}},
        "long": {"spec": {"text": "x" * _LONG}},
        "deep": {"spec": deep},
    }
    metadata: dict[str, dict[str, Any]] = {
        "empty": {"labels": {}, "annotations": {}},
        "strange": {
            "labels": {"empty": "", "a.b/c": "d"},
            "annotations": {"text": strange["text"]},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "0"}],
        },
    }
    kind = {key: plugin.resource[key] for key in ("apiVersion", "kind")}
    made: list[KubeObject] = [
        {**kind, "metadata": {"name": name, "namespace": "default", **metadata.get(name, {})}, **parts}
        for name, parts in odd.items()
    ]
    return [*made, *plugin.objects]


def _use(plugin: _Plugin, controller: ControllerUnderTest) -> None:
    """Let it handle all objects, a change of some, a deletion, and the object that comes back."""
    kind = str(plugin.resource["kind"])
    controller.wait_ready(_SECONDS)
    _settle(plugin, controller)
    for name in ("bare", "strange", "null"):
        patch = {"metadata": {"labels": {"conformance": "patched"}}, "spec": {"conformance": name}}
        controller.sandbox.patch(kind, name, patch)
        controller.sandbox.patch(kind, name, {"metadata": {"labels": None}, "spec": None})
    _settle(plugin, controller)
    controller.sandbox.delete(kind, "bare", "default")
    _settle(plugin, controller)
    if not any(obj["metadata"]["name"] == "bare" for obj in controller.sandbox.objects(kind, "default")):
        controller.sandbox.create(_odd_objects(plugin)[0])
    _settle(plugin, controller)


def _reload(plugin: _Plugin, controller: ControllerUnderTest) -> None:
    outcome = controller.reload(force=True)
    assert outcome.result == "Applied", f"a reload was refused: {outcome.message}"
    _use(plugin, controller)


def _settle(plugin: _Plugin, controller: ControllerUnderTest) -> None:
    """Wait until all is handled. Raises as soon as a call has failed: it would be retried without an end."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            controller.wait_idle(_LOOK_SECONDS)
        except AssertionError:
            _assert_calm(plugin, controller)
            if time.monotonic() >= deadline:
                raise
        else:
            return


def _assert_calm(plugin: _Plugin, controller: ControllerUnderTest) -> None:
    """No call and no scrape has failed, and declctl has logged no warning about the plugin."""
    controller.metrics()
    for figures in controller.status().handlers:
        trace = _traceback(controller.log.lines)
        bad = figures.failed + figures.retried + figures.zombies
        assert not bad, f"calls of {plugin.name} fail on odd objects: {figures.last_error}{trace}"
    for resource in controller.status().resources:
        fault = resource.decoding.last_fault
        assert fault is None, f"declctl_transform of {plugin.name} fails on odd objects: {fault}"
    wrong = [
        line
        for line in tuple(controller.log.lines)
        if not line.by_handler and line.level in ("warning", "error")
    ]
    assert not wrong, f"declctl has warned: {'; '.join(line.event for line in wrong)}{_traceback(wrong)}"


def _traceback(lines: Iterable[Line]) -> str:
    found = next((line.fields["traceback"] for line in tuple(lines) if line.fields.get("traceback")), None)
    return "" if found is None else f"\n{found}"


def _threads() -> set[threading.Thread]:
    """The threads that are not of declctl, nor of the test."""
    own = ("declctl", "controller under test", "sandbox", "asyncio_", "MainThread", "pytest", "memory sweep")
    return {thread for thread in threading.enumerate() if not thread.name.startswith(own)}


def _kinds(threads: Iterable[threading.Thread]) -> Counter[str]:
    """How many threads have one name, its numbers left out: a thread that replaces another is none more."""
    return Counter(re.sub(r"\d+", "N", thread.name) for thread in threads)


def _names(threads: Iterable[threading.Thread]) -> str:
    return ", ".join(sorted(thread.name for thread in threads))


def _is_of_declctl(module: str) -> bool:
    return module.partition(".")[0] in ("declctl", "_declctl_gen")
