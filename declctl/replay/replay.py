"""A replay from its start to its end: a runtime without a cluster, a player, and the report."""

import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path, PurePath
from typing import Any

import msgspec

from declctl.kit.files import folder_of
from declctl.manifest.definition_files import definitions_beside
from declctl.objects import KubeObject
from declctl.replay.client import TapeClient
from declctl.replay.clients import ClientAnswers
from declctl.replay.clock import ReplayClock
from declctl.replay.differences import ReplayReport
from declctl.replay.player import Player
from declctl.replay.tape import Tape
from declctl.runtime.checking.preflight_pool import PreflightPool
from declctl.runtime.log import Log
from declctl.runtime.runtime import RunOptions, Runtime
from declctl.sandbox import Sandbox


class ReplayOptions(msgspec.Struct, frozen=True):
    """The options of `declctl replay`."""

    manifest: str | None = None  # None: the code of then
    key: str | None = None  # calls for other keys are made, and not compared
    handler: str | None = None  # as `key`
    speed: float = 0.0  # seconds of the recording in a second; 0 for as fast as possible


def replay(
    tape: Tape,
    options: ReplayOptions,
    *,
    log: Log,
    user_log: Any = None,
    children: PreflightPool | None = None,
) -> ReplayReport:
    """Run code on a recording; returns what differs. Blocks. Raises ManifestErrors and UsageError."""
    report = ReplayReport(
        recording=str(tape.path),
        controller=tape.header.controller,
        version=tape.header.version,
        began=tape.began,
        torn=tape.torn,
    )
    began = time.monotonic()
    with ExitStack() as stack:
        manifest, place = options.manifest, None
        if manifest is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="declctl-replay-")))
            files = tape.first_files
            place = _placer(folder)
            place(files.files)
            manifest = str(folder / files.manifest)
        clock = ReplayClock(tape.began)
        player = Player(tape, clock, report, place=place, chosen=_chooser(options), speed=options.speed)
        _Replay(tape, player, clock, manifest, log=log, user_log=user_log, children=children).run()
    report.notes += [
        f"the recording does not have {what}: it counts as empty" for what in player.server.unknown
    ]
    report.took = time.monotonic() - began
    return report


class _Replay:
    """The runtime of a replay, and the task of its player."""

    def __init__(
        self,
        tape: Tape,
        player: Player,
        clock: ReplayClock,
        manifest: str,
        *,
        log: Log,
        user_log: Any,
        children: PreflightPool | None,
    ) -> None:
        self._tape = tape
        self._player = player
        self._clock = clock
        self._manifest = manifest
        self._fault: BaseException | None = None
        self._ended = threading.Event()  # the runtime has
        self._runtime = Runtime(
            RunOptions(manifest, watch=False, namespace="default", is_replay=True),
            connect=self._connect,
            children=children,
            clock=clock,
            log=log,
            user_log=user_log,
            recorder=lambda _client, _plan: player,
        )

    def run(self) -> None:
        """Play the tape to its end. Raises what has ended the runtime or the player."""
        playing = threading.Thread(target=self._play, name="declctl-replay", daemon=True)
        playing.start()
        try:
            self._runtime.run()
        finally:
            self._ended.set()
        playing.join()
        if self._fault is not None:
            raise self._fault

    def _play(self) -> None:
        try:
            while not self._runtime.generation:
                if self._ended.wait(0.01):
                    return
            self._runtime.machinery.submit(self._player.play(self._runtime)).result()
        except BaseException as fault:  # noqa: BLE001 - raised by `run`
            self._fault = fault
        finally:
            self._runtime.stop()

    async def _connect(self) -> TapeClient:
        sandbox = self._player.dry_runs.sandbox = Sandbox()
        await sandbox.start()
        sandbox.intercept(ClientAnswers(self._player.answer_client, self._player.note))
        sandbox.load(_definitions(self._tape, self._manifest))
        self._player.prepare()
        client = await TapeClient.from_kubeconfig_dict(sandbox.kubeconfig(), clock=self._clock)
        assert isinstance(client, TapeClient)
        client.tape, client.sandbox = self._player.server, sandbox
        return client


def _placer(folder: Path) -> Callable[[Mapping[str, bytes]], None]:
    """Puts the files of a generation into a folder, in the place of those before."""

    def place(files: Mapping[str, bytes]) -> None:
        for path in [each for each in folder.rglob("*") if each.is_file()]:
            if path.relative_to(folder).as_posix() not in files:
                path.unlink()
        for name, data in files.items():
            relative = PurePath(name)
            # A config file may have been elsewhere; a foreign recording must not write there.
            if relative.is_absolute() or ".." in relative.parts:
                continue
            path = folder / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    return place


def _chooser(options: ReplayOptions) -> Callable[[str, str], bool]:
    def chosen(handler: str, key: str) -> bool:
        return options.handler in (None, handler) and options.key in (None, key)

    return chosen


def _definitions(tape: Tape, manifest: str) -> list[KubeObject]:
    """Definitions of the custom kinds of the tape: those beside the manifest, else some without a schema."""
    path = Path(manifest)
    found = definitions_beside(folder_of(path))
    there = {(each["spec"]["group"], each["spec"]["names"]["plural"]) for each in found}
    for stream in tape.streams:
        if "." not in stream.api_version:
            continue
        group, _, version = stream.api_version.rpartition("/")
        if (group, stream.plural) in there or not stream.plural or group.endswith(".k8s.io"):
            continue
        there.add((group, stream.plural))
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        served: KubeObject = {"name": version, "served": True, "storage": True}
        served["schema"] = {"openAPIV3Schema": schema}
        if "status" in stream.subresources:
            served["subresources"] = {"status": {}}
        found.append(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": f"{stream.plural}.{group}"},
                "spec": {
                    "group": group,
                    "names": {"plural": stream.plural, "kind": stream.kind},
                    "scope": "Namespaced" if stream.namespaced else "Cluster",
                    "versions": [served],
                },
            }
        )
    return found
