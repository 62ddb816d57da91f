"""What the chart installs for monitoring: probes, metrics, alerts, the dashboard, and who may read them."""

import json
import re
from typing import Any

import pytest

from imex_dra.cli import controller, node
from tests.chart.helm import require, template
from tests.paths import DEPLOY
from tools import monitoring

PROGRAMS = {"imex-controller": 8080, "imex-webhook": 8080, "imex-node": 8081}
MONITORED = {
    "metrics.podMonitors.create": True,
    "metrics.podMonitors.labels": {"release": "prometheus"},
    "metrics.prometheusRule.create": True,
    "metrics.dashboard.create": True,
}


@pytest.fixture(autouse=True)
def _helm() -> None:
    require()


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        found["metadata"]["name"]: found["spec"]["template"]
        for found in objects
        if found["kind"] in ("Deployment", "DaemonSet")
    }


def container(objects: list[dict[str, Any]], name: str) -> dict[str, Any]:
    found: dict[str, Any] = pods(objects)[name]["spec"]["containers"][0]
    return found


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [found for found in objects if found["kind"] == kind]


@pytest.mark.parametrize(("name", "port"), PROGRAMS.items())
def test_probes_ask_the_port_on_which_the_program_listens(name: str, port: int) -> None:
    found = container(template(), name)
    assert found["livenessProbe"]["httpGet"] == {"path": "/livez", "port": port}
    assert found["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port}
    assert f"--metrics-address=:{port}" in found["args"]


def test_the_ports_are_those_of_the_programs_and_the_documentation() -> None:
    for command, name in ((controller.command, "imex-controller"), (node.command, "imex-node")):
        (option,) = [found for found in command.params if found.name == "metrics_address"]
        assert option.default == f":{PROGRAMS[name]}"


def test_nothing_restarts_nvidia_imex_because_of_a_probe() -> None:
    assert not {"livenessProbe", "readinessProbe", "startupProbe"} & container(template(), "imex-daemon").keys()


def test_two_pods_of_imex_node_fit_on_a_node_during_an_update() -> None:
    """A declared port on the host's network is a host port, which the scheduler gives to one pod only."""
    objects = template()
    assert pods(objects)["imex-node"]["spec"]["hostNetwork"] is True
    assert "ports" not in container(objects, "imex-node")
    (daemonset,) = [o for o in of_kind(objects, "DaemonSet") if o["metadata"]["name"] == "imex-node"]
    assert daemonset["spec"]["minReadySeconds"] == 10


def test_without_metrics_nothing_is_served_and_nothing_probes() -> None:
    objects = template(values={"metrics.enabled": False, "metrics.podMonitors.create": True})
    for name in PROGRAMS:
        found = container(objects, name)
        assert "--metrics-address=" in found["args"]
        assert not {"livenessProbe", "readinessProbe"} & found.keys()
        assert "metrics" not in {port["name"] for port in found.get("ports", ())}
    assert of_kind(objects, "PodMonitor") == []


def test_nothing_of_the_prometheus_operator_is_installed_by_default() -> None:
    groups = {found["apiVersion"].partition("/")[0] for found in template()}
    assert "monitoring.coreos.com" not in groups


def selected(monitor: dict[str, Any], pod: dict[str, Any]) -> bool:
    labels, selector = pod["metadata"]["labels"], monitor["spec"]["selector"]
    return selector["matchLabels"].items() <= labels.items() and all(
        labels.get(found["key"]) in found["values"] for found in selector.get("matchExpressions", ())
    )


def test_every_program_is_scraped_once() -> None:
    objects = template(values=MONITORED | {"metrics.hostPort": 9000})
    monitors = {found["metadata"]["name"]: found for found in of_kind(objects, "PodMonitor")}
    scraped = {name: [m for m in monitors if selected(monitors[m], pod)] for name, pod in pods(objects).items()}
    assert scraped == {
        "imex-controller": ["imex-dra"],
        "imex-webhook": ["imex-dra"],
        "imex-node": ["imex-node"],
        "imex-daemon": [],
    }
    assert all(monitor["metadata"]["labels"]["release"] == "prometheus" for monitor in monitors.values())
    (endpoint,) = monitors["imex-dra"]["spec"]["podMetricsEndpoints"]
    for name in ("imex-controller", "imex-webhook"):
        assert {"name": endpoint["port"], "containerPort": 8080} in container(objects, name)["ports"]


@pytest.mark.parametrize(("ip", "address"), [("10.0.0.1", "10.0.0.1:9000"), ("fd00::1", "[fd00::1]:9000")])
def test_the_port_of_imex_node_is_added_to_the_address_of_its_pod(ip: str, address: str) -> None:
    objects = template(values=MONITORED | {"metrics.hostPort": 9000})
    (monitor,) = [m for m in of_kind(objects, "PodMonitor") if m["metadata"]["name"] == "imex-node"]
    keep, *replacing = monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]
    assert keep["action"] == "keep"
    assert re.fullmatch(keep["regex"], container(objects, "imex-node")["name"])
    target = ""
    for rule in replacing:
        # As Prometheus does: the expression must match the whole value.
        if found := re.fullmatch(rule["regex"], ip):
            target = rule["replacement"].replace("$1", found[1])
    assert target == address


def test_alerts_and_dashboard_are_those_of_the_tree() -> None:
    objects = template(values=MONITORED)
    (rule,) = of_kind(objects, "PrometheusRule")
    assert rule["spec"] == monitoring.prometheus_rule()["spec"]
    (dashboard,) = of_kind(objects, "ConfigMap")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    shipped = json.loads((DEPLOY / "monitoring/dashboard.json").read_text())
    assert json.loads(dashboard["data"]["imex-dra.json"]) == shipped


def test_alerts_name_the_page_of_the_runbook() -> None:
    url = "https://docs.example/runbook/"
    for values, page in (({}, "docs/runbook.md"), ({"metrics.prometheusRule.runbookUrl": url}, url)):
        (rule,) = of_kind(template(values=MONITORED | values), "PrometheusRule")
        (group,) = rule["spec"]["groups"]
        found = {alert["alert"]: alert["annotations"]["runbook_url"] for alert in group["rules"]}
        assert found == {alert.name: f"{page}#{monitoring.anchor(alert)}" for alert in monitoring.ALERTS}


def ingress(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return {found["metadata"]["name"]: found["spec"].get("ingress") for found in of_kind(objects, "NetworkPolicy")}


def test_network_policies_admit_what_the_pods_serve_and_nothing_else() -> None:
    assert ingress(template()) == {
        "imex-controller": [{"ports": [{"port": 8080}]}],
        "imex-webhook": [{"ports": [{"port": 8443}]}, {"ports": [{"port": 8080}]}],
    }
    assert ingress(template(values={"metrics.enabled": False})) == {
        "imex-controller": None,
        "imex-webhook": [{"ports": [{"port": 8443}]}],
    }


def test_only_named_peers_read_metrics() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    found = ingress(template(values={"networkPolicies.metricsFrom": peers}))
    assert found["imex-controller"] == [{"ports": [{"port": 8080}], "from": peers}]
    assert found["imex-webhook"] == [{"ports": [{"port": 8443}]}, {"ports": [{"port": 8080}], "from": peers}]
