"""What a process is started with."""

import msgspec


class RunOptions(msgspec.Struct, frozen=True):
    """What `declctl run` was asked for.

    `watch` None leaves it to the manifest; `timeout` (seconds) is for `once`. `mutation_detector`
    compares every object of caches with `mode: Objects` each second, instead of a part of them.
    `exec_on_restart` ends it in order when a reload finds something that needs a new process.
    """

    manifest: str
    watch: bool | None = None
    exec_on_restart: bool = False
    once: bool = False
    timeout: float = 60.0
    dry_run: bool = False
    mutation_detector: bool = False
