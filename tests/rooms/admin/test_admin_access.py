"""Who may read objects and change state."""

import socket
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from declctl.manifest.values import Address
from declctl.objects.differences import Mutation
from declctl.runtime.handling.circuit_breaker import BreakerState, BreakerStatus
from declctl.runtime.reporting.status import ControllerStatus, PluginStatus
from tests.rooms.admin.conftest import EVERYWHERE, GUARDED

OPEN = ["/", "/healthz", "/readyz", "/status", "/metrics"]


@pytest.mark.parametrize(
    "given", ["", "Bearer wrong", "Basic right", "right", "Bearer \u00fc", "Bearer \udcff"]
)
def test_a_wrong_token_is_401_and_the_right_one_opens(ask: Callable, runtime, given: str):
    """With the token a public address reloads and shows objects."""
    public = {"address": EVERYWHERE, "token": "right"}
    answer = ask("/-/reload", method="POST", **public, Authorization=given)
    assert (answer.status, answer.headers["WWW-Authenticate"], runtime.reloads) == (401, "Bearer", 0)
    assert ask("/-/reload", method="POST", **public, Authorization="Bearer right").status == 200
    assert ask("/cache/pods", **public, Authorization="Bearer right").status == 200
    assert runtime.reloads == 1


@pytest.mark.parametrize("path", OPEN)
def test_probes_and_figures_need_no_token(ask: Callable, path: str):
    """A kubelet and Prometheus ask a public address without a token."""
    assert ask(path, address=EVERYWHERE).status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://[::1"])
def test_a_form_of_another_page_is_refused(ask: Callable, runtime, origin: str):
    """It can't order a reload; the page of the address itself, which has the origin of its Host, can."""
    assert ask("/-/reload", method="POST", Origin=origin).status == 403
    assert runtime.reloads == 0
    given = {"Host": "localhost:{port}", "Origin": "http://localhost:{port}"}
    assert ask("/-/reload", method="POST", **given).status == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST", "127.1.2.3"])
def test_the_names_of_loopback_are_accepted(ask: Callable, host: str):
    """Curl and a browser reach loopback under any of its names, with the port that is listened on."""
    assert ask("/cache/pods", Host=f"{host}:{{port}}").status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [*GUARDED, *(("GET", path) for path in (*OPEN, "/history", "/nothing", "/events"))],
)
@pytest.mark.parametrize(
    "host",
    ["evil.example:{port}", "localhost.evil.example:{port}", "localhost:1", "localhost", "10.0.0.7:{port}"],
)
def test_a_loopback_address_answers_to_no_other_host(
    ask: Callable, runtime, method: str, path: str, host: str
):
    """A web page that points its own name at this machine is shown nothing, and reloads nothing."""
    answer = ask(path, method=method, Host=host)
    assert (answer.status, runtime.reloads) == (403, 0)
    assert "allowedHosts" in answer.json["error"]


@pytest.mark.parametrize("path", [*OPEN, "/history"])
def test_a_public_address_answers_to_no_name_of_others(ask: Callable, path: str):
    """In a cluster, too: a page in a browser that reaches the pod can't rebind its name to it."""
    assert ask(path, address=EVERYWHERE, Host="evil.example:{port}").status == 403


@pytest.mark.parametrize(
    "host", ["10.1.2.3:8081", "[fd00::7]:80", "10.1.2.3", "localhost:9999", "{machine}:1"]
)
def test_a_public_address_answers_to_addresses_and_to_its_machine(ask: Callable, host: str):
    """A kubelet and Prometheus ask the pod's address; a Service or a port-forward has another port."""
    host = host.replace("{machine}", socket.gethostname())
    assert ask("/healthz", address=EVERYWHERE, Host=host).status == 200


@pytest.mark.parametrize("address", [EVERYWHERE, Address("127.0.0.1", 0)])
def test_the_manifest_names_other_hosts(ask: Callable, runtime, address: Address):
    """Prometheus may ask by the name of a Service, if the manifest has it."""
    runtime.allowed_hosts = ("pod-guard.monitoring.svc",)
    assert ask("/metrics", address=address, Host="Pod-Guard.monitoring.svc:8081").status == 200
    assert ask("/metrics", address=address, Host="other.monitoring.svc:8081").status == 403


@pytest.mark.parametrize("host", ["", "a b", "localhost:x", "localhost:99999", "[::1", "u@localhost:{port}"])
def test_what_is_no_host_is_400(ask: Callable, host: str):
    """A Host header that nobody can read is a bad request."""
    assert ask("/healthz", Host=host).status == 400


@pytest.mark.parametrize("path", ["/", "/status", "/metrics", "/healthz", "/cache/pods"])
@pytest.mark.parametrize(
    "origin", ["http://localhost:1", "https://localhost:{port}0", "http://127.0.0.1:{port}"]
)
def test_a_page_of_another_port_is_another_page(ask: Callable, path: str, origin: str):
    """What another program of this machine serves may not ask in the name of its reader."""
    assert ask(path, Host="localhost:{port}", Origin=origin).status == 403


SECRET = "hunter2"
SUSPENDED = BreakerStatus(
    BreakerState.OPEN, 5, 2, 3, next_trial_seconds=12.0, last_error=f"OSError: {SECRET}"
)
REDACTING = [{"address": EVERYWHERE}, {"address": EVERYWHERE, "token": "right"}, {"token": "right"}]


@pytest.mark.parametrize("path", ["/", "/status", "/history", "/readyz", "/metrics"])
@pytest.mark.parametrize("given", REDACTING)
def test_without_the_token_there_are_no_texts(ask: Callable, runtime, path: str, given: dict):
    """What a handler raised with, or a server said, may have a password in it."""
    runtime.say(**with_secrets(runtime.now))
    runtime.told_history = {"attempts": [attempt(SECRET)], "generation": 6, "kept": [5]}
    answer = ask(path, **given)
    assert answer.status == (503 if path == "/readyz" else 200)
    assert SECRET not in answer.text
    if given.get("token") and path != "/metrics":
        assert SECRET in ask(path, **given, Authorization="Bearer right").text


def test_without_the_token_there_are_types_and_counts(ask: Callable, runtime):
    """Whoever looks after a cluster still sees what is wrong, and how often; with it, nothing is left out."""
    runtime.say(**with_secrets(runtime.now))
    document = ask("/status", address=EVERYWHERE).json
    assert document["redacted"] is True
    (handler,), (resource,) = document["handlers"], document["resources"]
    assert (handler["lastError"], handler["failed"], resource["error"]) == ("KeyError", 1, "Forbidden")
    assert (resource["decoding"]["failed"], resource["decoding"]["lastFault"]) == (2, None)
    assert [(c["reason"], c["message"]) for c in document["conditions"]] == [("NotSynced", "")]
    plugin = PluginStatus("slack", "1.2.0", "Suspended", None, SUSPENDED).document()
    assert document["plugins"] == [{**plugin, "reason": None}]
    assert "pods: Forbidden" in ask("/readyz", address=EVERYWHERE).text
    given = {"address": EVERYWHERE, "token": "right", "Authorization": "Bearer right"}
    assert ask("/status").json == ask("/status", **given).json == runtime.now.document()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *((path, 401) for path in ("/", "/status", "/history")),
        # Prometheus may show a token of its own to each pod: a probe does not fail for it.
        *((path, 200) for path in ("/healthz", "/readyz", "/metrics")),
    ],
)
def test_a_wrong_token_is_told(ask: Callable, path: str, status: int):
    """Who shows a wrong token is told so, and not shown half a document."""
    assert ask(path, token="right", Authorization="Bearer wrong").status == status


def with_secrets(status: ControllerStatus) -> dict[str, object]:
    """The parts of a status, with a secret in each text that comes from elsewhere."""
    pods, notify = status.resources[0], status.handlers[0]
    text = f"403 Forbidden: {SECRET}"
    error = {"synced": False, "error": text, "error_type": "Forbidden"}
    decoding = replace(pods.decoding, last_fault=text)
    pods = replace(pods, **error, decoding=decoding, last_mutation=Mutation("Pod", SECRET, ()))
    return {
        "ready": False,
        "conditions": [replace(status.conditions[0], status="False", reason="NotSynced", message=SECRET)],
        "resources": [pods],
        "handlers": [replace(notify, last_error=f"a/b: KeyError: {SECRET}", last_error_type="KeyError")],
        "plugins": [PluginStatus("slack", "1.2.0", "Suspended", f"OSError: {SECRET}", SUSPENDED)],
    }


def attempt(text: str) -> dict[str, object]:
    """An attempt as /history has it."""
    known = {"time": "2026-01-01T12:00:00Z", "result": "Refused", "reason": "SyntaxError", "generation": 6}
    return {**known, "message": text, "changes": [f"~handler {text}"], "suggestion": text}
