"""Alerts and the dashboard, written against the table of metrics (`imex_dra.api.metrics`).

`deploy/monitoring/prometheusrule.yaml` is for the Prometheus Operator, `deploy/monitoring/dashboard.json` for
Grafana. Every alert has a section in docs/runbook.md.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from imex_dra.api import metrics
from imex_dra.api.reasons import Reason
from imex_dra.base.metrics import Metric

RUNBOOK = "docs/runbook.md"


class Alert(NamedTuple):
    name: str
    expression: str
    lasts: str
    severity: str
    summary: str


def _of(metric: Metric, **labels: str) -> str:
    listed = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{metric.name}{{{listed}}}" if listed else metric.name


ALERTS = (
    Alert(
        "ImexNoLeader",
        f"max({metrics.LEADER.name}) < 1 or absent({metrics.LEADER.name})",
        "5m",
        "critical",
        "no imex controller is active: new ComputeDomains get no channel; what runs keeps running",
    ),
    Alert(
        "ImexPartitionDown",
        f"{_of(metrics.PARTITION_STATE, state='DOWN')} == 1",
        "5m",
        "critical",
        "no member of NVLink partition {{ $labels.partition }} is ready",
    ),
    Alert(
        "ImexPartitionDegraded",
        f"{_of(metrics.PARTITION_STATE, state='DEGRADED')} == 1",
        "15m",
        "warning",
        "members of NVLink partition {{ $labels.partition }} are not ready",
    ),
    Alert(
        "ImexNodeUnreachable",
        f'sum by (partition) ({metrics.PARTITION_MEMBERS.name}{{state=~"Unknown|Suspended"}}) > 0',
        "10m",
        "warning",
        "{{ $value }} members of NVLink partition {{ $labels.partition }} do not report, or the Node is not Ready",
    ),
    Alert(
        "ImexMembersNotConnected",
        f"{metrics.UNREACHABLE.name} > 0",
        "10m",
        "warning",
        "the IMEX daemon of node {{ $labels.node }} does not reach {{ $value }} members of its partition",
    ),
    Alert(
        "ImexNodeNotServing",
        f"{metrics.NODE_PROBLEMS.name} == 1",
        "15m",
        "warning",
        "node {{ $labels.node }} cannot serve claims: {{ $labels.reason }}",
    ),
    Alert(
        "ImexPluginNotRegistered",
        f"{metrics.REGISTRATION.name} == 0",
        "5m",
        "warning",
        "the kubelet of node {{ $labels.node }} has not registered the DRA plugin: no pod gets a channel there",
    ),
    Alert(
        "ImexPrepareFailures",
        f"sum by (node, reason) (increase({metrics.PREPARE_ERRORS.name}[15m])) > 3",
        "5m",
        "warning",
        "pods on node {{ $labels.node }} do not get their channel: {{ $labels.reason }}",
    ),
    Alert(
        "ImexChannelsNearlyExhausted",
        f"{_of(metrics.PARTITION_CHANNELS, state='free')} / on (partition) group_left ()"
        f" sum by (partition) ({metrics.PARTITION_CHANNELS.name}) < 0.1",
        "15m",
        "warning",
        "less than 10 % of the channels of NVLink partition {{ $labels.partition }} are free",
    ),
    Alert(
        "ImexVersionSkew",
        f"{_of(metrics.PARTITION_PROBLEMS, reason=Reason.SEVERAL_VERSIONS)} == 1",
        "1h",
        "warning",
        "members of NVLink partition {{ $labels.partition }} run different versions of the GPU driver",
    ),
)


def anchor(alert: Alert) -> str:
    return alert.name.lower()


def prometheus_rule() -> dict[str, Any]:
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expression,
            "for": alert.lasts,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "runbook_url": f"{RUNBOOK}#{anchor(alert)}"},
        }
        for alert in ALERTS
    ]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "imex-dra",
            "namespace": "imex-dra",
            "labels": {"app.kubernetes.io/name": "imex-dra"},
        },
        "spec": {"groups": [{"name": "imex-dra", "rules": rules}]},
    }


class Panel(NamedTuple):
    title: str
    kind: str
    expression: str
    legend: str
    unit: str = "short"


def _rate(metric: Metric, by: str) -> str:
    return f"sum by ({by}) (rate({metric.name}[$__rate_interval]))"


def _quantile(metric: Metric, quantile: float, by: str) -> str:
    buckets = f"sum by (le, {by}) (rate({metric.name}_bucket[$__rate_interval]))"
    return f"histogram_quantile({quantile}, {buckets})"


def _sum(metric: Metric, by: str, selector: str = "") -> str:
    return f"sum by ({by}) ({metric.name}{selector})"


ROWS: tuple[tuple[str, Sequence[Panel]], ...] = (
    (
        "Racks",
        (
            Panel("Partitions by state", "timeseries", _sum(metrics.PARTITION_STATE, "state"), "{{state}}"),
            Panel("Members by state", "timeseries", _sum(metrics.PARTITION_MEMBERS, "state"), "{{state}}"),
            Panel(
                "Problems of partitions",
                "table",
                _sum(metrics.PARTITION_PROBLEMS, "partition, reason"),
                "{{reason}}",
            ),
            Panel(
                "Nodes that cannot serve claims", "table", _sum(metrics.NODE_PROBLEMS, "node, reason"), "{{node}}"
            ),
            Panel("IMEX daemons by state", "timeseries", _sum(metrics.DAEMON_STATE, "state"), "{{state}}"),
            Panel("Fabric of nodes by state", "timeseries", _sum(metrics.FABRIC_STATE, "state"), "{{state}}"),
        ),
    ),
    (
        "Channels",
        (
            Panel(
                "Assigned channels",
                "timeseries",
                _sum(metrics.PARTITION_CHANNELS, "partition", '{state="assigned"}'),
                "{{partition}}",
            ),
            Panel(
                "Released channels that cannot be reused yet",
                "timeseries",
                _sum(metrics.PARTITION_CHANNELS, "partition", '{state="released"}'),
                "{{partition}}",
            ),
            Panel(
                "Free channels",
                "timeseries",
                _sum(metrics.PARTITION_CHANNELS, "partition", '{state="free"}'),
                "{{partition}}",
            ),
            Panel("ComputeDomains", "timeseries", _sum(metrics.DOMAINS, "state, reason"), "{{state}} {{reason}}"),
        ),
    ),
    (
        "Failures",
        (
            Panel(
                "Failed prepares by reason", "timeseries", _rate(metrics.PREPARE_ERRORS, "reason"), "{{reason}}"
            ),
            Panel(
                "Duration of prepares, 95 %",
                "timeseries",
                _quantile(metrics.PREPARES, 0.95, "result"),
                "{{result}}",
                "s",
            ),
            Panel("Failed unprepares", "timeseries", _rate(metrics.UNPREPARE_ERRORS, "reason"), "{{reason}}"),
            Panel(
                "Failed requests to the API server",
                "timeseries",
                _rate(metrics.API_ERRORS, "reason"),
                "{{reason}}",
            ),
            Panel("Restarted watches", "timeseries", _rate(metrics.WATCH_RESTARTS, "reason"), "{{reason}}"),
            Panel(
                "Duration of reconciles of partitions, 99 %",
                "timeseries",
                _quantile(metrics.PARTITION_RECONCILES, 0.99, "result"),
                "{{result}}",
                "s",
            ),
            Panel(
                "Duration of reconciles of ComputeDomains, 99 %",
                "timeseries",
                _quantile(metrics.DOMAIN_RECONCILES, 0.99, "result"),
                "{{result}}",
                "s",
            ),
            Panel(
                "Duration of reviews of the webhook, 99 %",
                "timeseries",
                _quantile(metrics.REVIEWS, 0.99, "result"),
                "{{result}}",
                "s",
            ),
            Panel("ComputeDomains that wait for a worker", "timeseries", metrics.DOMAIN_QUEUE.name, "{{pod}}"),
            Panel("Active controllers", "timeseries", f"sum({metrics.LEADER.name})", "active"),
        ),
    ),
)

_WIDTH, _HEIGHT, _PER_LINE = 8, 7, 3


def dashboard() -> bytes:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "gridPos": {"h": 1, "w": 24, "x": 0, "y": top}}
        )
        top += 1
        for number, panel in enumerate(row):
            line, column = divmod(number, _PER_LINE)
            place = {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": top + line * _HEIGHT}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
        top += -(-len(row) // _PER_LINE) * _HEIGHT
    document = {
        "uid": "imex-dra",
        "title": "imex-dra",
        "tags": ["imex-dra"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": panels,
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def _panel(panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    target: dict[str, Any] = {
        "refId": "A",
        "datasource": source,
        "expr": panel.expression,
        "legendFormat": panel.legend,
    }
    if panel.kind == "table":
        target |= {"instant": True, "format": "table"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [target],
    }


def expressions() -> list[str]:
    """All that is asked of Prometheus."""
    return [alert.expression for alert in ALERTS] + [panel.expression for _, row in ROWS for panel in row]
