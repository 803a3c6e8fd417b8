"""The workflows do what can be done in a checkout, with no more rights than they need."""

import re

import yaml
from markdown import ROOT


def test_each_step_is_a_make_target() -> None:
    """Whatever fails in a workflow can be repeated with make."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    files = list((ROOT / ".github/workflows").glob("*.yml"))
    assert files
    for file in files:
        workflow = yaml.safe_load(file.read_text("utf-8"))
        assert workflow["permissions"] == {"contents": "read"}
        for job in workflow["jobs"].values():
            for command in (step["run"] for step in job["steps"] if "run" in step):
                words = command.split()
                assert words[0] == "make"
                assert words[1] in targets
