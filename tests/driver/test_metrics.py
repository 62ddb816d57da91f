"""Probes and metrics of `imex node` on a real kubelet."""

import urllib.request

import pytest

from tests.driver.cluster import DriverCluster
from tests.driver.namespace import Namespace

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(cluster: DriverCluster, node: str, path: str) -> str:
    """Raises HTTPError if the status is not 200."""
    address = cluster.drivers[node].node.addresses.node
    with _OPENER.open(f"http://{address}:8081{path}", timeout=60) as response:
        text: str = response.read().decode()
        return text


def prepared(cluster: DriverCluster, node: str) -> int:
    name = f'imex_dra_prepare_seconds_count{{node="{node}",result="ok"}}'
    lines = (line.split() for line in get(cluster, node, "/metrics").splitlines())
    return sum(int(line[-1]) for line in lines if line[0] == name)


def test_a_registered_plugin_is_ready_and_counts_its_prepares(
    cluster: DriverCluster, namespace: Namespace
) -> None:
    assert get(cluster, "a0", "/livez") == "[+]registration-socket ok\nok\n"
    assert get(cluster, "a0", "/readyz").endswith("[+]kubelet ok\n[+]hardware ok\nok\n")
    before = prepared(cluster, "a0")
    namespace.create_domain("train")
    namespace.create_pod("p", "a0", template="train")
    namespace.until_running("p")
    # The kubelet may repeat a prepare that succeeded.
    assert prepared(cluster, "a0") > before
    series = get(cluster, "a0", "/metrics").splitlines()
    assert 'imex_dra_registration_status{node="a0"} 1' in series
    assert 'imex_dra_daemon_state{node="a0",state="READY"} 1' in series
    assert not any(line.startswith("imex_dra_node_problems{") for line in series)
