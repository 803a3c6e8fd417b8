"""What is documented and not done yet is refused, each feature with a code of its own."""

import pytest

HANDLER = (
    "resources: [{name: pods, apiVersion: v1, kind: Pod}]\n"
    "handlers: [{name: a, resourceRef: {name: pods}, entryPoint: m, %s}]"
)
RESOURCE = "resources: [{name: pods, apiVersion: v1, kind: Pod, %s}]"


@pytest.mark.parametrize(
    ("fragment", "code"),
    [
        ("plugins: [{name: p, configFrom: [{name: t, §secretKeyRef: {name: s, key: k}}]}]", "DCL072"),
        ("§sharding: {replicas: 3}", "DCL074"),
    ],
)
def test_what_is_not_done_yet_is_refused(only_fault, fragment, code):
    """A documented feature that would do nothing is an error, and says where its workaround stands."""
    fault = only_fault(fragment)
    assert fault.code == code
    assert "not done yet by this version" in fault.message
    assert fault.suggestion.endswith(f"`declctl explain {code}` says what to do meanwhile")


@pytest.mark.parametrize(
    "fragment",
    [
        HANDLER % "mode: Event",
        HANDLER % "filter: {}",
        HANDLER % "debounce: 0s",
        HANDLER % "debounce: 500ms",
        HANDLER % "queue: {name: default, concurrency: 2}",
        HANDLER % "queue: {name: slow, concurrency: 2}",
        HANDLER % "onFailure: Retry",
        HANDLER % "onFailure: Ignore, retry: {maxAttempts: 3}",
        HANDLER % "onFailure: DeadLetter, retry: {maxAttempts: 3}",
        HANDLER % "onFailure: DeadLetter, mode: Reconcile",
        HANDLER % "replay: Never",
        "schedules: []",
        "leaderElection: {enabled: no}",
        "metrics: {bindAddress: 127.0.0.1:8081}",
        "admin: {bindAddress: ':9000'}\nmetrics: {bindAddress: ':9000'}",
        "admin: {bindAddress: ':9000'}\nmetrics: {bindAddress: '127.0.0.1:9000'}",
        "admin: {bindAddress: '127.0.0.1:9000'}\nmetrics: {bindAddress: '10.0.0.5:9000'}",
        "admin: {bindAddress: ':0'}\nmetrics: {bindAddress: ':0'}",
        "metrics: {}",
        "reload: {probationPeriod: 0s}",
        "sharding: {}",
    ],
)
def test_what_equals_the_default_is_fine(faults, fragment):
    """Values that ask for what happens anyway are accepted."""
    assert faults(fragment) == ()


@pytest.mark.parametrize(
    "fragment",
    [
        "metrics: {bindAddress: §'0.0.0.0:8081'}",
        "admin: {bindAddress: '[::1]:9000'}\nmetrics: {bindAddress: §'[::]:9000'}",
    ],
)
def test_a_metrics_address_that_takes_the_admin_port_is_refused(only_fault, fragment):
    """The start would end with an address in use, and blame another process."""
    fault = only_fault(fragment)
    assert fault.code == "DCL017"
    assert "which includes the admin address" in fault.message


@pytest.mark.parametrize("policy", ["Ignore", "DeadLetter"])
def test_what_follows_the_last_attempt_needs_one(only_fault, policy):
    """A change would be tried again for ever, against what is written."""
    for retry in ("", ", retry: {maxBackoff: 1m}"):
        fault = only_fault(HANDLER % f"onFailure: §{policy}{retry}")
        assert (fault.code, fault.severity) == ("DCL017", "error")
        assert f"onFailure is {policy}, and" in fault.message
        assert "tried again until the handler succeeds" in fault.message
        assert "retry: {maxAttempts: 5}" in fault.suggestion


def test_a_dead_letter_of_an_event_handler_needs_a_last_attempt(only_fault):
    """Terminal ends the attempts of a reconciler alone: for an event handler, no letter would ever come."""
    fault = only_fault(HANDLER % "mode: Event, onFailure: §DeadLetter")
    assert fault.code == "DCL017"
