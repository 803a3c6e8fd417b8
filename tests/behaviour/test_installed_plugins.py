"""Installed plugins: one object over generations, prepared and torn down when they really change."""

import importlib
import sys

import pytest

from declctl.runtime.checking.check import check
from declctl.testing import until

PLUGIN = """
import declctl
from blackboard import tell

@declctl.hookimpl
def declctl_startup(ctx): tell("startup", ctx.generation)
@declctl.hookimpl
def declctl_prepare(ctx): tell("prepare", ctx.generation, dict(ctx.config))
@declctl.hookimpl
def declctl_teardown(ctx): tell("teardown", ctx.generation)
@declctl.hookimpl
def declctl_shutdown(ctx): tell("shutdown", ctx.generation)
@declctl.hookimpl
def declctl_reload(outcome): tell("reload", str(outcome.result))
@declctl.hookimpl
def declctl_event(change, ctx): tell("event", ctx.config["level"])
"""


@pytest.fixture
def plugin(install) -> None:
    """An installed plugin named `tester`."""
    install("tester", PLUGIN)


def _write_optional(rig) -> None:
    """A handler of the plugin, which may be left out, beside one of a file."""
    rig.more = "  plugins:\n    - {name: tester, onError: Disable, config: {level: 1}}\n"
    rig.handlers = ["- {name: it, resourceRef: {name: maps}, pluginRef: {name: tester}}"]
    rig.handler("tell")
    rig.write("def tell(change): ...\n")


def _break(tmp_path, code: str) -> None:
    (tmp_path / "site" / "dc_tester.py").write_text(code)
    sys.modules.pop("dc_tester", None)
    importlib.invalidate_caches()


_SCHEMA_RAISES = PLUGIN + "@declctl.hookimpl\ndef declctl_config_schema(): raise OSError('no schema')\n"


@pytest.mark.parametrize("code", ["import no_such_module\n", _SCHEMA_RAISES], ids=["import", "schema"])
def test_a_plugin_that_is_left_out_is_told_everywhere(rig, plugin, tmp_path, config_map, code) -> None:
    """`onError: Disable`: a log line, Degraded, its state, and counters that don't call it a success.

    Nothing of it is called, its life-cycle hooks neither.
    """
    _break(tmp_path, code)
    _write_optional(rig)
    runs = rig.run(objects=[config_map(name) for name in "abc"])
    runs.sandbox.patch("ConfigMap", "a", {"data": {"x": "y"}})
    runs.wait_idle()
    figures, status = runs.handler("it"), runs.status()
    assert (figures.disabled, figures.delivered, figures.succeeded, figures.dropped) == (True, 0, 0, 4)
    assert figures.queued == 0
    assert (runs.handler("tell").disabled, runs.handler("tell").succeeded) == (False, 4)
    (loaded,) = status.plugins
    assert (loaded.state, bool(loaded.reason)) == ("Disabled", True)
    until("it is degraded", lambda: runs.condition("Degraded").status == "True")
    degraded = runs.condition("Degraded")
    assert degraded.reason == "PluginDisabled"
    assert str(loaded.reason) in degraded.message
    (line,) = [line for line in runs.log.events("warning") if "plugin tester is disabled" in line]
    assert str(loaded.reason) in line
    assert "its handlers it are not called" in line
    assert "`declctl reload` tries it again" in line
    trace = str(runs.log.find("plugin tester is disabled").fields["traceback"])
    assert trace.splitlines()[-1].startswith(("ModuleNotFoundError: ", "OSError: no schema"))
    assert "dc_tester.py" in trace
    assert runs.stop() == 0
    assert rig.board.told == []


def test_a_plugin_that_is_mended_hears_what_is_there(rig, plugin, tmp_path, config_map) -> None:
    """`declctl reload` tries it again with the same files; it hears the cache once, as a late joiner."""
    _break(tmp_path, "1/0\n")
    _write_optional(rig)
    runs = rig.run(objects=[config_map("a"), config_map("b")])
    runs.wait_idle()
    assert rig.told("event") == []
    assert runs.on_machinery(runs.runtime.reload(asked=False), 30).result == "Unchanged"
    _break(tmp_path, PLUGIN)
    outcome = runs.reload()
    assert outcome.result == "Applied"
    assert "~plugin tester (can be loaded now)" in outcome.line
    assert outcome.lists == 0
    runs.wait_idle()
    assert len(rig.told("event")) == 2
    runs.sandbox.create(config_map("c"))
    runs.wait_idle()
    figures = runs.handler("it")
    assert len(rig.told("event")) == 3
    assert (figures.disabled, figures.delivered, figures.succeeded, figures.dropped) == (False, 3, 3, 2)
    assert runs.handler("tell").delivered == 3
    until("it is degraded no more", lambda: runs.condition("Degraded").status == "False")
    assert any("plugin tester is loaded" in line for line in runs.log.events("info"))
    assert runs.reload().result == "Unchanged"


def test_validate_says_which_plugin_is_left_out(rig, plugin, tmp_path) -> None:
    """A warning at its name: the manifest is valid, and starts without it."""
    _break(tmp_path, "1/0\n")
    _write_optional(rig)
    rig.reload_policy = "settle: 20ms"
    rig.write()
    checked = check(str(rig.folder.path / "manifest.yaml"))
    (warning,) = checked.diagnostics
    assert (warning.severity, warning.code, checked.errors) == ("warning", "DCL083", ())
    assert "ZeroDivisionError" in warning.message
    assert "it is left out (onError: Disable)" in warning.message


_WITH_SCHEMA = (
    PLUGIN
    + """@declctl.hookimpl
def declctl_config_schema():
    levels = {"properties": {"level": {"type": "integer"}, "mode": {"enum": ["fast", "exact"]}}}
    return {"additionalProperties": False, **levels}
"""
)


@pytest.mark.thorough
@pytest.mark.parametrize("preflight", ["On", "Off"])
def test_a_reload_tells_all_faults_of_a_config(rig, plugin, tmp_path, preflight) -> None:
    """An edit with two slips in a plugin's config is refused once, with both places."""
    _break(tmp_path, _WITH_SCHEMA)
    rig.reload_policy = f"settle: 20ms, preflight: {preflight}"
    _write(rig, 1)
    runs = rig.start()
    rig.more = "  plugins:\n    - name: tester\n      config:\n        levl: 1\n        mode: exakt\n"
    rig.write()
    outcome = runs.reload()
    assert (outcome.result, outcome.reason) == ("Refused", "Invalid")
    lines = (rig.folder.path / "manifest.yaml").read_text().splitlines()
    found = [(lines[d.line - 1][d.column - 1 :], d.message, d.suggestion) for d in outcome.diagnostics]
    assert found == [
        ("levl: 1", "tester: config: unknown key 'levl'", 'did you mean "level"?'),
        ("exakt", 'tester: config.mode: this is none of ["fast", "exact"]', 'did you mean "exact"?'),
    ]


_FLAKY = """
import declctl
from blackboard import tell
import blackboard

@declctl.hookimpl
def declctl_event(change, ctx):
    tell("called", str(change.key))
    if blackboard.down:
        raise OSError("the pager is down")
"""


def _flaky(mode: str) -> str:
    """The code of the plugin with a hook for a mode."""
    if mode == "Event":
        return _FLAKY
    return _FLAKY.replace("declctl_event(change", "declctl_reconcile(request").replace("change.", "request.")


def _write_flaky(rig, *, mode: str = "Event", failures: int = 3) -> None:
    breaker = f"circuitBreaker: {{failures: {failures}, initialBackoff: 100ms, maxBackoff: 200ms}}"
    rig.more = f"  plugins:\n    - {{name: tester, onError: Disable, {breaker}}}\n"
    retry = "retry: {initialBackoff: 10ms, maxBackoff: 10ms}"
    rig.handlers = [
        f"- {{name: it, resourceRef: {{name: maps}}, pluginRef: {{name: tester}}, mode: {mode}, {retry}}}"
    ]
    rig.handler("tell")
    rig.write("def tell(change): ...\n")


@pytest.mark.parametrize("mode", ["Event", "Reconcile"])
def test_a_plugin_whose_calls_fail_is_suspended_and_called_again_when_they_succeed(
    rig, plugin, tmp_path, config_map, monkeypatch, mode
) -> None:
    """Its state, `Degraded`, the log and the counters say so; nothing is lost, and other handlers go on."""
    monkeypatch.setattr(rig.board, "down", True, raising=False)
    _break(tmp_path, _flaky(mode))
    _write_flaky(rig, mode=mode)
    objects = [config_map(name) for name in "abcdefgh"]
    runs = rig.run(objects=objects)
    until("a trial has failed", lambda: runs.log.find("on trial, has failed: OSError: the pager is down"))
    calls = len(rig.told("called"))
    (loaded,) = runs.status().plugins
    assert loaded.state == "Suspended"
    assert loaded.reason.endswith("calls in a row have failed, the last with OSError: the pager is down")
    assert (loaded.circuit_breaker.opened, loaded.circuit_breaker.state != "Closed") == (1, True)
    until("it is degraded", lambda: runs.condition("Degraded").reason == "PluginSuspended")
    assert "plugin tester is suspended" in runs.condition("Degraded").message
    until("the other handler has them all", lambda: runs.handler("tell").succeeded == 8)
    assert calls <= 3 + loaded.circuit_breaker.trials + 2, "it is called on trial only"
    rig.board.down = False
    runs.wait_idle()
    figures = runs.handler("it")
    assert (figures.succeeded, figures.failed, figures.dropped, figures.queued) == (8, 0, 0, 0)
    until("it is degraded no more", lambda: runs.condition("Degraded").status == "False")
    assert runs.log.find("plugin tester is called again") is not None
    assert [(p.state, p.circuit_breaker.state) for p in runs.status().plugins] == [("Ready", "Closed")]


def test_a_reload_of_handlers_leaves_a_plugin_suspended(
    rig, plugin, tmp_path, config_map, monkeypatch
) -> None:
    """An edit that is not about the plugin neither calls it nor forgets how long it has been down."""
    monkeypatch.setattr(rig.board, "down", True, raising=False)
    _break(tmp_path, _FLAKY)
    _write_flaky(rig)
    rig.more = rig.more.replace("100ms", "1h").replace("200ms", "1h")
    rig.write()
    runs = rig.start(objects=[config_map(name) for name in "abcdefgh"])
    until("it is suspended", lambda: [p.state for p in runs.status().plugins] == ["Suspended"])
    calls = len(rig.told("called"))
    rig.apply("def tell(change): 'edited'\n")
    runs.sandbox.create(config_map("late"))
    until("the other handler has it", lambda: runs.handler("tell").succeeded >= 9)
    assert [p.state for p in runs.status().plugins] == ["Suspended"]
    assert len(rig.told("called")) == calls
    # Another config may be what it needs: it is called at once.
    rig.board.down = False
    rig.more = rig.more.replace("onError", "config: {url: new}, onError")
    rig.apply()
    until("it is called", lambda: len(rig.told("called")) > calls)
    assert [p.state for p in runs.status().plugins] == ["Ready"]


def _write(rig, level: int, code: str = "") -> None:
    rig.more = f"  plugins:\n    - {{name: tester, config: {{level: {level}}}}}\n"
    rig.handlers = ["- {name: it, resourceRef: {name: maps}, pluginRef: {name: tester}}"]
    rig.handler("tell")
    rig.write(f"def tell(change): ...\n{code}")


def test_a_plugin_is_prepared_once_until_its_config_changes(rig, plugin, config_map) -> None:
    """Edited handler files leave the plugin alone; an edited config means prepare, then teardown.

    Of a broken handler file beside it the plugin hears the attempt, and nothing else.
    """
    _write(rig, 1)
    runs = rig.run()
    assert rig.told("prepare") == [("prepare", 1, {"level": 1})]
    _write(rig, 1, "def (")
    assert runs.reload().result == "Refused"
    assert [row[0] for row in rig.board.told] == ["startup", "prepare", "reload"]
    _write(rig, 1, "X = 2")
    assert runs.reload().result == "Applied"
    until("the first is retired", lambda: runs.status().generations_alive == 1)
    assert (len(rig.told("prepare")), rig.told("teardown")) == (1, [])
    _write(rig, 2, "X = 2")
    assert runs.reload().result == "Applied"
    until("the second is retired", lambda: runs.status().generations_alive == 1)
    assert rig.told("prepare")[1:] == [("prepare", 3, {"level": 2})]
    assert rig.told("teardown") == [("teardown", 2)]
    runs.sandbox.create(config_map("m"))
    runs.wait_idle()
    assert rig.told("event") == [("event", 2)]
    assert runs.stop() == 0
    assert rig.told("startup") == [("startup", 1)]
    assert rig.told("shutdown") == [("shutdown", 3)]
    assert rig.told("teardown")[1:] == [("teardown", 3)]
    assert [row[1] for row in rig.told("reload")] == ["Refused", "Applied", "Applied"]


def _upgrade(site, version: str) -> None:
    """What `pip install --upgrade` leaves on disk."""
    old = next(site.glob("dc_tester-*.dist-info"))
    new = old.with_name(f"dc_tester-{version}.dist-info")
    old.rename(new)
    (new / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dc-tester\nVersion: {version}\n")
    (site / "dc_tester.py").write_text(PLUGIN.replace('"event"', f'"event {version}"'))
    importlib.invalidate_caches()


def test_an_upgraded_plugin_needs_a_restart_and_goes_on_as_it_was(rig, plugin, tmp_path, config_map) -> None:
    """An upgrade of a plugin beneath a running process: a reload says so, and nothing is half new.

    A manifest that needs 2.0, which is installed but not loaded, is refused with the advice to restart.
    """
    _write(rig, 1)
    runs = rig.run()
    _upgrade(tmp_path / "site", "2.0")
    outcome = runs.reload()
    assert outcome.result == "Unchanged"
    assert outcome.line.endswith(
        "!plugin tester (1.0 is loaded, 2.0 is installed); "
        "plugin tester takes effect when the process starts again"
    )
    _write(rig, 1, "X = 2")
    outcome = runs.reload()
    assert outcome.result == "Applied"
    assert [(step.kind, step.subject) for step in outcome.steps if step.kind == "RestartRequired"] == [
        ("RestartRequired", "plugin tester")
    ]
    assert [(p.name, p.version, p.state) for p in runs.status().plugins] == [("tester", "1.0", "Ready")]
    runs.sandbox.create(config_map("m"))
    runs.wait_idle()
    assert rig.told("event") == [("event", 1)]
    assert (len(rig.told("prepare")), rig.told("teardown")) == (1, [])
    rig.more = rig.more.replace("name: tester,", "name: tester, version: '>=2',")
    rig.write()
    outcome = runs.reload()
    assert (outcome.result, outcome.reason) == ("Refused", "RestartRequired")
    assert "this process has loaded 1.0" in outcome.message
    assert [d.code for d in outcome.diagnostics if d.severity == "error"] == ["DCL087"]


@pytest.mark.guarantee("G21")
@pytest.mark.parametrize("left_out", [False, True])
def test_going_back_leaves_a_plugin_alone_that_both_have(rig, plugin, left_out) -> None:
    """One object for both: it is neither prepared nor torn down on the way, and once at the end.

    One that an edit left out waits for the way back.
    """
    rig.reload_policy += ", probationPeriod: 1h"
    _write(rig, 1)
    runs = rig.run()
    if left_out:
        rig.more, rig.handlers = "", []
        rig.handler("tell")
    rig.apply("def tell(change): ...\nX = 2\n")
    assert rig.told("teardown") == []
    assert rig.roll_back().generation == 3
    until("the others are retired", lambda: runs.status().generations_alive == 1)
    assert (len(rig.told("prepare")), rig.told("teardown")) == (1, [])
    assert runs.stop() == 0
    assert (len(rig.told("prepare")), len(rig.told("teardown"))) == (1, 1)


@pytest.mark.guarantee("G21")
def test_going_back_gives_a_plugin_its_config_again(rig, plugin, config_map) -> None:
    """Where the config was another one, the plugin is prepared with the one that it had."""
    rig.reload_policy += ", probationPeriod: 1h"
    _write(rig, 1)
    runs = rig.run()
    _write(rig, 2)
    assert runs.reload().result == "Applied"
    assert rig.told("teardown") == []  # the one before may come back
    assert rig.roll_back().generation == 3
    until("the others are retired", lambda: runs.status().generations_alive == 1)
    levels = [row[2]["level"] for row in rig.told("prepare")]
    assert (levels, rig.told("teardown")) == ([1, 2, 1], [("teardown", 2)])
    runs.sandbox.create(config_map("late"))
    runs.wait_idle()
    assert rig.told("event")[-1] == ("event", 1)
