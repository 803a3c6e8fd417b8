"""Index functions and transforms of a generation that is staged: whatever they do, what runs goes on (G6)."""

import asyncio
import threading
from itertools import product

import pytest

from declctl.runtime.threads import AbandonedCall, abandoned_calls
from declctl.testing import until

pytestmark = pytest.mark.thorough

TELL = """
from blackboard import spin, tell as note, wait
import time


def tell(change):
    note("{name}", str(change.key))
"""
# What a function that is staged does with each object. A gate is opened at the end of each test.
BODIES = {
    "computes for ever": "spin('gate')",
    "sleeps for ever": "wait('gate', 3600)",
    "takes 10 ms": "time.sleep(0.01)",
}
INDEXER = 'def by_owner(obj):\n    {body}\n    return [obj["data"]["owner"]]\n'
TRANSFORM = 'def slim(obj):\n    {body}\n    obj["data"]["size"] = "small"\n    return obj\n'
HOOKED = """
import declctl
@declctl.hookimpl
def declctl_event(change):
    note("{name}", str(change.key))
@declctl.hookimpl
def {hook}:
    {body}
    return {result}
"""
MAPS = "- {{name: maps, apiVersion: v1, kind: ConfigMap{}}}"
OBJECTS = 2000


class Scene:
    """A controller whose first generation runs over many objects, and edits of it."""

    def __init__(self, rig, config_map) -> None:
        self.rig = rig
        self.config_map = config_map
        rig.reload_policy = "settle: 50ms, preflight: 'Off', drainTimeout: 5s, warmTimeout: 2s"
        rig.handler("tell")
        objects = [config_map(f"m{n}", owner=f"o{n}") for n in range(OBJECTS)]
        self.controller = rig.run(TELL.format(name="old"), watch=True, objects=objects)
        self.controller.wait_idle(60)
        self.before = list(rig.handlers), list(rig.resources)
        self._made = 0

    def index_by_entry_point(self, body: str) -> None:
        self.rig.resources = [MAPS.format(', indexers: [{name: byOwner, entryPoint: "handlers:by_owner"}]')]
        self.rig.write(TELL.format(name="new") + INDEXER.format(body=body))

    def index_by_hook(self, body: str) -> None:
        code = INDEXER.format(body=body)
        code += HOOKED.format(
            name="new", hook="declctl_indexers(resource)", body="pass", result="{'byOwner': by_owner}"
        )
        self._entry_is_module()
        self.rig.write(TELL.format(name="new") + code)

    def transform_by_entry_point(self, body: str) -> None:
        self.rig.resources = [MAPS.format(', transform: {entryPoint: "handlers:slim"}')]
        self.rig.write(TELL.format(name="new") + TRANSFORM.format(body=body))

    def transform_by_hook(self, body: str) -> None:
        code = HOOKED.format(name="new", hook="declctl_transform(obj)", body=body, result="obj")
        self._entry_is_module()
        self.rig.write(TELL.format(name="new") + code)

    def back(self, name: str) -> None:
        """The files say again what runs, but for the name by which the handler tells."""
        self.rig.handlers, self.rig.resources = map(list, self.before)
        self.rig.write(TELL.format(name=name))

    def delivers(self, who: str) -> None:
        """A change reaches the handler, and the loop answers."""
        self._made += 1
        name = f"fresh{self._made}"
        self.controller.sandbox.create(self.config_map(name, owner="o1"))
        until("it is delivered", lambda: (who, f"default/{name}") in self.rig.told())
        answered = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.controller.runtime.machinery.loop)
        answered.result(10)

    def staged_code_runs(self) -> None:
        def runs() -> bool:
            names = {thread.name for thread in threading.enumerate()}
            return bool({"declctl-index", "declctl-transform"} & names)

        until("staged code runs", runs)

    def abandoned(self) -> list[AbandonedCall]:
        """What was left behind of these files; other tests may have left something, too."""
        return [call for call in abandoned_calls() if str(self.rig.folder.path) in call.place]

    def _entry_is_module(self) -> None:
        self.rig.handlers = []
        self.rig.handler("tell", entry="handlers")


@pytest.fixture
def scene(rig, config_map):
    """It runs; what hangs in the end is let go."""
    scene = Scene(rig, config_map)
    yield scene
    rig.board.open_gate("gate")
    until("nothing hangs any more", lambda: not scene.abandoned())


EDITS = ["index_by_entry_point", "index_by_hook", "transform_by_entry_point", "transform_by_hook"]
FUNCTIONS = {
    "index_by_entry_point": ("IndexTimeout", "the index byOwner of maps", "by_owner"),
    "index_by_hook": ("IndexTimeout", "the index byOwner of maps", "by_owner"),
    "transform_by_entry_point": ("TransformTimeout", "the transform of maps", "slim"),
    "transform_by_hook": ("TransformTimeout", "the transform of maps", "declctl_transform"),
}


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize(
    ("edit", "body"), [*product(EDITS[::2], BODIES), *((edit, "sleeps for ever") for edit in EDITS[1::2])]
)
def test_staged_code_that_does_not_come_to_an_end_refuses_the_reload(edit, body, scene) -> None:
    """Changes are delivered meanwhile; after `warmTimeout` it is refused, with function and object."""
    getattr(scene, edit)(BODIES[body])
    scene.staged_code_runs()
    for _ in range(3):
        scene.delivers("old")
    until("it is refused", lambda: scene.controller.status().reloads.get("Refused"), timeout=60)
    reloaded = scene.controller.condition("Reloaded")
    reason, what, function = FUNCTIONS[edit]
    assert (reloaded.status, reloaded.reason) == ("False", reason)
    assert f"{what} took longer than 2 s; it was asked about default/m" in reloaded.message
    file = scene.rig.folder.path / "handlers.py"
    # A function that returns may be between two objects at that moment: then no line of it is running.
    if body != "takes 10 ms" or ", at " in reloaded.message:
        assert f", at {file}:" in reloaded.message
        assert f" in {function}" in reloaded.message
    assert scene.controller.status().generation == 1
    scene.delivers("old")


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("edit", EDITS)
def test_a_newer_edit_does_not_wait_for_staged_code_that_hangs(edit, scene) -> None:
    """It is live at once, though `warmTimeout` is far off; what hangs is told in the status."""
    scene.rig.reload_policy = scene.rig.reload_policy.replace("warmTimeout: 2s", "warmTimeout: 1h")
    getattr(scene, edit)("wait('gate', 3600)")
    scene.staged_code_runs()
    scene.back("newer")
    until("the newer one is live", lambda: scene.controller.status().generation == 2, timeout=60)
    scene.delivers("newer")
    assert scene.controller.status().reloads.get("Superseded") == 1
    (call,) = scene.abandoned()
    assert call.name in [each.name for each in scene.controller.status().abandoned_calls]
    assert call.name == FUNCTIONS[edit][1]
    assert f" in {FUNCTIONS[edit][2]}" in call.place
    scene.rig.board.open_gate("gate")
    until("it has returned", lambda: not scene.abandoned())


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize(
    ("edit", "body"), [(EDITS[0], "computes for ever"), *((edit, "sleeps for ever") for edit in EDITS[::3])]
)
def test_the_process_ends_while_staged_code_hangs(edit, body, scene) -> None:
    """It takes no longer than it does without: nobody waits for the thread."""
    getattr(scene, edit)(BODIES[body])
    scene.staged_code_runs()
    assert scene.controller.stop(20) == 0


@pytest.mark.guarantee("G6", "G12")
@pytest.mark.parametrize("edit", EDITS)
def test_staged_code_that_is_slow_is_taken_in_the_end(edit, scene, config_map) -> None:
    """What changes while it is asked is in the new generation, too, and all of it is complete."""
    scene.rig.reload_policy = scene.rig.reload_policy.replace("warmTimeout: 2s", "warmTimeout: 120s")
    sandbox = scene.controller.sandbox
    getattr(scene, edit)("time.sleep(0.001)")
    scene.staged_code_runs()
    for n in range(200):
        sandbox.patch("ConfigMap", f"m{n % 50}", {"data": {"owner": f"changed {n}"}}, namespace="default")
        sandbox.create(config_map(f"late{n}", owner="late"))
        sandbox.delete("ConfigMap", f"m{100 + n}", namespace="default")
    until("it is live", lambda: scene.controller.status().generation == 2, timeout=120)
    sandbox.create(config_map("after", owner="after"))
    scene.controller.wait_idle(60)
    lister = scene.controller.lister("maps")
    assert len(lister.list()) == OBJECTS + 1
    if edit.startswith("index"):
        owners = {}
        for view in lister.list():
            owners.setdefault(view["data"]["owner"], []).append(view.key)
        found = {value: [view.key for view in lister.by_index("byOwner", value)] for value in owners}
        assert {value: sorted(keys) for value, keys in found.items()} == {
            value: sorted(keys) for value, keys in owners.items()
        }
    elif edit == "transform_by_entry_point":
        assert {view["data"]["size"] for view in lister.list()} == {"small"}
