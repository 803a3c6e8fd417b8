"""`declctl run --exec-on-restart`: what needs a new process gets one, in the same place."""

from pathlib import Path

import pytest

from declctl.sandbox import SandboxThread
from tests.rooms.cli.running import MANIFEST, Running, config_map

pytestmark = pytest.mark.thorough  # processes are replaced

ADMIN = "  admin: {bindAddress: 127.0.0.1:0}\n"
HANDLERS = """\
import os, sys, time
MARK = os.environ["MARK"]
os.environ["MARK"] = "changed by the handlers"
def tell(change):
    name = change.key.name
    if name == "slow":
        print("it began")
        while not os.path.exists("go"):
            time.sleep(0.01)
    print(name, os.getpid(), MARK, *sys.argv[-2:])
"""


@pytest.fixture(name="start")
def _start(tmp_path: Path, sandbox: SandboxThread, begin):
    (tmp_path / "manifest.yaml").write_text(MANIFEST.format(name="first", watch="Auto") + ADMIN)
    (tmp_path / "handlers.py").write_text(HANDLERS)

    def start(*options: str, admin: bool = True) -> Running:
        given = (*(("--admin", "127.0.0.1:0") if admin else ()), "--kubeconfig", str(tmp_path / "kubeconfig"))
        running = begin("manifest.yaml", *options, *given, MARK="from outside")
        running.wait_for("maps synced")
        return running

    return start


def test_what_needs_a_new_process_gets_one_in_its_place(start, sandbox):
    """Calls that run are waited for; process id, arguments and the first environment are kept."""
    running = start("--exec-on-restart")
    sandbox.create(config_map("slow"))
    running.wait_for("it began")
    (running.folder / "manifest.yaml").write_text(MANIFEST.format(name="second", watch="Auto") + ADMIN)
    running.wait_for("starting again")
    assert "!metadata.name" in running.said("starting again")[0]
    (running.folder / "go").touch()
    running.wait_for("maps synced", 2)
    line = f"slow {running.process.pid} from outside --kubeconfig {running.folder / 'kubeconfig'}"
    running.wait_for(line, 2)
    assert running.said("second: context")
    assert running.stop() == 0


def test_without_the_option_the_process_goes_on(start, sandbox):
    """It says what needs a restart, and leaves it to whoever runs it."""
    running = start()
    (running.folder / "manifest.yaml").write_text(MANIFEST.format(name="second", watch="Auto") + ADMIN)
    running.wait_for("!metadata.name")
    sandbox.create(config_map("one"))
    running.wait_for(f"one {running.process.pid} changed by the handlers")
    assert not running.said("starting again")
    assert running.stop() == 0


@pytest.mark.parametrize("arguments", [("m.yaml", "--once"), ("-",)])
def test_what_can_not_be_started_again_is_refused(declctl, arguments):
    """A run that ends by itself, and a manifest that can be read once only."""
    assert "--exec-on-restart" in declctl.refused("run", *arguments, "--exec-on-restart")


def test_a_process_that_works_stays_if_the_next_start_would_fail(start, sandbox):
    """A certificate that is not there, for example: the log says why, and changes go on being handled."""
    running = start("--exec-on-restart", admin=False)
    admin = "  admin: {bindAddress: 127.0.0.1:0, tls: {certFile: gone.crt, keyFile: gone.key}}\n"
    (running.folder / "manifest.yaml").write_text(MANIFEST.format(name="first", watch="Auto") + admin)
    running.wait_for("not starting again, as the next start would fail: The certificate of the admin address")
    sandbox.create(config_map("one"))
    running.wait_for(f"one {running.process.pid}")
    assert running.stop() == 0
