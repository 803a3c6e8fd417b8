"""Rules for one schema, and why an API server (Kubernetes 1.36) refuses them, if it does."""

from typing import Any, NamedTuple

import yaml

from declctl.objects.schema_marks import VALIDATIONS

_TEXT = "{type: string, maxLength: 9}"
_SCHEMA = f"""
type: object
properties:
  metadata: {{type: object}}
  spec:
    type: object
    properties:
      min: {{type: integer}}
      max: {{type: integer}}
      image: {_TEXT}
      namespace: {_TEXT}
      foo-bar: {_TEXT}
      when: {{type: string, format: date-time}}
      port: {{x-kubernetes-int-or-string: true}}
      tags: {{type: array, maxItems: 5, items: {_TEXT}}}
      sub: {{type: object, nullable: true, properties: {{next: {{type: object, properties: {{a: {_TEXT}}}}}}}}}
      parts: {{type: array, maxItems: 5, items: {{type: object, properties: {{a: {_TEXT}, n: {{type: integer}}}}}}}}
      units:
        type: object
        maxProperties: 5
        additionalProperties: {{type: object, properties: {{n: {_TEXT}}}}}
      any: {{type: object, x-kubernetes-preserve-unknown-fields: true}}
      open: {{x-kubernetes-preserve-unknown-fields: true}}
      pod:
        type: object
        x-kubernetes-embedded-resource: true
        x-kubernetes-preserve-unknown-fields: true
"""  # noqa: E501
_NOT_DESCRIBED = (
    "failed to construct type information for x-kubernetes-validations rules: unable to convert structural "
    "schema to CEL declarations"
)


class RuleCase(NamedTuple):
    """A rule of a value in the schema; `name` is the field of the rule that has the text."""

    text: str
    said: str | None = None  # by a server
    at: str = "spec"
    name: str = "rule"

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of an object, with the rule."""
        schema: dict[str, Any] = yaml.safe_load(_SCHEMA)
        value = schema
        for field in self.at.split(".") if self.at else ():
            value = value["properties"][field]
        value[VALIDATIONS] = [{"rule": "1 < 2\n&& 2 < 3", "message": "no"} | {self.name: self.text}]
        return schema


CASES = (
    RuleCase("self.min <= self.max && self.namespace == self.__namespace__"),
    RuleCase("self.foo__dash__bar == 'a' && self.port == 3 && self.port.foo == 'a'"),
    RuleCase("self.sub == null || self.units['a'].n == self.units.b.n || has(self.any)"),
    RuleCase("self.parts.all(p, has(p.a)) && self.parts.map(p, dyn(p)).all(p, p.foo == 'a')"),
    RuleCase("quantity(self.image).isLessThan(quantity('3')) && self.?min.orValue(3) == 3"),
    RuleCase("type(self.min) == int && self.parts.exists(i, p, p.n == i)"),
    RuleCase("self.metadata.name == self.kind && self.spec.pod.metadata.name == 'a'", at=""),
    RuleCase("self.mni <= self.max", "undefined field 'mni'"),
    RuleCase("self.min == oldSelf.mni", "undefined field 'mni'"),
    RuleCase(
        "has(self.sub.next.b) || self.?mni.orValue(3) > 3", "undefined field 'b'; undefined field 'mni'"
    ),
    RuleCase("quantity(self.iamge).isLessThan(quantity('3'))", "undefined field 'iamge'"),
    RuleCase("self.parts[0].b == 'a' || self.units.x.m == 'a'", "undefined field 'b'; undefined field 'm'"),
    RuleCase("self.parts.filter(p, p.n > 1).exists(i, p, p.b == i)", "undefined field 'b'"),
    RuleCase("self.units.all(k, self.units[k].m == k)", "undefined field 'm'"),
    RuleCase(
        "self.units.all(k, k.foo == 'a') && self.tags[0].a == 'a'",
        "type 'string' does not support field selection; type 'string' does not support field selection",
    ),
    RuleCase(
        "self.when.a == self.tags.a",
        "type 'timestamp' does not support field selection; "
        "type 'list(string)' does not support field selection",
    ),
    RuleCase("self.any.foo == 3 || has(self.open)", "undefined field 'foo'; undefined field 'open'"),
    RuleCase("self.metadata.labels.size() == 2", "undefined field 'labels'", at=""),
    RuleCase("'äö' == self.image\n\t&& sefl.min > 3", "undeclared reference to 'sefl' (in container '')"),
    RuleCase("self.when", "cel expression must evaluate to a bool"),
    RuleCase("self.min", "messageExpression must evaluate to a string", name="messageExpression"),
    RuleCase("'a' + self.iamge", "undefined field 'iamge'", name="messageExpression"),
    RuleCase("", "message must be specified if rule contains line breaks", name="message"),
    RuleCase(".sub['next'].a", name="fieldPath"),
    RuleCase(".sub.nxet", "must be a valid path", name="fieldPath"),
    RuleCase(
        "self.min = 3",
        "Syntax error: token recognition error at: '= '; Syntax error: extraneous input '3' expecting <EOF>",
    ),
    RuleCase("self.size() == 3", _NOT_DESCRIBED, at="spec.open"),
)
