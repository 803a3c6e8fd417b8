"""What an import does besides defining things is told at the start, and not by the first edit alone."""

import gc
import socket
import sys

import pytest
from prometheus_client import REGISTRY

from declctl.runtime.checking.check import check
from tests.pieces import Pieces

TELL = "\nfrom blackboard import tell as note\ndef tell(change): note('told', str(change.key))\n"


@pytest.fixture(autouse=True)
def _process_state_is_put_back(monkeypatch):
    """What these handlers do to the process no reload undoes."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules, metrics = set(sys.modules), set(REGISTRY._collector_to_names)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("outsider"):
            del sys.modules[name]
    for metric in set(REGISTRY._collector_to_names) - metrics:
        REGISTRY.unregister(metric)


@pytest.fixture(name="rig")
def _rig(rig):
    """The handlers are imported in a child first, as everywhere but in most tests."""
    rig.reload_policy = "settle: 20ms, preflightTimeout: 20s"
    return rig


METRIC = "from prometheus_client import Counter\nSEEN = Counter('seen_by_the_test', 'x')"
PORT = "import socket\nlistening = socket.socket()\nlistening.bind(('127.0.0.1', PORT))"


@pytest.mark.parametrize(
    ("code", "warning", "message", "has", "advice"),
    [
        (METRIC, ("DCL090", 2), "Duplicated timeseries", "registered", "declctl_metrics(registry)"),
        (PORT, ("DCL091", 3), "", "opened", "declctl_startup"),
    ],
    ids=["a metric", "a port"],
)
def test_what_an_import_does_is_told_at_the_start_and_explains_the_refusal(
    code, warning, message, has, advice, rig
) -> None:
    """The first edit is refused, as registries and ports are of the process: the message says whose it is."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        code = code.replace("PORT", str(free.getsockname()[1])) + TELL
    rig.handler("tell")
    running = rig.run(code)
    assert _warnings(running) == [warning]
    outcome = rig.reload(f"{code}\n# edited\n")
    assert (outcome.result, outcome.reason) == ("Refused", "ImportFailed")
    (fault,) = [each for each in outcome.diagnostics if each.severity == "error"]
    assert message in fault.message
    assert fault.line == warning[1]
    assert f"the generation that runs has {has} it" in str(fault.suggestion)
    assert advice in str(fault.suggestion)


@pytest.mark.thorough
def test_a_port_that_is_opened_once_in_the_process_survives_edits(rig) -> None:
    """What the advice says: `declctl_startup` opens it, and no edit opens it again."""
    rig.handler("tell")
    rig.more = "  lifecycle: {startup: [{entryPoint: 'handlers:listen'}]}\n"
    code = """
from prometheus_client import start_http_server
from blackboard import tell as note

def listen():
    note("server", *start_http_server(0, addr="127.0.0.1"))
"""
    running = rig.run(code + TELL)
    ((_, server, thread),) = rig.told("server")
    try:
        assert not _warnings(running)
        for number in (1, 2):
            rig.apply(f"{code}{TELL}\n# edit {number}\n")
        gc.collect()
        socket.create_connection(server.server_address, timeout=10).close()
        assert len(rig.told("server")) == 1
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_edit_that_brings_a_warning_says_it_once(rig, config_map) -> None:
    """In the log and to whoever has asked for the reload; the edit after it does not repeat it."""
    rig.handler("tell")
    running = rig.run(TELL)
    assert not _warnings(running)
    outcome = rig.reload(f"import os\nos.environ.pop('NOT_SET_BY_ANYBODY', None)\n{TELL}")
    assert outcome.result == "Applied"
    assert [each.code for each in outcome.diagnostics] == ["DCL093"]
    rig.folder.edit("handlers.py", "import os\n", "import os\n# one line further down\n")
    outcome = running.reload()
    assert (outcome.result, list(outcome.diagnostics)) == ("Applied", [])
    assert _warnings(running) == [("DCL093", 2)]


UNSEEN = {
    "a metric of a helper": ("helper.metric()", "DCL090"),
    "a port of a helper": ("helper.port()", "DCL091"),
    "a thread of a library": ("helper.pool.submit(print)", "DCL092"),
    "the environment by a library": ("helper.setenv('DECLCTL_TEST_AUDIT', 'x')", "DCL093"),
    "a metric whose class has no name": (
        "getattr(helper.prometheus_client, 'Gau' + 'ge')('of_the_audit', 'x')",
        "DCL090",
    ),
}
HELPER = """
import prometheus_client, socket, threading
from concurrent.futures import ThreadPoolExecutor
from os import environ
setenv = environ.__setitem__
pool = ThreadPoolExecutor(1)
def metric(): return prometheus_client.Counter("of_the_audit", "x")
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    listening = socket.socket()
    listening.bind(("127.0.0.1", number))
    return listening
"""


@pytest.mark.thorough
@pytest.mark.parametrize("what", UNSEEN)
def test_what_a_source_does_not_show_is_seen_in_the_pre_flight(what, bundle_dir) -> None:
    """The child in which it is imported sees it happen; the innermost line of the bundle is shown."""
    text, code = UNSEEN[what]
    pieces = Pieces(bundle_dir)
    pieces.handler("tell")
    pieces.reload_policy = "preflightTimeout: 20s"
    bundle_dir.write("helper.py", HELPER)
    manifest = pieces.write(f"import helper\nKEPT = {text}\ndef tell(change): ...\n")
    checked = check(str(manifest))
    assert not checked.errors
    assert [(warning.code, warning.severity) for warning in checked.diagnostics] == [(code, "warning")]
    (warning,) = checked.diagnostics
    assert (warning.source_line or "").strip() in f"KEPT = {text}{HELPER}"
    assert warning.suggestion


def _warnings(running) -> list[tuple[str, int]]:
    """Code and line of each warning in the log that stands in a handler file."""
    lines = [event for event in running.log.events("warning") if "handlers.py:" in event]
    return [(line.split(": ")[1], int(line.split("handlers.py:")[1].split(":")[0])) for line in lines]


def test_a_helper_that_is_imported_past_the_bundle_is_told(rig) -> None:
    """Its edits are not noticed: the start says so, at the statement that imports it."""
    rig.handler("tell")
    rig.folder.write("lib/outsider_of_the_test.py", "X = 1\n")
    path = str(rig.folder.path / "lib")
    running = rig.run(f"import sys\nsys.path.insert(0, {path!r})\nimport outsider_of_the_test{TELL}")
    assert _warnings(running) == [("DCL093", 2), ("DCL094", 3)]


@pytest.mark.thorough
def test_what_a_library_does_when_it_is_imported_is_fine(bundle_dir, tmp_path, monkeypatch) -> None:
    """It is imported once in the life of the process."""
    site = tmp_path / "elsewhere"
    site.mkdir()
    (site / "outsider_library.py").write_text(f"{HELPER}\nmetric(); port(); pool.submit(print)\n")
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    pieces = Pieces(bundle_dir)
    pieces.handler("tell")
    pieces.reload_policy = "preflightTimeout: 20s"
    manifest = pieces.write("import outsider_library  # of prometheus\ndef tell(change): ...\n")
    assert check(str(manifest)).diagnostics == ()
