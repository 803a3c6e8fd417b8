"""The folder of a ConfigMap, without a cluster: bad keys, a write that failed, and an early end."""

from pathlib import Path

import pytest

from declctl.errors import UsageError
from declctl.runtime.config_map import ConfigMapFolder, MountedFiles


async def never():
    raise AssertionError("no client is needed")


def test_the_files_are_those_of_the_newest_change(tmp_path: Path):
    """Also after a write that has left its link behind."""
    files = MountedFiles(tmp_path)
    files.replace({"data": {"a.py": "1", "b.py": "2"}})
    (tmp_path / "..data_tmp").symlink_to("..9")
    files.replace({"data": {"a.py": "3"}, "binaryData": {"c.py": "NA=="}})
    found = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir() if path.suffix == ".py"}
    assert found == {"a.py": "3", "c.py": "4"}


@pytest.mark.parametrize("key", [".", "..", "../a", "..data", "a/b", ""])
def test_a_key_that_is_no_name_of_a_file_is_refused(tmp_path: Path, key: str):
    """No file is written outside of the folder, and the present ones stay."""
    files = MountedFiles(tmp_path)
    files.replace({"data": {"a.py": "1"}})
    with pytest.raises(UsageError, match="is no name of a file"):
        files.replace({"data": {key: "2"}})
    assert (tmp_path / "a.py").read_text("utf-8") == "1"


def test_an_end_before_the_begin_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log):
    """Least of all the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").touch()
    ConfigMapFolder("team-a", "bundle", connect=never, log=log).__exit__(None, None, None)
    assert (tmp_path / "mine").exists()
