"""The plugin in a controller: a quiet start, edits, refused configs, Secrets, and the end."""

# The package is found beside the tests, whether it is installed or not.
# pyright: reportMissingImports=false

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from declctl import DeclctlError
from declctl.testing import BundleDir, ControllerUnderTest, fuzz, running, until
from notify_receiver import Receiver
from prometheus_client import CollectorRegistry

pytestmark = pytest.mark.thorough

VARIABLE, SECRET = "DECLCTL_TEST_NOTIFY_URL", "s3cr3t-path"
AT_ONCE = {"groupBy": ["name"], "groupWait": "0s", "groupInterval": "0s", "repeatInterval": "0s"}
TARGETS = [{"name": "team", "urlFrom": {"env": VARIABLE}}]


def _map(name: str, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _manifest(config: dict[str, Any] | None, *, resource: str = "ConfigMap") -> str:
    plugins = [] if config is None else [{"name": "notify", "config": config}]
    handlers = [{"name": "it", "resourceRef": {"name": "things"}, "pluginRef": {"name": "notify"}}]
    spec = {
        "plugins": plugins,
        "resources": [{"name": "things", "apiVersion": "v1", "kind": resource}],
        "handlers": handlers if plugins else [],
        "reload": {"preflight": "Off", "drainTimeout": "5s"},
    }
    head = {"apiVersion": "declctl.dev/v1alpha1", "kind": "Controller", "metadata": {"name": "notify"}}
    return json.dumps({**head, "spec": spec}, indent=1)


def _config(**rule: Any) -> dict[str, Any]:
    return {"targets": TARGETS, "rules": [{"name": "all", "targets": ["team"], **AT_ONCE, **rule}]}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugin as an installed distribution, for the length of a test."""
    info = tmp_path / "site" / "declctl_notify-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declctl-notify\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[declctl]\nnotify = declctl_notify\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    importlib.invalidate_caches()
    yield
    # The next test gets a plugin without state.
    for name in [name for name in sys.modules if name.partition(".")[0] == "declctl_notify"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def bundle(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> BundleDir:
    """A folder for a manifest; the target is the receiver."""
    monkeypatch.setenv(VARIABLE, f"json://{receiver.address}/{SECRET}")
    return BundleDir(tmp_path / "bundle")


def _no_secret_in(controller: ControllerUnderTest) -> bool:
    return not [line for line in controller.log.lines if SECRET in f"{line}"]


def test_it_stands_lives(bundle: BundleDir, receiver: Receiver) -> None:
    """Whatever happens to the objects, no change fails, and nothing is written."""
    fuzz(bundle.write("manifest.yaml", _manifest(_config())), runs=15)
    assert receiver.messages


def test_changes_after_the_start_are_sent(bundle: BundleDir, receiver: Receiver) -> None:
    """Objects that exist are no news; a new, a changed and a deleted object are."""
    path = bundle.write("manifest.yaml", _manifest(_config()))
    with running(path, objects=[_map(f"old-{n}") for n in range(20)]) as controller:
        controller.wait_ready()
        controller.wait_idle()
        sandbox = controller.sandbox
        sandbox.create(_map("new"))
        until("it arrives", lambda: len(receiver.messages) == 1)
        sandbox.patch("ConfigMap", "old-1", {"data": {"level": "debug"}}, namespace="default")
        until("it arrives", lambda: len(receiver.messages) == 2)
        sandbox.delete("ConfigMap", "old-2", namespace="default")
        until("it arrives", lambda: len(receiver.messages) == 3)
        assert [one["title"] for one in receiver.messages] == [
            "[info] Added ConfigMap default/new",
            "[info] Modified ConfigMap default/old-1",
            "[info] Deleted ConfigMap default/old-2",
        ]
        assert receiver.messages[1]["message"] == 'data: unset → {"level": "debug"}'
        assert controller.handler("it").failed == 0
        assert _no_secret_in(controller)


def test_an_edit_keeps_the_changes_that_wait(bundle: BundleDir, receiver: Receiver) -> None:
    """A change that waits for its group survives an edit of the config, and is sent by its time."""
    rule = {"groupBy": [], "groupWait": "2s"}
    path = bundle.write("manifest.yaml", _manifest(_config(**rule, title="old {{ name }}")))
    with running(path) as controller:
        controller.wait_ready()
        controller.sandbox.create(_map("a"))
        controller.wait_idle()
        bundle.write("manifest.yaml", _manifest(_config(**rule, title="new {{ name }}")))
        assert controller.reload().result == "Applied"
        assert receiver.messages == []
        controller.sandbox.create(_map("b"))
        until("it arrives", lambda: receiver.messages)
        lines = receiver.messages[0]["message"].splitlines()
        assert [line for line in lines if not line.startswith(" ")] == ["old a", "new b"]


def test_an_edit_counts_without_a_change(
    bundle: BundleDir, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    """`dryRun` that is switched on holds for what waits already."""
    config = _config(groupBy=[], groupWait="2s")
    path = bundle.write("manifest.yaml", _manifest(config))
    with running(path) as controller:
        controller.wait_ready()
        controller.sandbox.create(_map("a"))
        controller.wait_idle()
        bundle.write("manifest.yaml", _manifest({**config, "dryRun": True}))
        assert controller.reload().result == "Applied"
        out = until("it is printed", lambda: capsys.readouterr().out)
        assert out.startswith("to team: [info] Added ConfigMap default/a\n")
    assert receiver.requests == 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (_config(title="{{ name"), "title of the rule all can't be read"),
        (_config(resources=["pods"]), "the rule all has the resource pods; the manifest has: things"),
        (
            {**_config(), "targets": [{"name": "team", "urlFrom": {"env": "DECLCTL_TEST_UNSET"}}]},
            "the target team: the environment variable DECLCTL_TEST_UNSET is not set",
        ),
    ],
)
def test_a_config_that_can_not_be_used_is_refused(
    bundle: BundleDir, receiver: Receiver, config: dict[str, Any], message: str
) -> None:
    """At the start it ends the start; an edit is refused, and the notifications go on as before."""
    path = bundle.write("manifest.yaml", _manifest(config))
    with pytest.raises(DeclctlError, match=message), running(path):
        pass
    bundle.write("manifest.yaml", _manifest(_config()))
    with running(path) as controller:
        controller.wait_ready()
        bundle.write("manifest.yaml", _manifest(config))
        outcome = controller.reload()
        assert (outcome.result, outcome.reason) == ("Refused", "PrepareFailed")
        assert message in outcome.message
        controller.sandbox.create(_map("a"))
        until("it arrives", lambda: receiver.messages)
        # A second edit that can be used is taken.
        bundle.write("manifest.yaml", _manifest(_config(title="mended")))
        assert controller.reload().result == "Applied"
        controller.sandbox.create(_map("b"))
        until("it arrives", lambda: receiver.messages[1:])
        assert receiver.messages[1]["title"] == "mended"


def test_other_edits_and_rollbacks_leave_it_alone(bundle: BundleDir, receiver: Receiver) -> None:
    """A generation with the same config sends as before; so does one that goes back."""
    path = bundle.write("manifest.yaml", _manifest(_config(title="one {{ name }}")))
    with running(path) as controller:
        controller.wait_ready()
        for title, name in (("two", "a"), ("three", "b")):
            bundle.write("manifest.yaml", _manifest(_config(title=f"{title} {{{{ name }}}}")))
            assert controller.reload().result == "Applied"
            controller.sandbox.create(_map(name))
            until("it arrives", lambda title=title: receiver.messages[-1:] and title in receiver.texts[-1])
        bundle.write("manifest.yaml", _manifest(_config(title="three {{ name }}")).replace("5s", "6s"))
        assert controller.reload().result == "Applied"
        controller.sandbox.create(_map("c"))
        until("it arrives", lambda: receiver.messages[2:])
        outcome = controller.on_machinery(controller.runtime.rollback(), 30)
        assert outcome.back
        controller.sandbox.create(_map("d"))
        until("it arrives", lambda: receiver.messages[3:])
        assert [one["title"] for one in receiver.messages][2] == "three c"
        assert controller.handler("it").failed == 0


def test_the_end_and_a_removal_send_what_waits(bundle: BundleDir, receiver: Receiver) -> None:
    """A process that ends, and an edit without the plugin, send what has waited for its group."""
    path = bundle.write("manifest.yaml", _manifest(_config(groupWait="1h", title="{{ name }}")))
    with running(path) as controller:
        controller.wait_ready()
        controller.sandbox.create(_map("a"))
        controller.wait_idle()
        bundle.write("manifest.yaml", _manifest(None))
        assert controller.reload().result == "Applied"
        until("it arrives", lambda: receiver.messages)
        bundle.write("manifest.yaml", _manifest(_config(groupWait="1h", title="{{ name }}")))
        assert controller.reload().result == "Applied"
        controller.wait_idle()
        controller.sandbox.create(_map("b"))
        controller.wait_idle()
        assert len(receiver.messages) == 1
    assert [one["title"] for one in receiver.messages] == ["a", "b"]


def test_a_secret_shows_no_value(bundle: BundleDir, receiver: Receiver) -> None:
    """A changed Secret is told with the names of its keys."""
    path = bundle.write(
        "manifest.yaml",
        _manifest(_config(body="{{ differences }} {{ obj }} {{ old }} {{ change.obj }}"), resource="Secret"),
    )
    secret = {**_map("a"), "kind": "Secret", "data": {"password": "aHVudGVyMg=="}}
    with running(path, objects=[secret]) as controller:
        controller.wait_ready()
        controller.sandbox.patch("Secret", "a", {"data": {"password": "aHVudGVyMw=="}}, namespace="default")
        until("it arrives", lambda: receiver.messages)
        (text,) = receiver.texts
        assert "data.password" in text
        assert "aHVudGVy" not in text


def test_metrics_of_each_target(bundle: BundleDir) -> None:
    """What was taken, told and sent, and how long that took; an edit of the config keeps them."""
    path = bundle.write("manifest.yaml", _manifest(_config()))
    with running(path) as controller:
        controller.wait_ready()
        sends = 'declctl_notify_send_duration_seconds_count{target="team"}'
        before = controller.metrics().get(sends, 0)  # of other tests
        controller.sandbox.create(_map("a"))
        sent = 'declctl_notify_sent_total{target="team"}'
        until("it is sent", lambda: controller.metrics().get(sent) == 1)
        bundle.write("manifest.yaml", _manifest(_config(title="new")))
        assert controller.reload().result == "Applied"
        controller.sandbox.create(_map("b"))
        until("it is sent", lambda: controller.metrics()[sent] == 2)
        shown = controller.metrics()
        assert shown['declctl_notify_changes_total{target="team"}'] == 2
        assert shown['declctl_notify_notified_changes_total{target="team"}'] == 2
        assert shown['declctl_notify_dropped_changes_total{target="team"}'] == 0
        assert shown['declctl_notify_failed_total{target="team"}'] == 0
        assert shown['declctl_notify_waiting_changes{target="team"}'] == 0
        assert shown[sends] - before == 2
        assert _no_secret_in(controller)


def test_failed_tries_are_counted(bundle: BundleDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alert sees a service that takes nothing."""
    monkeypatch.setenv(VARIABLE, f"json://127.0.0.1:1/{SECRET}")
    path = bundle.write("manifest.yaml", _manifest(_config() | {"retry": {"initialBackoff": "10ms"}}))
    with running(path) as controller:
        controller.wait_ready()
        controller.sandbox.create(_map("a"))
        failed = 'declctl_notify_failed_total{target="team"}'
        until("it fails", lambda: controller.metrics().get(failed, 0) >= 2)
        shown = controller.metrics()
        assert shown['declctl_notify_sent_total{target="team"}'] == 0
        assert shown['declctl_notify_waiting_changes{target="team"}'] == 1


def test_the_readme_has_every_metric() -> None:
    """With its type; who writes an alert needs both."""
    registry = CollectorRegistry()
    importlib.import_module("declctl_notify").declctl_metrics(registry)
    kinds = {
        f"{each.name}_total" if each.type == "counter" else each.name: each.type
        for each in registry.collect()
    }
    text = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
    assert dict(re.findall(r"^\| `(declctl_notify_\w+)` \| (\w+) \|", text, re.MULTILINE)) == kinds
    assert set(re.findall(r"increase\((declctl_notify_\w+)", text)) <= kinds.keys()
