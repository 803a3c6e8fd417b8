"""The manifest as values: what the manual's example and each of its parts mean, and the defaults."""

import dataclasses
import re

import pytest

from declctl.manifest import explain, model, plan
from declctl.manifest.values import Address, EntryPoint, FrozenJson, parse_duration, parse_quantity
from declctl.objects import GroupVersionKind
from declctl.objects.shards import Sharding, ShardKey
from tests.rooms.manifest.conftest import FULL


def test_the_whole_example(loaded):
    """Every field that this version does arrives as a value."""
    found = loaded(FULL).controller
    assert found.name == "pod-guard"
    assert found.resources == (
        model.ResourceSpec(
            name="pods",
            api_version="v1",
            kind="Pod",
            namespaces=("team-b",),
            label_selector="app=web",
            field_selector="status.phase=Running",
            resync_period=600.0,
            idle_timeout=120.0,
            cache=model.CacheMode.OBJECTS,
            transform=model.TransformSpec(
                ("metadata.managedFields", "status"), EntryPoint("handlers.trim", "slim")
            ),
            indexers=(
                model.IndexerSpec("byNode", field_path="spec.nodeName"),
                model.IndexerSpec("byTeam", entry_point=EntryPoint("handlers.index", "by_team")),
            ),
        ),
        model.ResourceSpec(
            name="settings",
            api_version="v1",
            kind="ConfigMap",
            namespaces=("default", "team-a"),
            namespaces_inherited=True,
            names=("guard-settings",),
        ),
    )
    assert found.handlers == (
        model.HandlerSpec(
            name="notify",
            resource="pods",
            entry_point=EntryPoint("handlers.pods", "on_change"),
            events=("Added", "Deleted"),
            initial_sync=model.InitialSync.SKIP,
            resync_period=300.0,
            delivery=model.Delivery.KEYED,
            buffer_bytes=1024 * 1024,
            queue=model.QueueSpec(concurrency=4),
            retry=model.RetrySpec(3, 0.5, 60.0),
            timeout=30.0,
            on_failure=model.OnFailure.RETRY,
            replay=model.ReplayPolicy.ON_CODE_CHANGE,
            applies=(GroupVersionKind("apps", "v1", "Deployment"), GroupVersionKind("", "v1", "Service")),
            on_immutable=(GroupVersionKind("apps", "v1", "Deployment"),),
            status=True,
            field_manager="guard/web",
            adopt_fields_from=("kubectl-edit",),
            field_conflicts=model.FieldConflicts.FAIL,
            on_existing=model.OnExisting.FAIL,
        ),
        model.HandlerSpec(name="tell", resource="settings", plugin="slack"),
    )
    assert found.admin == model.AdminSpec(Address("::1", 0))


def test_the_rest_of_the_example(loaded):
    """Plugins, life cycle and reload; steps are in the order of calling."""
    found = loaded(FULL).controller
    assert found.plugins == (
        model.PluginSpec(
            name="slack",
            version=">=1.2,<2",
            on_error=model.OnError.DISABLE,
            config=FrozenJson.of({"channel": "#ops"}),
            config_from=(
                model.ConfigSource("token", env="SLACK_TOKEN"),
                model.ConfigSource("ca", file="certs/ca.pem"),
                model.ConfigSource("key", secret_key_ref=model.SecretKeyRef("slack", "private.pem")),
            ),
        ),
    )
    boot = [EntryPoint("handlers.boot", name) for name in ("a", "b", "late")]
    assert found.lifecycle.startup == (
        model.LifecycleStep(boot[0]),
        model.LifecycleStep(boot[1]),
        model.LifecycleStep(boot[2], order=10),
    )
    assert found.reload == model.ReloadSpec(
        watch=model.WatchFiles.POLL,
        settle=0.1,
        drain_policy=model.DrainPolicy.HANDOVER,
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
    """Moving text around, commenting it, or another spelling leaves an equal controller and an equal plan."""
    moved = "# a comment\n" + FULL.replace("  admin:", "  # another\n  admin:")
    moved = moved.replace("resyncPeriod: 10m", "resyncPeriod: 600s")
    moved = moved.replace(
        "      apiVersion: v1\n      kind: Pod\n", "      kind: Pod\n      apiVersion: v1\n"
    )
    first, second = loaded(FULL).controller, loaded(moved).controller
    assert second == first
    assert hash(second) == hash(first)
    assert plan(second) == plan(first)
    assert hash(plan(second)) == hash(plan(first))


PODS = "resources: [{name: pods, apiVersion: v1, kind: Pod%s}]\n"
HANDLER = PODS % "" + "handlers: [{name: a, resourceRef: {name: pods}, entryPoint: m, %s}]"


@pytest.fixture(name="namespaces")
def _namespaces(loaded):
    """Reads the names, the selector, and whether they come from the spec, of the only resource."""

    def read(text: str) -> tuple[tuple[str, ...] | None, str, bool]:
        (resource,) = loaded(text).controller.resources
        return resource.namespaces, resource.namespace_selector, resource.namespaces_inherited

    return read


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("{labelSelector: {matchLabels: {team: web}}}", "team=web"),
        ("{labelSelector: 'tier in (b,a),team=web'}", "team=web,tier in (a,b)"),
        ("{labelSelector: {matchExpressions: [{key: team, operator: Exists}]}}", "team"),
        ("{labelSelector: '!team'}", "!team"),
        ("{labelSelector: {}}", ""),  # it matches every namespace: one watch of all has the same objects
        ("{labelSelector: ''}", ""),
        ("{labelSelector: {matchLabels: {}}}", ""),
    ],
)
def test_a_selector_of_namespaces_is_read_in_both_forms(namespaces, text, selector):
    """As one text, by which equal selectors share one watch of namespaces."""
    assert namespaces(PODS % f", namespaces: {text}") == (None, selector, False)
    assert namespaces(PODS % "" + f"namespaces: {text}") == (None, selector, True)


@pytest.mark.client_go(329)
def test_the_namespaces_of_a_resource_go_before_those_of_the_spec(loaded, namespaces):
    """A list in the place of a selector, a selector in the place of a list, and all in the place of both."""
    selector = "namespaces: {labelSelector: team=web}"
    assert namespaces(PODS % ", namespaces: [a]" + selector) == (("a",), "", False)
    own = PODS % ", namespaces: {labelSelector: team=api}"
    assert namespaces(f"{own}namespaces: [a]") == (None, "team=api", False)
    for star in ("'*'", '"*"'):
        for spec in (selector, "namespaces: [a]"):
            assert namespaces(PODS % f", namespaces: [{star}]" + spec) == (None, "", False)
    assert namespaces(PODS % "" + """namespaces: ["no", 'yes']""") == (("no", "yes"), "", True)


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


def as_the_model_has_it(kind, default):
    """A documented default of this kind, read."""
    if default == "On":
        return True
    readers = {"duration": parse_duration, "quantity": parse_quantity, "list of text": tuple}
    return readers[kind](default) if kind in readers else default


@pytest.mark.parametrize(
    ("path", "spec"),
    [
        ("spec.resources", model.ResourceSpec("a", "v1", "Pod")),
        ("spec.handlers", model.HandlerSpec("a", "b")),
        ("spec.handlers.retry", model.RetrySpec()),
        ("spec.handlers.queue", model.QueueSpec()),
        ("spec.plugins", model.PluginSpec("a")),
        ("spec.plugins.circuitBreaker", model.CircuitBreakerSpec()),
        ("spec.lifecycle.startup", model.LifecycleStep(EntryPoint("a"))),
        ("spec.reload", model.ReloadSpec()),
        ("spec.leaderElection", model.LeaderElectionSpec()),
        ("spec.sharding", model.ShardingSpec(1)),
    ],
)
def test_documented_defaults_are_the_real_ones(path, spec):
    documented = {}
    for name, kind, _ in explain(path).fields:
        default = explain(f"{path}.{name}").default
        if default is not None:
            attribute = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
            documented[attribute] = as_the_model_has_it(kind, default)
    assert documented
    assert documented == {name: getattr(spec, name) for name in documented}


def test_documented_defaults_of_another_form_are_the_real_ones():
    assert explain("spec.resources.cache.mode").default == model.ResourceSpec("a", "v1", "Pod").cache
    assert explain("spec.admin.bindAddress").default == str(model.AdminSpec().bind_address)


def test_config_is_frozen_and_not_shown():
    """A config may hold secrets, so it isn't printed; each reader has a copy of its own."""
    config = FrozenJson.of({"token": "s3cret", "list": [1]})
    copy = config.value()
    copy["list"].append(2)
    assert config.value() == {"token": "s3cret", "list": [1]}
    assert "s3cret" not in repr(model.PluginSpec("a", config=config))
    assert FrozenJson.of({"a": 1, "b": 2}) == FrozenJson.of({"b": 2, "a": 1})


@pytest.mark.client_go(329, 338)
def test_values_are_frozen(loaded):
    """Nobody changes a manifest after it was read."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded(FULL).controller.name = "other"


def test_a_switch_however_it_is_written(loaded):
    """The manual's own `watch: Off` works, although YAML 1.1 makes a boolean of it; so does a switch."""
    for written in ("Off", "off", "false", '"Off"'):
        assert loaded(f"reload: {{watch: {written}}}").controller.reload.watch == "Off"
    for written, on in {"On": True, "true": True, '"On"': True, "Off": False, "no": False}.items():
        assert loaded(f"reload: {{preflight: {written}}}").controller.reload.preflight is on


def test_a_leader_election(loaded):
    """Durations are seconds, the names are those of the Lease; without a word there is none."""
    given = "leaseDuration: 30s, renewDeadline: 20s, retryPeriod: 1500ms, followers: Cold"
    names = "leaseName: web.example.dev, namespace: team-a"
    found = loaded(f"leaderElection: {{enabled: true, {given}, {names}}}").controller.leader_election
    names = ("web.example.dev", "team-a")
    assert found == model.LeaderElectionSpec(True, 30.0, 20.0, 1.5, model.Followers.COLD, *names)
    assert not loaded("resources: []").controller.leader_election.enabled
    found = loaded("leaderElection: {enabled: true}").controller.leader_election
    assert (found.lease_duration, found.renew_deadline, found.retry_period) == (15.0, 10.0, 2.0)
    assert (found.followers, found.lease_name, found.namespace) == (model.Followers.WARM, None, None)


def test_a_sharding(loaded):
    """As an election has them; absent, there is none, and no resource is shared."""
    given = "leaseDuration: 30s, renewDeadline: 20s, retryPeriod: 1500ms, leaseName: web, namespace: team-a"
    found = loaded(f"sharding: {{slots: 4, by: UID, {given}}}").controller.sharding
    assert found == model.ShardingSpec(4, ShardKey.UID, 30.0, 20.0, 1.5, "web", "team-a")
    assert found.sharding == Sharding(4, ShardKey.UID)
    found = loaded("sharding: {slots: 16}").controller.sharding
    assert found == model.ShardingSpec(16, ShardKey.NAMESPACE, 15.0, 10.0, 2.0)
    assert loaded("resources: []").controller.sharding is None


def test_a_reconciler(loaded):
    """Its finalizer, and the keys of its mappings with a domain or without; there are none by default."""
    (handler,) = loaded(HANDLER % "mode: Reconcile, finalizer: example.dev/App_1.x").controller.handlers
    assert handler.finalizer == "example.dev/App_1.x"
    for way in ("label", "annotation"):
        for key in ("app", "example.dev/App_1.x", "a"):
            watch = f"{{resourceRef: {{name: pods}}, mapTo: {{{way}: {key}}}}}"
            (handler,) = loaded(HANDLER % f"mode: Reconcile, watches: [{watch}]").controller.handlers
            assert getattr(handler.watches[0].map_to, way) == key
            assert handler.finalizer == ""


@pytest.fixture(name="filter_of")
def _filter_of(loaded):
    """Reads the filter of a handler; the plan has the same."""

    def read(text: str) -> model.FilterSpec | None:
        controller = loaded(HANDLER % f"filter: {text}").controller
        (handler,) = controller.handlers
        (planned,) = plan(controller).handlers
        assert planned.filter == handler.filter
        return handler.filter

    return read


def test_every_part_of_a_filter_is_read(filter_of):
    """Selectors and paths are canonical, so that filters that say the same are equal."""
    wanted = model.FilterSpec(
        "app=web,tier in (a,b)", ("metadata.labels", "spec"), EntryPoint("m.f", "interesting")
    )
    parts = 'changedPaths: [spec, ".metadata.labels"], entryPoint: "m.f:interesting"'
    assert filter_of(f'{{labelSelector: "tier in (b,a),app=web", {parts}}}') == wanted
    selector = "{matchLabels: {app: web}, matchExpressions: [{key: tier, operator: In, values: [a, b]}]}"
    assert filter_of(f"{{labelSelector: {selector}, {parts}}}") == wanted
    for everything in ("{}", "{labelSelector: {}}", "{labelSelector: {matchLabels: {}}}"):
        assert filter_of(everything) is None


@pytest.mark.parametrize(
    ("expression", "objects", "changes"),
    [
        ("obj.status.phase == 'x'", True, False),
        ("change.type == 'Added'", False, True),
        ("old == null || obj.spec != old.spec", False, True),
    ],
)
def test_an_expression_judges_objects_or_changes(filter_of, expression, objects, changes):
    """A reload judges cached objects again only for the first kind."""
    found = filter_of(f'{{expression: "{expression}", changedPaths: [spec]}}')
    assert found.expression == expression
    assert (found.object_part != model.FilterSpec(), found.judges_changes) == (objects, changes)


def test_an_expression_from_the_environment_is_not_shown(faults):
    """A variable may be a secret, also one that compares a change with what it never is."""
    fragment = HANDLER % "filter: {expression: '${env:SECRET}'}"
    (fault,) = faults(fragment, environ={"SECRET": "hunter2 =="})
    assert fault.code == "DCL023"
    assert "hunter2" not in str(fault)
    assert faults(fragment, environ={"SECRET": "change.type == 'hunter2'"}) == ()
