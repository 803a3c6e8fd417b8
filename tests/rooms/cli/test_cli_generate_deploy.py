"""`declctl generate deploy` and `alerts`: the objects, and what can't be deployed."""

import base64
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from declctl.admin.metrics import catalog
from declctl.cli.generate.alerts import ALERTS
from declctl.cli.main import status_of as main
from declctl.testing import ConfigMapDir

EXAMPLES = Path(__file__).parents[3] / "examples"
HEAD = "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: guard}\nspec:\n"
PODS = "  resources: [{name: pods, apiVersion: v1, kind: Pod}]\n"


def handler(entry_point: str) -> str:
    """The part of a manifest with a handler."""
    return f"  handlers: [{{name: h, resourceRef: {{name: pods}}, entryPoint: {entry_point}}}]\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a manifest and a handler."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "manifest.yaml", HEAD + PODS + handler("handlers:f"))
    write(tmp_path, "handlers.py", "def f(obj): ...\n")
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    """Write a file, and the folders above it."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, "utf-8")


Objects = dict[tuple[str, str], dict[str, Any]]


def deployed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Objects:
    """The objects by kind and name."""
    assert main(["generate", "deploy", *(arguments or (".",))]) == 0
    printed = yaml.safe_load_all(capsys.readouterr().out)
    return {(each["kind"], each["metadata"]["name"]): each for each in printed}


def pod_of(objects: Objects) -> dict[str, Any]:
    """The pod of the Deployment."""
    return objects["Deployment", "guard"]["spec"]["template"]["spec"]


def mounted(objects: Objects, folder: Path) -> Path:
    """The folder that a pod would find."""
    (volume,) = [each for each in pod_of(objects)["volumes"] if each["name"] == "bundle"]
    sources = volume["projected"]["sources"] if "projected" in volume else [volume]
    files: dict[str, str] = {}
    for source in sources:
        if "secret" in source:
            continue
        config_map = objects["ConfigMap", source["configMap"]["name"]]
        data = dict(config_map.get("data", {}))
        data |= {
            key: base64.b64decode(text).decode("latin-1")
            for key, text in config_map.get("binaryData", {}).items()
        }
        items = source["configMap"].get("items") or [{"key": key, "path": key} for key in data]
        files |= {item["path"]: data[item["key"]] for item in items}
    return ConfigMapDir(folder, files).path


def test_the_files_are_in_the_config_map_as_they_are(capsys) -> None:
    """With every character, and in the folder that the process is started with."""
    objects = deployed(capsys, str(EXAMPLES / "07-in-cluster"))
    data = objects["ConfigMap", "restarts"]["data"]
    names = ("manifest.yaml", "handlers.py")
    assert data == {name: (EXAMPLES / "07-in-cluster" / name).read_text("utf-8") for name in names}
    pod = objects["Deployment", "restarts"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][:2] == ["run", "/etc/declctl/manifest.yaml"]
    assert pod["volumes"][0] == {"name": "bundle", "configMap": {"name": "restarts"}}


@pytest.mark.parametrize(
    "text",
    [
        "x = 'ü \u2014 \U0001f98a'\n",
        "x = 1  \n\n  \n",
        "x = '\u202e\u200b'\n",
        "x = 1\r\ny = 2\r\n",
        "x = '\x0c\x1b'",
        "# a\n\ty\n",
    ],
)
def test_any_text_arrives_as_it_was(here: Path, capsys, text: str) -> None:
    """Also one that YAML can't write as a block, or that a terminal should not see."""
    source = f"def f(obj): ...\nZ = {text!r}\n" + (text if "\t" not in text else "")
    (here / "handlers.py").write_bytes(source.encode())
    objects = deployed(capsys)
    assert objects["ConfigMap", "guard"]["data"]["handlers.py"] == source


@pytest.mark.parametrize("name", ["y", "n", "1e3", "09", "7e10", "12"])
def test_a_name_is_a_text_for_kubectl_too(here: Path, capsys, name: str) -> None:
    """Its YAML has more booleans and numbers than PyYAML, which would leave the quotes out."""
    assert (
        main(["generate", "deploy", ".", "--namespace", name, "--name", name, "--secret", f"/x={name}"]) == 0
    )
    printed = capsys.readouterr().out
    assert f"namespace: '{name}'\n" in printed
    assert re.findall(rf"(?:name|[nN]ame.*|instance|code): {name}$", printed, re.MULTILINE) == []


def test_handlers_in_packages_are_mounted_in_their_folders(here: Path, capsys) -> None:
    """Keys of a ConfigMap have no folders; the items of the volume do. The mounted bundle is valid."""
    write(here, "manifest.yaml", HEAD + PODS + handler("team.pods:f"))
    write(here, "team/__init__.py", "")
    write(here, "team/pods.py", "from team.deep.help import g\ndef f(obj): g()\n")
    write(here, "team/deep/help.py", "def g(): ...\n")
    objects = deployed(capsys)
    assert set(objects["ConfigMap", "guard"]["data"]) == {
        "manifest.yaml",
        "team.__init__.py",
        "team.pods.py",
        "team.deep.help.py",
    }
    folder = mounted(objects, here / "mounted")
    assert (folder / "team" / "deep" / "help.py").read_text("utf-8") == "def g(): ...\n"
    assert main(["validate", str(folder / "manifest.yaml")]) == 0


def test_large_bundles_take_several_config_maps(here: Path, capsys) -> None:
    """Each is below a MiB, and the volume has all of them."""
    for number in range(3):
        write(here, f"part{number}.py", f"# {'x' * 600_000}\n")
    write(here, "handlers.py", "import part0, part1, part2\ndef f(obj): ...\n")
    objects = deployed(capsys)
    maps = {name: each for (kind, name), each in objects.items() if kind == "ConfigMap"}
    assert list(maps) == ["guard", "guard-2", "guard-3"]
    assert all(sum(map(len, each["data"].values())) < 2**20 for each in maps.values())
    folder = mounted(objects, here / "mounted")
    assert sorted(path.name for path in folder.glob("*.py")) == [
        "handlers.py",
        "part0.py",
        "part1.py",
        "part2.py",
    ]


def test_a_file_that_no_config_map_holds_is_refused(here: Path, capsys) -> None:
    """With its size, and where to put it."""
    write(here, "handlers.py", f"def f(obj): ...\n# {'x' * 1_100_000}\n")
    assert main(["generate", "deploy", "."]) == 2
    said = capsys.readouterr().err
    assert "handlers.py has 1,100,01" in said
    assert "declctl generate image" in said


def test_a_module_that_no_key_can_name_is_refused(here: Path, capsys) -> None:
    """A letter with an accent, for example."""
    write(here, "manifest.yaml", HEAD + PODS + handler("größe:f"))
    write(here, "größe.py", "def f(obj): ...\n")
    assert main(["generate", "deploy", "."]) == 2
    assert "größe.py can't be in a ConfigMap" in capsys.readouterr().err


def test_a_source_in_another_encoding_stays_as_it_is(here: Path, capsys) -> None:
    """As bytes."""
    source = "# -*- coding: latin-1 -*-\ndef f(obj): return 'ü'\n".encode("latin-1")
    (here / "handlers.py").write_bytes(source)
    objects = deployed(capsys)
    assert base64.b64decode(objects["ConfigMap", "guard"]["binaryData"]["handlers.py"]) == source


def test_the_pod_is_restricted_and_ends_after_the_drain(here: Path, capsys) -> None:
    """The pod security standard `restricted`, a read-only root, probes, and time for running calls."""
    pod = pod_of(deployed(capsys))
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["terminationGracePeriodSeconds"] == 30
    assert {"startupProbe", "livenessProbe", "readinessProbe", "resources"} <= set(container)
    # The default address is not reached by the kubelet.
    assert "--admin=:8081" in container["args"]


ADMIN_FILES = (
    "  admin: {tls: {certFile: /run/admin/a.pem, keyFile: /run/admin/b.pem}, tokenFile: /run/token/t}\n"
)
SECRETS = ("--tls-secret", "guard-tls", "--token-secret", "guard-token")


def test_files_of_the_admin_address_are_those_of_secrets(here: Path, capsys) -> None:
    """Each is at the path of the manifest, whatever its key is called, and nothing is left to be mounted."""
    write(here, "manifest.yaml", HEAD + PODS + handler("handlers:f") + ADMIN_FILES)
    assert main(["generate", "deploy", ".", *SECRETS]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(captured.out)}
    assert files_of_secrets(pod_of(objects)) == {
        "/run/admin/a.pem": ("guard-tls", "tls.crt"),
        "/run/admin/b.pem": ("guard-tls", "tls.key"),
        "/run/token/t": ("guard-token", "token"),
    }


def test_files_of_two_secrets_may_be_in_one_folder(here: Path, capsys) -> None:
    """A folder is one volume, with all that it needs."""
    admin = ADMIN_FILES.replace("/run/token/t", "/run/admin/token")
    write(here, "manifest.yaml", HEAD + PODS + handler("handlers:f") + admin)
    objects = deployed(capsys, ".", *SECRETS)
    assert set(files_of_secrets(pod_of(objects))) == {
        "/run/admin/a.pem",
        "/run/admin/b.pem",
        "/run/admin/token",
    }


def files_of_secrets(pod: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Secret and key of each file that a pod has of projected Secrets, by its path."""
    folders = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    return {
        f"{folders[volume['name']]}/{item['path']}": (source["secret"]["name"], item["key"])
        for volume in pod["volumes"]
        if "projected" in volume
        for source in volume["projected"]["sources"]
        for item in source["secret"]["items"]
    }


def test_a_token_without_a_file_in_the_manifest_is_a_variable(here: Path, capsys) -> None:
    """As the Helm chart has it."""
    (container,) = pod_of(deployed(capsys, ".", "--token-secret", "guard-token"))["containers"]
    reference = {"secretKeyRef": {"name": "guard-token", "key": "token"}}
    assert container["env"] == [{"name": "DECLCTL_ADMIN_TOKEN", "valueFrom": reference}]


def test_a_variable_of_an_option_is_there_once(here: Path, capsys, monkeypatch) -> None:
    """Also if the manifest reads it: an API server refuses a container that has it twice."""
    monkeypatch.setenv("DECLCTL_ADMIN_TOKEN", "x")
    monkeypatch.setenv("PYTHONPATH", "x")
    labels = 'team: "${env:DECLCTL_ADMIN_TOKEN}", path: "${env:PYTHONPATH}"'
    pods = PODS.replace("kind: Pod}", f"kind: Pod, labelSelector: {{matchLabels: {{{labels}}}}}}}")
    write(here, "manifest.yaml", HEAD + pods + handler("handlers:f"))
    assert main(["generate", "deploy", ".", "--token-secret", "guard-token", "--plugin-image", "p:1"]) == 0
    captured = capsys.readouterr()
    assert "from the Secret guard" not in captured.err
    (deployment,) = [each for each in yaml.safe_load_all(captured.out) if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert [each["name"] for each in container["env"]] == ["DECLCTL_ADMIN_TOKEN", "PYTHONPATH"]


@pytest.mark.parametrize(
    ("admin", "said"),
    [
        ("tls: {certFile: /run/a.pem, keyFile: /run/a.pem}", "spec.admin names /run/a.pem twice"),
        (
            "tls: {certFile: a.pem, keyFile: /run/b.pem}",
            "a.pem of spec.admin can't be mounted in /etc/declctl",
        ),
        ("tls: {certFile: /etc/declctl/s/a, keyFile: /run/b}", "can't be mounted in /etc/declctl"),
    ],
)
def test_paths_of_the_manifest_that_no_volume_can_have_are_named(
    here: Path, capsys, admin: str, said: str
) -> None:
    """The options name Secrets; the paths are those of the manifest."""
    write(here, "manifest.yaml", HEAD + PODS + handler("handlers:f") + f"  admin: {{{admin}}}\n")
    assert main(["generate", "deploy", ".", "--tls-secret", "guard-tls"]) == 2
    assert said in capsys.readouterr().err


def test_a_plugin_has_its_secrets_and_a_folder_to_write_to(here: Path, capsys) -> None:
    """The root is read-only, and the folder has a limit if one is given."""
    pod = pod_of(
        deployed(
            capsys, ".", "--secret", "/etc/webhook=hook", "--writable", "/spool=64Mi", "--writable", "/var/x/"
        )
    )
    mounts = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert mounts["/etc/webhook"]["readOnly"] is True
    assert volumes[mounts["/etc/webhook"]["name"]]["secret"] == {"secretName": "hook"}
    assert "readOnly" not in mounts["/spool"]
    assert volumes[mounts["/spool"]["name"]]["emptyDir"] == {"sizeLimit": "64Mi"}
    assert volumes[mounts["/var/x"]["name"]]["emptyDir"] == {}


def test_only_bundles_of_a_list_run(here: Path, capsys) -> None:
    """The list is mounted, and on the command line: no edit of the manifest takes it away."""
    pod = pod_of(deployed(capsys, ".", "--allowed-digests", "reviewed"))
    assert "--allowed-digests=/etc/declctl-allowed/digests" in pod["containers"][0]["args"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "allowed"]
    assert volume["configMap"] == {"name": "reviewed"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tls-secret", "x"], "--tls-secret is for spec.admin.tls"),
        (["--token-secret", "No_Name"], '--token-secret: "No_Name"'),
        (["--secret", "/etc/x"], "write DIR=SECRET"),
        (["--secret", "/etc/x=a", "--secret", "/etc/x/=b"], "--secret has /etc/x twice"),
        (["--secret", "/a=b", "--writable", "/a"], "Two volumes would be mounted at /a"),
        (["--writable", "/etc/declctl/spool"], "/etc/declctl is read-only"),
        (["--writable", "spool"], 'at "spool": name an absolute path'),
        (["--writable", "/a/../etc/declctl"], 'without ".."'),
        (["--writable", "/a:b"], "without colons"),
        (["--writable", "/"], "at the root"),
        (["--writable", "/tmp"], "Two volumes would be mounted at /tmp"),
        (["--writable", "/spool=much"], '--writable: "much" is not a byte size'),
    ],
)
def test_a_volume_that_no_pod_can_have_is_refused(
    here: Path, capsys, arguments: list[str], said: str
) -> None:
    """When it is generated, and not when the pod can't start."""
    assert main(["generate", "deploy", ".", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_the_namespace_comes_first_if_it_is_asked_for(here: Path, capsys) -> None:
    """What is in it can be applied then. It has no labels: one that is there stays as it is."""
    assert not any(kind == "Namespace" for kind, _ in deployed(capsys))
    objects = deployed(capsys, ".", "--namespace", "team-a", "--create-namespace")
    assert next(iter(objects.values())) == {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "team-a"},
    }


def test_an_address_that_probes_reach_stays(here: Path, capsys) -> None:
    """The port of the container is that of the manifest."""
    write(
        here,
        "manifest.yaml",
        HEAD + PODS + handler("handlers:f") + "  admin: {bindAddress: '0.0.0.0:9000'}\n",
    )
    (container,) = pod_of(deployed(capsys))["containers"]
    assert container["ports"] == [{"name": "admin", "containerPort": 9000}]
    assert not any(argument.startswith("--admin") for argument in container["args"])


def test_probes_of_an_address_with_tls_are_https(here: Path, capsys) -> None:
    """A kubelet that asks over plain HTTP would restart the pod again and again."""
    tls = "  admin: {tls: {certFile: /run/tls.crt, keyFile: /run/tls.key}}\n"
    write(here, "manifest.yaml", HEAD + PODS + handler("handlers:f") + tls)
    (container,) = pod_of(deployed(capsys))["containers"]
    probes = [container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert [each["scheme"] for each in probes] == ["HTTPS"] * 3


@pytest.mark.parametrize(
    ("more", "is_rollout"),
    [
        ("  reload: {settle: 1s}\n", False),
        ("  writes: {qps: 10}\n", False),
        ("  admin: {allowedHosts: [a.b]}\n", False),
        ("  admin: {bindAddress: '0.0.0.0:8081'}\n", True),
        ("  metrics: {bindAddress: '0.0.0.0:9090'}\n", True),
        ("  admin: {tokenFile: /run/token}\n", True),
        ("  admin: {authorization: Kubernetes}\n", True),
        ("  admin: {tls: {certFile: /run/tls.crt, keyFile: /run/tls.key}}\n", True),
        ("  leaderElection: {enabled: true}\n", True),
        ("  lifecycle: {startup: [{entryPoint: 'handlers:f'}]}\n", True),
    ],
)
def test_only_what_takes_a_restart_changes_the_pod(here: Path, capsys, more: str, is_rollout: bool) -> None:
    """An edit of anything else is a reload."""
    text = HEAD + PODS + handler("handlers:f")
    before = deployed(capsys)["Deployment", "guard"]
    write(here, "manifest.yaml", text + more)
    write(here, "handlers.py", "def f(): print('edited')\n")
    assert (deployed(capsys)["Deployment", "guard"] != before) is is_rollout


def test_a_second_process_needs_an_election(here: Path, capsys) -> None:
    """Without one it would act, too; and a budget of one pod would only block a drain."""
    objects = deployed(capsys)
    spec = objects["Deployment", "guard"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert not any(kind == "PodDisruptionBudget" for kind, _ in objects)
    write(here, "manifest.yaml", HEAD + PODS + handler("handlers:f") + "  leaderElection: {enabled: true}\n")
    objects = deployed(capsys)
    assert objects["Deployment", "guard"]["spec"]["replicas"] == 2
    assert objects["PodDisruptionBudget", "guard"]["spec"]["maxUnavailable"] == 1


def test_secrets_are_read_from_a_secret_and_are_in_no_config_map(here: Path, capsys, monkeypatch) -> None:
    """Variables and files of plugins; what has to be created is told."""
    monkeypatch.setenv("TEAM", "web")
    plugin = (
        "  plugins:\n    - name: chat\n      onError: Disable\n      configFrom:\n"
        "        - {name: token, env: CHAT_TOKEN}\n        - {name: key, file: secrets/key}\n"
    )
    pods = PODS.replace("kind: Pod}", 'kind: Pod, labelSelector: {matchLabels: {team: "${env:TEAM}"}}}')
    write(here, "manifest.yaml", HEAD + plugin + pods + handler("handlers:f"))
    write(here, "secrets/key", "very secret")
    assert main(["generate", "deploy", "."]) == 0
    captured = capsys.readouterr()
    assert "reads CHAT_TOKEN, TEAM, secrets.key from the Secret guard" in captured.err
    assert "very secret" not in captured.out
    objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(captured.out)}
    pod = pod_of(objects)
    keys = [each["valueFrom"]["secretKeyRef"] for each in pod["containers"][0]["env"]]
    assert keys == [{"name": "guard", "key": "CHAT_TOKEN"}, {"name": "guard", "key": "TEAM"}]
    sources = pod["volumes"][0]["projected"]["sources"]
    assert {"secret": {"name": "guard", "items": [{"key": "secrets.key", "path": "secrets/key"}]}} in sources


def test_two_files_of_one_key_are_refused(here: Path, capsys) -> None:
    """One of them would be mounted with the content of the other."""
    plugin = (
        "  plugins:\n    - name: chat\n      onError: Disable\n      configFrom:\n"
        "        - {name: a, file: secrets/key}\n        - {name: b, file: secrets.key}\n"
    )
    write(here, "manifest.yaml", HEAD + plugin + PODS + handler("handlers:f"))
    write(here, "secrets/key", "a")
    write(here, "secrets.key", "b")
    assert main(["generate", "deploy", "."]) == 2
    assert "names secrets/key and secrets.key" in capsys.readouterr().err


def test_config_maps_with_code_have_the_label_of_the_policy(capsys) -> None:
    """`deploy/admission-policy.yaml` finds them by it; no other object has code."""
    label = re.search(
        r"'(declctl\.dev/code)'", (EXAMPLES.parent / "deploy" / "admission-policy.yaml").read_text("utf-8")
    )
    assert label is not None
    objects = deployed(capsys, str(EXAMPLES / "07-in-cluster"))
    marked = {kind for (kind, _), each in objects.items() if label[1] in each["metadata"].get("labels", {})}
    assert marked == {"ConfigMap"}


def test_packages_of_plugins_come_from_an_image(here: Path, capsys) -> None:
    """An init container copies them; pip never runs in the pod."""
    pod = pod_of(deployed(capsys, ".", "--plugin-image", "plugins:1", "--image", "other:2"))
    (copy,), (container,) = pod["initContainers"], pod["containers"]
    assert (copy["image"], container["image"]) == ("plugins:1", "other:2")
    assert copy["securityContext"] == container["securityContext"]
    (target,) = [each["mountPath"] for each in copy["volumeMounts"]]
    assert {"name": "PYTHONPATH", "value": target} in container["env"]
    assert {"name": "plugins", "mountPath": target, "readOnly": True} in container["volumeMounts"]


def test_monitoring_is_added_if_it_is_asked_for(here: Path, capsys) -> None:
    """Its kinds are not in every cluster; Prometheus may reach the address then."""
    plain = deployed(capsys)
    assert plain["NetworkPolicy", "guard"]["spec"]["ingress"] == []
    watched = deployed(capsys, ".", "--service-monitor", "--alerts")
    added = {kind for kind, _ in watched} - {kind for kind, _ in plain}
    assert added == {"Service", "ServiceMonitor", "PrometheusRule"}
    assert watched["NetworkPolicy", "guard"]["spec"]["ingress"] != []
    labels = watched["Service", "guard"]["metadata"]["labels"]
    wanted = watched["ServiceMonitor", "guard"]["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= labels.items()


def test_prometheus_asks_the_metrics_address(here: Path, capsys) -> None:
    """Its port alone is opened to other pods: the admin address stays closed."""
    metrics = "  metrics: {bindAddress: '0.0.0.0:9090'}\n"
    write(here, "manifest.yaml", HEAD + PODS + handler("handlers:f") + metrics)
    objects = deployed(capsys, ".", "--service-monitor")
    (container,) = pod_of(objects)["containers"]
    admin = {"name": "admin", "containerPort": 8081}
    assert container["ports"] == [admin, {"name": "metrics", "containerPort": 9090}]
    assert container["livenessProbe"]["httpGet"]["port"] == "admin"
    (opened,) = objects["NetworkPolicy", "guard"]["spec"]["ingress"]
    assert opened["ports"] == [{"port": "metrics"}]
    (port,) = objects["Service", "guard"]["spec"]["ports"]
    assert port == {"name": "metrics", "port": 9090, "targetPort": "metrics"}
    (endpoint,) = objects["ServiceMonitor", "guard"]["spec"]["endpoints"]
    assert endpoint == {"port": "metrics", "path": "/metrics"}
    assert deployed(capsys)["NetworkPolicy", "guard"]["spec"]["ingress"] == []


@pytest.mark.parametrize(
    "more",
    [
        "  metrics: {bindAddress: '127.0.0.1:9090'}\n",
        "  metrics: {bindAddress: '0.0.0.0:0'}\n",
        "  metrics: {bindAddress: '10.0.0.5:8081'}\n",  # --admin=0.0.0.0:8081 includes it
        "  admin: {bindAddress: ':9000'}\n  metrics: {bindAddress: ':9000'}\n",
    ],
)
def test_an_address_that_prometheus_can_not_reach_is_no_port(here: Path, capsys, more: str) -> None:
    """It asks the admin address then."""
    write(here, "manifest.yaml", HEAD + PODS + handler("handlers:f") + more)
    objects = deployed(capsys, ".", "--service-monitor")
    (container,) = pod_of(objects)["containers"]
    assert [each["name"] for each in container["ports"]] == ["admin"]
    (endpoint,) = objects["ServiceMonitor", "guard"]["spec"]["endpoints"]
    assert endpoint["port"] == "admin"


def test_a_kustomization_has_the_same_objects(here: Path, capsys) -> None:
    """It can be made again, and overwrites nothing of others."""
    objects = deployed(capsys)
    assert main(["generate", "deploy", ".", "--kustomize", "base", "--alerts"]) == 0
    assert main(["generate", "deploy", ".", "--kustomize", "base"]) == 0
    kustomization = yaml.safe_load((here / "base" / "kustomization.yaml").read_text("utf-8"))
    assert sorted([*kustomization["resources"], "kustomization.yaml"]) == sorted(
        path.name for path in (here / "base").iterdir()
    )
    found = [
        document
        for name in kustomization["resources"]
        for document in yaml.safe_load_all((here / "base" / name).read_text("utf-8"))
    ]
    assert {(each["kind"], each["metadata"]["name"]): each for each in found} == objects
    capsys.readouterr()
    for folder in (".", "mine"):
        write(here, "mine/kustomization.yaml", "resources: []\n")
        assert main(["generate", "deploy", ".", "--kustomize", folder]) == 2
        assert (here / "mine" / "kustomization.yaml").read_text("utf-8") == "resources: []\n"


def test_a_file_of_others_beside_a_kustomization_is_not_overwritten(here: Path, capsys) -> None:
    """Also if an option that comes later would make one of that name; other files stay, in any encoding."""
    assert main(["generate", "deploy", ".", "--kustomize", "base"]) == 0
    write(here, "base/monitoring.yaml", "mine: true\n")
    (here / "base" / "notes.yaml").write_bytes(b"# caf\xe9\n")
    capsys.readouterr()
    assert main(["generate", "deploy", ".", "--kustomize", "base", "--alerts"]) == 2
    assert "monitoring.yaml was not made by declctl" in capsys.readouterr().err
    assert main(["generate", "deploy", ".", "--kustomize", "base"]) == 0
    assert (here / "base" / "monitoring.yaml").read_text("utf-8") == "mine: true\n"
    assert (here / "base" / "notes.yaml").read_bytes() == b"# caf\xe9\n"


def test_prometheus_speaks_tls_if_the_admin_address_does(here: Path, capsys) -> None:
    """Over plain HTTP, each scrape would fail. Files that no volume has are told."""
    tls = "  admin: {tls: {certFile: /run/tls.crt, keyFile: /run/tls.key}, tokenFile: /run/token}\n"
    write(here, "manifest.yaml", HEAD + PODS + handler("handlers:f") + tls)
    assert main(["generate", "deploy", ".", "--service-monitor"]) == 0
    captured = capsys.readouterr()
    (monitor,) = [each for each in yaml.safe_load_all(captured.out) if each["kind"] == "ServiceMonitor"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]) == ("https", {"insecureSkipVerify": True})
    assert "reads /run/token, /run/tls.crt, /run/tls.key, which no generated volume has" in captured.err


def test_the_output_is_stable(capsys) -> None:
    """So that it can be kept under version control."""

    def printed() -> str:
        assert main(["generate", "deploy", str(EXAMPLES / "08-reconcile-deployment")]) == 0
        return capsys.readouterr().out

    assert printed() == printed()


_METRIC = re.compile(r"\b(?:declctl|workqueue|leader_election|rest_client)_[a-z0-9_]+")


def test_every_alert_is_in_the_table_of_the_documentation() -> None:
    """Who installs them reads there what they mean."""
    text = (EXAMPLES.parent / "docs" / "deploy.md").read_text("utf-8")
    assert [each.name for each in ALERTS if f"`{each.name}`" not in text] == []


def test_every_metric_of_an_alert_exists() -> None:
    """Under its name in the exposition: an alert of another one would never fire."""
    known = {each.name for each in catalog()}
    known |= {f"{each.name}_{part}" for each in catalog() for part in ("bucket", "sum", "count")}
    used = {name for alert in ALERTS for name in _METRIC.findall(alert.expr)}
    assert len(used) > 10
    assert used - known == set()


def test_alerts_are_rules_of_prometheus(capsys) -> None:
    """As an object of the operator, and as a file; each says what to do, and looks at one job."""
    assert main(["generate", "alerts", "--name", "guard", "-n", "team-a"]) == 0
    rule = yaml.safe_load(capsys.readouterr().out)
    assert (rule["kind"], rule["metadata"]["namespace"]) == ("PrometheusRule", "team-a")
    assert main(["generate", "alerts", "--name", "guard", "--plain"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == rule["spec"]
    (group,) = rule["spec"]["groups"]
    names = [each["alert"] for each in group["rules"]]
    assert len(names) == len(set(names)) == len(ALERTS)
    for each in group["rules"]:
        metrics = _METRIC.findall(each["expr"])
        assert each["expr"].count('{job="guard"') == len(metrics) > 0
        assert each["annotations"]["summary"].endswith(".")
        assert each["annotations"]["description"].endswith(".")
