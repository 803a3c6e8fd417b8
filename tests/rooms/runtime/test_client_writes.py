"""Writes of official clients: what the ledger has of a request, and the rate limit."""

import asyncio

import pytest
from msgspec.structs import replace

from declctl.errors import NotLeader, WriteError
from declctl.kit import ManualClock
from declctl.objects import GroupVersionKind, Resource
from declctl.runtime.handling.client_writes import UNKNOWN_HANDLER, ClientWrites
from declctl.transport.official import ClientWrite
from declctl.writes import WriteBudget, WriteLedger

HOST = "https://server:6443"
PODS = f"{HOST}/api/v1/namespaces/a/pods"
DEPLOYMENT = Resource(GroupVersionKind("apps", "v1", "Deployment"), "deployments", True)
WRITE = ClientWrite("PATCH", f"{PODS}/b", "declctl/1.0", "application/json", b"{}", False, status=200)


def recorded(write: ClientWrite):
    ledger, clock = WriteLedger(), ManualClock()

    def known(*name: str) -> Resource | None:
        return DEPLOYMENT if name == ("apps", "v1", "deployments") else None

    budget, loop = WriteBudget(clock=clock), asyncio.new_event_loop()
    loop.close()
    writes = ClientWrites(ledger, budget=budget, loop=loop, known_plural=known, clock=clock)
    began = writes.begin()
    clock.set(2)
    writes.add(write, began)
    (record,) = ledger.newest()
    return record


@pytest.mark.parametrize(
    ("method", "path", "content_type", "verb", "key"),
    [
        ("POST", "/api/v1/namespaces/a/pods", "application/json", "create", "a/made"),
        ("PUT", "/api/v1/namespaces/a/pods/b", "application/json", "update", "a/b"),
        ("PATCH", "/api/v1/namespaces/a/pods/b", "application/json-patch+json", "patch", "a/b"),
        ("PATCH", "/api/v1/namespaces/a/pods/b", "application/apply-patch+yaml", "client_apply", "a/b"),
        ("PATCH", "/api/v1/namespaces/a/pods/b/status", "application/json-patch+json", "patch_status", "a/b"),
        ("DELETE", "/api/v1/namespaces/a/pods/b", "", "delete", "a/b"),
        ("DELETE", "/api/v1/namespaces/a/pods", "", "delete_collection", "a/"),
        ("PUT", "/api/v1/nodes/n", "application/json", "update", "n"),
    ],
)
def test_a_request_is_shown_as_the_write_that_it_is(method, path, content_type, verb, key) -> None:
    """`declctl why pods/a/b` has the writes of official clients to this pod."""
    found = recorded(
        replace(
            WRITE,
            method=method,
            url=HOST + path,
            content_type=content_type,
            body=b'{"metadata": {"name": "made"}}',
        )
    )
    assert (found.verb, found.key, found.result, found.seconds) == (verb, key, "succeeded", 2)
    assert found.origin.handler == UNKNOWN_HANDLER  # it is part of no call


def test_the_kind_is_that_of_a_discovered_resource_and_the_field_manager_that_of_the_server() -> None:
    """It is a parameter, and by default the beginning of the User-Agent: so the fields find the write."""
    found = recorded(replace(WRITE, url=f"{HOST}/apis/apps/v1/namespaces/a/deployments/b"))
    assert (found.kind, found.resource) == (DEPLOYMENT.gvk, "deployments.apps")
    other = recorded(WRITE)
    assert (other.kind, other.resource) == (GroupVersionKind("", "v1", ""), "pods")
    assert other.manager == "declctl"
    assert recorded(replace(WRITE, url=f"{PODS}/b?force=true&fieldManager=mine%2Fweb")).manager == "mine/web"


@pytest.mark.parametrize(
    ("status", "error", "dry_run", "result", "text"),
    [
        (201, None, True, "dry_run", ""),
        (403, None, True, "refused", "the server answered 403"),
        (409, None, False, "conflict", "the server answered 409"),
        (429, None, False, "throttled", "the server answered 429"),
        (503, None, False, "failed", "the server answered 503"),
        (None, NotLeader("this process does not lead"), False, "not_leader", "this process does not lead"),
        (None, asyncio.CancelledError(), False, "cancelled", "CancelledError"),
        (None, OSError("no route"), False, "failed", "no route"),
    ],
)
def test_the_result_is_one_of_those_of_all_writes(status, error, dry_run, result, text) -> None:
    """Refused, throttled, cancelled and unanswered writes are told apart."""
    found = recorded(replace(WRITE, status=status, error=error, dry_run=dry_run))
    assert (found.result, found.error) == (result, text)


@pytest.mark.parametrize("body", [None, "no json", b"[1]", '{"metadata": {"generateName": "x-"}}'])
def test_a_create_without_a_name_has_none(body) -> None:
    """The server chooses the name, or the body has another format."""
    assert recorded(replace(WRITE, method="POST", url=PODS, body=body)).key == "a/"


async def test_writes_wait_for_tokens() -> None:
    """A handler that writes in a loop gets the rate of `spec.writes`, by whichever client it writes.

    A thread waits as long as the process runs, and one of the loop that gives the tokens not at all.
    """
    clock, machinery = ManualClock(), asyncio.new_event_loop()
    budget, loop = WriteBudget(0.5, 1, clock=clock), asyncio.get_running_loop()
    writes, ended = (
        ClientWrites(WriteLedger(), budget=budget, loop=each, known_plural=lambda *_: None, clock=clock)
        for each in (loop, machinery)
    )
    writes.wait()
    writes.wait()
    cancelled = asyncio.ensure_future(writes.wait_async())
    await clock.settle()
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    blocked = asyncio.ensure_future(asyncio.to_thread(writes.wait))
    while not budget.waiting():
        await asyncio.sleep(0)
    assert [(each.handler, each.waiting) for each in budget.waiting()] == [(UNKNOWN_HANDLER, 1)]
    await clock.advance(2)
    await blocked  # the cancelled write has cost no token
    machinery.close()
    with pytest.raises(WriteError, match="the write was not sent: the process ends"):
        await asyncio.to_thread(ended.wait)
