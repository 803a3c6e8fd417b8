"""Histories of writes at random, as a real API server has answered them."""

from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from declctl.kit import ManualClock
from declctl.sandbox import SandboxThread
from tests.rooms.sandbox.histories import Server, digest

# Of kube-apiserver 1.36.3, by seed: the number of answers, and their digest. tests/e2e/test_ownership.py
# compares the answers themselves.
RECORDED = """
5:978d48039fb9 11:c612e44bf47f 58:cc3fd5f45a87 15:66faa778828e 11:4e500be3a18c 20:5a9e8aea06a6 17:c372963d0b1a
6:5ea47ae470ad 18:452e2ae4c3cd 7:c34015f1dd0a 49:cbb142d1046b 1:ff034012ed5b 2:5be62407c60a 6:3f79ccab64d8
9:ff5e390fbb3d 21:9047d445bc5f 12:a0e3501ecab1 17:7a389457bbc0 10:9c591de96aac 47:ce40546983cf 10:30de058393ee
21:7e730c4b5422 21:b23a61a6c594 2:432ba9e2ad56 10:4eed7a201bf5 9:6bc35184c2cb 17:484a01097d3b 18:e6b57116b6a9
21:d9b471be3ec7 48:12e59b9636cd 16:c9e7bc44a92a 8:b51d5825a87d
"""


@pytest.fixture(scope="module")
def server():
    with SandboxThread(clock=ManualClock()) as sandbox:
        found = Server(HTTPConnection(urlsplit(sandbox.url).netloc), {})
        found.prepare()
        yield found


@pytest.mark.parametrize(("seed", "answer"), list(enumerate(RECORDED.split())))
def test_writes_are_answered_as_the_real_server_has_answered_them(server, seed, answer):
    """Owners of fields, conflicts, versions, defaults, refusals and warnings."""
    number, _, recorded = answer.partition(":")
    assert digest(server.run(seed, int(number))) == recorded
