"""Where the cluster comes from: a kubeconfig or a service account, in the order of client-go."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from declctl.errors import UsageError
from declctl.kit.files import read_in_time
from declctl.objects import KubeObject
from declctl.transport.configuration import (
    OfficialConfiguration,
    choose_proxy,
    new_configuration,
)
from declctl.transport.credentials import TOKEN, Login, first_login
from declctl.transport.identity import Identity, token_subject
from declctl.transport.kubeconfig import Kubeconfig
from declctl.transport.kubeconfig_login import KubeconfigLogin
from declctl.transport.service_account import ServiceAccount

_DEFAULT = Path("~/.kube/config")
_NOTHING = (
    "No cluster is configured: there is no kubeconfig (looked at {looked_at}), and this is no pod with a "
    "service account. Give one with --kubeconfig or $KUBECONFIG, or use --sandbox, which needs no cluster."
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster as it was found: its names, its official Configuration, and how to log in again."""

    identity: Identity
    configuration: OfficialConfiguration
    login: Login | None


async def find_cluster(*, kubeconfig: str | None, context: str | None) -> Cluster:
    """The cluster to talk to, logged in.

    In the order of client-go: `kubeconfig`; $KUBECONFIG, of which missing files are ignored; the
    service account of this pod; ~/.kube/config. With a `context` a kubeconfig comes before the
    service account. Raises UsageError with a sentence.
    """
    paths, looked_at = _candidates(kubeconfig)
    found = await asyncio.to_thread(_existing, paths)
    if kubeconfig and not found:
        raise UsageError(f"The kubeconfig {kubeconfig} does not exist.")
    asked_for = bool(kubeconfig or os.environ.get("KUBECONFIG") or context)
    account = ServiceAccount.mounted()
    if found and (asked_for or account is None):
        return await _from_kubeconfig(found, context)
    if account is not None and not context:
        return await _from_service_account(account)
    raise UsageError(_NOTHING.format(looked_at=looked_at))


async def cluster_of(config: KubeObject) -> Cluster:
    """The cluster of a kubeconfig that is a dict."""
    kubeconfig = await asyncio.to_thread(Kubeconfig.of, config)
    return await _logged_in(kubeconfig, KubeconfigLogin(kubeconfig, read=lambda: Kubeconfig.of(config)))


def _candidates(kubeconfig: str | None) -> tuple[Sequence[Path], str]:
    if kubeconfig:
        return [Path(kubeconfig).expanduser()], kubeconfig
    variable = os.environ.get("KUBECONFIG")
    if variable:
        names = [name for name in variable.split(os.pathsep) if name]
        return [Path(name).expanduser() for name in names], f"$KUBECONFIG, {variable}"
    return [_DEFAULT.expanduser()], str(_DEFAULT)


def _existing(paths: Sequence[Path]) -> Sequence[Path]:
    """Those that are there. Blocks; raises UsageError, which names the file that can't be looked at."""
    found: list[Path] = []
    for path in paths:
        try:
            if read_in_time(path, path.exists, name="kubeconfig"):
                found.append(path)
        except OSError as fault:
            raise UsageError(f"The kubeconfig {path} can't be read: {fault.strerror}.") from fault
    return found


async def _from_kubeconfig(paths: Sequence[Path], context: str | None) -> Cluster:
    # In a thread: it imports the official client and reads files, which takes half a second the
    # first time.
    kubeconfig = await asyncio.to_thread(Kubeconfig.read, paths, context=context)
    chosen = kubeconfig.context  # another current-context later on is not for this process
    return await _logged_in(
        kubeconfig, KubeconfigLogin(kubeconfig, read=lambda: Kubeconfig.read(paths, context=chosen))
    )


async def _logged_in(kubeconfig: Kubeconfig, login: KubeconfigLogin) -> Cluster:
    configuration = new_configuration()
    await first_login(login, configuration)
    choose_proxy(configuration)
    identity = Identity(
        context=kubeconfig.context,
        server=configuration.host,
        user=kubeconfig.user,
        namespace=kubeconfig.namespace,
        in_cluster=False,
    )
    return Cluster(identity, configuration, login)


async def _from_service_account(account: ServiceAccount) -> Cluster:
    configuration = await asyncio.to_thread(new_configuration)
    await first_login(account, configuration)
    choose_proxy(configuration)
    identity = Identity(
        context=None,
        server=configuration.host,
        user=token_subject(configuration.api_key.get(TOKEN, "")),
        namespace=account.namespace,
        in_cluster=True,
    )
    return Cluster(identity, configuration, account)
