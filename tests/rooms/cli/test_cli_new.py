"""`declctl new`: files to start from."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import declctl as package
from declctl.hooks.plugins import HOOKSPEC_VERSION
from declctl.testing import DefinitionWarning, running

pytestmark = pytest.mark.thorough  # new plugins are installed, and their tests run

ROOT = Path(__file__).parents[3]
OBJECT = "apiVersion: {0}\nkind: {1}\nmetadata: {{name: web, namespace: default}}\n"


def built_wheel(source: Path, target: Path) -> zipfile.ZipFile:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(build, cwd=source, check=True, capture_output=True, timeout=60)
    (wheel,) = target.glob("*.whl")
    return zipfile.ZipFile(wheel)


@pytest.mark.parametrize(
    ("resource", "api_version", "kind", "name"),
    [
        ("pods", "v1", "Pod", "pods"),
        ("deployments.apps", "apps/v1", "Deployment", "deployments"),
        ("configmaps", "v1", "ConfigMap", "configmaps"),
        ("batch/v1/CronJob", "batch/v1", "CronJob", "cronjobs"),
    ],
)
def test_a_new_manifest_is_valid_and_runs(declctl, folder, resource, api_version, kind, name):
    """The first two commands that are named next work, and each object leads to one line."""
    made = declctl("new", "manifest", "guard", "--resource", resource)
    assert (made.status, made.err) == (0, "")
    assert made.out.startswith("created guard/manifest.yaml\ncreated guard/handlers.py\nTry next:\n")
    # Only pods change by themselves in the sandbox.
    run = "--churn 2    # then edit guard/handlers.py, and save" if kind == "Pod" else "--once"
    assert f"  declctl validate guard\n  declctl run guard --sandbox {run}\n" in made.out
    checked = declctl("validate", "guard")
    assert (checked.status, checked.err) == (0, "")
    assert checked.out == "guard/manifest.yaml: guard is valid (1 resource, 1 handler)\n"
    (folder / "objects.yaml").write_text(OBJECT.format(api_version, kind))
    ran = declctl(
        "run", "guard", "--sandbox", "--once", "--objects", "objects.yaml", "--admin", "127.0.0.1:0"
    )
    assert (ran.status, ran.out) == (0, f"Added {name} default/web\n")


def test_a_new_manifest_of_a_custom_resource_is_valid(declctl, folder):
    """A kind that declctl does not know is named by apiVersion and kind; the advice names its definition."""
    made = declctl("new", "manifest", "--resource", "example.dev/v1/WebApp", "--name", "webapps")
    assert made.status == 0
    assert "--sandbox --objects CRD.yaml --objects OBJECTS.yaml" in made.out
    assert declctl("validate", ".").status == 0
    (watched,) = yaml.safe_load((folder / "manifest.yaml").read_text())["spec"]["resources"]
    assert watched == {"name": "webapp", "apiVersion": "example.dev/v1", "kind": "WebApp"}


@pytest.mark.parametrize("name", ["on", "123", "1e3", "null"])
def test_a_name_that_yaml_reads_otherwise_is_quoted(declctl, folder, name):
    """A controller or a kind may have a name that is a truth value or a number without quotes."""
    assert declctl("new", "manifest", "--name", name, "--resource", "example.dev/v1/No").status == 0
    assert declctl("validate", ".").status == 0


def test_the_folder_names_the_controller(declctl, folder):
    """A folder with capitals and spaces leads to a valid name; one without any letter asks for --name."""
    assert declctl("new", "manifest", "My Guard").status == 0
    made = yaml.safe_load((folder / "My Guard" / "manifest.yaml").read_text())
    assert made["metadata"]["name"] == "my-guard"
    refused = declctl("new", "manifest", "___")
    assert (refused.status, (folder / "___").exists()) == (2, False)
    assert "add --name" in refused.err


def test_nothing_is_overwritten(declctl, folder):
    """All files that exist are named, and the others are not written."""
    said = "declctl: Nothing is written, because of what exists: {}.\n"
    (folder / "handlers.py").write_text("mine")
    assert declctl.refused("new", "manifest") == said.format("handlers.py")
    assert [file.name for file in folder.iterdir()] == ["handlers.py"]
    (folder / "manifest.yaml").symlink_to("nowhere")
    assert "exists: manifest.yaml, handlers.py." in declctl("new", "manifest").err
    assert (folder / "handlers.py").read_text() == "mine"
    plugin = folder / "plugin"
    plugin.mkdir()
    for name in ("README.md", "pyproject.toml"):
        (plugin / name).write_text("mine")
    told = declctl.refused("new", "plugin", "slack", "plugin")
    assert told == said.format("plugin/pyproject.toml, plugin/README.md")
    assert sorted(file.name for file in plugin.iterdir()) == ["README.md", "pyproject.toml"]


def test_a_folder_gets_no_second_controller(declctl, hello):
    """It can't be run: the file that has one is named. So is a file where a folder would be made."""
    (hello / "manifest.yaml").rename(hello / "hello.yaml")
    said = declctl.refused("new", "manifest", "hello.yaml", "--name", "x")
    assert "hello.yaml: the files can't be written" in said
    (hello / "handlers.py").unlink()
    assert declctl.refused("new", "manifest").startswith("declctl: hello.yaml holds a Controller already")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("manifest", "--name", "My_Guard"), "use at most 63 lower-case letters, digits and dashes"),
        (("manifest", "--name", "a" * 64), "use at most 63 lower-case letters"),
        (("manifest", "--resource", "widgets"), "such as pods or deployments.apps; for a custom resource"),
        (("manifest", "--resource", "selfsubjectaccessreviews"), "no built-in kind has this name"),
        (("manifest", "--resource", "apps/v1/deployment"), "kinds are written in CamelCase"),
        (("handler", "Notify"), "use at most 63 lower-case letters"),
        (("handler", "class"), "use no word of Python"),
        (("handler", "1st"), "begin with a letter"),
        (("handler", "json"), '"json.py" would hide the module json of Python'),
        (("operator", "My_Operator"), "use at most 63 lower-case letters"),
        (("operator", "web", "--kind", "webApp"), "kinds are written in CamelCase"),
        (("operator", "web", "--kind", "Deployment"), "have a class of this name already"),
        (("operator", "web", "--group", "acme"), "A group is a domain, such as acme.dev"),
        (("operator", "web", "--plural", "Web Apps"), "use at most 63 lower-case letters"),
        (("plugin", "slack_bot"), "use at most 55 lower-case letters, digits and dashes"),
        (("plugin", "a" * 56), "use at most 55 lower-case letters"),
        (("plugin", "../x"), "use at most 55 lower-case letters"),
    ],
)
def test_a_wrong_name_is_told_what_is_allowed(declctl, hello, arguments, words):
    """The message has the rule, and nothing is written."""
    before = sorted(hello.iterdir())
    said = declctl.refused("new", *arguments)
    assert words in said
    assert said.count("\n") == 1
    assert sorted(hello.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "kind", "plural"),
    [
        (("preview", "--group", "acme.dev"), "Preview", "previews"),
        (("web-proxy", "my operator"), "WebProxy", "webproxies"),
        (("on", "--kind", "Gateway", "--plural", "gateways"), "Gateway", "gateways"),
    ],
)
def test_a_new_operator_reconciles_its_sample_and_passes_its_tests(declctl, folder, options, kind, plural):
    """The commands that are named next work: a run in the sandbox, and the tests."""
    made = declctl("new", "operator", *options)
    assert (made.status, made.err) == (0, "")
    name, place = options[0], folder / (options[1] if options[1] == "my operator" else options[0])
    assert yaml.safe_load((place / "crd.yaml").read_text())["spec"]["names"]["plural"] == plural
    checked = declctl("validate", str(place))
    assert f"{name} is valid (2 resources, 1 handler)" in checked.out, checked
    command = [sys.executable, "-m", "declctl", "run", str(place), "--sandbox", "--once"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "0 of 2 replicas are ready" in ran.stderr
    assert "warning" not in ran.stderr, ran.stderr
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    done = subprocess.run(tests, cwd=place, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, "3 passed" in done.stdout) == (0, True), done.stdout + done.stderr
    assert f"class {kind}(declctl.Object[Spec, Status]):" in (place / "models.py").read_text()


def test_an_edit_that_leaves_the_definition_behind_is_told(declctl, folder):
    """A server would drop the new field without a word. The log has the command that writes it again."""
    declctl.done("new", "operator", "web")
    models = folder / "web" / "models.py"
    with running(folder / "web") as controller:
        assert not [each for each in controller.log.lines if "DCL123" in each.event]
        models.write_text(
            models.read_text().replace("    replicas:", "    paused: bool = False\n    replicas:")
        )
        assert controller.reload().result == "Applied"
        (told,) = [each for each in controller.log.lines if "DCL123" in each.event]
    assert "spec.paused: the field is new" in told.event
    assert "declctl generate crd models:Web -o" in str(told.fields["suggestion"])
    # pytest shows no log of a test that passes, but warnings.
    said = r"spec.paused: the field is new; write it again: declctl generate crd"
    with pytest.warns(DefinitionWarning, match=said) as warned, running(folder / "web"):
        pass
    assert [each.filename for each in warned] == [__file__]


def test_a_sandbox_begins_with_what_is_beside_the_manifest(declctl, hello):
    """Definitions there, and the files of the folder `sandbox`; a fault in one of these is located."""
    (hello / "values.yaml").write_text("- {{ helm }}: [")  # of another tool
    (hello / "sandbox").mkdir()
    (hello / "sandbox" / "pods.yml").write_text(OBJECT.format("v1", "Pod"))
    run = ("run", "manifest.yaml", "--sandbox", "--once", "--admin", "127.0.0.1:0")
    assert declctl(*run).out == "default/web\n"
    (hello / "none.yaml").write_text("")
    assert declctl(*run, "--objects", "none.yaml").out == ""
    (hello / "sandbox" / "broken.yaml").write_text("a: [")
    refused = declctl(*run)
    assert (refused.status, "sandbox/broken.yaml:2:1: the YAML" in refused.err) == (1, True), refused


@pytest.mark.parametrize("resource", [None, "pods", "deployments.apps", "events.events.k8s.io"])
def test_a_new_handler_works_with_the_lines_that_are_printed(declctl, folder, resource):
    """The manifest stays as it is; with the printed lines in it, it is valid and has the handler."""
    declctl("new", "manifest", ".", "--name", "guard", "--resource", "events")
    before = (folder / "manifest.yaml").read_text()
    made = declctl("new", "handler", "notify-team", *(("--resource", resource) if resource else ()))
    assert (made.status, made.err) == (0, "created notify_team.py. Add this to the manifest:\n")
    assert (folder / "manifest.yaml").read_text() == before
    manifest, printed = yaml.safe_load(before), yaml.safe_load(made.out)
    for part, items in printed["spec"].items():
        manifest["spec"][part] += items
    (folder / "manifest.yaml").write_text(yaml.safe_dump(manifest))
    number = "1 resource" if resource is None else "2 resources"
    assert f"guard is valid ({number}, 2 handlers)" in declctl("validate", ".").out


def test_a_new_handler_needs_a_manifest_and_a_free_name(declctl, folder):
    """Without a manifest, with a handler of the name, or with a file of the name, nothing is written."""
    assert "The current folder has no manifest" in declctl("new", "handler", "notify").err
    declctl("new", "manifest", ".", "--name", "guard")
    assert 'has a handler "print-changes" already' in declctl("new", "handler", "print-changes").err
    (folder / "alerts").mkdir()
    assert "The folder alerts is a Python package" in declctl("new", "handler", "alerts").err
    (folder / "notify.py").write_text("mine")
    assert "exists: notify.py." in declctl.refused("new", "handler", "notify")
    assert (folder / "notify.py").read_text() == "mine"


def _install(plugin: Path) -> str:
    """Writes what pip would write of the package's metadata; returns the PYTHONPATH that has it."""
    project = tomllib.loads((plugin / "pyproject.toml").read_text())["project"]
    info = plugin / "site" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head)
    entries = (f"{name} = {target}\n" for name, target in project["entry-points"]["declctl"].items())
    (info / "entry_points.txt").write_text("[declctl]\n" + "".join(entries))
    return os.pathsep.join(map(str, (ROOT, plugin / "src", info.parent)))


@pytest.mark.parametrize(
    ("name", "distribution"), [("team-log", "declctl-team-log"), ("declctl-on", "declctl-on")]
)
def test_a_new_plugin_passes_its_tests(declctl, folder, name, distribution):
    """The tests of the package pass as it is made, and the plugin is listed."""
    made = declctl("new", "plugin", name)
    assert (made.status, made.err) == (0, "")
    assert f"  cd {distribution}\n" in made.out
    plugin = folder / distribution
    env = {**os.environ, "PYTHONPATH": _install(plugin)}
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    done = subprocess.run(tests, cwd=plugin, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, "13 passed" in done.stdout) == (0, True), done.stdout + done.stderr
    listing = [sys.executable, "-m", "declctl", "plugins", "list"]
    listed = subprocess.run(listing, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert [row.split()[:5] for row in listed.stdout.splitlines() if distribution in row] == [
        [distribution.removeprefix("declctl-"), distribution, "0.1.0", f">={HOOKSPEC_VERSION},<2", "Ready"]
    ]


def test_a_new_plugin_builds_and_wants_this_declctl(declctl, folder):
    """Its wheel has its module, and the range of its requirement holds the version that made it."""
    assert declctl("new", "plugin", "slack", "my plugin").status == 0
    plugin = folder / "my plugin"
    with built_wheel(plugin, folder / "dist") as packed:
        assert Path(str(packed.filename)).name.startswith("declctl_slack-0.1.0-")
        assert {"declctl_slack/__init__.py", "declctl_slack/py.typed"} <= set(packed.namelist())
    required, _ = tomllib.loads((plugin / "pyproject.toml").read_text())["project"]["dependencies"]
    assert Requirement(required).name == "declctl"
    assert package.__version__ in Requirement(required).specifier
    workflow = yaml.safe_load((plugin / ".github" / "workflows" / "test.yml").read_text())
    assert workflow["jobs"]["test"]["steps"][-1] == {"run": "python -m pytest"}
    assert workflow["jobs"]["test"]["env"]["DECLCTL"] == f"${{{{ vars.DECLCTL || '{required}' }}}}"


def test_the_wheel_has_what_commands_read(tmp_path):
    """`declctl new` and `explain` work where declctl is installed with pip, without a checkout."""
    with built_wheel(ROOT, tmp_path) as packed:
        packed_templates = {name for name in packed.namelist() if name.endswith(".tmpl")}
        assert packed.read("declctl/errors.md") == (ROOT / "docs" / "reference" / "errors.md").read_bytes()
        assert packed.read("_declctl_gen.py") == (ROOT / "_declctl_gen.py").read_bytes()
    templates = {str(path.relative_to(ROOT)) for path in (ROOT / "declctl").rglob("*.tmpl")}
    assert len(templates) > 5
    assert packed_templates == templates
