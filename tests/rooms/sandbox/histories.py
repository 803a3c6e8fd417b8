"""Histories of writes at random, and what a server answers: the sandbox, or a real API server."""

import http.client
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import yaml

from declctl.objects.managed_fields import is_applied

_GROUP = "ownership.example.com"
_PATHS = {
    "ConfigMap": "/api/v1/namespaces/default/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "Gadget": f"/apis/{_GROUP}/VERSION/namespaces/default/gadgets",
}
_MEDIA = {"apply": "apply-patch+yaml"} | {v: f"{v}-patch+json" for v in ("merge", "json", "strategic-merge")}
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_DRAWN = {"uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "managedFields"}
# The fields of a custom kind: schema, values, and values that are refused or warned of.
_GADGET = yaml.safe_load("""
spec:
  size: [{type: integer, x-kubernetes-validations: [{rule: self < 3}]}, [1, 2, null], ["1", 3]]
  mode: [{type: string, enum: [a, b], default: a}, [a, b, null], [c, 1]]
  parts:
    - &parts {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [id], items: {required:
        [id], type: object, properties: {id: &text {type: string}, n: {type: integer, default: 1}}}}
    - [[], [{id: p}, {id: q, n: 2}], [{id: r}, {id: q, n: 1}], [{id: q}, {id: p}]]
    - [[{n: 1}], [{id: p}, {id: p}], [1], "1"]
  ports:
    - {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [port, protocol], items: {type:
        object, required: [port], properties: {port: {type: integer}, protocol: {default: TCP, <<: *text}}}}
    - [[], [{port: 80}], [{port: 80, protocol: UDP}, {port: 80, protocol: TCP}], [{port: 81}]]
    - [[{port: 80}, {port: 80, protocol: TCP}]]
  tags: [{type: array, items: *text, x-kubernetes-list-type: set}, [[], [s, t], [u, s], [t]], [[s, s], [{}]]]
  args: [{type: array, items: *text, maxItems: 2}, [[k], [k, l], []], [[k, l, m], [k, 1]]]
  match: [{type: object, x-kubernetes-map-type: atomic, additionalProperties: *text}, [{}, {k: l, l: l}], [1]]
  limits: [{type: object, maxProperties: 1, additionalProperties: {type: string, maxLength: 3}},
    [{}, {k: "1"}], [{k: 1}, {k: k, l: l}, {k: long}]]
  units: [{type: object, additionalProperties: {type: object, properties: {n: *text, o: *text}}},
    [{k: {n: k}}, {k: {o: k}, l: {}}, {l: {n: k, o: k}}], [{k: {foo: 1}}]]
  any: [{type: object, x-kubernetes-preserve-unknown-fields: true}, [{k: {l: [1]}}, {k: 1, l: null}], [[]]]
  gap: [{type: string, nullable: true, x-kubernetes-validations: [{rule: oldSelf != 'k', message: it is k}]},
    [null], [1, k]]
  amount: [{x-kubernetes-int-or-string: true}, [1, "1"], [true]]
  deep:
    - {type: object, properties: {parts: *parts}, x-kubernetes-validations: [{rule: size(self.parts) < 2,
        fieldPath: .parts, reason: FieldValueForbidden, messageExpression: "self.parts == [] ? '' : 'many'"}]}
    - [{parts: []}, {parts: [{id: p}]}]
    - [{parts: {}}, {}, {parts: [{id: p}, {id: q}]}]
  unknown: [null, [], [1]]
status:
  phase: [{type: string, minLength: 1, pattern: "^[kl]?$"}, [k, l], ["", m, 1]]
  count: [{type: integer, minimum: -1, maximum: 2}, [0, 1, 2], [-1, -2, 3]]
  parts: [*parts, [[{id: p}], [{id: p, n: 2}, {id: q}]], [[{n: 1}]]]
""")
_DEPLOYMENT = yaml.safe_load("""
spec: {replicas: [0, 1, 2], paused: [true], minReadySeconds: [1, 2]}
status: {replicas: [1, 2], observedGeneration: [1, 2]}
pod:
  nodeSelector: [{k: "1"}, {k: "2", l: "1"}]
  volumes: [[{name: v, emptyDir: {}}, {name: w, configMap: {name: k}}], [{name: v}]]
container:
  ports: [[], [{containerPort: 80}], [{containerPort: 81}, &udp {containerPort: 80, protocol: UDP}],
    [{containerPort: 80}, *udp]]
  env: [[], [{name: X}], [{name: Y, value: "1"}, {name: X, value: "2"}]]
  args: [[k], [k, l]]
  image: ["i:1", "i:2", i]
""")


def definition() -> dict[str, Any]:
    """A custom kind with every way to merge, defaults, nulls, and all subresources."""
    crd = yaml.safe_load(f"""
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: gadgets.{_GROUP}}}
spec:
  group: {_GROUP}
  scope: Namespaced
  names: {{plural: gadgets, kind: Gadget}}
  versions: [{{name: v1, storage: true}}, {{name: v1beta1, storage: false, deprecated: true}}]
""")
    parts = {
        part: {"type": "object", "properties": {name: row[0] for name, row in fields.items() if row[0]}}
        for part, fields in _GADGET.items()
    }
    scale = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.count"}
    for version in crd["spec"]["versions"]:
        version |= {"served": True, "subresources": {"status": {}, "scale": scale}}
        version["schema"] = {"openAPIV3Schema": {"type": "object", "properties": parts}}
    return crd


@dataclass
class Step:
    """One request; the body of a replace is a change of what the server has."""

    verb: str
    body: Any
    subresource: str = ""
    version: str = "v1"
    options: dict[str, str] = field(default_factory=dict[str, str])


def history(seed: int) -> tuple[str, list[Step]]:
    """A kind, and the writes of a seed to one object of it, by three managers or by more than are kept."""
    chance = random.Random(seed)
    kind = chance.choice(list(_PATHS))
    crowd = chance.random() < 0.1
    managers = [f"m{number}" for number in range(20)] if crowd else ["one", "two", "kubectl"]
    verbs = ["apply"] * 6 + ["merge", "json", "replace", "replace", "create", "strategic-merge"]
    steps = [Step(chance.choice(["create", "apply"]), _config(chance, kind))]
    for _ in range(chance.randint(6, 60 if crowd else 20)):
        step = Step("delete" if chance.random() < 0.02 else chance.choice(verbs), _config(chance, kind))
        if crowd and chance.random() < 0.7:
            step = Step("merge", {"metadata": {"annotations": {f"k{chance.randint(0, 30)}": "k"}}})
        step.version = "v1beta1" if chance.random() < 0.1 else "v1"
        if step.verb not in ("create", "delete") and kind != "ConfigMap" and chance.random() < 0.3:
            step.subresource = "status" if step.verb == "apply" else chance.choice(["status", "scale"])
        step.body = _body(chance, step)
        if step.verb == "apply" and chance.random() < 0.5:
            step.options["force"] = "true"
        if step.verb != "delete" and chance.random() < 0.1:
            step.options |= {"dryRun": "All", "fieldValidation": chance.choice(["Ignore", "x"])}
        steps.append(step)
    for step in steps:
        step.options["fieldManager"] = chance.choice(managers)
    return kind, steps


def _body(chance: random.Random, step: Step) -> Any:
    if step.subresource == "scale":
        replicas = {"replicas": chance.randint(0, 2)}
        added = [{"op": "add", "path": "/spec", "value": replicas}]
        return added if step.verb == "json" else {"spec": replicas}
    written = [(holder, name) for holder in ("data", "spec", "status") for name in step.body.get(holder, ())]
    dropped = [(h, n) for h, n in written if n not in ("selector", "template") and chance.random() < 0.2]
    match step.verb:
        case "merge":
            for holder, name in dropped:
                step.body[holder][name] = None
        case "json":
            few = chance.sample(written, min(2, len(written)))
            added = [{"op": "add", "path": f"/{h}/{n}", "value": step.body[h][n]} for h, n in few]
            return added + [{"op": "remove", "path": f"/{h}/{n}"} for h, n in dropped[:1]]
        case "replace":
            return {**step.body, "dropped": dropped, "owners": chance.choice([1] * 8 + [None, [{}]])}
        case _:
            pass
    return step.body


def _some(chance: random.Random, **options: Any) -> dict[str, Any]:
    """Some of the fields, each with one of its values."""
    chosen = {name: chance.choice(values) for name, values in options.items() if chance.random() < 0.4}
    return json.loads(json.dumps(chosen))


def _config(chance: random.Random, kind: str) -> dict[str, Any]:
    last = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "it"}, "data": {"x": "1", "y": "1"}}
    notes: list[Any] = [{}, {"x": "1"}, {"x": "2", "y": "1"}, {"x": "1", _LAST_APPLIED: json.dumps(last)}]
    finalizers = [[], ["example.com/a"], ["example.com/b", "example.com/a"]]
    metadata = _some(chance, labels=notes[:3], annotations=notes, finalizers=finalizers)
    # Empty ones that are applied are stored for a custom kind, and lost by the next write.
    kept = {key: value for key, value in metadata.items() if chance.random() < 0.5}
    config: dict[str, Any] = {"metadata": {k: v for k, v in kept.items() if v or kind != "Gadget"}}
    config["metadata"]["name"] = "it"
    if kind == "ConfigMap":
        return config | _some(chance, data=[_some(chance, x="12", y=["1", ""], z="1", spec="12")])
    if kind == "Gadget":
        for part, fields in _GADGET.items():
            config[part] = _some(chance, **{name: row[1] for name, row in fields.items() if row[1]})
            if chance.random() < 0.12:
                name = chance.choice(list(fields))
                config[part][name] = json.loads(json.dumps(chance.choice(fields[name][2])))
        return config
    names = chance.choice([["a"], ["a", "b"], ["b", "a"], ["c", "a"]])
    containers = [{"image": "i", "name": name, **_some(chance, **_DEPLOYMENT["container"])} for name in names]
    pod = {"containers": containers, **_some(chance, **_DEPLOYMENT["pod"])}
    template = {"metadata": {"labels": {"app": "a", **_some(chance, tier="12")}}, "spec": pod}
    spec = {"selector": {"matchLabels": {"app": "a"}}, "template": template}
    spec |= _some(chance, **_DEPLOYMENT["spec"])
    return config | {"spec": spec, "status": _some(chance, **_DEPLOYMENT["status"])}


class Server:
    """One server, with an object that is written to."""

    def __init__(self, connection: http.client.HTTPConnection, headers: dict[str, str]) -> None:
        self._connection = connection
        self._headers = headers
        self._version = ""  # of the last answer
        self._time = datetime.min.replace(tzinfo=UTC)  # of the last write
        self.waits: list[float] = []  # seconds that passed before each write of the last history
        self.known = 0  # applies that were known to change nothing

    def run(self, seed: int, steps: int = 1000, wait: Callable[[int], None] = lambda _: None) -> list[Any]:
        """The answers to the writes of a history, up to a built-in object that only a real server refuses.

        `wait` is called with the number of a write, before it.
        """
        kind, writes = history(seed)
        one = f"{_PATHS[kind].replace('VERSION', 'v1')}/it"
        self._ask("PATCH", one, {"metadata": {"finalizers": None}}, _MEDIA["merge"])
        self._ask("DELETE", one)
        answers: list[Any] = []
        applied: list[Step] = []
        self.waits = []
        for number, step in enumerate(writes[:steps]):
            wait(number)
            answer = self._take(kind, step)
            if kind == "Deployment" and answer.get("code") == 422:
                break
            answers.append(answer)
            if step.verb == "apply" and not step.subresource:
                applied.append(step)
            self._try_again(kind, one, applied)
        return answers

    def _try_again(self, kind: str, one: str, applied: list[Step]) -> None:
        """Repeat the last applies that would change nothing: a server says the same of each, or it fails."""
        for step in {id(each.body): each for each in applied[-3:]}.values():
            path, manager = one.replace("/v1/", f"/{step.version}/", 1), step.options["fieldManager"]
            live = self._ask("GET", path)
            if not is_applied(live, step.body, manager):
                continue
            self.known += 1
            query = urlencode({"fieldManager": manager, "force": "true", "dryRun": "All"})
            answer = self._ask("PATCH", f"{path}?{query}", step.body, _MEDIA["apply"])
            assert _comparable(answer) | {"warned": []} == _comparable(live) | {"warned": []}, (step, live)

    def prepare(self) -> None:
        """Create the custom kind, and return when its objects can be stored."""
        self._ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition())
        path = _PATHS["Gadget"].replace("VERSION", "v1")
        gadget = {"apiVersion": f"{_GROUP}/v1", "kind": "Gadget", "metadata": {"name": "it"}}
        assert any(self._ask("POST", path, gadget).get("code") != 404 for _ in range(10_000))

    def _take(self, kind: str, step: Step) -> Any:
        path, query, body = _PATHS[kind].replace("VERSION", step.version), urlencode(step.options), step.body
        one = f"{path}/it/{step.subresource}".rstrip("/")
        if step.verb in ("create", "apply"):
            body |= {"apiVersion": path.partition("/namespaces")[0].split("/", 2)[2], "kind": kind}
        match step.verb:
            case "create":
                answer = self._ask("POST", f"{path}?{query}", body)
            case "delete":
                answer = self._ask("DELETE", one)
            case "replace":
                live = self._ask("GET", one)
                answer = live if "code" in live else self._ask("PUT", f"{one}?{query}", _changed(live, body))
            case verb:
                answer = self._ask("PATCH", f"{one}?{query}", body, _MEDIA[verb])
        before, self._version = self._version, answer["metadata"].get("resourceVersion", self._version)
        if step.subresource == "scale" and "code" not in answer:
            answer = {**self._ask("GET", f"{path}/it"), "scale": answer["spec"]}
        times = [entry["time"] for entry in answer["metadata"].get("managedFields", ()) if "time" in entry]
        last, self._time = self._time, max((self._time, *map(datetime.fromisoformat, times)))
        self.waits.append((self._time - last).total_seconds())
        warned = answer["warned"] if kind == "Gadget" else "not known"  # for a kind that is built in
        return _comparable(answer) | {"moved": before != self._version, "warned": warned}

    def _ask(self, method: str, path: str, body: Any = None, media: str = "json") -> Any:
        headers = {**self._headers, "Content-Type": f"application/{media}"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        text = answer.read()
        found = json.loads(text) if text.startswith(b"{") else {"code": answer.status}
        return {**found, "warned": answer.headers.get_all("Warning", [])}


def _changed(live: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    live.pop("warned")
    for holder in change.keys() - {"dropped", "owners"}:
        live[holder] = {**live.get(holder, {}), **change[holder]}
    for holder, name in change.get("dropped", ()):
        live[holder].pop(name)
    if change.get("owners", 1) != 1:
        live["metadata"]["managedFields"] = change["owners"]
    return live


def _comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Without times and versions, and without the order of what the real server takes from Go's maps."""
    if answer["kind"] == "Status":
        details = {key: value for key, value in answer.get("details", {}).items() if key != "uid"}
        details["causes"] = sorted(details.get("causes", ()), key=json.dumps)
        words = sorted(re.split(r"[\n\[\]]|, ", answer.get("message", "")))
        return {**answer, "details": details, "message": words}
    owners = [{**entry, "time": ""} for entry in answer["metadata"].get("managedFields", ())]
    owners.sort(key=lambda entry: json.dumps(entry, sort_keys=True))
    metadata = {key: value for key, value in answer["metadata"].items() if key not in _DRAWN}
    return {**answer, "metadata": metadata, "owners": owners}
