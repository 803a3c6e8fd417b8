"""The page as the server sends it: its first view, its later views, and its alarms."""

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from declctl.admin.page.alarms import Alarm, Level, alarms
from declctl.admin.page.graph import GraphPicture
from declctl.kit import ManualClock
from declctl.leadership import LeadershipStatus
from declctl.manifest import plan
from declctl.manifest.model import ControllerSpec, HandlerSpec, IndexerSpec, ResourceSpec
from declctl.objects import GroupVersionKind
from declctl.runtime.handling.handler_counts import HandlerProblem
from declctl.runtime.reloading.attempts import RetryStatus
from declctl.runtime.reloading.files import FileWatchStatus
from declctl.runtime.reloading.generation import OldGeneration
from declctl.runtime.reporting.recent_figures import RecentFigures
from declctl.runtime.reporting.status import ControllerCondition, ControllerStatus, PluginStatus
from declctl.runtime.sharding import ReplicaStatus
from declctl.runtime.threads import AbandonedCall
from declctl.transport import ServerStatus
from tests.rooms.admin.conftest import HEALTHY, NIGHTLY, NOTIFY, PODS, WELL

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
FAILS = HandlerProblem("CallsFail", 9, NOW, "default/a", 6, "KeyError: 1", "KeyError")
SECRET = "s3cr3t"


def cell(page: str, label: str) -> str:
    """The text of the first cell of a column."""
    found = re.search(f'data-label="{label}"[^>]*>(?:<span[^>]*><b>)?([^<]*)<', page)
    assert found is not None
    return found[1]


def test_the_first_view_has_the_status(ask: Callable):
    """Without a script a browser shows generation, readiness, resources, handlers and plugins."""
    answer = ask("/")
    assert answer.headers["Content-Type"].startswith("text/html")
    for word in (
        "pod-guard",
        "generation 6",
        "ready",
        "pods",
        "notify",
        "slack",
        "Conditions",
        "9 succeeded",
    ):
        assert word in answer.text
    assert [cell(answer.text, label) for label in ("Memory", "Waiting")] == ["640B", "4"]
    assert "http-equiv" in answer.text.partition("<noscript>")[2].partition("</noscript>")[0]
    assert "$" not in re.sub(r"(?s)<script>.*</script>", "", answer.text)


def test_later_views_are_the_same_elements_as_json(ask: Callable, runtime):
    """The script of the page and a browser without scripts show the same."""
    whole = ask("/").text
    answer = ask("/", Accept="application/json")
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.headers["Cache-Control"] == "no-store"
    for region in ("head", "alarms", "sections", "content"):
        assert f">{''.join(map(_html, answer.json[region]))}</" in whole
    runtime.say(generation=7)
    assert ask("/", Accept="application/json").json["build"] == answer.json["build"]


def _html(node: Any) -> str:
    if isinstance(node, str):
        return escape(node)
    tag, attributes, children = node
    start = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{start}>{''.join(map(_html, children))}</{tag}>"


def test_texts_of_others_are_escaped(ask: Callable, runtime):
    """Markup in a message is shown as it is written, also where it would end an attribute."""
    text = ask("/").text
    assert "default/&lt;b&gt;: KeyError" in text
    assert "default/<b>" not in text
    runtime.say(handlers=(replace(NOTIFY, name='a"><script>b'),))
    text = ask("/").text
    assert "a&quot;&gt;&lt;script&gt;b" in text
    assert text.count("<script>") == 1


def test_the_page_loads_nothing_and_runs_its_own_script_alone(ask: Callable):
    """It works in a cluster without internet, and no other script runs, whatever is in its texts."""
    answer = ask("/")
    assert not re.search(r"\ssrc=|@import|url\(", answer.text)
    links = re.findall('href="([^"]*)"', answer.text)
    elsewhere = [link for link in links if ":" in link or link.startswith("//")]
    assert elsewhere == ["data:,"]  # the empty icon
    policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        content = answer.text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        digest = b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[directive] == f"'sha256-{digest}'"
    assert (policy["default-src"], policy["connect-src"]) == ("'none'", "'self'")
    assert "style=" not in answer.text
    assert "onclick" not in answer.text


def test_what_is_rare_has_its_place(ask: Callable, runtime):
    """Readiness in words, dead letters, old code in memory, removed handlers, plugins that did not load."""
    assert "✓ ready" in ask("/").text
    runtime.say(
        ready=False,
        # Marks of the direction of writing, which make a name look like another one, are replaced.
        handlers=(replace(NOTIFY, dead_letters=4321, name="no\N{RIGHT-TO-LEFT OVERRIDE}tify"),),
        old_generations=(OldGeneration(3, ("thread poller (poll at handlers.py:12)",)),),
        plugins=(PluginStatus("slack", "1.2.0", "Disabled", "ImportError: no requests"),),
    )
    text = ask("/").text
    for words in ("✗ not ready", "thread poller", "audit", "✗ Disabled", "ImportError: no requests"):
        assert words in text
    assert "reloadRetries" in text
    assert "no\N{REPLACEMENT CHARACTER}tify" in text
    assert "4,321 dead letters" in text


def test_every_index_is_listed_with_a_link_to_its_values(ask: Callable, runtime, monkeypatch):
    """An index is shown with the field or the function that makes it."""
    indexers = (
        IndexerSpec("byNode", field_path="spec.nodeName"),
        IndexerSpec("byTeam", entry_point="handlers:team"),
    )
    pods = ResourceSpec("pods", "v1", "Pod", indexers=indexers)
    monkeypatch.setattr(type(runtime), "plan", plan(ControllerSpec("pod-guard", resources=(pods,))))
    shown = ask("/").text
    for words in ("spec.nodeName", "function handlers:team", 'href="index/pods/byTeam/"'):
        assert words in shown


def test_reloads_are_listed_with_their_changes_and_reasons(ask: Callable, runtime):
    """The newest attempt stands first: what it changed, or why it was refused and what to do."""
    changes = ["~handler notify (code)", "+index pods.byTeam"]
    applied = {"time": "2026-01-01T11:00:00Z", "result": "Applied", "generation": 6, "lists": 1}
    applied |= {"changes": changes, "seconds": 0.0123}
    refused = {"time": "2026-01-01T11:30:00Z", "result": "Refused", "generation": 6}
    refused |= {"message": "handlers.py:3: no", "suggestion": "run `declctl validate`"}
    runtime.told_history = {"attempts": [applied, refused], "generation": 6, "kept": []}
    text = ask("/").text
    assert text.index("11:30:00 UTC") < text.index("11:00:00 UTC")
    for words in (*changes, "6 (runs)", "12.3ms", "handlers.py:3: no", "run <code>declctl validate</code>"):
        assert words in text


def test_the_page_of_a_starting_process_has_no_generation(ask: Callable, runtime):
    """A browser may be faster than the first generation."""
    runtime.say(generation=0, bundle_hash="", resources=(), handlers=(), plugins=(), ready=False)
    runtime.told_history = {"attempts": [], "generation": 0, "kept": []}
    text = ask("/").text
    assert "Warning: The controller is starting" in text
    assert 'id="handlers"' not in text


@pytest.mark.parametrize("accept", ["text/html", "application/json"])
def test_without_the_token_no_text_is_on_the_page(ask: Callable, runtime, accept: str):
    """Each text that handlers, servers or objects write is left out, and its type is shown."""
    text = f"KeyError: {SECRET}"
    runtime.say(
        conditions=(
            ControllerCondition("Reloaded", "False", f"{SECRET} is no word", SECRET, NOW),
            ControllerCondition("Degraded", "True", "WriteLoop", SECRET, NOW),
        ),
        handlers=(replace(NOTIFY, last_error=text, last_error_type="KeyError", last_error_time=NOW),),
        resources=(replace(PODS, synced=False, error=text, error_type="Forbidden"),),
        schedules=(replace(NIGHTLY, last_error=text),),
        plugins=(PluginStatus("slack", "1.2.0", "Disabled", text),),
        old_generations=(OldGeneration(3, (text,)),),
        abandoned_calls=(AbandonedCall(SECRET, SECRET, 3.0),),
        server=ServerStatus(f"https://{SECRET}", None, text),
        leader_election=LeadershipStatus(True, leading=False, identity=SECRET, lease=SECRET, error=text),
        reload_retry=RetryStatus("Forbidden", 2, 3.0),
    )
    runtime.declared = {"resources": (ResourceSpec("pods", "v1", "Pod", label_selector=f"app={SECRET}"),)}
    attempt = {"result": "Refused", "generation": 6, "message": text, "changes": [text], "suggestion": text}
    runtime.told_history["attempts"] = [{"time": "2026-01-01T11:00:00Z", **attempt}]
    assert ask("/", Accept=accept).text.count(SECRET) > 10
    shown = ask("/", token="right", Accept=accept)
    assert shown.status == 200
    assert SECRET not in shown.text
    for words in ("KeyError", "Forbidden", "notify", "Types and counts alone", "A handler writes an object"):
        assert words in shown.text


def test_the_graph_of_dozens_of_handlers_is_readable():
    """No box covers another one, nor the way of a count; informers that resources share are one box."""
    kinds = [GroupVersionKind.of("v1", f"Kind{n}") for n in range(5)]
    resources = [ResourceSpec(f"r{n}", "v1", f"Kind{n % 12}", namespaces=("a", "b")) for n in range(14)]
    handlers = [
        HandlerSpec(
            f"h{n}", f"r{n % 14}", applies=tuple(kinds[: n % 5]), include_snapshots_from=(f"r{n % 3}",)
        )
        for n in range(40)
    ]
    picture = GraphPicture(plan(ControllerSpec("many", resources=(*resources,), handlers=(*handlers,))), [])
    recent = RecentFigures(ManualClock())
    drawn = picture.element(WELL, recent, {}, {}, texts=True)
    boxes = {each.attributes["data-key"]: each for each in drawn.children if each.tag == "g"}
    columns: dict[str, list[tuple[float, float]]] = {}
    for box in boxes.values():
        left, top = box.attributes["transform"].removeprefix("translate(").removesuffix(")").split()
        height = next(float(each.attributes["height"]) for each in box.children if each.tag == "rect")
        columns.setdefault(left, []).append((float(top), float(top) + height))
    assert [len(column) for column in columns.values()] == [14, 12, 40, 4]
    for column in columns.values():
        ordered = sorted(column)
        assert all(before[1] < after[0] for before, after in pairwise(ordered))
        assert ordered[-1][1] <= float(drawn.attributes["height"])
    shared = next(box for key, box in boxes.items() if key == "informer r0 r12")
    assert "… not started" in [text for each in shared.children for text in each.children]
    # Each count has a line of its own at its box.
    places = [(each.attributes["x"], each.attributes["y"]) for each in drawn.children if each.tag == "text"]
    assert len(places) == len(set(places))


def _alarms(status: ControllerStatus, *attempts: Mapping[str, Any]) -> list[Alarm]:
    history = {"attempts": list(attempts), "generation": 0, "kept": []}
    # Without the parts of the resources, of which a test has only the faults of indexes.
    whole = replace(status, resources=[replace(each, informers=()) for each in status.resources])
    return list(alarms(status, whole.document(), history, now=NOW))


def test_nothing_is_an_alarm_where_nothing_is_wrong():
    """Neither a handler whose last failure is long ago, nor a follower, nor its caches, if it fills none."""
    following = ControllerCondition("Ready", "True", "Following", "no cache is filled", NOW)
    fine = replace(
        WELL,
        handlers=(replace(HEALTHY, last_error_time=NOW - timedelta(minutes=6)),),
        leader_election=LeadershipStatus(True, leading=False, identity="a", holder="b", state="Following"),
        leader=False,
        schedules=(replace(NIGHTLY, last_outcome=None),),
    )
    cold = replace(WELL, conditions=(following,), resources=(replace(PODS, synced=False),))
    assert _alarms(fine) == _alarms(cold) == []


def _condition(kind: str, reason: str, message: str, *, holds: bool = False) -> Mapping[str, Any]:
    return {"conditions": (ControllerCondition(kind, str(holds), reason, message, NOW),)}


_FORBIDDEN = replace(PODS, synced=False, items_listed=30, error="403: no list", error_type="Forbidden")
WRONG = {
    "a refused edit": (
        _condition("Reloaded", "Invalid", "manifest.yaml:14: no 'on_pod'"),
        "The last edit was refused: Invalid",
        "manifest.yaml:14: no 'on_pod'. Generation 6 goes on.",
        "Mend the files and save",
    ),
    "code that was taken back": (
        _condition("Reloaded", "RolledBack", "notify failed 3 of 3 times"),
        "New code has failed, and the code before it runs again",
        "notify failed 3 of 3 times",
        "Mend the files",
    ),
    "a ConfigMap that is gone": (
        _condition("FilesFollowed", "ConfigMapDeleted", "configmap/a/b was deleted"),
        "The ConfigMap was deleted, since 2026-01-01 12:00:00 UTC",
        "configmap/a/b was deleted",
        "Create it again",
    ),
    "a ConfigMap that may not be watched": (
        _condition("FilesFollowed", "WatchForbidden", "configmap/a/b can't be watched: 403"),
        "The right to list or watch the ConfigMap is gone",
        "configmap/a/b can't be watched: 403",
        "Grant get, list and watch",
    ),
    "a lost leader": (
        {"leader_election": LeadershipStatus(True, False, lease="a/b", state="Lost", error="no renewal")},
        "This process has lost the lease",
        "a/b: no renewal",
        "starts again",
    ),
    "a lease that can't be renewed": (
        {"leader_election": LeadershipStatus(True, lease="a/b", error="403 Forbidden")},
        "The lease can't be read or renewed",
        "a/b: 403 Forbidden",
        "Grant get, create and update",
    ),
    "slots that are not shared": (
        {"sharding": ReplicaStatus("pod-a", "a/web", "16 by UID", fault="pod-b holds the lease, by 8 slots")},
        "This process can't take part in the sharing of slots",
        "a/web: pod-b holds the lease",
        "Grant list, get, create and update",
    ),
    "a cache that has not synced": (
        {"resources": (replace(PODS, synced=False, items_listed=1234),)},
        "The cache of pods has not synced",
        "1,234 objects so far",
        "It goes on by itself",
    ),
    "a cache that may not be read": (
        {"resources": (_FORBIDDEN,)},
        "The cache of pods has not synced: Forbidden",
        "403: no list. 30 objects so far",
        "It goes on by itself",
    ),
    "a watch that fails": (
        {"resources": (replace(PODS, error="502: away", error_type="BadGateway"),)},
        "The cache of pods gets no changes: BadGateway",
        "502: away",
        "It goes on by itself",
    ),
    "a handler that fails": (
        {"handlers": (replace(HEALTHY, last_error_time=NOW, last_error_type="KeyError"),)},
        "The handler notify fails, last at 2026-01-01 12:00:00 UTC: KeyError",
        "default/<b>: KeyError: 'x'",
        "Mend the handler, and save",
    ),
    "a handler that fails on, with a long back-off": (
        {"handlers": (replace(HEALTHY, last_error_time=NOW - timedelta(hours=1), problems=(FAILS,)),)},
        "The handler notify fails, last at 2026-01-01 11:00:00 UTC",
        "default/<b>: KeyError: 'x'",
        "Mend the handler, and save",
    ),
    "a key that fails for ever": (
        {"handlers": (replace(HEALTHY, problems=(replace(FAILS, reason="KeysFail"),)),)},
        "The handler notify is unhealthy: KeysFail",
        "9 keys fail again and again, default/a since 2026-01-01 12:00:00 UTC: KeyError",
        "mend the object or the handler",
    ),
    "a handler with dead letters": (
        {"handlers": (replace(HEALTHY, dead_letters=3),)},
        "The handler notify fails",
        "KeyError",
        "`declctl get deadletters`",
    ),
    "a handler that hangs": (
        {"handlers": (replace(NOTIFY, zombies=2),)},
        "The handler notify hangs: 2 calls over the time limit",
        "",
        "The log names each call",
    ),
    "a schedule that has failed": (
        {"schedules": (NIGHTLY,)},
        "The last call of the schedule nightly has failed: KeyError",
        "KeyError: 'secret'",
        "`declctl trigger nightly`",
    ),
    "a plugin that could not be loaded": (
        {"plugins": (PluginStatus("slack", "1.2.0", "Disabled", "ImportError: no requests"),)},
        "The plugin slack could not be loaded",
        "ImportError: no requests",
        "call `declctl reload`",
    ),
    "a plugin whose calls fail": (
        {"plugins": (PluginStatus("pager", "0.3", "Suspended", "5 calls in a row have failed"),)},
        "The plugin pager is not called",
        "5 calls in a row have failed",
        "tried again by itself",
    ),
    "a mapping that fails": (
        {"handlers": (replace(HEALTHY, unmapped=3),)},
        "A filter or a mapping of the handler notify fails: 3 changes wait",
        "",
        "Mend the function that the message names",
    ),
    "files that can't be checked": (
        {"file_watch": FileWatchStatus(7, "Too many open files", "OSError")},
        "Edits are not noticed",
        "Too many open files",
        "`declctl reload` reads the files now",
    ),
    "two handlers that write the same field": (
        _condition("Degraded", "WriteLoop", "notify writes default/a again and again: data", holds=True),
        "A handler writes an object again and again",
        "default/a",
        "`declctl why`",
    ),
}


@pytest.mark.parametrize(("changes", "title", "what", "advice"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_an_alarm(changes: Mapping[str, Any], title: str, what: str, advice: str):
    """It has a title, what has happened, and what to do."""
    (alarm,) = _alarms(replace(WELL, **changes))
    assert alarm.level is Level.ALARM
    for words, text in ((title, alarm.title), (what, alarm.what), (advice, alarm.advice)):
        assert words in text


WAITING = {
    "an edit that needs a new process": (
        _condition("Reloaded", "RestartRequired", "metadata.name takes effect", holds=True),
        "An edit waits for a new process",
    ),
    "no leader": ({"leader_election": LeadershipStatus(True, False, state="Waiting")}, "No process leads"),
    "code that does not return": (
        {"abandoned_calls": (AbandonedCall("prepare", "handlers.py:3", 4.0),)},
        "Code of an edit does not return",
    ),
    "an index that lacks objects": (
        {"resources": (replace(PODS, informers=(SimpleNamespace(index_faults={"byTeam@1": (2, "x")}),)),)},
        "The index pods.byTeam lacks objects: its function has failed 2 times",
    ),
}


@pytest.mark.parametrize(("changes", "title"), WAITING.values(), ids=WAITING)
def test_what_somebody_has_to_act_on_is_a_warning(changes: Mapping[str, Any], title: str):
    """Everything works until then."""
    (alarm,) = _alarms(replace(WELL, **changes))
    assert (alarm.level, alarm.title) == (Level.WARNING, title)
    assert alarm.advice


def test_several_faults_are_several_alarms_but_not_those_of_a_server_that_is_away():
    """A resource that can't be read does not hide a plugin; failed watches may have one cause."""
    both = ControllerCondition(
        "Degraded", "True", "ResourceError", "pods: 403; plugin slack is disabled", NOW
    )
    plugin = PluginStatus("slack", "1.2.0", "Disabled", "ImportError")
    found = _alarms(replace(WELL, conditions=(both,), resources=(_FORBIDDEN,), plugins=(plugin,)))
    assert [alarm.key for alarm in found] == ["resource pods", "plugin slack"]
    degraded = _condition("Degraded", "ServerUnreachable", "away", holds=True)
    away = ServerStatus("https://there", NOW, "connection refused")
    (alarm,) = _alarms(replace(WELL, server=away, resources=(_FORBIDDEN,), **degraded))
    assert alarm.title == "The API server can't be reached since 2026-01-01 12:00:00 UTC"
    assert "https://there: connection refused" in alarm.what


def test_the_advice_is_that_of_the_newest_refusal():
    """A suggestion for the fault at hand comes before a general one."""
    told = [("Refused", "an old one"), ("Refused", "did you mean on_pods?"), ("Superseded", None)]
    attempts = [
        {"result": result, "suggestion": suggestion, "time": f"2026-01-01T1{hour}:00:00Z"}
        for hour, (result, suggestion) in enumerate(told)
    ]
    (alarm,) = _alarms(replace(WELL, **_condition("Reloaded", "Invalid", "no 'on_pod'")), *attempts)
    assert alarm.advice == "Did you mean on_pods?"
    assert alarm.title == "The last edit was refused: Invalid, at 2026-01-01 11:00:00 UTC"


def test_alarms_come_before_warnings_and_do_not_tick():
    """The text of an alarm stays the same while it lasts, so that a screen reader reads it once."""
    calls = [(AbandonedCall("prepare", "handlers.py:3", seconds),) for seconds in (4.0, 9.0)]
    status = replace(WELL, abandoned_calls=calls[0], handlers=(replace(NOTIFY, last_error_time=NOW),))
    found = _alarms(status)
    assert [alarm.level for alarm in found] == [Level.ALARM, Level.ALARM, Level.WARNING]
    assert _alarms(replace(status, abandoned_calls=calls[1])) == found
