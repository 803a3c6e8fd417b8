"""The names that Kubernetes and declctl allow, and what a wrong one was probably meant to be."""

import re

from declctl.manifest.values import BadValue

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_OBJECT = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.:]*[A-Za-z0-9])?", re.ASCII)
_INDEX = re.compile(r"[A-Za-z]([-A-Za-z0-9_]{0,61}[A-Za-z0-9])?", re.ASCII)
_PLUGIN = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,126}[A-Za-z0-9])?", re.ASCII)
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}", re.ASCII)
_VERSION = re.compile(r"v[0-9]+((alpha|beta)[0-9]+)?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def check_label(text: str) -> None:
    """A DNS-1123 label, as names of resources and handlers are: lower case, digits and dashes, at most 63."""
    if not _LABEL.fullmatch(text):
        raise _bad(
            text,
            "use lower-case letters, digits and dashes, at most 63 of them",
            fixed=_as_label(text),
        )


def check_namespace(text: str) -> None:
    """The name of a namespace, or `*` for all of them."""
    if text != "*":
        check_label(text)


def check_subdomain(text: str) -> None:
    """A DNS-1123 subdomain, as names of most objects are: labels with dots between, at most 253 long."""
    if len(text) > 253 or not _SUBDOMAIN.fullmatch(text):
        raise _bad(text, "use lower-case letters, digits, dashes and dots", fixed=_as_label(text))


def check_object_name(text: str) -> None:
    """The name of any object: those of roles have colons and capitals too (`system:node`)."""
    if len(text) > 253 or not _OBJECT.fullmatch(text):
        raise _bad(text, "use the name that kubectl shows", fixed=None)


def check_file_name(text: str) -> None:
    """A path that a system can have."""
    if "\0" in text:
        raise _bad(text.replace("\0", "\N{REPLACEMENT CHARACTER}"), "remove the zero byte", fixed=None)


def check_index_name(text: str) -> None:
    """The name of an index: letters, digits, dashes and underscores, a letter first."""
    if not _INDEX.fullmatch(text):
        raise _bad(text, "use letters and digits, as in byNode", fixed=None)


def check_plugin_name(text: str) -> None:
    """The name of an entry point in the group `declctl`."""
    if not _PLUGIN.fullmatch(text):
        raise _bad(text, "use the name that `declctl plugins list` shows", fixed=None)


def check_kind(text: str) -> None:
    """A kind: CamelCase, singular."""
    if _KIND.fullmatch(text):
        return
    fixed = text[:1].upper() + text[1:]
    raise _bad(
        text,
        "kinds are written in CamelCase, such as ConfigMap",
        fixed=fixed if _KIND.fullmatch(fixed) else None,
    )


def check_api_version(text: str) -> None:
    """`v1`, or a group and a version such as `apps/v1`; versions of custom resources may be any label."""
    group, slash, version = text.rpartition("/")
    if not slash and _VERSION.fullmatch(version):
        return
    is_swapped = _VERSION.fullmatch(group) is not None
    if slash and _SUBDOMAIN.fullmatch(group) and _LABEL.fullmatch(version) and not is_swapped:
        return
    advice = 'write "v1", or group and version such as "apps/v1"'
    if is_swapped:
        advice = f'did you mean "{version}/{group}"?'
    raise BadValue(f'"{text}" is not an apiVersion', suggestion=advice)


def check_variable(text: str) -> None:
    """The name of an environment variable."""
    if not _VARIABLE.fullmatch(text):
        raise _bad(text, "use letters, digits and underscores, without $ and braces", fixed=None)


def _as_label(text: str) -> str | None:
    fixed = re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", text).lower()).strip("-")
    return fixed if _LABEL.fullmatch(fixed) else None


def _bad(text: str, rule: str, *, fixed: str | None) -> BadValue:
    if "${" in text:
        rule = "for an environment variable write ${env:NAME}"
        fixed = None
    suggestion = rule if fixed is None else f'did you mean "{fixed}"? Rule: {rule}'
    return BadValue(f'"{text}" is not a valid name', suggestion=suggestion)
