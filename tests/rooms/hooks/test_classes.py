"""The kind that the source of a class says, without an import."""

import pytest

from declctl.hooks.bundle import Bundle
from declctl.hooks.classes import kind_of_class

PREVIEW = "class Preview(declctl.Object[Spec, Status]): ...\n"
AS_ATTRIBUTE = f'import declctl\n@declctl.custom_resource("acme.dev/v1", plural="p")\n{PREVIEW}'
SAYS = {
    "the name of the class": AS_ATTRIBUTE,
    "a name of the module": 'API: str = "acme.dev/v1"\n' + AS_ATTRIBUTE.replace('"acme.dev/v1"', "API"),
    "by name": AS_ATTRIBUTE.replace('("acme.dev/v1"', '(api_version="acme.dev/v1"'),
    "its own kind": AS_ATTRIBUTE.replace('p")', 'p", kind="Preview")').replace("class Preview", "class P"),
    "imported for": "from declctl import custom_resource as cr\n"
    + AS_ATTRIBUTE.replace("import declctl\n", "").replace("declctl.custom_resource", "cr"),
    "below a condition": "if True:\n    " + AS_ATTRIBUTE.strip().replace("\n", "\n    ") + "\n",
}


def _kind(models: str, name: str = "Preview", module: str = "models", **files: str):
    sources = {path: text.encode() for path, text in {"models.py": models, **files}.items()}
    return kind_of_class(Bundle("demo", sources), module, name)


@pytest.mark.parametrize("models", SAYS.values(), ids=SAYS)
def test_a_decorator_says_apiversion_and_kind(models: str) -> None:
    """In each form in which people write it."""
    found = _kind(models, "P" if "class P(" in models else "Preview")
    assert (found.api_version, found.kind, found.message) == ("acme.dev/v1", "Preview", "")


def test_a_class_is_found_where_a_module_imports_it_from() -> None:
    """Also relatively, under another name, and through a package."""
    found = _kind(
        "from api import Shown as Preview\n",
        **{"api/__init__.py": "from .v1 import Preview as Shown\n", "api/v1.py": AS_ATTRIBUTE},
    )
    assert (found.api_version, found.kind) == ("acme.dev/v1", "Preview")
    assert _kind("from models import Preview\n").message.endswith("is imported from module to module")


def test_a_class_without_the_decorator_says_nothing() -> None:
    """The kind of a Deployment is in the manifest."""
    found = _kind("import declctl, dataclasses\n@dataclasses.dataclass\n@other\n" + PREVIEW)
    assert (found.api_version, found.kind, found.code) == ("", "", "")


@pytest.mark.parametrize(
    ("models", "module", "told"),
    [
        (AS_ATTRIBUTE.replace('"acme.dev/v1"', "version()"), "models", "demo/models.py:2: the apiVersion of"),
        (AS_ATTRIBUTE.replace('p")', "p\", kind=f'{x}')"), "models", "the kind of Preview is no text"),
        (AS_ATTRIBUTE.replace('p")', 'p", **more)'), "models", "can't be read without an import"),
        (AS_ATTRIBUTE.replace("class Preview", "class Preveiw"), "models", "has no class Preview"),
        (AS_ATTRIBUTE, "installed", "the module installed is not beside the manifest"),
    ],
)
def test_what_can_not_be_read_is_told_with_its_place(models: str, module: str, told: str) -> None:
    """The file and the line, and what to write."""
    found = _kind(models, module=module)
    assert told in found.message
    assert found.code == "DCL120"
    assert found.suggestion
    if "Preveiw" in models:
        assert found.suggestion.startswith('did you mean "models:Preveiw"?')
