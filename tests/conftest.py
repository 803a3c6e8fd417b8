"""Settings of all tests, and the choice of those that `make test` runs.

A person's run looks for new counterexamples each time. With `CI=1`, examples are the same each time,
so that a failure comes from the change. Neither judges by how fast the machine is.
"""

import asyncio
import atexit
import gc
import inspect
import os
import random
import re
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadScopeScheduling

from declctl.kit import ManualClock
from declctl.kit.loops import EVENT_LOOP

TESTS = Path(__file__).parent
RUN_FIRST = tuple(TESTS / name for name in ("e2e", "behaviour", "properties", "hostile", "promises"))
THOROUGH = (TESTS / "e2e", TESTS / "hostile")


def pytest_configure() -> None:
    """Lets the children of tests hear Ctrl-C: a shell has those of a background job ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of `THOROUGH` as `thorough`, but for scenarios, and puts what takes long first.

    So short modules run last, when the other workers wait for the last one.
    """
    for item in items:
        if any(map(item.path.is_relative_to, THOROUGH)) and not item.get_closest_marker("scenario"):
            item.add_marker("thorough")
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    """0 for what needs a real API server, 1 for folders of `RUN_FIRST`, 2 for others."""
    if item.get_closest_marker("real"):
        return 0
    return 1 if any(map(item.path.is_relative_to, RUN_FIRST)) else 2


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Half of the modules run with uvloop, if it is installed; with the next seed, the other half."""
    seed = item.config.getoption("randomly_seed", 0) or 0
    is_even = (crc32(str(item.path.relative_to(TESTS.parent)).encode()) + int(seed)) % 2 == 0
    os.environ[EVENT_LOOP] = "uvloop" if is_even else "asyncio"


def pytest_collection_finish() -> None:
    """Leaves ten thousand tests out of each collection of garbage that follows."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says how this order is repeated."""
    seed = config.getoption("randomly_seed", None)
    if seed is not None:
        terminalreporter.write_line(f"The order of this run: SEED={seed} (--randomly-seed={seed})")


@pytest.fixture
def seed() -> int:
    """From DECLCTL_SEED, and by chance for a person."""
    by_default = 0 if os.environ.get("CI") else random.SystemRandom().randrange(10**9)
    return int(os.environ.get("DECLCTL_SEED") or by_default)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs an `async def` test on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
    return True


class ModuleScheduling(LoadScopeScheduling):
    """One worker runs all tests of a module; two share those that need a real API server."""

    def _split_scope(self, nodeid: str) -> str:
        module, _, test = nodeid.partition("::")
        # Each of the two starts a control plane; more would be heavy. The lengths of names part them evenly.
        return f"real {len(module) % 2}" if _REAL.search(test) else module


_REAL = re.compile(r"\[(.+-)?real(-.+)?\]$")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ModuleScheduling:
    """Tells xdist which tests stay together."""
    return ModuleScheduling(config, log)


# The official client reads the system's certificates for each new client, also for a server without TLS.
# So does each process that imports aiohttp. That takes 40 ms, a thousand times. No test needs them.
os.environ["SSL_CERT_FILE"] = os.devnull

# Commands find running processes by files in this folder. The person's own processes are not for tests.
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="declctl-tests-")
os.environ.pop("DECLCTL_RUNTIME_DIR", None)  # it would come first
atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)

settings.register_profile("person", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("person"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "person")

# Hypothesis takes constants for its examples from all modules that are no library, and holds the modules for
# ever. Those of a generation have to go with it.
_is_local = providers.is_local_module_file
providers.is_local_module_file = lambda file: Path(file).is_relative_to(TESTS.parent) and _is_local(file)


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves when it is told to."""
    return ManualClock()
