"""The workflows do what can be done in a checkout, with no more rights than they need."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown import ROOT

FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
# The rights of a job beyond reading the repository, and why it has them.
RIGHTS = {
    ("release", "publish"): {"id-token"},  # trusted publishing
    ("release", "image"): {"packages", "id-token", "attestations"},  # the image, its signature
}


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def file(request: pytest.FixtureRequest) -> Path:
    return request.param


def _jobs(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text("utf-8"))["jobs"]


def test_each_command_is_a_make_target(file: Path) -> None:
    """Whatever fails in a workflow can be repeated with make."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for job in _jobs(file).values():
        for command in (step["run"] for step in job["steps"] if "run" in step):
            words = command.split()
            assert words[0] == "make"
            assert words[1] in targets


def test_a_job_may_write_only_what_it_publishes(file: Path) -> None:
    """A job that runs the code of a contribution has no token that could write."""
    assert yaml.safe_load(file.read_text("utf-8"))["permissions"] == {"contents": "read"}
    for name, job in _jobs(file).items():
        writes = {right for right, level in job.get("permissions", {}).items() if level == "write"}
        assert writes == RIGHTS.get((file.stem, name), set())
        assert job["timeout-minutes"] <= 60


def test_no_secret_is_stored() -> None:
    """Index and registry trust the identity of the workflow; GITHUB_TOKEN ends with the job."""
    for each in FILES:
        assert set(re.findall(r"secrets\.(\w+)", each.read_text("utf-8"))) <= {"GITHUB_TOKEN"}


def test_a_linter_finds_nothing(file: Path) -> None:
    """Expressions, inputs of actions and names are right (actionlint, if it is installed)."""
    linter = shutil.which("actionlint")
    if linter is None:
        pytest.skip("needs actionlint: go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12")
    found = subprocess.run(
        [linter, "-no-color", str(file)], check=False, capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 0, found.stdout + found.stderr
