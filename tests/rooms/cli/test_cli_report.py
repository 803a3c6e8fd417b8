"""`declctl status` for people."""

from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest

from declctl.cli.report import age, headline, print_dead_letters, print_queue, print_status

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
DOCUMENT: dict[str, Any] = {
    "name": "pod-guard",
    "generation": 6,
    "bundleHash": "4f2c",
    "ready": True,
    "leader": True,
    "conditions": [
        {
            "type": "Reloaded",
            "status": "False",
            "reason": "SyntaxError",
            "message": "4f2c: handlers/pods.py:14: invalid syntax",
            "lastTransitionTime": "2026-01-01T11:57:59Z",
        }
    ],
    "resources": [
        {
            "name": "pods",
            "synced": True,
            "objects": 2300,
            "bytes": 812345,
            "lists": 1,
            "watches": 2,
            "relists": 0,
            "resourceVersion": "88123",
            "lastEventAge": 0.4,
            "error": None,
            "state": "Watching",
        }
    ],
    "handlers": [
        {
            "name": "notify",
            "synced": True,
            "delivered": 2311,
            "succeeded": 2310,
            "failed": 1,
            "retried": 1,
            "merged": 0,
            "dropped": 0,
            "filtered": 41,
            "replayed": 500,
            "queued": 0,
            "running": 0,
            "p95Seconds": 0.004,
            "lastError": "default/a: KeyError: [bold]",
        }
    ],
    "plugins": [],
}


def document(**changes: Any) -> dict[str, Any]:
    """The document with changes."""
    return {**deepcopy(DOCUMENT), **changes}


def test_a_failed_reload_stands_in_the_first_line():
    """Whoever looks at the status of a stale controller can't miss it, nor why."""
    assert headline(document(), now=NOW) == (
        "pod-guard generation 6 "
        "(STALE: reload failed 2m ago: SyntaxError: 4f2c: handlers/pods.py:14: invalid syntax)"
    )


def test_each_age_is_that_of_its_own_event(capsys: pytest.CaptureFixture[str]):
    """Files that do not run for hours, and an attempt that was refused a moment ago."""
    condition = {**DOCUMENT["conditions"][0], "lastTransitionTime": "2026-01-01T08:59:00Z"}
    ready = {**condition, "type": "Ready", "status": "True", "lastTransitionTime": "2025-12-28T12:00:00Z"}
    last = {"time": "2026-01-01T11:59:18Z", "result": "Refused", "reason": "SyntaxError"}
    print_status(document(conditions=[ready, condition], lastReload=last), now=NOW)
    first, *rows = capsys.readouterr().out.splitlines()
    assert "(STALE: reload failed 42s ago: SyntaxError" in first
    ages = {row.split()[0]: row.split()[3] for row in rows if row.startswith(("Ready", "Reloaded"))}
    assert ages == {"Ready": "4d", "Reloaded": "3h"}


def test_who_went_back_is_not_told_of_a_failure():
    """Going back is no failed reload: the first line says from where to where, why, and what comes next."""
    back = {
        **DOCUMENT["conditions"][0],
        "reason": "RolledBack",
        "message": "rolled back from generation 5 to 4: somebody asked for it",
    }
    assert headline(document(conditions=[back]), now=NOW) == (
        "pod-guard generation 6 (ROLLED BACK 2m ago from generation 5 to 4: somebody asked for it; "
        "the files are tried again when they change)"
    )


@pytest.mark.parametrize(
    ("reason", "message", "told"),
    [
        (
            "RollbackRefused",
            "Forbidden: v1 Pod in a: pods: 403",
            "ROLLBACK REFUSED: Forbidden: v1 Pod in a: pods: 403",
        ),
        ("RestartRequired", "admin.bindAddress", "RESTART REQUIRED: admin.bindAddress"),
        ("Applied", "", ""),
    ],
)
def test_what_is_left_to_do_stands_in_the_first_line(reason: str, message: str, told: str):
    """The files are what runs, but not all is well: somebody could not go back, or has to start it again."""
    condition = {**DOCUMENT["conditions"][0], "status": "True", "reason": reason, "message": message}
    line = f"pod-guard generation 6 ({told})" if told else "pod-guard generation 6"
    assert headline(document(conditions=[condition]), now=NOW) == line


def test_a_config_map_that_is_gone_stands_in_the_first_line():
    """The process looks well, and no edit of the ConfigMap arrives: since when, and what to do."""
    gone = {
        **DOCUMENT["conditions"][0],
        "type": "FilesFollowed",
        "reason": "ConfigMapDeleted",
        "message": "configmap/a/b was deleted, and the process goes on with the last files: create it again",
    }
    told = "was deleted, and the process goes on with the last files: create it again"
    line = headline(document(conditions=[gone]), now=NOW)
    assert line == f"pod-guard generation 6 (FILES NOT FOLLOWED for 2m: configmap/a/b {told})"
    redacted = headline(document(conditions=[{**gone, "message": ""}]), now=NOW)
    assert redacted == "pod-guard generation 6 (FILES NOT FOLLOWED for 2m: ConfigMapDeleted)"
    back = {**gone, "status": "True", "reason": "Followed", "message": ""}
    assert headline(document(conditions=[back]), now=NOW) == "pod-guard generation 6"


def test_all_is_well_is_a_short_line():
    """A healthy controller has nothing in brackets."""
    assert headline(document(conditions=[]), now=NOW) == "pod-guard generation 6"


def test_not_ready_says_why():
    """A controller that isn't ready says so in the first line, with the reason."""
    ready = {**DOCUMENT["conditions"][0], "type": "Ready", "message": "not synced: pods"}
    line = headline(document(ready=False, conditions=[ready]), now=NOW)
    assert line == "pod-guard generation 6 (NOT READY: not synced: pods)"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "notify: the last 9 calls have failed, the newest for shop/web: ValueError: no; do this",
            "HANDLERS FAIL: notify: the last 9 calls have failed, the newest for shop/web: ValueError: no",
        ),
        ("", "HANDLERS FAIL: CallsFail"),  # texts are for clients with the token
    ],
)
def test_a_handler_that_fails_stands_in_the_first_line(message: str, told: str):
    """The first handler and its error; the others, and what to do, are in the table of the conditions."""
    fails = {**DOCUMENT["conditions"][0], "type": "HandlersHealthy", "reason": "CallsFail"}
    line = headline(document(conditions=[{**fails, "message": message}]), now=NOW)
    assert line == f"pod-guard generation 6 ({told})"


def test_tables_are_whole_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]):
    """In a pipe each resource and handler is one line, never cut or folded, without colour or markup."""
    print_status(document(), now=NOW)
    lines = capsys.readouterr().out.splitlines()
    by_first = {line.split()[0]: line.split() for line in lines if line}
    assert by_first["pods"][:5] == ["pods", "yes", "2,300", "793Ki", "1"]
    assert by_first["HANDLER"][6:9] == ["MERGED", "FILTERED", "REPLAYED"]
    assert by_first["notify"][6:9] == ["0", "41", "500"]
    assert by_first["notify"][-3:] == ["default/a:", "KeyError:", "[bold]"]
    assert "PLUGIN" not in by_first
    assert not any("\x1b" in line for line in lines)


@pytest.mark.guarantee("G9")
def test_calls_that_do_not_return_have_a_column_once_there_are_any(capsys: pytest.CaptureFixture[str]):
    """Zombies, and changes that were dropped, are shown where there are some; else nobody looks for them."""
    notify = DOCUMENT["handlers"][0]
    for stuck, shown in ((0, []), (2, ["ZOMBIES"])):
        handlers = [{**notify, "name": "quiet", "zombies": 0}, {**notify, "zombies": stuck}]
        print_status(document(handlers=handlers), now=NOW)
        lines = capsys.readouterr().out.splitlines()
        head = next(line.split() for line in lines if line.startswith("HANDLER"))
        row = next(line.split() for line in lines if line.startswith("notify"))
        assert [name for name in head if name in ("ZOMBIES", "DROPPED")] == shown
        if shown:
            assert row[head.index("ZOMBIES")] == "2"


def test_calls_of_staged_code_that_go_on_are_shown(capsys: pytest.CaptureFixture[str]):
    """What was called, for how long, and the line that it is at; nothing where there is none."""
    call = {"name": "the index byNode of pods", "place": "/app/handlers.py:12 in by_node", "seconds": 61.2}
    print_status(document(abandonedCalls=[call]), now=NOW)
    head, row = (
        line for line in capsys.readouterr().out.splitlines() if "ABANDONED" in line or "byNode" in line
    )
    assert head.split() == ["ABANDONED", "CALL", "FOR", "AT"]
    assert row.split("  ")[0] == call["name"]
    assert row.split()[-4:] == ["61s", "/app/handlers.py:12", "in", "by_node"]
    print_status(document(abandonedCalls=[]), now=NOW)
    assert "ABANDONED" not in capsys.readouterr().out


@pytest.mark.parametrize(("failed", "dropped"), [(0, 0), (3, 0), (0, 500)])
def test_events_that_are_lost_are_shown(capsys: pytest.CaptureFixture[str], failed: int, dropped: int):
    """Kubernetes Events that the server never got have a line where there are some."""
    print_status(document(recordedEvents={"posted": 20, "failed": failed, "dropped": dropped}), now=NOW)
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("recorded")]
    assert shown == ([["recorded", "20", str(failed), str(dropped)]] if failed or dropped else [])


def test_a_resource_says_what_somebody_should_know_and_nothing_else(capsys: pytest.CaptureFixture[str]):
    """What waits, what was skipped and what was slow stands behind the state where it is not zero."""
    pods = DOCUMENT["resources"][0]
    quiet = {**pods, "name": "quiet", "queued": 0, "skipped": 0, "slow": 0}
    busy = {**pods, "name": "busy", "queued": 12, "skipped": 0, "slow": 3, "mutations": 2}
    print_status(document(resources=[quiet, busy]), now=NOW)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("quiet", "busy"))]
    notable = "Watching, 12 queued, 3 slow, 2 mutations"
    assert [line.partition("ago")[2].strip() for line in lines] == ["Watching", notable]


def test_a_selector_of_namespaces_shows_how_many_match(capsys):
    """And how many of them are not listed yet, next to the state of the resource."""
    resource = DOCUMENT["resources"][0]
    for selected, shown in (
        ({"matched": 1, "unlisted": 0}, "1 namespace with team=web"),
        ({"matched": 1200, "unlisted": 3}, "1,200 namespaces with team=web (3 not listed yet)"),
    ):
        namespaces = {"selector": "team=web", **selected}
        print_status(document(resources=[{**resource, "namespaces": namespaces}]), now=NOW)
        assert shown in capsys.readouterr().out


def test_a_resource_says_what_its_decoder_did_not_expect(capsys: pytest.CaptureFixture[str]):
    """Objects of another shape than their kind's, and why the transform fails; the rest is no news."""
    well = {"objects": 9, "whole": 9, "unexpected": 0, "unread": 0, "dropped": 4, "failed": 0}
    fault = "the transform raised KeyError on a: 'x'"
    ill = {**well, "unexpected": 3, "unread": 1, "failed": 2, "lastFault": fault}
    pods = DOCUMENT["resources"][0]
    print_status(
        document(
            resources=[{**pods, "name": "quiet", "decoding": well}, {**pods, "name": "odd", "decoding": ill}]
        ),
        now=NOW,
    )
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("quiet", "odd"))]
    assert [line.partition("ago")[2].strip() for line in lines] == [
        "Watching",
        f"Watching, 3 decoded whole, 1 kept unread, 2 failed in the transform (the last: {fault})",
    ]


def test_a_resource_says_on_what_its_index_functions_failed(capsys: pytest.CaptureFixture[str]):
    """Which index, how often, and for the last time on which object and in which line."""
    fault = {"count": 3, "last": "KeyError on default/a at handlers.py:4: 'team'"}
    informers = [{"indexFaults": {"byTeam@handlers:by_team#4f2c": fault}}]
    print_status(document(resources=[{**DOCUMENT["resources"][0], "informers": informers}]), now=NOW)
    assert (
        "Watching, index byTeam failed 3 times (the last: KeyError on default/a at handlers.py:4: 'team')\n"
    ) in capsys.readouterr().out


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
def test_ages_are_in_one_unit(moment: str, said: str):
    """Ages read as in kubectl, and a clock that is ahead gives no negative one."""
    assert age(moment, now=NOW) == said


def test_a_reload_that_is_tried_again_says_when() -> None:
    """A refusal that the files are not to blame for: the first line has when the next try is."""
    retry = {"reason": "Forbidden", "retries": 2, "nextInSeconds": 40.0}
    told = headline({**DOCUMENT, "reloadRetry": retry}, now=NOW)
    assert told.endswith("; it is tried again in 40s, 2 so far)")


def test_schedules_are_shown_with_their_next_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Who waits for the night sees when it comes, and what became of the last one."""
    nightly = {
        "name": "nightly",
        "nextRun": "2026-01-02T02:00:00Z",
        "lastRun": "2026-01-01T02:00:00Z",
        "lastOutcome": "Failed",
        "succeeded": 3,
        "failed": 1,
        "skipped": 2,
        "running": 0,
        "lastError": "KeyError: 'team'",
    }
    print_status({**DOCUMENT, "schedules": [nightly]}, now=NOW)
    shown = capsys.readouterr().out
    for text in ("SCHEDULE", "2026-01-02T02:00:00Z", "Failed", "KeyError: 'team'"):
        assert text in shown


def test_watches_of_reconcilers_are_shown_with_what_they_have_led_to(capsys) -> None:
    """Somebody whose mapping finds nothing sees it in one row."""
    counts = {"led": 3, "keys": 5, "ledNowhere": 1234, "noKeys": 2}
    watch = {"resource": "pods", "mapTo": "annotation (example.dev/app)", **counts}
    handlers = [DOCUMENT["handlers"][0], {**DOCUMENT["handlers"][0], "name": "web", "watches": [watch]}]
    print_status(document(handlers=handlers), now=NOW)
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("WATCH OF"))
    assert lines[at].split("  ")[0] == "WATCH OF"
    assert " ".join(lines[at + 1].split()) == "web pods annotation (example.dev/app) 3 5 1,234 2"
    print_status(document(), now=NOW)
    assert "WATCH OF" not in capsys.readouterr().out


def test_writes_are_counted_by_handler_verb_and_result(capsys):
    """Who reads `declctl status` sees which handler writes, and how often nothing was sent."""
    writes = [
        {"handler": "web", "verb": "apply", "result": "succeeded", "count": 12},
        {"handler": "web", "verb": "patch_status", "result": "skipped", "count": 4},
    ]
    print_status(document(writes=writes), now=NOW)
    shown = capsys.readouterr().out.partition("WRITES OF")[2].splitlines()
    assert [row.split() for row in shown[:3]] == [
        ["VERB", "RESULT", "COUNT"],
        ["web", "apply", "succeeded", "12"],
        ["web", "patch_status", "skipped", "4"],
    ]
    print_status(document(), now=NOW)
    assert "WRITES OF" not in capsys.readouterr().out


def test_dead_letters_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each, with how long ago it was given up; no table without letters."""
    letter = {
        "handler": "notify",
        "key": "default/web-0",
        "type": "Modified",
        "attempts": 5,
        "changes": 2,
        "failedAt": "2026-01-01T11:57:00Z",
        "generation": 6,
        "error": "TimeoutError: slack",
    }
    print_dead_letters({"deadLetters": [letter]}, now=NOW)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == [
        *("HANDLER", "KEY", "TYPE", "ATTEMPTS", "CHANGES", "GIVEN", "UP", "GENERATION", "ERROR")
    ]
    assert shown[1].split() == [
        *("notify", "default/web-0", "Modified", "5", "2", "3m", "ago", "6", "TimeoutError:", "slack")
    ]
    print_dead_letters({"deadLetters": []}, now=NOW)
    assert capsys.readouterr() == ("", "no dead letters\n")


def _item(key: str, state: str, **known: object) -> dict[str, object]:
    nothing = dict.fromkeys(("type", "priority", "since", "due", "lastErrorType", "generation"))
    return {"key": key, "state": state, "attempts": 0, "again": False, **nothing, **known}


def test_a_queue_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each item, with ages; on stderr, how many there are and how many are not shown."""
    then = "2026-01-01T11:57:00Z"
    failed = {"due": "2026-01-01T12:00:30Z", "attempts": 2, "lastErrorType": "KeyError"}
    document = {
        "handler": "notify",
        "running": 0,
        "waiting": 1234,
        "backingOff": 1,
        "leftOut": 1233,
        "items": [
            _item("a/b", "Waiting", type="Added", since=then, generation=6),
            _item("a/c", "BackingOff", type="Modified", **failed),
        ],
    }
    print_queue(document, now=NOW)
    shown = capsys.readouterr()
    assert [row.split() for row in shown.out.splitlines()] == [
        ["KEY", "STATE", "TYPE", "SINCE", "ATTEMPTS", "DUE", "GENERATION", "LAST", "ERROR"],
        ["a/b", "Waiting", "Added", "3m", "ago", "0", "-", "6", "-"],
        ["a/c", "BackingOff", "Modified", "-", "2", "in", "30s", "-", "KeyError"],
    ]
    assert shown.err == "notify: 1,234 waiting, 1 backing off; 1,233 are not shown\n"
    keys = [_item("a/b", "Running", priority="Background") | {"again": True}]
    print_queue({**document, "items": keys, "leftOut": 0, "waiting": 0, "running": 1}, now=NOW)
    shown = capsys.readouterr()
    assert "PRIORITY" in shown.out
    assert "Running, again   Background" in shown.out
    print_queue({**document, "items": [], "waiting": 0, "backingOff": 0, "leftOut": 0}, now=NOW)
    assert capsys.readouterr() == ("", "notify: nothing waits\n")


def test_a_changed_log_level_is_in_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    """With the level of the start, and when it is set back; no section otherwise."""
    level = {"level": "debug", "start": "info", "until": "2026-01-01T12:10:00Z"}
    print_status(document(logLevel=level), now=NOW)
    shown = capsys.readouterr().out.partition("LOG LEVEL")[2].splitlines()
    assert [row.split() for row in shown[:2]] == [["START", "SET", "BACK"], ["debug", "info", "in", "10m"]]
    print_status(document(logLevel=None), now=NOW)
    assert "LOG LEVEL" not in capsys.readouterr().out
