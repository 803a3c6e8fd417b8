"""`declctl run --record` and `declctl replay`: what they print, and what they refuse."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from declctl.testing import BundleDir, running, until
from tests.rooms.replay.test_replay import HANDLERS, MANIFEST, pod


@pytest.fixture(name="bundle", scope="module")
def _bundle(tmp_path_factory) -> BundleDir:
    return BundleDir(tmp_path_factory.mktemp("bundle"), {"manifest.yaml": MANIFEST, "handlers.py": HANDLERS})


@pytest.fixture(name="night", scope="module")
def _night(bundle, tmp_path_factory) -> Path:
    recording = tmp_path_factory.mktemp("night") / "night.rec"
    with running(bundle.path, objects=[pod("p0"), pod("p1")], record=recording) as controller:
        controller.wait_idle()
    return recording


def test_the_report_of_a_replay(declctl, night, bundle, tmp_path):
    """The same code ends with 0. Other code ends with 1, and shows each call with then and now."""
    same = declctl.done("replay", str(night))
    assert "calls   2: 2 the same, 0 different, 0 missing, and 0 extra" in same.out
    assert "writes  2 of 2 the same" in same.out
    files = {"manifest.yaml": MANIFEST, "handlers.py": HANDLERS.replace("after=30", "after=60")}
    changed = BundleDir(tmp_path / "changed", files)
    found = declctl("replay", str(night), str(changed.path))
    assert found.status == 1
    assert "copy default/p0: different\n  requeue: 30 s then, 60 s now\n" in found.out
    assert "  and 1 more like it: default/p1\n" in found.out
    document = declctl("replay", str(night), str(changed.path), "--key", "default/p1", "-o", "json").document
    assert (document["calls"], document["different"], document["alike"]) == (1, 1, False)
    assert [each["key"] for each in document["differences"]] == ["default/p1"]


@pytest.mark.parametrize("fault", ["def f(:", "import nothing_like_it"])
def test_code_that_can_not_run_is_no_difference(declctl, night, tmp_path, fault):
    """It ends with 2, and the fault has its place."""
    files = {"manifest.yaml": MANIFEST, "handlers.py": f"{fault}\n{HANDLERS}"}
    refused = declctl.refused("replay", str(night), str(BundleDir(tmp_path / "faulty", files).path))
    assert "handlers.py:1:" in refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--until", "soon"], "--until: 'soon' is neither a time, such as 20"),
        (
            ["--until", "2020-01-01T00:00"],
            "--until: 2020-01-01T00:00 is before the recording, which",
        ),
        (
            ["--handler", "copi"],
            "--handler: the recording has no call of 'copi'; those with calls are",
        ),
        (["--key", "p0"], "--key: the recording has no call for 'p0'; did you mean default/p0?"),
        (["--key", "x/y"], "--key: the recording has no call for 'x/y'; a key is namespace/name"),
    ],
)
def test_options_that_fit_no_recording(declctl, night, options, said):
    """Nothing would be compared, and that must not look as if all were the same."""
    assert said in declctl.refused("replay", str(night), *options)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty, and no recording"),
        (b"kind: Controller\n", "the file is no recording"),
        (b"declctl-recording 9\n", ":1: the recording has the format 9"),
        (b"declctl-recording 1\n", "torn before its first entry"),
    ],
)
def test_files_that_are_no_recording(declctl, tmp_path, content, said):
    path = tmp_path / "a.rec"
    path.write_bytes(content)
    refused = declctl.refused("replay", str(path))
    assert refused.startswith(f"declctl: {path}")
    assert said in refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--record-size", "1Gi"], "--record-size limits --record"),
        (["--record", "a.rec", "--record-size", "much"], '--record-size: "much" is not'),
        (["--record", "a.rec", "--record-size", "10Ki"], "--record-size: 10Ki is too small for a recording"),
        (["--record", "manifest.yaml"], "--record manifest.yaml: there is another file of that name"),
        (["--record", "missing/a.rec"], "--record missing/a.rec: the file can't be made: No such file"),
    ],
)
def test_recordings_that_can_not_be_made(declctl, bundle, monkeypatch, options, said):
    monkeypatch.chdir(bundle.path)
    assert said in declctl.refused("run", "manifest.yaml", "--sandbox", "--once", *options)


@pytest.mark.thorough
def test_a_process_records_and_another_one_replays(bundle, tmp_path):
    """From the command line to the command line, with an API server in memory that changes."""
    recording = tmp_path / "night.rec"
    churn = ["--sandbox", "--churn", "20", "--admin", "127.0.0.1:0"]
    recorder = subprocess.Popen(
        [sys.executable, "-m", "declctl", "run", str(bundle.path), *churn, "--record", str(recording)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until("it has recorded", lambda: recording.exists() and recording.stat().st_size > 20_000)
    finally:
        recorder.kill()  # as the kernel does that has no memory left
        recorder.wait()
    command = [sys.executable, "-m", "declctl", "replay", str(recording), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = json.loads(done.stdout)
    assert (done.returncode, found["differences"]) == (0, [])
    assert found["calls"] > 10
