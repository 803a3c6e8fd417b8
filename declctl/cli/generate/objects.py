"""Objects of Kubernetes as YAML, in an order that stays the same, with comments at rules."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from declctl import __version__
from declctl.cli.generate.rights import GrantedRights, RbacRule
from declctl.errors import UsageError
from declctl.kit.text import one_line, visible
from declctl.manifest.values import BadValue, check_label

_RBAC = "rbac.authorization.k8s.io"
# PyYAML writes these without quotes, and kubectl reads booleans and numbers: a namespace `y`, or `1e3`.
_NO_TEXT_FOR_KUBECTL = re.compile(r"[yYnN]|[-+]?(?:\.\d+|\d+\.?\d*)(?:[eE][-+]?\d+)?|0o[0-7]+")
Document = Mapping[str, Any]


class Place(msgspec.Struct, frozen=True):
    """The name of what is generated, the namespace of the process, and the name of the controller."""

    name: str
    namespace: str
    controller: str

    @property
    def selector(self) -> dict[str, str]:
        """The labels by which pods are found. They never change."""
        return {"app.kubernetes.io/name": self.controller, "app.kubernetes.io/instance": self.name}

    @property
    def labels(self) -> dict[str, str]:
        """The labels of every object."""
        return {
            **self.selector,
            "app.kubernetes.io/part-of": "declctl",
            "app.kubernetes.io/version": __version__,
            "app.kubernetes.io/managed-by": "declctl-generate",
        }

    def metadata(self, name: str | None = None, namespace: str | None = "") -> dict[str, Any]:
        """The metadata of an object, by default with the name, and in the namespace of the process.

        `namespace` None is for one that is in none.
        """
        where = {} if namespace is None else {"namespace": namespace or self.namespace}
        return {"name": name or self.name, **where, "labels": self.labels}


def place_of(name: str | None, namespace: str, controller: str) -> Place:
    """The place of what is generated: by default, its name is that of the controller.

    Raises UsageError for a name that labels, or a Service, can't have.
    """
    name = name or controller
    for text, option in ((name, "--name"), (namespace, "--namespace")):
        try:
            check_label(text)
        except BadValue as error:
            hint = "use lower-case letters, digits and dashes, at most 63 of them"
            raise UsageError(f'{option} "{text}" is no name for these objects: {hint}.') from error
    try:
        check_label(controller)
    except BadValue:  # a longer name, or one with dots: --name stands for it
        controller = name
    return Place(name, namespace, controller)


class Role(msgspec.Struct, frozen=True):
    """A Role or a ClusterRole, whose rules have grounds, and its binding."""

    head: Document
    rules: Sequence[RbacRule]
    binding: Document


def process_namespace(place: Place) -> Document:
    """The namespace of the process, without labels: one that is there stays as it is."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place.namespace}}


def service_account(place: Place) -> Document:
    """The ServiceAccount of the process."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": place.metadata()}


def roles(place: Place, rights: GrantedRights) -> list[Role]:
    """A ClusterRole for what is needed in the whole cluster, and a Role in each other namespace."""
    found: list[Role] = []
    for namespace, rules in rights.rules.items():
        kind = "ClusterRole" if namespace is None else "Role"
        # Two controllers of one name may run in two namespaces, and watch a third one. Names of RBAC may have
        # colons, and names of namespaces have none: with a dash, a-b of c and b-c of a would be one name.
        is_own = namespace == place.namespace
        name = place.name if is_own else f"declctl:{place.namespace}:{place.name}"
        metadata = place.metadata(name, namespace)
        subject = {"kind": "ServiceAccount", "name": place.name, "namespace": place.namespace}
        head = {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": metadata}
        binding = {
            "apiVersion": f"{_RBAC}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": name},
            "subjects": [subject],
        }
        found.append(Role(head, rules, binding))
    return found


def rendered(documents: Iterable[Document | Role], *, explain: bool = False) -> str:
    """The documents as one stream of YAML; with `explain`, with the grounds of each rule above it.

    Every character of it is printable. Texts with others are in quotes, with escapes.
    """
    texts: list[str] = []
    for each in documents:
        if isinstance(each, Role):
            texts += [_role(each, explain=explain), _dumped(each.binding)]
        else:
            texts.append(_dumped(each))
    return "---\n".join(texts)


def _role(role: Role, *, explain: bool) -> str:
    lines = [_dumped(role.head) + "rules:\n"]
    for rule in role.rules:
        if explain:
            # A reason of a plugin is any text, and must not begin a line.
            lines += [f"  # {one_line(ground)}\n" for ground in rule.grounds]
        lines.append(f"  - {_dumped(rule.document(), flow=True)}")
    return "".join(lines)


def _dumped(document: object, *, flow: bool = False) -> str:
    def dump(*, allow_unicode: bool) -> str:
        return yaml.dump(
            document,
            Dumper=_Dumper,
            sort_keys=False,
            default_flow_style=flow,
            width=10_000,
            allow_unicode=allow_unicode,
        )

    text = dump(allow_unicode=True)
    return text if visible(text) == text else dump(allow_unicode=False)


class _Dumper(yaml.SafeDumper):
    """Without anchors, and with texts of several lines as blocks."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - as PyYAML calls it
        """An anchor would show that two objects share a value, which means nothing to a reader."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.Node:
    # A block can't hold some characters; PyYAML then takes quotes by itself.
    style = "|" if "\n" in text else "'" if _NO_TEXT_FOR_KUBECTL.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
