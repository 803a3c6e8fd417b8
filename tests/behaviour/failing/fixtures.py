"""What tests of visible failures share: the scene, the command line that asks it, what is read of it."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from declctl.testing import until
from tests.behaviour.failing.scene import Process, Scene, opened
from tests.rooms.cli.conftest import Ended

Run = Callable[..., Ended]


@pytest.fixture(name="scene", scope="module")
def _scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Two processes over the same files, for all tests of a module."""
    with opened(tmp_path_factory.mktemp("failing")) as made:
        yield made


@pytest.fixture(name="ask")
def _ask(scene: Scene, declctl: Run) -> Run:
    """Runs a command that asks a process, by default the one that logs text."""

    def run(*words: str, of: Process | None = None) -> Ended:
        return declctl(*words, "--admin", (of or scene.text).address)

    return run


@pytest.fixture(autouse=True)
def _well_again(scene: Scene, ask: Run) -> Iterator[None]:
    """Each test begins with good files that run, and without what others have arranged."""
    yield
    scene.mend()
    for process in (scene.text, scene.json):
        if process.runs(scene.good):
            continue
        assert ask("reload", of=process).status == 0
        until("one generation is left", lambda p=process: p.metrics()["declctl_generations_alive",] == 1)


def world_of(process: Process) -> dict[str, Any]:
    """What a failure must not change."""
    status = process.status()
    return {
        "generation": status["generation"],
        "bundle": status["bundleHash"],
        "alive": process.metrics()["declctl_generations_alive",],
        "resources": [(r["name"], r["synced"], r["lists"], r["watches"]) for r in status["resources"]],
        "handlers": [(h["name"], h["generation"], h["failed"], h["retried"]) for h in status["handlers"]],
        "plugins": status["plugins"],
    }


def is_well(scene: Scene, ask: Run, number: int, *, reason: str) -> None:
    """Nothing is told of any failure."""
    condition = scene.text.condition("Reloaded")
    assert (condition["status"], condition["reason"], condition["message"]) == ("True", reason, "")
    first, *_ = ask("status").out.splitlines()
    assert first == f"guard generation {number}"


def rows_of(printed: str, scene: Scene) -> list[list[str]]:
    """The rows of all tables on stdout."""
    return [re.split(r"\s{2,}", line) for line in scene.told(printed).splitlines() if line]
