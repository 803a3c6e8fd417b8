"""The manifest as values: what the manual's example means, and the defaults."""

import dataclasses

import pytest

from declctl.manifest import explain
from declctl.manifest.model import (
    AdminSpec,
    CacheMode,
    CircuitBreakerSpec,
    ConfigSource,
    Delivery,
    DrainPolicy,
    HandlerSpec,
    IndexerSpec,
    InitialSync,
    LifecycleStep,
    OnError,
    OnFailure,
    PluginSpec,
    QueueSpec,
    ReloadSpec,
    ReplayPolicy,
    ResourceSpec,
    RetrySpec,
    SecretKeyRef,
    TransformSpec,
    WatchFiles,
)
from declctl.manifest.values import Address, EntryPoint, FrozenJson, parse_duration, parse_quantity
from declctl.objects import GroupVersionKind

FULL = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata:
  name: pod-guard
spec:
  namespaces: [default, team-a]
  plugins:
    - name: slack
      version: ">=1.2,<2"
      onError: Disable
      config: {channel: "#ops"}
      configFrom:
        - {name: token, env: SLACK_TOKEN}
        - {name: ca, file: certs/ca.pem}
        - {name: key, secretKeyRef: {name: slack, key: private.pem}}
  resources:
    - name: pods
      apiVersion: v1
      kind: Pod
      labelSelector: {matchLabels: {app: web}}
      fieldSelector: status.phase=Running
      resyncPeriod: 10m
      transform: {dropFields: [status, metadata.managedFields], entryPoint: "handlers.trim:slim"}
      namespaces: [team-b]
      idleTimeout: 2m
      cache: {mode: Objects}
      indexers:
        - {name: byNode, fieldPath: spec.nodeName}
        - {name: byTeam, entryPoint: "handlers.index:by_team"}
    - name: settings
      apiVersion: v1
      kind: ConfigMap
      names: [guard-settings]
  handlers:
    - name: notify
      resourceRef: {name: pods}
      events: [Deleted, Added]
      resyncPeriod: 5m
      entryPoint: "handlers.pods:on_change"
      initialSync: Skip
      delivery: Keyed
      bufferBytes: 1Mi
      queue: {name: default, concurrency: 4}
      retry: {maxAttempts: 3, initialBackoff: 500ms, maxBackoff: 1m}
      timeout: 30s
      onFailure: Retry
      replay: OnCodeChange
      applies: [{apiVersion: apps/v1, kind: Deployment}, {apiVersion: v1, kind: Service}]
      status: true
      fieldManager: guard/web
    - name: tell
      resourceRef: {name: settings}
      pluginRef: {name: slack}
  lifecycle:
    startup:
      - {entryPoint: "handlers.boot:late", order: 10}
      - {entryPoint: "handlers.boot:a"}
      - {entryPoint: "handlers.boot:b"}
    shutdown: [{entryPoint: "handlers.boot:stop"}]
  reload:
    watch: Poll
    drainPolicy: Handover
    drainTimeout: 1s
    settle: 100ms
    preflight: Off
    preflightTimeout: 2s
    warmTimeout: 3s
    probationPeriod: 60s
    minCalls: 5
    maxErrorRatio: 0.25
    informerLinger: 0s
  leaderElection: {enabled: false, leaseDuration: 15s}
  admin: {bindAddress: "[::1]:0"}
"""


def test_the_whole_example(loaded):
    """Every field that this version does arrives as a value."""
    found = loaded(FULL).controller
    assert found.name == "pod-guard"
    assert found.resources == (
        ResourceSpec(
            name="pods",
            api_version="v1",
            kind="Pod",
            namespaces=("team-b",),
            label_selector="app=web",
            field_selector="status.phase=Running",
            resync_period=600.0,
            idle_timeout=120.0,
            cache=CacheMode.OBJECTS,
            transform=TransformSpec(
                ("metadata.managedFields", "status"), EntryPoint("handlers.trim", "slim")
            ),
            indexers=(
                IndexerSpec("byNode", field_path="spec.nodeName"),
                IndexerSpec("byTeam", entry_point=EntryPoint("handlers.index", "by_team")),
            ),
        ),
        ResourceSpec(
            name="settings",
            api_version="v1",
            kind="ConfigMap",
            namespaces=("default", "team-a"),
            namespaces_inherited=True,
            names=("guard-settings",),
        ),
    )
    assert found.handlers == (
        HandlerSpec(
            name="notify",
            resource="pods",
            entry_point=EntryPoint("handlers.pods", "on_change"),
            events=("Added", "Deleted"),
            initial_sync=InitialSync.SKIP,
            resync_period=300.0,
            delivery=Delivery.KEYED,
            buffer_bytes=1024 * 1024,
            queue=QueueSpec(concurrency=4),
            retry=RetrySpec(3, 0.5, 60.0),
            timeout=30.0,
            on_failure=OnFailure.RETRY,
            replay=ReplayPolicy.ON_CODE_CHANGE,
            applies=(GroupVersionKind("apps", "v1", "Deployment"), GroupVersionKind("", "v1", "Service")),
            status=True,
            field_manager="guard/web",
        ),
        HandlerSpec(name="tell", resource="settings", plugin="slack"),
    )
    assert found.admin == AdminSpec(Address("::1", 0))


def test_the_rest_of_the_example(loaded):
    """Plugins, life cycle and reload; steps are in the order of calling."""
    found = loaded(FULL).controller
    assert found.plugins == (
        PluginSpec(
            name="slack",
            version=">=1.2,<2",
            on_error=OnError.DISABLE,
            config=FrozenJson.of({"channel": "#ops"}),
            config_from=(
                ConfigSource("token", env="SLACK_TOKEN"),
                ConfigSource("ca", file="certs/ca.pem"),
                ConfigSource("key", secret_key_ref=SecretKeyRef("slack", "private.pem")),
            ),
        ),
    )
    boot = [EntryPoint("handlers.boot", name) for name in ("a", "b", "late")]
    assert found.lifecycle.startup == (
        LifecycleStep(boot[0]),
        LifecycleStep(boot[1]),
        LifecycleStep(boot[2], order=10),
    )
    assert found.reload == ReloadSpec(
        watch=WatchFiles.POLL,
        settle=0.1,
        drain_policy=DrainPolicy.HANDOVER,
        drain_timeout=1.0,
        preflight=False,
        preflight_timeout=2.0,
        warm_timeout=3.0,
        probation_period=60.0,
        min_calls=5,
        max_error_ratio=0.25,
        informer_linger=0.0,
    )


def test_paths_lead_back_to_the_document(loaded):
    """Every spec knows where it stands."""
    found = loaded(FULL)
    controller = found.controller
    specs = [*controller.resources, *controller.handlers, *controller.plugins, *controller.lifecycle.startup]
    specs += [
        *controller.resources[0].indexers,
        *controller.plugins[0].config_from,
        controller.resources[0].transform,
    ]
    assert all(spec.path in found.document.nodes for spec in specs)
    late = controller.lifecycle.startup[2]
    assert late.path == ("spec", "lifecycle", "startup", 0)


def test_where_it_stands_makes_no_difference(loaded):
    """Moving text around, or commenting it, leaves an equal controller."""
    moved = "# a comment\n" + FULL.replace("  admin:", "  # another\n  admin:")
    assert loaded(moved).controller == loaded(FULL).controller
    assert hash(loaded(moved).controller) == hash(loaded(FULL).controller)


@pytest.mark.parametrize("value", ["'*'", '"*"'])
def test_a_star_stands_for_all_namespaces(loaded, value):
    """A resource can take back the default of the spec."""
    found = loaded(
        f"namespaces: [a]\nresources: [{{name: r, apiVersion: v1, kind: Pod, namespaces: [{value}]}}]"
    )
    assert (found.controller.resources[0].namespaces, found.controller.resources[0].namespaces_inherited) == (
        None,
        False,
    )


@pytest.mark.client_go(329)
def test_resync_zero_is_never(loaded):
    """0s switches resync off; for a handler also that of its resource."""
    found = loaded(
        """
        resources: [{name: r, apiVersion: v1, kind: Pod, resyncPeriod: 0s}]
        handlers: [{name: h, resourceRef: {name: r}, entryPoint: m, resyncPeriod: 0s}]
        """
    ).controller
    assert found.resources[0].resync_period is None
    assert found.handlers[0].resync_period == 0.0


def test_selectors_are_canonical(loaded):
    """However a selector is written, the same one is the same text."""
    resource = "{name: %s, apiVersion: v1, kind: Pod, labelSelector: %s}"
    forms = ["'b=2, a=1'", "{matchLabels: {b: '2', a: '1'}}", "'a==1,b in (2)'"]
    text = ", ".join(resource % (f"r{number}", form) for number, form in enumerate(forms))
    found = loaded(f"resources: [{text}]").controller
    assert {spec.label_selector for spec in found.resources} == {"a=1,b=2"}


@pytest.mark.parametrize(
    ("path", "read", "value"),
    [
        ("spec.resources.idleTimeout", parse_duration, ResourceSpec("a", "v1", "Pod").idle_timeout),
        ("spec.handlers.bufferBytes", parse_quantity, HandlerSpec("a", "b").buffer_bytes),
        ("spec.handlers.retry.initialBackoff", parse_duration, RetrySpec().initial_backoff),
        ("spec.handlers.retry.maxBackoff", parse_duration, RetrySpec().max_backoff),
        ("spec.handlers.queue.concurrency", int, QueueSpec().concurrency),
        ("spec.handlers.queue.name", str, QueueSpec().name),
        ("spec.handlers.events", tuple, HandlerSpec("a", "b").events),
        ("spec.handlers.initialSync", str, HandlerSpec("a", "b").initial_sync),
        ("spec.handlers.delivery", str, HandlerSpec("a", "b").delivery),
        ("spec.handlers.onFailure", str, HandlerSpec("a", "b").on_failure),
        ("spec.handlers.replay", str, HandlerSpec("a", "b").replay),
        ("spec.resources.transform.dropFields", tuple, TransformSpec().drop_fields),
        ("spec.resources.cache.mode", str, ResourceSpec("a", "v1", "Pod").cache),
        ("spec.plugins.onError", str, PluginSpec("a").on_error),
        ("spec.plugins.circuitBreaker.failures", int, CircuitBreakerSpec().failures),
        ("spec.plugins.circuitBreaker.initialBackoff", parse_duration, CircuitBreakerSpec().initial_backoff),
        ("spec.plugins.circuitBreaker.maxBackoff", parse_duration, CircuitBreakerSpec().max_backoff),
        ("spec.lifecycle.startup.order", int, LifecycleStep(EntryPoint("a")).order),
        ("spec.reload.watch", str, ReloadSpec().watch),
        ("spec.reload.settle", parse_duration, ReloadSpec().settle),
        ("spec.reload.drainPolicy", str, ReloadSpec().drain_policy),
        ("spec.reload.drainTimeout", parse_duration, ReloadSpec().drain_timeout),
        ("spec.reload.preflightTimeout", parse_duration, ReloadSpec().preflight_timeout),
        ("spec.reload.warmTimeout", parse_duration, ReloadSpec().warm_timeout),
        ("spec.reload.probationPeriod", parse_duration, ReloadSpec().probation_period),
        ("spec.reload.minCalls", int, ReloadSpec().min_calls),
        ("spec.reload.maxErrorRatio", float, ReloadSpec().max_error_ratio),
        ("spec.reload.informerLinger", parse_duration, ReloadSpec().informer_linger),
        ("spec.admin.bindAddress", str, str(AdminSpec().bind_address)),
    ],
)
def test_documented_defaults_are_the_real_ones(path, read, value):
    """What `explain` calls the default is what happens."""
    assert read(explain(path).default) == value


def test_preflight_is_on_by_default():
    """The switch's default is documented as a word."""
    assert (explain("spec.reload.preflight").default, ReloadSpec().preflight) == ("On", True)


def test_config_is_frozen_and_not_shown():
    """A config may hold secrets, so it isn't printed; each reader has a copy of its own."""
    config = FrozenJson.of({"token": "s3cret", "list": [1]})
    copy = config.value()
    copy["list"].append(2)
    assert config.value() == {"token": "s3cret", "list": [1]}
    assert "s3cret" not in repr(PluginSpec("a", config=config))
    assert FrozenJson.of({"a": 1, "b": 2}) == FrozenJson.of({"b": 2, "a": 1})


@pytest.mark.client_go(329, 338)
def test_values_are_frozen(loaded):
    """Nobody changes a manifest after it was read."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded(FULL).controller.name = "other"
