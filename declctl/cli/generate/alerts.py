"""`declctl generate alerts`: rules for Prometheus about what a controller reports of itself."""

from typing import Any, Final

import msgspec

from declctl.cli.generate.objects import Document, Place, place_of, rendered
from declctl.cli.terminal import block

_GROUP: Final = "declctl"


class Alert(msgspec.Struct, frozen=True):
    """One alert. `{job}` in `expr` becomes the matcher of the job; texts may have labels of the metric."""

    name: str
    expr: str
    summary: str
    remedy: str
    lasts: str = "0m"  # how long the expression has to hold
    severity: str = "warning"

    def document(self, job: str) -> dict[str, Any]:
        """As Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": self.expr.replace("{job}", f'job="{job}"'),
            "for": self.lasts,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.remedy},
        }


ALERTS: Final = (
    Alert(
        "DeclctlAbsent",
        "absent(declctl_generation{{job}})",
        "No process of the controller is scraped.",
        "See the pods of its Deployment, and whether Prometheus may reach their metrics.",
        "5m",
        "critical",
    ),
    Alert(
        "DeclctlNotSynced",
        "declctl_synced{{job}} == 0",
        "{{ $labels.resource }} has not been listed for ten minutes: handlers that read it wait.",
        "`declctl status` has the cause: a right (`declctl generate rbac`), a kind or the API server.",
        "10m",
        "critical",
    ),
    Alert(
        "DeclctlServerUnreachable",
        "declctl_server_reachable{{job}} == 0",
        "The API server does not answer.",
        "Watches go on from their last version when it does.",
        "2m",
        "critical",
    ),
    Alert(
        "DeclctlReloadRefused",
        'increase(declctl_reloads_total{{job},result="Refused"}[15m]) > 0',
        "An edit was refused, and is not live.",
        "`declctl history` has the cause; the code before it goes on.",
    ),
    Alert(
        "DeclctlReloadRolledBack",
        'increase(declctl_reloads_total{{job},result="RolledBack"}[15m]) > 0',
        "New code has failed, and the code before it is back.",
        "`declctl history` has the cause.",
    ),
    Alert(
        "DeclctlReloadWaits",
        "increase(declctl_reload_retries_total{{job}}[15m]) > 3",
        "An edit waits for a right, a kind or the API server.",
        "`declctl status` names it.",
    ),
    Alert(
        "DeclctlFilesNotFollowed",
        "declctl_files_followed{{job}} == 0",
        "The ConfigMap with the files is deleted, or can't be watched: no edit arrives.",
        "`declctl status` says why; the last files go on.",
        "5m",
    ),
    Alert(
        "DeclctlHandlerFails",
        'increase(declctl_handler_results_total{{job},result="failed"}[15m]) > 0',
        "{{ $labels.handler }} has given up a change.",
        "`declctl status` has the last error, and the log the traceback.",
    ),
    Alert(
        "DeclctlHandlerRetries",
        'rate(declctl_handler_results_total{{job},result="retried"}[10m]) > 0.1',
        "Calls of {{ $labels.handler }} fail again and again.",
        "`declctl status` has the last error, and the log the traceback.",
        "15m",
    ),
    Alert(
        "DeclctlDeadLetters",
        "declctl_handler_dead_letters{{job}} > 0",
        "{{ $labels.handler }} has dead letters.",
        "`declctl get deadletters` lists them, and `declctl requeue` queues them again.",
    ),
    Alert(
        "DeclctlQueueGrows",
        "declctl_handler_queue_depth{{job}} > 100 and deriv(declctl_handler_queue_depth{{job}}[15m]) > 0",
        "Changes of {{ $labels.handler }} come faster than they are handled.",
        "Make the handler faster, or raise queue.concurrency.",
        "15m",
    ),
    Alert(
        "DeclctlQueueIsOld",
        "histogram_quantile(0.95, sum by (job, name, le) "
        "(rate(workqueue_queue_duration_seconds_bucket{{job}}[10m]))) > 60",
        "Keys of {{ $labels.name }} wait longer than a minute for a worker.",
        "Make the reconciler faster, or raise queue.concurrency.",
        "15m",
    ),
    Alert(
        "DeclctlCallHangs",
        "workqueue_longest_running_processor_seconds{{job}} > 300",
        "A call of {{ $labels.name }} has not returned for five minutes.",
        "Set a timeout of the handler; the log names the line where it waits.",
    ),
    Alert(
        "DeclctlHandlerSuspended",
        "declctl_handler_suspended{{job}} == 1",
        "{{ $labels.handler }} is not called any more: too many of its calls do not return.",
        "The log names the calls. It goes on when one of them returns, or when its code is edited.",
        severity="critical",
    ),
    Alert(
        "DeclctlNoLeader",
        "sum by (job, name) (leader_election_master_status{{job}}) == 0",
        "No process holds the Lease {{ $labels.name }}: no handler is called.",
        "`declctl status` of each process says why it does not lead.",
        "2m",
        "critical",
    ),
    Alert(
        "DeclctlLeaderChanges",
        "increase(declctl_leader_transitions_total{{job}}[1h]) > 3",
        "The Lease {{ $labels.name }} goes from process to process.",
        "See why renewals are late: the API server, or processors that are too busy.",
    ),
    Alert(
        "DeclctlWritesFail",
        'sum by (job, handler) (rate(declctl_writes_total{{job},result=~"failed|refused"}[10m])) > 0.05',
        "Writes of {{ $labels.handler }} fail.",
        "The log names the object and the cause; for a missing right also the command that grants it.",
        "10m",
    ),
    Alert(
        "DeclctlPluginDisabled",
        "declctl_plugin_ready{{job}} == 0",
        "The plugin {{ $labels.plugin }} could not be loaded, or is suspended: its handlers are not called.",
        "`declctl status` says which of the two it is; `declctl plugins list` names the fault.",
        "5m",
    ),
    Alert(
        "DeclctlPluginMetricsMissing",
        "increase(declctl_plugin_metrics_failed_total{{job}}[15m]) > 0",
        "Metrics of {{ $labels.plugin }} are missing ({{ $labels.reason }}): alerts on them are silent.",
        "The log of the process names the collector, and what it has raised.",
        "15m",
    ),
)


def rule_groups(job: str) -> dict[str, Any]:
    """A rules file of Prometheus for the processes that it scrapes under `job`."""
    return {"groups": [{"name": _GROUP, "rules": [alert.document(job) for alert in ALERTS]}]}


def alert_rule(place: Place) -> Document:
    """The alerts as a PrometheusRule, for the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": place.metadata(),
        "spec": rule_groups(place.name),
    }


def show_alerts(*, job: str, namespace: str, plain: bool) -> None:
    """Print the alerts: as a PrometheusRule, or as a file for `rule_files` of Prometheus."""
    block(rendered([rule_groups(job) if plain else alert_rule(place_of(job, namespace, job))]))
