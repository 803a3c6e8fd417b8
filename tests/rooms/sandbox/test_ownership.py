"""Histories of writes at random, as a real API server has answered them."""

from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from declctl.sandbox import SandboxThread
from tests.rooms.sandbox.histories import Server, digest

# Of kube-apiserver 1.36.3, by seed: the number of answers, and their digest. tests/e2e/test_ownership.py
# compares the answers themselves.
RECORDED = """
5:978d48039fb9 11:c612e44bf47f 58:cc3fd5f45a87 15:66faa778828e 11:4e500be3a18c 9:4a3a46237874 8:288731f1492a
6:5ea47ae470ad 18:452e2ae4c3cd 7:c34015f1dd0a 56:f6784297be7c 1:ff034012ed5b 2:5be62407c60a 6:3f79ccab64d8
9:ff5e390fbb3d 21:9047d445bc5f 12:a0e3501ecab1 17:52c11f88ea97 10:9c591de96aac 57:4cb7f72c299f 21:1686c0bce6a5
21:7e730c4b5422 21:b23a61a6c594 2:432ba9e2ad56 11:6546c9693004 9:6bc35184c2cb 15:7b0e63bb2bb6 7:60f3fd68483d
21:d9b471be3ec7 44:da736f5a52de 17:d382f3490313 8:b51d5825a87d
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
