"""Running in a pod: the service account that the kubelet mounts, read by the official loader.

Its token is projected and rotates, and so may its CA: both are read again every minute.
"""

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from declctl.errors import UsageError

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

    async def load(self, configuration: Any, *, afresh: bool) -> None:  # noqa: ARG002
        """Read token and CA, `afresh` or not; raises UsageError when they can't be used."""
        # Late: the official client costs half a second, and `import declctl.transport` shall not.
        from kubernetes.aio.client.configuration import Configuration
        from kubernetes.aio.config import ConfigException
        from kubernetes.aio.config.incluster_config import InClusterConfigLoader

        read: Any = Configuration()
        try:
            InClusterConfigLoader(
                token_filename=str(self._folder / "token"),
                cert_filename=str(self._folder / "ca.crt"),
                environ=os.environ,
            ).load_and_set(read)
        except (ConfigException, OSError, UnicodeDecodeError) as fault:
            raise UsageError(f"The service account in {self._folder} can't be used: {fault}") from fault
        configuration.host = read.host
        configuration.ssl_ca_cert = read.ssl_ca_cert
        configuration.api_key.update({name: token.strip() for name, token in read.api_key.items()})

    def good_for(self, now: datetime) -> timedelta:  # noqa: ARG002
        """A minute, as the official loader has it."""
        return _PERIOD
