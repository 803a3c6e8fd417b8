"""Names that are loaded late are there all the same."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from declctl.kit.exports import late


@pytest.fixture(name="package")
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with one name of its own and one that is late."""
    folder = tmp_path / "late_exports_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from declctl.kit.exports import late\n__getattr__ = late(__name__, {'rare': ('Rare', 'RARER')})\n"
    )
    (folder / "rare.py").write_text("RARER = []\nclass Rare: pass\nUNLISTED = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder.name
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        del sys.modules[name]


def test_a_module_is_loaded_for_the_first_of_its_names(package: str):
    """Importing the package doesn't, asking for a name does."""
    loaded = import_module(package)
    assert f"{package}.rare" not in sys.modules
    assert loaded.Rare.__module__ == f"{package}.rare"


def test_a_name_stays_the_same_thing(package: str):
    """Whoever asks again, or imports the module itself, gets the same."""
    loaded = import_module(package)
    assert loaded.RARER is loaded.RARER is import_module(f"{package}.rare").RARER
    assert "RARER" in vars(loaded)


@pytest.mark.parametrize("name", ["Nonsense", "UNLISTED"])
def test_any_other_name_is_an_attribute_error(package: str, name: str):
    """What is not listed is not exported, as everywhere."""
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute '{name}'"):
        getattr(import_module(package), name)


def test_a_name_that_its_module_lacks_is_an_attribute_error(package: str):
    """A list that is wrong is told by the module that lacks the name."""
    with pytest.raises(AttributeError, match="Missing"):
        late(package, {"rare": ("Missing",)})("Missing")


@pytest.mark.parametrize("room", ["informer", "objects", "decoding", "kit", "workqueue"])
def test_every_exported_name_of_a_room_is_there(room: str):
    """What a room promises can be had, whenever it is loaded."""
    module = import_module(f"declctl.{room}")
    for name in module.__all__:
        assert getattr(module, name) is not None
