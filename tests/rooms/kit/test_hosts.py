"""What counts as this machine: one definition for the admin address, for kubeconfigs and for proxies."""

import pytest

from declctl.kit.hosts import ServerUrl, is_loopback


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::1%lo", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("localhost.", False),  # name servers are asked for it
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
        ("127.1", False),
        ("::ffff:10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("myhost", False),
    ],
)
def test_what_counts_as_loopback(host: str, loopback: bool):
    """Credentials go to a server in the clear, and past a proxy, where the admin address trusts requests."""
    assert is_loopback(host) is loopback
    authority = f"[{host}]" if ":" in host else host
    for url in (f"http://{authority}", f"http://{authority}:6443/prefix", f"http://me:pw@{authority}:1"):
        assert ServerUrl.of(url).is_loopback is loopback, url


def test_no_host_is_every_interface():
    """An empty host is not loopback, nor is what is no URL."""
    assert not is_loopback("")
    for url in ("", "localhost", "http://", "http://[::1", "http://localhost@evil.example", "http://a b"):
        assert not ServerUrl.of(url).is_loopback, url
