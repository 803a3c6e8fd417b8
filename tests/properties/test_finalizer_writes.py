"""Finalizers beside other controllers: whatever they do in between, each list ends as everybody wants it."""

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from declctl.errors import ApiError, Conflict, NotFound, StatusError
from declctl.kit import ManualClock
from declctl.objects import GroupVersionKind, ObjectKey, Resource
from declctl.writes import FinalizedObject, FinalizerWriter, WriteGate, WriteLedger, WriteOrigin

OURS = "example.dev/ours"
OTHERS = ("other.dev/a", "other.dev/b", "other.dev/c")
RESOURCE = Resource(GroupVersionKind.of("example.dev/v1", "WebApp"), "webapps", True)

# What happens on the server before a request of ours is answered: by others, or to the answer.
STEPS = st.one_of(
    st.tuples(st.just("toggle"), st.sampled_from(OTHERS)),
    st.just(("label", "")),
    st.just(("delete", "")),
    st.just(("recreate", "")),
    st.just(("replace", "")),
    st.just(("conflict", "")),  # answered 409 though nothing has changed
    st.just(("lost", "")),  # done, and answered 500
    st.just(("error", "")),  # not done, and answered 500
    st.just(("nothing", "")),
)


class Store:
    """One object of an API server, with its rules for versions and finalizers."""

    def __init__(self, steps: Sequence[tuple[str, str]]) -> None:
        self.steps = list(steps)
        self.number = 1
        self.obj: dict[str, Any] | None = self._made()
        self.wanted = {"uid-1": set[str]()}  # finalizers of others, by uid
        self.was_added_late = False  # ours was added to an object that was being deleted

    def _made(self) -> dict[str, Any]:
        self.version = getattr(self, "version", 0) + 1
        metadata = {"name": "shop", "namespace": "a", "uid": f"uid-{self.number}"}
        return {"metadata": {**metadata, "resourceVersion": str(self.version), "finalizers": []}}

    async def request_json(self, method: str, path: str, *, body: Any = None, **_: Any) -> Any:
        """A GET or a merge patch."""
        step = self.steps.pop(0) if self.steps else ("nothing", "")
        self._others(*step)
        if method != "GET" and step[0] in ("conflict", "error"):
            code = 409 if step[0] == "conflict" else 500
            raise (Conflict if code == 409 else StatusError)(code, "", "harmed")
        if self.obj is None:
            raise NotFound(404, "NotFound", path)
        if method == "GET":
            return copy.deepcopy(self.obj)
        answer = self._patched(body["metadata"])
        if step[0] == "lost":
            raise StatusError(500, "", "the answer is lost")
        return answer

    def _patched(self, given: dict[str, Any]) -> Any:
        assert self.obj is not None
        metadata = self.obj["metadata"]
        if (given["uid"], given["resourceVersion"]) != (metadata["uid"], metadata["resourceVersion"]):
            raise Conflict(409, "Conflict", "another version")
        new = given["finalizers"] or []
        if metadata.get("deletionTimestamp") and set(new) - set(metadata["finalizers"]):
            self.was_added_late = True
            raise StatusError(422, "Invalid", "no new finalizers can be added")
        metadata["finalizers"] = new
        return self._changed()

    def _changed(self) -> Any:
        assert self.obj is not None
        self.version += 1
        self.obj["metadata"]["resourceVersion"] = str(self.version)
        answer = copy.deepcopy(self.obj)
        if self.obj["metadata"].get("deletionTimestamp") and not self.obj["metadata"]["finalizers"]:
            self.obj = None
        return answer

    def _others(self, step: str, name: str) -> None:
        if step == "replace" or (step == "recreate" and self.obj is None):
            self.number += 1
            self.obj = self._made()
            self.wanted[self.obj["metadata"]["uid"]] = set()
        if self.obj is None:
            return
        metadata = self.obj["metadata"]
        if step == "toggle":
            there = set(self.wanted[metadata["uid"]])
            if name in there:
                metadata["finalizers"].remove(name)
            elif not metadata.get("deletionTimestamp"):
                metadata["finalizers"].append(name)
            else:
                return
            self.wanted[metadata["uid"]] = there ^ {name}
            self._changed()
        elif step == "label":
            self._changed()
        elif step == "delete" and not metadata.get("deletionTimestamp"):
            metadata["deletionTimestamp"] = "now"
            self._changed()

    def check(self) -> None:
        """Nobody's finalizer but ours has come or gone by our writes."""
        assert not self.was_added_late
        if self.obj is not None:
            metadata = self.obj["metadata"]
            assert set(metadata["finalizers"]) - {OURS} == self.wanted[metadata["uid"]]
            assert len(metadata["finalizers"]) == len(set(metadata["finalizers"]))


@given(st.lists(STEPS, max_size=30), st.booleans())
def test_only_ours_is_added_and_removed(steps: list[tuple[str, str]], reads_first: bool) -> None:
    """Repeated until they succeed, an addition and a removal change nothing of others, nor another object."""
    asyncio.run(_scenario(Store(steps), reads_first=reads_first))


async def _scenario(store: Store, *, reads_first: bool) -> None:
    clock, ledger = ManualClock(), WriteLedger()
    writer = FinalizerWriter(WriteGate(store, ledger, clock=clock))
    target = FinalizedObject(RESOURCE, ObjectKey("a/shop"), "uid-1", OURS, "m", WriteOrigin("h", 1))
    seen = copy.deepcopy(store.obj)
    for change, has_it in ((writer.add, True), (writer.remove, False)):
        for _ in range(50):
            task = asyncio.ensure_future(change(target, None if reads_first else seen))
            while not task.done():
                await clock.settle()
                await clock.advance(1.0)
            store.check()
            if not isinstance(task.exception(), ApiError):
                break
        assert task.exception() is None
        seen = copy.deepcopy(store.obj)
        if store.obj is not None and store.obj["metadata"]["uid"] == "uid-1":
            metadata = store.obj["metadata"]
            if not (has_it and metadata.get("deletionTimestamp")):
                assert (OURS in metadata["finalizers"]) is has_it
        elif store.obj is not None:
            assert OURS not in store.obj["metadata"]["finalizers"], "another object of the name"
