"""What is to run: watches shared by key, handlers resolved, equality by value."""

from hypothesis import given
from hypothesis import strategies as st

from declctl.manifest import plan
from declctl.manifest.model import CacheMode, ControllerSpec, HandlerSpec, QueueSpec, ResourceSpec
from declctl.manifest.plan import Plan, TransformId, WatchKey

DROP = TransformId(("metadata.managedFields",))


def resource(name: str = "pods", **fields) -> ResourceSpec:
    return ResourceSpec(name=name, api_version="v1", kind="Pod", **fields)


def planned(*resources: ResourceSpec, handlers: tuple[HandlerSpec, ...] = ()) -> Plan:
    return plan(ControllerSpec("c", resources, handlers))


def test_one_watch_for_each_namespace_and_name():
    """The API server takes one namespace and one name in a watch."""
    spec = resource(namespaces=("a", "b"), names=("x", "y"), label_selector="app=web")
    keys = planned(spec).resources[0].watches
    assert [(key.namespace, key.field_selector) for key in keys] == [
        ("a", "metadata.name=x"),
        ("a", "metadata.name=y"),
        ("b", "metadata.name=x"),
        ("b", "metadata.name=y"),
    ]
    assert {key.label_selector for key in keys} == {"app=web"}


def test_names_join_the_field_selector_in_canonical_order():
    """The same conditions are the same key, whichever way they came."""
    by_names = resource(names=("x",), field_selector="status.phase=Running")
    by_selector = resource("other", field_selector="metadata.name=x,status.phase=Running")
    found = planned(by_names, by_selector)
    assert len(found.watches) == 1
    assert found.watches[0].resources == ("pods", "other")


def test_all_namespaces_is_one_watch():
    (watch,) = planned(resource()).watches
    assert watch.key == WatchKey("v1", "Pod", transform=DROP)


def test_resources_with_the_same_key_share_a_watch():
    """Resources that differ in resync or name cost one list; the stricter idle timeout counts."""
    found = planned(
        resource("fast", resync_period=1.0, idle_timeout=30.0),
        resource("slow", resync_period=9.0),
        resource("part", label_selector="a=b"),
    )
    assert [(watch.resources, watch.idle_timeout) for watch in found.watches] == [
        (("fast", "slow"), 30.0),
        (("part",), 90.0),
    ]


def test_a_handler_hears_at_its_own_period_or_its_resources():
    """Absent means the resource's, 0 means never (client-go 133)."""
    handlers = tuple(
        HandlerSpec(name, "pods", resync_period=period)
        for name, period in (("a", None), ("b", 5.0), ("c", 0.0))
    )
    found = planned(resource(resync_period=60.0), handlers=handlers)
    assert [handler.resync_period for handler in found.handlers] == [60.0, 5.0, 0.0]


def test_a_cluster_scoped_kind_leaves_inherited_namespaces():
    """Who learns that nodes have no namespaces gets one watch out of two."""
    spec = resource(namespaces=("a", "b"), namespaces_inherited=True)
    found = planned(spec).resources[0]
    assert len(found.watches) == 2
    assert found.without_namespaces().watches == (WatchKey("v1", "Pod", transform=DROP),)
    assert found.without_namespaces().namespaces is None


def test_a_selector_of_namespaces_is_one_watch_for_each_name():
    """How many namespaces match is not known here, and changes."""
    spec = resource(namespace_selector="team=web", names=("x", "y"), namespaces_inherited=True)
    found = planned(spec).resources[0]
    assert [str(key) for key in found.watches] == [
        f"v1 Pod in namespaces with team=web [metadata.name={name}]" for name in ("x", "y")
    ]
    assert found.names_namespaces
    everywhere = found.without_namespaces()
    assert [key.namespace_selector for key in everywhere.watches] == ["", ""]
    assert not everywhere.names_namespaces


def test_keys_are_readable():
    key = WatchKey("apps/v1", "Deployment", "team-a", "app=web", "metadata.name=x")
    assert str(key) == "apps/v1 Deployment in team-a [app=web] [metadata.name=x]"
    assert str(WatchKey("v1", "Node")) == "v1 Node in all namespaces"
    assert str(WatchKey("v1", "Node", cache=CacheMode.METADATA_ONLY)) == "v1 Node metadata in all namespaces"


def test_objects_kept_in_two_ways_are_two_watches():
    """What one resource keeps as frames another can't read as objects."""
    held, framed = resource("held", cache=CacheMode.OBJECTS), resource("framed")
    assert [watch.resources for watch in planned(held, framed).watches] == [("held",), ("framed",)]


NAMES = st.lists(st.sampled_from("abc"), unique=True, max_size=3).map(tuple)
SPECS = st.builds(
    lambda number, namespaces, names, labels: resource(
        f"r{number}", namespaces=namespaces or None, names=names, label_selector=labels
    ),
    st.integers(0, 99),
    NAMES,
    NAMES,
    st.sampled_from(["", "a=b"]),
)


@given(st.lists(SPECS, unique_by=lambda spec: spec.name, max_size=5))
def test_every_resource_has_its_watches_and_no_watch_is_double(specs):
    found = planned(*specs)
    keys = [watch.key for watch in found.watches]
    assert len(keys) == len(set(keys))
    for spec, made in zip(specs, found.resources, strict=True):
        assert len(made.watches) == max(len(spec.namespaces or ()), 1) * max(len(spec.names), 1)
        assert set(made.watches) <= set(keys)
    assert {(name, key) for watch in found.watches for name in watch.resources for key in [watch.key]} == {
        (made.name, key) for made in found.resources for key in made.watches
    }


def test_handlers_that_share_a_queue_have_its_workers() -> None:
    """One of them names the number; a queue named default is not shared."""
    queues = [QueueSpec("mail", 3), QueueSpec("mail"), QueueSpec(), QueueSpec("default", 5)]
    handlers = tuple(
        HandlerSpec(name=f"h{n}", resource="pods", queue=queue) for n, queue in enumerate(queues)
    )
    found = planned(resource(), handlers=handlers).handlers
    assert [handler.queue.concurrency for handler in found] == [3, 3, 1, 5]
