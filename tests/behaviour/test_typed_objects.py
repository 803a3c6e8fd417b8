"""Typed resources: every place where code gets an object has the class of the newest generation."""

import pytest

from declctl.testing import until
from tests.behaviour.conftest import secret

CODE = """
import declctl, msgspec
from blackboard import tell as note

class Data(msgspec.Struct):
    size: str
    color: str = "blue"

class Settings(declctl.Object):
    data = declctl.field(Data)
    @property
    def is_large(self): return self.data.size == "large"

class Token(declctl.Object):
    data = declctl.field(dict[str, bytes])

def accepts(obj): return type(obj) is Settings and obj.data.color == "blue"
def of_token(obj): return [obj.data["for"].decode()]
def by_size(obj): return [obj.data.size]

def told(change, obj, old):
    note("change", type(obj).__name__, obj.is_large, None if old is None else old.is_large, obj["data"])

def keyed(request, ctx):
    obj = request.obj
    kept = ctx.listers["maps"].get(request.key)
    listed = [each.data.size for each in ctx.listers["maps"].list()]
    indexed = [each.is_large for each in ctx.listers["maps"].by_index("bySize", "large")]
    taken = [each.is_large for each in ctx.snapshots["maps"]]
    note("key", request.name, obj and obj.is_large, kept and kept.is_large, listed, indexed, taken)
"""
MAPS = (
    '- {name: maps, apiVersion: v1, kind: ConfigMap, type: "handlers:Settings", '
    'indexers: [{name: bySize, entryPoint: "handlers:by_size"}]}'
)
TOKENS = '- {name: tokens, apiVersion: v1, kind: Secret, type: "handlers:Token"}'
WATCHES = 'watches: [{resourceRef: {name: tokens}, mapTo: {entryPoint: "handlers:of_token"}}]'
KEYED = f"mode: Reconcile, {WATCHES}, includeSnapshotsFrom: [maps]"


@pytest.fixture
def typed(rig):
    """ConfigMaps and Secrets, each with a class."""
    rig.resources = [MAPS, TOKENS]
    return rig


def test_changes_filters_keys_listers_and_mappings_are_typed(typed, config_map) -> None:
    """A filter's function judges both states by the class, and an index its fields."""
    typed.handler("told", rest='filter: {entryPoint: "handlers:accepts"}')
    typed.handler("keyed", rest=KEYED)
    runs = typed.run(CODE, objects=[config_map("m", size="small"), config_map("red", size="x", color="red")])
    runs.wait_idle()
    store = runs.sandbox
    store.patch("ConfigMap", "m", {"data": {"size": "large"}}, namespace="default")
    runs.wait_idle()
    assert [row[1:4] for row in typed.told("change")] == [
        ("Settings", False, None),
        ("Settings", True, False),
    ]
    assert typed.told("key", "m")[-1][2:] == (True, True, ["large", "x"], [True], [True, False])
    typed.board.clear()
    store.create(secret("t") | {"data": {"for": "bQ=="}})
    until("the token leads to the key", lambda: bool(typed.told("key", "m")))


@pytest.mark.parametrize("rest", ["", ", isolation: {mode: Process}"])
def test_a_reload_of_the_class_alone_lists_nothing(typed, config_map, asked, rest) -> None:
    """The next call has the new class, also in a process of its own; the old one is freed."""
    typed.handler("keyed", rest=KEYED + rest)
    code = CODE.replace('note("key"', 'ctx.log.info("called", told=[str(obj and obj.is_large)]); note("key"')
    runs = typed.run(code, objects=[config_map("m", size="large")])
    runs.wait_idle()
    requests = asked()
    assert typed.reload(code.replace('== "large"', '== "huge"')).lists == 0
    runs.wait_idle()
    told = [line.fields["told"] for line in runs.log.lines if "told" in line.fields]
    assert (told[0], told[-1]) == (["True"], ["False"])
    assert asked() == requests
    typed.retired()


def test_another_class_in_the_manifest_is_a_swap(typed, config_map, asked) -> None:
    """An edit of `type` alone: the plan says so, no cache is made anew, and the handler is called with it."""
    typed.handler("keyed", rest="mode: Reconcile, includeSnapshotsFrom: [maps]")
    code = f"{CODE}\nclass Other(Settings):\n    is_large = 'other'\n"
    runs = typed.run(code, objects=[config_map("m", size="large")])
    runs.wait_idle()
    requests = asked()
    outcome = typed.reload(None, MAPS.replace(":Settings", ":Other"), TOKENS)
    assert "~resource maps (type)" in outcome.line
    until("it is called again", lambda: typed.told("key", "m")[-1][2] == "other")
    assert asked() == requests
