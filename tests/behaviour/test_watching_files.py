"""A running controller and the files that it watches: fresh sources, whole bundles, and links.

Of links, what runs is what they lead to, and edits behind them are noticed.
"""

import errno
import os
import random
import sys
import threading

import pytest

from declctl.kit import files as reader
from declctl.runtime.checking.check import read_files
from declctl.testing import BundleDir, ConfigMapDir, until

TELLING = """
from blackboard import tell as note
def tell_{0}(change):
    note("revision", {0}, str(change.key))
"""


@pytest.fixture
def versions(rig):
    """Writes handlers that tell which version they are, all of one size."""

    def write(number: int) -> None:
        rig.folder.write("handlers.py", TELLING.format(number).replace(f"tell_{number}", "tell"))

    return write


@pytest.mark.guarantee("G23")
def test_edits_of_one_second_and_one_size_are_all_live(
    rig, controller, versions, config_map, monkeypatch
) -> None:
    """Bytecode caches would take the second edit for the first: same second, same size (G23)."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    rig.handler("tell")
    rig.write()
    versions(1)
    os.utime(rig.folder.path / "handlers.py", (1_700_000_000, 1_700_000_000))
    running = controller(rig.folder.path / "manifest.yaml")
    running.wait_ready()
    for number in (2, 3, 4):
        versions(number)
        os.utime(rig.folder.path / "handlers.py", (1_700_000_000, 1_700_000_000))
        assert running.reload().result == "Applied"
        running.sandbox.create(config_map(f"m{number}"))
        running.wait_idle()
        assert rig.told("revision")[-1] == ("revision", number, f"default/m{number}")
    assert not list(rig.folder.path.rglob("*.pyc"))


@pytest.mark.guarantee("G24")
@pytest.mark.parametrize("watch", ["Auto", "Poll"])
def test_fifty_swaps_of_a_configmap_are_never_torn(watch, rig, controller, tmp_path, config_map) -> None:
    """A revision's manifest names a function that only its own handlers have: none is refused (G24)."""
    moments = random.Random(24)

    def files(number: int) -> dict[str, str]:
        rig.only(entry=f"handlers:tell_{number}")
        rig.reload_policy = f"watch: {watch}, settle: 20ms, preflight: 'Off'"
        return {"manifest.yaml": rig.manifest(), "handlers.py": TELLING.format(number)}

    mounted = ConfigMapDir(tmp_path / "etc", files(0))
    running = controller(mounted.path, watch=True)
    running.wait_ready()
    waits = 0
    for number in range(1, 51):
        mounted.swap(files(number))
        if moments.random() < (0.4 if watch == "Auto" else 0.06) or number == 50:
            waits += 1
            running.sandbox.create(config_map(f"m{number}"))
            until(f"revision {number} is live", lambda n=number: _plan(running).endswith(f"tell_{n}"))
    reloads = running.status().reloads
    assert reloads.get("Refused", 0) == 0, running.log.events("error")
    assert waits <= reloads["Applied"] <= 50
    assert running.status().generation == reloads["Applied"] + 1
    running.sandbox.create(config_map("last"))
    running.wait_idle()
    assert ("revision", 50, "default/last") in rig.told("revision")


def _plan(controller) -> str:
    (handler,) = controller.runtime.plan.handlers
    return str(handler.entry_point)


@pytest.mark.thorough
def test_watching_is_turned_on_and_off_by_a_reload(rig, controller, versions) -> None:
    """`reload.watch` is like any other policy: Off, Poll and Auto take effect without a restart."""
    rig.handler("tell")
    rig.reload_policy = "watch: 'Off', preflight: 'Off', settle: 20ms"
    rig.write()
    versions(1)
    running = controller(rig.folder.path / "manifest.yaml", watch=None)
    running.wait_ready()
    for generation, policy in enumerate(("Poll", "Auto"), start=1):
        rig.reload_policy = f"watch: {policy}, preflight: 'Off', settle: 20ms"
        rig.write()
        if policy == "Poll":
            assert running.status().generation == 1
            assert running.reload().result == "Applied"
        live = 2 * generation
        until("the policy is live", lambda n=live: running.status().generation == n)
        versions(live + 1)
        until(f"an edit is noticed under {policy}", lambda n=live: running.status().generation == n + 1)
    rig.reload_policy = "watch: 'Off', preflight: 'Off', settle: 20ms"
    rig.write()
    until("it is off", lambda: running.status().generation == 6)
    versions(7)
    assert running.reload().result == "Applied"


def test_a_mended_file_is_noticed_where_only_the_refused_edit_has_it(rig, monkeypatch) -> None:
    """A broken edit brings a package: its folder is watched too, so that nobody waits for the mended file."""
    monkeypatch.setattr("declctl.runtime.reloading.files.SAFETY_POLL_SECONDS", 60.0)
    rig.handler("tell")
    running = rig.run("def tell(change): ...\n", watch=True)
    rig.folder.write("parts/__init__.py", "")
    rig.folder.write("parts/inner.py", "def tell(change:\n")
    rig.only(entry="parts.inner:tell")
    rig.write()
    until("it is refused", lambda: running.condition("Reloaded").reason == "SyntaxError")
    rig.folder.write("parts/inner.py", "def tell(change): ...\n")
    until("it is mended", lambda: running.status().generation == 2, timeout=20)


# Others are in the tests of the room.
FAULTS = [OSError(errno.EMFILE, "Too many open files"), KeyError("a fault of declctl")]


@pytest.mark.thorough
@pytest.mark.guarantee("G6", "G25")
@pytest.mark.parametrize("error", FAULTS, ids=repr)
@pytest.mark.parametrize("watch", ["Auto", "Poll"])
def test_a_controller_that_cannot_look_goes_on_and_says_so(
    error, watch, rig, controller, versions, config_map, monkeypatch
) -> None:
    """Looks fail for a while: changes are delivered, status and log say why, and the edit is live at last."""
    rig.handler("tell")
    rig.reload_policy = f"watch: {watch}, settle: 20ms, preflight: 'Off'"
    rig.write()
    versions(1)
    running = controller(rig.folder.path, watch=True)
    running.wait_ready()
    read_file, fails = reader.read_file, threading.Event()

    def failing(path, *, most):
        if fails.is_set():
            raise error
        return read_file(path, most=most)

    monkeypatch.setattr(reader, "read_file", failing)
    fails.set()
    versions(2)
    until("it is told", lambda: running.condition("Degraded").reason == "FileWatchFailed")
    assert str(error) in running.condition("Degraded").message
    running.sandbox.create(config_map("meanwhile"))
    until("the old code goes on", lambda: ("revision", 1, "default/meanwhile") in rig.told("revision"))
    until("it is tried again", lambda: running.status().file_watch.failures > 1)
    fails.clear()
    until("the edit is live", lambda: running.status().generation == 2)
    until("all is well", lambda: running.condition("Degraded").status == "False")
    assert running.status().file_watch.error is None
    assert running.status().document()["fileWatch"]["failures"] > 1
    level = "error" if isinstance(error, KeyError) else "warning"
    assert len([line for line in running.log.events(level) if "files can't be looked at" in line]) == 1
    assert running.log.find("files are looked at again")


@pytest.mark.parametrize("watch", ["Poll", "Off"])
def test_a_reload_for_which_the_process_lacked_something_is_made_without_another_edit(
    watch, rig, controller, versions, monkeypatch
) -> None:
    """No thread to read the files at that moment: that is no fault of theirs, and is tried again."""
    monkeypatch.setattr("declctl.runtime.reloading.attempts.FIRST_RETRY_SECONDS", 0.1)
    rig.handler("tell")
    rig.reload_policy = f"watch: '{watch}', settle: 20ms, preflight: 'Off'"
    rig.write()
    versions(1)
    running = controller(rig.folder.path, watch=watch == "Poll")
    running.wait_ready()
    left = [1, 2]

    def failing(files):
        if left:
            left.pop()
            raise RuntimeError("can't start new thread")
        return read_files(files)

    monkeypatch.setattr("declctl.runtime.reloading.reload.read_files", failing)
    versions(2)
    if watch == "Off":
        outcome = running.reload()
        assert (outcome.result, outcome.reason) == ("Refused", "ResourcesExhausted")
    until("the edit is live", lambda: running.status().generation == 2)
    assert running.log.find("can't start new thread")
    assert running.log.find("please report it") is None


CODE = "from blackboard import tell as note\n{0}def tell(change): note('version', {1})\n"


def _folder(real, bundle) -> None:
    bundle.rename(real / "bundle")
    bundle.symlink_to(real / "bundle")


def _each(name):
    def link(real, bundle) -> None:
        (real / name).parent.mkdir(parents=True, exist_ok=True)
        (bundle / name).rename(real / name)
        (bundle / name).symlink_to(real / name)

    return link


PLAIN = {"handlers.py": CODE.replace("{0}", "").replace("{1}", "{}")}
PACKAGE = {
    "app/__init__.py": "",
    "app/handlers.py": CODE.replace("{0}", "from .parts import words\n").replace("{1}", "words.VERSION"),
    "app/parts/words.py": "VERSION = {}\n",
}
COMPUTED = PACKAGE | {
    "app/handlers.py": CODE.replace(
        "{0}", "import importlib\nwords = importlib.import_module('.parts.' + 'words', __package__)\n"
    ).replace("{1}", "words.VERSION")
}
BUNDLES = {
    "the folder": (PLAIN, "handlers:tell", _folder),
    "the manifest": (PLAIN, "handlers:tell", _each("manifest.yaml")),
    "a module": (PLAIN, "handlers:tell", _each("handlers.py")),
    "a package": (PACKAGE, "app.handlers:tell", _each("app")),
    "a package in a package": (PACKAGE, "app.handlers:tell", _each("app/parts")),
    "a package that is read whole": (COMPUTED, "app.handlers:tell", _each("app/parts")),
}


@pytest.mark.parametrize("what", BUNDLES)
def test_a_link_is_what_it_leads_to(what, rig, config_map, tmp_path_factory, controller) -> None:
    """It starts, and an edit behind the link, where no notice may come from, is live by itself."""
    files, entry, link = BUNDLES[what]

    def write(version: int, folder: BundleDir) -> None:
        for name, text in files.items():
            if version == 1 or "{}" in text:
                folder.write(name, text.replace("{}", str(version)))

    real = tmp_path_factory.mktemp("real")
    write(1, rig.folder)
    rig.handler("tell", entry=entry)
    rig.reload_policy = "settle: 20ms, preflight: 'Off', watch: Poll"
    manifest = rig.write()
    link(real, rig.folder.path)
    running = controller(manifest, watch=True)
    running.wait_ready()
    edited = {"the folder": BundleDir(rig.folder.path.resolve()), "a module": BundleDir(real)}
    write(2, edited.get(what, rig.folder))
    until("the edit is live", lambda: running.status().generation == 2)
    running.sandbox.create(config_map("one"))
    running.wait_idle()
    assert rig.told("version") == [("version", 2)]
