"""The record in a Lease, and the requests for it."""

from datetime import UTC, datetime

import pytest

from declctl.leadership import LeaderElectionRecord, LeaseLock
from declctl.leadership.lease import micro_time, parse_micro_time, seconds_of
from declctl.sandbox import Sandbox
from declctl.transport import Client

SPEC = {
    "holderIdentity": "me",
    "leaseDurationSeconds": 15,
    "acquireTime": "2026-01-01T00:00:00.000001Z",
    "renewTime": "2026-01-01T00:00:01.500000Z",
    "leaseTransitions": 4,
}


@pytest.mark.client_go(277)
def test_a_record_goes_there_and_back_without_loss():
    """What was read is written again (client-go 277)."""
    lease = {"metadata": {"resourceVersion": "7"}, "spec": SPEC}
    assert LeaderElectionRecord.of(lease).written_to({"metadata": {"resourceVersion": "7"}}) == lease


@pytest.mark.parametrize("lease", [{}, {"spec": None}, {"spec": []}, {"spec": {"holderIdentity": 3}}])
def test_a_lease_without_a_record_is_held_by_nobody(lease):
    """No shape of an object is a crash (client-go 277)."""
    assert LeaderElectionRecord.of(lease) == LeaderElectionRecord()


def test_times_have_microseconds():
    """MicroTime of Kubernetes, in UTC; texts that are none are None."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    assert micro_time(moment) == "2026-01-02T03:04:05.000006Z"
    assert parse_micro_time(micro_time(moment)) == moment
    assert parse_micro_time("yesterday") is None
    assert parse_micro_time("2026-01-02T03:04:05") is None
    assert parse_micro_time("") is None


@pytest.mark.parametrize(("duration", "seconds"), [(15.0, 15), (1.5, 2), (0.2, 1)])
def test_others_never_wait_for_less_than_the_duration(duration, seconds):
    """The field has whole seconds: it is rounded up."""
    assert seconds_of(duration) == seconds


@pytest.mark.client_go("LeaseLock")
async def test_the_requests_work_against_a_server():
    """Create, read, replace; a second create and an old version are conflicts."""
    async with Sandbox() as server:
        client = await Client.from_kubeconfig_dict(server.kubeconfig())
        try:
            lock = LeaseLock(client, namespace="default", name="app")
            with pytest.raises(Exception, match="404"):
                await lock.get()
            first = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "app", "namespace": "default"},
                "spec": SPEC,
            }
            stored = await lock.create(first)
            assert (await lock.get())["spec"] == SPEC
            with pytest.raises(Exception, match="409"):
                await lock.create(first)
            await lock.update({**stored, "spec": {**SPEC, "holderIdentity": "you"}})
            with pytest.raises(Exception, match="409"):
                await lock.update({**stored, "spec": {**SPEC, "holderIdentity": "late"}})
            assert (await lock.get())["spec"]["holderIdentity"] == "you"
        finally:
            await client.close()
