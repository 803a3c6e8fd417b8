"""What became of an attempt to reload."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from declctl.manifest import Diagnostic, render_json
from declctl.runtime.reloading.changes import Kind, Step, summary


class Result(StrEnum):
    """How an attempt ended."""

    APPLIED = "Applied"
    UNCHANGED = "Unchanged"
    REFUSED = "Refused"
    ROLLED_BACK = "RolledBack"  # the generation before runs again, under a new number
    SUPERSEDED = "Superseded"  # given up before its commit: the files had changed again


NOT_IN_MEMORY = "NotInMemory"  # the reason of a rollback that nothing was done for
EXHAUSTED = "ResourcesExhausted"  # the reason of a refusal that says nothing of the files
STOPPING = "Stopping"  # the reason of an attempt that nothing was done for, as the process ends

# refusals for which no file is at fault
RETRIED = frozenset({"Forbidden", "NotServed", "NotSynced", "CacheLags", EXHAUSTED})

_SLOW_IMPORTS = 1.0  # seconds of both imports together; a reload line tells of what takes longer
_NO_TENTHS = 9.95  # seconds from which on tenths are not shown

_AGAIN = "`declctl reload` tries the same files again"
_BY_ITSELF = "it is tried again by itself, and by `declctl reload` at once"
_BACK_AGAIN = "`declctl rollback` tries it again"
_ADVICE: Mapping[str, str] = MappingProxyType(
    {
        "ImportFailed": f"mend the file; if the cause is elsewhere, {_AGAIN}",
        "ImportTimeout": f"an import should only define things; if it needs longer, raise "
        f"spec.reload.preflightTimeout; {_AGAIN}",
        "PrepareFailed": f"mend declctl_prepare; if the cause is elsewhere, {_AGAIN}",
        "StateNotImported": "mend declctl_export_state and declctl_import_state, or leave them out: ctx.memo "
        "needs neither",
        "FilterFailed": "let the filter take objects that lack what it looks for",
        "FilterTimeout": "make the filter cheaper, or raise spec.reload.warmTimeout",
        "IndexTimeout": "make the index function cheaper, or raise spec.reload.warmTimeout",
        "TransformTimeout": "make the transform cheaper, or raise spec.reload.warmTimeout",
        "NoThreads": "lower queue.concurrency, or raise the limit of processes and threads "
        f"(`ulimit -u`, the limit of the pod); then {_AGAIN}",
        EXHAUSTED: "raise the limits of the process on open files, processes and memory, or see what uses "
        f"them up; {_BY_ITSELF}",
        "Forbidden": "grant list and watch (`declctl validate --cluster` says what is missing); "
        f"{_BY_ITSELF}",
        "NotServed": "mend apiVersion and kind, or install the definition of the kind (only a resource "
        f"of a new name waits for its kind); {_BY_ITSELF}",
        "NotSynced": f"if the API server is slow, raise spec.reload.warmTimeout; {_BY_ITSELF}",
        "CacheLags": f"look what its watch says (`declctl status`); {_BY_ITSELF}",
        "ReprojectFailed": "keep the cache as it was, or let the process start again, which lists it anew",
        "InternalError": f"the log has a traceback for the report; {_AGAIN}",
        "RestartRequired": "start the process again, or let it do that with --exec-on-restart",
        NOT_IN_MEMORY: "write the earlier files again: that is a reload",
        "RolledBack": f"mend the files: they are tried again when they change; {_AGAIN}",
    }
)


def takes_effect(subjects: Sequence[str]) -> str:
    """`metadata.name takes effect when the process starts again`."""
    verb = "takes" if len(subjects) == 1 else "take"
    return f"{' and '.join(subjects)} {verb} effect when the process starts again"


class Imports(NamedTuple):
    """How long importing the handlers took, in seconds, in both places; 0 where nothing was imported."""

    in_preflight: float = 0.0
    here: float = 0.0

    @property
    def are_slow(self) -> bool:
        """Whether a user should know why the reload took so long."""
        return self.in_preflight + self.here > _SLOW_IMPORTS

    def __str__(self) -> str:
        """`imports took 20 s in the pre-flight and 20 s here`."""
        places = (self.in_preflight, "in the pre-flight"), (self.here, "here")
        return "imports took " + " and ".join(f"{shown_seconds(s)} {place}" for s, place in places if s)


def shown_seconds(seconds: float) -> str:
    """`20 s`, `1.5 s`: the tenths only where they matter."""
    return f"{seconds:.0f} s" if seconds >= _NO_TENTHS else f"{seconds:.1f} s"


class Outcome(msgspec.Struct, frozen=True):
    """One attempt. `generation` is the one that runs after it; `seconds` is from the read to the commit.

    `lists` and `watches` are the LISTs and WATCHes that were made until the commit, and `unplanned` says in
    words where these are others than the plan had; `reason` is a CamelCase word. `back` says that it was an
    attempt to go back, which has nothing to do with what the files say. `imports` are those of a
    generation that was committed.
    """

    result: Result
    generation: int
    bundle_hash: str
    reason: str = ""
    message: str = ""
    seconds: float = 0.0
    steps: Sequence[Step] = ()
    lists: int = 0
    diagnostics: Sequence[Diagnostic] = ()
    watches: int = 0
    unplanned: Sequence[str] = ()
    back: bool = False
    imports: Imports = Imports()

    @property
    def bundle(self) -> str:
        """The digest of the files, also of faulty ones; empty where they could not be read."""
        digest = self.bundle_hash.removeprefix("faulty ")
        return digest if digest.isalnum() else ""

    @property
    def line(self) -> str:
        """The attempt on one line: `generation 7: ~handler notify (code), 0 LIST, 3 ms`."""
        if self.result is Result.REFUSED:
            what = "rollback" if self.back else "reload"
            return f"{what} refused, generation {self.generation} goes on: {self.message}"
        if self.result is Result.SUPERSEDED:
            took = f"{self.seconds * 1000:.0f} ms"
            return f"reload of {self.bundle[:12]} given up after {took}: files have changed again"
        if self.reason == STOPPING:
            return f"generation {self.generation}: the process is stopping, and reads its files no more"
        if self.result is Result.UNCHANGED:
            return f"generation {self.generation}: {summary(self.steps)}{self._restarts}"
        took = f"{self.seconds * 1000:.0f} ms"
        if self.result is Result.ROLLED_BACK:
            return f"generation {self.generation}: {self.message}, {self.lists} LIST, {took}"
        if self.imports.are_slow:
            took = f"{took} ({self.imports})"
        line = (
            f"generation {self.generation}: {summary(self.steps)}, {self.lists} LIST, {took}{self._restarts}"
        )
        return f"{line}; not as planned: {'; '.join(self.unplanned)}" if self.unplanned else line

    @property
    def _restarts(self) -> str:
        """What has changed in the files and not in the process, as the end of a sentence; maybe nothing."""
        subjects = [step.subject for step in self.steps if step.kind is Kind.RESTART]
        return f"; {takes_effect(subjects)}" if subjects else ""

    @property
    def advice(self) -> str | None:
        """What to do about it; None where nothing has to be done, or its diagnostics say it."""
        if self.result not in (Result.REFUSED, Result.ROLLED_BACK):
            return None
        if any(fault.severity == "error" and fault.suggestion for fault in self.diagnostics):
            return None
        advice = _ADVICE.get(self.reason)
        if advice and self.back:
            return advice.replace(_AGAIN, _BACK_AGAIN).replace(_BY_ITSELF, _BACK_AGAIN)
        return advice

    def as_rollback(self) -> "Outcome":
        """The same, as an attempt to go back."""
        return msgspec.structs.replace(self, back=True)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "result": str(self.result),
            "generation": self.generation,
            "bundleHash": self.bundle,
            "reason": self.reason,
            "message": self.message,
            "seconds": round(self.seconds, 6),
            "preflightImportSeconds": round(self.imports.in_preflight, 6),
            "importSeconds": round(self.imports.here, 6),
            "changes": [str(step) for step in self.steps],
            "lists": self.lists,
            "watches": self.watches,
            "unplanned": list(self.unplanned),
            "rollback": self.back,
            "suggestion": self.advice,
            "diagnostics": render_json(self.diagnostics),
        }
