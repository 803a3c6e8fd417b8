"""The conditions of a running process, and every reason that a condition or an attempt to reload may have.

`/status`, `/history`, metrics and the log have the reasons; `declctl explain CacheLags` and
`docs/reference/errors.md` print this table. A reason is one CamelCase word, and never gets another meaning.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

READY: Final = "Ready"
RELOADED: Final = "Reloaded"
DEGRADED: Final = "Degraded"
HANDLERS_HEALTHY: Final = "HandlersHealthy"
FILES_FOLLOWED: Final = "FilesFollowed"
ATTEMPT: Final = ""
"""In place of a condition, for a reason of an attempt to reload or to roll back that is of no condition."""

CONDITIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        READY: "Whether all caches have their objects, so that handlers see the whole cluster.",
        RELOADED: "Whether the files, as they were read last, are what runs.",
        DEGRADED: "Whether something does not work, although the process runs.",
        HANDLERS_HEALTHY: "Whether the calls of each handler return and succeed, for each object in the end.",
        FILES_FOLLOWED: "Whether edits arrive from the ConfigMap of `declctl run configmap/NAMESPACE/NAME`; "
        "without one, there is no such condition.",
    }
)
"""The types, each with its meaning."""

_NOTHING: Final = "nothing"  # the advice of a good reason

# Ends of an advice. In that of a refused rollback, they give way to BACK_AGAIN.
AGAIN: Final = "`declctl reload` tries the same files again"
BY_ITSELF: Final = "it is tried again by itself, and by `declctl reload` at once"
BACK_AGAIN: Final = "`declctl rollback` tries it again"


class ConditionReason(msgspec.Struct, frozen=True):
    """One reason of one condition. `advice` says what to do, without a capital letter and a full stop."""

    name: str
    condition: str  # a type, or ATTEMPT
    holds: bool | None  # the status of the condition; None if both are possible, and for an attempt
    meaning: str
    advice: str
    retried: bool = False  # whether an attempt that was refused for it is tried again by itself

    @property
    def title(self) -> str:
        """The first sentence of the meaning, without its full stop."""
        return self.meaning.partition(". ")[0].removesuffix(".")


def _good(name: str, condition: str, meaning: str, *, holds: bool = True) -> ConditionReason:
    return ConditionReason(name, condition, holds, meaning, _NOTHING)


def _refused(name: str, meaning: str, advice: str) -> ConditionReason:
    return ConditionReason(name, RELOADED, False, meaning, advice)


def _retried(name: str, meaning: str, advice: str = "") -> ConditionReason:
    """A refusal that lies outside of the files."""
    return ConditionReason(
        name, RELOADED, False, meaning, f"{advice}; {BY_ITSELF}" if advice else BY_ITSELF, retried=True
    )


def _degraded(name: str, meaning: str, advice: str) -> ConditionReason:
    return ConditionReason(name, DEGRADED, True, meaning, advice)


def _unhealthy(name: str, meaning: str, advice: str) -> ConditionReason:
    named = f"{meaning} The message names the handler, and the worst of its calls or keys."
    return ConditionReason(name, HANDLERS_HEALTHY, False, named, advice)


def _not_followed(name: str, meaning: str, advice: str) -> ConditionReason:
    return ConditionReason(name, FILES_FOLLOWED, False, meaning, advice)


REASONS: Final[tuple[ConditionReason, ...]] = (
    _good("Synced", READY, "All resources have been listed, and are watched."),
    _good("Following", READY, "This process waits for the lease of the election, and fills no cache."),
    ConditionReason(
        "Starting",
        READY,
        False,
        "The process has begun, and no cache is filled yet.",
        "wait; if it lasts, see what `declctl status` says of each resource",
    ),
    ConditionReason(
        "NotSynced",
        READY,
        False,
        "A resource has not been listed. The message names it.",
        "see the state and the error of the resource in `declctl status`: a right may be missing, or the "
        "server slow",
    ),
    _good("Started", RELOADED, "The generation of the start runs, and no edit was tried since."),
    _good("Applied", RELOADED, "The last edit runs."),
    _good("Unchanged", RELOADED, "The files were read again, and they are what runs."),
    _refused(
        "RolledBack",
        "The generation before runs again: new code has failed in its probation, or somebody asked for it.",
        f"mend the files: they are tried again when they change; {AGAIN}",
    ),
    ConditionReason(
        "RestartRequired",
        RELOADED,
        None,
        "A part of the edit takes effect at the next start. With the status False, the edit is refused, as "
        "it needs another version of a plugin than is loaded.",
        "start the process again, or let it do that with --exec-on-restart",
    ),
    ConditionReason(
        "RollbackRefused",
        RELOADED,
        True,
        "New code should have been taken back, and the generation before could not take over. The message "
        "has the reason.",
        "mend the files, or what the message names: the new code goes on until then",
    ),
    _refused(
        "SyntaxError",
        "A handler file is not valid Python.",
        f"mend the line that the message names; {AGAIN}",
    ),
    _refused(
        "Invalid",
        "The manifest, an entry point, a parameter of a hook or a plugin's config is wrong, or the server "
        "refuses to list a resource as the manifest asks for.",
        f"mend the place that the message names; `declctl validate` shows all faults; {AGAIN}",
    ),
    _refused(
        "ImportFailed",
        "The import of a handler file raised, or ended the process.",
        f"mend the file; if the cause is elsewhere, {AGAIN}",
    ),
    _refused(
        "ImportTimeout",
        "The import of the handlers took longer than allowed.",
        "an import should only define things; if it needs longer, raise spec.reload.preflightTimeout; "
        f"{AGAIN}",
    ),
    _retried(
        "DigestNotAllowed",
        "A list of allowed digests lacks these files, or can't be read.",
    ),
    _refused(
        "PrepareFailed",
        "declctl_prepare raised, or did not return within spec.reload.warmTimeout.",
        f"mend declctl_prepare; if the cause is elsewhere, {AGAIN}",
    ),
    _refused(
        "StateNotImported",
        "declctl_export_state or declctl_import_state raised.",
        "mend declctl_export_state and declctl_import_state, or leave them out: ctx.memo needs neither",
    ),
    _refused(
        "FilterFailed",
        "A changed filter raised on a cached object.",
        "let the filter take objects that lack what it looks for",
    ),
    _refused(
        "FilterTimeout",
        "A changed filter did not finish the cached objects within spec.reload.warmTimeout.",
        "make the filter cheaper, or raise spec.reload.warmTimeout",
    ),
    _refused(
        "IndexTimeout",
        "An index function did not finish the cached objects within spec.reload.warmTimeout.",
        "make the index function cheaper, or raise spec.reload.warmTimeout",
    ),
    _refused(
        "TransformTimeout",
        "A transform did not finish the cached objects within spec.reload.warmTimeout.",
        "make the transform cheaper, or raise spec.reload.warmTimeout",
    ),
    _retried(
        "Forbidden",
        "A new resource may not be listed or watched, or a Secret of a plugin's config may not be read.",
        "grant list and watch, or get of the Secret (`declctl validate --cluster` says what is missing)",
    ),
    _retried(
        "SecretUnavailable",
        "A Secret of a plugin's config (`secretKeyRef`), or the key in it, is not there, or the API server "
        "does not answer.",
        "create the Secret or the key that the message names",
    ),
    _retried(
        "NotServed",
        "The server does not have the kind that replaces another one, or the API service of its group is "
        "away.",
        "mend apiVersion and kind, or install the definition of the kind or mend its API service (only a "
        "resource of a new name waits for its kind)",
    ),
    _retried(
        "NotSynced",
        "A new cache did not get all objects within spec.reload.warmTimeout.",
        "if the API server is slow, raise spec.reload.warmTimeout",
    ),
    _retried(
        "CacheLags",
        "A handler would go to a cache that is older than what the handler has received, and the cache did "
        "not catch up within spec.reload.warmTimeout.",
        "look what its watch says (`declctl status`)",
    ),
    _retried(
        "FinalizersLeft",
        "A finalizer is not in the manifest any more, and objects of the cluster have it.",
        "release the objects (`declctl finalizers release MANIFEST`), or keep the finalizer",
    ),
    _retried(
        "NoThreads",
        "The system has no threads left for the workers of new handlers.",
        "lower queue.concurrency, or raise the limit of processes and threads (`ulimit -u`, the limit of the "
        "pod)",
    ),
    _retried(
        "ResourcesExhausted",
        "The process could open no file, start no thread, or get no memory.",
        "raise the limits of the process on open files, processes and memory, or see what uses them up",
    ),
    _refused(
        "ReprojectFailed",
        "A cached object could not be decoded again, as a changed projection needs.",
        "keep the cache as it was, or let the process start again, which lists it anew",
    ),
    _refused(
        "InternalError",
        "A fault of declctl itself.",
        f"the log has a traceback for the report; {AGAIN}",
    ),
    _good("AsExpected", DEGRADED, "Nothing is wrong.", holds=False),
    _degraded(
        "ServerUnreachable",
        "The API server does not answer. Caches stay readable, and writes wait or fail.",
        "nothing, if the server comes back: all watches go on by themselves. Otherwise see the error in the "
        "message, and check the network and the credentials with `declctl doctor`",
    ),
    _degraded(
        "LoopBlocked",
        "An asynchronous hook blocks the loop of all such hooks. The message has its line.",
        "mend the line, and save: an edit gets another loop. Await each long operation, or write `def`; "
        "`isolation: {mode: Process}` takes the handler off the loop of the others",
    ),
    _degraded(
        "ResourceError",
        "A resource can't be listed or watched. The message has the error of the server.",
        "grant the right (`declctl validate --cluster` prints it), or see the error; the watch is tried "
        "again by itself",
    ),
    _degraded(
        "PluginDisabled",
        "A plugin with `onError: Disable` could not be loaded, and its handlers are not called.",
        "mend or install it, and call `declctl reload`; `declctl plugins list` shows its fault",
    ),
    _degraded(
        "PluginSuspended",
        "Calls of a plugin with `onError: Disable` have failed, and its changes wait.",
        "see whether the service behind it works; a call is tried again by itself",
    ),
    _degraded(
        "KeysUnknown",
        "A filter or a mapping of a reconciler fails, so that changes can't be mapped to keys.",
        "mend the function that the message names; the changes wait, and are judged again",
    ),
    _degraded(
        "SlotsNotShared",
        "This process can't take part in the sharing of slots: requests for Leases fail, or another process "
        "has another `sharding`.",
        "see the message: grant the right that it names, or end the process that it names",
    ),
    _degraded(
        "FinalizersLeft",
        "Objects have a finalizer that the manifest lacks. A handler of this controller has added it: "
        "nothing removes it, and they can't be deleted.",
        "declare it again, or release the objects (`declctl finalizers release MANIFEST`)",
    ),
    _degraded(
        "WriteLoop",
        "A handler writes an object again and again. Its own write, or that of another, calls it.",
        "see who writes the field (`declctl why`), and let one of the two stop",
    ),
    _degraded(
        "StateNotKept",
        "The folder of `state` can't be used or written: the next process begins with lists of everything.",
        "mend what the message names (the volume may be full, read-only, or that of another process), and "
        "start the process again",
    ),
    _degraded(
        "FileWatchFailed",
        "The files can't be looked at, so that edits are not noticed.",
        "raise the limit of the process on open files if the message names it, or check the folder with "
        "`declctl doctor`; it is tried again by itself, and `declctl reload` reads the files now",
    ),
    _good("AsExpected", HANDLERS_HEALTHY, "No handler fails on and on."),
    _unhealthy(
        "HandlerSuspended",
        "A handler is not called: calls that have exceeded its `timeout`, or the drain of a reload, do not "
        "return, and their number is four times its queue.concurrency.",
        "the log names the calls; give the requests of the handler time limits and save: an edit of its code "
        "gets new workers, and so does the return of a call. With `isolation: {mode: Process}`, each call "
        "ends at its timeout",
    ),
    _unhealthy(
        "CallHangs",
        "A call has not returned for five minutes, nor within the `timeout` of its handler. Its key waits "
        "until it returns, and so does its worker, unless it has exceeded a `timeout`.",
        "give the requests of the handler time limits, and the handler a `timeout`, and save: new code gets "
        "new workers when `reload.drainTimeout` is over; a new process frees the key at once. With "
        "`isolation: {mode: Process}`, each call ends at its timeout",
    ),
    _unhealthy(
        "CallsFail",
        "The last five calls of a handler or more have failed, over ten seconds or more. Waits for a cache "
        "or a suspended plugin, and a reconciler's `Terminal`, do not count.",
        "see the calls with `declctl tap --failed`, and their tracebacks in the log; mend the handler and "
        "save: waiting retries use the new code, and `declctl requeue` queues again what was given up",
    ),
    _unhealthy(
        "KeysFail",
        "Calls for a key have failed for five minutes, whether or not those for others succeed.",
        "see what is odd about the object that the message names, and the error with `declctl tap --failed`, "
        "which shows the next call; mend the object or the handler. A reconciler that can do nothing "
        "raises `Terminal`",
    ),
    ConditionReason(
        "AttemptedBefore",
        ATTEMPT,
        None,
        "The files are those that were refused before, and were not tried again.",
        f"change the files; {AGAIN}",
    ),
    ConditionReason(
        "Superseded",
        ATTEMPT,
        None,
        "The attempt was given up, because the files have changed again. The newer files are tried.",
        "nothing",
    ),
    ConditionReason("Stopping", ATTEMPT, None, "The process is stopping, and makes no attempt.", "nothing"),
    ConditionReason(
        "StartupFailed",
        ATTEMPT,
        None,
        "declctl_startup raised, or did not return within spec.reload.warmTimeout: the process does not "
        "start.",
        "mend declctl_startup, and start again",
    ),
    ConditionReason(
        "NotKept",
        ATTEMPT,
        None,
        "The generation of a rollback is not kept: those are the three that were live before the one that "
        "runs, and fewer if their files are large.",
        "`declctl history` marks those that are kept. To go back to others, write the earlier files "
        "again (from git, or by an apply of the earlier ConfigMap): that is a reload to the same code",
    ),
    _good("Followed", FILES_FOLLOWED, "Each change of the ConfigMap is an edit."),
    _not_followed(
        "ConfigMapDeleted",
        "The ConfigMap was deleted. The process goes on with its last files.",
        "create it again: a process that starts without it ends at once",
    ),
    _not_followed(
        "WatchForbidden",
        "The right to list or watch the ConfigMap is gone.",
        "grant get, list and watch of it: the message has the command",
    ),
    _not_followed(
        "WatchFailed",
        "The watch of the ConfigMap fails. The message has the cause.",
        "wait: it is tried again by itself; if it lasts, see whether the API server answers",
    ),
    _not_followed(
        "ChangeRefused",
        "The last change of the ConfigMap was not taken over. It has a key or a value that can be no file, "
        "has no label declctl.dev/code, or could not be written.",
        "mend the ConfigMap, or make room below TMPDIR: each change is tried",
    ),
    _not_followed(
        "NotFollowed",
        "The watch of the ConfigMap has ended because of a fault of declctl.",
        "start the process again, and report the line of the log",
    ),
)
"""All reasons, by condition, the good ones first. A name may stand at several conditions."""

RETRIED: Final = frozenset(each.name for each in REASONS if each.retried)
"""The reasons of refusals that lie outside of the files: such an attempt is tried again by itself."""

# With these, each fault is shown at its place, with a suggestion of its own.
_LOCATED: Final = frozenset({"Invalid", "SyntaxError"})
_RELOAD_ADVICE: Final = {
    each.name: each.advice
    for each in REASONS
    if each.condition in (RELOADED, ATTEMPT) and each.name not in _LOCATED
}


def fault_reasons(condition: str) -> Sequence[str]:
    """The reasons of a condition that are faults, in the order of urgency."""
    return tuple(each.name for each in REASONS if each.condition == condition and each.advice != _NOTHING)


def reason_of(condition: str, name: str) -> ConditionReason:
    """A reason of a condition."""
    return next(each for each in REASONS if (each.condition, each.name) == (condition, name))


def reload_advice(reason: str) -> str | None:
    """What to do after an attempt that was refused or taken back; None if its located faults say it."""
    return _RELOAD_ADVICE.get(reason)


def reasons_named(name: str) -> tuple[ConditionReason, ...]:
    """The reasons of this name, or those of the condition of this name. Upper and lower case are the same."""
    wanted = name.lower()
    of_type = tuple(each for each in REASONS if wanted and each.condition.lower() == wanted)
    return of_type or tuple(each for each in REASONS if each.name.lower() == wanted)


def reason_names() -> Iterable[str]:
    """The types of conditions, and all reasons, each once."""
    return dict.fromkeys([*CONDITIONS, *(each.name for each in REASONS)])
