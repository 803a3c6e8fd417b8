"""Handler code that gives work to other processes: they import its functions, those of its own generation."""

import multiprocessing
import os
from pathlib import Path

import pytest

from declctl.hooks import loader
from declctl.testing import until

POOL = """
import multiprocessing, os
from concurrent.futures import ProcessPoolExecutor
from blackboard import tell as note
import parts

def work(number):
    from parts import late  # is imported there, when it is called
    return number * parts.FACTOR * late.ONE, os.getpid()

def tell(change):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("{method}")) as pool:
        result, pid = pool.submit(work, 21).result(60)
    note("result", result, pid != os.getpid())
"""
PROCESS = """
import multiprocessing
from blackboard import tell as note

def work(number):
    raise SystemExit(number)

def tell(change):
    process = multiprocessing.get_context("{method}").Process(target=work, args=(7,))
    process.start()
    process.join(60)
    note("result", process.exitcode)
"""


@pytest.fixture(autouse=True)
def _no_server_is_left():
    """The server that processes are forked from would live on, with the environment of this test."""
    yield
    loader.withdraw_all()
    from multiprocessing import forkserver, resource_tracker

    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()


@pytest.mark.thorough
@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_pool_of_processes_has_the_functions_of_its_generation(method, rig, config_map) -> None:
    """Each generation's processes have its modules, also those that are imported late."""
    rig.handler("tell")
    rig.folder.write("parts/__init__.py", "FACTOR = 2\n")
    rig.folder.write("parts/late.py", "ONE = 1\n")
    running = rig.run(POOL.replace("{method}", method), objects=[config_map("one")])
    running.wait_idle(60)
    rig.folder.write("parts/__init__.py", "FACTOR = 3\n")
    assert running.reload().result == "Applied"
    running.sandbox.create(config_map("two"))
    running.wait_idle(60)
    assert rig.told("result") == [("result", 42, True), ("result", 63, True)]


def test_what_processes_share_is_private_and_goes_with_the_generation(rig, config_map) -> None:
    """`Process` runs a function of the bundle, whose sources only this user may read, and later nobody."""
    rig.handler("tell")
    running = rig.run(PROCESS.replace("{method}", "spawn"), objects=[config_map("one")])
    running.wait_idle(60)
    assert rig.told("result") == [("result", 7)]
    folder = Path(os.environ["DECLCTL_GENERATIONS"])
    assert folder.stat().st_mode & 0o077 == 0
    shared = set(folder.iterdir())
    rig.folder.edit("handlers.py", "args=(7,)", "args=(8,)")
    rig.apply()
    until("the old one is gone", lambda: len(shared - set(folder.iterdir())) == 1)
    assert len(set(folder.iterdir()) - shared) == 1
    loader.withdraw_all()  # as before the process becomes a new one
    assert not folder.exists()


def test_a_bundle_without_processes_writes_nothing(rig, monkeypatch) -> None:
    """A read-only file system is enough for most controllers."""
    monkeypatch.delenv("DECLCTL_GENERATIONS", raising=False)
    rig.handler("tell")
    rig.run("def tell(change): ...\n")
    assert "DECLCTL_GENERATIONS" not in os.environ


def test_a_process_that_can_not_import_says_why(rig, config_map, monkeypatch, capfd) -> None:
    """Nowhere to write: the process ends at once, and its traceback says what is missing."""
    monkeypatch.setattr("declctl.hooks.loader.PROCESS_WORDS", ())
    rig.handler("tell")
    running = rig.run(PROCESS.replace("{method}", "spawn"), objects=[config_map("one")])
    running.wait_idle(60)
    assert rig.told("result") == [("result", 1)]
    assert "the handler modules of _declctl_gen.g" in capfd.readouterr().err
    assert multiprocessing.active_children() == []
