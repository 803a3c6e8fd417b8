"""The values of Secrets in the configs of plugins (`configFrom`, `secretKeyRef`).

A manifest is checked without a cluster, so a `Declaration` lacks these values. They are read when a
generation is staged, before its code is imported, with the rights of the process. From then on they are
hidden in texts, as the values of Secrets that handlers read.
"""

import base64
import binascii
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from declctl.codes import FORBIDDEN, SECRET_VALUE
from declctl.errors import ApiError, Forbidden, ManifestErrors, NotFound, Unauthorized
from declctl.kit.secret_values import HIDDEN, secret_values
from declctl.kit.text import one_line
from declctl.manifest.rights import SECRETS
from declctl.manifest.values import FrozenJson
from declctl.objects import KubeObject
from declctl.objects.refusals import granting_command
from declctl.runtime.checking.check import CheckResult, diagnose
from declctl.runtime.checking.declaration import DeclaredPlugin, Fault, SecretKey

Request = Callable[[str, str], Awaitable[KubeObject]]
"""Sends a request of a method to a path; raises ApiError."""


class UnreadSecretKey(Exception):
    """The value of a key of a Secret can't be read.

    `code` is FORBIDDEN or SECRET_VALUE, and `field` that of `secretKeyRef` which is at fault.
    """

    def __init__(self, code: str, message: str, suggestion: str, *, field: str = "name") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.suggestion = suggestion
        self.field = field


class SecretReader:
    """Reads keys of the Secrets of one namespace. Each Secret is read once: its values are of one version."""

    def __init__(self, request: Request, namespace: str) -> None:
        self._request = request
        self._namespace = namespace
        self._read: dict[str, KubeObject | ApiError] = {}  # by the name of the Secret

    async def value(self, secret: SecretKey) -> str:
        """The value of a key as text, without line ends at its end, as that of a file of `configFrom`.

        The value is hidden in texts from now on. Raises UnreadSecretKey.
        """
        if secret.name not in self._read:
            try:
                found = await self._request("GET", SECRETS.path(self._namespace, secret.name))
            except ApiError as error:
                self._read[secret.name] = error
            else:
                self._read[secret.name] = found
        found = self._read[secret.name]
        if isinstance(found, ApiError):
            raise self._fault(secret, found) from found
        return self._decoded(secret, found.get("data") or {})

    def _decoded(self, secret: SecretKey, data: Mapping[str, Any]) -> str:
        what = f"the Secret {self._namespace}/{secret.name}"
        if secret.key not in data:
            there = ", ".join(sorted(data)) or "none"
            message = f"{what} has no key {secret.key}"
            raise UnreadSecretKey(SECRET_VALUE, message, f"add the key; its keys are: {there}", field="key")
        secret_values.keep({"data": {secret.key: data[secret.key]}})
        try:
            return base64.b64decode(str(data[secret.key]), validate=True).decode("utf-8").rstrip("\n")
        except (binascii.Error, UnicodeDecodeError):
            # The reason of a UnicodeDecodeError quotes bytes of the value, and so does its traceback.
            message = f"the key {secret.key} of {what} is not UTF-8"
            advice = "name a key whose value is text"
            raise UnreadSecretKey(SECRET_VALUE, message, advice, field="key") from None

    def _fault(self, secret: SecretKey, error: ApiError) -> UnreadSecretKey:
        where = f"{self._namespace}/{secret.name}"
        if isinstance(error, NotFound):
            create = (
                f"`kubectl create secret generic {secret.name} --namespace {self._namespace} "
                f"--from-file {secret.key}=FILE`"
            )
            message = f"the Secret {where} is not in the cluster"
            return UnreadSecretKey(SECRET_VALUE, message, f"create it: {create}")
        if isinstance(error, Forbidden | Unauthorized):
            message = f"the Secret {where} may not be read: {one_line(str(error))}"
            return UnreadSecretKey(FORBIDDEN, message, self._grant(secret, str(error)))
        message = f"the Secret {where} can't be read: {one_line(str(error))}"
        return UnreadSecretKey(SECRET_VALUE, message, "check that the API server answers")

    def _grant(self, secret: SecretKey, refusal: str) -> str:
        command = granting_command(refusal)
        if command is not None:
            return f"grant it: `{command}`"
        rule = f'apiGroups: [""], resources: ["secrets"], resourceNames: ["{secret.name}"], verbs: ["get"]'
        return f"grant it by a Role of the namespace {self._namespace} with the rule {{{rule}}}"


class ConfigSecrets:
    """Puts the values of Secrets into the configs of a declaration. Used on the machinery loop.

    - `request`: sends requests; None for a replay, which has `(hidden)` for each value.
    - `namespace`: that of the process: of its pod, or of the context of the kubeconfig.
    """

    def __init__(self, request: Request | None, namespace: str) -> None:
        self._request = request
        self._namespace = namespace

    async def read(self, checked: CheckResult) -> CheckResult:
        """A copy whose configs are complete; the same if they are. Values that are there are not read again.

        Raises ManifestErrors with a fault for each value that can't be read.
        """
        declaration, inputs = checked.declaration, checked.inputs
        if declaration is None or inputs is None or not any(each.unread for each in declaration.plugins):
            return checked
        reader = None if self._request is None else SecretReader(self._request, self._namespace)
        faults = list[Fault]()
        plugins = [await _complete(plugin, reader, faults) for plugin in declaration.plugins]
        if faults:
            raise ManifestErrors(diagnose(faults, inputs.loaded.document, inputs.bundle))
        return replace(checked, declaration=msgspec.structs.replace(declaration, plugins=tuple(plugins)))


async def _complete(
    plugin: DeclaredPlugin, reader: SecretReader | None, faults: list[Fault]
) -> DeclaredPlugin:
    """The plugin with the values of its Secrets. What can't be read is added to `faults`."""
    values: dict[str, str] = {}
    for source in plugin.unread:
        assert source.secret is not None
        try:
            values[source.name] = _hidden_value() if reader is None else await reader.value(source.secret)
        except UnreadSecretKey as unread:
            path = (*source.path, "secretKeyRef", unread.field)
            message = f"{plugin.name}: config.{source.name}: {unread.message}"
            faults.append(Fault(unread.code, message, path, unread.suggestion))
    if not values:
        return plugin
    config = FrozenJson.of({**json.loads(plugin.config), **values})
    return msgspec.structs.replace(plugin, config=config.canonical)


def _hidden_value() -> str:
    """A value of a replay. Texts that quote it, in any form, are as those that have quoted the value."""
    secret_values.keep({"stringData": {"": HIDDEN}})
    return HIDDEN


def has_other_secrets(checked: CheckResult, configs: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a value of a Secret differs from the one in `configs`, which are complete, by plugin."""
    plugins = checked.declaration.plugins if checked.declaration is not None else ()
    for plugin in plugins:
        names = [source.name for source in plugin.sources if source.secret is not None]
        if names:
            config, before = json.loads(plugin.config), configs.get(plugin.name, {})
            if any(config.get(name) != before.get(name) for name in names):
                return True
    return False
