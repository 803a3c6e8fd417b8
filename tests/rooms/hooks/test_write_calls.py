"""Lint rules for bodies of hooks: what is wrong whenever it runs is found, and nothing else."""

import sys
from pathlib import Path
from textwrap import indent

import pytest

from declctl.hooks.bundle import Bundle
from declctl.hooks.lint import Finding, lint
from declctl.runtime.checking.check import check
from declctl.testing import BundleDir
from tests.rooms.hooks.conftest import without_mark

HOOK = "import declctl\n@declctl.hookimpl\n"

# `§` stands before the call that is reported.
FOUND = {
    "a write alone": ("async def hook(obj, ctx):\n    §ctx.apply({})", "DCL096"),
    "a write in a branch": ("async def hook(ctx):\n    if 1:\n        §ctx.patch_status(a=1)", "DCL096"),
    "a result that is never read": ("async def hook(ctx):\n    done = §ctx.apply_set([])", "DCL096"),
    "a result without a name": ("async def hook(ctx):\n    _ = §ctx.apply_set([])", "DCL096"),
    "a result with a type": ("async def hook(ctx):\n    done: object = §ctx.apply({})", "DCL096"),
    "a read whose result is not used": ("async def hook(ctx):\n    §ctx.get('v1/Pod', 'x')", "DCL096"),
    "a delete in a def hook": ("def hook(obj, ctx):\n    return §ctx.delete(obj)", "DCL097"),
    "a nested coroutine": (
        "async def hook(ctx):\n    async def one():\n        §ctx.apply({})\n    await one()",
        "DCL096",
    ),
    "a helper": (
        "async def hook(obj, ctx):\n    await write(obj, ctx)\nasync def write(obj, c):\n    §c.apply(obj)",
        "DCL096",
    ),
    "a helper by a keyword": (
        "async def hook(obj, ctx):\n    write(context=ctx)\ndef write(*, context):\n    §context.apply({})",
        "DCL096",
    ),
    "a def hook": ("def hook(obj, ctx):\n    return §ctx.apply({})", "DCL097"),
    "a def hook in a loop": ("def hook(ctx):\n    for n in range(3):\n        §ctx.apply_set([n])", "DCL097"),
    "a helper of a def hook": (
        "def hook(ctx):\n    write(ctx)\ndef write(ctx):\n    x = §ctx.apply({})\n    return x",
        "DCL097",
    ),
    "a helper with a guard": (
        "def hook(a, ctx):\n    write(a, ctx)\ndef write(a, ctx):\n    if a: return\n    §ctx.apply(a)",
        "DCL097",
    ),
    "a helper in a branch of a hook": (
        "def hook(obj, ctx):\n    if obj:\n        write(ctx)\ndef write(ctx):\n    §ctx.apply({})",
        "DCL097",
    ),
    "the blocking form": ("async def hook(obj, ctx):\n    §ctx.sync.apply({})", "DCL097"),
    "the blocking form, awaited": ("async def hook(ctx):\n    await §ctx.sync.patch_status(a=1)", "DCL097"),
    "an event that is awaited": (
        "async def hook(obj, ctx):\n    §await ctx.record_event(obj, '', '')",
        "DCL097",
    ),
    "a marked function": (
        f"{HOOK}def declctl_finalize(request, ctx):\n    §ctx.apply({{}})\ndef hook(): ...",
        "DCL097",
    ),
}

METHODS = """\
import declctl
class Guard:
    @declctl.hookimpl
    async def declctl_added(self, obj, ctx):
        await self._write(obj, ctx)
    @declctl.hookimpl(tryfirst=True)
    def declctl_deleted(self, ctx):
        §1ctx.apply({})
    async def _write(self, obj, ctx):
        §2ctx.apply(obj)
    async def _other(self, obj, ctx):
        ctx.apply(obj)
"""

FINE = {
    "awaited": "async def hook(ctx):\n    await ctx.apply({})",
    "awaited later": "async def hook(ctx):\n    one = ctx.apply({})\n    await one",
    "gathered": "import asyncio\nasync def hook(ctx):\n    await asyncio.gather(*(ctx.apply(x) for x in []))",
    "collected": "async def hook(ctx):\n    all = [ctx.apply({})]\n    [await x for x in all]",
    "returned": "async def hook(ctx):\n    await write(ctx)\ndef write(ctx):\n    return ctx.apply({})",
    "with a callback": "async def hook(ctx):\n    ctx.apply({}).add_done_callback(print)",
    "kept elsewhere": "last = None\nasync def hook(ctx):\n    global last\n    last = ctx.apply({})",
    "read by a nested function": (
        "async def hook(ctx):\n    a = ctx.apply({})\n    async def end():\n        await a\n    await end()"
    ),
    "in a thread": (
        "import asyncio\nasync def hook(ctx):\n    await asyncio.to_thread(lambda: ctx.sync.apply({}))"
    ),
    "in a function for a thread": (
        "import asyncio\nasync def hook(ctx):\n    def work():\n        ctx.sync.apply({})\n"
        "    await asyncio.to_thread(work)"
    ),
    "a helper in a thread": (
        "import asyncio\nasync def hook(ctx):\n    await asyncio.to_thread(write, ctx)\n"
        "def write(ctx):\n    ctx.sync.apply({})"
    ),
    "blocking": "def hook(ctx):\n    ctx.sync.apply({})\n    ctx.record_event({}, 'R', 'm')",
    "a helper with both forms": (
        "def hook(ctx):\n    write(ctx, True)\n"
        "def write(ctx, sync):\n    return ctx.sync.apply({}) if sync else ctx.apply({})"
    ),
    "a helper that returns before the other form": (
        "def hook(ctx):\n    write(ctx, True)\ndef write(ctx, sync):\n    if sync:\n"
        "        return ctx.sync.apply({})\n    return ctx.apply({})"
    ),
    "a helper that looks for a loop": (
        "import asyncio\ndef hook(ctx):\n    write(ctx)\ndef write(ctx):\n    try:\n"
        "        asyncio.get_running_loop()\n    except RuntimeError:\n        return ctx.sync.apply({})\n"
        "    return ctx.apply({})"
    ),
    "a helper that chooses a helper": (
        "def hook(ctx):\n    write(ctx, True)\n"
        "def write(ctx, sync):\n    return block(ctx) if sync else begin(ctx)\n"
        "def block(ctx):\n    return ctx.sync.apply({})\ndef begin(ctx):\n    return ctx.apply({})"
    ),
    "a helper of both kinds": (
        f"{HOOK}def declctl_deleted(ctx):\n    write(ctx)\nasync def hook(ctx):\n    await write(ctx)\n"
        "def write(ctx):\n    return ctx.apply({})"
    ),
    "no hook": "def hook(): ...\ndef draw(ctx):\n    ctx.apply({})",
    "another object": "async def hook(obj, ctx):\n    obj.apply({})\n    ctx.config.get('x')",
    "another ctx": "async def hook(obj, ctx):\n    ctx = obj\n    ctx.apply({})",
    "another ctx of a nested function": "async def hook(ctx):\n    def inner(ctx):\n        ctx.apply({})",
    "another decorator": "import functools\n@functools.cache\ndef hook(ctx):\n    ctx.apply({})",
    "a helper with a decorator": (
        "import contextlib\ndef hook(ctx):\n    write(ctx)\n@contextlib.contextmanager\n"
        "def write(ctx):\n    yield ctx.apply({})"
    ),
    "another helper": "def hook(ctx):\n    write = print\n    write(ctx)\ndef write(ctx): ctx.apply({})",
    "a wrapper": "from lib import loop\ndef hook(ctx):\n    return ctx.apply({})\nhook = loop(hook)",
    "two definitions": "if 1:\n    def hook(ctx): ...\ndef hook(ctx): ctx.apply({})",
    "what the author means": "async def hook(ctx):\n    ctx.apply({})  # noqa: DCL096",
}


def found(source: str, entry: str = "handlers:hook") -> list[Finding]:
    return lint(Bundle("", {"handlers.py": source.encode()}), [entry])


@pytest.mark.parametrize("what", FOUND)
def test_a_write_that_goes_wrong_whenever_it_runs_is_found(what: str) -> None:
    """At the call, with the form that is right; one that raises is an error."""
    text, code = FOUND[what]
    source, place = without_mark(text)
    (finding,) = found(source)
    assert finding.code == code
    assert finding.severity == ("error" if code == "DCL097" else "warning")
    assert (finding.line, finding.column) == place
    assert finding.suggestion


@pytest.mark.parametrize("what", FINE)
def test_nothing_else_is_reported(what: str) -> None:
    """A warning about right code costs more trust than it is worth."""
    assert found(FINE[what]) == []


@pytest.mark.parametrize("entry", ["handlers:Guard", "handlers:Other"])
def test_the_methods_of_a_class_are_looked_at_if_it_is_an_entry_point(entry: str) -> None:
    """Those with the mark, and those to which they pass ctx."""
    lines = METHODS.split("\n")
    wanted = {number: line for number, line in enumerate(lines, 1) if "§" in line}
    source = METHODS.replace("§1", "").replace("§2", "")
    told = {(each.line, each.code) for each in found(source, entry)}
    codes = {number: "DCL097" if "§1" in line else "DCL096" for number, line in wanted.items()}
    assert told == (set(codes.items()) if entry.endswith("Guard") else set())


def test_a_module_as_an_entry_point_has_marked_hooks_only() -> None:
    """Its other functions are called by nobody known; an expression deeper than the stack is read."""
    source = f"{HOOK}async def declctl_event(ctx):\n    ctx.apply({{}})\ndef other(ctx):\n    ctx.apply({{}})"
    assert [each.code for each in found(source, "handlers")] == ["DCL096"]
    deep = "+".join(["1"] * (sys.getrecursionlimit() // 2))
    assert [each.code for each in found(f"async def hook(ctx):\n    x = {deep}\n    ctx.apply({{}})")] == [
        "DCL096"
    ]


READS = f"{HOOK}def declctl_reconcile(request):\n    §request.previous"
UNMARKED = "def hook(request, ctx):\n    old = {} if 1 else [§request.previous.name for _ in '']"


@pytest.mark.parametrize(
    ("text", "reconcilers"),
    [
        (READS, {"": False}),
        (f"{HOOK}def declctl_finalize(request):\n    print(lambda: §request.previous)", {"hook": False}),
        (UNMARKED, {"hook": False, "other": True}),
        ("class Guard:\n" + indent(READS, "    "), {"Guard": False}),
        (READS.replace("§", ""), {"": True}),
        (READS.replace("§", ""), {"": False, "other": True}),  # whose finalizer may have the function
        (UNMARKED.replace("§", ""), {"other": False}),
        ("def hook(request):\n    obj.previous, request.obj.previous", {"hook": False}),
        ("def hook(request):\n    request = another()\n    request.previous", {"hook": False}),
        ("def hook(request):\n    helper = lambda request: request.previous", {"hook": False}),
        (READS.replace("§", "") + "  # noqa: DCL099", {"": False}),
    ],
)
def test_a_read_of_previous_is_found_where_it_is_always_none(text: str, reconcilers: dict[str, bool]) -> None:
    """Whatever way leads to the function; a handler that keeps it, and another object, are not reported."""
    source, place = without_mark(text) if "§" in text else (text, None)
    entries = [f"handlers:{each}".rstrip(":") for each in reconcilers]
    given = dict(zip(entries, reconcilers.values(), strict=True))
    told = lint(Bundle("", {"handlers.py": source.encode()}), entries, given)
    assert [(each.code, (each.line, each.column)) for each in told] == ([("DCL099", place)] if place else [])


MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: guard}
spec:
  resources: [{name: pods, apiVersion: v1, kind: Pod}]
  handlers: [{name: a, resourceRef: {name: pods}, entryPoint: "handlers:a"}]
"""


@pytest.mark.parametrize("policy", ["", "  reload: {preflight: Off}\n"])
def test_a_check_reports_it(tmp_path: Path, policy: str) -> None:
    """As `validate` and a reload do, whether the code is imported or not; an error refuses it."""
    bundle_dir = BundleDir(tmp_path / "bundle")
    bundle_dir.write("handlers.py", "def a(obj, ctx):\n    ctx.apply(dict(obj))\n")
    bundle_dir.write("manifest.yaml", MANIFEST + policy)
    (fault,) = check(str(bundle_dir.path)).errors
    assert (fault.code, fault.line, fault.column) == ("DCL097", 2, 5)
    assert "ctx.sync.apply" in (fault.suggestion or "")
    bundle_dir.write("handlers.py", "def a(request):\n    print(request.previous)\n")
    for keeps in ("", "keepPrevious: true, "):
        bundle_dir.write(
            "manifest.yaml", MANIFEST.replace("{name: a,", f"{{name: a, mode: Reconcile, {keeps}") + policy
        )
        found = [
            (each.code, each.severity, each.line, each.column)
            for each in check(str(bundle_dir.path)).diagnostics
        ]
        assert found == ([] if keeps else [("DCL099", "warning", 2, 11)])
