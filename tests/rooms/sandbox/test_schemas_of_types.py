"""The sandbox accepts and refuses what a type does, if the type's schema is that of the kind."""

from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings

from declctl.sandbox import SandboxThread
from tests.rooms.objects.agreement import Answers, Judged
from tests.rooms.objects.schema_values import values


@pytest.fixture(scope="module")
def server():
    with SandboxThread() as sandbox:
        yield Answers(HTTPConnection(urlsplit(sandbox.url).netloc), {})


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_types_and_the_sandbox_agree(server, seed):
    """tests/e2e/test_types_and_servers.py compares both with a real API server."""
    judged = Judged(seed)
    server.serve(judged)

    @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(values(judged.schema))
    def agree(value):
        judged.check(value, server.create(judged, value))

    agree()
