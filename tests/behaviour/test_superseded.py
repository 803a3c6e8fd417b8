"""A newer edit is not kept waiting by an older one that is not live yet: that one is given up and undone."""

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from declctl.sandbox.faults import Match
from declctl.testing import until
from tests.children import child_processes

GOOD = """
from blackboard import tell as note
def tell(change):
    note("{name}", str(change.key))
"""
HOOKED = """
import declctl
from blackboard import tell as note, wait
note("imported", "{name}")
{more}
@declctl.hookimpl
def declctl_prepare():
    note("prepared", "{name}")
    {waiting}
@declctl.hookimpl
def declctl_teardown():
    note("torn down", "{name}")
@declctl.hookimpl
def declctl_event(change):
    note("{name}", str(change.key))
"""
_ON_THE_LOOP = ("files", "hangup", "observer", "events", "mutation detector", "reload", "informer")


def _fingerprint(controller, sandbox):
    async def tasks() -> list[str]:
        return sorted(t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith(_ON_THE_LOOP))

    status = controller.status()
    return {
        "generation": (status.generation, status.bundle_hash, status.generations_alive),
        "tasks": asyncio.run_coroutine_threadsafe(tasks(), controller._loop).result(10),
        "modules": sorted(name for name in sys.modules if name.startswith("_declctl_gen")),
        "threads": sorted(t.name for t in threading.enumerate() if t.name.startswith("declctl")),
        "children": child_processes(),
        "sockets": sum(_is_socket(link) for link in Path("/proc/self/fd").iterdir()),
        "resources": [(r.name, r.objects, r.lists, r.watches) for r in status.resources],
        "informers": len(controller.runtime._reloader._around.caches.all()),
        "indexes": list(controller.lister("maps").index_names()),
        "streams": sandbox.faults.document()["openWatches"],
    }


def _is_socket(link: Path) -> bool:
    try:
        return str(link.readlink()).startswith("socket:")
    except FileNotFoundError:
        return False  # the descriptor of this very listing


@pytest.fixture
def running(rig, config_map):
    """A controller that watches its files, and whose handler has heard of one object."""
    rig.handler("tell")
    rig.reload_policy = "settle: 200ms, preflightTimeout: 60s, warmTimeout: 60s"
    controller = rig.run(GOOD.format(name="old"), watch=True, objects=[config_map("m")])
    controller.wait_idle()
    rig.folder.write("handlers.py", GOOD.format(name="first"))  # from here on, every thread is there
    until("the first edit is live", lambda: controller.status().generation == 2)
    until("the old generation is retired", lambda: controller.status().generations_alive == 1)
    return controller


def _given_up(controller) -> int:
    return controller.status().reloads.get("Superseded", 0)


def _still_works(rig, controller, config_map, name: str) -> None:
    controller.sandbox.create(config_map(name))
    controller.wait_idle()
    assert [row[0] for row in rig.told() if row[1:] == (f"default/{name}",)] == ["first"]


class _Stuck:
    """Ways in which an attempt takes long, each with a sign that it has come there."""

    def __init__(self, rig, sandbox, asked, tmp_path: Path) -> None:
        self.rig = rig
        self._asked = asked
        self._sandbox = sandbox
        self._sign = tmp_path / "sign"

    def in_the_child(self) -> None:
        """The import in the child process never ends, and has started a process of its own."""
        code = f"import subprocess\nsubprocess.Popen(['sleep', '1000'])\nopen({str(self._sign)!r}, 'w')\n"
        self.rig.write(f"{code}while True: pass\n")
        until("the child is importing", self._sign.exists)

    def importing(self) -> None:
        """The import in this process waits for the test."""
        self._entry("handlers")
        code = "import sys\nif 'pytest' in sys.modules:\n    note('importing')\n    wait('gate')\n"
        self.rig.write(HOOKED.format(name="slow", waiting="pass", more=code))
        until("it is imported", lambda: self.rig.told("importing"))

    def preparing(self) -> None:
        """A hook that prepares waits for the test."""
        self._entry("handlers")
        self.rig.write(HOOKED.format(name="slow", waiting="wait('gate')", more=""))
        until("it is prepared", lambda: self.rig.told("prepared"))

    def preparing_asynchronously(self) -> None:
        """An asynchronous hook that prepares never returns."""
        self._entry("handlers")
        code = HOOKED.format(name="slow", waiting="import asyncio; await asyncio.sleep(1000)", more="")
        self.rig.write(code.replace("def declctl_prepare", "async def declctl_prepare"))
        until("it is prepared", lambda: self.rig.told("prepared"))

    def warming(self) -> None:
        """The API server is silent about a resource that is new."""
        self._sandbox.faults.delay(1000.0, Match(resource="secrets"))
        self._entry("handlers")
        self.rig.resources.append("- {name: secrets, apiVersion: v1, kind: Secret}")
        self.rig.write(HOOKED.format(name="slow", waiting="pass", more=""))
        until("secrets are asked for", lambda: sum(self._asked("secrets")))

    def let_go(self) -> None:
        """What waits for the test may go on."""
        self.rig.board.open_gate("gate")

    def _entry(self, entry: str) -> None:
        self.rig.handlers = []
        self.rig.handler("tell", entry=entry)


@pytest.fixture
def stuck(rig, sandbox, asked, tmp_path):
    """Makes an attempt that takes long; what it waits for is let go in the end."""
    stuck = _Stuck(rig, sandbox, asked, tmp_path)
    yield stuck
    stuck.let_go()


STAGES = ["in_the_child", "importing", "preparing", "preparing_asynchronously", "warming"]


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.guarantee("G6")
def test_an_edit_that_is_taken_back_while_it_is_staged_leaves_nothing(
    stage, rig, running, stuck, sandbox, config_map
) -> None:
    """Wherever the attempt was: tasks, threads, processes, sockets, informers and modules are as before."""
    before = _fingerprint(running, sandbox)
    handlers, resources = list(rig.handlers), list(rig.resources)
    getattr(stuck, stage)()
    rig.handlers, rig.resources = handlers, resources
    rig.write(GOOD.format(name="first"))
    _still_works(rig, running, config_map, "meanwhile")  # nothing of it holds up the machinery
    until("it is given up", lambda: _given_up(running) == 1)
    stuck.let_go()
    until("nothing is left of it", lambda: _fingerprint(running, sandbox) == _counted(before))
    prepared, torn_down = rig.told("prepared"), rig.told("torn down")
    assert [row[1] for row in prepared] == [row[1] for row in torn_down][: len(prepared)]
    assert running.condition("Reloaded").status == "True"
    assert running.log.find("files have changed again") is not None
    _still_works(rig, running, config_map, "afterwards")


def _counted(before):
    """One object was created meanwhile."""
    ((name, objects, lists, watches),) = before["resources"]
    return {**before, "resources": [(name, objects + 1, lists, watches)]}


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("stage", STAGES)
def test_the_newer_edit_is_live_while_the_older_would_still_be_staged(
    stage, rig, running, stuck, sandbox, config_map
) -> None:
    """The newer one does not wait for time limits of the older; whoever waited gets its outcome."""
    handlers, resources = list(rig.handlers), list(rig.resources)
    getattr(stuck, stage)()
    waiting = asyncio.run_coroutine_threadsafe(running.runtime.reload(asked=True), running._loop)
    rig.handlers, rig.resources = handlers, resources
    rig.write(GOOD.format(name="newer"))
    outcome = waiting.result(30)
    assert (outcome.result, outcome.generation) == ("Applied", 3), outcome.line
    running.sandbox.create(config_map("after"))
    running.wait_idle()
    assert [row[0] for row in rig.told() if row[1:] == ("default/after",)] == ["newer"]
    assert _given_up(running) == 1
    assert running.status().reloads["Applied"] == 2


def test_an_attempt_is_asked_for_and_another_edit_comes(rig, running, stuck, sandbox) -> None:
    """`declctl reload` of files that have changed since the attempt began does not join it."""
    stuck.warming()
    rig.resources.pop()
    with_secrets = rig.folder.path / "manifest.yaml"
    with_secrets.write_text(rig.manifest())
    outcome = running.reload()
    assert outcome.result == "Applied"
    assert [r.name for r in running.status().resources] == ["maps"]
    assert _given_up(running) == 1


def test_the_process_ends_while_an_attempt_is_staged(rig, running, stuck) -> None:
    """SIGTERM in the middle: what was prepared is torn down, and it ends at once and in order."""
    stuck.warming()
    assert running.stop() == 0
    assert rig.told("torn down") == [("torn down", "slow")]
    assert not [name for name in sys.modules if name.startswith("_declctl_gen.g3")]
