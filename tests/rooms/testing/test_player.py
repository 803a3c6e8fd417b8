"""Documents of kind ControllerTest over an API server in memory: what passes, and what a failure says."""

from pathlib import Path
from textwrap import dedent, indent
from threading import Event

import pytest

import declctl
from declctl.errors import ManifestErrors
from declctl.manifest import Diagnostic
from declctl.testing import BundleDir
from declctl.testing.documents import load_documents
from declctl.testing.player import PlayedTest, play

PACKAGE = Path(declctl.__file__).parent
MANIFEST = """
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: copier}
spec:
  resources: [{name: maps, apiVersion: v1, kind: ConfigMap, labelSelector: copy=yes}]
  handlers:
    - name: copy
      mode: Reconcile
      resourceRef: {name: maps}
      entryPoint: handlers:copy
      applies: [{apiVersion: v1, kind: Secret}]
      retry: {initialBackoff: 10s, maxBackoff: 10s}
"""
HANDLERS = """
import declctl

async def copy(request, ctx):
    obj = request.obj
    if obj is None:
        await ctx.delete("v1/Secret", request.name, namespace=request.namespace)
        return None
    if obj["data"]["x"] == "bad":
        raise ValueError("x is bad")
    if obj["data"]["x"] == "later":
        return declctl.Requeue(60)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": obj.name}}
    await ctx.apply({**secret, "stringData": dict(obj["data"])})
    ctx.record_event(obj, "Copied", f"copied {obj.name} [1]")
"""
OBJECTS = """
objects:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: {copy: "yes"}}, data: {x: "1"}}
"""


@pytest.fixture(name="bundle")
def _bundle(tmp_path: Path) -> BundleDir:
    return BundleDir(tmp_path, {"manifest.yaml": MANIFEST, "handlers.py": HANDLERS})


def played(bundle: BundleDir, steps: str, *, objects: str = OBJECTS) -> PlayedTest:
    """What becomes of a document with these steps, in a folder `tests` below the manifest."""
    head = "apiVersion: declctl.dev/v1alpha1\nkind: ControllerTest\nmetadata: {name: t}\nspec:\n"
    body = f"{objects.strip()}\nsteps:\n{indent(dedent(steps).strip(), '  ')}\n"
    file = bundle.write("tests/t.yaml", head + indent(body, "  "))
    (test,) = load_documents([file])
    return play(test)


PASSES = {
    "what the start has done": """
        - expect:
            - match: {kind: Secret, metadata: {name: a}, stringData: {x: "1"}}
            - calls: {handler: copy, count: 1, failed: 0}
            - writes: {kind: Secret, verb: apply, count: 1}
            - writes: {count: 1}
            - event: {reason: Copied, type: Normal, message: "copied a [1]", regarding: {kind: ConfigMap}}
            - quiet: 1h
    """,
    "each step counts for itself": """
        - apply: {apiVersion: v1, kind: ConfigMap, metadata: {name: b, labels: {copy: "yes"}}, data: {x: "2"}}
          expect:
            - match: {kind: Secret}
              count: 2
            - writes: {kind: Secret, count: 1, name: b, handler: copy}
            - event: {reason: Copied, count: 1}
        - patch: {kind: ConfigMap, name: b, patch: {data: {x: "3", y: "4"}}}
          expect:
            - match: {kind: Secret, metadata: {name: b}, stringData: {x: "3", y: "4"}}
            - calls: {handler: copy, max: 1}
        - delete: {kind: ConfigMap, name: b}
          expect:
            - absent: {kind: Secret, metadata: {name: b}}
            - writes: {kind: Secret, verb: delete, count: 1}
            - event: {reason: Copied, count: 0}
    """,
    "time passes in steps alone": """
        - patch: {kind: ConfigMap, name: a, patch: {data: {x: later}}}
          expect:
            - calls: {handler: copy, count: 1}
            - quiet: 59s
        - advance: 2s
          expect: [{calls: {handler: copy, count: 1}}]
        - patch: {kind: ConfigMap, name: a, patch: {data: {x: bad}}}
          expect: [{calls: {handler: copy, count: 1, failed: 1}}]
        - wait: 10m
          expect: [{calls: {handler: copy, failed: 2}}]
        - expect: [{calls: {handler: copy, count: 0}}]
    """,
    "a fault of the server": """
        - fault: {fault: refuse, status: 503, verb: patch, resource: secrets, times: 1}
        - patch: {kind: ConfigMap, name: a, patch: {data: {x: "2"}}}
          expect:
            - calls: {handler: copy, failed: 1}
            - match: {kind: Secret, metadata: {name: a}, stringData: {x: "1"}}
        - wait: 1m
          expect: [{match: {kind: Secret, metadata: {name: a}, stringData: {x: "2"}}}]
    """,
    "a restart while a call waits for the clock": """
        - fault: {fault: refuse, status: 429, retryAfter: 20, verb: patch, resource: secrets}
        - patch: {kind: ConfigMap, name: a, patch: {data: {x: "2"}}}
          expect: [{calls: {handler: copy, count: 0}}]
        - restart: {}
          expect: [{match: {kind: Secret, metadata: {name: a}, stringData: {x: "1"}}}]
        - fault: {fault: clear}
        - wait: 1m
          expect: [{match: {kind: Secret, metadata: {name: a}, stringData: {x: "2"}}}]
    """,
    "new code": """
        - reload: {files: {handlers.py: upper.py}}
          expect:
            - quiet: 1m
        - patch: {kind: ConfigMap, name: a, patch: {data: {x: "b"}}}
          expect: [{match: {kind: Secret, stringData: {x: B}}}]
        - reload: {}
    """,
    "a restart": """
        - restart: {}
          expect:
            - calls: {handler: copy, count: 1}
            - match: {kind: Secret, metadata: {name: a}}
            - writes: {kind: Secret, count: 0}
        - patch: {kind: Secret, name: a, patch: {stringData: {x: edited}}}
        - restart: {}
          expect: [{writes: {kind: Secret, count: 1}}]
    """,
}


@pytest.mark.parametrize("steps", PASSES.values(), ids=PASSES.keys())
def test_a_document_passes(bundle: BundleDir, steps: str) -> None:
    """Each action and each expectation, as the operator does it right."""
    bundle.write("tests/upper.py", HANDLERS.replace('dict(obj["data"])', '{"x": obj["data"]["x"].upper()}'))
    result = played(bundle, steps)
    assert result.outcome == "passed", result.reasons
    assert (bundle.path / "handlers.py").read_text() == dedent(HANDLERS).lstrip("\n")


BAD = "patch: {kind: ConfigMap, name: a, patch: {data: {x: bad}}}"
FAILS = {
    "another value": (
        'expect: [{match: {kind: Secret, metadata: {name: a}, stringData: {x: "9"}}}]',
        ":8:24: no Secret a matches",
        'a: stringData.x: expected "9", found "1"',
    ),
    "another name": (
        "expect: [{match: {kind: Secret, metadata: {name: c}}}]",
        ":8:24: there is no Secret c",
        "there are a",
    ),
    "too few": (
        "expect: [{match: {kind: Secret}, count: 2}]",
        ":8:47: expected 2 of Secret, found 1 (a)",
        "",
    ),
    "something left": ("expect: [{absent: {kind: Secret}}]", ":8:25: 1 of Secret are there (a)", ""),
    "no such condition": (
        "expect: [{condition: {kind: ConfigMap, name: a, type: Ready}}]",
        ":8:28: ConfigMap a has no condition Ready",
        "it has none",
    ),
    "another condition": (
        """apply:
    {apiVersion: v1, kind: Pod, metadata: {name: a}, status: {conditions: [{type: Ready, status: "False"}]}}
  expect: [{condition: {kind: Pod, name: a, type: Ready, status: "True", message: 2 of*}}]""",
        ":10:28: Pod a: the condition Ready differs",
        'status: expected "True", found "False"',
    ),
    "another Event": (
        "expect: [{event: {reason: Gone, type: Warning}}]",
        ":8:24: expected an Event like this in this step, found 0",
        "Normal Copied: copied a [1]",
    ),
    "more calls": (
        "expect: [{calls: {handler: copy, count: 0}}]",
        ":8:24: expected 0 calls of copy in this step, found 1 (0 failed)",
        "default/a: succeeded, Added maps default/a (Initial)",
    ),
    "no write": (
        "expect: [{writes: {kind: ConfigMap, min: 1}}]",
        ":8:25: expected 1 write at least like this in this step, found 0",
        "copy: apply Secret default/a",
    ),
    "a write": (
        """patch: {kind: ConfigMap, name: a, patch: {data: {x: "2"}}}
  expect: [{writes: {kind: Secret, count: 0}}]""",
        ":9:25: expected 0 writes like this in this step, found 1",
        "copy: apply Secret default/a: stringData.x",
    ),
    "a failed call": (
        f"{BAD}\n  expect: [{{calls: {{handler: copy, count: 1, failed: 0}}}}]",
        ":9:24: expected 0 failed calls of copy in this step, found 1 of 1",
        "default/a: retried, ValueError: x is bad",
    ),
    "a handler that raises": (
        f"{BAD}\n  expect: [{{match: {{kind: Secret, stringData: {{x: bad}}}}}}]",
        ":9:24: no Secret matches",
        "the last error of copy, for default/a (again later): ValueError: x is bad",
    ),
    "its traceback": (
        f"{BAD}\n  expect: [{{calls: {{handler: copy, failed: 0}}}}]",
        ":9:24: expected 0 failed calls of copy in this step, found 1 of 1",
        '    raise ValueError("x is bad")',
    ),
    "a write that is refused": (
        """fault: {fault: refuse, status: 422, verb: patch, resource: secrets, message: too long}
- patch: {kind: ConfigMap, name: a, patch: {data: {x: "2"}}}
  expect: [{calls: {handler: copy, failed: 0}}]""",
        ":10:24: expected 0 failed calls of copy in this step, found 1 of 1",
        '    await ctx.apply({**secret, "stringData": dict(obj["data"])})',
    ),
    "noise": (
        "patch: {kind: ConfigMap, name: a, patch: {data: {x: later}}}\n  expect: [{quiet: 5m}]",
        ":9:24: not quiet for 300 s",
        "copy was called 5 times",
    ),
    "nothing in time": (
        "wait: 5m\n  expect: [{match: {kind: Secret, metadata: {name: c}}}]",
        ":9:24: there is no Secret c, after waiting 5m",
        "",
    ),
    "a patch of nothing": (
        "patch: {kind: ConfigMap, name: c, patch: {}}",
        ':8:7: configmaps "c" not found',
        "",
    ),
    "a reload that is refused": (
        "reload: {files: {handlers.py: broken.py}}",
        ":8:15: the reload was refused",
        "",
    ),
    "an object without a namespace": (
        "expect: [{match: {kind: Node, metadata: {name: n}}}]",
        "no Node n",
        "",
    ),
}


@pytest.mark.parametrize(("step", "said", "detail"), FAILS.values(), ids=FAILS.keys())
def test_a_document_fails_where_it_differs(bundle: BundleDir, step: str, said: str, detail: str) -> None:
    """The place of the expectation, what was expected, and what is there instead."""
    bundle.write("tests/broken.py", "def copy(:")
    result = played(bundle, f"- {step}\n- expect: [{{match: {{kind: ConfigMap}}}}]")
    assert result.outcome == "failed"
    (reason,) = result.reasons
    assert said in f"{reason.place.removeprefix(result.file)}: {reason.message}"
    below = [*reason.details, *result.notes]
    assert not detail or any(detail in line for line in below), below
    # Of a traceback there is the line of the handler, and how declctl has come to raise is left out.
    assert not any(f"{PACKAGE}/" in line for line in below)


def test_all_that_a_step_lacks_is_told(bundle: BundleDir) -> None:
    """Each at its place, a time that is not quiet last; what the next steps expect is not judged."""
    result = played(
        bundle,
        """
        - patch: {kind: ConfigMap, name: a, patch: {data: {x: later}}}
          expect:
            - match: {kind: Secret, metadata: {name: c}}
            - match: {kind: Secret, metadata: {name: a}}
            - quiet: 1h
            - calls: {handler: copy, count: 2}
        - expect: [{absent: {kind: Secret}}]
        """,
    )
    told = [(each.place.removeprefix(result.file), each.message) for each in result.reasons]
    assert told == [
        (":10:18", "there is no Secret c"),
        (":13:18", "expected 2 calls of copy in this step, found 1 (0 failed)"),
        (":12:18", "not quiet for 3600 s"),
    ]


def test_a_call_that_has_come_is_not_to_come(bundle: BundleDir) -> None:
    """The last error of a handler is told; that it is called again, only as long as it was not."""
    result = played(
        bundle,
        """
        - patch: {kind: ConfigMap, name: a, patch: {data: {x: bad}}}
        - patch: {kind: ConfigMap, name: a, patch: {data: {x: "2"}}}
        - advance: 10m
          expect: [{absent: {kind: Secret}}]
        """,
    )
    assert result.notes[0] == "the last error of copy, for default/a: ValueError: x is bad"


DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: apps.acme.dev}
spec:
  group: acme.dev
  scope: Namespaced
  names: {plural: apps, singular: app, kind: App, listKind: AppList}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec:
              type: object
              properties:
                image: {type: string}
                any: {type: object, x-kubernetes-preserve-unknown-fields: true}
                labels: {type: object, additionalProperties: {type: string}}
                rules: {type: array, items: {type: object, properties: {port: {type: integer}}}}
"""


@pytest.mark.parametrize(
    ("step", "suggestion"),
    [
        ("expect: [{absent: {kind: App, spec: {§imag: a}}}]", 'did you mean "image"?'),
        ("expect: [{match: {kind: App, spec: {rules: [{port: 1}, {§prt: 2}]}}}]", 'did you mean "port"?'),
        ("expect: [{match: {kind: App, metadata: {ownerReferences: [{§nam: a}]}}}]", 'did you mean "name"?'),
        ("patch: {kind: App, name: a, patch: {spec: {§imag: a}}}", 'did you mean "image"?'),
        ("apply: {apiVersion: acme.dev/v1, kind: App, metadata: {name: a}, §spek: {}}", 'mean "spec"?'),
        ("expect: [{absent: {kind: Deployment, spec: {§replica: 2}}}]", 'did you mean "replicas"?'),
        (
            "patch: {kind: Pod, name: a, patch: {spec: {volumes: [{§configMp: {}}]}}}",
            'did you mean "configMap"?',
        ),
        ("expect: [{match: {kind: ConfigMap, §type: {}}}]", "it has apiVersion, kind, metadata"),
        # What a schema leaves open, and kinds without one.
        ("expect: [{absent: {kind: App, spec: {any: {x: {y: 1}}, labels: {x: y}, image: '?*'}}}]", ""),
        ("expect: [{absent: {kind: CustomResourceDefinition, spec: {x: 1}}}]", ""),
        ("expect: [{absent: {kind: Secret, data: {x: a}, metadata: {labels: {x: a}}}}]", ""),
    ],
)
def test_a_field_that_a_kind_does_not_have_is_a_fault(bundle: BundleDir, step: str, suggestion: str) -> None:
    """Of kinds with a definition beside the manifest, and of built-in ones; it would match nothing."""
    bundle.write("definition.yaml", DEFINITION)
    head = "apiVersion: declctl.dev/v1alpha1\nkind: ControllerTest\nmetadata: {name: t}\nspec:\n  steps:\n"
    before, mark, after = f"{head}    - {{{step}}}\n".partition("§")
    if not mark:
        assert load_documents([bundle.write("tests/t.yaml", before)])
        return
    with pytest.raises(ManifestErrors) as raised:
        load_documents([bundle.write("tests/t.yaml", before + after)])
    fault = next(each for each in raised.value.diagnostics if isinstance(each, Diagnostic))
    assert (fault.code, fault.line, fault.column) == ("DCL012", 6, len(before.splitlines()[-1]) + 1), fault
    assert suggestion in str(fault.suggestion)


def test_a_controller_that_can_not_start_is_a_failure(bundle: BundleDir) -> None:
    """Its manifest is right, and its code raises at import: the test fails, and says why."""
    bundle.write("handlers.py", "raise RuntimeError('no')")
    result = played(bundle, "- expect: [{match: {kind: ConfigMap}}]")
    (reason,) = result.reasons
    assert (result.outcome, "the test can't begin" in reason.message) == ("failed", True)
    assert "RuntimeError" in reason.message


def test_a_slow_call_is_waited_for(bundle: BundleDir) -> None:
    """A call that computes, or waits for something outside, is no call that waits for the clock."""
    bundle.edit(
        "handlers.py",
        "    obj = request.obj\n",
        # What it has begun sleeps on the clock, and it does not wait for that.
        """    obj = request.obj
    ctx.record_event(obj, "Slow", "slow")
    await asyncio.sleep(1.5)
""",
    )
    bundle.edit("handlers.py", "import declctl", "import asyncio\nimport declctl")
    result = played(bundle, "- expect: [{match: {kind: Secret}}, {calls: {handler: copy, count: 1}}]")
    assert result.outcome == "passed", result.reasons


def test_time_moves_after_schedules_have_begun(bundle: BundleDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the sync of the caches and the first call the process may be busy with something else."""
    monkeypatch.setattr("declctl.runtime.reloading.reload.trim_heap", lambda: Event().wait(0.5))
    schedule = "  schedules: [{name: pulse, every: 2s, entryPoint: 'handlers:pulse'}]\n"
    bundle.edit("manifest.yaml", "  handlers:\n", f"{schedule}  handlers:\n")
    bundle.edit("handlers.py", "import declctl", "import declctl\n\ndef pulse(): pass\n")
    result = played(bundle, "- advance: 9s\n  expect: [{calls: {handler: pulse, count: 4}}]", objects="")
    assert result.outcome == "passed", result.reasons


def test_a_handler_that_spoils_the_cache_fails(bundle: BundleDir) -> None:
    """Others would read what it has changed: a test of such a handler fails, whatever it expects."""
    bundle.write(
        "handlers.py",
        """
        from declctl.objects.record import record_of

        async def copy(request, ctx):
            record_of(request.obj).read()["data"]["x"] = "spoilt"
        """,
    )
    bundle.edit("manifest.yaml", "kind: ConfigMap", "kind: ConfigMap, cache: {mode: Objects}")
    result = played(bundle, "- expect: [{calls: {handler: copy, count: 1, failed: 0}}]")
    assert [each.message for each in result.reasons] == [
        "a handler changed objects of the cache, which others read"
    ]
