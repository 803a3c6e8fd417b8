"""Running in a pod: the service account that the kubelet mounts, read by the official loader.

Its token is projected and rotates, and so may its CA: both are read again every minute.
"""

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

from declctl.errors import UsageError
from declctl.transport.configuration import OfficialConfiguration, new_configuration, take_token

FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
FOLDER_VARIABLE = "DECLCTL_SERVICE_ACCOUNT_DIR"
_ADDRESS = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
_PERIOD = timedelta(minutes=1)


class ServiceAccount:
    """A `Login` with the files of a service account."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def mounted(cls) -> "ServiceAccount | None":
        """The one of this pod; None outside of a cluster (client-go's ErrNotInCluster)."""
        folder = Path(os.environ.get(FOLDER_VARIABLE) or FOLDER)
        here = all(os.environ.get(name) for name in _ADDRESS) and (folder / "token").is_file()
        return cls(folder) if here else None

    @property
    def namespace(self) -> str | None:
        """The namespace of the pod."""
        try:
            return (self._folder / "namespace").read_text(encoding="utf-8").strip() or None
        except OSError:
            return None

    async def load(self, configuration: OfficialConfiguration, *, afresh: bool) -> None:  # noqa: ARG002
        """Read token and CA, `afresh` or not; raises UsageError when they can't be used."""
        # Late: see `configuration`.
        from kubernetes.aio.config import ConfigException
        from kubernetes.aio.config.incluster_config import InClusterConfigLoader

        token, authority = str(self._folder / "token"), str(self._folder / "ca.crt")
        found = new_configuration()
        try:
            InClusterConfigLoader(token, authority, environ=os.environ).load_and_set(cast("Any", found))
        except (ConfigException, OSError, UnicodeDecodeError) as fault:
            raise UsageError(f"The service account in {self._folder} can't be used: {fault}") from fault
        configuration.host = found.host
        configuration.ssl_ca_cert = found.ssl_ca_cert
        take_token(configuration, found)

    def good_for(self, now: datetime) -> timedelta:  # noqa: ARG002
        """A minute, as the official loader has it."""
        return _PERIOD
