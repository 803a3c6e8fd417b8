"""Every reason for which a reload can be refused: what somebody writes, and what has to be said of it.

Of the faults of a manifest and of handler files there are some: the rooms `manifest` and `hooks` have all.

`message` is what the condition says, in full: it was read and found fit, and who changes it should find the
new one better. `advice` is the help; None where the place in the file says all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from declctl.sandbox.faults import Match
from tests.behaviour.failing.scene import HANDLERS, MANIFEST

_SECRETS = "    - {name: secrets, apiVersion: v1, kind: Secret}\n"
_HOOK = "@declctl.hookimpl\n"


def _nothing(_: Any) -> None:
    """Nothing has to be arranged, or put right."""


@dataclass(frozen=True)
class Case:
    """A refusal. `arrange` does what is not in the files, and `put_right` undoes that."""

    name: str
    reason: str
    message: str
    advice: str | None
    handlers: str = HANDLERS
    manifest: str = MANIFEST
    arrange: Callable[[Any], None] = _nothing
    put_right: Callable[[Any], None] = _nothing

    def write(self, scene: Any) -> None:
        """Make the edit that has to fail."""
        scene.bundle.write("handlers.py", self.handlers)
        scene.bundle.write("manifest.yaml", self.manifest)
        self.arrange(scene)


def _edited(old: str, new: str, text: str = MANIFEST) -> str:
    assert old in text
    return text.replace(old, new)


def _impatient(text: str = MANIFEST, **limits: str) -> str:
    for name, limit in limits.items():
        text = _edited(f"{name}: 60s", f"{name}: {limit}", text)
    return text


def _with_secrets(text: str = MANIFEST) -> str:
    return _edited("  handlers:\n", f"{_SECRETS}  handlers:\n", text)


def _with_maps(what: str) -> str:
    return _edited("kind: ConfigMap}", f"kind: ConfigMap, {what}}}", _impatient(warmTimeout="500ms"))


def _with_filter(text: str = MANIFEST) -> str:
    return _edited(
        "entryPoint: handlers}", 'entryPoint: handlers, filter: {entryPoint: "handlers:big"}}', text
    )


_ONLY_DEFINE = "an import should only define things: move work into declctl_prepare or declctl_startup"
_SAME = "`declctl reload` tries the same files again"
_BY_ITSELF = "it is tried again by itself, and by `declctl reload` at once"
CASES = (
    Case(
        "a syntax error",
        "SyntaxError",
        "handlers.py:10: this is not valid Python: '(' was never closed",
        None,
        handlers=f"{HANDLERS}print(\n",
    ),
    Case(
        "an import that raises",
        "ImportFailed",
        "handlers.py:10: importing handlers raises OSError: no disk",
        f"mend the file; if the cause is elsewhere, {_SAME}",
        handlers=f"{HANDLERS}raise OSError('no disk')\n",
    ),
    Case(
        "an import that ends the process",
        "ImportFailed",
        "manifest.yaml:8: handlers: importing it ended the process (exit status 3)",
        _ONLY_DEFINE,
        handlers=f"{HANDLERS}import os\nos._exit(3)\n",
    ),
    Case(
        "an import without an end",
        "ImportTimeout",
        "handlers.py:10: handlers: importing it took longer than 4 s; this line ran when the time was over",
        _ONLY_DEFINE,
        handlers=f"{HANDLERS}while True: pass\n",
        manifest=_impatient(preflightTimeout="4s"),
    ),
    Case(
        "a field that there is not",
        "Invalid",
        'manifest.yaml:8: unknown field "resuorceRef" in spec.handlers[0]',
        'did you mean "resourceRef"?',
        manifest=_edited("resourceRef", "resuorceRef"),
    ),
    Case(
        "a resource that is not declared",
        "Invalid",
        "manifest.yaml:8: spec.handlers[0].resourceRef.name: there is no resource map in spec.resources",
        'did you mean "maps"? spec.resources has: maps',
        manifest=_edited("{name: maps}", "{name: map}"),
    ),
    Case(
        "a value in a file that does not match the schema",
        "Invalid",
        'secret/level:1: tester: config.level: this is not of type "integer"',
        None,
        manifest=_edited("config: {level: 1}", "configFrom: [{name: level, file: secret/level}]"),
        arrange=lambda scene: scene.bundle.write("secret/level", "high"),
        put_right=lambda scene: scene.bundle.remove("secret/level"),
    ),
    Case(
        "a manifest that is gone",
        "Invalid",
        "<folder>:1: the folder <folder> holds no YAML file",
        "name a file, or a folder that holds a *.yaml file",
        arrange=lambda scene: scene.bundle.remove("manifest.yaml"),
    ),
    Case(
        "a hook that prepares and raises",
        "PrepareFailed",
        "declctl_prepare of handlers raised ValueError: not today (handlers.py:11)",
        f"mend declctl_prepare; if the cause is elsewhere, {_SAME}",
        handlers=f"{HANDLERS}{_HOOK}def declctl_prepare(): raise ValueError('not today')\n",
    ),
    Case(
        "a hook that prepares and does not return",
        "PrepareFailed",
        "declctl_prepare of handlers took longer than 0.5 s",
        f"mend declctl_prepare; if the cause is elsewhere, {_SAME}",
        handlers=f"{HANDLERS}import asyncio\n{_HOOK}async def declctl_prepare(): await asyncio.sleep(9999)\n",
        manifest=_impatient(warmTimeout="500ms"),
    ),
    Case(
        "state that is not taken",
        "StateNotImported",
        "the state of handlers was not handed over: KeyError: 'count' (handlers.py:11)",
        "mend declctl_export_state and declctl_import_state, or leave them out: ctx.memo needs neither",
        handlers=f"{HANDLERS}{_HOOK}def declctl_import_state(state): print(state['count'])\n",
    ),
    Case(
        "a resource that may not be read",
        "Forbidden",
        "v1 Secret in all namespaces: secrets: 403 Forbidden: the sandbox was told to answer 403",
        "grant list and watch, or get of the Secret (`declctl validate --cluster` says what is missing); "
        f"{_BY_ITSELF}",
        manifest=_with_secrets(),
        arrange=lambda scene: scene.sandbox.faults.refuse(403, Match(resource="secrets")),
        put_right=lambda scene: scene.sandbox.faults.clear(),
    ),
    Case(
        "a resource that does not sync",
        "NotSynced",
        "v1 Secret in all namespaces: it did not sync within 0.5 s",
        f"if the API server is slow, raise spec.reload.warmTimeout; {_BY_ITSELF}",
        manifest=_with_secrets(_impatient(warmTimeout="500ms")),
        arrange=lambda scene: scene.sandbox.faults.delay(3600.0, Match(resource="secrets")),
        put_right=lambda scene: scene.sandbox.faults.clear(),
    ),
    Case(
        "a filter that raises",
        "FilterFailed",
        "tell: the filter handlers:big raised KeyError: 'weight' (handlers.py:10) on default/<object>",
        "let the filter take objects that lack what it looks for",
        handlers=f"{HANDLERS}def big(obj): return obj['data']['weight']\n",
        manifest=_with_filter(),
    ),
    Case(
        "a filter that does not return",
        "FilterTimeout",
        "the filter of tell took longer than 0.5 s; it was asked about default/<object> last, "
        "at handlers.py:11 in big",
        "make the filter cheaper, or raise spec.reload.warmTimeout",
        handlers=f"{HANDLERS}import threading\ndef big(obj): threading.Event().wait(5)\n",
        manifest=_with_filter(_impatient(warmTimeout="500ms")),
    ),
    Case(
        "an index function that does not return",
        "IndexTimeout",
        "the index bySize of maps took longer than 0.5 s; it was asked about default/<object> last, "
        "at handlers.py:11 in big",
        "make the index function cheaper, or raise spec.reload.warmTimeout",
        handlers=f"{HANDLERS}import threading\ndef big(obj): threading.Event().wait(5)\n",
        manifest=_with_maps('indexers: [{name: bySize, entryPoint: "handlers:big"}]'),
    ),
    Case(
        "a transform that does not return",
        "TransformTimeout",
        "the transform of maps took longer than 0.5 s; it was asked about default/<object> last, "
        "at handlers.py:11 in big",
        "make the transform cheaper, or raise spec.reload.warmTimeout",
        handlers=f"{HANDLERS}import threading\ndef big(obj): threading.Event().wait(5)\n",
        manifest=_with_maps('transform: {entryPoint: "handlers:big"}'),
    ),
    Case(
        "a plugin that was upgraded",
        "RestartRequired",
        "manifest.yaml:10: tester 2.0 is installed, but this process has loaded 1.0, which is not in >=2",
        "restart the process: it goes on with the code that it has loaded",
        manifest=_edited("name: tester,", "name: tester, version: '>=2',"),
        arrange=lambda scene: scene.site.install("2.0"),
        put_right=lambda scene: scene.site.install("1.0"),
    ),
)
