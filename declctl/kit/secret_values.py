"""The values of Secrets that code of this process has read or written: no text that is shown has them.

An exception of a handler may quote what the handler has read, and the refusal of a server what was written.
So each Secret that is decoded for a reader, and each that passes a client, leaves its values here. Texts of
exceptions and lines of the log are searched for them, as CI systems do.

Short values are left out, as they would hide harmless words.
"""

import base64
import binascii
import json
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any, Final, cast
from urllib.parse import quote, quote_plus

HIDDEN: Final = "(hidden)"
"""Stands for a value of a Secret."""

SHORTEST: Final = 6
"""Characters of the shortest value that is hidden."""

_FIELDS = ("data", "stringData")
_MOST_VALUES = 4096  # that are remembered
_MOST_BYTES = 4 << 20  # of them
_MOST_SECRETS = 1024  # whose values are known to be remembered; the oldest one makes room


class SecretValues:
    """Remembers values of Secrets, and hides them in texts. From any thread.

    Of too many values, those that were remembered first are forgotten, but for those that were kept.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, None] = {}  # in the order in which they came
        self._bytes = 0
        self._kept: dict[str, None] = {}
        # Hashes of the values of one Secret that are all there. A resource version would not do in their
        # place: a reloaded transform makes other values of the same version.
        self._seen: dict[int, None] = {}

    def remember(self, secret: Mapping[str, Any]) -> None:
        """Remember the values of a Secret, or of a part of it."""
        values = tuple(_values(secret))
        if not values:
            return
        seen = hash(values)
        with self._lock:
            if seen in self._seen:
                return
            for form in _forms(values):
                if form not in self._values:
                    self._values[form] = None
                    self._bytes += len(form)
            while len(self._values) > _MOST_VALUES or self._bytes > _MOST_BYTES:
                oldest = next(iter(self._values))
                del self._values[oldest]
                self._bytes -= len(oldest)
                self._seen.clear()  # a Secret that has lost values is remembered again when it is read
            self._seen[seen] = None
            if len(self._seen) > _MOST_SECRETS:
                del self._seen[next(iter(self._seen))]

    def remember_request(self, document: object) -> None:
        """Remember the values in the body or the answer of a request about Secrets.

        It is decoded JSON: a Secret, a list of them, a merge patch, or a JSON patch.
        """
        if isinstance(document, Mapping):
            fields = cast("Mapping[str, Any]", document)
            self.remember(fields)
            items = fields.get("items")
            for each in cast("list[Any]", items) if isinstance(items, list) else ():
                if isinstance(each, Mapping):
                    self.remember(cast("Mapping[str, Any]", each))
        elif isinstance(document, list):
            for each in cast("list[Any]", document):
                if not isinstance(each, Mapping):
                    continue
                change = cast("Mapping[str, Any]", each)
                value = change.get("value")
                name = str(change.get("path")).partition("/")[2].partition("/")[0]
                if name:  # a path such as /data/password, whose value is one of the field
                    self.remember({name: value})
                elif isinstance(value, Mapping):
                    self.remember(cast("Mapping[str, Any]", value))

    def keep(self, secret: Mapping[str, Any]) -> None:
        """Remember the values of a Secret, or of a part of it, until the process ends.

        That is for a Secret that is read once and used for ever, such as that of a config.
        """
        with self._lock:
            self._kept.update(dict.fromkeys(_forms(tuple(_values(secret)))))

    def hide(self, text: str) -> str:
        """The text with `(hidden)` in the place of each remembered value."""
        if not self._values and not self._kept:
            return text
        with self._lock:
            found = [value for value in chain(self._kept, self._values) if value in text]
        for value in sorted(found, key=len, reverse=True):  # one value may be a part of another
            text = text.replace(value, HIDDEN)
        return text


secret_values: Final = SecretValues()
"""Those of this process."""


LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""The annotation in which `kubectl apply` keeps the whole object, of a Secret too."""


def without_values(obj: dict[str, Any]) -> dict[str, Any]:
    """The object itself, with `(hidden)` for each value if it is a Secret. Changes the object."""
    if not is_secret(str(obj.get("apiVersion")), str(obj.get("kind"))):
        return obj
    for name in _FIELDS:
        values = obj.get(name)
        if isinstance(values, Mapping):
            obj[name] = dict.fromkeys(values, HIDDEN)
        elif values is not None:
            obj[name] = HIDDEN
    hide_last_applied(obj)
    return obj


def hide_last_applied(obj: Mapping[str, Any]) -> None:
    """Hide the annotation of `kubectl apply`, which has all values of a Secret. Changes the object."""
    metadata = obj.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if isinstance(annotations, dict) and LAST_APPLIED in annotations:
        annotations[LAST_APPLIED] = HIDDEN


def is_secret(api_version: str, kind: str) -> bool:
    """Whether objects of a kind are Secrets."""
    return kind == "Secret" and api_version == "v1"


def _values(secret: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """The texts and numbers of a Secret, each with the name of its field.

    A server that refuses a number, or a value at a wrong depth, quotes it.
    """
    for name in _FIELDS:
        waiting = [secret.get(name)]
        while waiting:
            value = waiting.pop()
            if isinstance(value, Mapping):
                waiting += cast("Mapping[str, Any]", value).values()
            elif isinstance(value, list):
                waiting += cast("list[Any]", value)
            elif isinstance(value, str | int | float):
                yield name, str(value)


def _forms(values: Iterable[tuple[str, str]]) -> Iterable[str]:
    """The texts in which the values of a Secret may appear: encoded, decoded, by lines, and escaped."""
    for name, value in values:
        yield from _escaped(value)
        if name != "data":
            # As the server stores it, and shows it to admission.
            yield from _escaped(base64.b64encode(value.encode("utf-8", "replace")).decode())
            continue
        try:
            yield from _escaped(base64.b64decode(value, validate=True).decode("utf-8"))
        except (binascii.Error, ValueError):
            continue  # bytes that are no text, or no base64


def _escaped(value: str) -> Iterable[str]:
    # A text of several lines, as a key in PEM, appears with other line ends, or in parts.
    for line in (value, *value.splitlines()):
        line = line.strip()  # noqa: PLW2901 - the line of the log may have other spaces
        if len(line) >= SHORTEST:
            yield line
            in_json = (json.dumps(line), json.dumps(line, ensure_ascii=False))
            # Also JSON in JSON, such as a file in a ConfigMap.
            quoted = (
                *(repr(line), repr(line.encode("utf-8", "replace"))[1:], *in_json),
                *(json.dumps(each[1:-1], ensure_ascii=False) for each in in_json),
            )
            # In a path, in a query and in a form.
            in_url = [each(line, errors="replace") for each in (quote, partial(quote, safe=""), quote_plus)]
            for escaped in {*(each[1:-1] for each in quoted), *in_url}:
                if escaped != line:
                    yield escaped
