"""LIST and WATCH as records and events, without a socket."""

import asyncio
import contextlib
import json

import pytest

from declctl.decoding import Projection
from declctl.errors import Expired, InvalidRequest, MalformedAnswer, NotFound, Unreachable
from declctl.objects import EventType, GroupVersionKind, ListOptions, Resource, WatchOptions
from declctl.transport import ResourceSource
from declctl.transport.source import MOST_EVENTS

POD = GroupVersionKind.of("v1", "Pod")


def pod(name, version):
    return {
        "metadata": {"name": name, "namespace": "team-a", "uid": f"u-{name}", "resourceVersion": str(version)}
    }


def event(kind, name, version):
    return json.dumps({"type": kind, "object": pod(name, version)}, separators=(",", ":")).encode() + b"\n"


class Channel:
    """Gives parts to whoever opens it; an exception among them is raised."""

    def __init__(self, parts):
        self.parts = list(parts)
        self.closed = False
        self.sink = None

    async def read(self):
        if not self.parts:
            return False
        part = self.parts.pop(0)
        if isinstance(part, Exception):
            raise part
        self.sink.feed(memoryview(part))
        return True

    def close(self):
        self.closed = True


class Gate:
    """A client without a server: it answers what it is given and remembers what it was asked."""

    def __init__(self, *answers, verbs=("list", "watch"), namespaced=True):
        self.answers = list(answers)
        self.requests = []
        self.forgotten = 0
        self.resource = Resource(POD, "pods", namespaced, frozenset(verbs))

    @property
    def wire(self):
        return self

    async def discover(self, gvk):
        return self.resource

    def forget(self, gvk):
        self.forgotten += 1

    async def open(self, request, sink):
        self.requests.append(request)
        channel = self.answers.pop(0)
        if isinstance(channel, Exception):
            raise channel
        channel.sink = sink
        return channel


def source(gate, **scope):
    chosen = {"namespace": None, "label_selector": "", "field_selector": "", **scope}
    return ResourceSource(gate, POD, projection=Projection(api_version="v1", kind="Pod"), **chosen)


def page(*items, version="7", more="", remaining=None):
    metadata = {"resourceVersion": version, "continue": more, "remainingItemCount": remaining}
    return Channel([json.dumps({"kind": "PodList", "metadata": metadata, "items": list(items)}).encode()])


def listed(gate, options, **scope):
    return asyncio.run(source(gate, **scope).list(options))


async def watched(pods, options=None):
    batches = []
    async with contextlib.aclosing(pods.watch(options or WatchOptions(resource_version="1"))) as events:
        async for batch in events:
            batches.append(list(batch))  # noqa: PERF401
    return batches


def test_a_page_is_given_as_records_with_how_to_go_on():
    """A list of a thousand pods comes in pages, each with what is needed to ask for the next."""
    found = listed(Gate(page(pod("a", 3), more="next", remaining=40)), ListOptions(limit=1))
    assert [(r.key, r.resource_version) for r in found.records] == [("team-a/a", "3")]
    assert (found.resource_version, found.continue_token, found.remaining) == ("7", "next", 40)


async def test_whoever_waits_for_a_page_hears_that_it_is_coming():
    """Once for each part, so that a long answer over a slow network is not taken for a silent one."""
    body = page(pod("a", 1), pod("b", 2)).parts[0]
    heard = []
    pods = source(Gate(Channel([body[:40], body[40:60], body[60:]])))
    found = await pods.list(ListOptions(), progress=lambda: heard.append("more"))
    assert [record.key for record in found.records] == ["team-a/a", "team-a/b"]
    assert len(heard) == 3


@pytest.mark.parametrize(
    ("options", "params"),
    [
        (ListOptions(), {}),
        (ListOptions(resource_version="0"), {"resourceVersion": "0"}),
        (
            ListOptions(resource_version="9", resource_version_match="NotOlderThan", limit=500),
            {"limit": "500", "resourceVersion": "9", "resourceVersionMatch": "NotOlderThan"},
        ),
        (
            ListOptions(resource_version="9", resource_version_match="Exact", limit=500, continue_token="t"),
            {"limit": "500", "continue": "t"},
        ),
    ],
)
def test_a_list_is_asked_for_as_client_go_does(options, params):
    """The version is sent on the first page only; after that the token stands for it (client-go 215)."""
    gate = Gate(page())
    listed(gate, options)
    assert (gate.requests[0].verb, gate.requests[0].params) == ("LIST", params)


@pytest.mark.client_go(230)
@pytest.mark.parametrize(
    ("scope", "options", "labels", "fields"),
    [
        (("app=web", "spec.nodeName=n1"), ("", ""), "app=web", "spec.nodeName=n1"),
        (("app=web", ""), ("team=a", "metadata.name=x"), "app=web,team=a", "metadata.name=x"),
    ],
)
async def test_selectors_are_sent_with_lists_and_with_watches(scope, options, labels, fields):
    """Those of the options narrow what was declared; they never open it."""
    gate = Gate(page(), Channel([]))
    names = ("label_selector", "field_selector")
    pods = source(gate, namespace="team-a", **dict(zip(names, scope, strict=True)))
    narrowed = dict(zip(names, options, strict=True))
    await pods.list(ListOptions(**narrowed))
    await watched(pods, WatchOptions(**narrowed))
    assert [each.verb for each in gate.requests] == ["LIST", "WATCH"]
    for request in gate.requests:
        assert request.path == "/api/v1/namespaces/team-a/pods"
        assert (request.params["labelSelector"], request.params["fieldSelector"]) == (labels, fields)


async def test_a_shard_selector_goes_with_each_page_and_watch():
    """A continue token does not contain it; without one, all further pages would bring everything."""
    gate = Gate(page(), page(), Channel([]))
    for token in (None, "more"):
        await source(gate).list(ListOptions(shard_selector="shardRange(…)", continue_token=token))
    await watched(source(gate), WatchOptions(shard_selector="shardRange(…)"))
    assert [each.params["shardSelector"] for each in gate.requests] == ["shardRange(…)"] * 3


async def test_what_the_cache_holds_is_given_back():
    """Unchanged objects of a relist, or of a watch that begins with all, make no second copy."""
    pods = source(Gate(page(pod("a", 3)), page(pod("a", 3)), Channel([event("ADDED", "a", 3)])))
    (first,) = (await pods.list()).records
    known = {"team-a/a": first}.get
    assert (await pods.list(known=known)).records[0] is first
    watch = pods.watch(WatchOptions(send_initial_events=True), known=known)
    async with contextlib.aclosing(watch) as batches:
        (again,) = [each.record async for batch in batches for each in batch]
    assert again is first


@pytest.mark.client_go("Metadata factory")
async def test_metadata_alone_is_asked_for_by_the_accept_header():
    """A server sends PartialObjectMetadata only to those who take nothing else, in two words for it."""
    gate = Gate(page(), Channel([]))
    pods = source(gate, metadata_only=True)
    await pods.list(ListOptions())
    await watched(pods)
    assert [request.accept for request in gate.requests] == [
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
    ]


@pytest.mark.parametrize(
    ("options", "params"),
    [
        (
            WatchOptions(resource_version="5", timeout_seconds=300),
            {"timeoutSeconds": "300", "resourceVersion": "5"},
        ),
        # With WatchList the objects come through the watch, at a version that is not older than asked.
        (
            WatchOptions(send_initial_events=True, timeout_seconds=300),
            {"timeoutSeconds": "300", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"},
        ),
    ],
)
def test_a_watch_asks_for_bookmarks_and_names_its_end(options, params):
    """Every watch ends by itself and is told how far the server is."""
    gate = Gate(Channel([]))
    asyncio.run(watched(source(gate), options))
    request = gate.requests[0]
    assert (request.verb, request.watch_seconds) == ("WATCH", 300)
    assert request.params == {"watch": "true", "allowWatchBookmarks": "true", **params}


def test_events_come_in_the_batches_of_the_socket():
    """An open watch says so first; what arrives together is handed on together; a cut event comes whole."""
    lines = event("ADDED", "a", 2) + event("MODIFIED", "a", 3), event("DELETED", "a", 4)
    channel = Channel([lines[0], lines[1][:20], lines[1][20:]])
    batches = asyncio.run(watched(source(Gate(channel))))
    assert [[(e.type, e.resource_version) for e in batch] for batch in batches] == [
        [],
        [(EventType.ADDED, "2"), (EventType.MODIFIED, "3")],
        [(EventType.DELETED, "4")],
    ]
    assert channel.closed


async def test_a_flood_is_cut_so_that_others_get_their_turn():
    """While ten thousand objects stream in, leases are still renewed: batches are bounded."""
    count = 3 * MOST_EVENTS + 1
    channel = Channel([b"".join(event("ADDED", f"p{i}", i) for i in range(count))])
    turns = []

    async def other():
        while not channel.closed:
            turns.append(1)
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    batches = await watched(source(Gate(channel)))
    await task
    assert [len(batch) for batch in batches] == [0] + [MOST_EVENTS] * 3 + [1]
    assert len(turns) >= 3


async def test_events_before_a_fault_are_delivered_before_it():
    """A 410 in the stream takes nothing away that was already told (client-go 55)."""
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    error = json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n"
    channel = Channel([event("ADDED", "a", 2) + error + event("ADDED", "b", 3)])
    seen = []
    with pytest.raises(Expired, match="too old"):
        async with contextlib.aclosing(source(Gate(channel)).watch(WatchOptions())) as events:
            async for batch in events:
                seen.extend(e.record.key for e in batch)
    assert seen == ["team-a/a"]
    assert channel.closed


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (b'{"type":"ADDED","obj', MalformedAnswer),
        (Unreachable("reset"), Unreachable),
        (b"nonsense\n", MalformedAnswer),
    ],
)
def test_a_stream_that_breaks_is_closed_and_told(last, kind):
    """A connection that is cut within an event is an error of the connection, never half an event."""
    channel = Channel([event("ADDED", "a", 2), last])
    with pytest.raises(kind):
        asyncio.run(watched(source(Gate(channel))))
    assert channel.closed


async def test_leaving_a_watch_closes_its_connection():
    """A resource that is removed from the manifest leaves no watch behind on the server."""
    channel = Channel([event("ADDED", "a", 2), event("ADDED", "b", 3)])
    async with contextlib.aclosing(source(Gate(channel)).watch(WatchOptions())) as events:
        await anext(events)
    assert channel.closed


async def test_a_collection_that_is_gone_is_discovered_anew():
    """A CRD that vanishes and comes back, perhaps under another plural, is followed."""
    gate = Gate(NotFound(404, "NotFound", "no"), NotFound(404, "NotFound", "no"))
    pods = source(gate)
    with pytest.raises(NotFound):
        await pods.list(ListOptions())
    with pytest.raises(NotFound):
        await watched(pods)
    assert gate.forgotten == 2


def test_a_kind_that_can_not_be_watched_is_refused_with_a_sentence():
    """A manifest that watches bindings is told that nobody can."""
    gate = Gate(verbs=["create"])
    with pytest.raises(InvalidRequest, match="does not let anybody list pods"):
        listed(gate, ListOptions())
    with pytest.raises(InvalidRequest, match="does not let anybody watch pods"):
        asyncio.run(watched(source(gate)))


@pytest.mark.client_go(138, "Type description / name")
def test_the_description_reads_as_people_say_it():
    """Logs speak of pods in a namespace, and of the kind as long as the server has not been asked."""
    pods = source(Gate(page()), namespace="team-a", label_selector="app=web")
    assert pods.description == "v1 Pod in team-a with app=web"
    asyncio.run(pods.list(ListOptions()))
    assert pods.description == "pods in team-a with app=web"


def test_whether_objects_have_namespaces_is_what_the_server_says():
    """A namespace on a cluster-scoped kind can be refused before it is listed."""
    assert asyncio.run(source(Gate()).namespaced())
    assert not asyncio.run(source(Gate(namespaced=False)).namespaced())
