"""Recordings of whole controllers, replayed: the same calls and writes by the code of then."""

import base64
import json
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from declctl.recording.blocks import RecordedEntries
from declctl.recording.entries import CallEnd, CallRequest, Entry, ReloadMark, StreamChanges, time_of
from declctl.replay.differences import ReplayReport
from declctl.replay.replay import ReplayOptions, replay
from declctl.replay.tape import read_tape, tape_of
from declctl.sandbox.faults import Match
from declctl.testing import BundleDir, ControllerUnderTest, Logged, running, until
from declctl.testing.controller import CHILDREN
from tests.rooms.replay.storm import record_storm

MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: copier}
spec:
  resources:
    - {name: pods, apiVersion: v1, kind: Pod}
    - {name: maps, apiVersion: v1, kind: ConfigMap}
  handlers:
    - {name: copy, mode: Reconcile, resourceRef: {name: pods}, entryPoint: "handlers:copy"}
"""
HANDLERS = """
import declctl

async def copy(request, ctx):
    pod = request.obj
    if pod is None:
        return None
    await ctx.get("v1/ConfigMap", "nobody")  # an answer, and then the time
    data = {"phase": pod.labels.get("phase", "none"), "at": ctx.now().isoformat()}
    found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": pod.name}, "data": data}
    await ctx.apply(found)
    known = await ctx.get("v1/ConfigMap", pod.name)
    if known["data"] != data:
        raise ValueError("not written")
    return declctl.Requeue(after=30)
"""


def pod(name: str, **labels: str) -> dict[str, Any]:
    """A pod with labels."""
    metadata = {"name": name, "namespace": "default", "labels": labels}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "a", "image": "b"}]},
    }


def replayed(recording: Path, manifest: Path | None = None, **options: Any) -> ReplayReport:
    """What a replay finds."""
    log = Logged()
    chosen = ReplayOptions(manifest=None if manifest is None else str(manifest), **options)
    return replay(read_tape(recording), chosen, log=log, user_log=log.user_logger(), children=CHILDREN)


def relabel(controller: ControllerUnderTest, name: str, **labels: str) -> None:
    """Change labels of a pod."""
    controller.sandbox.patch("Pod", name, {"metadata": {"labels": labels}})


@pytest.fixture(name="bundle")
def _bundle(tmp_path: Path) -> BundleDir:
    return BundleDir(tmp_path / "bundle", {"manifest.yaml": MANIFEST, "handlers.py": HANDLERS})


@pytest.fixture(name="night")
def _night(bundle: BundleDir, tmp_path: Path) -> Path:
    return recorded_night(bundle, tmp_path)


def recorded_night(bundle: BundleDir, tmp_path: Path) -> Path:
    """Three pods, a change of one of them, and a minute."""
    recording = tmp_path / "night.rec"
    with running(bundle.path, objects=[pod(f"p{n}") for n in range(3)], record=recording) as controller:
        controller.wait_idle()
        relabel(controller, "p1", phase="up")
        controller.wait_idle()
        controller.advance(65)
    return recording


@pytest.mark.parametrize("isolation", ["", ", isolation: {mode: Process}"], ids=["here", "isolated"])
def test_the_code_of_then_makes_the_same_calls_and_writes(
    isolation: str, bundle: BundleDir, tmp_path: Path
) -> None:
    """Also from a process of its own."""
    bundle.edit("manifest.yaml", '"handlers:copy"', f'"handlers:copy"{isolation}')
    found = replayed(recorded_night(bundle, tmp_path))
    assert (found.calls, found.same, found.writes_alike) == (10, 10, 10)
    assert found.is_alike
    assert found.seconds > 60 > 20 * found.took
    assert found.notes == []


def test_changed_code_differs_in_what_it_writes_and_asks_for(night: Path, bundle: BundleDir) -> None:
    """Of a write the changed field is named, with its values of then and now."""
    changed = HANDLERS.replace('get("phase", "none")', 'get("phase", "unknown")').replace(
        "after=30", "after=60"
    )
    bundle.write("handlers.py", changed)
    found = replayed(night, bundle.path)
    assert (found.calls, found.same, found.different, found.missing, found.extra) == (10, 0, 10, 0, 0)
    assert found.writes_alike == 3  # those for the pod that has a phase
    details = [each.details for each in found.differences]
    assert details[0] == (
        "requeue: 30 s then, 60 s now",
        "PATCH /api/v1/namespaces/default/configmaps/p0: data.phase was none and is unknown",
    )


@pytest.mark.thorough
def test_a_storm_with_two_reloads_is_the_same_again(tmp_path: Path) -> None:
    """Retries, requeues, debounces, schedules, backlogs: each key has its calls, with their writes."""
    recording = tmp_path / "storm.rec"
    bundle = record_storm(tmp_path / "bundle", recording, seconds=12, rate=20)
    found = replayed(recording)
    assert found.differences == []
    assert found.reloads == 2
    assert found.calls > 500
    assert found.writes_alike == found.writes > 300
    # Code of today runs on all of it: a handler that writes otherwise differs, and one that does not is the
    # same, although the reloads of then have called both again.
    bundle.edit("handlers.py", '"node": "there"', '"node": "here"')
    changed = replayed(recording, bundle.path)
    by_handler = Counter((each.handler, each.kind) for each in changed.differences)
    tape = read_tape(recording)
    written = [tape.call(each).begin.handler for each in tape.calls if tape.call(each).requests]
    assert by_handler["slow", "different"] == written.count("slow") > 5
    assert {handler for handler, _ in by_handler} == {"slow", "copy", "note"}  # these two know their edition
    assert (changed.missing, changed.extra, len(changed.marks)) == (0, 0, 2)


EVENTS = """
    - {name: log, resourceRef: {name: pods}, entryPoint: "handlers:log", events: [Added, Deleted]}
"""


def test_calls_that_are_not_made_and_that_are_new(night: Path, bundle: BundleDir) -> None:
    """A reconciler that is called for fewer objects, and a handler that was not there."""
    bundle.write(
        "manifest.yaml",
        MANIFEST.replace("entryPoint", "filter: {expression: \"obj.metadata.name != 'p2'\"}, entryPoint")
        + EVENTS,
    )
    bundle.write("handlers.py", HANDLERS + "\ndef log(change, ctx):\n    pass\n")
    found = replayed(night, bundle.path)
    kinds = Counter((each.kind, each.handler, each.key) for each in found.differences)
    assert kinds == {
        ("missing", "copy", "default/p2"): 3,
        **{("extra", "log", f"default/p{number}"): 1 for number in range(3)},
    }
    assert (found.same, found.missing, found.extra) == (7, 3, 3)
    # Each says what has led to it then.
    why = [each.details[0] for each in found.differences if each.kind == "missing"]
    assert why[0].startswith("not made now: then, Pod default/p2 was listed 0.")
    assert why[1:] == ["not made now: then, the call before asked for a Requeue after 30 s"] * 2
    assert replayed(night, bundle.path, key="default/p0", handler="copy").is_alike


def test_a_call_that_asks_for_more_is_answered_by_a_sandbox(night: Path, bundle: BundleDir) -> None:
    """It has the objects of the recording, checks what is written, and stores nothing."""
    bundle.edit(
        "handlers.py",
        "    await ctx.apply(found)\n",
        """    await ctx.apply(found)
    assert (await ctx.get("v1/Pod", pod.name)).uid == pod.uid
    assert await ctx.get("v1/Pod", "nobody") is None
    made = await ctx.apply({**found, "metadata": {"name": f"{pod.name}-more"}})
    assert made.obj["data"] == data and made.uid
    assert await ctx.get("v1/ConfigMap", f"{pod.name}-more")
    assert await ctx.delete("v1/ConfigMap", f"{pod.name}-never") is False
""",
    )
    found = replayed(night, bundle.path)
    assert found.different == found.calls == 10
    assert found.writes_alike == 10
    assert found.differences[0].details == (
        "PATCH /api/v1/namespaces/default/configmaps/p0-more: only now",
        "DELETE /api/v1/namespaces/default/configmaps/p0-never: only now",
    )


CLIENTS = """
import asyncio
import json
import threading

import kubernetes
from kubernetes.aio.client import ApiException, CoreV1Api


async def copy(request, ctx):
    core, other = CoreV1Api(ctx.client), kubernetes.client.CoreV1Api(ctx.sync_client)
    try:
        await core.read_namespaced_config_map("nobody", "default")
    except ApiException as missing:
        assert json.loads(missing.body)["reason"] == "NotFound"
    made = await core.create_namespaced_config_map("default", {"metadata": {"name": request.name}})
    there = await asyncio.to_thread(other.list_namespaced_config_map, "default")
    assert made.metadata.uid in [each.metadata.uid for each in there.items]
    thread = threading.Thread(target=other.list_namespaced_config_map, args=["default"])
    thread.start()
    await asyncio.to_thread(thread.join)
    stream = await core.list_namespaced_config_map_without_preload_content("default", watch=True)
    stream.close()
"""


def test_requests_of_official_clients_are_answered(bundle: BundleDir, tmp_path: Path) -> None:
    """They count as those of `ctx`. What no recording has of them is a note."""
    bundle.edit("manifest.yaml", "  resources:", '  reload: {preflight: "Off"}\n  resources:')
    bundle.write("handlers.py", CLIENTS)
    recording = tmp_path / "night.rec"
    with running(bundle.path, objects=[pod("p0")], record=recording) as controller:
        controller.wait_idle()
    found = replayed(recording)
    assert (found.same, found.differences, found.writes_alike) == (1, [], 1)
    maps = "GET /api/v1/namespaces/default/configmaps of a client"
    notes = [each.partition(": ")[2] for each in found.notes]
    assert notes == [
        f"{maps} belongs to no call: nothing is stored",
        f"{maps}: no recording has such a stream",
    ]
    bundle.edit("handlers.py", '{"name": request.name}', '{"name": "other"}')
    (changed,) = replayed(recording, bundle.path).differences
    assert changed.details[0].startswith(
        "outcome: succeeded then, retried (AssertionError"
    )  # not in the list
    assert changed.details[1:] == (
        "POST /api/v1/namespaces/default/configmaps: metadata.name was p0 and is other",
    )


LOST = """
import aiohttp
import kubernetes
import urllib3
from kubernetes.aio.client import CoreV1Api

async def copy(request, ctx):
    try:
        await CoreV1Api(ctx.client).read_namespaced_config_map("nobody", "default")
    except aiohttp.ClientError:
        await ctx.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "asynchronous"}})

def tally(schedule, ctx):
    try:
        kubernetes.client.CoreV1Api(ctx.sync_client).list_namespaced_config_map("default")
    except urllib3.exceptions.MaxRetryError:
        ctx.sync.apply({"apiVersion": "v1", "kind": "ConfigMap",
                        "metadata": {"name": "synchronous", "namespace": "default"}})
        raise
"""


def test_what_had_no_answer_then_has_none_again(bundle: BundleDir, tmp_path: Path) -> None:
    """Also where an official client tries again by itself: what a handler does about it is the same."""
    schedule = '  schedules:\n    - {name: tally, every: 10s, entryPoint: "handlers:tally"}\n'
    bundle.write("manifest.yaml", f"{MANIFEST}{schedule}")
    bundle.write("handlers.py", LOST)
    recording = tmp_path / "night.rec"
    with running(bundle.path, record=recording) as controller:
        controller.wait_idle()
        controller.sandbox.faults.lose(Match("get", "configmaps"))
        controller.sandbox.faults.lose(Match("list", "configmaps", "default"))
        controller.sandbox.create(pod("p0"))
        lists = partial(controller.sandbox.ledger.count, "list", resource="configmaps", namespace="default")
        controller.advance(10)
        until("four attempts are lost", lambda: lists() == 4)
        controller.wait_idle()
        controller.sandbox.faults.clear()
        controller.advance(10)
        until("there is an answer", lambda: lists() == 5)
    tape = read_tape(recording)
    ends = [tape.call(each).end for each in tape.calls]
    assert Counter(each.error_type for each in ends if each is not None) == {"": 2, "MaxRetryError": 1}
    found = replayed(recording)
    assert found.differences == []
    assert found.writes_alike == 2


STATUS = """
import declctl

async def copy(request, ctx):
    if request.obj is not None:
        await ctx.patch_status(message=f"{request.obj.labels.get('phase')} by one")
"""


def test_a_changed_status_differs_where_it_is_written(bundle: BundleDir, tmp_path: Path) -> None:
    """The next call sees what today's code has written, and what it then need not write is the same."""
    bundle.write("manifest.yaml", MANIFEST.replace("entryPoint", "status: true, entryPoint"))
    bundle.write("handlers.py", STATUS)
    recording = tmp_path / "night.rec"
    with running(bundle.path, objects=[pod("p0"), pod("p1")], record=recording) as controller:
        controller.wait_idle()
        for label in ("other", "another", "phase", "more"):
            relabel(controller, "p0", **{label: "x"})
            controller.wait_idle()
    bundle.edit("handlers.py", "by one", "by two")
    found = replayed(recording, bundle.path)
    assert (found.calls, found.same, found.different, found.extra) == (6, 3, 3, 0)
    path = "PATCH /api/v1/namespaces/default/pods"
    assert [each.details for each in found.differences] == [
        (f"{path}/p0/status: status.message was None by one and is None by two",),
        (f"{path}/p1/status: status.message was None by one and is None by two",),
        (f"{path}/p0/status: status.message was x by one and is x by two",),
    ]


def test_a_slow_import_takes_no_time_of_the_recording(bundle: BundleDir, tmp_path: Path) -> None:
    """New code is there when it was there then, and receives what waited for nothing but own writes."""
    bundle.write("manifest.yaml", MANIFEST.replace("entryPoint", "status: true, entryPoint"))
    bundle.write("handlers.py", STATUS)
    recording = tmp_path / "slow.rec"
    pods = [pod(f"p{n}", phase="a") for n in range(3)]
    with running(bundle.path, objects=pods, record=recording) as controller:
        controller.wait_idle()
        relabel(controller, "p0", other="x")  # nothing waits for it after this call
        controller.wait_idle()
        bundle.write("handlers.py", "import time\ntime.sleep(1.2)\n" + STATUS.replace("by one", "by two"))
        assert str(controller.reload().result) == "Applied"
        controller.wait_idle()
    tape = read_tape(recording)
    (mark,) = (each for each in tape.entries if isinstance(each, ReloadMark))
    found = replayed(recording)
    assert found.marks == [f"{tape.moment(mark.at).isoformat(timespec='milliseconds')}: {mark.line}"]
    assert found.differences == []
    assert found.calls >= 7
    # Other code is called again where that of then was, before what then followed from these calls.
    bundle.write("handlers.py", STATUS)
    today = replayed(recording, bundle.path)
    assert (today.missing, today.extra) == (0, 0)


def test_changes_that_came_one_after_the_other_then_are_two_calls(bundle: BundleDir, tmp_path: Path) -> None:
    """A cache had both before the first call, and its handler had the second one later."""
    watches = "watches: [{resourceRef: {name: maps}, mapTo: {label: pod}}], entryPoint"
    bundle.write("manifest.yaml", MANIFEST.replace("entryPoint", watches))
    bundle.write("handlers.py", STATUS.replace("await ctx.patch_status(", "ctx.memo.update("))
    labelled = {"apiVersion": "v1", "kind": "ConfigMap"}
    labelled |= {"metadata": {"name": "m", "namespace": "default", "labels": {"pod": "p0"}}}
    recording = tmp_path / "two.rec"
    with running(bundle.path, objects=[pod("p0"), labelled], record=recording) as controller:
        controller.wait_idle()
        controller.sandbox.delete("Pod", "p0", "default")
        controller.wait_idle()
        controller.sandbox.delete("ConfigMap", "m", "default")
        controller.wait_idle()
    tape = read_tape(recording)
    entries, gone = list(tape.entries), [n for n, each in enumerate(tape.entries) if _has_deleted(each)]
    # The second deletion goes before the call for the first one.
    second, moment = entries.pop(gone[1]), entries[gone[0]]
    assert isinstance(moment, StreamChanges)
    entries[gone[0] + 1 : gone[0] + 1] = [msgspec.structs.replace(second, at=moment.at)]
    log = Logged()
    close = tape_of(
        recording, tape.header, [_at_most(each, moment.at + 0.001 * n) for n, each in enumerate(entries)]
    )
    found = replay(close, ReplayOptions(), log=log, user_log=log.user_logger(), children=CHILDREN)
    assert found.differences == []
    assert found.same == len(close.calls) >= 3


def _has_deleted(entry: Entry) -> bool:
    return isinstance(entry, StreamChanges) and any(not each.frame for each in entry.objects)


def _at_most(entry: Entry, at: float) -> Entry:
    """An entry with an earlier time, so that what followed after a pause follows at once."""
    known = time_of(entry)
    return entry if known is None or known <= at else msgspec.structs.replace(entry, at=at)


def test_a_replay_ends_where_it_is_told(night: Path) -> None:
    tape = read_tape(night, until=40.0)
    log = Logged()
    found = replay(tape, ReplayOptions(), log=log, user_log=log.user_logger(), children=CHILDREN)
    assert (found.calls, found.is_alike) == (7, True)
    assert found.seconds <= 40.0


def test_what_a_killed_process_has_left_is_replayed(bundle: BundleDir, tmp_path: Path) -> None:
    """Each block that was whole: the last one is not."""
    recording = tmp_path / "night.rec"
    with running(bundle.path, objects=[pod("p0")], record=recording) as controller:
        for number in range(3):
            relabel(controller, "p0", phase=f"v{number}")
            controller.wait_idle()
            size = recording.stat().st_size
            until("a block is written", lambda size=size: recording.stat().st_size > size)
    recording.write_bytes(recording.read_bytes()[:-1])
    found = replayed(recording)
    assert found.torn > 0
    assert found.calls >= 2
    assert found.is_alike


SECRETS = """
import declctl

async def copy(request, ctx):
    secret = ctx.listers["secrets"].get("default/login")
    password = secret["data"]["password"]
    await ctx.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{request.name}-copy"},
                     "data": {"password": password}})
    read = await ctx.get("v1/Secret", "login")
    await ctx.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": request.name},
                     "data": {"url": f"postgres://me:{read['data']['password']}@db"}})
    if request.attempt == 1:
        raise declctl.Terminal(f"refused {password}")
"""


def test_no_value_of_a_secret_is_in_the_file(bundle: BundleDir, tmp_path: Path) -> None:
    """Neither of what is watched, read and written, nor in a text that quotes it; and it can be replayed."""
    plain = "correct-horse-battery"
    coded = base64.b64encode(plain.encode()).decode()
    manifest = MANIFEST.replace(
        "  handlers:", "    - {name: secrets, apiVersion: v1, kind: Secret}\n  handlers:"
    )
    bundle.write(
        "manifest.yaml", manifest.replace("    - {name: maps, apiVersion: v1, kind: ConfigMap}\n", "")
    )
    bundle.write("handlers.py", SECRETS)
    last = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps({"data": {"password": coded}})}
    login = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "login", "namespace": "default", "annotations": last},
        "data": {"password": coded},
    }
    recording = tmp_path / "night.rec"
    with running(bundle.path, objects=[login, pod("p0")], record=recording) as controller:
        controller.wait_idle()
        controller.sandbox.patch("Secret", "login", {"stringData": {"other": plain}})
        controller.wait_idle()
    tape = read_tape(recording)
    unpacked = msgspec.msgpack.encode([*tape.entries], enc_hook=str)
    for text in (plain, coded):
        assert text.encode() not in unpacked
    assert any(isinstance(each, CallRequest) and b"(hidden)" in each.answer for each in tape.entries)
    assert any(isinstance(each, CallEnd) and "refused (hidden)" in each.error for each in tape.entries)
    found = replayed(recording)
    assert (found.calls, found.differences) == (1, [])


def test_a_recording_that_begins_amid_a_run_is_replayed_from_there(bundle: BundleDir, tmp_path: Path) -> None:
    """The older half was dropped: what was queued before is not known, and leads to no call."""
    recording = tmp_path / "night.rec"
    text = "x" * 2000
    with running(
        bundle.path, objects=[pod(f"p{n}") for n in range(20)], record=recording, record_size=1 << 20
    ) as controller:
        controller.wait_idle()
        number = 0
        while RecordedEntries(recording).header.segment < 3:
            for _ in range(20):
                number += 1
                noise = random.Random(number).randbytes(4000).hex()
                patch = {
                    "metadata": {
                        "labels": {"phase": f"v{number}"},
                        "annotations": {"noise": noise, "x": text},
                    }
                }
                controller.sandbox.patch("Pod", f"p{number % 20}", patch)
            controller.wait_idle()
    assert read_tape(recording).header.segment > 1
    found = replayed(recording)
    assert found.calls > 20
    assert found.differences == []
    # The newest segment alone, too.
    (tmp_path / "night.rec.1").unlink()
    assert replayed(recording).differences == []


def test_namespaces_that_come_and_go_are_replayed(bundle: BundleDir, tmp_path: Path) -> None:
    """A cache of namespaces by their labels has one list for each, which the replay asks for as they come."""
    selected = "spec:\n  namespaces: {labelSelector: {matchLabels: {team: a}}}\n"
    bundle.edit("manifest.yaml", "spec:\n", selected)
    recording = tmp_path / "night.rec"
    spaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": team}}}
        for name, team in (("one", "a"), ("two", "b"))
    ]
    pods = [pod("p0") | {"metadata": {"name": "p0", "namespace": space}} for space in ("one", "two")]
    with running(bundle.path, objects=[*spaces, *pods], record=recording) as controller:
        controller.wait_idle()
        controller.sandbox.patch("Namespace", "two", {"metadata": {"labels": {"team": "a"}}}, namespace="")
        until("it is called", lambda: controller.handler("copy").succeeded == 2)
        controller.sandbox.patch("Namespace", "one", {"metadata": {"labels": {"team": "b"}}}, namespace="")
        until("its objects have left", lambda: len(controller.lister("pods").list()) == 1)
        controller.wait_idle()
    found = replayed(recording)
    assert (found.calls, found.differences, found.notes) == (3, [], [])
