"""How many cached objects an edit takes away from a living handler: they are told as Deleted, OutOfScope.

They are counted in the caches of the process that runs, by what the old and the new manifest select. What
only the API server or the user's code can say is not guessed: the plan says why there is no number.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from declctl.manifest.model import CacheMode, FilterSpec
from declctl.manifest.plan import HandlerPlan, ResourcePlan
from declctl.objects import ChangeType, FieldPath, FieldSelector
from declctl.runtime.reloading.changes import PlanSnapshot


class Selection(NamedTuple):
    """Cached objects of a resource: of a namespace (None: of all), and of a label and a field selector."""

    resource: str
    namespace: str | None = None
    labels: str = ""
    fields: str = ""


Matching = Callable[[Selection], int | None]
"""How many cached objects are selected; None if it can't be told."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """How many objects leave what a handler hears of; None where that is not known, and why.

    `objects=None` with an empty `unknown`: no running process was asked.
    """

    objects: int | None
    unknown: str = ""


def leaving(
    old: PlanSnapshot, new: PlanSnapshot, handler: str, *, known: int | None, matching: Matching | None
) -> Leaving:
    """Counts the objects that a handler, which is in both manifests, will get as Deleted (OutOfScope).

    Namespaces, selectors, or its filter are narrower now. `known` is how many objects there are now.
    """
    was, now = old.handlers[handler], new.handlers[handler]
    if matching is None or known is None:
        return Leaving(None)
    if ChangeType.DELETED not in now.events:
        return Leaving(0)
    before, after = old.resources[was.resource], new.resources[now.resource]
    narrower = {watch.field_selector for watch in before.watches} != {
        watch.field_selector for watch in after.watches
    }
    if narrower and (path := _not_cached(before, after, transformed=before.name in old.transformed)):
        return Leaving(None, f"{path} is not in the cache as the API server has it")
    heard, stays = _labels(was.filter), _labels(was.filter, now.filter)
    counts = [
        matching(Selection(before.name, namespace, _joined(labels, stays), fields))
        for namespace, labels, fields in dict.fromkeys(
            (w.namespace, w.label_selector, w.field_selector if narrower else "") for w in after.watches
        )
    ]
    counts.append(matching(Selection(before.name, labels=heard)) if heard else known)
    found = [count for count in counts if count is not None]
    if len(found) < len(counts):
        return Leaving(None, "the running process does not tell how many of its cached objects match")
    *staying, all_heard = found
    gone = max(0, all_heard - sum(staying))
    asked = _functions(was, now)
    if asked and (gone or judges_otherwise(old, new, handler)):
        return Leaving(None, f"only a reload calls {' and '.join(asked)}, with each object")
    return Leaving(gone)


def judges_otherwise(old: PlanSnapshot, new: PlanSnapshot, handler: str) -> bool:
    """Whether the two filters may judge one object differently.

    `changedPaths` is left out: it compares two states. A function counts as another one with any handler
    file, as at a reload.
    """
    was, now = old.handlers[handler].filter, new.handlers[handler].filter
    before, after = (_judging(each) for each in (was, now))
    return before != after or (after[1] is not None and old.code != new.code)


def _judging(judge: FilterSpec | None) -> tuple[str, object]:
    return ("", None) if judge is None else (judge.label_selector, judge.entry_point)


def _functions(*handlers: HandlerPlan) -> tuple[str, ...]:
    """The functions of their filters, each once."""
    found = (each.filter.entry_point for each in handlers if each.filter is not None)
    return tuple(dict.fromkeys(str(entry) for entry in found if entry is not None))


def _labels(*filters: FilterSpec | None) -> str:
    return _joined(*(each.label_selector for each in filters if each is not None))


def _joined(*selectors: str) -> str:
    """A label selector for what all of these select."""
    return ",".join(dict.fromkeys(filter(None, selectors)))


def _not_cached(before: ResourcePlan, after: ResourcePlan, *, transformed: bool) -> str:
    """The first field that a new selector reads and that cached objects may not have; empty for none."""
    watch = before.watches[0]
    dropped = [FieldPath.parse(path).steps for path in watch.transform.drop_fields]
    changed = transformed or watch.transform.entry_point is not None
    for path in _fields(after):
        steps = FieldPath.parse(path).steps
        if steps in (("metadata", "name"), ("metadata", "namespace")):
            continue
        cut = any(steps[: len(each)] == each for each in dropped)
        if changed or cut or (watch.cache is CacheMode.METADATA_ONLY and steps[0] != "metadata"):
            return path
    return ""


def _fields(resource: ResourcePlan) -> Iterable[str]:
    selectors = (FieldSelector.parse(watch.field_selector) for watch in resource.watches)
    return (path for selector in selectors for path, _, _ in selector.conditions)
