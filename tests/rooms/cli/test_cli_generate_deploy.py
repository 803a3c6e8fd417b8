"""`declctl generate deploy` and `alerts`: the objects, and what can't be deployed."""

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from declctl.admin.metrics import catalog
from declctl.cli.generate.alerts import ALERTS, RUNBOOK
from declctl.testing import ConfigMapDir
from tests.rooms.cli.conftest import Command, Ended

pytestmark = pytest.mark.thorough

EXAMPLES = Path(__file__).parents[3] / "examples"
HEAD = "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: guard}\nspec:\n"
PODS = "  resources: [{name: pods, apiVersion: v1, kind: Pod}]\n"
HANDLER = "  handlers: [{name: h, resourceRef: {name: pods}, entryPoint: 'handlers:f'}]\n"
PLUGIN = "  plugins: [{{name: chat, onError: Disable, configFrom: [{}]}}]\n"
TLS = "tls: {certFile: /run/tls.crt, keyFile: /run/tls.key}"


@pytest.fixture(name="deploy")
def _deploy(declctl: Command, write: Callable) -> Callable[..., Ended]:
    """Runs the command for a manifest with these further parts."""
    write("handlers.py", "def f(obj): ...\n")

    def deploy(*options: str, more: str = "", pods: str = PODS, handler: str = HANDLER) -> Ended:
        write("manifest.yaml", HEAD + more + pods + handler)
        return declctl("generate", "deploy", ".", *options)

    return deploy


def pod_of(ended: Ended) -> dict[str, Any]:
    assert ended.status == 0, ended.err
    return ended.objects["Deployment", "guard"]["spec"]["template"]["spec"]


def container_of(ended: Ended) -> dict[str, Any]:
    (container,) = pod_of(ended)["containers"]
    return container


def mounted(ended: Ended, folder: Path) -> Path:
    """The folder that a pod would find."""
    (volume,) = [each for each in pod_of(ended)["volumes"] if each["name"] == "bundle"]
    files: dict[str, str] = {}
    for source in volume["projected"]["sources"] if "projected" in volume else [volume]:
        data = ended.objects["ConfigMap", source["configMap"]["name"]]["data"]
        items = source["configMap"].get("items") or [{"key": key, "path": key} for key in data]
        files |= {item["path"]: data[item["key"]] for item in items}
    return ConfigMapDir(folder, files).path


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


def test_the_files_are_in_the_config_map_as_they_are(declctl):
    """With every character, and in the folder that the process is started with; twice the same."""
    example = EXAMPLES / "07-in-cluster"
    ended = declctl("generate", "deploy", str(example))
    data = ended.objects["ConfigMap", "restarts"]["data"]
    assert data == {name: (example / name).read_text("utf-8") for name in ("manifest.yaml", "handlers.py")}
    pod = ended.objects["Deployment", "restarts"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"][:2] == ["run", "/etc/declctl/manifest.yaml"]
    assert pod["volumes"][0] == {"name": "bundle", "configMap": {"name": "restarts"}}
    assert declctl("generate", "deploy", str(example)).out == ended.out
    # `deploy/admission-policy.yaml` finds ConfigMaps with code by a label; no other object has code.
    policy = (EXAMPLES.parent / "deploy" / "admission-policy.yaml").read_text("utf-8")
    label = "declctl.dev/code"
    assert f"'{label}'" in policy
    labelled = {
        kind for (kind, _), each in ended.objects.items() if label in each["metadata"].get("labels", {})
    }
    assert labelled == {"ConfigMap"}


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
def test_any_text_arrives_as_it_was(deploy, text):
    """Also one that YAML can't write as a block, or that a terminal should not see."""
    source = f"def f(obj): ...\nZ = {text!r}\n" + (text if "\t" not in text else "")
    Path("handlers.py").write_bytes(source.encode())
    assert deploy().objects["ConfigMap", "guard"]["data"]["handlers.py"] == source


def test_a_source_in_another_encoding_stays_as_it_is(deploy):
    source = "# -*- coding: latin-1 -*-\ndef f(obj): return 'ü'\n".encode("latin-1")
    Path("handlers.py").write_bytes(source)
    assert base64.b64decode(deploy().objects["ConfigMap", "guard"]["binaryData"]["handlers.py"]) == source


@pytest.mark.parametrize("name", ["y", "n", "1e3", "09", "7e10", "12"])
def test_a_name_is_a_text_for_kubectl_too(deploy, name):
    """Its YAML has more booleans and numbers than PyYAML, which would leave the quotes out."""
    ended = deploy("--namespace", name, "--name", name, "--secret", f"/x={name}")
    assert ended.status == 0
    assert f"namespace: '{name}'\n" in ended.out
    assert re.findall(rf"(?:name|[nN]ame.*|instance|code): {name}$", ended.out, re.MULTILINE) == []


def test_handlers_in_packages_are_mounted_in_their_folders(deploy, declctl, write, folder):
    """Keys of a ConfigMap have no folders; the items of the volume do. The mounted bundle is valid."""
    write("team/__init__.py", "")
    write("team/pods.py", "from team.deep.help import g\ndef f(obj): g()\n")
    write("team/deep/help.py", "def g(): ...\n")
    ended = deploy(handler=HANDLER.replace("handlers:f", "team.pods:f"))
    keys = {"manifest.yaml", "team.__init__.py", "team.pods.py", "team.deep.help.py"}
    assert set(ended.objects["ConfigMap", "guard"]["data"]) == keys
    found = mounted(ended, folder / "mounted")
    assert (found / "team" / "deep" / "help.py").read_text("utf-8") == "def g(): ...\n"
    declctl.done("validate", str(found / "manifest.yaml"))


@pytest.mark.thorough
def test_large_bundles_take_several_config_maps(deploy, write, folder):
    """Each is below a MiB, and the volume has all of them."""
    for number in range(3):
        write(f"part{number}.py", f"# {'x' * 600_000}\n")
    write("handlers.py", "import part0, part1, part2\ndef f(obj): ...\n")
    ended = deploy(more="  reload: {preflightTimeout: 60s}\n")
    maps = {name: each for (kind, name), each in ended.objects.items() if kind == "ConfigMap"}
    assert list(maps) == ["guard", "guard-2", "guard-3"], ended.err
    assert all(sum(map(len, each["data"].values())) < 2**20 for each in maps.values())
    found = sorted(path.name for path in mounted(ended, folder / "mounted").glob("*.py"))
    assert found == ["handlers.py", "part0.py", "part1.py", "part2.py"]


def test_a_file_that_no_config_map_holds_is_refused(deploy, write):
    """With its size, and where to put it; or with the letter that no key can have."""
    write("handlers.py", f"def f(obj): ...\n# {'x' * 1_100_000}\n")
    large = deploy()
    assert "handlers.py has 1,100,01" in large.err
    assert "declctl generate image" in large.err
    write("größe.py", "def f(obj): ...\n")
    named = deploy(handler=HANDLER.replace("handlers:f", "größe:f"))
    assert "größe.py can't be in a ConfigMap" in named.err
    assert large.status == named.status == 2


def test_the_pod_is_restricted_and_ends_after_the_drain(deploy):
    """The pod security standard `restricted`, a read-only root, probes, and time for running calls."""
    ended = deploy()
    pod, container = pod_of(ended), container_of(ended)
    context = pod["securityContext"]
    assert context["runAsNonRoot"]
    assert context["runAsUser"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["terminationGracePeriodSeconds"] == 30
    assert {"startupProbe", "livenessProbe", "readinessProbe", "resources"} <= set(container)
    # The default address is not reached by the kubelet.
    assert "--admin=:8081" in container["args"]


def test_files_of_the_admin_address_are_those_of_secrets(deploy):
    """Each is at the path of the manifest, whatever its key is called, and nothing is left to be mounted."""
    admin = "  admin: {tls: {certFile: /run/admin/a, keyFile: /run/admin/b}, tokenFile: /run/token/t}\n"
    secrets = ("--tls-secret", "guard-tls", "--token-secret", "guard-token")
    ended = deploy(*secrets, more=admin)
    assert ended.err == ""
    assert files_of_secrets(pod_of(ended)) == {
        "/run/admin/a": ("guard-tls", "tls.crt"),
        "/run/admin/b": ("guard-tls", "tls.key"),
        "/run/token/t": ("guard-token", "token"),
    }
    # A folder is one volume, with all that it needs.
    ended = deploy(*secrets, more=admin.replace("/run/token", "/run/admin"))
    assert set(files_of_secrets(pod_of(ended))) == {"/run/admin/a", "/run/admin/b", "/run/admin/t"}


def test_a_variable_of_an_option_is_there_once(deploy, monkeypatch):
    """As the Helm chart has it; also if the manifest reads it: an API server would refuse the container."""
    reference = {"secretKeyRef": {"name": "guard-token", "key": "token"}}
    variable = {"name": "DECLCTL_ADMIN_TOKEN", "valueFrom": reference}
    assert container_of(deploy("--token-secret", "guard-token"))["env"] == [variable]
    monkeypatch.setenv("DECLCTL_ADMIN_TOKEN", "x")
    monkeypatch.setenv("PYTHONPATH", "x")
    labels = 'team: "${env:DECLCTL_ADMIN_TOKEN}", path: "${env:PYTHONPATH}"'
    pods = PODS.replace("kind: Pod}", f"kind: Pod, labelSelector: {{matchLabels: {{{labels}}}}}}}")
    ended = deploy("--token-secret", "guard-token", "--plugin-image", "p:1", pods=pods)
    assert "from the Secret guard" not in ended.err
    assert [each["name"] for each in container_of(ended)["env"]] == ["DECLCTL_ADMIN_TOKEN", "PYTHONPATH"]


def test_a_plugin_has_its_secrets_and_a_folder_to_write_to(deploy):
    """The root is read-only, and the folder has a limit if one is given."""
    writable = ("--writable", "/spool=64Mi", "--writable", "/var/x/")
    pod = pod_of(deploy("--secret", "/etc/webhook=hook", *writable, "--allowed-digests", "reviewed"))
    mounts = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert mounts["/etc/webhook"]["readOnly"] is True
    assert volumes[mounts["/etc/webhook"]["name"]]["secret"] == {"secretName": "hook"}
    assert "readOnly" not in mounts["/spool"]
    assert volumes[mounts["/spool"]["name"]]["emptyDir"] == {"sizeLimit": "64Mi"}
    assert volumes[mounts["/var/x"]["name"]]["emptyDir"] == {}
    # The list of bundles that run is on the command line: no edit of the manifest takes it away.
    assert "--allowed-digests=/etc/declctl-allowed/digests" in pod["containers"][0]["args"]
    assert volumes["allowed"]["configMap"] == {"name": "reviewed"}


@pytest.mark.parametrize(
    ("path", "arguments", "volume"),
    [
        ("/var/lib/declctl", "", {"name": "state", "emptyDir": {}}),
        ("/data/state", "--writable /data=1Gi", {"name": "writable-1", "emptyDir": {"sizeLimit": "1Gi"}}),
        ("/tmp/state", "", {"name": "tmp", "emptyDir": {}}),
    ],
)
def test_the_state_has_a_volume(deploy, path, arguments, volume):
    """At its path, unless it is in a folder that can be written to anyway."""
    pod = pod_of(deploy(*arguments.split(), more=f"  state: {{path: {path}}}\n"))
    mounts = {each["mountPath"]: each for each in pod["containers"][0]["volumeMounts"]}
    mount = mounts[max((folder for folder in mounts if path.startswith(folder)), key=len)]
    assert "readOnly" not in mount
    assert [each for each in pod["volumes"] if each["name"] in ("state", mount["name"])] == [volume]


@pytest.mark.parametrize("path", ["state", "/etc/declctl/state", ".."])
def test_a_state_beside_the_manifest_is_refused(deploy, path):
    """A volume of a ConfigMap is read-only."""
    ended = deploy(more=f"  state: {{path: {path}}}\n")
    assert (ended.status, ended.out) == (2, "")
    assert f"{path} of spec.state can't be in /etc/declctl" in ended.err


@pytest.mark.parametrize(
    ("more", "arguments", "said"),
    [
        ("", "--tls-secret x", "--tls-secret is for spec.admin.tls"),
        ("", "--token-secret No_Name", '--token-secret: "No_Name"'),
        ("", "--secret /etc/x", "write DIR=SECRET"),
        ("", "--secret /etc/x=a --secret /etc/x/=b", "--secret has /etc/x twice"),
        ("", "--secret /a=b --writable /a", "Two volumes would be mounted at /a"),
        ("", "--writable /etc/declctl/spool", "/etc/declctl is read-only"),
        ("", "--writable spool", 'at "spool": name an absolute path'),
        ("", "--writable /a/../etc/declctl", 'without ".."'),
        ("", "--writable /a:b", "without colons"),
        ("", "--writable /", "at the root"),
        ("", "--writable /tmp", "Two volumes would be mounted at /tmp"),
        ("", "--writable /spool=much", '--writable: "much" is not a byte size'),
        ("/run/a.pem, keyFile: /run/a.pem", "--tls-secret x", "spec.admin names /run/a.pem twice"),
        ("a.pem, keyFile: /b", "--tls-secret x", "a.pem of spec.admin can't be mounted in /etc/declctl"),
        ("/etc/declctl/s/a, keyFile: /b", "--tls-secret x", "can't be mounted in /etc/declctl"),
    ],
)
def test_a_volume_that_no_pod_can_have_is_refused(deploy, more, arguments, said):
    """When it is generated, and not when the pod can't start; paths are those of the manifest."""
    ended = deploy(*arguments.split(), more=f"  admin: {{tls: {{certFile: {more}}}}}\n" if more else "")
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.err


def test_probes_ask_the_address_of_the_manifest(deploy):
    """One that they reach stays; over plain HTTP to one with TLS, a pod would restart again and again."""
    container = container_of(deploy(more="  admin: {bindAddress: '0.0.0.0:9000'}\n"))
    assert container["ports"] == [{"name": "admin", "containerPort": 9000}]
    assert not any(argument.startswith("--admin") for argument in container["args"])
    container = container_of(deploy(more=f"  admin: {{{TLS}}}\n"))
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
        (f"  admin: {{{TLS}}}\n", True),
        ("  leaderElection: {enabled: true}\n", True),
        ("  sharding: {slots: 16}\n", True),
        ("  lifecycle: {startup: [{entryPoint: 'handlers:f'}]}\n", True),
        ("  state: {path: /tmp/state}\n", True),
    ],
)
def test_only_what_takes_a_restart_changes_the_pod(deploy, write, more, is_rollout):
    """An edit of anything else is a reload."""
    before = deploy().objects["Deployment", "guard"]
    write("handlers.py", "def f(): print('edited')\n")
    assert (deploy(more=more).objects["Deployment", "guard"] != before) is is_rollout


def test_a_second_process_needs_an_election(deploy):
    """Without one it would act, too; and a budget of one pod would only block a drain."""
    one, two = deploy().objects, deploy(more="  leaderElection: {enabled: true}\n").objects
    spec = one["Deployment", "guard"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert "PodDisruptionBudget" not in {kind for kind, _ in one}
    assert two["Deployment", "guard"]["spec"]["replicas"] == 2
    assert two["PodDisruptionBudget", "guard"]["spec"]["maxUnavailable"] == 1
    spread = two["Deployment", "guard"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert [each["topologyKey"].split("/")[1] for each in spread] == ["hostname", "zone"]
    assert "topologySpreadConstraints" not in spec["template"]["spec"]


def test_processes_that_share_are_as_many_as_asked_for(deploy):
    """Replaced one after the other, as one more would move slots twice; each Lease is named in the Role."""
    more = "  sharding: {slots: 16}\n"
    found = deploy("--replicas", "3", more=more).objects
    spec = found["Deployment", "guard"]["spec"]
    assert spec["replicas"] == 3
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert found["PodDisruptionBudget", "guard"]["spec"]["maxUnavailable"] == 1
    named = [rule for rule in found["Role", "guard"]["rules"] if "resourceNames" in rule]
    assert [(rule["verbs"], len(rule["resourceNames"])) for rule in named] == [(["get", "update"], 32)]
    assert deploy(more=more).objects["Deployment", "guard"]["spec"]["replicas"] == 2
    assert deploy(more="  sharding: {slots: 1}\n").objects["Deployment", "guard"]["spec"]["replicas"] == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [("", "all processes would act"), ("  sharding: {slots: 2}\n", "has 2 slots, and a process without one")],
)
def test_more_processes_than_can_work_are_refused(deploy, more, said):
    """When it is generated: in a cluster, they would write beside each other, or idle."""
    ended = deploy("--replicas", "3", more=more)
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.err


def test_what_options_add_to_the_pod_and_its_network(deploy, write):
    """The namespace (without labels) and the definitions of its kinds come first, for what follows."""
    text = (EXAMPLES / "05-custom-resource" / "crd.yaml").read_text("utf-8")
    write("crd.yaml", text)
    write("others.yaml", text.replace("group: ", "group: other."))
    write("faulty.yaml", "}")
    definition = yaml.safe_load(text)
    kind = f"apiVersion: {definition['spec']['group']}/v1, kind: {definition['spec']['names']['kind']}"
    options = ("--env=A=1=2", "--env=B=", "--egress=10.0.0.1/32:443", "--egress=fd00::/8", "--name=x")
    pods = PODS.replace("apiVersion: v1, kind: Pod", kind)
    objects = deploy(*options, "--create-namespace", "-n", "a", pods=pods).objects
    first, second, *_ = objects.values()
    assert (first["kind"], first["metadata"], second) == ("Namespace", {"name": "a"}, definition)
    assert {"Namespace", "CustomResourceDefinition"}.isdisjoint(kind for kind, _ in deploy().objects)
    spec = objects["Deployment", "x"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "A", "value": "1=2"}, {"name": "B", "value": ""}]
    assert set(spec["selector"]["matchLabels"].values()) == {"guard", "x"}
    server = {"to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}], "ports": [{"port": 443}]}
    rules = objects["NetworkPolicy", "x"]["spec"]["egress"]
    assert rules[1:] == [server, {"to": [{"ipBlock": {"cidr": "fd00::/8"}}]}]
    for wrong in (["--env=A"], ["--env=A=1", "--env=A=2"], ["--egress=web"], ["--egress=::/0:99999"]):
        assert deploy(*wrong).status == 2


def test_secrets_are_read_from_a_secret_and_are_in_no_config_map(deploy, write, monkeypatch):
    """Variables and files of plugins; what has to be created is told. Two files of one key are refused."""
    monkeypatch.setenv("TEAM", "web")
    write("secrets/key", "very secret")
    write("secrets.key", "b")
    pods = PODS.replace("kind: Pod}", 'kind: Pod, labelSelector: {matchLabels: {team: "${env:TEAM}"}}}')
    plugin = PLUGIN.format("{name: token, env: CHAT_TOKEN}, {name: key, file: secrets/key}")
    ended = deploy(more=plugin, pods=pods)
    assert "reads CHAT_TOKEN, TEAM, secrets.key from the Secret guard" in ended.err
    assert "very secret" not in ended.out
    keys = [each["valueFrom"]["secretKeyRef"] for each in container_of(ended)["env"]]
    assert keys == [{"name": "guard", "key": key} for key in ("CHAT_TOKEN", "TEAM")]
    sources = pod_of(ended)["volumes"][0]["projected"]["sources"]
    assert {"secret": {"name": "guard", "items": [{"key": "secrets.key", "path": "secrets/key"}]}} in sources
    ended = deploy(more=PLUGIN.format("{name: a, file: secrets/key}, {name: b, file: secrets.key}"))
    assert (ended.status, "names secrets/key and secrets.key" in ended.err) == (2, True)


def test_packages_of_plugins_come_from_an_image(deploy):
    """An init container copies them; pip never runs in the pod."""
    pod = pod_of(deploy("--plugin-image", "plugins:1", "--image", "other:2"))
    (copy,), (container,) = pod["initContainers"], pod["containers"]
    assert (copy["image"], container["image"]) == ("plugins:1", "other:2")
    assert copy["securityContext"] == container["securityContext"]
    (target,) = [each["mountPath"] for each in copy["volumeMounts"]]
    assert {"name": "PYTHONPATH", "value": target} in container["env"]
    assert {"name": "plugins", "mountPath": target, "readOnly": True} in container["volumeMounts"]


def test_monitoring_is_added_if_it_is_asked_for(deploy):
    """Its kinds are not in every cluster; Prometheus may reach the address then."""
    plain, watched = deploy().objects, deploy("--service-monitor", "--alerts").objects
    added = {kind for kind, _ in watched} - {kind for kind, _ in plain}
    assert added == {"Service", "ServiceMonitor", "PrometheusRule"}
    ingress = [each["NetworkPolicy", "guard"]["spec"]["ingress"] for each in (plain, watched)]
    assert [bool(rules) for rules in ingress] == [False, True]
    labels = watched["Service", "guard"]["metadata"]["labels"]
    wanted = watched["ServiceMonitor", "guard"]["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= labels.items()


def test_prometheus_asks_the_metrics_address(deploy):
    """Its port alone is opened to other pods: the admin address stays closed."""
    metrics = "  metrics: {bindAddress: '0.0.0.0:9090'}\n"
    ended = deploy("--service-monitor", more=metrics)
    container, plain = container_of(ended), deploy(more=metrics).objects
    specs = {kind: each["spec"] for (kind, name), each in ended.objects.items() if "spec" in each}
    admin = {"name": "admin", "containerPort": 8081}
    assert container["ports"] == [admin, {"name": "metrics", "containerPort": 9090}]
    assert container["livenessProbe"]["httpGet"]["port"] == "admin"
    (opened,) = specs["NetworkPolicy"]["ingress"]
    assert opened["ports"] == [{"port": "metrics"}]
    assert specs["Service"]["ports"] == [{"name": "metrics", "port": 9090, "targetPort": "metrics"}]
    assert specs["ServiceMonitor"]["endpoints"] == [{"port": "metrics", "path": "/metrics"}]
    assert plain["NetworkPolicy", "guard"]["spec"]["ingress"] == []


@pytest.mark.parametrize(
    "more",
    [
        "  metrics: {bindAddress: '127.0.0.1:9090'}\n",
        "  metrics: {bindAddress: '0.0.0.0:0'}\n",
        "  metrics: {bindAddress: '10.0.0.5:8081'}\n",  # --admin=0.0.0.0:8081 includes it
        "  admin: {bindAddress: ':9000'}\n  metrics: {bindAddress: ':9000'}\n",
    ],
)
def test_an_address_that_prometheus_can_not_reach_is_no_port(deploy, more):
    """It asks the admin address then."""
    ended = deploy("--service-monitor", more=more)
    assert [each["name"] for each in container_of(ended)["ports"]] == ["admin"]
    (endpoint,) = ended.objects["ServiceMonitor", "guard"]["spec"]["endpoints"]
    assert endpoint["port"] == "admin"


def test_prometheus_speaks_tls_if_the_admin_address_does(deploy):
    """Over plain HTTP, each scrape would fail. Files that no volume has are told."""
    ended = deploy("--service-monitor", more=f"  admin: {{{TLS}, tokenFile: /run/token}}\n")
    (endpoint,) = ended.objects["ServiceMonitor", "guard"]["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]) == ("https", {"insecureSkipVerify": True})
    assert "reads /run/token, /run/tls.crt, /run/tls.key, which no generated volume has" in ended.err


def test_a_kustomization_has_the_same_objects(deploy, write, folder):
    """It can be made again, and overwrites nothing of others."""
    objects = deploy().objects
    assert deploy("--kustomize", "base", "--alerts").status == deploy("--kustomize", "base").status == 0
    base = folder / "base"
    resources = yaml.safe_load((base / "kustomization.yaml").read_text("utf-8"))["resources"]
    assert sorted([*resources, "kustomization.yaml"]) == sorted(path.name for path in base.iterdir())
    texts = [(base / name).read_text("utf-8") for name in resources]
    assert Ended(0, "---\n".join(texts), "").objects == objects
    write("mine/kustomization.yaml", "resources: []\n")
    assert [deploy("--kustomize", name).status for name in (".", "mine")] == [2, 2]
    assert (folder / "mine" / "kustomization.yaml").read_text("utf-8") == "resources: []\n"
    # Also if an option that comes later would make one of that name; other files stay, in any encoding.
    write("base/monitoring.yaml", "mine: true\n")
    (base / "notes.yaml").write_bytes(b"# caf\xe9\n")
    ended = deploy("--kustomize", "base", "--alerts")
    assert (ended.status, "monitoring.yaml was not made by declctl" in ended.err) == (2, True)
    assert deploy("--kustomize", "base").status == 0
    assert (base / "monitoring.yaml").read_text("utf-8") == "mine: true\n"
    assert (base / "notes.yaml").read_bytes() == b"# caf\xe9\n"


_METRIC = re.compile(r"\b(?:declctl|workqueue|leader_election|rest_client)_[a-z0-9_]+")


def test_alerts_are_documented_and_ask_for_metrics_that_exist():
    """Who is called reads in docs/operations.md what to do; an alert of another metric never fires."""
    text = (EXAMPLES.parent / "docs" / "operations.md").read_text("utf-8")
    assert re.findall(r"^### (Declctl\w+)$", text, re.MULTILINE) == [each.name for each in ALERTS]
    known = {each.name for each in catalog()}
    known |= {f"{each.name}_{part}" for each in catalog() for part in ("bucket", "sum", "count")}
    used = {name for alert in ALERTS for name in _METRIC.findall(alert.expr)}
    assert used - known == set()


def test_alerts_are_rules_of_prometheus(declctl):
    """As an object of the operator, and as a file; each says what to do, and looks at one job."""
    (rule,) = declctl.done("generate", "alerts", "--name", "guard", "-n", "team-a").objects.values()
    assert (rule["kind"], rule["metadata"]["namespace"]) == ("PrometheusRule", "team-a")
    plain = declctl.done("generate", "alerts", "--name", "guard", "--plain", "--runbook", RUNBOOK)
    assert yaml.safe_load(plain.out) == rule["spec"]
    (group,) = rule["spec"]["groups"]
    assert len({each["alert"] for each in group["rules"]}) == len(group["rules"]) == len(ALERTS)
    for each in group["rules"]:
        assert each["expr"].count('{job="guard"') == len(_METRIC.findall(each["expr"])) > 0
        assert [each["annotations"][name][-1] for name in ("summary", "description")] == [".", "."]
        assert each["annotations"]["runbook_url"] == f"{RUNBOOK}#{each['alert'].lower()}"
