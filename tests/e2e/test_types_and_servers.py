"""A type, its definition, the sandbox and the real API server accept and refuse the same."""

import os
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from clusters import Cluster
from hypothesis import HealthCheck, given, settings
from rest import Rest

from declctl.sandbox import SandboxThread
from tests.rooms.objects.agreement import Answers, Judged
from tests.rooms.objects.rule_table import CASES
from tests.rooms.objects.schema_values import values

_TYPES, _VALUES = (50, 100) if os.environ.get("DECLCTL_SOAK") else (10, 30)


@pytest.fixture
def servers(real_cluster: Cluster) -> Iterator[list[Answers]]:
    """The real API server, and the sandbox."""
    with SandboxThread() as sandbox:
        rests = [real_cluster.rest, Rest.of_kubeconfig(sandbox.kubeconfig())]
        yield [Answers(rest.connection(), rest.authorization) for rest in rests]


@pytest.mark.real
def test_types_and_servers_agree_on_random_values(servers: list[Answers]) -> None:
    """The real server takes each definition; both fill in, refuse and say the same, as the type does."""
    run = f"x{uuid4().hex[:6]}"
    for seed in range(_TYPES):
        judged = Judged(seed, run)
        for server in servers:
            server.serve(judged)
        _compare(judged, servers)


@pytest.mark.real
def test_the_servers_agree_on_rules(servers: list[Answers]) -> None:
    """Each rule of the table is taken by both, or refused by both with the same answer."""
    for case in CASES:
        real, sandbox = [server.define(case.schema) for server in servers]
        assert sandbox == real, case.text
        assert real["kind"] == ("Status" if case.said else "CustomResourceDefinition"), case.text
        assert all(each in real["message"] for each in (case.said or "").split("; ") if case.said)


def _compare(judged: Judged, servers: list[Answers]) -> None:
    @settings(
        max_examples=_VALUES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(values(judged.schema))
    def agree(value: Any) -> None:
        real, sandbox = [server.create(judged, value) for server in servers]
        judged.check(value, real)
        assert sandbox == real

    agree()
