"""What README and docs/ show is true: commands run, manifests are valid, snippets work, links lead on."""

import ast
import asyncio
import inspect
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from markdown import ROOT, Block, blocks, leads_somewhere, links, pages
from processes import environment
from walkthrough import DIRECTIVE

from declctl.manifest import ManifestSource, load, schema
from declctl.sandbox import SandboxThread
from declctl.transport import Client

_ALL = [block for page in pages() for block in blocks(page)]
_MORE = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/reference/errors.md")
_LINKING = [*pages(), *(ROOT / name for name in _MORE)]
_HEAD = "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: shown}\n"
_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web-0", "namespace": "team-a"},
    "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "nginx"}]},
}


def _of(language: str) -> list[Block]:
    """All blocks of a language, but for those that are a file or a part of one: test_tutorial has them."""
    return [block for block in _ALL if block.language == language and not DIRECTIVE.fullmatch(block.above)]


@pytest.mark.parametrize("block", _of("yaml"), ids=str)
def test_yaml_is_valid(block: Block, tmp_path: Path) -> None:
    """A manifest, or the spec of one, loads without an error; anything else is YAML at least."""
    text = _HEAD + block.text if block.text.startswith("spec:") else block.text
    documents = list(yaml.safe_load_all(text))
    if any(isinstance(one, dict) and one.get("kind") == "Controller" for one in documents):
        file = tmp_path / "manifest.yaml"
        file.write_text(text, "utf-8")
        load(ManifestSource.read(str(file)))
    for one in documents:
        if isinstance(one, dict) and one.get("kind") == "ControllerTest":
            Draft202012Validator(schema("ControllerTest")).validate(one)


@pytest.mark.parametrize("block", _of("python"), ids=str)
def test_python_runs(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers are defined without an error; snippets that await run against a sandbox with a pod in it."""
    monkeypatch.chdir(ROOT)
    compiled = compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {"__name__": "shown"}
    if not compiled.co_flags & inspect.CO_COROUTINE:
        exec(compiled, names)
        return
    with SandboxThread() as server:
        server.load([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}}, _POD])
        asyncio.run(_run(compiled, names, server.kubeconfig()))


async def _run(compiled: Any, names: dict[str, Any], kubeconfig: dict[str, Any]) -> None:
    client = await Client.from_kubeconfig_dict(kubeconfig)
    try:
        names["client"] = client
        async with asyncio.timeout(20):
            await eval(compiled, names)
    finally:
        await client.close()


def _run_declctl(*words: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "declctl", *words]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env=environment(), timeout=60, check=False
    )


def _commands() -> list[tuple[Block, Block | None]]:
    """Each block that is marked to run, with the output that is shown below it."""
    found: list[tuple[Block, Block | None]] = []
    for block, below in zip(_ALL, [*_ALL[1:], None], strict=True):
        if block.language == "sh" and block.marked:
            shown = below if below and below.file == block.file and below.language == "text" else None
            found.append((block, shown))
    return found


@pytest.mark.parametrize(("block", "shown"), _commands(), ids=lambda value: str(value) if value else "")
def test_commands_run_and_print_what_is_shown(block: Block, shown: Block | None) -> None:
    """Each line ends with 0, or with what its comment says, and prints the lines that are shown below."""
    said = ""
    for line in block.text.splitlines():
        command, _, comment = line.partition("#")
        words = shlex.split(command)
        assert words[0] == "declctl", f"{block}: only declctl is run"
        done = _run_declctl(*words[1:])
        expected = int(comment.split()[-1]) if comment.strip().startswith("exits ") else 0
        assert done.returncode == expected, f"{block}: {line}\n{done.stderr}"
        said += done.stdout + done.stderr
    for line in shown.text.splitlines() if shown else []:
        for piece in line.split("…"):
            assert piece.strip() in said, f"{block}: {line!r} is not printed"


def test_the_error_that_the_readme_shows_is_real(tmp_path: Path) -> None:
    """The manifest of the README with one slip gives the very message that stands below it."""
    shown = blocks(ROOT / "README.md")
    (manifest,) = [block.text for block in shown if block.language == "yaml"]
    (error,) = [block.text for block in shown if "error DCL" in block.text]
    assert _run_declctl("new", "operator", "preview", "--group", "acme.dev", cwd=tmp_path).returncode == 0
    faulty = manifest.replace("resourceRef", "resuorceRef", 1)
    (tmp_path / "preview" / "manifest.yaml").write_text(faulty, "utf-8")
    assert _run_declctl("validate", "manifest.yaml", cwd=tmp_path / "preview").stderr == (
        f"{error}1 error; `declctl explain DCL012` tells more about it\n"
    )


def test_the_readme_runs_something() -> None:
    """The first page has commands that are tried here, so that it can't go stale unseen."""
    assert [block for block, _ in _commands() if block.file.name == "README.md"]


def test_pictures_are_small() -> None:
    """A reader on a slow line sees a page of the documentation whole."""
    pictures = [*(ROOT / "docs").glob("*.png"), *(ROOT / "docs").glob("*.svg")]
    assert pictures
    assert [picture.name for picture in pictures if picture.stat().st_size > 200_000] == []


@pytest.mark.parametrize(
    "page", [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "reference").glob("*.md")], ids=str
)
def test_a_page_says_for_whom_it_is(page: Path) -> None:
    """A reader knows after one sentence whether to read on."""
    assert page.read_text("utf-8").split("\n\n")[1].startswith(("For ", "This page is for "))


@pytest.mark.parametrize("page", _LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """No link within the repository is dead, and no heading that it names is gone."""
    assert [link for link in links(page) if not leads_somewhere(page, link)] == []
