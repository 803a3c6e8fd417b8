"""Random bundles follow one another while objects change, and an ideal controller says what is heard.

Hypothesis looks for the shortest history in which a handler hears something else. At the end of each
history the process is compared with one that has just been started with the last good manifest.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from declctl.kit import SystemClock
from declctl.sandbox import SandboxThread
from declctl.sandbox.faults import Match
from declctl.testing import BundleDir, ControllerUnderTest, until
from tests.behaviour.fingerprint import fingerprint
from tests.behaviour.ideal import (
    COLORS,
    KINDS,
    LABELLED,
    NAMESPACES,
    PLURALS,
    Bundle,
    HandlerOf,
    Heard,
    Ideal,
    Obj,
)

pytestmark = pytest.mark.thorough

_HISTORIES = 200 if os.environ.get("DECLCTL_SOAK") else 12
_HEAD = "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: random}\nspec:\n"
_POLICY = "  reload: {preflight: 'Off', informerLinger: 0s, warmTimeout: 10s, drainTimeout: 20s}\n"
_CODE = """
import declctl
from blackboard import tell
VERSION = {0}

def note(who, change):
    obj = change.obj
    seq = int(obj["data"]["seq"])
    tell(who, str(change.type), str(change.key), obj.uid, seq, str(change.reason), VERSION)

def by_color(obj): return [obj.labels["color"]]
"""
_FLAVOURS = {
    "def": "def {0}(change): note('{0}', change)\n",
    "async def": "async def {0}(change): note('{0}', change)\n",
    "class": "class {0}:\n    @declctl.hookimpl\n    def declctl_event(self, change): note('{0}', change)\n",
}
_INDEXES = ("", "{name: it, fieldPath: data.seq}", "{name: it, entryPoint: 'handlers:by_color'}")
_NAMES = ("one", "two", "three")
_BROKEN = ("syntax", "import", "attribute", "parameter", "field", "prepare", "forbidden")


def _write(
    folder: BundleDir, bundle: Bundle, *, code: str = "", resource: str = "", handler: str = ""
) -> None:
    """Write a bundle, and what is wrong with it."""
    text = f"{_HEAD}  resources:\n"
    for name, scope in bundle.scopes.items():
        more = f", namespaces: [{', '.join(scope)}]" if scope else ""
        if scope == LABELLED:
            more = ", namespaces: {labelSelector: team=web}"
        more += f", indexers: [{bundle.index}]" if bundle.index else ""
        text += f"    - {{name: {name}, apiVersion: v1, kind: {KINDS[name]}{more}}}\n"
    text += resource
    text += "  handlers:\n" if bundle.handlers or handler else ""
    source = _CODE.format(bundle.version)
    for name, of in bundle.handlers.items():
        more = f", filter: {{labelSelector: 'color={of.color}'}}" if of.color else ""
        entry = f"resourceRef: {{name: {of.resource}}}, entryPoint: 'handlers:{name}'"
        text += f"    - {{name: {name}, {entry}{more}}}\n"
        source += _FLAVOURS[of.flavour].format(name)
    folder.write("handlers.py", source + code)
    folder.write("manifest.yaml", text + handler + _POLICY)


class RandomEdits(RuleBasedStateMachine):
    """One controller, its sandbox, and the ideal one beside it."""

    board: Any  # the blackboard

    def __init__(self) -> None:
        super().__init__()
        self.board.clear()
        self.home = TemporaryDirectory()
        self.folder = BundleDir(Path(self.home.name))
        self.sandbox = SandboxThread(clock=SystemClock()).__enter__()
        for namespace in NAMESPACES:
            self.sandbox.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        self.ideal = Ideal(Bundle())
        self.seq = 0
        self.generation = 1
        _write(self.folder, self.ideal.bundle)
        self.controller = ControllerUnderTest(self.folder.path / "manifest.yaml", sandbox=self.sandbox)
        self.controller.start()
        self.controller.wait_ready()

    def teardown(self) -> None:
        """The process that has seen all this looks like one that has just been started."""
        try:
            for namespace in set(NAMESPACES) - self.ideal.bundle.labelled:
                self.relabel(namespace)
            for resource in KINDS:
                for color in COLORS:  # so that each handler has heard something: who waits has no thread
                    for namespace in NAMESPACES:
                        self._check(self._put(resource, namespace, f"last-{color}", color))
            self._settle()
            old = self._steady()
            assert self.controller.stop() == 0
            _end_of_process()
            with ControllerUnderTest(self.folder.path / "manifest.yaml", sandbox=self.sandbox) as fresh:
                fresh.wait_ready()
                fresh.wait_idle()
                self._expect_fingerprint(fresh, old)  # the tasks of its start may still have to end
        finally:
            self.controller.stop()
            self.sandbox.__exit__(None, None, None)
            self.home.cleanup()
            _end_of_process()

    @rule(
        writes=st.lists(
            st.tuples(
                st.sampled_from(sorted(KINDS)),
                st.sampled_from(NAMESPACES),
                st.sampled_from(["x", "y"]),
                st.sampled_from([*COLORS, *COLORS, None]),
            ),
            min_size=1,
            max_size=5,
        )
    )
    def write(self, writes: Sequence[tuple[str, str, str, str | None]]) -> None:
        """Objects are created, changed and deleted."""
        expected: list[Heard] = []
        for resource, namespace, name, color in writes:
            expected += self._put(resource, namespace, name, color)
        self._check(expected)

    @rule()
    def edit_code(self) -> None:
        """Every handler gets new code, and hears nothing."""
        self._edit(self.ideal.bundle)

    @rule(
        name=st.sampled_from(_NAMES),
        of=st.builds(
            HandlerOf,
            st.sampled_from(sorted(KINDS)),
            st.sampled_from(sorted(_FLAVOURS)),
            st.sampled_from([None, *COLORS]),
        ),
        at=st.integers(0, 2),
    )
    def put_handler(self, name: str, of: HandlerOf, at: int) -> None:
        """A handler comes, moves in the file, or gets another resource, filter or way of being written."""
        bundle = self.ideal.bundle
        if of.resource not in bundle.scopes:
            of = replace(of, resource=next(iter(bundle.scopes)))
        rest = [(other, its) for other, its in bundle.handlers.items() if other != name]
        self._edit(replace(bundle, handlers=dict([*rest[:at], (name, of), *rest[at:]])))

    @precondition(lambda self: self.ideal.bundle.handlers)
    @rule(data=st.data())
    def remove_handler(self, data: Any) -> None:
        """A handler goes."""
        handlers = dict(self.ideal.bundle.handlers)
        del handlers[data.draw(st.sampled_from(sorted(handlers)))]
        self._edit(replace(self.ideal.bundle, handlers=handlers))

    @rule(
        resource=st.sampled_from(sorted(KINDS)),
        scope=st.sampled_from([(), ("a",), ("b",), ("a", "b"), LABELLED, LABELLED]),
    )
    def put_resource(self, resource: str, scope: tuple[str, ...]) -> None:
        """A resource comes, or gets other namespaces."""
        self._edit(replace(self.ideal.bundle, scopes={**self.ideal.bundle.scopes, resource: scope}))

    @rule(namespace=st.sampled_from(NAMESPACES))
    def relabel(self, namespace: str) -> None:
        """A namespace gets the label, or loses it: no reload, and the differences are heard as of an edit."""
        labelled = self.ideal.bundle.labelled ^ {namespace}
        team = "web" if namespace in labelled else None
        self.sandbox.patch("Namespace", namespace, {"metadata": {"labels": {"team": team}}})
        self._check(self.ideal.edit(replace(self.ideal.bundle, labelled=labelled)))
        assert self.controller.status().generation == self.generation

    @precondition(lambda self: len(self.ideal.bundle.scopes) > 1)
    @rule(resource=st.sampled_from(sorted(KINDS)))
    def remove_resource(self, resource: str) -> None:
        """A resource goes with its handlers."""
        self._edit(self.ideal.bundle.without(resource))

    @rule(index=st.sampled_from(_INDEXES))
    def put_index(self, index: str) -> None:
        """The resources have other indexes."""
        self._edit(replace(self.ideal.bundle, index=index))

    @rule()
    def ask_again(self) -> None:
        """The same bytes are no reload."""
        assert self.controller.reload().result == "Unchanged"
        self._check([])

    @rule(what=st.sampled_from(_BROKEN), after=st.booleans())
    def break_it(self, what: str, after: bool) -> None:
        """A broken edit is refused and changes nothing; the bundle is mended at once, or by the next edit."""
        if what in ("syntax", "import") and not self.ideal.bundle.has_code:
            return  # nobody would read it
        self._settle()
        before, asked = self._steady(), self._asked()
        bundle = self.ideal.bundle
        broken = replace(bundle, version=bundle.version + 1)
        hook = "{name: wrong, resourceRef: {name: " + next(iter(bundle.scopes)) + "}, entryPoint: "
        match what:
            case "syntax":
                _write(self.folder, broken, code="def (\n")
            case "import":
                _write(self.folder, broken, code="raise OSError('no disk')\n")
            case "attribute":
                _write(self.folder, broken, handler=f"    - {hook}'handlers:nobody'}}\n")
            case "parameter":
                wrong = f"    - {hook}'handlers:wrong'}}\n"
                _write(self.folder, broken, code="def wrong(chnage): ...\n", handler=wrong)
            case "field":
                _write(self.folder, broken, resource="    - {name: more, apiVersion: v1, knid: Pod}\n")
            case "prepare":
                hooks = "@declctl.hookimpl\ndef declctl_prepare(): raise OSError('not today')\n"
                hooks += "@declctl.hookimpl\ndef declctl_event(change): note('wrong', change)\n"
                _write(self.folder, broken, code=hooks, handler=f"    - {hook}handlers}}\n")
            case _:
                self.sandbox.faults.refuse(403, Match(resource="pods"))
                _write(self.folder, broken, resource="    - {name: more, apiVersion: v1, kind: Pod}\n")
        outcome = self.controller.reload()
        assert (outcome.result, outcome.generation) == ("Refused", self.generation), outcome.line
        assert self.controller.condition("Reloaded").status == "False"
        assert self.controller.status().ready
        self._expect_fingerprint(self.controller, before)
        assert self._asked() == asked
        self._check([])
        _write(self.folder, bundle)
        if after:
            assert self.controller.reload().result == "Unchanged"
            assert self.controller.condition("Reloaded").status == "True"

    def _edit(self, bundle: Bundle) -> None:
        """Make it the next generation: what is watched already is asked for nothing."""
        self._settle()
        both = self.ideal.bundle.watches() & bundle.watches()
        kept = {(plural, namespace) for plural, namespace, _ in both if plural != "namespaces"}
        asked = {watch: found for watch, found in self._asked().items() if watch in kept}
        same = bundle == self.ideal.bundle and not bundle.has_code
        bundle = replace(bundle, version=self.ideal.bundle.version + 1)
        _write(self.folder, bundle)
        outcome = self.controller.reload()
        assert outcome.result == ("Unchanged" if same else "Applied"), outcome.line
        if same:
            return
        self.generation += 1
        assert outcome.generation == self.generation
        self._check(self.ideal.edit(bundle))
        assert {watch: self._asked()[watch] for watch in kept} == asked
        assert [handler.name for handler in self.controller.status().handlers] == list(bundle.handlers)

    def _put(self, resource: str, namespace: str, name: str, color: str | None) -> list[Heard]:
        """Write an object, or delete it if it has no color; returns what has to be heard."""
        before = self.ideal.objects.get((resource, namespace, name))
        kind = KINDS[resource]
        if color is None:
            if before is None:
                return []
            self.sandbox.delete(kind, name, namespace)
            return self.ideal.write(before, None)
        self.seq += 1
        labels, data = {"color": color}, {"seq": str(self.seq)}
        if before is None:
            metadata = {"name": name, "namespace": namespace, "labels": labels}
            made = self.sandbox.create({"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data})
            after = Obj(resource, namespace, name, made["metadata"]["uid"], self.seq, color)
        else:
            patch = {"metadata": {"labels": labels}, "data": data}
            self.sandbox.patch(kind, name, patch, namespace=namespace)
            after = before._replace(seq=self.seq, color=color)
        return self.ideal.write(before, after)

    def _check(self, expected: Sequence[Heard]) -> None:
        """What was heard since the last time, by handler and object and in order, and nothing else."""
        self.controller.wait_idle()
        heard = [Heard(*row) for row in self.board.told]
        self.board.told.clear()
        assert _sorted(heard) == _sorted(expected)
        for resource in self.ideal.bundle.scopes:
            assert self._indexed(resource) == self.ideal.indexed(resource)

    def _indexed(self, resource: str) -> dict[str, set[str]]:
        """What the index of a resource has."""
        lister = self.controller.lister(resource)
        if not lister.index_names():
            return {}
        return {
            value: {str(o.key) for o in lister.by_index("it", value)} for value in lister.index_values("it")
        }

    def _settle(self) -> None:
        """Return when the old generation is gone, with its watches."""
        watches = len(self.ideal.bundle.watches())
        until("it is retired", lambda: self.controller.status().generations_alive == 1)
        until("each is watched once", lambda: self.sandbox.faults.document()["openWatches"] == watches)

    def _steady(self) -> dict[str, Any]:
        """The fingerprint, once what the last edit has ended is gone: threads and tasks end by themselves."""
        found: list[dict[str, Any]] = []

        def same() -> bool:
            found.append(fingerprint(self.controller, self.sandbox))
            # Both end by themselves: late on a busy machine.
            if "Retirement._swept" in found[-1]["tasks"] or found[-1]["alive"] > 1:
                return False
            return len(found) >= 5 and all(each == found[-1] for each in found[-5:])

        until("it rests", same)
        return found[-1]

    def _expect_fingerprint(self, controller: ControllerUnderTest, expected: dict[str, Any]) -> None:
        """Return when a process has the fingerprint."""
        try:
            until("it looks as expected", lambda: fingerprint(controller, self.sandbox) == expected)
        except AssertionError:
            assert fingerprint(controller, self.sandbox) == expected  # shows what differs
            raise

    def _asked(self) -> dict[tuple[str, str], list[tuple[str, int]]]:
        """Every LIST and WATCH with its connection, by what was asked for."""
        found: defaultdict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
        for request in self.sandbox.ledger.requests():
            if request.verb in ("list", "watch") and request.resource in PLURALS.values():
                found[request.resource, request.namespace].append((request.verb, request.connection))
        return dict(found)


def _end_of_process() -> None:
    """A controller that stops leaves its last code loaded: the process ends."""
    for name in [name for name in sys.modules if name.startswith("_declctl_gen.g")]:
        del sys.modules[name]


def _sorted(heard: Sequence[Heard]) -> list[tuple[tuple[str, str], list[Heard]]]:
    found: defaultdict[tuple[str, str], list[Heard]] = defaultdict(list)
    for each in heard:
        found[each.handler, each.key].append(each)
    return sorted(found.items())


@pytest.mark.timeout(0 if _HISTORIES > 12 else 120)
@pytest.mark.guarantee("G1", "G2", "G6", "G12", "G15", "G16")
def test_random_edits_are_heard_as_an_ideal_controller_would_tell_them(board) -> None:
    """Legal edits tell true differences, broken ones nothing, and nothing stays behind (G1, G2, G6, G15)."""
    RandomEdits.board = board
    run_state_machine_as_test(
        RandomEdits,
        settings=settings(
            max_examples=_HISTORIES,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
