"""`declctl validate`, with real manifests and handlers."""

import pytest

from declctl.cli.validate import ClusterFindings
from declctl.manifest import Diagnostic
from tests.rooms.cli.hello import MANIFEST


def test_a_valid_manifest_is_told_and_ends_with_0(declctl, hello):
    """Who validates a good manifest reads what is in it."""
    ended = declctl("validate", "manifest.yaml")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == "manifest.yaml: hello is valid (1 resource, 1 handler)\n"


@pytest.fixture(name="misspelled")
def _misspelled(hello):
    """A manifest with a fault, beside one without."""
    (hello / "other.yaml").write_text(MANIFEST.replace("resourceRef", "resoruceRef"))


def test_faults_are_shown_where_they_stand(declctl, misspelled):
    """A misspelled field is shown with line, caret and suggestion on stderr, and the status is 1."""
    said = declctl.refused("validate", "other.yaml", status=1)
    assert 'other.yaml:8:7: error DCL012: unknown field "resoruceRef"' in said
    assert 'did you mean "resourceRef"?' in said
    assert said.endswith("1 error; `declctl explain DCL012` tells more about it\n")
    # Of several manifests, the good ones are told too.
    ended = declctl("validate", "other.yaml", "manifest.yaml")
    assert ended.status == 1
    assert "other.yaml:8:7" in ended.err
    assert ended.out.startswith("manifest.yaml: hello is valid")


def test_editors_and_pull_requests_get_faults_with_their_place(declctl, misspelled):
    """JSON has every fault, an empty list for a clean manifest; GitHub shows it at its line."""
    assert declctl("validate", "-o", "json", "manifest.yaml").document == []
    ended = declctl("validate", "-o", "json", "other.yaml")
    assert (ended.status, ended.err) == (1, "")
    (fault,) = ended.document
    assert set(fault) == {"file", "line", "column", "code", "severity", "message", "suggestion"}
    assert (fault["file"], fault["line"], fault["column"]) == ("other.yaml", 8, 7)
    ended = declctl("validate", "-o", "github", "other.yaml")
    assert ended.out.startswith("::error file=other.yaml,line=8,col=7,title=DCL012::")


@pytest.mark.parametrize("preflight", ["On", "Off"])
def test_what_no_reload_undoes_is_a_warning(declctl, hello, preflight):
    """A metric at import works at first and refuses each edit: it is told, and the status is 0."""
    (hello / "manifest.yaml").write_text(f"{MANIFEST}  reload: {{preflight: '{preflight}'}}\n")
    metric = "from prometheus_client import Counter\nSEEN = Counter('seen', 'x')\n"
    (hello / "handlers.py").write_text(f"{metric}def on_pod(change): ...\n")
    ended = declctl.done("validate", "manifest.yaml")
    assert "handlers.py:2:8: warning DCL090: at import, this registers a metric" in ended.err
    assert "\n  help: add it in declctl_metrics(registry)" in ended.err
    assert "hello is valid" in ended.out


def test_a_module_that_is_imported_past_the_bundle_is_a_warning(declctl, hello):
    """An edit of it would not be noticed; the child that imports the code finds it."""
    (hello / "lib").mkdir()
    (hello / "lib" / "outsider.py").write_text("X = 1")
    (hello / "handlers.py").write_text(
        f"import sys\nsys.path.insert(0, {str(hello / 'lib')!r})\nimport outsider\ndef on_pod(change): ...\n"
    )
    ended = declctl.done("validate", "manifest.yaml")
    assert "handlers.py:3:1: warning DCL094: lib/outsider.py is imported past the bundle" in ended.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--context x", "--cluster"),  # it would be ignored
        ("--cluster", "No cluster is configured"),
    ],
)
def test_a_cluster_that_is_not_asked_or_not_configured_is_a_usage_error(declctl, hello, options, words):
    assert words in declctl.refused("validate", *options.split(), "manifest.yaml")


def test_what_the_cluster_refuses_is_not_called_valid(declctl, hello, monkeypatch):
    """An error of the cluster: no "is valid" beside it, and the status is 1, as for every error."""
    found = ClusterFindings([Diagnostic("manifest.yaml", 5, 15, "DCL051", "you may not list pods")])
    monkeypatch.setattr("declctl.cli.validate.check_in_cluster", lambda *_: found)
    said = declctl.refused("validate", "--cluster", "manifest.yaml", status=1)
    assert "error DCL051: you may not list pods" in said
