"""Which files of a bundle a module is made of."""

import pytest

from declctl.hooks.bundle import Bundle, reached

FILES = {
    "app/__init__.py": b"from . import shared",
    "app/shared.py": b"",
    "app/pods.py": b"from .parts.deep import thing\nimport helper",
    "app/jobs.py": b"from app.pods import x",
    "app/late.py": b"def f():\n    from ..sibling import y",
    "app/parts/deep.py": b"from .. import jobless",
    "helper.py": b"import json",
    "sibling.py": b"import helper",
    "broken.py": b"def (",
    "loop.py": b"import loop",
}


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("app.pods", {"app/__init__.py", "app/shared.py", "app/pods.py", "app/parts/deep.py", "helper.py"}),
        ("app.shared", {"app/__init__.py", "app/shared.py"}),
        ("helper", {"helper.py"}),
        ("sibling", {"sibling.py", "helper.py"}),
        ("app.late", {"app/__init__.py", "app/shared.py", "app/late.py", "sibling.py", "helper.py"}),
        ("broken", {"broken.py"}),
        ("loop", {"loop.py"}),
        ("elsewhere", set()),
    ],
)
@pytest.mark.guarantee("G20")
def test_a_module_is_made_of_what_it_imports(module: str, found: set[str]):
    """Its own file, the packages around it, and what these import; nothing of its neighbours."""
    assert set(reached(Bundle(".", FILES), module)) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import app\napp.shared.x()", {"app/__init__.py", "app/shared.py"}),
        ("import app\napp.late.f()", {"app/late.py", "sibling.py", "helper.py"}),
        ("from app import *", {"app/pods.py", "app/jobs.py", "app/late.py", "app/parts/deep.py"}),
        ("import importlib", {*FILES}),
        ("__import__(name)", {*FILES}),
    ],
)
@pytest.mark.guarantee("G20")
def test_a_module_is_made_of_what_it_may_find(source: str, found: set[str]):
    """Attributes of packages are its modules; what it imports by computed names may be anything."""
    files = {**FILES, "mine.py": source.encode()}
    assert set(reached(Bundle(".", files), "mine")) >= {"mine.py", *found}


def test_what_a_module_is_made_of_takes_one_look_at_all_files():
    """Not one for each import: of two thousand modules that took seconds, at each edit."""
    looks = 0

    class Files(dict):
        def __iter__(self):
            nonlocal looks
            looks += 1
            return super().__iter__()

    count = 20
    modules = {f"p/m{n}.py": f"from p import m{(n + 1) % count}\nimport os".encode() for n in range(count)}
    found = reached(Bundle("", Files({"p/__init__.py": b"", **modules})), "p.m0")
    assert len(found) == count + 1
    assert looks <= 1


@pytest.mark.parametrize("name", ["a", "a.b", "a.b.c", "m", "a.m", "", "ab"])
def test_the_packages_of_a_bundle_are_those_that_it_has(name):
    """Folders of modules, with a front or without."""
    bundle = Bundle("", dict.fromkeys(["m.py", "a/b/c/x.py", "a/m.py"], b""))
    assert (name in bundle.packages) == bundle.has_package(name)
