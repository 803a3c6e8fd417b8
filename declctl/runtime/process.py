"""A process as its parts know it: its options, and what it has before its parts are made."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from declctl.kit import Clock
from declctl.manifest import Plan
from declctl.runtime.checking.inputs import InputFiles
from declctl.runtime.checking.preflight_pool import PreflightPool
from declctl.runtime.handling.handler_loops import HandlerLoops
from declctl.runtime.log import Log, LogLevelControl
from declctl.runtime.own_namespace import OwnNamespace, own_namespace
from declctl.runtime.recorder import Recorder
from declctl.transport import Client
from declctl.writes import OnWritten

if TYPE_CHECKING:  # imported only where a process needs them
    from declctl.runtime.config_map import FollowedStatus
    from declctl.runtime.keeping.keeper import StateKeeper


class RunOptions(msgspec.Struct, frozen=True):
    """The options of `declctl run`."""

    manifest: str  # its path, as the user wrote it
    at: Path | None = None  # where it is read; None: at `manifest`
    files: InputFiles | None = None  # what reads it; None: a reader of its own
    watch: bool | None = None  # reload when files change; None: as the manifest says
    exec_on_restart: bool = False  # end in order when a reload needs a new process
    once: bool = False  # end when all objects are handled
    timeout: float = 60.0  # seconds, for `once`
    dry_run: bool = False
    allowed_digests: str | None = None  # a file with the digests of the bundles that may run
    followed: "Callable[[], FollowedStatus] | None" = None  # the state of a ConfigMap that is followed
    namespace: str | None = None  # of this process, where the manifest names none
    is_replay: bool = False  # nothing calls handlers but the player of a recording; there is no election
    shares: bool = True  # share objects with other processes, if the manifest says so; False: handle all
    keeps_state: bool = False  # use the folder of `state`, if the manifest names one
    mutation_detector: bool = False  # compare all shared objects each second, instead of a part of them
    log_level: LogLevelControl | None = None  # that of the process; None if its log is that of a caller


class Process(msgspec.Struct, frozen=True):
    """What a process has before its parts are made."""

    options: RunOptions
    files: InputFiles
    plan: Plan  # that of the files at the start
    client: Client
    tasks: asyncio.TaskGroup  # informers run in it
    loops: HandlerLoops  # asynchronous hooks run on them
    children: PreflightPool  # imports run in them first
    clock: Clock
    log: Log
    user_log: Any  # the structlog logger that `ctx.log` is bound from
    recorder: Recorder | None  # is told what the process sees and does
    state: "StateKeeper | None"  # keeps caches for the next process
    on_dry_run: OnWritten | None  # called on the machinery loop with each write of a dry run

    @property
    def name(self) -> str:
        """The name of the controller at the start."""
        return self.plan.name

    @property
    def instance(self) -> str:
        """What tells two processes of one controller apart: their pods, or on one machine their ids."""
        host = socket.gethostname()
        return host if self.client.identity.in_cluster else f"{host} pid {os.getpid()}"

    @property
    def namespace(self) -> OwnNamespace | None:
        """See `own_namespace`."""
        config_map = None if self.options.followed is None else self.options.manifest
        return own_namespace(self.client.identity, given=self.options.namespace, config_map=config_map)
