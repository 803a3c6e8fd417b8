"""Old code that lives on is seen: the gauge counts it, status and the log name who holds it."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from declctl.cli.report import print_status
from declctl.kit import SystemClock
from declctl.runtime.reloading import retirement
from declctl.testing import until

PLAIN = "import blackboard\ndef tell(change): blackboard.tell('told', 2)\n"
HEAD = "import asyncio, atexit, logging, signal, threading, blackboard\nfrom functools import partial\n"
THREAD = """
def poll(): blackboard.wait("held")
threading.Thread(target=poll, name="poller", daemon=True).start()
def tell(change): blackboard.tell("told", 1)
"""
TIMER = """
def later(): pass
timer = threading.Timer(3600, later)
timer.name, timer.daemon = "timer", True
timer.start()
blackboard.timers = [timer]
def tell(change): blackboard.tell("told", 1)
"""
TASK = """
async def forever(): await asyncio.Event().wait()
async def tell(change):
    blackboard.task = asyncio.get_running_loop().create_task(forever(), name="forever")
    blackboard.loop = asyncio.get_running_loop()
    blackboard.tell("told", 1)
"""
HANDLER = """
class Audit(logging.Handler):
    def emit(self, record): pass
logging.getLogger("audit").addHandler(Audit())
def tell(change): blackboard.tell("told", 1)
"""
FILTER = """
def passes(record): return True
logging.getLogger("audit").addFilter(passes)
def tell(change): blackboard.tell("told", 1)
"""
ROOT = """
logging.getLogger().addHandler(logging.StreamHandler())
def tell(change): blackboard.tell("told", 1)
"""
PATCH = """
def mine(): pass
blackboard.patched = partial(mine)
def tell(change): blackboard.tell("told", 1)
"""
REGISTRY = """
class Collector:
    def collect(self): return []
blackboard.registry.by_name["mine"] = Collector()
def tell(change): blackboard.tell("told", 1)
"""


AT_EXIT = """
import atexit, gc, sys
from declctl.hooks.bundle import Bundle
from declctl.hooks.loader import GenerationNamespace
from declctl.runtime.checking.loaded_code import RegistrationWatch
from declctl.runtime.reloading.retirement import RetiredCode, find_holders
code = b"import atexit\\ndef bye(): pass\\natexit.register(bye)\\n"
watch, namespace = RegistrationWatch(), GenerationNamespace(1, Bundle("app", {"h.py": code}))
namespace.module("h")
retired = RetiredCode(1, False, namespace.trace(), watch.registrations())
namespace.close()
del namespace
gc.collect()
print(retired.is_alive, find_holders(retired, (), everywhere=True))
"""


DEAD_PROXY = """
import gc, weakref
from declctl.hooks.bundle import Bundle
from declctl.hooks.loader import GenerationNamespace
from declctl.runtime.checking.loaded_code import Registrations
from declctl.runtime.reloading.retirement import RetiredCode, find_holders
class Registry:
    pass
registry, namespace = Registry(), GenerationNamespace(1, Bundle("app", {"h.py": b"def mine(): pass\\n"}))
registry.mine = namespace.module("h").mine
proxies = [weakref.proxy(Registry()) for _ in range(3)]  # of what is gone: it answers no question
class Silent(type):
    def __getattribute__(cls, name): raise RuntimeError("none of your business")
class Hidden(metaclass=Silent):
    def __init__(self): self.mine = registry.mine
hidden = [Hidden(), Hidden]
retired = RetiredCode(1, False, namespace.trace(), Registrations())
namespace.close()
kept = [registry]
del namespace, registry
gc.collect()
print(tuple(sorted(find_holders(retired, (), everywhere=True))))
"""


class Registry:
    """Such as libraries keep: it has what others have registered."""

    def __init__(self) -> None:
        self.by_name: dict[str, object] = {}


@pytest.fixture(autouse=True)
def _tidy(board, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the handlers of these tests leave behind is ended, and sweeps follow each other soon."""
    monkeypatch.setattr(retirement, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(retirement, "SWEEP_INTERVAL", 0.2)
    board.registry = Registry()
    root = list(logging.getLogger().handlers)
    yield
    _end(board)
    logging.getLogger().handlers[:] = root


def _end(board) -> None:
    board.open_gate("held")
    for timer in vars(board).pop("timers", []):
        timer.cancel()
    if "task" in vars(board):
        task, loop = vars(board).pop("task"), vars(board).pop("loop")
        if loop.is_running():
            loop.call_soon_threadsafe(task.cancel)
    for name in ("audit",):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).filters.clear()
    for handler in list(logging.getLogger().handlers):
        if type(handler) is logging.StreamHandler:
            logging.getLogger().removeHandler(handler)
    vars(board).pop("patched", None)
    board.registry.by_name.clear()


@pytest.mark.thorough
@pytest.mark.guarantee("G22", "G25")
@pytest.mark.parametrize(
    ("code", "held_by"),
    [
        (THREAD, "thread poller (poll at {file}:4)"),
        (TIMER, "thread timer (handlers.later)"),
        (TASK, "task forever (forever at {file}:4)"),
        (HANDLER, "logging handler Audit on logger audit"),
        (FILTER, "logging filter handlers.passes on logger audit"),
        (ROOT, "logging handler StreamHandler on the root logger"),
        (PATCH, "blackboard.patched (handlers.mine)"),
        (REGISTRY, "a reference in tests.behaviour.test_old_generations.Registry"),
    ],
)
def test_old_code_that_lives_on_is_counted_and_named(
    rig, config_map, capsys, code: str, held_by: str
) -> None:
    """The gauge says 2, status says who holds it, the log once; when it is ended, all is as before."""
    rig.reload_policy = "settle: 20ms, preflight: 'Off', probationPeriod: 0s"
    rig.handler("tell")
    controller = rig.run(HEAD + code, objects=[config_map("m")])
    until("it is called", lambda: rig.told("told", 1))
    rig.apply(PLAIN)
    words = held_by.format(file=rig.folder.path / "handlers.py")
    _wait_until_found(controller)
    assert _held(controller) == {1: (words,)}
    assert controller.status().generations_alive == 2
    print_status(controller.status().document(), now=SystemClock().now())
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["1", words] in rows
    said = [line for line in controller.log.events("warning") if "is alive, though it was retired" in line]
    assert said == [
        f"the code of generation 1 is alive, though it was retired: {words}; end it in declctl_teardown"
    ]
    _end(rig.board)
    until("it is gone", lambda: controller.status().generations_alive == 1, timeout=20)
    assert not _held(controller)


def _wait_until_found(controller) -> None:
    # To find a reference all objects of the process are looked at: there are many where tests run.
    draining = {1: ("what was queued for it",)}
    try:
        until("it is found", lambda: _held(controller) not in ({}, draining), timeout=60)
    except AssertionError as error:
        error.add_note("\n".join(line.event for line in controller.log.lines))
        raise


def _held(controller) -> dict[int, tuple[str, ...]]:
    return {old.generation: old.held_by for old in controller.status().old_generations}


@pytest.mark.guarantee("G22")
def test_a_generation_that_a_call_keeps_says_which(rig, config_map) -> None:
    """A call that does not return keeps its generation; so does a probation."""
    rig.reload_policy = "settle: 20ms, preflight: 'Off', probationPeriod: 1h, drainTimeout: 100ms"
    rig.handler("tell")
    stuck = "import blackboard\ndef tell(change): blackboard.wait('held'); blackboard.tell('told', 1)\n"
    controller = rig.run(stuck, objects=[config_map("m")])
    until("it is called", lambda: controller.handler("tell").running)
    rig.apply(PLAIN)
    assert _held(controller) == {1: ("call of tell for default/m",)}
    rig.board.open_gate("held")
    until("it returns", lambda: _held(controller) == {1: ("the probation of the next one",)}, timeout=20)


@pytest.mark.thorough
@pytest.mark.guarantee("G22")
def test_code_of_a_refused_reload_is_named_and_is_no_generation(rig, config_map) -> None:
    """It started a thread, and was refused: nothing of what runs has changed, and the gauge says 1."""
    rig.handler("tell")
    controller = rig.run(PLAIN, objects=[config_map("m")])
    rig.handler("hooks", entry="handlers")
    refuses = "import declctl\n@declctl.hookimpl\ndef declctl_prepare(): raise OSError('no')\n"
    assert (
        rig.reload(HEAD + THREAD + refuses + "@declctl.hookimpl\ndef declctl_event(): pass\n").result
        == "Refused"
    )
    _wait_until_found(controller)
    (old,) = controller.status().old_generations
    assert (old.generation, old.refused, controller.status().generations_alive) == (2, True, 1)
    assert old.held_by[0].startswith("thread poller (poll at ")


@pytest.mark.guarantee("G22")
def test_functions_for_the_end_of_the_process_are_told() -> None:
    """`atexit` shows nobody its functions: that there are some is all that can be said."""
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "True ('a function registered with atexit',)\n", done.stderr


@pytest.mark.guarantee("G22")
def test_objects_that_answer_no_question_are_looked_past() -> None:
    """A proxy of what is gone raises whatever it is asked, and so may a class: holders are found."""
    done = subprocess.run(
        [sys.executable, "-c", DEAD_PROXY], capture_output=True, text=True, timeout=60, check=False
    )
    found = "('a reference in __main__.Hidden', 'a reference in __main__.Registry')"
    assert done.stdout.strip() == found, done.stderr
