"""Long answers: without a length, and packed for those who take it, as kube-apiserver writes them."""

import gzip
import http.client
import json

import pytest

from declctl.sandbox import SandboxThread
from tests.rooms.sandbox.shapes import config_map


@pytest.fixture(scope="module")
def address():
    """Host and port of a sandbox with a long list of ConfigMaps."""
    with SandboxThread() as sandbox:
        for number in range(150):
            sandbox.create({**config_map(f"c{number}"), "data": {"text": "x" * 1000}})
        yield sandbox.kubeconfig()["clusters"][0]["cluster"]["server"].removeprefix("http://")


def ask(address, path, **headers):
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def names(body):
    return [item["metadata"]["name"] for item in json.loads(body)["items"]]


def test_a_long_list_is_packed_for_those_who_take_it(address):
    """Packing changes how a list is written, and not what is in it."""
    plain, body = ask(address, "/api/v1/configmaps")
    packed, smaller = ask(address, "/api/v1/configmaps", **{"Accept-Encoding": "gzip, deflate"})
    for answer in (plain, packed):
        assert answer.getheader("Transfer-Encoding") == "chunked"
        assert answer.getheader("Content-Length") is None
    assert plain.getheader("Content-Encoding") is None
    assert packed.getheader("Content-Encoding") == "gzip"
    assert gzip.decompress(smaller) == body
    assert len(names(body)) == 150


def test_a_short_list_is_not_packed(address):
    """Below 128 KB it is not worth it, and below 2 KB the length is known."""
    page, _ = ask(address, "/api/v1/configmaps?limit=10", **{"Accept-Encoding": "gzip"})
    assert page.getheader("Content-Encoding") is None
    short, body = ask(address, "/api/v1/pods", **{"Accept-Encoding": "gzip"})
    assert short.getheader("Content-Length") == str(len(body))
