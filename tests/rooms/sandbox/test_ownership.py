"""Histories of writes at random, as a real API server has answered them."""

from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from declctl.sandbox import SandboxThread
from tests.rooms.sandbox.histories import Server, digest

# Of kube-apiserver 1.36.3, by seed: the number of answers, and their digest. tests/e2e/test_ownership.py
# compares the answers themselves.
RECORDED = """
5:978d48039fb9 11:c612e44bf47f 19:82bc3eb42f91 15:66faa778828e 11:4e500be3a18c 9:7dd2ce5993b5 8:7554f2f860aa
6:259e15b9b4ad 18:452e2ae4c3cd 7:c34015f1dd0a 21:b277b9a64f4e 1:ff034012ed5b 2:5be62407c60a 6:3f79ccab64d8
9:ff5e390fbb3d 10:131e059a7c09 12:a0e3501ecab1 17:2773197cd4a2 10:9c591de96aac 19:00bab4077af7 21:9050d50bbaed
21:7e730c4b5422 21:b23a61a6c594 2:432ba9e2ad56 11:8d672f7f5665 9:6bc35184c2cb 15:67651a5c6b4e 7:9633d58addf5
21:d9b471be3ec7 16:d646d4cc32a9 17:5e3bf06ea10f 8:b51d5825a87d
"""


@pytest.fixture(scope="module")
def server():
    with SandboxThread() as sandbox:
        found = Server(HTTPConnection(urlsplit(sandbox.url).netloc), {})
        found.prepare()
        yield found


@pytest.mark.parametrize(("seed", "answer"), list(enumerate(RECORDED.split())))
def test_writes_are_answered_as_the_real_server_has_answered_them(server, seed, answer):
    """Owners of fields, conflicts, versions, defaults, refusals and warnings."""
    number, _, recorded = answer.partition(":")
    assert digest(server.run(seed, int(number))) == recorded
