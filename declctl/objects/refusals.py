"""What RBAC says when it refuses a request, and the command that grants it."""

import re
from typing import Final

_ACCOUNT: Final = re.compile(r'User "system:serviceaccount:([^":]+):([^":]+)" cannot ')


def granting_command(message: str) -> str | None:
    """The command that gives the ServiceAccount of a refused request the rights of its manifest.

    None if the message is not one of RBAC, or the user is no ServiceAccount: their rights have other owners.
    """
    found = _ACCOUNT.search(message)
    if found is None:
        return None
    namespace, name = found.groups()
    return (
        f"declctl generate rbac MANIFEST --namespace {namespace} --name {name} | "
        "kubectl apply --server-side -f -"
    )
