"""What the tests of the desk share: small manifests, and a mark that says where a fault must be shown."""

from collections.abc import Callable, Mapping
from textwrap import dedent, indent

import pytest

from declctl.errors import ManifestErrors
from declctl.manifest import Diagnostic, LoadedManifest, ManifestSource, load

HEAD = "apiVersion: declctl.dev/v1alpha1\nkind: Controller\nmetadata: {name: c}\nspec:\n"
MARK = "§"  # stands directly before the character at which a fault must be shown


def whole(fragment: str) -> str:
    """A manifest: the fragment itself if it is one, else with the fragment as its spec."""
    text = dedent(fragment).lstrip("\n")
    return text if "apiVersion: declctl" in text or "---" in text else HEAD + indent(text, "  ")


def place_of_mark(text: str) -> tuple[int, int]:
    before = text[: text.index(MARK)]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def diagnostics(text: str, *, environ: Mapping[str, str] | None = None) -> tuple[Diagnostic, ...]:
    """Everything that is said about a manifest, errors and warnings."""
    source = ManifestSource(name="manifest.yaml", data=text.encode())
    try:
        return load(source, environ=environ or {}).warnings
    except ManifestErrors as error:
        return tuple(fault for fault in error.diagnostics if isinstance(fault, Diagnostic))


@pytest.fixture(scope="session", name="loaded")
def _loaded() -> Callable[..., LoadedManifest]:
    """Loads a manifest, or a fragment of a spec, that has no errors."""

    def load_fragment(fragment: str, *, environ: Mapping[str, str] | None = None) -> LoadedManifest:
        source = ManifestSource(name="manifest.yaml", data=whole(fragment).encode())
        return load(source, environ=environ or {})

    return load_fragment


@pytest.fixture(scope="session", name="faults")
def _faults() -> Callable[..., tuple[Diagnostic, ...]]:
    """Everything that is said about a manifest or a fragment of a spec."""

    def faults_of(fragment: str, *, environ: Mapping[str, str] | None = None) -> tuple[Diagnostic, ...]:
        return diagnostics(whole(fragment), environ=environ)

    return faults_of


@pytest.fixture(scope="session", name="only_fault")
def _only_fault() -> Callable[..., Diagnostic]:
    """The one thing that is said about a marked manifest; fails if it isn't shown at the mark."""

    def only_fault_of(fragment: str, *, environ: Mapping[str, str] | None = None) -> Diagnostic:
        text = whole(fragment)
        wanted = place_of_mark(text)
        found = diagnostics(text.replace(MARK, ""), environ=environ)
        assert [str(fault) for fault in found] == [str(found[0])], "one cause, one diagnostic"
        assert (found[0].line, found[0].column) == wanted
        assert found[0].source_line == text.replace(MARK, "").split("\n")[wanted[0] - 1]
        return found[0]

    return only_fault_of


@pytest.fixture(scope="session", name="diagnose")
def _diagnose() -> Callable[..., tuple[Diagnostic, ...]]:
    """Everything that is said about a text, which is taken as it is."""
    return diagnostics
