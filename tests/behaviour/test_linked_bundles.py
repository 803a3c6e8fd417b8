"""Bundles that are made of links: what runs is what they lead to, and edits behind them are noticed."""

import pytest

from declctl.testing import BundleDir, until

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
            if "{}" in text:
                folder.write(name, text.replace("{}", str(version)))

    real = tmp_path_factory.mktemp("real")
    for name, text in files.items():
        rig.folder.write(name, text)
    write(1, rig.folder)
    rig.handler("tell", entry=entry)
    rig.reload_policy = "settle: 20ms, preflight: 'Off', watch: Poll"
    rig.write()
    link(real, rig.folder.path)
    running = controller(rig.folder.path / "manifest.yaml", watch=True)
    running.wait_ready()
    edited = BundleDir(rig.folder.path.resolve()) if what == "the folder" else rig.folder
    if what == "a module":
        edited = BundleDir(real)
    write(2, edited)
    until("the edit is live", lambda: running.status().generation == 2)
    running.sandbox.create(config_map("one"))
    running.wait_idle()
    assert rig.told("version") == [("version", 2)]
