"""Draws lives until one breaks an invariant, and shortens it."""

import logging
import os
import sys
import textwrap
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stdout, suppress
from hashlib import sha256
from pathlib import Path

import hypothesis
import msgspec
import yaml
from hypothesis import HealthCheck, Phase, given, settings

from declctl.errors import UsageError
from declctl.manifest.diagnostics import did_you_mean
from declctl.objects import KubeObject
from declctl.testing.fuzzing.bundle import FuzzedBundle, read_bundle
from declctl.testing.fuzzing.invariants import INVARIANTS, Judge, Violation
from declctl.testing.fuzzing.lives import Life, lives

RUNS = 200
FOREIGN = "foreign"
ALLOWED = (*INVARIANTS, FOREIGN)
"""What `allow` knows: the invariants; and others who edit and delete what the controller has made."""
_NO_CHECKS = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
_WIDTH = 100
_STDOUT = 1
_MOST_SHRINKS = 400  # lives that are played to shorten one


class FuzzResult(msgspec.Struct, frozen=True):
    """What was found: `violation` is None if each life held all invariants."""

    runs: int  # lives, without those that shortened one
    seed: int
    most: int  # lives that were asked for: another number draws others
    seconds: float
    life: Life = ()
    violation: Violation | None = None
    surroundings: Sequence[KubeObject] = ()
    definitions: Sequence[KubeObject] = ()  # that are not beside the manifest

    def document(self) -> KubeObject | None:
        """The life as a ControllerTest, which fails as the life did; None if nothing was found."""
        if self.violation is None:
            return None
        *steps, last = self.violation.steps or ({"advance": "1s"},)
        steps = _joined(steps)
        before = self.violation.objects
        # The digest tells lives of the same seed apart, as those of an earlier code.
        told = [before, steps, last] if before else [steps, last]
        digest = sha256(msgspec.json.encode(told, order="deterministic")).hexdigest()[:6]
        objects = [*self.definitions, *self.surroundings, *before]
        return {
            "apiVersion": "declctl.dev/v1alpha1",
            "kind": "ControllerTest",
            "metadata": {"name": f"fuzz-{self.violation.invariant}-{self.seed}-{digest}"},
            "spec": {
                **({"objects": objects} if objects else {}),
                "steps": [*steps, {**last, "expect": list(self.violation.expected)}],
            },
        }

    def text(self) -> str:
        """The document as YAML, below a comment with what it breaks; empty if nothing was found."""
        if self.violation is None:
            return ""
        words = f"{self.violation.invariant}: {self.violation.message}"
        printable = "".join(each if each.isprintable() else " " for each in words)
        lines = [*textwrap.wrap(printable, _WIDTH - 2), f"Found by `declctl fuzz {self.options()}`."]
        head = "".join(f"# {each}\n" for each in lines)
        return head + yaml.dump(self.document(), Dumper=_DocumentDumper, sort_keys=False, width=_WIDTH)

    def options(self) -> str:
        """What draws the same lives again."""
        return f"--seed {self.seed} --runs {self.most}"


def _joined(steps: Sequence[KubeObject]) -> Sequence[KubeObject]:
    """Steps with one of them wherever time passes in several, one after the other."""
    result: list[KubeObject] = []
    for each in steps:
        if result and each.keys() == result[-1].keys() == {"advance"}:
            seconds = (float(one["advance"].removesuffix("s")) for one in (result.pop(), each))
            result.append({"advance": f"{sum(seconds):.0f}s"})
        else:
            result.append(each)
    return result


class _DocumentDumper(yaml.SafeDumper):
    """Writes each value in full, where it stands."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - that of the base class
        """True: no anchors."""
        return True


class LifeFailed(AssertionError):
    """A life has broken an invariant."""


def run_lives(
    manifest: str | Path,
    handler: str | None = None,
    *,
    runs: int = RUNS,
    seed: int | None = None,
    allow: Mapping[str, str] | None = None,
    objects: Sequence[KubeObject] | None = None,
) -> FuzzResult:
    """As `fuzz`, but a life that breaks an invariant is returned, and not raised."""
    allowed = dict(allow or {})
    for name, reason in allowed.items():
        if name not in ALLOWED:
            hint = did_you_mean(name, ALLOWED) or f"there are {', '.join(ALLOWED)}"
            raise UsageError(f"nothing that can be allowed is called {name!r}: {hint}.")
        if not reason.strip():
            raise UsageError(f"say why {name} need not hold: {name}=REASON.")
    bundle = read_bundle(str(manifest), handler=handler, objects=objects)
    return _Fuzzer(bundle, allowed, runs, seed if seed is not None else time.time_ns() % 100_000).run()


def fuzz(
    manifest: str | Path,
    handler: str | None = None,
    *,
    runs: int = RUNS,
    seed: int = 0,
    allow: Mapping[str, str] | None = None,
    objects: Sequence[KubeObject] | None = None,
) -> None:
    """Let random lives of objects happen to a controller, and check what must hold after each of them.

    - `manifest`: a file or a folder.
    - `handler`: lives are about the objects of this handler; None: of all handlers.
    - `runs`: the number of lives.
    - `seed`: the same seed draws the same lives, with the same `runs`.
    - `allow`: the invariants that need not hold, each with the reason why; with `foreign`, nobody else edits
      or deletes what the controller has made.
    - `objects`: examples of objects, and what else is there in each life; None: those of the folder `sandbox`
      beside the manifest.

    Raises AssertionError with the shortest life that breaks an invariant, as a ControllerTest document;
    ManifestErrors for faults of the manifest; UsageError.
    """
    __tracebackhide__ = True
    found = run_lives(manifest, handler, runs=runs, seed=seed, allow=allow, objects=objects)
    if found.violation is not None:
        raise LifeFailed(f"{found.violation.invariant}: {found.violation.message}\n\n{found.text()}")


@contextmanager
def _silence() -> Generator[None]:
    """Let nothing through of what handlers print and log, also in processes of their own."""
    sys.stdout.flush()
    kept, quiet = os.dup(_STDOUT), logging.NullHandler()
    logging.getLogger().addHandler(quiet)  # without any, warnings go to stderr
    try:
        with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing):
            os.dup2(nothing.fileno(), _STDOUT)
            yield
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)
        logging.getLogger().removeHandler(quiet)


class _Fuzzer:
    def __init__(self, bundle: FuzzedBundle, allowed: Mapping[str, str], runs: int, seed: int) -> None:
        self._bundle = bundle
        self._allowed = allowed
        self._judge = Judge(bundle, allowed)
        self._runs = runs
        self._seed = seed
        self._known: dict[bytes, Violation | None] = {}  # of the lives that were played
        self._drawn = 0
        self._left = _MOST_SHRINKS
        self._found: tuple[Life, Violation] | None = (
            None  # the newest one: hypothesis plays the shortest last
        )

    def run(self) -> FuzzResult:
        """Draw lives, and shorten the first one that fails."""
        begin = time.monotonic()
        with _silence(), closing(self._judge):
            self._search()
            life, violation = self._found or ((), None)
            if violation is not None:
                violation = self._without_calls(life, violation)
        return FuzzResult(
            self._drawn,
            self._seed,
            self._runs,
            time.monotonic() - begin,
            life,
            violation,
            self._bundle.surroundings,
            self._bundle.made,
        )

    def _without_calls(self, life: Life, violation: Violation) -> Violation:
        """The same violation without the further calls of `idempotent`, if these have no part in it."""
        if violation.invariant not in ("finalized", "collected"):
            return violation
        allowed = {**self._allowed, "idempotent": "its calls are steps of a document"}
        with closing(Judge(self._bundle, allowed)) as judge:
            found = judge.judge(life)
        return found if found is not None and found.invariant == violation.invariant else violation

    def _search(self) -> None:
        @hypothesis.seed(self._seed)
        @settings(
            max_examples=self._runs,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=_NO_CHECKS,
            report_multiple_bugs=False,
            print_blob=False,
        )
        @given(lives(self._bundle, foreign=FOREIGN not in self._allowed))
        def live(life: Life) -> None:
            found = self._verdict(life)
            if found is not None:
                self._found = life, found
                raise LifeFailed

        with suppress(LifeFailed):
            live()

    def _verdict(self, life: Life) -> Violation | None:
        """The verdict on a life, which does not change: a life fails if it fails twice in a row.

        So a busy machine, on which a limit of time ends a rest, is no fault of the controller.
        """
        key = msgspec.json.encode(life)
        if key in self._known:
            return self._known[key]
        if self._found is None:
            self._drawn += 1
        elif self._left:
            self._left -= 1
        else:
            return None  # it is short enough
        found = self._judge.judge(life)
        self._known[key] = found and self._judge.judge(life)
        return self._known[key]
