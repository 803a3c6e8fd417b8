"""The namespace of the Lease of an election: known, and never guessed."""

import pytest

from declctl.errors import UsageError
from declctl.manifest.model import LeaderElectionSpec
from declctl.runtime.own_namespace import namespace_of_lease, own_namespace
from declctl.transport.config import Identity

MAP = "configmap/team-b/bundle"


@pytest.mark.parametrize(
    ("in_cluster", "named", "given", "follows", "name", "source"),
    [
        (True, "a", "b", MAP, "a", "that of the manifest"),
        (True, None, "b", MAP, "b", "given by --namespace"),
        (True, None, None, MAP, "own", "that of this pod"),
        (False, None, None, MAP, "team-b", f"that of {MAP}"),
        (False, None, None, None, "", "--namespace NAMESPACE"),
    ],
)
def test_the_namespace_of_a_lease_and_its_source_are_known(
    in_cluster: bool, named: str | None, given: str | None, follows: str | None, name: str, source: str
) -> None:
    """The context of a kubeconfig is where a user looks, and does not say where pods run."""
    who = Identity(context="c", server="s", user=None, namespace="own", in_cluster=in_cluster)
    own = own_namespace(who, given=given, config_map=follows)
    spec = LeaderElectionSpec(enabled=True, namespace=named)
    if not name:
        with pytest.raises(UsageError, match=source):
            namespace_of_lease(spec, own)
        return
    found = namespace_of_lease(spec, own)
    assert (found.name, found.source) == (name, source)
