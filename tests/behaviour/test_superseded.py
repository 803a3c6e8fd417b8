"""A newer edit is not kept waiting by an older one that is not live yet: that one is given up and undone."""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from declctl.informer import Reprojection
from declctl.sandbox.faults import Match
from declctl.testing import until
from tests.children import descendants

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
INDEXED = """
def by_name(obj):
    note("asked", obj["metadata"]["name"])
    if obj["metadata"]["name"] != "m":
        wait("gate", 3600)
    return [obj["metadata"]["name"]]
"""
_MAPS = "- {{name: maps, apiVersion: v1, kind: ConfigMap, {}}}"
_ON_THE_LOOP = ("files", "hangup", "observer", "events", "mutation detector", "reload", "informer")


def _fingerprint(controller, sandbox):
    async def tasks() -> list[str]:
        return sorted(t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith(_ON_THE_LOOP))

    status = controller.status()
    return {
        "generation": (status.generation, status.bundle_hash, status.generations_alive),
        "tasks": asyncio.run_coroutine_threadsafe(tasks(), controller.runtime.machinery.loop).result(10),
        "modules": sorted(name for name in sys.modules if name.startswith("_declctl_gen")),
        "threads": sorted(t.name for t in threading.enumerate() if t.name.startswith("declctl")),
        "processes": len(descendants()),
        "sockets": sum(_is_socket(link) for link in Path("/proc/self/fd").iterdir()),
        "resources": [(r.name, r.objects, r.lists, r.watches) for r in status.resources],
        "informers": _informers(controller),
        "indexes": list(controller.lister("maps").index_names()),
        "streams": sandbox.faults.document()["openWatches"],
    }


def _informers(controller):
    """Who uses them, their indexes and those under way, and in how many ways records are kept."""
    found = []
    for cached in controller.runtime.parts.caches.all():
        store = cached.informer.indexer
        written = (*store.get_indexers(), *store.unfinished_indexes)
        layouts = {id(record.layout) for record in store.list()}
        found.append(
            (
                str(cached.identity),
                cached.generation_count,
                written,
                len(layouts),
                cached.informer.unfinished_work,
            )
        )
    return found


def _is_socket(link: Path) -> bool:
    try:
        return str(link.readlink()).startswith("socket:")
    except FileNotFoundError:
        return False  # the descriptor of this very listing


@pytest.fixture
def running(rig, config_map):
    """A controller that watches its files, and whose handler has heard of a few objects."""
    rig.handler("tell")
    rig.reload_policy = "settle: 200ms, preflightTimeout: 60s, warmTimeout: 60s"
    objects = [config_map(name, owner=name) for name in ("m", "n", "o")]
    controller = rig.run(GOOD.format(name="old"), watch=True, objects=objects)
    controller.wait_idle()
    rig.folder.write("handlers.py", GOOD.format(name="first"))  # from here on, every thread is there
    until("the first edit is live", lambda: controller.status().generation == 2)
    until("the old generation is retired", lambda: controller.status().generations_alive == 1)
    until("its outcome has been told", lambda: controller.status().reloads.get("Applied") == 1)
    until(
        "the attempt is over", lambda: "reload" not in _fingerprint(controller, controller.sandbox)["tasks"]
    )
    return controller


def _given_up(controller) -> int:
    return controller.status().reloads.get("Superseded", 0)


def _still_works(rig, controller, config_map, name: str) -> None:
    controller.sandbox.create(config_map(name))
    controller.wait_idle()
    assert [row[0] for row in rig.told() if row[1:] == (f"default/{name}",)] == ["first"]


class _Stuck:
    """Ways in which an attempt takes long, each with a sign that it has come there."""

    def __init__(self, rig, sandbox, asked, tmp_path: Path, monkeypatch) -> None:
        self.rig = rig
        self._patch = monkeypatch
        self._held = threading.Event()
        self._goes_on = False
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

    def building_an_index(self) -> None:
        """An index function has been asked of the first object, and not of the others."""
        self._entry("handlers")
        self.rig.resources = [_MAPS.format('indexers: [{name: byName, entryPoint: "handlers:by_name"}]')]
        self.rig.write(HOOKED.format(name="slow", waiting="pass", more=INDEXED))
        until("a part of the index is built", lambda: len(self.rig.told("asked")) > 1)

    def reprojecting(self) -> None:
        """The first object has been made as it will be kept, and the others not."""
        self._renewing("cache: {mode: Objects}")

    def bringing_a_field_to_hand(self) -> None:
        """A field that is to be indexed has been read out of the first object, and not of the others."""
        self._renewing("indexers: [{name: byName, fieldPath: data.owner}]")

    def let_go(self) -> None:
        """What waits for the test may go on."""
        self._goes_on = True
        self.rig.board.open_gate("gate")

    def _renewing(self, rest: str) -> None:
        self._hold(Reprojection)
        self._entry("handlers")
        self.rig.resources = [_MAPS.format(rest)]
        self.rig.write(HOOKED.format(name="slow", waiting="pass", more=""))
        until("a part of the records is made", self._held.is_set)

    def _hold(self, work: type) -> None:
        """Let work in slices do its first one, for one object, and no other until it is let go."""
        step = work.step

        def first_only(each, budget: int) -> bool:
            if self._goes_on:
                return step(each, budget)
            if not self._held.is_set():
                assert not step(each, 1), "there is nothing left of it"
                self._held.set()
            return False

        self._patch.setattr(work, "step", first_only)

    def _entry(self, entry: str) -> None:
        self.rig.handlers = []
        self.rig.handler("tell", entry=entry)


@pytest.fixture
def stuck(rig, sandbox, asked, tmp_path, monkeypatch):
    """Makes an attempt that takes long; what it waits for is let go in the end."""
    stuck = _Stuck(rig, sandbox, asked, tmp_path, monkeypatch)
    yield stuck
    stuck.let_go()


RENEWING = ["building_an_index", "reprojecting", "bringing_a_field_to_hand"]
STAGES = ["in_the_child", "importing", "preparing", "preparing_asynchronously", "warming", *RENEWING]


@pytest.mark.thorough
@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("stage", STAGES)
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


@pytest.mark.thorough
@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("stage", STAGES)
def test_the_newer_edit_is_live_while_the_older_would_still_be_staged(
    stage, rig, running, stuck, sandbox, config_map
) -> None:
    """The newer one does not wait for time limits of the older; whoever waited gets its outcome."""
    handlers, resources = list(rig.handlers), list(rig.resources)
    getattr(stuck, stage)()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(running.on_machinery, running.runtime.reload(asked=True), 30)
        rig.handlers, rig.resources = handlers, resources
        rig.write(GOOD.format(name="newer"))
        outcome = waiting.result()
    assert (outcome.result, outcome.generation) == ("Applied", 3), outcome.line
    running.sandbox.create(config_map("after"))
    running.wait_idle()
    assert [row[0] for row in rig.told() if row[1:] == ("default/after",)] == ["newer"]
    assert _given_up(running) >= 1  # more, if files and the one who asked were not taken for one
    assert running.status().reloads["Applied"] == 2


@pytest.mark.guarantee("G6")
def test_who_asks_in_the_middle_of_an_edit_gets_the_whole_edit(rig, tmp_path) -> None:
    """The first of two files was saved when a user asked: its refusal is not the outcome."""
    sign, goes_on = tmp_path / "sign", tmp_path / "goes on"
    rig.handler("tell")
    controller = rig.run(GOOD.format(name="old"))
    half = f"""
import pathlib, time
pathlib.Path({str(sign)!r}).touch()
while not pathlib.Path({str(goes_on)!r}).exists(): time.sleep(0.01)
def renamed(change): pass
"""
    rig.folder.write("handlers.py", half)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(controller.on_machinery, controller.runtime.reload(asked=True), 30)
        until("the half edit is imported", sign.exists)
        rig.handlers = []
        rig.handler("tell", entry="handlers:renamed")
        rig.write(half)
        goes_on.touch()
        outcome = waiting.result()
    assert (outcome.result, outcome.generation) == ("Applied", 2), outcome.line
    assert controller.log.find("refused") is None


@pytest.mark.guarantee("G6", "G24")
def test_what_was_given_up_was_not_tried(rig, config_map) -> None:
    """An attempt that ends half way says nothing of its files: the same bytes are tried again."""
    rig.handler("tell")
    controller = rig.run(GOOD.format(name="old"), objects=[config_map("m")])
    rig.handlers[0] = rig.handlers[0].replace("handlers:tell", "handlers")
    rig.write(HOOKED.format(name="slow", waiting="wait('gate')", more=""))
    reloader, loop = controller.runtime.parts.reloader, controller.runtime.machinery.loop
    given_up = asyncio.run_coroutine_threadsafe(reloader.reload(asked=False), loop)
    until("it is prepared", lambda: rig.told("prepared"))
    given_up.cancel()
    rig.board.open_gate("gate")
    until("it is undone", lambda: rig.told("torn down"))
    again = asyncio.run_coroutine_threadsafe(reloader.reload(asked=False), loop).result(30)
    assert (again.result, again.generation) == ("Applied", 2), again.line


@pytest.mark.thorough
def test_the_process_ends_while_an_attempt_is_staged(rig, running, stuck) -> None:
    """SIGTERM in the middle: what was prepared is torn down, and it ends at once and in order."""
    stuck.warming()
    assert running.stop() == 0
    assert rig.told("torn down") == [("torn down", "slow")]
    assert not [name for name in sys.modules if name.startswith("_declctl_gen.g3")]


@pytest.mark.client_go(336)
def test_nothing_is_committed_while_the_process_drains(rig, config_map) -> None:
    """A call still runs after SIGTERM: a reload or a rollback that is asked for does nothing, and says so."""
    rig.handler("tell")
    rig.reload_policy = "probationPeriod: 10m"
    note = "from blackboard import tell as note, wait\n"
    controller = rig.run("def tell(change):\n    pass\n", objects=[config_map("m")])
    rig.folder.write("handlers.py", f"{note}def tell(change):\n    note('called')\n    wait('gate')\n")
    assert controller.reload().generation == 2
    controller.sandbox.create(config_map("n"))
    until("a call runs", lambda: rig.told("called"))
    controller.runtime.stop()
    outcomes = [
        controller.on_machinery(order, 30)
        for order in (controller.runtime.rollback(), controller.runtime.reload())
    ]
    assert [outcome.reason for outcome in outcomes] == ["Stopping", "Stopping"]
    rig.board.open_gate("gate")
    assert controller.stop() == 0
