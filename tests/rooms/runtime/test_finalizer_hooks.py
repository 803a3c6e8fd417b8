"""`declctl_finalize`: where it is found, and what is said when it is not."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from declctl.hooks.calls import ReconcileTarget
from declctl.objects import ObjectView, Requeue
from declctl.runtime.checking.check import read_files
from declctl.runtime.checking.inputs import InputFiles
from declctl.runtime.checking.loaded_code import load_code
from declctl.runtime.reconciling.finalizers import FinalizerSteps, HandlerFinalizer
from tests.rooms.runtime.conftest import make_record

MANIFEST = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: hooks}
spec:
  resources:
    - {name: maps, apiVersion: v1, kind: ConfigMap}
  handlers:
    - name: a
      mode: Reconcile
      resourceRef: {name: maps}
      entryPoint: "%s"
      %s
"""
HOOKS = """\
import declctl

def reconcile(request): ...

@declctl.hookimpl
def declctl_reconcile(request): ...

@declctl.hookimpl
def declctl_finalize(request): ...

class Maps:
    @declctl.hookimpl
    def declctl_reconcile(self, request): ...

    @declctl.hookimpl
    async def declctl_finalize(self, request, ctx): ...

class Without:
    @declctl.hookimpl
    def declctl_reconcile(self, request): ...
"""
FINALIZER = "finalizer: example.dev/a"


@pytest.fixture
def loaded(bundle):
    """Loads the code of a manifest with this entry point: what the handler calls, and faults."""

    def load(entry, code=HOOKS, more=FINALIZER):
        bundle.write("handlers.py", code)
        path = bundle.write("manifest.yaml", MANIFEST % (entry, more))
        loaded_code, faults = load_code(read_files(InputFiles(str(path))).declaration, number=1)
        if loaded_code is None:
            return None, faults
        loaded_code.close()
        return loaded_code.targets["a"], faults

    return load


@pytest.mark.parametrize(
    ("entry", "name", "is_async"),
    [
        ("handlers", "declctl_finalize", False),
        ("handlers:reconcile", "declctl_finalize", False),
        ("handlers:declctl_reconcile", "declctl_finalize", False),
        ("handlers:Maps", "Maps.declctl_finalize", True),
    ],
)
def test_the_hook_is_in_the_class_or_the_module(loaded, entry, name, is_async):
    """That of a function is in its module: the entry point names only what reconciles."""
    target, faults = loaded(entry)
    assert not faults
    (found,) = target.finalizing
    assert (found.function.__qualname__, found.is_async) == (name, is_async)
    assert len(target.reconciling) == 1
    assert not target.all_async


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ("handlers:reconcile", "def reconcile(request): ...\n"),
        ("handlers", "import declctl\n@declctl.hookimpl\ndef declctl_reconcile(request): ...\n"),
        ("handlers:Without", HOOKS),  # the hook of the module is not that of the class
    ],
)
def test_a_finalizer_without_a_hook_is_refused_where_it_stands(loaded, entry, code):
    """With what to write."""
    target, (fault,) = loaded(entry, code)
    assert target is None
    assert (fault.code, fault.path[-1]) == ("DCL047", "finalizer")
    assert "does not implement declctl_finalize" in fault.message
    assert "_declctl_gen" not in fault.message


def test_a_hook_that_would_not_be_called_is_named_with_its_line_and_what_to_write(loaded):
    code = "def reconcile(request): ...\ndef declctl_finalize(request): ...\n"
    _, (fault,) = loaded("handlers:reconcile", code)
    assert (fault.code, fault.line) == ("DCL047", 2)
    assert fault.file.endswith("handlers.py")
    assert "put @declctl.hookimpl above it" in fault.suggestion
    code = HOOKS.replace("def declctl_finalize(request)", "def declctl_finalize(obj)")
    _, (fault,) = loaded("handlers:reconcile", code)
    assert (fault.code, fault.line) == ("DCL046", 9)
    assert "request.obj" in fault.suggestion


def test_a_hook_without_a_finalizer_is_a_warning(loaded):
    """Objects would go without it."""
    target, (fault,) = loaded("handlers", more="")
    assert target is not None
    assert (fault.code, fault.severity) == ("DCL047", "warning")
    assert "never called: the handler a has no finalizer" in fault.message


@pytest.mark.parametrize(("written", "again"), [(None, Requeue(after=1.0)), ("a version", None)])
def test_a_finalizer_that_only_the_server_shows_is_looked_for_later(written, again):
    """There is no write that the key could wait for: at once, it would ask the server again and again."""
    done = Future()
    done.set_result(written)
    write = SimpleNamespace(change_finalizer=lambda *_, **__: done)
    finalizer = HandlerFinalizer("a/b", None, lambda _: write, False, False, False)
    binding = SimpleNamespace(target=ReconcileTarget((), ()), plan=SimpleNamespace(name="a"))
    call = SimpleNamespace(binding=binding, request=SimpleNamespace(key="a/b", id="", causes=()))
    FinalizerSteps().decide(call, finalizer, ObjectView(make_record("a")), in_scope=True)
    assert (call.implementations[0].function(), call.adds) == (again, True)
