"""A handler package of several modules is one: its modules change together, or not at all."""

import pytest

from declctl.testing import until

FILES = {
    "app/__init__.py": "",
    "app/handlers.py": (
        "from blackboard import tell as note\nfrom .texts import VERSION, say\n"
        "def tell(change):\n    from .deep.late import VERSION as late\n"
        "    note('versions', VERSION, say(), late)\n"
    ),
    "app/texts.py": "from app.deep import words\nVERSION = {0}\ndef say(): return words.VERSION\n",
    "app/deep/__init__.py": "",
    "app/deep/words.py": "VERSION = {0}\n",
    "app/deep/late.py": "VERSION = {0}\n",
}


@pytest.fixture
def versions(rig):
    """Writes every module of the package in one version, the deepest first."""

    def write(version: int) -> None:
        for name, text in reversed(FILES.items()):
            rig.folder.write(name, text.replace("{0}", str(version)))

    write(1)
    rig.handler("tell", entry="app.handlers:tell")
    rig.reload_policy = "settle: 200ms, preflight: 'Off'"
    return write


def test_modules_that_are_saved_one_after_the_other_are_one_reload(rig, versions, config_map) -> None:
    """Three modules in two folders change: one generation, in which all of them are new."""
    running = rig.run(watch=True, objects=[config_map("one")])
    running.wait_idle()
    versions(2)
    until("it is live", lambda: running.status().generation == 2)
    running.sandbox.create(config_map("two"))
    running.wait_idle()
    assert rig.told("versions") == [("versions", 1, 1, 1), ("versions", 2, 2, 2)]
    assert running.status().reloads == {"Applied": 1}


def test_one_broken_module_keeps_the_whole_package_as_it_was(rig, versions, config_map) -> None:
    """The deepest module has a fault: no module of the package is new, the late import neither."""
    running = rig.run()
    versions(2)
    rig.folder.write("app/deep/words.py", "VERSION = 2\nraise OSError('no words')\n")
    outcome = running.reload()
    assert (outcome.result, outcome.reason) == ("Refused", "ImportFailed")
    assert "app/deep/words.py:2" in outcome.message
    running.sandbox.create(config_map("one"))
    running.wait_idle()
    assert rig.told("versions") == [("versions", 1, 1, 1)]


def test_a_module_that_comes_or_goes_is_noticed(rig, versions, config_map) -> None:
    """A module that is imported before it is there, in a new folder of the package: each step is noticed."""
    running = rig.run(watch=True)
    words = (rig.folder.path / "app/deep/words.py").read_text()
    (rig.folder.path / "app/deep/deeper").mkdir()
    rig.folder.write("app/deep/words.py", f"from .deeper import more\n{words}")
    until("it is missing", lambda: running.condition("Reloaded").status == "False")
    rig.folder.write("app/deep/deeper/more.py", "X = 1\n")
    until("the new module is there", lambda: running.status().generation == 2)
    rig.folder.write("app/deep/deeper/unrelated.py", "X = 1\n")  # nothing imports it: no generation
    rig.folder.write("app/deep/deeper/more.py", "X = 2\n")
    until("it has changed", lambda: running.status().generation == 3)
    rig.folder.remove("app/deep/deeper/more.py")
    until("it is gone", lambda: running.condition("Reloaded").status == "False")
