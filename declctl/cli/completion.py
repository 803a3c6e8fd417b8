"""Shell completion: what `explain` knows, contexts, and the names of the manifest in this folder.

A shell starts a process for each Tab, and waits for it. So names are read from YAML as it stands, also while
it is edited, and neither checked nor resolved; nothing here asks a cluster or imports handlers. What can't be
read completes to nothing: a message would stand in the middle of the user's command line.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

_MOST_BYTES = 1 << 20  # of one file: a larger one takes too long
_MOST_FILES = 20  # of a folder
_SUFFIXES = (".yaml", ".yml")
P = ParamSpec("P")
T = TypeVar("T")
Completions = list[tuple[str, str]]
"""Candidates, each with its help."""


def _quiet(complete: Callable[P, Completions]) -> Callable[P, Completions]:
    """Complete to nothing if anything fails."""

    @wraps(complete)
    def completed(*args: P.args, **kwargs: P.kwargs) -> Completions:
        try:
            return complete(*args, **kwargs)
        except Exception:  # noqa: BLE001 - as the module says
            return []

    return completed


@_quiet
def explanations(incomplete: str) -> Completions:
    """The fields of the manifest below what was typed, or the codes, conditions and reasons that begin so."""
    if incomplete[:1].upper() == "D" and "." not in incomplete:
        from declctl.codes import CODES

        # A shell compares letters as they are: what was typed in lower case is completed so.
        letters = str.lower if incomplete[:1] == "d" else str.upper
        found = [(letters(code), text) for code, text in sorted(CODES.items())]
        if matching := [(code, text) for code, text in found if code.startswith(incomplete)]:
            return matching if incomplete[1:] else [*matching, *_reasons(incomplete)]
    from declctl.manifest.schema import KINDS, explain

    if incomplete[:1].isupper() and incomplete.partition(".")[0] not in KINDS:
        tests = [("ControllerTest.", "A document that declctl test plays.")]
        return _reasons(incomplete) + (tests if "ControllerTest".startswith(incomplete) else [])
    parent, dot, _ = incomplete.rpartition(".")
    fields = explain(parent).fields if dot else (("spec", "mapping", "What the controller does."),)
    known = [(f"{parent}{dot}{name}", kind, text) for name, kind, text in fields]
    matching = [each for each in known if each[0].startswith(incomplete)]
    if len(matching) == 1 and explain(matching[0][0]).fields:
        # Two candidates keep the shell from ending the word here, as there is more to come.
        path, _, text = matching[0]
        return [(path, text), (f"{path}.", text)]
    return [(path, text) for path, _, text in matching]


def _reasons(incomplete: str) -> Completions:
    """The conditions and reasons that begin with what was typed."""
    from declctl.runtime.reasons import CONDITIONS, REASONS

    meanings = {each.name: each.meaning for each in REASONS} | dict(CONDITIONS)
    return [(name, meanings[name]) for name in sorted(meanings) if name.startswith(incomplete)]


@_quiet
def contexts(given: str | None, incomplete: str) -> Completions:
    """The contexts of the kubeconfig: that of --kubeconfig, if it was given, else as kubectl finds it."""
    variable = os.environ.get("KUBECONFIG")
    if given:
        files = [Path(given)]
    elif variable:
        files = [Path(name) for name in variable.split(os.pathsep) if name]
    else:
        files = [Path.home() / ".kube" / "config"]
    found: dict[str, str] = {}  # the first file with a name counts, as in kubectl
    for file in files:
        for document in _documents(file):
            for each in _mappings(document.get("contexts")):
                body = each.get("context")
                cluster = cast("Mapping[str, Any]", body).get("cluster") if isinstance(body, dict) else None
                found.setdefault(str(each.get("name") or ""), f"cluster {cluster}")
    return _starting(found.items(), incomplete)


@_quiet
def handlers(incomplete: str) -> Completions:
    """The names of handlers."""
    return _starting(_names("handlers", "handler"), incomplete)


@_quiet
def resources(incomplete: str) -> Completions:
    """The names of resources."""
    return _starting(_names("resources", "resource"), incomplete)


@_quiet
def schedules(incomplete: str) -> Completions:
    """The names of schedules."""
    return _starting(_names("schedules", "schedule"), incomplete)


@_quiet
def handlers_and_resources(incomplete: str) -> Completions:
    """The names of handlers, then those of resources that no handler has."""
    found = dict(_names("resources", "resource")) | dict(_names("handlers", "handler"))
    return _starting(found.items(), incomplete)


@_quiet
def namespaces(incomplete: str) -> Completions:
    """The namespaces that the manifest names."""
    named: dict[str, str] = {}
    for spec in _specs():
        for part in (spec, *_mappings(spec.get("resources"))):
            given = part.get("namespaces")
            names = cast("list[object]", given) if isinstance(given, list) else []
            named |= {name: "namespace" for name in names if isinstance(name, str)}
    return _starting(named.items(), incomplete)


@_quiet
def objects(incomplete: str) -> Completions:
    """The names of resources, each with the slash that a key follows."""
    if "/" in incomplete:
        return []  # the keys are in the cluster
    return _starting(((f"{name}/", what) for name, what in _names("resources", "resource")), incomplete)


def _starting(found: Iterator[tuple[str, str]] | Any, incomplete: str) -> Completions:
    # A line end would be another candidate.
    return [
        (name, what) for name, what in found if name and name.isprintable() and name.startswith(incomplete)
    ]


def _names(part: str, what: str) -> Iterator[tuple[str, str]]:
    """The names in a list of the spec, with the kind or the code of each as help."""
    for spec in _specs():
        for each in _mappings(spec.get(part)):
            name, about = each.get("name"), each.get("kind") or each.get("entryPoint")
            if isinstance(name, str):
                yield name, f"{what} {about}" if isinstance(about, str) and about.isprintable() else what


def _specs() -> Iterator[Mapping[str, Any]]:
    """The specs of the Controllers in the current folder."""
    files = sorted(file for file in Path().iterdir() if file.suffix in _SUFFIXES)
    for file in files[:_MOST_FILES]:
        for document in _documents(file):
            spec = document.get("spec")
            if document.get("kind") == "Controller" and isinstance(spec, dict):
                yield cast("Mapping[str, Any]", spec)


def _documents(file: Path) -> Iterator[Mapping[str, Any]]:
    """The mappings in a YAML file, up to the first fault; none of a file that is too large."""
    import yaml

    # libyaml is ten times as fast; a build of PyYAML without it has the slow loader alone.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with suppress(OSError, ValueError, yaml.YAMLError, RecursionError):
        if not file.is_file() or file.stat().st_size > _MOST_BYTES:
            return
        yield from _mappings(yaml.load_all(file.read_bytes(), loader))


def _mappings(given: object) -> Iterator[Mapping[str, Any]]:
    """The mappings in a list, or in what else can be iterated."""
    if isinstance(given, Sequence | Iterator) and not isinstance(given, str | bytes):
        for each in cast("Iterator[object]", given):
            if isinstance(each, dict):
                yield cast("Mapping[str, Any]", each)
