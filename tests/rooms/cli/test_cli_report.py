"""`declctl status` for people."""

from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from declctl.cli.report import age, headline, print_dead_letters, print_queue, print_status

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
RELOADED: dict[str, Any] = {
    "type": "Reloaded",
    "status": "False",
    "reason": "SyntaxError",
    "message": "4f2c: handlers/pods.py:14: invalid syntax",
    "lastTransitionTime": "2026-01-01T11:57:59Z",
}
PODS: dict[str, Any] = yaml.safe_load("""
{name: pods, synced: true, objects: 2300, bytes: 812345, lists: 1, watches: 2, relists: 0,
 resourceVersion: "88123", lastEventAge: 0.4, error: null, state: Watching}
""")
NOTIFY: dict[str, Any] = yaml.safe_load("""
{name: notify, synced: true, delivered: 2311, succeeded: 2310, failed: 1, retried: 1, merged: 0, dropped: 0,
 filtered: 41, replayed: 500, queued: 0, running: 0, p95Seconds: 0.004,
 lastError: "default/a: KeyError: [bold]", lastErrorTime: "2026-01-01T11:59:15Z"}
""")


def document(**changes: Any) -> dict[str, Any]:
    known = {"name": "pod-guard", "generation": 6, "bundleHash": "4f2c", "ready": True, "leader": True}
    lists = {"conditions": [RELOADED], "resources": [PODS], "handlers": [NOTIFY], "plugins": []}
    return {**known, **lists, **changes}


def told(*conditions: dict[str, Any], **changes: Any) -> str:
    """What stands in the first line behind the name, without its brackets."""
    line = headline(document(conditions=list(conditions), **changes), now=NOW)
    assert line.startswith("pod-guard generation 6")
    _, _, said = line.partition(" (")
    assert not said or said.endswith(")")
    return said[:-1]


@pytest.fixture(name="shown")
def _shown(capsys: pytest.CaptureFixture[str]):
    """Prints a status with these changes, and gives its lines."""

    def shown(**changes: Any) -> list[str]:
        print_status(document(**changes), now=NOW)
        return capsys.readouterr().out.splitlines()

    return shown


def rows(lines: list[str], *beginnings: str) -> list[list[str]]:
    """The words of the lines that begin so."""
    return [line.split() for line in lines if line.startswith(beginnings)]


GONE = "configmap/a/b was deleted, and the process goes on with the last files: create it again"
FAILS = "notify: the last 9 calls have failed, the newest for shop/web: ValueError: no"


@pytest.mark.parametrize(
    ("condition", "line"),
    [
        ({}, "STALE: reload failed 2m ago: SyntaxError: 4f2c: handlers/pods.py:14: invalid syntax"),
        # Going back is no failed reload: from where to where, why, and what comes next.
        (
            {"reason": "RolledBack", "message": "rolled back from generation 5 to 4: asked"},
            "ROLLED BACK 2m ago from generation 5 to 4: asked; the files are tried again when they change",
        ),
        # The files are what runs, but not all is well.
        (
            {"status": "True", "reason": "RollbackRefused", "message": "Forbidden: v1 Pod in a: pods: 403"},
            "ROLLBACK REFUSED: Forbidden: v1 Pod in a: pods: 403",
        ),
        (
            {"status": "True", "reason": "RestartRequired", "message": "admin.bindAddress"},
            "RESTART REQUIRED: admin.bindAddress",
        ),
        ({"status": "True", "reason": "Applied", "message": ""}, ""),
        # The process looks well, and no edit of the ConfigMap arrives.
        (
            {"type": "FilesFollowed", "reason": "ConfigMapDeleted", "message": GONE},
            f"FILES NOT FOLLOWED for 2m: {GONE}",
        ),
        # Texts are for clients with the token.
        (
            {"type": "FilesFollowed", "reason": "ConfigMapDeleted", "message": ""},
            "FILES NOT FOLLOWED for 2m: ConfigMapDeleted",
        ),
        ({"type": "FilesFollowed", "status": "True", "reason": "Followed", "message": ""}, ""),
        # The first handler and its error; the others, and what to do, are in the table of the conditions.
        (
            {"type": "HandlersHealthy", "reason": "CallsFail", "message": f"{FAILS}; do this"},
            f"HANDLERS FAIL: {FAILS}",
        ),
        ({"type": "HandlersHealthy", "reason": "CallsFail", "message": ""}, "HANDLERS FAIL: CallsFail"),
    ],
)
def test_what_is_wrong_stands_in_the_first_line(condition, line):
    """Whoever looks at the status of a stale controller can't miss it, nor why."""
    assert told({**RELOADED, **condition}) == line


def test_the_first_line_says_whether_it_is_ready_and_what_comes():
    """A healthy controller has nothing in brackets; a refusal that is tried again says when."""
    assert told() == ""
    ready = {**RELOADED, "type": "Ready", "message": "not synced: pods"}
    assert told(ready, ready=False) == "NOT READY: not synced: pods"
    retry = {"reason": "Forbidden", "retries": 2, "nextInSeconds": 40.0}
    assert told(RELOADED, reloadRetry=retry).endswith("; it is tried again in 40s, 2 so far")


def test_each_age_is_that_of_its_own_event(shown):
    """Files that do not run for hours, and an attempt that was refused a moment ago."""
    condition = {**RELOADED, "lastTransitionTime": "2026-01-01T08:59:00Z"}
    ready = {**condition, "type": "Ready", "status": "True", "lastTransitionTime": "2025-12-28T12:00:00Z"}
    last = {"time": "2026-01-01T11:59:18Z", "result": "Refused", "reason": "SyntaxError"}
    first, *lines = shown(conditions=[ready, condition], lastReload=last)
    assert "(STALE: reload failed 42s ago: SyntaxError" in first
    ages = {row[0]: row[3] for row in rows(lines, "Ready", "Reloaded")}
    assert ages == {"Ready": "4d", "Reloaded": "3h"}


@pytest.mark.parametrize(
    ("moment", "said"),
    [
        ("2026-01-01T12:00:00Z", "0s"),
        ("2026-01-01T11:58:01Z", "119s"),
        ("2026-01-01T11:57:59Z", "2m"),
        ("2026-01-01T09:59:00Z", "2h"),
        ("2025-12-30T12:00:00Z", "2d"),
        ("2026-01-01T12:00:05Z", "0s"),
        ("yesterday", "an unknown time"),
    ],
)
def test_ages_are_in_one_unit(moment, said):
    """Ages read as in kubectl, and a clock that is ahead gives no negative one."""
    assert age(moment, now=NOW) == said


def test_tables_are_whole_where_there_is_no_terminal(shown):
    """In a pipe each resource and handler is one line, never cut or folded, without colour or markup."""
    lines = shown()
    by_first = {line.split()[0]: line.split() for line in lines if line}
    assert by_first["pods"][:5] == ["pods", "yes", "2,300", "793Ki", "1"]
    assert by_first["HANDLER"][6:9] == ["MERGED", "FILTERED", "REPLAYED"]
    assert by_first["notify"][6:9] == ["0", "41", "500"]
    assert by_first["notify"][-5:] == ["45s", "ago:", "default/a:", "KeyError:", "[bold]"]
    assert not any("\x1b" in line for line in lines)
    sections = ("PLUGIN", "WATCH OF", "WRITES OF", "LOG LEVEL", "ABANDONED", "SCHEDULE")
    assert not [line for line in lines if line.startswith(sections)]
    assert "ABANDONED" not in "".join(shown(abandonedCalls=[], logLevel=None))


@pytest.mark.guarantee("G9")
def test_calls_that_do_not_return_have_a_column_once_there_are_any(shown):
    """Zombies, and changes that were dropped, are shown where there are some; else nobody looks for them."""
    for stuck, columns in ((0, []), (2, ["ZOMBIES"])):
        lines = shown(handlers=[{**NOTIFY, "name": "quiet", "zombies": 0}, {**NOTIFY, "zombies": stuck}])
        (head,), (row,) = rows(lines, "HANDLER"), rows(lines, "notify")
        assert [name for name in head if name in ("ZOMBIES", "DROPPED")] == columns
        assert not stuck or row[head.index("ZOMBIES")] == "2"


SELDOM: dict[str, Any] = yaml.safe_load("""
abandonedCalls: [{name: the index byNode of pods, place: "/app/handlers.py:12 in by_node", seconds: 61.2}]
logLevel: {level: debug, start: info, until: "2026-01-01T12:10:00Z"}
schedules:
- {name: nightly, nextRun: "2026-01-02T02:00:00Z", lastRun: "2026-01-01T02:00:00Z", lastOutcome: Failed,
   succeeded: 3, failed: 1, skipped: 2, running: 0, lastError: "KeyError: 'team'"}
writes:
- {handler: web, verb: apply, result: succeeded, count: 12}
- {handler: web, verb: patch_status, result: skipped, count: 4}
waitingWrites:
- {handler: web, waiting: 1300, oldestSeconds: 26.4}
warnings:
- {handler: web, kind: v1 Pod, text: a is gone, count: 7, last: "2026-01-01T11:59:55Z"}
""")
WATCH = {"resource": "pods", "mapTo": "annotation (example.dev/app)", "led": 3, "keys": 5}
WATCH |= {"ledNowhere": 1234, "noKeys": 2}


def test_what_not_each_controller_has_is_a_table_of_its_own(shown):
    """Staged code that goes on, mappings that find nothing, writes, a changed level, and the next night."""
    lines = shown(**SELDOM, handlers=[NOTIFY, {**NOTIFY, "name": "web", "watches": [WATCH]}])
    text = "\n".join(" ".join(line.split()) for line in lines)
    for table in (
        "ABANDONED CALL FOR AT\nthe index byNode of pods 61s /app/handlers.py:12 in by_node\n",
        "\nweb pods annotation (example.dev/app) 3 5 1,234 2\n",
        "WRITES OF VERB RESULT COUNT\nweb apply succeeded 12\nweb patch_status skipped 4\n",
        "RATE-LIMITED HANDLER WAITING WRITES FOR\nweb 1,300 26s\n",
        "API SERVER WARNING FOR HANDLER COUNT LAST TEXT\nv1 Pod web 7 5s ago a is gone\n",
        "LOG LEVEL START RESET\ndebug info in 10m\n",
    ):
        assert table in f"{text}\n"
    for words in ("SCHEDULE", "2026-01-02T02:00:00Z", "Failed", "KeyError: 'team'", "WATCH OF"):
        assert words in text


def test_the_slots_of_a_process_are_one_line(shown):
    """What it handles, what it should hold, what no process holds, and what stops it."""
    sharding = {"leases": "a/web", "handled": 5, "held": 6, "quota": 8, "total": 16, "free": 2, "members": 2}
    counts = {"gained": 9, "givenBack": 2, "lost": 1, "refusedWrites": 3, "fault": None, "error": "403"}
    (row,) = rows(shown(sharding=sharding | counts), "a/web")
    assert row == ["a/web", "5", "6", "8", "16", "2", "2", "11", "1", "3", "403"]


@pytest.mark.parametrize(("failed", "dropped"), [(0, 0), (3, 0), (0, 500)])
def test_events_that_are_lost_are_shown(shown, failed, dropped):
    """Kubernetes Events that the server never got have a line where there are some."""
    lines = shown(recordedEvents={"posted": 20, "failed": failed, "dropped": dropped})
    line = ["recorded", "20", str(failed), str(dropped)]
    assert rows(lines, "recorded") == ([line] if failed or dropped else [])


WELL = {"objects": 9, "whole": 9, "unexpected": 0, "unread": 0, "dropped": 4, "failed": 0}
FAULT = "the transform raised KeyError on a: 'x'"
INDEX = {"count": 3, "last": "KeyError on default/a at handlers.py:4: 'team'"}


@pytest.mark.parametrize(
    ("known", "notable"),
    [
        ({"queued": 0, "skipped": 0, "slow": 0}, ""),
        ({"queued": 12, "skipped": 0, "slow": 3, "mutations": 2}, ", 12 queued, 3 slow, 2 mutations"),
        ({"decoding": WELL}, ""),
        (
            {"decoding": {**WELL, "unexpected": 3, "unread": 1, "failed": 2, "lastFault": FAULT}},
            f", 3 fully decoded, 1 not decodable, 2 failed in the transform (the last: {FAULT})",
        ),
        (
            {"informers": [{"indexFaults": {"byTeam@handlers:by_team#4f2c": INDEX}}]},
            f", index byTeam failed 3 times (the last: {INDEX['last']})",
        ),
        ({"namespaces": {"selector": "a=b", "matched": 1, "unlisted": 0}}, ", 1 namespace with a=b"),
        (
            {"namespaces": {"selector": "a=b", "matched": 1200, "unlisted": 3}},
            ", 1,200 namespaces with a=b (3 not listed yet)",
        ),
    ],
)
def test_a_resource_says_what_somebody_should_know_and_nothing_else(shown, known, notable):
    """What waits, was skipped, was slow or failed stands behind the state where it is not zero."""
    (line,) = [line for line in shown(resources=[{**PODS, **known}]) if line.startswith("pods")]
    assert line.partition("ago")[2].strip() == f"Watching{notable}"


def test_dead_letters_are_a_table(capsys):
    """One line for each, with how long ago it was given up; no table without letters."""
    letter = yaml.safe_load("""
        {handler: notify, key: default/web-0, type: Modified, attempts: 5, changes: 2,
         failedAt: "2026-01-01T11:57:00Z", generation: 6, error: "TimeoutError: slack"}
    """)
    print_dead_letters({"deadLetters": [letter]}, now=NOW)
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[:2]] == [
        "HANDLER KEY TYPE ATTEMPTS CHANGES FAILED GENERATION ERROR",
        "notify default/web-0 Modified 5 2 3m ago 6 TimeoutError: slack",
    ]
    print_dead_letters({"deadLetters": []}, now=NOW)
    assert capsys.readouterr() == ("", "no dead letters\n")


def _item(key: str, state: str, **known: object) -> dict[str, object]:
    nothing = dict.fromkeys(("type", "priority", "since", "due", "lastErrorType", "generation"))
    return {"key": key, "state": state, "attempts": 0, "again": False, **nothing, **known}


def test_a_queue_is_a_table(capsys):
    """One line for each item, with ages, and how many there are and how many are not shown."""

    def queue(*items: dict[str, object], **counts: object) -> tuple[str, str]:
        known = {"running": 0, "waiting": 0, "backingOff": 0, "leftOut": 0, **counts}
        print_queue({"handler": "notify", "items": list(items), **known}, now=NOW)
        return capsys.readouterr()

    failed = {"due": "2026-01-01T12:00:30Z", "attempts": 2, "lastErrorType": "KeyError"}
    added = _item("a/b", "Waiting", type="Added", since="2026-01-01T11:57:00Z", generation=6)
    modified = _item("a/c", "BackingOff", type="Modified", **failed)
    out, err = queue(added, modified, waiting=1234, backingOff=1, leftOut=1233)
    assert err == ""
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "KEY STATE TYPE SINCE ATTEMPTS DUE GENERATION LAST ERROR",
        "a/b Waiting Added 3m ago 0 - 6 -",
        "a/c BackingOff Modified - 2 in 30s - KeyError",
        "notify: 1,234 waiting, 1 backing off; 1,233 are not shown",
    ]
    key = _item("a/b", "Running", priority="Background", again=True)
    out, _ = queue(key, running=1, backingOff=1, writeLoops=["notify a/b: its writes come back"])
    assert "\nwrite loop: notify a/b: its writes come back\nnotify: 1 running" in out
    assert "PRIORITY" in out
    assert "Running, again   Background" in out
    assert queue() == ("notify: nothing waits\n", "")
