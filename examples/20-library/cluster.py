"""`--sandbox`: an API server in memory, as a process of its own, for as long as the program runs."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OBJECTS = Path(__file__).parent / "objects.yaml"


@contextmanager
def sandbox() -> Iterator[str]:
    """The path of its kubeconfig, once it listens."""
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = str(Path(folder) / "kubeconfig")
        command = [sys.executable, "-m", "declctl", "sandbox"]
        command += ["--objects", str(OBJECTS), "--kubeconfig-out", kubeconfig]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                if not server.stdout or not server.stdout.readline():  # its first line says that it listens
                    sys.exit("the sandbox did not start; what it said stands above")
                yield kubeconfig
            finally:
                server.terminate()
