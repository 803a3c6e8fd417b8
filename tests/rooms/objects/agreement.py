"""Whether a type, the sandbox and a real API server accept and refuse the same."""

import http.client
import json
import random
import time
import types
from typing import Any

import msgspec

import declctl
from declctl.objects.definitions import definitions_of
from tests.rooms.objects.schema_values import as_stored, random_type, server_alone

_GROUP = "agreement.example.com"
_SERVER_ALONE = ("Duplicate value", "failed rule", "it is 4")


class Judged:
    """A random type, as a custom resource of its own."""

    def __init__(self, seed: int, run: str = "") -> None:
        self.spec = random_type(random.Random(seed))
        self.plural = f"things{seed}{run}"
        declared = declctl.custom_resource(f"{_GROUP}/v1", plural=self.plural, kind=f"Thing{seed}{run}")
        made = types.new_class("Made", (declctl.Object[self.spec, Any],))
        self.definition: Any = definitions_of([declared(made)])[0]
        version = self.definition["spec"]["versions"][0]
        self.schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]

    def fits(self, value: Any) -> bool:
        """Whether the type reads a value."""
        try:
            msgspec.json.decode(json.dumps(value), type=self.spec)
        except msgspec.ValidationError:
            return False
        return True

    def check(self, value: Any, answer: dict[str, Any]) -> None:
        """Assert that a type and the answer of a server agree."""
        known = {} if value is None else as_stored(self.schema, value)
        if "spec" in answer:
            assert self.fits(answer["spec"]), f"stored, and does not fit: {answer['spec']}"
            assert self.fits(known), f"the server takes what the type refuses: {value}"
        elif self.fits(known):
            causes = str(answer["causes"])
            excused = any(server_alone(self.schema, known)) or any(each in causes for each in _SERVER_ALONE)
            assert excused, f"only the server refuses: {causes}"


class Answers:
    """One server that is asked to create objects, and creates none."""

    def __init__(self, connection: http.client.HTTPConnection, headers: dict[str, str]) -> None:
        self._connection = connection
        self._headers = {**headers, "Content-Type": "application/json"}

    def serve(self, judged: Judged) -> None:
        """Create the definition, and return when objects can be created."""
        made = self._ask("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", judged.definition)
        assert made["kind"] == "CustomResourceDefinition", made["message"]
        for _ in range(600):
            if "404" not in str(self.create(judged, {}).get("causes")):
                return
            time.sleep(0.05)

    def define(self, schema: Any) -> dict[str, Any]:
        """The answer to a definition with a schema of objects; only the refusal is compared."""
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"plural": "ruled", "singular": "ruled", "kind": "Ruled", "listKind": "RuledList"}
        spec = {"group": _GROUP, "scope": "Namespaced", "names": names, "versions": [version]}
        kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        answer = self._ask(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All",
            {**kind, "metadata": {"name": f"ruled.{_GROUP}"}, "spec": spec},
        )
        return answer if answer["kind"] == "Status" else {"kind": answer["kind"]}

    def create(self, judged: Judged, spec: Any) -> dict[str, Any]:
        """The `spec` that would be stored, or the `causes` of a refusal, which come in any order."""
        path = f"/apis/{_GROUP}/v1/namespaces/default/{judged.plural}?dryRun=All"
        body = {
            "apiVersion": f"{_GROUP}/v1",
            "kind": judged.definition["spec"]["names"]["kind"],
            "metadata": {"name": "it"},
            "spec": spec,
        }
        answer = self._ask(path, body)
        if "spec" in answer:
            return {"spec": answer["spec"]}
        causes = answer.get("details", {}).get("causes", [answer["message"]])
        for cause in causes:
            if "Duplicate value" in str(cause):  # of a key beyond 64 bits, in one of Go's forms
                cause["message"] = cause["message"].partition(":")[0]
        return {"causes": sorted(causes, key=json.dumps)}

    def _ask(self, path: str, body: Any) -> dict[str, Any]:
        self._connection.request("POST", path, json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        return _json(text) if text.startswith(b"{") else {"message": f"{answer.status}"}


def _json(text: bytes) -> Any:
    """Go writes a float beyond 64 bits without a point, and rounded as a text."""
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 19 else _wide(digits))


def _wide(digits: str) -> int | float:
    return int(digits) if -(2**63) <= int(digits) < 2**63 else float(digits)
