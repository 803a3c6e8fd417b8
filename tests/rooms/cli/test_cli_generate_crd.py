"""`declctl generate crd`, and what `validate` says to definitions that are not those of the classes."""

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from declctl.runtime.checking.check import check
from declctl.sandbox import SandboxThread
from declctl.testing import DefinitionWarning, running
from tests.rooms.cli.conftest import Command

MODELS = """\
from typing import Annotated

import declctl
import msgspec


class Spec(msgspec.Struct):
    image: str
    replicas: Annotated[int, msgspec.Meta(ge=1)] = 1


@declctl.custom_resource("acme.dev/v1", plural="previews")
class Preview(declctl.Object[Spec, dict[str, int]]): ...


@declctl.custom_resource("acme.dev/v1beta1", plural="previews", kind="Preview", storage=False)
class OldPreview(declctl.Object[Spec, dict[str, int]]): ...
"""
MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: previews}
spec:
  resources: [{name: previews, type: "models:Preview"}]
  handlers: [{name: h, resourceRef: {name: previews}, entryPoint: "handlers:f"}]
"""


@pytest.fixture(autouse=True)
def _bundle(write: Callable) -> None:
    write("models.py", MODELS)
    write("manifest.yaml", MANIFEST)
    write("handlers.py", "def f(obj): ...\n")


def test_a_class_becomes_a_definition(declctl: Command, folder: Path) -> None:
    """With the other versions of its module. It is the same each time; `deploy` and `validate` have it."""
    made = declctl("generate", "crd", "models:Preview")
    assert made.status == 0, made
    (definition,) = yaml.safe_load_all(made.out)
    assert [each["name"] for each in definition["spec"]["versions"]] == ["v1", "v1beta1"]
    written = declctl("generate", "crd", "models:OldPreview", "--manifest", "manifest.yaml", "-o", "crd.yaml")
    assert (written.status, written.err) == (0, "wrote crd.yaml\n")
    assert (folder / "crd.yaml").read_text("utf-8") == made.out
    assert declctl("validate", ".").status == 0
    (folder / "crd.yaml").unlink()
    deployed = declctl("generate", "deploy", ".")
    assert definition in list(yaml.safe_load_all(deployed.out))


DECORATOR = '@declctl.custom_resource("acme.dev/v1", plural="previews")'
COLUMN = '@declctl.custom_resource("acme.dev/v1", plural="previews", columns={"A": ".spec.imag"})'


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "image: str",
            "image: list[int | bool]",
            "models.py:8:5: error DCL122: spec.image[]: a server knows",
        ),
        (
            "    image: str",
            """    image: Annotated[str, declctl.rule("self != ''"), declctl.rule("self.size > 3")]""",
            """models.py:8:68: error DCL122: spec.image: rule "self.size > 3": type 'string' does not""",
        ),
        (
            "class Spec",
            '@declctl.rules(declctl.rule("self.replica > 3"))\nclass Spec',
            "models.py:7:29: error DCL122: spec: rule \"self.replica > 3\": undefined field 'replica'",
        ),
        (
            DECORATOR,
            f'{DECORATOR}\n@declctl.rules(declctl.rule("self.kind != \'\'", field_path=".spec.imag"))',
            'models.py:13:59: error DCL122: the object: fieldPath ".spec.imag": must be a valid path',
        ),
        (DECORATOR, COLUMN, "models.py:13:7: error DCL122: columns['A']"),
        ("(declctl.Object[", "(declctl.Objec[", "error DCL043: importing models raises AttributeError"),
        ("class Preview(", "class Previews(", "error DCL041: models has no 'Preview'"),
        (DECORATOR, "", "DCL122: models:Preview declares no custom"),
        ("import msgspec", "import msgspec, time; time.sleep(60)", "took longer than 1 s"),
    ],
)
def test_a_class_that_can_not_be_one_is_a_located_fault(
    declctl: Command, write: Callable, monkeypatch: pytest.MonkeyPatch, before: str, after: str, said: str
) -> None:
    """In the file of the class, with what to do."""
    if "sleep" in after:
        monkeypatch.setattr("declctl.cli.generate.crd.IMPORT_SECONDS", 1.0)
    write("models.py", MODELS.replace(before, after, 1))
    ended = declctl("generate", "crd", "models:Preview")
    assert (ended.status, ended.out) == (1, "")
    assert said in ended.err
    assert "DCL122: spec: rule" not in said or 'help: did you mean "replicas"?' in ended.err


def test_rules_that_are_not_checked_are_named(
    declctl: Command, folder: Path, write: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, with what to install: a misspelled field would pass otherwise, here and in the sandbox."""
    rule = '@declctl.rules(declctl.rule("self.replicas > 3"))\nclass Spec'
    without = 'import sys\n\nvars(sys)["modules"]["cel_expr_python"] = None\n'
    write("models.py", without + MODELS.replace("class Spec", rule, 1))
    made = declctl("generate", "crd", "models:Preview", "-o", "crd.yaml")
    assert made.status == 0
    assert made.err.count("models.py:17:7: warning DCL126: the rules of Preview in CEL are not checked") == 1
    assert made.err.count("help: pip install 'declctl[cel]'") == 1
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    (told,) = json.loads(declctl("validate", ".", "-o", "json").out)
    assert (told["code"], told["severity"], told["file"]) == ("DCL126", "warning", "models.py")
    said = r"rules of Preview .*pip install 'declctl\[cel\]'"
    with pytest.warns(DefinitionWarning, match=said) as warned, running(folder):
        pass
    assert len(warned) == 1
    write("other/crd.yaml", (folder / "crd.yaml").read_text("utf-8"))
    ran = declctl("run", ".", "--sandbox", "--once", "--objects", "other/crd.yaml", "--admin", "127.0.0.1:0")
    assert "rules of previews.acme.dev in CEL are not checked" in ran.err, ran
    # A definition without a class is named itself.
    text = (folder / "crd.yaml").read_text("utf-8").replace("kind: Preview\n", "kind: Other\n")
    (folder / "crd.yaml").write_text(text, "utf-8")
    messages = [each["message"] for each in json.loads(declctl("validate", ".", "-o", "json").out)]
    assert [each[:40] for each in messages] == [
        "the rules of the definition of Other in ",
        "the rules of Preview in CEL are not chec",
    ]


def test_a_rule_of_a_file_is_compiled(declctl: Command, folder: Path) -> None:
    """At its line, also for a kind without a class; `run` warns of it, as code runs without a definition."""
    (definition,) = yaml.safe_load_all(declctl("generate", "crd", "models:Preview").out)
    definition["spec"]["names"]["kind"] = "Other"
    spec = definition["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["x-kubernetes-validations"] = [{"rule": "self.replicas > 0 && self.imag != ''"}]
    (folder / "crd.yaml").write_text(yaml.safe_dump(definition), "utf-8")
    ended = declctl("validate", ".", "-o", "json")
    (fault,) = json.loads(ended.out)
    assert (ended.status, fault["code"], fault["severity"]) == (1, "DCL125", "error")
    assert fault["message"].endswith("&& self.imag != ''\": undefined field 'imag'")
    assert fault["suggestion"] == 'did you mean "image"?'
    assert (
        "rule: self.replicas > 0" in (folder / "crd.yaml").read_text("utf-8").splitlines()[fault["line"] - 1]
    )
    (warned,) = check(".", at=folder).diagnostics
    assert (warned.code, warned.severity, warned.line) == ("DCL125", "warning", fault["line"])


def test_a_definition_of_a_file_is_compared_with_the_class(declctl: Command, folder: Path) -> None:
    """Each difference is at its line: an error if the file lets pass what the class refuses."""
    declctl("generate", "crd", "models:Preview", "-o", "crd.yaml")
    text = (folder / "crd.yaml").read_text("utf-8")
    (folder / "crd.yaml").write_text(text.replace("minimum: 1", "minimum: 0", 1), "utf-8")
    ended = declctl("validate", ".", "-o", "json")
    (fault,) = json.loads(ended.out)
    assert (ended.status, fault["code"], fault["severity"]) == (1, "DCL123", "error")
    assert fault["message"].endswith("v1.spec.replicas: minimum: 0 → 1")
    line = (folder / "crd.yaml").read_text("utf-8").splitlines()[fault["line"] - 2]
    assert (fault["file"], line.strip()) == ("crd.yaml", "replicas:")
    (folder / "crd.yaml").unlink()
    other = folder / "elsewhere.txt"
    other.write_text(text.replace("default: 1", "default: 2", 1), "utf-8")
    (fault,) = json.loads(declctl("validate", ".", "--crds", "elsewhere.txt", "-o", "json").out)
    assert (fault["file"], fault["severity"]) == ("elsewhere.txt", "warning")
    assert declctl("validate", ".", "--crds", "nowhere.yaml").status == 2


def test_the_definition_of_a_cluster_is_compared_with_the_class(declctl: Command, folder: Path) -> None:
    """Objects that are stored may not fit the class: that is a warning, at the resource."""
    (definition,) = yaml.safe_load_all(declctl("generate", "crd", "models:Preview").out)
    served = copy.deepcopy(definition)
    for version in served["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["replicas"]["minimum"] = 0
    served["spec"]["names"]["shortNames"] = ["pv"]
    with SandboxThread() as sandbox:
        sandbox.load([served])
        (folder / "kubeconfig").write_text(json.dumps(sandbox.kubeconfig()), "utf-8")
        ended = declctl("validate", ".", "--cluster", "--kubeconfig", "kubeconfig", "-o", "json")
    found = [(each["code"], each["line"], each["severity"]) for each in json.loads(ended.out)]
    assert (ended.status, sorted(found)) == (
        0,
        [("DCL123", 5, "warning"), ("DCL124", 5, "warning")],
    )
