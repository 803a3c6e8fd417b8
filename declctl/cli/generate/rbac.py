"""`declctl generate rbac`: a ServiceAccount and Roles of exactly the rights that a manifest needs."""

from collections.abc import Sequence

from declctl.cli.generate.objects import place_of, rendered, roles, service_account
from declctl.cli.generate.rights import KubeconfigChoice, planned_controller
from declctl.cli.terminal import block


def show_rbac(
    manifest: str,
    *,
    name: str | None,
    namespace: str,
    definitions: Sequence[str],
    cluster: KubeconfigChoice | None,
    explain: bool,
) -> None:
    """Print the objects. Raises typer.Exit for a manifest with errors, and UsageError."""
    planned = planned_controller(manifest, definitions=definitions, cluster=cluster, namespace=namespace)
    place = place_of(name or planned.plan.name, namespace)
    block(rendered([service_account(place), *roles(place, planned.rights)], explain=explain))
