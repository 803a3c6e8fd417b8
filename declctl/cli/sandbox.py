"""`declctl sandbox`: an API server in memory, for kubectl and any client; and files of objects for it."""

import asyncio
import gc
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import yaml

from declctl.cli.manifest_argument import is_config_map
from declctl.cli.terminal import line
from declctl.errors import SandboxError, UsageError
from declctl.kit.files import OBJECTS_BYTES, READ_SECONDS, folder_of, read_file, within
from declctl.manifest.definition_files import definitions_beside, kind_of, yaml_files
from declctl.objects import KubeObject
from declctl.objects.rule_checks import INSTALL, are_unchecked, unchecked
from declctl.sandbox import Sandbox
from declctl.sandbox.validation import read_documents

_LOOK_SECONDS: Final = 1.0  # between two looks at files of definitions
_OURS = "current-context: sandbox"


def serve(objects: Sequence[str], *, port: int, kubeconfig_out: str | None, churn: float) -> None:
    """Serve a Kubernetes API from memory, until Ctrl-C or SIGTERM. Raises UsageError and SandboxError."""
    gc.enable()  # it was off for the start
    documents = read_objects(objects)
    with tempfile.TemporaryDirectory(prefix="declctl-sandbox-") as folder:
        target = Path(kubeconfig_out) if kubeconfig_out else Path(folder) / "kubeconfig"
        refuse_to_overwrite(target)
        asyncio.run(_serve(documents, port=port, churn=churn, target=target))


async def _serve(documents: list[KubeObject], *, port: int, churn: float, target: Path) -> None:
    server = Sandbox()
    loaded = server.load(documents)
    if (text := of_unchecked_rules(documents)) is not None:
        line(f"warning: {text}", err=True)
    asked_to_end = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Before the server listens, so that a signal during the start ends it as well.
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked_to_end.set)
    try:
        await server.start(port=port)
    except SandboxError as error:
        raise UsageError(f"{error}; name another port with --port, or none for any.") from error
    try:
        write_kubeconfig(target, server.kubeconfig())
        _introduce(server, target, loaded)
        # Demo pods that stop changing end the command, with their fault.
        async with asyncio.TaskGroup() as tasks:
            changes = tasks.create_task(server.churn(churn)) if churn else None
            await asked_to_end.wait()
            if changes is not None:
                changes.cancel()
    finally:
        await server.stop()


def _introduce(server: Sandbox, target: Path, loaded: list[str]) -> None:
    number = f", with {len(loaded)} object{'s' * (len(loaded) != 1)}" if loaded else ""
    for each in (
        f"sandbox at {server.url}{number}; Ctrl-C ends it. Try:",
        f"  export KUBECONFIG={shlex.quote(str(target.absolute()))}",
        "  kubectl get pods -A -w",
    ):
        line(each)


def refuse_to_overwrite(target: Path) -> None:
    """Raise UsageError for a file that no sandbox has written, such as the kubeconfig of a cluster."""
    try:
        if _OURS in target.read_text("utf-8"):
            return
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--kubeconfig-out {target}: it can't be written to: {error}.") from error
    raise UsageError(f"--kubeconfig-out {target}: there is another file already; name one that is free.")


def write_kubeconfig(target: Path, kubeconfig: KubeObject) -> None:
    """Write the kubeconfig of a sandbox for this user alone. Raises UsageError."""
    try:
        target.write_text(yaml.safe_dump(kubeconfig, sort_keys=False), "utf-8")
        target.chmod(0o600)
    except OSError as error:
        raise UsageError(f"--kubeconfig-out {target}: it can't be written: {error.strerror}.") from error


def read_objects(files: Sequence[str]) -> list[KubeObject]:
    """Every document of every file, in order; `-` is standard input.

    Raises UsageError for a file that can't be read, and SandboxError with the place of a fault in one.
    """
    return [
        document
        for file in files
        for document in read_documents(_bytes(file), name=file)
        if document is not None  # an empty YAML document
    ]


def objects_beside(manifest: str) -> list[KubeObject]:
    """What a sandbox begins with by itself: the definitions beside a manifest, and the objects of `sandbox/`.

    The definitions are the CustomResourceDefinitions in the YAML files of the manifest's folder. Raises
    UsageError for a file of `sandbox/` that can't be read, and SandboxError with the place of a fault in one.
    """
    if manifest == "-" or is_config_map(manifest):
        return []
    folder = folder_of(Path(manifest))
    return [
        *definitions_beside(folder),
        *read_objects([str(each) for each in yaml_files(folder / "sandbox")]),
    ]


class DefinitionsInSandbox:
    """Keeps the definitions of a sandbox as those in the YAML files of a folder.

    `load` is that of the sandbox, which has the present definitions of the folder.
    """

    def __init__(self, folder: Path, *, load: Callable[[Sequence[KubeObject]], object], log: Any) -> None:
        self._folder = folder
        self._load = load
        self._log = log
        self._stamps = _stamps(folder)
        self._known = {kind_of(each): each for each in definitions_beside(folder)}

    def look(self) -> None:
        """Load the definitions that have changed since the last look. Blocks, and raises nothing."""
        stamps = _stamps(self._folder)
        if stamps == self._stamps:
            return
        self._stamps = stamps
        for each in definitions_beside(self._folder):
            group, kind = kind_of(each)
            if self._known.get((group, kind)) == each:
                continue
            self._known[group, kind] = each
            try:
                self._load([each])
            except SandboxError as fault:
                self._log.warning(f"the sandbox keeps its definition of {kind} ({group}): {fault}")
            else:
                self._log.info(f"the sandbox has the edited definition of {kind} ({group})")

    @contextmanager
    def following(self) -> Generator[None]:
        """Look each second, in a thread, until the end."""
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(_LOOK_SECONDS):
                self.look()

        thread = threading.Thread(target=follow, name="declctl-definitions", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _stamps(folder: Path) -> Sequence[tuple[Path, int, int]]:
    """What changes with the YAML files of a folder."""
    found: list[tuple[Path, int, int]] = []
    with suppress(OSError):  # a file that goes meanwhile
        for path in yaml_files(folder):
            stat = path.stat()
            found.append((path, stat.st_mtime_ns, stat.st_size))
    return found


def of_unchecked_rules(documents: Sequence[KubeObject]) -> str | None:
    """What to say of definitions whose rules a sandbox can't check; None if it checks all."""
    names = [f"{each['metadata']['name']}" for each in documents if are_unchecked(each)]
    return f"{unchecked(' and '.join(names))}: {INSTALL}" if names else None


def _bytes(file: str) -> bytes:
    if file == "-":
        data = sys.stdin.buffer.read(OBJECTS_BYTES + 1)
        if len(data) <= OBJECTS_BYTES:
            return data
        raise UsageError(f"--objects -: it has more than {OBJECTS_BYTES:,} bytes; load it in parts.")
    try:
        # With a time limit: a named pipe, or a file of a network that is away, would be waited for.
        return within(READ_SECONDS, lambda: read_file(file, most=OBJECTS_BYTES), name="declctl-files")
    except OSError as error:
        reason = (error.strerror or "it can't be read").lower()
        raise UsageError(f"--objects {file}: {reason}; name a YAML file of Kubernetes objects.") from error
