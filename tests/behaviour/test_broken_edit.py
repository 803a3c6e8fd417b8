"""A broken edit changes nothing: the old code goes on, and the status says what is wrong and where (G6)."""

import sys
import threading

import pytest

from declctl.testing import until

GOOD = """
from blackboard import tell as note
def tell(change):
    note("old", str(change.key), change.type)
"""
_HOOKED = f"{GOOD}\nimport declctl\n@declctl.hookimpl\n"
# By what is broken: the code, the entry point, the reason of the refusal, and words of its message.
BROKEN = {
    "syntax error": ("def tell(change:\n", "", "SyntaxError", "handlers.py:1"),
    "import raises": (f"{GOOD}\nraise OSError('no disk')\n", "", "ImportFailed", "no disk"),
    "sys.exit": (f"{GOOD}\nimport sys\nsys.exit(0)\n", "", "ImportFailed", "SystemExit"),
    "os._exit": (
        f"{GOOD}\nimport os\nos._exit(0)\n",
        "",
        "ImportFailed",
        "ended the process (exit status 0)",
    ),
    "killed": (f"{GOOD}\nimport os\nos.kill(os.getpid(), 9)\n", "", "ImportFailed", "the process (signal 9)"),
    "hangs": (f"{GOOD}\nwhile True: pass\n", "", "ImportTimeout", "longer than 8 s"),
    "missing attribute": ("def tel(change): ...\n", "", "Invalid", "no 'tell'"),
    "unknown parameter": ("def tell(chnage): ...\n", "", "Invalid", "chnage"),
    "prepare raises": ("def declctl_prepare(): raise OSError('not today')", "", "PrepareFailed", "not today"),
    "prepare exits": ("def declctl_prepare(ctx): raise SystemExit('bye')", "", "PrepareFailed", "bye"),
    "prepare hangs": (
        "async def declctl_prepare():\n    import asyncio\n    await asyncio.sleep(1000)",
        "",
        "PrepareFailed",
        "longer than 5 s",
    ),
    "a hook that there is not": ("def declctl_evnt(change): ...", "", "Invalid", "declctl_evnt"),
    "a hook with a parameter of its own": ("def declctl_deleted(corpse): ...", "", "Invalid", "corpse"),
    "indexers raise": ("def declctl_indexers(): raise ValueError('no indexes')", "", "Invalid", "no indexes"),
    "a class that can't be made": (
        f"{GOOD}\nclass Broken:\n    def __init__(self): raise OSError('not made')\n",
        "handlers:Broken",
        "ImportFailed",
        "not made",
    ),
    "a filter that raises": (
        f"{GOOD}\ndef passes(obj): raise ValueError('no filter')\n",
        "",
        "FilterFailed",
        "no filter",
    ),
}
_STAYING = ("declctl-handler", "declctl-machinery")  # others do one thing and leave


def _fingerprint(controller, sandbox):
    status = controller.status()
    return {
        "generation": status.generation,
        "hash": status.bundle_hash,
        "ready": status.ready,
        "alive": status.generations_alive,
        "modules": sorted(name for name in sys.modules if name.startswith("_declctl_gen")),
        "threads": sorted(t.name for t in threading.enumerate() if t.name.startswith(_STAYING)),
        "resources": [(r.name, r.objects, r.lists, r.watches) for r in status.resources],
        "handlers": [(h.name, h.generation, h.delivered) for h in status.handlers],
        "indexes": list(controller.lister("maps").index_names()),
        "asked": [(r.verb, r.resource) for r in sandbox.ledger.requests()],
        "streams": sandbox.faults.document()["openWatches"],
    }


@pytest.fixture
def running(rig, config_map):
    """A controller whose handler has heard of one object."""
    rig.handler("tell")
    rig.reload_policy = "settle: 20ms, preflightTimeout: 8s, warmTimeout: 5s"
    controller = rig.run(GOOD, objects=[config_map("m")])
    controller.wait_idle()
    rig.folder.write("handlers.py", f"{GOOD}\nX = 1\n")  # the pre-flight's threads are there from now on
    assert controller.reload().result == "Applied"
    return controller


def _still_works(rig, controller, config_map, number: int = 0) -> None:
    name = f"after-{number}"
    controller.sandbox.create(config_map(name))
    controller.wait_idle()
    assert rig.told("old", f"default/{name}") == [("old", f"default/{name}", "Added")]


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.guarantee("G6")
def test_broken_code_is_refused_and_nothing_else_changes(what, rig, running, sandbox, config_map) -> None:
    """Whatever the new code does when it is loaded, the old one goes on as if nothing had happened."""
    code, entry, reason, words = BROKEN[what]
    rig.retired()
    before = _fingerprint(running, sandbox)
    if "filter" in what:
        rig.only(rest="filter: {entryPoint: 'handlers:passes'}")
    if code.startswith(("def declctl", "async def declctl")):
        code, entry = f"{_HOOKED}{code}\n", "handlers"
    if entry:
        rig.only(entry=entry)
        code = code.replace("def tell", "@__import__('declctl').hookimpl\ndef declctl_event")
    outcome = rig.reload(code)
    assert (outcome.result, outcome.reason) == ("Refused", reason), outcome.message
    assert words in outcome.message
    assert _fingerprint(running, sandbox) == before
    condition = running.condition("Reloaded")
    assert (condition.status, condition.reason) == ("False", reason)
    assert words in condition.message
    _still_works(rig, running, config_map)


@pytest.mark.guarantee("G6", "G24")
def test_a_broken_edit_is_tried_once_and_a_mended_one_is_taken(rig, running) -> None:
    """What is broken is not imported again unless somebody asks; log and status say when all is well."""
    rig.folder.write("handlers.py", "def tell(change:\n")
    results = [
        running.on_machinery(running.runtime.reload(asked=asked), 10) for asked in (False, False, True)
    ]
    assert [r.reason for r in results] == ["SyntaxError", "AttemptedBefore", "SyntaxError"]
    assert running.condition("Reloaded").status == "False"
    assert rig.reload(f"{GOOD}\nX = 1\n").result == "Unchanged"
    assert running.condition("Reloaded").status == "True"
    told = f"generation {running.status().generation} is what the files say again"
    assert running.log.events("info").count(told) == 1
    assert running.reload().result == "Unchanged"
    assert running.log.events("info").count(told) == 1
    assert rig.reload("def tell(change:\n").result == "Refused"
    rig.apply(f"{GOOD}\nX = 2\n")


@pytest.mark.guarantee("G6")
def test_a_file_that_is_missing_or_can_not_be_read_is_refused(rig, running, config_map) -> None:
    """A plugin's config names a file that isn't mounted, or handlers are a folder: a located refusal."""
    rig.more = "  plugins:\n    - {name: slack, configFrom: [{name: token, file: secret/token}]}\n"
    outcome = rig.reload()
    assert outcome.result == "Refused"
    assert [(d.code, d.line > 1) for d in outcome.diagnostics if d.code == "DCL082"] == [("DCL082", True)]
    assert "token" in outcome.message
    rig.more = ""
    assert rig.reload().result == "Unchanged"
    rig.folder.remove("handlers.py")
    (rig.folder.path / "handlers.py").mkdir()
    assert running.reload().result == "Refused"
    _still_works(rig, running, config_map)


def test_a_manifest_that_is_gone_for_a_moment_ends_nothing(rig, config_map) -> None:
    """The manifest is removed while files are watched: a refusal; when it is back all goes on."""
    rig.handler("tell")
    controller = rig.run(GOOD, watch=True)
    rig.folder.remove("manifest.yaml")
    until("it is told", lambda: controller.condition("Reloaded").status == "False")
    rig.write()
    until("it is back", lambda: controller.condition("Reloaded").status == "True")
    _still_works(rig, controller, config_map)


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("where", ["reload.read_files", "stage.HandlerBinding", "stage.changes"])
def test_a_fault_of_our_own_ends_no_process(where, rig, sandbox, config_map, monkeypatch) -> None:
    """What nobody has foreseen is a refusal with a traceback, in a reload that began by itself, too."""
    rig.handler("tell")
    controller = rig.run(GOOD, objects=[config_map("m", a="1")], watch=True)
    controller.wait_idle()
    before = _fingerprint(controller, sandbox)

    def fail(*_: object, **__: object) -> None:
        raise NameError("name 'oops' is not defined")

    with monkeypatch.context() as patched:
        patched.setattr(f"declctl.runtime.reloading.{where}", fail)
        rig.folder.write("handlers.py", GOOD.replace("old", "new"))
        until("it is refused", lambda: controller.condition("Reloaded").reason == "InternalError", timeout=30)
        assert controller.condition("Reloaded").message.endswith("NameError: name 'oops' is not defined")
        assert _fingerprint(controller, sandbox) == before
        controller.sandbox.patch("ConfigMap", "m", {"data": {"a": "2"}})
        controller.wait_idle()
        assert rig.told() == [("old", "default/m", "Added"), ("old", "default/m", "Modified")]
    assert controller.reload().result == "Applied"
