"""Garbage collection; `tests/e2e/test_garbage.py` compares it with a real cluster."""

from declctl.sandbox import SandboxThread
from tests.rooms.sandbox.shapes import config_map


def owned(name, *owners):
    keys = ("apiVersion", "kind", "name", "uid")
    obj = config_map(name)
    obj["metadata"]["ownerReferences"] = [
        dict(zip(keys, ("v1", "ConfigMap", each, f"uid-{each}"), strict=True)) for each in owners
    ]
    obj["metadata"]["uid"] = f"uid-{name}"
    return obj


def names(server):
    return {each["metadata"]["name"] for each in server.objects("ConfigMap")}


def test_documents_of_one_load_may_come_in_any_order():
    """A dependent is no garbage if its owner is loaded with it; without its owner it is, at the start."""
    with SandboxThread(garbage_collection=True) as server:
        server.load([owned("child", "owner"), owned("owner"), owned("stray", "nobody")])
        assert names(server) == {"child", "owner"}
        server.delete("ConfigMap", "owner")
        assert names(server) == set()


def test_a_finalizer_keeps_the_dependents():
    """As long as an owner is only marked, its dependents stay."""
    with SandboxThread(garbage_collection=True) as server:
        owner = owned("owner")
        owner["metadata"]["finalizers"] = ["example.com/x"]
        server.load([owner, owned("child", "owner"), owned("grandchild", "child")])
        server.delete("ConfigMap", "owner")
        assert names(server) == {"owner", "child", "grandchild"}
        server.patch("ConfigMap", "owner", {"metadata": {"finalizers": None}})
        assert names(server) == set()


def test_a_backup_is_looked_at_again():
    """After a restore, owners and dependents are those of the backup."""
    with SandboxThread(garbage_collection=True) as server:
        server.load([owned("owner"), owned("child", "owner")])
        backup = server.save()
        server.delete("ConfigMap", "owner")
        assert names(server) == set()
        server.restore(backup)
        assert names(server) == {"owner", "child"}
        server.delete("ConfigMap", "owner")
        assert names(server) == set()
