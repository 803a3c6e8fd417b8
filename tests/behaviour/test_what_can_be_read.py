"""What can be read is there: a cache that has not synced is never taken for an empty one."""

import pytest

from declctl.errors import NotSynced, UnknownNamespace
from declctl.sandbox.faults import Match
from declctl.testing import until
from tests.behaviour.conftest import secret

SECRETS = "- {name: secrets, apiVersion: v1, kind: Secret}"
# Tells each ConfigMap without a Secret of its name to be an orphan, as a handler would that deletes it.
ACTS = """
from blackboard import tell as note
def tell(obj, ctx):
    note("called", obj.name)
    secrets = ctx.listers["secrets"]
    note("kept" if secrets.get(f"default/{obj.name}") else "deleted", obj.name)
"""


@pytest.fixture
def acting(rig):
    """A handler of ConfigMaps that acts on the absence of Secrets."""
    rig.resources.append(SECRETS)
    retry = "retry: {maxAttempts: 2, initialBackoff: 20ms, maxBackoff: 50ms}"
    rig.handler("tell", rest=retry)
    rig.handler("tell-async", entry="handlers:tell_async", rest=retry)
    rig.write(ACTS + "async def tell_async(obj, ctx): tell(obj, ctx)\n")
    return rig


@pytest.fixture
def start(acting, controller, config_map):
    """Start it over three ConfigMaps, each with a Secret of its name."""

    def begin(policy: str = "", objects=()):
        acting.reload_policy += policy
        acting.write()
        maps = [config_map(name) for name in "abc"]
        return controller(acting.folder.path, objects=[*maps, *(secret(name) for name in "abc"), *objects])

    return begin


def _in(rig, what: str) -> int:
    return len(rig.told(what))


def test_a_kind_that_is_not_served_is_not_waited_for(start, rig, acting) -> None:
    """Handlers begin at once, and a read of it says that it is not served."""
    acting.resources[1] = "- {name: secrets, apiVersion: example.dev/v1, kind: Gadget}"
    runs = start(", warmTimeout: 60s")
    until("each was called", lambda: _in(rig, "called") >= 6)
    assert _in(rig, "deleted") == 0
    with pytest.raises(NotSynced, match=r"404 NotFound"):
        runs.lister("secrets").keys()
    runs.wait_ready()
    [line] = [line for line in runs.log.events("warning") if line.startswith("secrets has not synced")]
    assert "mend its apiVersion and kind" in line


def test_a_reload_while_caches_fill_lets_no_handler_begin(start, rig, sandbox, acting) -> None:
    """The code is edited before the first sync is over: the new code hears it all, and nothing is lost."""
    sandbox.faults.refuse(503, Match(resource="secrets"))
    runs = start()
    until("the other cache has synced", lambda: runs.resource("maps").synced)
    acting.handlers = []
    acting.handler("tell", rest="queue: {concurrency: 2}")
    acting.handler("third", entry="handlers:tell")
    acting.write(ACTS.replace('"deleted"', '"deleted by new code"').replace('"kept"', '"kept by new code"'))
    assert runs.reload().result == "Applied"
    assert not runs.resource("secrets").synced
    assert rig.told() == []
    sandbox.faults.clear()
    runs.wait_idle(60.0)
    assert _in(rig, "kept by new code") == 6
    assert _in(rig, "called") == _in(rig, "kept by new code") + _in(rig, "kept")
    assert _in(rig, "deleted") == _in(rig, "deleted by new code") == 0


@pytest.mark.parametrize("hook", ["declctl_startup", "declctl_prepare"])
def test_a_hook_that_reads_a_cache_before_it_is_filled_is_told_so(hook, acting, controller) -> None:
    """Caches fill after the first generation was prepared: the start ends with the name and the reason."""
    acting.handlers = []
    acting.handler("tell", entry="handlers")
    acting.write(
        "import declctl\n"
        f"@declctl.hookimpl\ndef {hook}(ctx): assert len(ctx.listers['secrets']) == 0\n"
        "@declctl.hookimpl\ndef declctl_event(change): pass\n"
    )
    with pytest.raises(Exception, match=r"NotSynced: secrets has not synced \(it was not started"):
        controller(acting.folder.path)


def test_a_hook_of_a_later_generation_reads_what_has_synced(rig, config_map) -> None:
    """`declctl_prepare` of an edit may look into the caches that are filled already."""
    rig.handler("tell", entry="handlers")
    code = "import declctl\nfrom blackboard import tell as note\n"
    code += "@declctl.hookimpl\ndef declctl_event(change): pass\n"
    runs = rig.run(code, objects=[config_map("m")])
    rig.folder.write(
        "handlers.py",
        f"{code}@declctl.hookimpl\ndef declctl_prepare(ctx): note('found', len(ctx.listers['maps']))\n",
    )
    assert runs.reload().result == "Applied"
    assert rig.told("found") == [("found", 1)]


READS = """
from declctl import UnknownNamespace
from blackboard import tell as note
def tell(obj, ctx):
    for key in ("team-a/a", "team-a/b", "team-b/a"):
        try:
            note("read", key, ctx.listers["maps"].get(key) is not None)
        except UnknownNamespace as error:
            note("read", key, str(error))
"""


@pytest.mark.client_go(323, "Multi-namespace cache")
def test_a_namespace_that_is_not_watched_is_not_taken_for_an_empty_one(rig, config_map) -> None:
    """A handler that acts on the absence of an object is told that it can't know, until an edit adds it."""
    rig.resources = ["- {name: maps, apiVersion: v1, kind: ConfigMap, namespaces: [team-a]}"]
    rig.handler("tell")
    runs = rig.run(READS, objects=[config_map("a", "team-a"), config_map("a", "team-b")])
    runs.wait_idle()
    assert rig.told("read")[:2] == [("read", "team-a/a", True), ("read", "team-a/b", False)]
    assert rig.told("read", "team-b/a")[0][2].startswith("maps is not watched in the namespace 'team-b'")
    with pytest.raises(UnknownNamespace):
        runs.lister("maps").list(namespace="team-b")

    rig.apply(None, "- {name: maps, apiVersion: v1, kind: ConfigMap, namespaces: [team-a, team-b]}")
    runs.wait_idle()
    assert rig.told("read", "team-b/a")[-1] == ("read", "team-b/a", True)
    assert [obj.name for obj in runs.lister("maps").list(namespace="team-b")] == ["a"]


@pytest.mark.client_go(323)
def test_cluster_scoped_kinds_have_no_namespace_to_miss(rig) -> None:
    """They leave the namespaces of the spec, and are read by their names."""
    rig.resources = ["- {name: spaces, apiVersion: v1, kind: Namespace}"]
    rig.more = "  namespaces: [team-a]\n"
    runs = rig.run("", objects=[{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-b"}}])
    assert runs.lister("spaces").get("team-b").name == "team-b"
    assert runs.lister("spaces").get("team-c") is None


@pytest.mark.client_go(322, "Lazy informers")
def test_a_resource_that_the_manifest_does_not_name_can_not_be_read(rig, config_map) -> None:
    """No read starts a watch that nobody has planned: the failure names what there is."""
    rig.resources.append(SECRETS)
    rig.handler("tell", rest="retry: {maxAttempts: 1}")
    runs = rig.run("def tell(ctx):\n    ctx.listers['pods'].list()\n", objects=[config_map("m")])
    until("the call has failed", lambda: runs.handler("tell").failed == 1)
    message = runs.handler("tell").last_error or ""
    assert "no resource is named 'pods'; the manifest declares: maps, secrets" in message
    assert runs.sandbox.ledger.count("list", resource="pods") == 0
    assert runs.lister("secrets").list() == []
