"""Writes and requests of the code that neither the manifest nor a hook declares.

`declctl validate`, `doctor` and `generate` report them, each from here. Sources are read, and nothing is
imported: a use that only a computed name shows is not found. The code of plugins is not read.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from declctl.codes import UNDECLARED_WRITE
from declctl.hooks.bundle import Bundle
from declctl.hooks.usage import keywords_used, methods_used, names_of_module
from declctl.manifest import Diagnostic
from declctl.manifest.rights import METHODS, WRITES, HandlerCode
from declctl.manifest.values import EntryPoint, Path
from declctl.runtime.checking.check import CheckResult
from declctl.runtime.checking.inputs import Inputs

_CLIENTS: Final = ("client", "sync_client")
_STATUS: Final = "patch_status"
_RIGHTS_HOOK: Final = "declctl_rbac"
_HOOK_ADVICE: Final = f"return the rules from a hook {_RIGHTS_HOOK} of its module"

_KINDS_ADVICE: Final = (
    f"declare the kinds, such as applies: [{{apiVersion: v1, kind: ConfigMap}}], or {_HOOK_ADVICE}"
)


def code_of(inputs: Inputs) -> Mapping[str, HandlerCode]:
    """The methods of `ctx` that the code of each handler uses; under "", that of everything else."""
    controller, bundle = inputs.loaded.controller, inputs.bundle
    found: dict[str, HandlerCode] = {}
    for handler in controller.handlers:
        hooks = ("declctl_finalize",) if handler.finalizer else ()
        found[handler.name] = _code([handler.entry_point], bundle, hooks)
    return {**found, "": _code([each.entry_point for each in _others(inputs)], bundle, ())}


def undeclared_writes(inputs: Inputs) -> Sequence[Diagnostic]:
    """A warning for each write of the code that nothing declares, at the place that names the code.

    It has no right in `declctl generate rbac`, and `validate --cluster` can't ask for it.
    """
    code = code_of(inputs)
    found = [
        _warning(inputs, path, message, advice)
        for handler in inputs.loaded.controller.handlers
        if handler.entry_point is not None
        for message, advice in _of_handler(
            handler.name,
            code[handler.name],
            applies=bool(handler.applies),
            status=handler.status,
            has_rules=_has_rules(inputs.bundle, handler.entry_point),
        )
        for path in [(*handler.path, "entryPoint")]
    ]
    for other in _others(inputs):
        methods = _code([other.entry_point], inputs.bundle, ()).methods
        used = [each for each in (*sorted(WRITES), *_CLIENTS) if each in methods]
        if used and not _has_rules(inputs.bundle, other.entry_point):
            message = f"{other.name} uses ctx.{used[0]}, and no manifest declares what it writes or asks for"
            found.append(_warning(inputs, other.path, message, _HOOK_ADVICE))
    return found


def with_undeclared_writes(checked: CheckResult) -> CheckResult:
    """The result of a check, with the warnings of `undeclared_writes`. Unchanged without inputs."""
    if checked.inputs is None:
        return checked
    return replace(checked, diagnostics=(*checked.diagnostics, *undeclared_writes(checked.inputs)))


class _Other(NamedTuple):
    """Code that serves no handler: a schedule, or a step of the life cycle."""

    name: str
    entry_point: EntryPoint
    path: Path


def _others(inputs: Inputs) -> Iterator[_Other]:
    controller = inputs.loaded.controller
    for schedule in controller.schedules:
        yield _Other(schedule.name, schedule.entry_point, (*schedule.path, "entryPoint"))
    for step in (*controller.lifecycle.startup, *controller.lifecycle.shutdown):
        yield _Other(str(step.entry_point), step.entry_point, (*step.path, "entryPoint"))


def _of_handler(
    name: str, code: HandlerCode, *, applies: bool, status: bool | None, has_rules: bool
) -> Iterator[tuple[str, str]]:
    """The message and the advice of each write or request of a handler that nothing declares."""
    writes = sorted(code.methods & WRITES)
    if writes and not applies and not has_rules:
        calls = " and ".join(f"ctx.{each}" for each in writes)
        message = f"{name} writes objects, and declares no `applies`: no right for {calls} is known"
        yield message, _KINDS_ADVICE
    clients = [each for each in _CLIENTS if each in code.methods]
    if clients and not has_rules:
        yield f"{name} uses ctx.{clients[0]}, whose requests no manifest declares", _HOOK_ADVICE
    if _STATUS in code.methods and status is False:
        yield (
            f"{name} calls ctx.{_STATUS}, and has `status: false`: the call raises UndeclaredWrite",
            "write status: true, or remove the call",
        )


def _warning(inputs: Inputs, path: Path, message: str, advice: str) -> Diagnostic:
    fault = inputs.loaded.fault(UNDECLARED_WRITE, path, message, suggestion=advice)
    return replace(fault, severity="warning")


def _has_rules(bundle: Bundle, entry_point: EntryPoint) -> bool:
    """Whether the module of an entry point has a hook that names rights."""
    return _RIGHTS_HOOK in names_of_module(bundle, entry_point.module)


def _code(entry_points: Sequence[EntryPoint | None], bundle: Bundle, hooks: Sequence[str]) -> HandlerCode:
    used = [
        None if each is None else methods_used(bundle, str(each), METHODS, hooks=hooks)
        for each in entry_points
    ]
    methods = frozenset[str]().union(*(each for each in used if each is not None))
    fields = [
        keywords_used(bundle, str(each), _STATUS, first="conditions", hooks=hooks)
        for each in entry_points
        if each is not None
    ]
    return HandlerCode(methods, None not in used, frozenset[str]().union(*fields))
