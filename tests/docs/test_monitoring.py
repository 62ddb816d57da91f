"""Alerts and the dashboard ask only for metrics, labels and values that exist; every alert has a runbook
section."""

import json
import re

import pytest
import yaml

from imex_dra.api import metrics
from imex_dra.api.nvlinkpartition import MemberState, PartitionState
from imex_dra.api.reasons import Reason
from imex_dra.base.metrics import Kind, Metric
from tests.paths import DEPLOY, ROOT
from tools import monitoring

NAME = re.compile(r"\bimex_dra_\w+")
SELECTOR = re.compile(r"(imex_dra_\w+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)=~?"([^"]*)"')
SUFFIXES = ("_bucket", "_sum", "_count")
VALUES: dict[tuple[str, str], set[str]] = {
    ("imex_dra_partition_state", "state"): set(PartitionState),
    ("imex_dra_partition_members", "state"): set(MemberState),
    ("imex_dra_partition_channels", "state"): {"assigned", "released", "free"},
    ("imex_dra_partition_problems", "reason"): set(Reason),
}

TABLE = {metric.name: metric for metric in metrics.ALL}


def found(name: str) -> Metric | None:
    for suffix in SUFFIXES:
        base = TABLE.get(name.removesuffix(suffix))
        if name.endswith(suffix) and base is not None and base.kind is Kind.HISTOGRAM:
            return base
    metric = TABLE.get(name)
    return metric if metric is not None and metric.kind is not Kind.HISTOGRAM else None


@pytest.mark.parametrize("expression", monitoring.expressions())
def test_an_expression_names_only_what_exists(expression: str) -> None:
    names = NAME.findall(expression)
    assert names
    assert [name for name in names if found(name) is None] == []
    for name, selector in SELECTOR.findall(expression):
        for label, values in MATCHER.findall(selector):
            metric = found(name)
            assert metric is not None
            assert label in metric.labels
            assert set(values.split("|")) <= VALUES[name, label]


def test_the_generated_files_contain_every_expression() -> None:
    rule = yaml.safe_load((DEPLOY / "monitoring/prometheusrule.yaml").read_text())
    dashboard = json.loads((DEPLOY / "monitoring/dashboard.json").read_text())
    rules = [rule["expr"] for group in rule["spec"]["groups"] for rule in group["rules"]]
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert rules + targets == monitoring.expressions()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_every_alert_has_a_section_in_the_runbook_and_the_other_way_round() -> None:
    runbook = (ROOT / "docs/runbook.md").read_text()
    assert re.findall(r"^## (\w+)$", runbook, re.MULTILINE) == [alert.name for alert in monitoring.ALERTS]


def test_names_and_labels_follow_the_rules() -> None:
    assert len(TABLE) == len(metrics.ALL)
    for metric in metrics.ALL:
        assert re.fullmatch(r"imex_dra(_[a-z]+)+", metric.name)
        assert set(metric.labels) <= metrics.LABELS.keys()
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert metric.name.endswith("_seconds") == (metric.kind is Kind.HISTOGRAM) == bool(metric.buckets)
        assert tuple(sorted(metric.buckets)) == metric.buckets
