"""Typed objects as type checkers see them: right code is clean, and five usual mistakes are each found."""

import re
from pathlib import Path

import processes
import pytest
from markdown import ROOT, blocks
from type_checkers import author_folder, mypy, pyright
from walkthrough import DIRECTIVE, edit

MODELS = """\
from typing import Annotated

import declctl
import msgspec


class Spec(msgspec.Struct):
    image: str
    replicas: Annotated[int, msgspec.Meta(ge=1)] = 1


class Status(msgspec.Struct):
    ready: int = 0


@declctl.custom_resource("acme.dev/v1", plural="previews", columns={"Ready": ".status.ready"})
class Preview(declctl.Object[Spec, Status]):
    @property
    def is_ready(self) -> bool:
        return self.status.ready == self.spec.replicas


class Settings(declctl.Object):
    data = declctl.field(dict[str, str])


@declctl.custom_resource("acme.dev/v1", plural="teams", scope="Cluster")
class Team(declctl.Object[Spec]):
    size = declctl.field(int)
"""
HANDLERS = """\
import declctl
from models import Preview, Settings, Spec, Status, Team


async def reconcile(request: declctl.Request[Preview], ctx: declctl.Context) -> declctl.Requeue | None:
    preview = request.obj
    if preview is None:
        return None
    image: str = preview.spec.image
    settings = ctx.lister(Settings).get(f"{preview.namespace}/settings")
    others: list[bool] = [each.is_ready for each in ctx.lister(Preview).list(namespace=preview.namespace)]
    if settings is not None and settings.data.get("image") != image and all(others):
        await ctx.apply(Preview.new("copy", preview.namespace, spec=Spec(image), labels=preview.labels))
    await ctx.patch_status(Status(ready=preview.spec.replicas))
    return declctl.Requeue(after=60)


def on_change(change: declctl.Change[Preview], obj: Preview, old: Preview | None) -> None:
    was_ready = change.old is not None and change.old.is_ready
    print(change.obj.spec.replicas, obj.status.ready, was_ready, old and old.spec, obj["spec"])


def by_image(obj: Preview) -> list[str]:
    return [obj.spec.image]


def untyped(request: declctl.Request, change: declctl.Change, ctx: declctl.Context) -> None:
    print(request.obj and request.obj["spec"], change.obj.name, ctx.listers["previews"].list()[0].name)


def any_object(request: declctl.Request) -> None: ...


def passes_it_on(request: declctl.Request[Team], lister: declctl.Lister[Team]) -> None:
    any_object(request)
    for team in lister.list():
        print(team.size + 1, team.spec.image, team.status["ready"])
    with_snapshot: declctl.CacheSnapshot[Team] = lister.snapshot()
    print([each.size for each in with_snapshot])
"""
MISTAKES = {
    "a field that the spec does not have": "    print(preview.spec.imgae)",
    "a field that the status does not have": "    print(preview.status.redy + 1)",
    "a write that is not awaited": "    ctx.patch_status(models.Status(ready=1))",
    "a name that declctl does not have": "    print(declctl.Requue(after=1))",
    "a lister of another class": "    lister: declctl.Lister[models.Preview] = ctx.lister(models.Settings)",
}
WRONG = """\
import declctl
import models


async def reconcile(preview: models.Preview, ctx: declctl.Context) -> None:
"""


@pytest.mark.thorough
@pytest.mark.parametrize("check", [pyright, mypy])
def test_typed_handlers_are_clean_and_each_mistake_is_found(tmp_path: Path, check) -> None:
    """Both checkers, strict: no false alarm, and one error in the line of each mistake."""
    wrong = {f"wrong{number}": f"{WRONG}{line}\n" for number, line in enumerate(MISTAKES.values())}
    folder = author_folder(tmp_path, models=MODELS, handlers=HANDLERS, **wrong)
    files = [f"{name}.py" for name in ("models", "handlers", *wrong)]
    assert check(folder, *files) == {(f"{name}.py", WRONG.count("\n") + 1) for name in wrong}


def _modules(folder: Path, prefix: str) -> dict[str, str]:
    """The modules of a folder and of its tests, under names that no other folder has."""
    files = [*folder.glob("*.py"), *folder.glob("tests/*.py")]
    own = re.compile(rf"^from ({'|'.join(file.stem for file in files)}) import", re.MULTILINE)
    return {f"{prefix}_{file.stem}": own.sub(rf"from {prefix}_\1 import", file.read_text()) for file in files}


@pytest.mark.thorough
@pytest.mark.parametrize("check", [pyright, mypy])
def test_what_an_author_begins_with_is_clean(tmp_path: Path, check) -> None:
    """A new operator as it is made and with all edits of the docs, and the examples that have types."""
    for name in ("made", "taught"):
        assert (
            processes.run("new", "operator", "preview", name, "--group", "acme.dev", cwd=tmp_path).returncode
            == 0
        )
    shown = ("tutorial.md", "testing-in-python.md")
    for block in [block for page in shown for block in blocks(ROOT / "docs" / page)]:
        if DIRECTIVE.fullmatch(block.above):
            edit(tmp_path / "taught", block)
    folders = [tmp_path / "made", tmp_path / "taught"]
    folders += sorted(file.parent for file in (ROOT / "examples").glob("*/models.py"))
    modules: dict[str, str] = {}
    for number, folder in enumerate(folders):
        modules |= _modules(folder, f"author{number}")
    assert len(folders) == 5
    assert not [name for name, text in modules.items() if re.search(r"\bAny\b", text)]
    assert check(author_folder(tmp_path, **modules), *(f"{name}.py" for name in modules)) == set()
