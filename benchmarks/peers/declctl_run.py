"""The product: `declctl run` of a manifest with one resource, one index and at most one counting handler.

This process only speaks for it: it asks the admin address, and hands on what the handlers have to know.
The driver measures the process of `declctl run`, whose id this program prints.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from protocol import KINDS, arguments, commands, say, timed

from declctl import __version__

HERE = Path(__file__).resolve().parent
INDEX = "byField"
LOOK_SECONDS = 0.1
RECONCILERS = ("reconcile", "reconcile-status")
WORKERS = 8  # objects that are reconciled at once, as in the other peers


def main() -> None:
    """Runs `declctl run`, reports its sync, and forwards commands until the end of standard input."""
    options = arguments(
        __doc__, listeners=("none", "sync", "async", *RECONCILERS), modes=("threads", "isolated")
    )
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder)
        for file in (HERE / "bundle").glob("*.py"):
            shutil.copy(file, bundle)
        admin = Admin(f"127.0.0.1:{free_port()}")
        (bundle / "manifest.yaml").write_text(json.dumps(manifest(options, admin.address)))
        words = [
            "run",
            str(bundle / "manifest.yaml"),
            "--kubeconfig",
            options.kubeconfig,
            "--log-level",
            "error",
        ]
        path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "BENCH_OBJECTS": str(options.objects)}
        child = subprocess.Popen(
            [sys.executable, "-m", "declctl", *words], stdin=subprocess.PIPE, text=True, env=environment
        )
        say("process", pid=child.pid)
        threading.Thread(target=follow, args=(child, admin, bundle, options), daemon=True).start()
        status = child.wait()
        shutil.rmtree(bundle, ignore_errors=True)
        os._exit(max(0, status))


class Admin:
    """The admin address of the process."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str) -> Any:
        """The JSON document at a path. Raises OSError without an answer."""
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=60) as answer:
            return json.load(answer)

    def post(self, path: str) -> Any:
        """The answer to a POST."""
        order = urllib.request.Request(f"http://{self.address}{path}", method="POST")
        with urllib.request.urlopen(order, timeout=60) as answer:
            return json.load(answer)

    def cached(self) -> int:
        """The number of objects in the cache; 0 until it has synced."""
        try:
            (resource,) = self.get("/status")["resources"]
        except (OSError, ValueError):
            return 0  # the process is still starting
        return resource["objects"] if resource["synced"] else 0

    def reader(self, resource: str) -> Callable[[], int]:
        """Reads the first value of the index over HTTP, as a user of the admin address does."""
        index = f"/index/{resource}/{INDEX}/"
        path = index + urllib.parse.quote(self.get(index)["values"][0], safe="")
        return lambda: self.get(path)["count"]


def manifest(options: Any, admin: str) -> dict[str, Any]:
    """The manifest as JSON, which is also YAML."""
    kind = KINDS[options.kind]
    resource = {
        "name": options.kind,
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "indexers": [{"name": INDEX, "fieldPath": kind.field_path}],
    }
    module = options.listener.replace("-", "_") + "_handlers"
    entries = [] if options.listener == "none" else [("counting", module)]
    entries += [("burning", "burning")] if options.burn else []
    handlers: list[dict[str, Any]] = [
        {"name": name, "resourceRef": {"name": options.kind}, "entryPoint": entry} for name, entry in entries
    ]
    if options.mode == "isolated":
        handlers[-1]["isolation"] = {"mode": "Process"}
    if options.listener in RECONCILERS:
        handlers[0] |= {"mode": "Reconcile", "queue": {"concurrency": WORKERS}}
    spec = {
        "resources": [resource],
        # No limit, as the other peers. Only where it matters: the baseline does not know the field.
        **({"writes": {"qps": 0}} if options.listener in RECONCILERS else {}),
        "reload": {"watch": "Off"},
        "admin": {"bindAddress": admin},
    }
    return {
        "apiVersion": "declctl.dev/v1alpha1",
        "kind": "Controller",
        "metadata": {"name": "bench"},
        "spec": {**spec, "handlers": handlers} if handlers else spec,
    }


def follow(child: "subprocess.Popen[str]", admin: Admin, bundle: Path, options: Any) -> None:
    """Reports the sync, answers or forwards the commands, and ends the process after the last one."""
    while (found := admin.cached()) < options.objects:
        time.sleep(LOOK_SECONDS)
    loops = " with uvloop" if find_spec("uvloop") else ""
    say("synced", objects=found, version=f"declctl {__version__}{loops}")
    assert child.stdin is not None
    for command, *words in commands():
        match command:
            case "read":
                say("read", **timed(admin.reader(options.kind)))
            case "reload":
                say("reloaded", **reload(admin, bundle))
            case _:
                child.stdin.write(" ".join([command, *words]) + "\n")
                child.stdin.flush()
    child.kill()


def reload(admin: Admin, bundle: Path) -> dict[str, Any]:
    """Edits the handlers, reloads them, and reports the outcome."""
    for file in bundle.glob("*_handlers.py"):
        file.write_text(f"{file.read_text()}\n# edited {time.time_ns()}\n")
    began = time.perf_counter()
    outcome = admin.post("/-/reload")
    wall = time.perf_counter() - began
    return {
        "seconds": outcome["seconds"],
        "wall": wall,
        "result": outcome["result"],
        "lists": outcome["lists"],
    }


def free_port() -> int:
    """A free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


if __name__ == "__main__":
    main()
