"""Shell completion: as a shell asks for it, and what it completes."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from declctl.cli import completion
from declctl.codes import CODES

ROOT = Path(__file__).parents[3]
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: shop}
spec:
  namespaces: [team-a, team-b]
  resources:
    - {name: pods, apiVersion: v1, kind: Pod}
    - {name: nodes, apiVersion: v1, kind: Node, namespaces: [team-c]}
  handlers:
    - {name: notify, resourceRef: {name: pods}, entryPoint: "handlers:fails_at_import"}
    - {name: nag, resourceRef: {name: pods}, entryPoint: "handlers:fails_at_import"}
  schedules: [{name: nightly, entryPoint: "handlers:nightly", cron: "@daily"}]
"""
CONTEXTS = {"contexts": [{"name": "staging", "context": {}}, {"name": "production", "context": {}}]}


@pytest.fixture(name="shop")
def _shop(folder: Path, write: Callable) -> Path:
    """The current folder, with a manifest whose handlers must not be imported, and a kubeconfig."""
    write("manifest.yaml", MANIFEST)
    write("handlers.py", "raise SystemExit('imported')\n")
    write(".kube/config", yaml.safe_dump(CONTEXTS))
    return folder


def of_process(folder: Path, *command: str, **env: str) -> str:
    """What a Python process prints, in this folder."""
    # A PYTHONPATH, as the current folder is not that of the checkout.
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(ROOT), **env}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("declctl expl", ["explain"]),
        ("declctl explain spec.handl", ["spec.handlers", "spec.handlers."]),
        (
            "declctl explain spec.handlers.retry.m",
            ["spec.handlers.retry.maxAttempts", "spec.handlers.retry.maxBackoff"],
        ),
        ("declctl explain DCL10", [code for code in sorted(CODES) if code.startswith("DCL10")]),
        ("declctl explain dcl10", [code.lower() for code in sorted(CODES) if code.startswith("DCL10")]),
        ("declctl explain Relo", ["Reloaded"]),
        ("declctl explain ControllerTest.spec.m", ["ControllerTest.spec.manifest"]),
        ("declctl explain Dig", ["DigestNotAllowed"]),
        ("declctl tap n", ["nodes", "notify", "nag"]),
        ("declctl tap --handler not", ["notify"]),
        ("declctl tap --namespace team-", ["team-a", "team-b", "team-c"]),
        ("declctl requeue na", ["nag"]),
        ("declctl trigger ", ["nightly"]),
        ("declctl why po", ["pods/"]),
        ("declctl finalizers list . --handler na", ["nag"]),
        ("declctl run . --context ", ["staging", "production"]),
        ("declctl graph . -o m", ["mermaid"]),
    ],
)
def test_a_tab_completes(complete, shop, line, candidates):
    """As bash asks for it: names of the manifest, contexts, fields and codes; no handler is imported."""
    ended = complete(line)
    assert (ended.out.split(), ended.err) == (candidates, "")


def test_a_context_is_that_of_the_named_kubeconfig(complete, shop, monkeypatch):
    """--kubeconfig before it counts, then $KUBECONFIG, of which all files are read."""
    for name in ("one", "two"):
        (shop / name).write_text(yaml.safe_dump({"contexts": [{"name": f"of-{name}", "context": {}}]}))
    assert complete("declctl run . --kubeconfig one --context ").out.split() == ["of-one"]
    monkeypatch.setenv("KUBECONFIG", f"one{os.pathsep}two")
    assert complete("declctl run . --context ").out.split() == ["of-one", "of-two"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "line", ["declctl explain spec.handlers.re", "declctl tap n", "declctl run . --context "]
)
def test_a_tab_is_answered_quickly(shop, line):
    """In less than 300 ms on a machine without other work; twice as much processor time is allowed here."""
    words = str(len(line.split(" ")) - 1)
    asked = {"_DECLCTL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": words}

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert of_process(shop, sys.executable, "-m", "declctl", **asked)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)

    assert min(seconds() for _ in range(3)) < 0.6


@pytest.mark.parametrize("complete", ["handlers('')", "explanations('spec.')", "contexts(None, '')"])
def test_a_tab_loads_nothing_that_is_slow(shop, complete):
    """No client of a cluster, no server, no code of users; for names not even the reading of manifests."""
    program = f"""
import sys
from declctl.cli import completion
assert completion.{complete}
slow = {{"kubernetes", "aiohttp", "rich", "prometheus_client", "jsonschema", "handlers", "declctl.runtime"}}
if "explanations" not in {complete!r}:
    slow |= {{"declctl.manifest", "msgspec"}}
print(sorted(slow & set(sys.modules)))
"""
    assert of_process(shop, sys.executable, "-c", program) == "[]\n"


NAMES = "kind: Controller\nspec: {{handlers: [{{name: {}}}]}}\n"


def test_candidates_have_a_help(shop):
    """Zsh and fish show it beside them. There is nothing below a field that does not exist."""
    assert completion.handlers("no") == [("notify", "handler handlers:fails_at_import")]
    assert completion.resources("p") == [("pods", "resource Pod")]
    assert ("DCL101", CODES["DCL101"]) in completion.explanations("DCL10")
    assert completion.explanations("spec.nothing.") == []
    assert [name for name, _ in completion.explanations("")] == ["spec", "spec."]


@pytest.mark.parametrize(
    "text",
    [
        "spec: [",
        "kind: Controller\nspec: {handlers: {name: x}}\n",
        "kind: Controller\nspec: {handlers: [1, {name: [x]}, {name: 7}]}\n",
        "kind: Service\nspec: {handlers: [{name: x}]}\n",
        "a: &a [*a]\n",
        "[" * 100_000,
        "",
    ],
)
def test_a_manifest_that_is_no_manifest_completes_to_nothing(folder, text):
    """A message would stand in the middle of the command line."""
    (folder / "manifest.yaml").write_text(text)
    assert completion.handlers("") == completion.handlers_and_resources("") == completion.namespaces("") == []


@pytest.mark.parametrize(
    ("files", "found"),
    [
        # What `validate` refuses still has names; a file before it that is broken does not hide them.
        ({"a.yaml": "{", "b.yml": f"{NAMES.format('half-done')}---\n["}, ["half-done"]),
        # A shell reads each line as a candidate of its own.
        ({"m.yaml": NAMES.format('"a\\nrm -rf"}, {name: "b"')}, ["b"]),
        # A large file would take longer than a user waits.
        ({"m.yaml": NAMES.format("a") + "#" * (1 << 20)}, []),
    ],
    ids=["half done", "two lines", "large"],
)
def test_names_are_read_while_the_manifest_is_edited(folder, write, files, found):
    """Whatever stands in the files, a candidate is one that a shell can use."""
    for name, text in files.items():
        write(name, text)
    assert [name for name, _ in completion.handlers("")] == found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(declctl, folder, monkeypatch, shell):
    """What `declctl --install-completion` installs in a zsh or a fish."""
    monkeypatch.setenv("_DECLCTL_COMPLETE", f"source_{shell}")
    assert f"_DECLCTL_COMPLETE=complete_{shell}" in declctl.done().out


def test_installed_completion_works_in_bash(shop):
    """From the installation to the candidates, in a shell of its own."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    program = shop / "bin" / "declctl"
    program.parent.mkdir()
    program.write_text(f'#!{bash}\nexec "{sys.executable}" -m declctl "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    script = """
        declctl --install-completion bash >/dev/null
        source "$HOME/.bash_completions/declctl.sh"
        COMP_WORDS=(declctl tap no) COMP_CWORD=2
        _declctl_completion declctl
        echo "${COMPREPLY[@]}"
    """
    assert of_process(shop, bash, "--norc", "-c", script, PATH=path).strip() == "nodes notify"
