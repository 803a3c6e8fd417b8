"""A fuzzer of controllers: it finds planted faults in short lives, and nothing where there are none."""

import os
import re
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import hypothesis
import pytest
import yaml

from declctl.errors import UsageError
from declctl.testing.documents import load_documents
from declctl.testing.fuzzing import FuzzResult, run_lives
from declctl.testing.fuzzing.bundle import read_bundle
from declctl.testing.fuzzing.invariants import Judge, expectations_of
from declctl.testing.fuzzing.lives import Advance, ChildStatus, Create, Delete, Edit, Life, Restart
from declctl.testing.fuzzing.states import (
    CURRENT_GENERATION,
    OLD_GENERATION,
    TIME_MASK,
    StateDifference,
    differences,
    state_of,
)
from declctl.testing.fuzzing.values import values
from declctl.testing.fuzzing.world import World
from declctl.testing.player import play
from tests.rooms.testing.fuzzed import PLANTED, Planted

_RUNS = 600 if os.environ.get("DECLCTL_SOAK") else 200
_RUNS_REPAIRED = 600 if os.environ.get("DECLCTL_SOAK") else 15
_MOST_STEPS = 6


@pytest.mark.thorough
@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_fault_is_found(planted: Planted, tmp_path: Path) -> None:
    """Within some lives, in one of at most six steps; without the fault, nothing is found.

    What is printed is a test: `declctl test` sees it fail with the fault, and pass without it.
    """
    for name, code in (("faulty", planted.faulty), ("repaired", planted.repaired)):
        folder = tmp_path / name
        folder.mkdir()
        planted.write(folder, code)
    found = run_lives(tmp_path / "faulty", runs=_RUNS, seed=1)
    assert found.violation is not None
    assert found.violation.invariant == planted.invariant
    assert len(found.life) <= _MOST_STEPS
    steps = [each.keys() for each in yaml.safe_load(found.text())["spec"]["steps"]]
    assert not any(one == other == {"advance"} for one, other in pairwise(steps))
    assert "fault: clear" not in found.text() or re.search("fault: (refuse|lose)", found.text())
    for name in ("faulty", "repaired"):
        (tmp_path / name / "fuzz.yaml").write_text(found.text(), "utf-8")
        (played,) = (play(each) for each in load_documents([tmp_path / name]))
        assert played.outcome == ("failed" if name == "faulty" else "passed"), played.reasons
    assert run_lives(tmp_path / "repaired", runs=_RUNS_REPAIRED, seed=1).violation is None


def test_a_seed_repeats_what_it_finds(tmp_path: Path) -> None:
    """Two runs draw the same lives, and print the same document."""
    planted = PLANTED["a lost retry"]
    planted.write(tmp_path, planted.faulty)
    one, other = (run_lives(tmp_path, runs=60, seed=3) for _ in range(2))
    assert one.violation is not None
    assert (one.runs, one.life, one.text()) == (other.runs, other.life, other.text())
    allowed = dict.fromkeys(("declared", "idempotent"), "the test says so")
    assert run_lives(tmp_path, runs=one.runs, seed=3, allow=allowed).violation is None


_ELECTED = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: meant}
spec:
  leaderElection: {enabled: true}
  reload: {preflightTimeout: 60s}
  resources:
    - {name: deployments, apiVersion: apps/v1, kind: Deployment}
    - {name: namespaces, apiVersion: v1, kind: Namespace}
  handlers:
    - name: age
      mode: Reconcile
      resourceRef: {name: deployments}
      entryPoint: "handlers:age"
      status: true
    - {name: places, mode: Reconcile, resourceRef: {name: namespaces}, entryPoint: "handlers:places"}
"""
_MEANT = """
import datetime
import declctl
from kubernetes.aio.client import CoreV1Api

@declctl.hookimpl
def declctl_rbac():
    return [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]

async def places(request, ctx):
    if request.obj is not None and await ctx.get("v1/ConfigMap", "place", namespace=request.name) is None:
        body = {"metadata": {"name": "place"}}
        await CoreV1Api(ctx.client).create_namespaced_config_map(request.name, body)

async def age(request, ctx):
    if request.obj is None:
        return None
    created = datetime.datetime.fromisoformat(request.obj["metadata"]["creationTimestamp"])
    left = 5400 - (ctx.now() - created).total_seconds()
    condition = {"type": "example.dev/Young", "status": str(left > 0), "reason": "Age", "message": ""}
    await ctx.patch_status(conditions=[condition])
    return declctl.Requeue(after=left) if left > 0 else None
"""


@pytest.mark.parametrize(
    "meanwhile", [(Advance(3600), Advance(3600)), (ChildStatus(0, "ready"),), (Restart(),)]
)
def test_what_is_meant_is_no_fault(meanwhile: Life, tmp_path: Path) -> None:
    """A leader, what comes with age, conditions of several controllers, writes that a hook declares.

    The namespaces of objects are no doing of a life: what the controller makes in them may stay.
    """
    (tmp_path / "manifest.yaml").write_text(_ELECTED, "utf-8")
    (tmp_path / "handlers.py").write_text(_MEANT, "utf-8")
    bundle = read_bundle(str(tmp_path))
    number, primary = next((n, one) for n, one in enumerate(bundle.primaries) if one.namespace == "other")
    with closing(Judge(bundle, {})) as judge:
        found = judge.judge((Create(number, primary.examples[0]), *meanwhile))
    assert found is None, found.message
    with closing(Judge(read_bundle(str(tmp_path), handler="age"), {})) as judge:
        assert judge.judge((Create(0, primary.examples[0]),)) is None


_SIZE_1 = {"spec": {"size": 1}}


@pytest.mark.parametrize(
    "meanwhile",
    [
        (Delete(0), Create(2, _SIZE_1), Create(0)),  # the life lacks both children
        (Create(2, {"spec": {"size": 2}}), Edit(2, ("spec", "size"), 1)),  # only a fresh start lacks one
    ],
)
def test_a_fault_of_the_fresh_controller_is_not_demanded(meanwhile: Life, tmp_path: Path) -> None:
    """A global that two objects share: what is printed asks for the children of both."""
    planted = PLANTED["a global by the name alone"]
    planted.write(tmp_path, planted.faulty)
    life = Create(0, _SIZE_1), *meanwhile
    with closing(Judge(read_bundle(str(tmp_path)), {})) as judge:
        found = judge.judge(life)
    assert found is not None
    assert "depends on the order of the objects" in found.message
    text = FuzzResult(1, 1, 1, 0.0, life, found).text()
    assert "absent" not in text
    (tmp_path / "fuzz.yaml").write_text(text, "utf-8")
    for code, outcome in ((planted.faulty, "failed"), (planted.repaired, "passed")):
        planted.write(tmp_path, code)
        (played,) = (play(each) for each in load_documents([tmp_path]))
        assert played.outcome == outcome, played.reasons


def test_a_slow_call_is_no_fault(tmp_path: Path) -> None:
    """A call that takes its time on this machine, and none of the life: an hour may pass over it."""
    planted = PLANTED["a lost retry"]
    slow = planted.repaired.replace("    size =", "    await asyncio.to_thread(time.sleep, 0.5)\n    size =")
    planted.write(tmp_path, "import asyncio, time\n" + slow)
    assert run_lives(tmp_path, runs=1, seed=1).violation is None


def test_a_world_goes_on_after_a_life_that_leaves_nothing_behind(tmp_path: Path) -> None:
    """But not with an object of it, or with a changed one that was there before."""
    planted = PLANTED["a lost retry"]
    planted.write(tmp_path, planted.repaired)
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "other"}}
    bundle = read_bundle(str(tmp_path), objects=[deployment])
    create = Create(0, {"spec": {"size": 1}})
    with World(bundle, bundle.surroundings) as world:
        for _ in range(2):
            world.play(create)
            assert not world.begin_again()
            world.play(Delete(0))
            assert len(world.played) == 2
            assert world.begin_again()
            assert not world.played
        world.play(ChildStatus(0, "ready"))
        assert not world.begin_again()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("example", "allow"),
    [
        ("05-custom-resource", {}),
        ("08-reconcile-deployment", {"declared": "a condition stays when the label is gone"}),
        ("09-custom-resource-operator", {}),  # nobody deletes from its directory, which is not watched
        ("10-namespaces-by-label", {}),
    ],
)
def test_examples_stand_lives(example: str, allow: dict[str, str]) -> None:
    """But for what their pages say."""
    folder = Path(__file__).parents[3] / "examples" / example
    objects = folder / "objects.yaml"
    given = list(yaml.safe_load_all(objects.read_text("utf-8"))) if objects.exists() else None
    found = run_lives(folder, runs=_RUNS_REPAIRED, seed=1, allow=allow, objects=given)
    assert found.violation is None, found.text()


@pytest.mark.parametrize(
    ("handler", "allow", "words"),
    [
        ("ap", {}, "no handler 'ap': did you mean \"app\"?"),
        (None, {"declare": "x"}, "'declare': did you mean \"declared\"?"),
        (None, {"declared": " "}, "say why declared need not hold"),
    ],
)
def test_what_can_not_be_fuzzed_is_a_sentence(handler, allow, words, tmp_path: Path) -> None:
    """An unknown handler or invariant, and one that is allowed without a reason."""
    planted = PLANTED["a lost retry"]
    planted.write(tmp_path, planted.repaired)
    with pytest.raises(UsageError) as refused:
        run_lives(tmp_path, handler, runs=1, allow=allow)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "bounds", "within"),
    [
        ({"minimum": 0, "maximum": 50}, {0, 1, 49, 50}, range(51)),
        ({"minimum": 10, "multipleOf": 10}, {10, 20}, range(10, 1011, 10)),
        ({"exclusiveMaximum": True, "maximum": 4}, {0, 3}, range(4)),
    ],
)
def test_integers_are_drawn_at_the_bounds_and_between(schema, bounds, within) -> None:
    """A value of the upper half comes in a few lives; each bound comes, and no value is outside."""
    drawn: list[int] = []

    @hypothesis.seed(1)
    @hypothesis.settings(max_examples=200, database=None)
    @hypothesis.given(values({"type": "integer", **schema}))
    def draw(value: int) -> None:
        drawn.append(value)

    draw()
    assert bounds <= set(drawn) <= set(within)
    assert any(each >= within[len(within) // 2] for each in drawn[:20])


def config_map(uid: str, *, version: int = 1, manager: str = "fuzzed", **data: str):
    owned = {"f:data": {f"f:{name}": {} for name in data}}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "a",
            "namespace": "default",
            "uid": f"uid-{uid}",
            "resourceVersion": str(version),
            "managedFields": [{"manager": manager, "operation": "Apply", "fieldsV1": owned}],
        },
        "data": data,
    }


@pytest.mark.parametrize(
    ("expected", "found", "message"),
    [
        (config_map("1", a="x"), config_map("2", a="x", version=9), None),
        (config_map("1", a="1"), config_map("2", a="2"), 'data.a is "2", and should be "1"'),
        (config_map("1", a="1"), config_map("2", a="1", b="2"), 'data.b is "2", and should be missing'),
        (config_map("1", a="of uid-1"), config_map("2", a="of uid-2"), None),
        (config_map("1", a="2026-01-01T00:00:00Z"), config_map("2", a="2026-05-01T00:00:01Z"), None),
        (config_map("1", a="1"), None, "ConfigMap default/a is missing"),
        (None, config_map("2", a="1"), "ConfigMap default/a is there, and should not be"),
        (None, config_map("2", a="1", manager="sandbox"), None),
    ],
)
def test_states_differ_in_what_the_controller_has_written(expected, found, message) -> None:
    """Not in uids, versions and times, and not in what others have written."""
    states = [state_of([obj] if obj is not None else []) for obj in (expected, found)]
    assert [str(each).removeprefix("ConfigMap default/a: ") for each in differences(*states)] == [
        each for each in [message] if each
    ]


@pytest.mark.parametrize(
    ("steps", "expected", "found", "documented"),
    [
        (("data", "a"), "1", "2", [{"match": {"data": {"a": "1"}}}]),
        (("data", "a"), None, "2", [{"match": {"data": {"a": None}}}]),
        (("status", "since"), TIME_MASK, None, [{"match": {"status": {"since": "?*"}}}]),
        (("status", "since"), TIME_MASK, "never", [{"absent": {"status": {"since": "never"}}}]),
        (("status", "text"), f"2 at {TIME_MASK}", f"3 at {TIME_MASK}", []),
        (
            ("status", "observedGeneration"),
            CURRENT_GENERATION,
            f"{OLD_GENERATION}1",
            [{"absent": {"status": {"observedGeneration": 1}}}],
        ),
    ],
)
def test_a_saved_life_expects_what_can_be_written_down(steps, expected, found, documented) -> None:
    """A time has no fixed value: a document says that there is one, or which text must not be there."""
    of = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "b"}}
    difference = StateDifference(("v1", "ConfigMap", "b", "a"), steps, expected, found)
    wanted = [{how: {**of, **pattern}} for each in documented for how, pattern in each.items()]
    assert expectations_of(difference) == wanted
