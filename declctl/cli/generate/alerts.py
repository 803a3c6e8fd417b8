"""`declctl generate alerts`: rules for Prometheus about what a person on call has to know of a controller.

An alert is about a state that lasts and that hurts somebody, and names what to do; `docs/operations.md` has a
section for each. Conditions and the problems of handlers come from `declctl.runtime.reasons`. What is only
interesting is on the dashboard.
"""

from typing import Any, Final

import msgspec

from declctl.cli.generate.objects import Document, Place, place_of, rendered
from declctl.cli.terminal import block
from declctl.runtime.reasons import DEGRADED, FILES_FOLLOWED, READY, RELOADED, fault_reasons

RUNBOOK: Final = "https://declctl.dev/docs/operations.md"
"""The page with a section for each alert."""
_GROUP: Final = "declctl"
_CRITICAL: Final = "critical"  # handlers do not act: somebody has to look now
_EXPLAINED: Final = (
    "`declctl status` names what it is about, and `declctl explain {{ $labels.reason }}` what to do."
)


class Alert(msgspec.Struct, frozen=True):
    """One alert. `{job}` in `expr` becomes the matcher of the job; texts may have labels of the metric."""

    name: str
    expr: str
    lasts: str  # how long the expression has to hold: longer than a restart or a reload
    summary: str
    remedy: str
    severity: str = "warning"

    def document(self, job: str, runbook: str) -> dict[str, Any]:
        """As Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": self.expr.replace("{job}", f'job="{job}"'),
            "for": self.lasts,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.remedy,
                "runbook_url": f"{runbook}#{self.name.lower()}",
            },
        }


def _condition(name: str, selected: str, lasts: str, summary: str, severity: str = "warning") -> Alert:
    """An alert on a condition of the process; `selected` are matchers of `declctl_condition`."""
    return Alert(name, f"declctl_condition{{{{job}},{selected}}} == 1", lasts, summary, _EXPLAINED, severity)


def _unhealthy(reason: str) -> str:
    return f'declctl_handler_unhealthy{{{{job}},reason="{reason}"}} > 0'


ALERTS: Final = (
    Alert(
        "DeclctlAbsent",
        "absent(declctl_generation{{job}})",
        "5m",
        "No process of the controller is scraped.",
        "See the pods of its Deployment, and whether Prometheus may reach their metrics.",
        _CRITICAL,
    ),
    _condition(
        "DeclctlNotReady",
        f'type="{READY}",status="False"',
        "10m",
        "Caches are not filled ({{ $labels.reason }}): handlers that read them wait.",
        _CRITICAL,
    ),
    _condition(
        "DeclctlDegraded",
        f'type="{DEGRADED}",status="True",reason!~"WriteLoop|FinalizersLeft|FileWatchFailed"',
        "5m",
        "{{ $labels.reason }}: handlers do not receive or do not handle changes.",
        _CRITICAL,
    ),
    _condition(
        "DeclctlWriteLoop",
        f'type="{DEGRADED}",reason="WriteLoop"',
        "5m",
        "A handler writes an object again and again.",
    ),
    _condition(
        "DeclctlFinalizersLeft",
        f'type="{DEGRADED}",reason="FinalizersLeft"',
        "15m",
        "Objects can't be deleted: they have a finalizer that the manifest lacks.",
    ),
    _condition(
        "DeclctlEditNotLive",
        f'type="{RELOADED}",status="False"',
        "10m",
        "The files are not what runs ({{ $labels.reason }}): the code before goes on.",
    ),
    _condition(
        "DeclctlEditsNotSeen",
        f'type=~"{FILES_FOLLOWED}|{DEGRADED}",'
        f'reason=~"{"|".join([*fault_reasons(FILES_FOLLOWED), "FileWatchFailed"])}"',
        "5m",
        "No edit of the files arrives ({{ $labels.reason }}): the last files go on.",
    ),
    Alert(
        "DeclctlHandlerSuspended",
        _unhealthy("HandlerSuspended"),
        "2m",
        "{{ $labels.handler }} is not called any more: {{ $value }} of its calls do not return.",
        "The log names the calls. It goes on when one of them returns, or when its code is edited.",
        _CRITICAL,
    ),
    Alert(
        "DeclctlCallHangs",
        _unhealthy("CallHangs"),
        "2m",
        "{{ $value }} calls of {{ $labels.handler }} have not returned for five minutes or more.",
        "`declctl status` names the key. Set a `timeout`, and give its requests time limits.",
    ),
    Alert(
        "DeclctlHandlerFails",
        _unhealthy("CallsFail"),
        "5m",
        "All calls of {{ $labels.handler }} fail: {{ $value }} in a row.",
        "`declctl status` has the last error, and the log the traceback.",
        _CRITICAL,
    ),
    Alert(
        "DeclctlKeysFail",
        f"{_unhealthy('KeysFail')} unless on (job, instance, handler) {_unhealthy('CallsFail')}",
        "5m",
        "{{ $value }} keys of {{ $labels.handler }} have failed for five minutes or more; others succeed.",
        "`declctl status` names the key that has failed for the longest time.",
    ),
    Alert(
        "DeclctlDeadLetters",
        "declctl_handler_dead_letters{{job}} > 0",
        "5m",
        "{{ $labels.handler }} has given up {{ $value }} keys, which wait for somebody.",
        "`declctl get deadletters` lists them with their errors, and `declctl requeue` queues them again.",
    ),
    Alert(
        "DeclctlHandlerLate",
        "histogram_quantile(0.95, sum by (job, handler, le) "
        "(rate(declctl_event_lag_seconds_bucket{{job}}[10m]))) > 120",
        "15m",
        "Changes wait for {{ $labels.handler }} for longer than two minutes.",
        "Make the handler faster, or raise queue.concurrency; `declctl get queue` lists what waits.",
    ),
    Alert(
        "DeclctlZombies",
        f"declctl_zombie_invocations{{{{job}}}} > 0 unless on (job, instance) {_unhealthy('CallHangs')}",
        "15m",
        "{{ $value }} calls do not return, and are not waited for: of a schedule, or of the code of an edit.",
        "`declctl status` names them. Mend their code; a new process frees their threads.",
    ),
    Alert(
        "DeclctlScheduleFails",
        "declctl_schedule_fails{{job}} == 1",
        "15m",
        "The last call of the schedule {{ $labels.schedule }} has failed.",
        "`declctl status` has the error; `declctl trigger` calls it now.",
    ),
    Alert(
        "DeclctlNoLeader",
        "sum by (job, name) (leader_election_master_status{{job}}) == 0",
        "2m",
        "No process holds the Lease {{ $labels.name }}: no handler is called.",
        "`declctl status` of each process says why it does not lead.",
        _CRITICAL,
    ),
    Alert(
        "DeclctlLeaderChanges",
        "increase(declctl_leader_transitions_total{{job}}[1h]) > 3",
        "5m",
        "The Lease {{ $labels.name }} goes from process to process.",
        "See why renewals are late: the API server, or processors that are too busy.",
    ),
    Alert(
        "DeclctlSlotsUnhandled",
        "sum by (job, name) (declctl_slots_handled{{job}}) < max by (job, name) (declctl_slots{{job}})",
        "5m",
        "Only {{ $value }} slots of {{ $labels.name }} are handled: the objects of the others wait.",
        "`declctl status` of each process says which slots it handles, and why it takes no others.",
        _CRITICAL,
    ),
    Alert(
        "DeclctlPluginMetricsMissing",
        "increase(declctl_plugin_metrics_failed_total{{job}}[15m]) > 0",
        "15m",
        "Metrics of {{ $labels.plugin }} are missing ({{ $labels.reason }}): alerts on them are silent.",
        "The log of the process names the collector, and what it has raised.",
    ),
)


def rule_groups(job: str, runbook: str = RUNBOOK) -> dict[str, Any]:
    """A rules file of Prometheus for the processes that it scrapes under `job`."""
    return {"groups": [{"name": _GROUP, "rules": [alert.document(job, runbook) for alert in ALERTS]}]}


def alert_rule(place: Place, runbook: str = RUNBOOK) -> Document:
    """The alerts as a PrometheusRule, for the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": place.metadata(),
        "spec": rule_groups(place.name, runbook),
    }


def show_alerts(*, job: str, namespace: str, runbook: str, plain: bool) -> None:
    """Print the alerts: as a PrometheusRule, or as a file for `rule_files` of Prometheus."""
    document = rule_groups(job, runbook) if plain else alert_rule(place_of(job, namespace, job), runbook)
    block(rendered([document]))
