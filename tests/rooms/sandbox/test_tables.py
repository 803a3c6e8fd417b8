"""What `kubectl get` shows."""

from datetime import UTC, datetime

import pytest

from declctl.sandbox import kinds
from declctl.sandbox.kinds import BUILT_IN, Registry
from declctl.sandbox.kubectl import tables
from tests.rooms.sandbox.shapes import definition, pod, widget

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
REGISTRY = Registry()
ENDED = {"terminated": {"finishedAt": "2026-01-01T00:58:00Z"}}


def shown(obj):
    kind = REGISTRY.of(obj)
    row = tables.cells(kind, obj, NOW)
    return {column["name"]: cell for column, cell in zip(tables.definitions(kind), row, strict=True)}


def with_containers(*containers, **status):
    obj = pod(phase="Running")
    obj["status"] |= {"containerStatuses": list(containers), **status}
    return obj


@pytest.mark.parametrize(
    ("obj", "ready", "word", "restarts"),
    [
        (pod(), "0/1", "Unknown", "0"),
        (pod(phase="Pending"), "0/1", "Pending", "0"),
        (with_containers({"ready": True, "state": {"running": {}}}), "1/1", "Running", "0"),
        (with_containers({"state": {"waiting": {"reason": "ErrImagePull"}}, "restartCount": 3}), "0/1",
         "ErrImagePull", "3"),
        (with_containers({"state": {"terminated": {"exitCode": 1}}}), "0/1", "ExitCode:1", "0"),
        (with_containers({"state": {"terminated": {"reason": "Completed"}}}), "0/1", "Completed", "0"),
        (with_containers({"restartCount": 2, "lastState": ENDED}), "0/1", "Running", "2 (2m ago)"),
        (with_containers(initContainerStatuses=[{"state": {"running": {}}}]), "0/1", "Init:0/1", "0"),
        (with_containers(reason="Evicted"), "0/1", "Evicted", "0"),
    ],
)  # fmt: skip
def test_a_pod_is_told_in_one_word(obj, ready, word, restarts):
    """READY, STATUS and RESTARTS are what kubectl's users know."""
    cells = shown(obj)
    assert (cells["Ready"], cells["Status"], cells["Restarts"]) == (ready, word, restarts)


def test_a_marked_pod_is_terminating():
    """A pod with a deletionTimestamp is Terminating, whatever its phase."""
    obj = pod(phase="Running")
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert shown(obj)["Status"] == "Terminating"


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: f"{kind.plural}.{kind.group}")
def test_every_kind_has_a_row(kind):
    """Even an object with nothing but a name has a row with a cell for each column."""
    obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "x"}}
    row = tables.cells(kind, obj, NOW)
    assert len(row) == len(tables.definitions(kind))
    assert "x" in row


def test_an_odd_object_is_shown_as_far_as_it_can_be():
    """A field of the wrong type is `<unknown>` in its column only."""
    obj = pod()
    obj["spec"]["containers"] = 5
    cells = shown(obj)
    assert cells["Name"] == "web"
    assert cells["Ready"] == "<unknown>"


def test_the_columns_of_a_custom_kind_come_from_its_definition():
    """The additionalPrinterColumns are shown, with ages for dates and nothing for what is absent."""
    kind = kinds.kinds_of(kinds.established(definition(), ""))[0]
    obj = widget(size=3)
    obj["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    assert tables.cells(kind, obj, NOW) == ["one", 3, None, "60m"]
    obj["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    assert tables.cells(kind, obj, NOW)[2] == "True"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "<invalid>"), (0, "0s"), (119, "119s"), (120, "2m"), (312, "5m12s"), (3599, "59m"), (7200, "120m"),
     (4 * 3600, "4h"), (4 * 3600 + 61, "4h1m"), (30 * 3600, "30h"), (3 * 86400 + 4 * 3600, "3d4h"),
     (100 * 86400, "100d"), (800 * 86400, "2y70d"), (9 * 365 * 86400, "9y")],
)  # fmt: skip
def test_ages_are_written_as_kubectl_writes_them(seconds, text):
    """HumanDuration's steps."""
    assert tables.human(seconds) == text


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".a.b", [1]), ("{.a.b}", [1]), (".list[0].n", [1]), (".list[*].n", [1, 2]), (".list[-1].n", [2]),
        (".a['b']", [1]), ('.list[?(@.n=="x")].m', []), (".list[?(@.k=='y')].n", [2]), (".nope", []),
        (".a..b", []), (".labels.app\\.io/x", []), (".list[9].n", []), (".a.*", [1]),
    ],
)  # fmt: skip
def test_json_paths_of_columns(path, found):
    """The paths that definitions use are read; one that can't be read finds nothing."""
    obj = {"a": {"b": 1}, "list": [{"n": 1, "k": "x"}, {"n": 2, "k": "y"}]}
    assert tables.evaluate(path, obj) == found
