"""`onFailure: DeadLetter` in a whole controller: given up, mended by a reload, requeued."""

from declctl.testing import until

FAILS = "retry: {maxAttempts: 2, initialBackoff: 10ms, maxBackoff: 10ms}, onFailure: DeadLetter"
BROKEN = "def tell(obj):\n    raise ValueError('no ' + obj.name)\n"
RECONCILER = """
import blackboard
from declctl import Terminal

def keys(request):
    if not blackboard.told:
        blackboard.tell("called")
        raise Terminal("no")
    blackboard.tell("reconciled", request.name, str(request.causes[0]))
"""


def _requeue(runs, *words):
    async def asked():
        return runs.runtime.requeue(*words)

    return runs.on_machinery(asked(), 10.0)


def test_a_removed_handler_takes_its_letters_along(rig, config_map) -> None:
    """The log says how many."""
    rig.handler("tell", rest=FAILS)
    runs = rig.run(BROKEN)
    runs.sandbox.create(config_map("a"))
    until("it is given up", lambda: runs.handler("tell").dead_letters == 1)
    rig.handlers.clear()
    rig.handler("other", entry="handlers:tell", rest=FAILS)
    rig.write()
    runs.reload()
    words = "the handler tell was removed, and its dead letters with it: 1"
    until("the log says so", lambda: runs.log.find(words))


def test_a_key_that_is_given_up_is_reconciled_when_it_is_requeued(rig, config_map) -> None:
    """Terminal gives up at once; the requeue is the cause of the next call."""
    rig.handler("keys", rest=f"mode: Reconcile, {FAILS}")
    runs = rig.run(RECONCILER)
    runs.sandbox.create(config_map("a"))
    until("it is given up", lambda: runs.handler("keys").dead_letters == 1)
    (letter,) = runs.runtime.dead_letters()
    assert (letter.type, letter.attempts, letter.error) == ("Reconcile", 1, "Terminal: no")
    assert dict(_requeue(runs)) == {"Requeued": 1}
    until("it is reconciled", lambda: rig.told("reconciled", "a"))
    assert rig.told("reconciled") == [("reconciled", "a", "Requeue maps default/a (DeadLetter)")]
    assert runs.handler("keys").dead_letters == 0


def test_without_a_last_attempt_only_terminal_makes_a_letter(rig, config_map) -> None:
    """A fault that may pass is retried until it has passed, and one that won't is kept for `requeue`."""
    rest = "mode: Reconcile, retry: {initialBackoff: 10ms, maxBackoff: 10ms}, onFailure: DeadLetter"
    rig.handler("keys", rest=rest)
    runs = rig.run(
        "import blackboard\nfrom declctl import Terminal\n\n"
        "def keys(request):\n"
        "    blackboard.tell('called', request.name)\n"
        "    if request.name == 'wrong':\n        raise Terminal('no')\n"
        "    if len(blackboard.told) < 20:\n        raise ConnectionError('not now')\n"
        "    blackboard.tell('reconciled', request.name)\n"
    )
    runs.sandbox.create(config_map("wrong"))
    until("it is given up", lambda: runs.handler("keys").dead_letters == 1)
    runs.sandbox.create(config_map("late"))
    until("it is reconciled", lambda: rig.told("reconciled", "late"))
    runs.wait_idle()
    assert [letter.key for letter in runs.runtime.dead_letters()] == ["default/wrong"]
    assert len(rig.told("called", "wrong")) == 1
