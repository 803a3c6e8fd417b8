"""The election of a leader in a manifest: values, defaults, and times that contradict each other."""

import pytest

from declctl.manifest import explain
from declctl.manifest.model import Followers, LeaderElectionSpec
from declctl.manifest.values import parse_duration


def test_everything_that_can_be_said(loaded):
    """Durations are seconds; the names are those of the Lease."""
    found = loaded(
        """
        leaderElection: {enabled: true, leaseDuration: 30s, renewDeadline: 20s, retryPeriod: 1500ms,
                         followers: Cold, leaseName: web.example.dev, namespace: team-a}
        """
    ).controller.leader_election
    assert found == LeaderElectionSpec(True, 30.0, 20.0, 1.5, Followers.COLD, "web.example.dev", "team-a")


def test_without_a_word_there_is_no_election(loaded):
    """And with `enabled` alone, the times are those of client-go."""
    assert not loaded("resources: []").controller.leader_election.enabled
    found = loaded("leaderElection: {enabled: true}").controller.leader_election
    assert (found.lease_duration, found.renew_deadline, found.retry_period) == (15.0, 10.0, 2.0)
    assert (found.followers, found.lease_name, found.namespace) == (Followers.WARM, None, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("leaseDuration", LeaderElectionSpec().lease_duration),
        ("renewDeadline", LeaderElectionSpec().renew_deadline),
        ("retryPeriod", LeaderElectionSpec().retry_period),
    ],
)
def test_documented_times_are_the_real_ones(field, value):
    """What `explain` calls the default is what happens."""
    assert parse_duration(explain(f"spec.leaderElection.{field}").default) == value


@pytest.mark.parametrize(
    ("times", "suggestion"),
    [
        ("leaseDuration: §10s", "leaseDuration (15s if absent) has to be longer than renewDeadline (10s if"),
        ("renewDeadline: §15s", "leaseDuration (15s if absent) has to be longer than renewDeadline (10s if"),
        ("leaseDuration: 5s, renewDeadline: §6s", "leaseDuration (15s if absent) has to be longer"),
        ("retryPeriod: §9s", "renewDeadline (10s if absent) has to be longer than 1.2 times retryPeriod"),
        ("renewDeadline: §2s", "renewDeadline (10s if absent) has to be longer than 1.2 times retryPeriod"),
        ("renewDeadline: 6s, retryPeriod: §5s", "renewDeadline (10s if absent) has to be longer than 1.2"),
    ],
)
def test_times_that_contradict_each_other(only_fault, times, suggestion):
    """client-go 2.17.273: the leader has to stop before another process can begin. With defaults, too."""
    fault = only_fault(f"leaderElection: {{enabled: true, {times}}}")
    assert fault.code == "DCL017"
    assert fault.suggestion.startswith(suggestion)


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("leaseDuration: §500ms", "DCL030"),
        ("followers: §Hot", "DCL013"),
        ("leaseName: §Web_1", "DCL035"),
        ("namespace: §'*'", "DCL035"),
        ("§leaseduration: 10s", "DCL012"),
    ],
)
def test_values_that_are_none(only_fault, field, code):
    """Each is shown where it stands, also while the election is off."""
    assert only_fault(f"leaderElection: {{enabled: false, {field}}}").code == code
