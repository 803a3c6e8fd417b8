"""The sandbox accepts and refuses what a type does, if the type's schema is that of the kind."""

import json
import random
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from declctl.objects.schema_changes import compare
from declctl.objects.structural import structural_schema
from declctl.sandbox import SandboxThread, schemas
from declctl.sandbox.kinds import ServedKind
from tests.rooms.objects.agreement import Answers, Judged
from tests.rooms.objects.rule_table import CASES
from tests.rooms.objects.schema_values import type_of, values


@pytest.fixture(scope="module")
def server():
    with SandboxThread() as sandbox:
        yield Answers(HTTPConnection(urlsplit(sandbox.url).netloc), {})


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_types_and_the_sandbox_agree(server, seed):
    """tests/e2e/test_types_and_servers.py compares both with a real API server."""
    judged = Judged(seed)
    server.serve(judged)

    @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(values(judged.schema))
    def agree(value):
        judged.check(value, server.create(judged, value))

    agree()


def test_rules_are_compiled_with_the_definition(server):
    """What a real server refuses is refused with its words; tests/e2e compares the whole answers."""
    for case in CASES:
        answer = server.define(case.schema)
        assert answer["kind"] == ("Status" if case.said else "CustomResourceDefinition"), case.text
        assert all(each in answer["message"] for each in (case.said or "").split("; ") if case.said)


def test_rules_read_fields_by_their_spelled_names():
    """CEL has no name with a dash, and Kubernetes spells it."""
    rule = {"rule": "self.foo__dash__bar == 'a' && self.__namespace__ == self.namespace"}
    fields = {name: {"type": "string"} for name in ("foo-bar", "namespace")}
    schema = {"type": "object", "properties": fields, "x-kubernetes-validations": [rule]}
    good = {"foo-bar": "a", "namespace": "n"}
    assert stored(schema, good) == good
    assert stored(schema, {**good, "foo-bar": "b"}) is None


def made(chance: random.Random, pool: list[Any]) -> dict[str, Any]:
    """The schema of a struct with two fields of the pool."""
    kinds = [chance.choice(pool) for _ in range(2)]
    fields: list[Any] = [
        (f"f{at}", kind | None, None) if chance.random() < 0.8 else (f"f{at}", kind)
        for at, kind in enumerate(kinds)
    ]
    return structural_schema(msgspec.defstruct("Spec", fields, kw_only=True))


def stored(spec_schema: dict[str, Any], spec: Any) -> Any:
    """A spec as it is stored; None if it is refused."""
    schema = {"type": "object", "properties": {"spec": spec_schema}}
    kind = ServedKind("e.com", "v1", "Thing", "things", "thing", namespaced=True, custom=True, schema=schema)
    obj: Any = {"metadata": {"name": "it"}, "spec": json.loads(json.dumps(spec))}
    schemas.read(schema, obj)
    schemas.fill(schema, obj)
    return None if schemas.faults(kind, obj, None, "", []) else obj.get("spec", {})


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**9), st.data())
def test_a_compatible_change_keeps_all_that_is_stored(seed, data):
    """What was valid by the earlier schema is valid by the later one."""
    chance = random.Random(seed)
    pool = [type_of(chance, 1)[0] for _ in range(3)]
    before, after = made(chance, pool), made(chance, pool)
    assert compare(before, before) == []
    if all(change.compatible for change in compare(before, after)):
        spec = stored(before, data.draw(values(before)))
        if spec is not None:
            assert stored(after, spec) is not None
