"""`declctl generate rbac`: a ServiceAccount and Roles of exactly the rights that a manifest needs."""

from declctl.cli.generate.objects import Place, rendered, roles, service_account
from declctl.cli.generate.rights import PlannedController
from declctl.cli.terminal import block


def show_rbac(planned: PlannedController, place: Place, *, explain: bool) -> None:
    """Print the objects; with `explain`, with the reasons for each rule."""
    block(rendered([service_account(place), *roles(place, planned.rights)], explain=explain))
