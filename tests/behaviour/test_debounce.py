"""`debounce` in a whole controller: changes of an object become one, and none is lost."""

from declctl.testing import until

CODE = """
import blackboard

def tell(change, obj, old):
    blackboard.tell(obj.name, str(change.type), old and old["data"].get("n"), obj["data"].get("n"))

def keys(request):
    blackboard.tell("key", request.name, request.obj and request.obj["data"].get("n"), len(request.causes))
"""


def test_an_object_that_changes_often_is_handled_once(rig, config_map) -> None:
    """From the first state to the last, in one call; the debounce is so long that none is missed."""
    rig.handler("tell", rest="debounce: 1500ms, initialSync: Skip")
    runs = rig.run(CODE, objects=[config_map("a", n="0")])
    for number in range(1, 6):
        runs.sandbox.update(config_map("a", n=str(number)))
    until("the last state is told", lambda: any(row[3] == "5" for row in rig.board.told))
    runs.wait_idle()
    figures = runs.handler("tell")
    assert rig.board.told[0][:3] == ("a", "Modified", "0")
    # On a machine that stands still for seconds between two updates, there are more calls, and none is lost.
    assert len(rig.board.told) + figures.merged == 5


def test_an_edit_ends_the_rest(rig, config_map) -> None:
    """The drain does not wait: new code handles what rests, or that which goes; nothing is dropped."""
    rig.handler("tell", rest="debounce: 1h")
    runs = rig.run(CODE)
    runs.sandbox.create(config_map("a", n="0"))
    until("it rests", lambda: runs.handler("tell").queued == 1)
    new = CODE.replace("obj.name, str", "'new ' + obj.name, str")
    rig.only(rest="debounce: 0s")
    rig.apply(new)
    until("it is told", lambda: rig.told("new a", "Added"))
    assert len(rig.board.told) == 1
    rig.only(rest="debounce: 1h")
    rig.apply()
    runs.sandbox.create(config_map("b", n="0"))
    until("it rests", lambda: runs.handler("tell").queued == 1)
    rig.only("keys", rest="mode: Reconcile, initialSync: Skip")
    rig.apply()
    until("it is told", lambda: rig.told("new b", "Added"))
    assert runs.status().removed == {}


def test_at_the_end_of_the_process_what_rests_is_handled(rig, config_map) -> None:
    """SIGTERM ends the rest: a Deleted would not come again after a restart."""
    rig.handler("tell", rest="debounce: 1h, events: [Deleted]")
    rig.handler("keys", rest="mode: Reconcile")
    runs = rig.run(CODE, objects=[config_map("a", n="0")])
    until("handlers have begun", lambda: rig.told("key", "a"))  # caches are ready a moment before
    runs.sandbox.delete("ConfigMap", "a", "default")
    until("it rests", lambda: runs.handler("tell").queued == 1)
    runs.stop()
    assert rig.told("a", "Deleted")
    assert not runs.log.find("changes that waited are dropped")


def test_a_reconciler_is_called_once_for_many_changes(rig, config_map) -> None:
    """With the newest state, and the causes of all."""
    rig.handler("keys", rest="mode: Reconcile, debounce: 1500ms")
    runs = rig.run(CODE)
    for number in range(5):
        one = config_map("a", n=str(number))
        runs.sandbox.update(one) if number else runs.sandbox.create(one)
    until("the last state is reconciled", lambda: rig.told("key", "a", "4"))
    runs.wait_idle()
    figures = runs.handler("keys")
    assert len(rig.board.told) + figures.merged == 5
