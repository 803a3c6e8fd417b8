"""`make demo`: a lively cluster in memory, and examples/01-hello in front of it.

Two processes, as it would be anywhere: an API server (`declctl sandbox`) and a controller (`declctl run`).
Ctrl-C ends both.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KUBECONFIG = Path(".demo/kubeconfig")
EXAMPLE = "examples/01-hello"
DECLCTL = (sys.executable, "-m", "declctl")
SECONDS_TO_LISTEN = 30

INTRODUCTION = f"""\
An API server in memory, with pods that come and go, and a controller declared in {EXAMPLE}/manifest.yaml.

  Now edit {EXAMPLE}/handlers.py while it runs: change "pod" to "POD", and save.
  The next change is told in your words, and a line says "generation 2: … 0 LIST": nothing was read again.

Ctrl-C ends it all.
"""


def main() -> int:
    """Run both; returns the exit status of the controller."""
    os.chdir(ROOT)
    KUBECONFIG.parent.mkdir(exist_ok=True)
    KUBECONFIG.unlink(missing_ok=True)
    sandbox = start_sandbox()
    try:
        wait_until_it_listens(sandbox)
        print(INTRODUCTION, flush=True)
        # Any admin address that is free: two demos do not disturb each other.
        run = ["run", f"{EXAMPLE}/manifest.yaml", "--kubeconfig", str(KUBECONFIG), "--admin", "127.0.0.1:0"]
        controller = subprocess.Popen([*DECLCTL, *run])
        pass_signals_on(controller)
        return controller.wait()
    finally:
        sandbox.terminate()
        sandbox.wait()
        shutil.rmtree(KUBECONFIG.parent, ignore_errors=True)


def start_sandbox() -> "subprocess.Popen[str]":
    """In a session of its own: Ctrl-C is for the controller, which needs its cluster to the end."""
    command = [*DECLCTL, "sandbox", "--churn", "3", "--kubeconfig-out", str(KUBECONFIG)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def wait_until_it_listens(sandbox: "subprocess.Popen[str]") -> None:
    """Its first line says that it does; ends the demo if it never comes."""
    too_long = threading.Timer(SECONDS_TO_LISTEN, sandbox.kill)
    too_long.start()
    assert sandbox.stdout is not None
    first = sandbox.stdout.readline()
    too_long.cancel()
    if not first:
        sys.exit("the sandbox did not start; what it said stands above")
    # The rest is for somebody without a demo; it is read, so that the sandbox never waits for a reader.
    threading.Thread(target=sandbox.stdout.read, daemon=True).start()


def pass_signals_on(controller: "subprocess.Popen[bytes]") -> None:
    """Ctrl-C reaches the controller by itself; whoever ends this process means both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: controller.terminate())


if __name__ == "__main__":
    sys.exit(main())
