"""Who may read objects and change state."""

from collections.abc import Callable

import pytest

from declctl.admin.access import is_loopback
from declctl.manifest.model import Address

EVERYWHERE = Address("0.0.0.0", 0)
GUARDED = [
    ("GET", "/cache/pods"),
    ("GET", "/cache/pods/a"),
    ("GET", "/index/pods/byNode/a"),
    ("POST", "/-/reload"),
]
OPEN = ["/", "/healthz", "/readyz", "/status", "/metrics"]


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_without_a_token_a_public_address_shows_nothing(ask: Callable, runtime, method: str, path: str):
    """In a cluster nobody reads Secrets or reloads through an address that was opened for probes."""
    answer = ask(path, method=method, address=EVERYWHERE, Authorization="Bearer ")
    assert answer.status == 403
    assert "DECLCTL_ADMIN_TOKEN" in answer.json["error"]
    assert runtime.reloads == 0


@pytest.mark.parametrize("given", ["", "Bearer wrong", "Basic right", "right", "Bearer \u00fc"])
def test_a_wrong_token_is_401(ask: Callable, runtime, given: str):
    """Only the right token opens a public address."""
    answer = ask("/-/reload", method="POST", address=EVERYWHERE, token="right", Authorization=given)
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert runtime.reloads == 0


def test_the_right_token_opens(ask: Callable, runtime):
    """With the token a public address reloads and shows objects."""
    given = {"address": EVERYWHERE, "token": "right", "Authorization": "Bearer right"}
    assert ask("/-/reload", method="POST", **given).status == 200
    assert ask("/cache/pods", **given).status == 200
    assert runtime.reloads == 1


@pytest.mark.parametrize("path", OPEN)
def test_probes_and_figures_need_no_token(ask: Callable, path: str):
    """A kubelet and Prometheus ask a public address without a token."""
    assert ask(path, address=EVERYWHERE).status == 200


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_another_name_for_loopback_is_refused(ask: Callable, runtime, method: str, path: str):
    """A web page that points its own name at 127.0.0.1 reads nothing and reloads nothing."""
    assert ask(path, method=method, Host="evil.example:8081").status == 403
    assert runtime.reloads == 0


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://[::1"])
def test_a_form_of_another_page_is_refused(ask: Callable, runtime, origin: str):
    """A form of another web page can't order a reload."""
    assert ask("/-/reload", method="POST", Origin=origin).status == 403
    assert runtime.reloads == 0


@pytest.mark.parametrize("host", ["localhost:8081", "127.0.0.1", "[::1]:8081", "LOCALHOST"])
def test_the_names_of_loopback_are_accepted(ask: Callable, host: str):
    """curl, a port-forward and a browser reach loopback under any of its names."""
    assert ask("/cache/pods", Host=host).status == 200


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("", False),
        ("::", False),
        ("10.0.0.1", False),
        ("myhost", False),
    ],
)
def test_what_counts_as_loopback(host: str, loopback: bool):
    """An empty host means every interface, and is not loopback."""
    assert is_loopback(host) is loopback
