"""Histories of writes at random, as a real API server has answered them."""

import hashlib
import json
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from declctl.kit import ManualClock
from declctl.sandbox import SandboxThread
from tests.rooms.sandbox.histories import Server

# Of kube-apiserver 1.36.3: seeds, numbers of answers, and digests. tests/e2e/test_ownership.py compares more.
RECORDED = """
0:5:978d48039fb9 1:11:c612e44bf47f 2:58:2fc1bb6f0a83 3:15:66faa778828e 4:11:4e500be3a18c 5:20:281f56f47c6b
6:8:0740531b3208 7:6:5ea47ae470ad 8:18:452e2ae4c3cd 9:7:c34015f1dd0a 10:49:97209706364c 11:1:cb9a9e0b9ce4
12:2:5be62407c60a 13:12:719cbe4846aa 14:9:ece1ff97a718 15:21:2cd3bb6fa204 16:12:b8fd65751e6e
17:17:d0fe525046d1 19:47:45d34ad89b20 27:18:0708cbad78f5 29:48:eb5839cf1eab 44:18:dc1560aadccf
52:30:ca51a260902f 59:40:296054d418a2 64:11:cbe9a25a8c6e 126:51:eda214dff689 144:32:1c01cca2f6be
209:18:c5e6bf13f640 390:16:399ce7a208a4 400:20:1ecdf886bb48
"""


@pytest.fixture(scope="module")
def server():
    with SandboxThread(clock=ManualClock()) as sandbox:
        found = Server(HTTPConnection(urlsplit(sandbox.url).netloc), {})
        found.prepare()
        yield found


@pytest.mark.parametrize("answers", RECORDED.split())
def test_writes_are_answered_as_the_real_server_has_answered_them(server, answers):
    """Owners of fields, conflicts, versions, defaults, refusals and warnings."""
    seed, number, recorded = answers.split(":")
    text = json.dumps(server.run(int(seed), int(number)), sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == recorded
