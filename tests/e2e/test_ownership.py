"""The sandbox answers writes as the real API server does: histories at random, on both."""

import os
from collections.abc import Iterator
from pathlib import Path

import clusters
import pytest
from rest import Rest

from declctl.kit import ManualClock
from declctl.sandbox import SandboxThread
from tests.rooms.sandbox.histories import Server

_HISTORIES = 2_000 if os.environ.get("DECLCTL_SOAK") else 100


@pytest.fixture
def clock() -> ManualClock:
    """The sandbox's: entries are sorted and merged by their seconds, which are the real server's."""
    return ManualClock()


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.real)])
def servers(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[list[Server]]:
    """The sandbox, and a real API server without controllers, which would write, too."""
    with clusters.real(tmp_path, "--profiling=false") as cluster, SandboxThread(clock=clock) as sandbox:
        rests = [Rest.of_kubeconfig(sandbox.kubeconfig()), cluster.rest]
        found = [Server(rest.connection(), rest.authorization) for rest in rests]
        for server in found:
            server.prepare()
        yield found


def test_the_sandbox_answers_random_writes_as_the_real_server(
    servers: list[Server], clock: ManualClock
) -> None:
    """Creates, updates, patches and applies of three managers, through subresources too: no difference."""
    sandbox, real = servers
    for seed in range(_HISTORIES):
        theirs = real.run(seed)
        ours = sandbox.run(seed, len(theirs), lambda number: clock.set(real.waits[number]))
        assert ours == theirs, f"seed {seed}"
