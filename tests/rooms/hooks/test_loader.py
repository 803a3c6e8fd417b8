"""Private namespaces: generations live side by side, each with its own code, and are gone when closed."""

import gc
import logging
import os
import pickle
import sys
import typing
import weakref

import pytest

from declctl.errors import EntryPointError
from declctl.hooks.bundle import Bundle, closure
from declctl.hooks.loader import GenerationNamespace

SIBLINGS = {
    "handlers/__init__.py": "from .names import NAME",
    "handlers/names.py": "NAME = '{}'",
    "handlers/pods.py": """
        import handlers
        import handlers.names
        import handlers.names as aliased
        from handlers import names
        from handlers.names import NAME
        from . import names as relative
        from .names import NAME as RELATIVE
        import shared

        def early():
            absolute = {handlers.NAME, handlers.names.NAME, aliased.NAME, names.NAME, NAME, shared.NAME}
            return absolute | {relative.NAME, RELATIVE}

        def late():
            from handlers.deep.late import name
            return name()
    """,
    "handlers/deep/late.py": """
        def name():
            import shared
            from ..names import NAME
            assert shared.NAME == NAME
            return NAME
    """,
    "shared.py": "NAME = '{}'",
}


def siblings(name):
    return {path: text.replace("{}", name) for path, text in SIBLINGS.items()}


@pytest.mark.guarantee("G5")
def test_every_form_of_import_finds_the_own_generation(generation):
    """Absolute, aliased, relative, nested and late; a zombie of a retired generation gets an error."""
    old, new = generation(siblings("old")), generation(siblings("new"))
    assert old.resolve("handlers.pods:early")() == {"old"}
    assert new.resolve("handlers.pods:early")() == {"new"}
    assert old.resolve("handlers.pods:early")() == {"old"}
    late = old.resolve("handlers.pods:late")
    assert new.resolve("handlers.pods:late")() == "new"
    assert late() == "old"
    old = generation(siblings("old"))
    late = old.resolve("handlers.pods:late")
    new = generation(siblings("new"))
    old.close()
    with pytest.raises(ImportError):
        late()
    assert new.resolve("handlers.pods:late")() == "new"


@pytest.mark.guarantee("G22")
def test_two_generations_do_not_mix(generation) -> None:
    """Of one number, each has its own code and package; the end of one leaves the others."""
    one, other = generation({"a.py": "X = 1"}, number=7001), generation({"a.py": "X = 2"}, number=7001)
    assert one.module("a").X == 1
    assert other.module("a").X == 2
    old, new = generation({"a.py": "X = 1"}), generation({"a.py": "X = 2"})
    old.module("a")
    module = new.module("a")
    old.close()
    old.close()
    assert new.module("a") is module
    first, second = (GenerationNamespace(7, Bundle("app", {"h.py": b"def mine(): pass\n"})) for _ in range(2))
    first.close()
    third = GenerationNamespace(7, Bundle("app", {"h.py": b"def mine(): pass\n"}))
    assert len({first.prefix, second.prefix, third.prefix}) == 3
    assert third.module("h").mine.__module__ == f"{third.prefix}.h"
    second.close()
    third.close()


def test_installed_modules_are_found_unless_a_file_hides_them(generation):
    """For its generation alone: everybody else keeps the real one, and no plain name leaks."""
    namespace = generation({"a.py": "import json"})
    assert namespace.module("json") is sys.modules["json"]
    assert namespace.module("a").json is sys.modules["json"]
    namespace = generation({"a.py": "import json", "json.py": "MINE = True"})
    assert namespace.module("a").json.MINE
    assert not hasattr(sys.modules["json"], "MINE")
    generation(siblings("x")).resolve("handlers.pods")
    assert not {"handlers", "handlers.pods", "shared"} & sys.modules.keys()


def test_a_package_comes_before_a_module_of_its_name(generation):
    """As Python has it; beside a mere folder of its name, a module stays one, and so do relative imports."""
    namespace = generation({"a/__init__.py": "FROM = 'package'", "a.py": "FROM = 'module'"})
    assert namespace.module("a").FROM == "package"
    files = {"h/__init__.py": "", "h/a.py": "from .b import X", "h/b.py": "X = 1", "h/a/c.py": ""}
    assert generation(files).module("h.a").X == 1


def test_classes_of_a_generation_are_found_by_their_names(generation):
    """By get_type_hints, dataclasses and pickle, which look into sys.modules."""
    source = """
        from __future__ import annotations
        import dataclasses
        from other import Part

        @dataclasses.dataclass
        class Whole:
            part: Part
            again: list[Whole] = dataclasses.field(default_factory=list)
    """
    namespace = generation({"a.py": source, "other.py": "class Part: ..."})
    whole = namespace.resolve("a:Whole")
    assert typing.get_type_hints(whole)["part"] is namespace.module("other").Part
    assert whole(part=1) == whole(part=1)
    thing = generation({"a.py": "class Thing: ..."}).resolve("a:Thing")
    assert isinstance(pickle.loads(pickle.dumps(thing())), thing)


@pytest.mark.guarantee("G23")
def test_quick_edits_are_never_missed(generation, tmp_path, monkeypatch):
    """Three edits of the same size within the same second all take effect; bytecode caches would miss two."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "a.py"
    seen = []
    for value in (1, 2, 3):
        file.write_text(f"X = {value}")
        os.utime(file, (1_700_000_000, 1_700_000_000))
        seen.append(generation({"a.py": closure(tmp_path, ["a"]).files["a.py"].decode()}).module("a").X)
    assert seen == [1, 2, 3]
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.guarantee("G5", "G23", "G22")
def test_what_has_not_changed_is_not_compiled_again(generation):
    """Code of equal files is shared, and nothing that it makes; it goes with its last generation."""
    text = "MADE = []\ndef add(x): MADE.append(x); return MADE"
    old, new = generation({"a.py": text, "b.py": text}), generation({"a.py": text, "b.py": text + "\n"})
    before, after = old.module("a"), new.module("a")
    assert after.add.__code__ is before.add.__code__
    assert new.module("b").add.__code__ is not old.module("b").add.__code__
    assert before.add.__code__ is not old.module("b").add.__code__  # tracebacks name the file
    assert (before.add(1), after.add(2), before.MADE, after.MADE) == ([1], [2], [1], [2])
    text = "def f(): return 1"
    first, second = generation({"a.py": text}), generation({"a.py": text})
    code = weakref.ref(first.module("a").f.__code__)
    second.module("a")
    first.close()
    gc.collect()
    assert code() is not None
    second.close()
    gc.collect()
    assert code() is None  # what is kept of a file has the code of its functions in it


@pytest.mark.guarantee("G22")
def test_a_closed_generation_is_collected(generation):
    """Modules, classes, functions and loggers; also one whose import failed."""
    namespace = generation(siblings("old") | {"a.py": "import handlers.pods\nclass Thing: ..."})
    alive = [
        weakref.ref(namespace.resolve("a:Thing")),
        weakref.ref(namespace.resolve("handlers.pods")),
        weakref.ref(namespace.resolve("handlers.pods:late")),
    ]
    namespace.close()
    gc.collect()
    assert [ref() for ref in alive] == [None, None, None]
    assert not [name for name in sys.modules if name.startswith(namespace.prefix)]
    namespace = generation({"a.py": "import b\n1 / 0", "b.py": "class Thing: ..."})
    with pytest.raises(EntryPointError):
        namespace.module("a")
    alive = weakref.ref(namespace.module("b").Thing)
    namespace.close()
    gc.collect()
    assert alive() is None
    namespace = generation({"h/a.py": "import logging\nLOG = logging.getLogger(__name__)"})
    alive = weakref.ref(namespace.module("h.a").LOG)
    namespace.close()
    gc.collect()
    assert alive() is None
    assert not [name for name in logging.Logger.manager.loggerDict if name.startswith(namespace.prefix)]


def test_entry_points_name_modules_and_attributes(generation):
    namespace = generation({"a.py": "class Thing: ..."})
    assert namespace.resolve("a") is namespace.module("a")
    assert namespace.resolve("a:Thing") is namespace.module("a").Thing
