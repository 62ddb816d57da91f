"""Every kind of fault: where a user sees its effect, and that the cluster recovers when it is undone."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from imex_dra.api.names import DRIVER
from imex_dra.base.errors import Rejected
from imex_dra.node.checkpoint import CheckpointFile
from imex_sandbox.cluster.settings import KUBERNETES
from imex_sandbox.faults.injector import Injector
from imex_sandbox.faults.kinds import (
    AnyFault,
    BreakFabric,
    ChangeClique,
    CutApi,
    DelayTraffic,
    DropTraffic,
    ExpireWatches,
    FailApi,
    HangProcess,
    KillNode,
    KillProcess,
    PendFabric,
    RebootNode,
    ReloadDriver,
    RestartKubelet,
    ThrottleApi,
)
from tests.sandbox.faults.cluster.faultcluster import (
    FaultCluster,
    Snapshot,
    container_id,
    is_running,
    running_fault_cluster,
)
from tests.waiting import until

pytestmark = [pytest.mark.racks, pytest.mark.slow, pytest.mark.timeout(300)]
needs_kubernetes = pytest.mark.skipif(
    os.environ.get("IMEX_CONTROL_PLANE") != KUBERNETES,
    reason="the embedded control plane keeps its objects in memory, so it cannot be killed and started again",
)

REGISTERED = "registered with the kubelet"
EXPORT = """
import sys
from imex_sandbox.softimex import memory
exported = memory.open_channel().allocate(65536)
print(exported.export().hex(), flush=True)
sys.stdin.read()
"""
IMPORT = """
import sys, time
from imex_sandbox.softimex import memory
channel = memory.open_channel()
began = time.monotonic()
try:
    channel.import_handle(bytes.fromhex(sys.argv[1]))
    print(time.monotonic() - began)
except memory.CudaError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[FaultCluster]:
    with running_fault_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: FaultCluster) -> Iterator[FaultCluster]:
    yield shared
    shared.reset()


@pytest.fixture
def injector(cluster: FaultCluster) -> Injector:
    return cluster.injector


def until_running(cluster: FaultCluster, pod: str) -> Snapshot:
    return cluster.until(lambda now: now.pod(pod)["status"]["phase"] == "Running")


def boot_ids(now: Snapshot, node: str) -> tuple[str, str]:
    return now.node(node)["status"]["nodeInfo"]["bootID"], now.nvlink_node(node)["bootID"]


def rebooted(now: Snapshot, before: Snapshot, node: str) -> bool:
    """Node and NVLinkNode have the same new boot id."""
    (kubelet, nvlink_node), old = boot_ids(now, node), boot_ids(before, node)
    return kubelet == nvlink_node and kubelet not in old


def restarted(now: Snapshot, before: Snapshot, pod: str) -> bool:
    return container_id(now.pod(pod)) != container_id(before.pod(pod))


def fabric_states(now: Snapshot, *nodes: str) -> list[str]:
    return [now.nvlink_node(node)["fabric"]["state"] for node in nodes]


class TestNodes:
    def test_a_node_without_power_and_one_without_the_api_become_not_ready_and_recover(
        self, cluster: FaultCluster, injector: Injector
    ) -> None:
        """Both in one test, because Kubernetes waits 50 s before a node is NotReady."""
        lost = "Kubelet stopped posting node status."
        victim = cluster.start_pod("r1-n00", claim=False)
        before = until_running(cluster, victim)
        assert is_running(victim)
        with injector.during(KillNode(nodes=("r1-n00",))), injector.during(CutApi(nodes=("r1-n01",))):
            assert not is_running(victim)
            with pytest.raises(Rejected, match="nvidia-imex is not running"):
                cluster.handle.nodes["r1-n00"].pid("nvidia-imex")
            late = cluster.start_pod("r1-n01", claim=False)
            cluster.until(lambda now: now.peers("r1-n02") == {"r1-n01"})
            cluster.until(
                lambda now: all(now.node_ready(node)["message"] == lost for node in ("r1-n00", "r1-n01"))
            )
            assert cluster.snapshot().pod(late)["status"]["phase"] == "Pending"
        until_running(cluster, late)
        now = cluster.until(lambda now: rebooted(now, before, "r1-n00") and restarted(now, before, victim))
        assert is_running(victim)
        assert boot_ids(now, "r1-n01") == boot_ids(before, "r1-n01")

    def test_a_rebooted_node_has_a_new_boot_id(self, cluster: FaultCluster, injector: Injector) -> None:
        before = cluster.snapshot()
        injector.inject(RebootNode(nodes=("r1-n02",)))
        cluster.until(lambda now: rebooted(now, before, "r1-n02"))

    def test_a_claim_whose_pod_was_deleted_while_its_node_was_off_leaves_nothing(
        self, cluster: FaultCluster, injector: Injector
    ) -> None:
        pod = cluster.start_pod("r1-n02")
        until_running(cluster, pod)
        path = cluster.handle.nodes["r1-n02"].root.path / "k/plugins" / DRIVER / "imex-dra.json"
        assert CheckpointFile(path).load().claims
        with injector.during(KillNode(nodes=("r1-n02",))):
            delete = ("delete", "pod", pod, "--force", "--grace-period=0")
            cluster.kubectl("-n", cluster.namespace.name, *delete)
        until(lambda: not CheckpointFile(path).load().claims)

    def test_a_restarted_kubelet_deletes_the_slices_of_its_node_and_keeps_its_containers(
        self, cluster: FaultCluster, injector: Injector
    ) -> None:
        before = cluster.snapshot()
        injector.inject(RestartKubelet(nodes=("r0-n00",)))
        now = cluster.until(lambda now: now.slice_of("r0-n00") not in ("", before.slice_of("r0-n00")))
        assert container_id(now.pod("w0")) == container_id(before.pod("w0"))


def is_unhealthy_because(now: Snapshot, pod: str, reason: str) -> bool:
    """Both at once: the first report of a failure may give another reason."""
    health, message = now.device_health(pod)
    return health == "Unhealthy" and reason in message


class TestDeviceHealth:
    @pytest.mark.parametrize(
        ("fault", "reason"),
        [
            (BreakFabric(nodes=("r0-n01",)), "r0-n01: the NVLink fabric is broken"),
            (
                HangProcess(program="nvidia-imex", nodes=("r0-n01",)),
                "the IMEX daemon of node r0-n01 is UNAVAILABLE",
            ),
        ],
        ids=["fabric", "daemon"],
    )
    def test_the_status_of_a_running_pod_says_that_its_device_is_unhealthy_and_why(
        self, cluster: FaultCluster, injector: Injector, fault: AnyFault, reason: str
    ) -> None:
        cluster.until(lambda now: now.device_health("w1") == ("Healthy", ""))
        with injector.during(fault):
            now = cluster.until(lambda now: is_unhealthy_because(now, "w1", reason))
            assert now.pod("w1")["status"]["phase"] == "Running"
            assert now.device_health("w0") == ("Healthy", "")
        cluster.until(lambda now: now.device_health("w1") == ("Healthy", ""))


class TestProcesses:
    def test_a_killed_nvidia_imex_is_restarted(self, cluster: FaultCluster, injector: Injector) -> None:
        node = cluster.handle.nodes["r0-n00"]
        before = node.pid("nvidia-imex")
        injector.inject(KillProcess(program="nvidia-imex", nodes=("r0-n00",)))
        cluster.until(lambda now: node.pid("nvidia-imex") != before)

    def test_nvidia_imex_survives_imex_node(self, cluster: FaultCluster, injector: Injector) -> None:
        node = cluster.handle.nodes["r0-n00"]
        exporting = cluster.python_in("w0", EXPORT)
        assert exporting.stdout is not None
        handle = exporting.stdout.readline().strip()
        before, started_at = node.pid("nvidia-imex"), cluster.snapshot().nvlink_node("r0-n00")["imexStartedAt"]
        for _ in range(5):
            injector.inject(KillProcess(program="imex-node", nodes=("r0-n00",)))
            registered = cluster.log("r0-n00-imex-node").count(REGISTERED)
            until(lambda: cluster.log("r0-n00-imex-node").count(REGISTERED) > registered, within=90)  # noqa: B023
        assert node.pid("nvidia-imex") == before
        now = cluster.until(lambda now: now.nvlink_node("r0-n00")["imexState"] == "READY")
        assert now.nvlink_node("r0-n00")["imexStartedAt"] == started_at
        assert import_seconds(cluster, handle) < 60
        exporting.communicate(timeout=60)

    def test_a_hung_nvidia_imex_makes_its_partition_degraded(
        self, cluster: FaultCluster, injector: Injector
    ) -> None:
        with injector.during(HangProcess(program="nvidia-imex", nodes=("r0-n01",))):
            now = cluster.until(
                lambda now: (
                    now.nvlink_node("r0-n01")["imexState"] == "UNAVAILABLE" and "r0-n01" in now.not_ready_message()
                )
            )
            assert now.pod("w1")["status"]["phase"] == "Running"
            cluster.until(
                lambda now: now.partition(cluster.partitions["r0-n01"])["summary"]["state"] == "DEGRADED"
            )

    def test_a_node_reports_that_its_imex_supervisor_does_not_run(
        self, cluster: FaultCluster, injector: Injector
    ) -> None:
        with injector.during(KillProcess(program="imex-supervisor", nodes=("r0-n02",), for_="1h")):
            cluster.until(
                lambda now: "the supervisor of nvidia-imex does not run" in now.nvlink_node_message("r0-n02")
            )
            cluster.until(lambda now: "r0-n02" in now.not_ready_message())

    def test_a_hung_supervisor_does_not_restart_nvidia_imex(
        self, cluster: FaultCluster, injector: Injector
    ) -> None:
        with injector.during(HangProcess(program="imex-supervisor", nodes=("r0-n02",))):
            injector.inject(KillProcess(program="nvidia-imex", nodes=("r0-n02",)))
            cluster.until(
                lambda now: (
                    now.nvlink_node("r0-n02")["imexState"] == "UNAVAILABLE" and "r0-n02" in now.not_ready_message()
                )
            )
            with pytest.raises(Rejected, match="nvidia-imex is not running"):
                cluster.handle.nodes["r0-n02"].pid("nvidia-imex")

    def test_without_imex_node_the_event_of_a_pod_says_that_its_claim_is_not_prepared(
        self, cluster: FaultCluster, injector: Injector
    ) -> None:
        with injector.during(KillProcess(program="imex-node", nodes=("r1-n02",), for_="1h")):
            pod = cluster.start_pod("r1-n02")
            cluster.until(lambda now: "Failed to prepare dynamic resources" in cluster.events(pod))

    def test_a_hung_imex_node_reports_nothing_until_it_is_resumed(
        self, cluster: FaultCluster, injector: Injector
    ) -> None:
        both = ("r1-n01", "r1-n02")
        with injector.during(PendFabric(nodes=both)):
            cluster.until(lambda now: fabric_states(now, *both) == ["pending", "pending"])
            hung = injector.inject(HangProcess(program="imex-node", nodes=("r1-n02",)))
            assert hung is not None
        # The other node shows that there was time for a report.
        now = cluster.until(lambda now: fabric_states(now, "r1-n01") == ["ok"])
        assert fabric_states(now, "r1-n02") == ["pending"]
        injector.undo(hung.id)
        cluster.until(lambda now: fabric_states(now, "r1-n02") == ["ok"])

    @pytest.mark.parametrize(
        "fault",
        [KillProcess(program="imex-controller", for_="1h"), HangProcess(program="imex-controller")],
        ids=["killed", "hung"],
    )
    def test_without_a_controller_a_new_computedomain_has_no_template(
        self, cluster: FaultCluster, injector: Injector, fault: AnyFault
    ) -> None:
        def template() -> str:
            return cluster.namespace.kubectl("get", "resourceclaimtemplate", "waiting", "--ignore-not-found")

        with injector.during(fault):
            cluster.kubectl.apply(cluster.domain("waiting"))
            # A pod that was created later runs already.
            until_running(cluster, cluster.start_pod("r1-n00", claim=False))
            assert not template()
            assert not cluster.snapshot().not_ready_message()
        cluster.until(lambda now: template())

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            pytest.param(KillProcess(program="apiserver", for_="1h"), "refused", marks=needs_kubernetes),
            (HangProcess(program="apiserver"), "imeout|deadline"),
        ],
        ids=["killed", "hung"],
    )
    def test_pods_keep_running_without_an_api_server(
        self, cluster: FaultCluster, injector: Injector, fault: AnyFault, message: str
    ) -> None:
        before = cluster.snapshot()
        with injector.during(fault), pytest.raises(Rejected, match=message):
            cluster.kubectl("get", "nodes", "--request-timeout=2s")
        cluster.until_healthy()
        assert container_id(cluster.snapshot().pod("w0")) == container_id(before.pod("w0"))


class TestTraffic:
    def test_an_allreduce_fails_between_nodes_whose_traffic_is_dropped(
        self, cluster: FaultCluster, injector: Injector
    ) -> None:
        assert "Out of bounds values : 0 OK" in allreduce(cluster)
        with injector.during(DropTraffic(between=("r0-n00", "r0-n01"))):
            cluster.until(lambda now: "r0-n00 and r0-n01 cannot reach each other" in now.not_ready_message())
            cluster.until(lambda now: now.peers("r0-n00") == now.peers("r0-n01") == {"r0-n02"})
            assert "OK" not in allreduce(cluster)

    def test_an_import_takes_longer_between_nodes_whose_traffic_is_delayed(
        self, cluster: FaultCluster, injector: Injector
    ) -> None:
        exporting = cluster.python_in("w0", EXPORT)
        assert exporting.stdout is not None
        handle = exporting.stdout.readline().strip()
        with injector.during(DelayTraffic(between=("r0-n00", "r0-n01"), delay="600ms")):
            until(lambda: import_seconds(cluster, handle) > 2 * 0.6)  # daemons reread network.json periodically
        exporting.communicate(timeout=60)


def import_seconds(cluster: FaultCluster, handle: str) -> float:
    """0 if the import failed: a delay that begins may interrupt the connection of two daemons."""
    output = cluster.python_in("w1", IMPORT, handle).communicate(timeout=60)[0]
    try:
        return float(output)
    except ValueError:
        return 0.0


def allreduce(cluster: FaultCluster) -> str:
    """The output of two ranks, in pods on two nodes."""
    port = str(free_port())
    ranks = [
        cluster.process_in(
            f"w{rank}",
            "env",
            *(f"RANK={rank}", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}"),
            *("imex", "allreduce"),
        )
        for rank in range(2)
    ]
    return "".join(rank.communicate(timeout=120)[0] for rank in ranks)


class TestHardware:
    def test_a_pending_fabric_is_in_the_nvlink_node_and_in_the_condition(
        self, cluster: FaultCluster, injector: Injector
    ) -> None:
        with injector.during(PendFabric(nodes=("r0-n00",), reason="switches are training")):
            cluster.until(lambda now: "r0-n00" in now.not_ready_message())
            pending = {"state": "pending", "reason": "switches are training"}
            cluster.until(lambda now: now.nvlink_node("r0-n00")["fabric"] == pending)

    def test_a_node_with_a_broken_fabric_publishes_no_slice(
        self, cluster: FaultCluster, injector: Injector
    ) -> None:
        with injector.during(BreakFabric(nodes=("r1-n00",), reason="3 links are down")):
            cluster.until(lambda now: not now.slice_of("r1-n00"))
            cluster.until(lambda now: "broken (3 links are down)" in now.nvlink_node_message("r1-n00"))

    def test_a_node_in_another_clique_is_in_another_partition(
        self, cluster: FaultCluster, injector: Injector
    ) -> None:
        before = cluster.partitions["r1-n01"]
        moved = f"{before.rpartition('.')[0]}.7"
        with injector.during(ChangeClique(nodes=("r1-n01",), clique=7)):
            cluster.until(lambda now: now.partition(moved).get("summary", {}).get("nodes") == "1/1")
            assert cluster.snapshot().nvlink_node("r1-n01")["partition"] == moved
            label = "nvidia.com/gpu.clique"
            cluster.until(lambda now: now.node("r1-n01")["metadata"]["labels"].get(label) == moved)

    def test_a_reloaded_driver_has_another_major_and_version(
        self, cluster: FaultCluster, injector: Injector
    ) -> None:
        old = cluster.snapshot().nvlink_node("r1-n01")["driverVersion"]
        injector.inject(ReloadDriver(nodes=("r1-n01",), major=241, version="590.1"))
        cluster.until(
            lambda now: now.nvlink_node("r1-n01")["driverVersion"] == "590.1" and not now.peers("r1-n01")
        )
        injector.inject(ReloadDriver(nodes=("r1-n01",), major=242, version=old))
        cluster.until_healthy()
        until_running(cluster, cluster.start_pod("r1-n01"))
        directory = cluster.handle.nodes["r1-n01"].root.path / "run/cdi"
        # Prepared with the major that `imex node` knew, which is corrected if the driver was loaded since.
        until(lambda: [majors(spec) for spec in directory.glob("imex-dra.io-channel_*.json")] == [{242}])
        injector.inject(ReloadDriver(nodes=("r1-n01",), major=243, version=old))
        until(lambda: [majors(spec) for spec in directory.glob("imex-dra.io-channel_*.json")] == [{243}])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def majors(spec: Path) -> set[int]:
    devices = json.loads(spec.read_text())["devices"]
    return {node["major"] for device in devices for node in device["containerEdits"]["deviceNodes"]}


class TestApi:
    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            (FailApi(nodes=("r1-n00",), share=0.25, code=500), "injected fault: HTTP 500"),
            (ThrottleApi(nodes=("r1-n00",), share=0.7, retry_after=0), "injected fault: HTTP 429"),
        ],
        ids=["errors", "throttled"],
    )
    def test_a_pod_starts_although_some_api_requests_fail(
        self, cluster: FaultCluster, injector: Injector, fault: AnyFault, message: str
    ) -> None:
        with injector.during(fault):
            until_running(
                cluster, cluster.start_pod("r1-n00", claim=False)
            )  # with a claim, the kubelet would retry a failed prepare after a minute only
        # Programs repeat requests before they log a failure: only if all fail, it is certain to be logged.
        with injector.during(structs.replace(fault, share=1.0)):
            cluster.until(lambda now: message in cluster.log("drivers") + cluster.log("kubelets"))

    def test_pods_start_although_every_watch_expires_soon(self, cluster: FaultCluster, injector: Injector) -> None:
        before = watches(cluster, "r1-n02")
        with injector.during(ExpireWatches(nodes=("r1-n02",), every="300ms")):
            until_running(cluster, cluster.start_pod("r1-n02"))
            cluster.until(lambda now: watches(cluster, "r1-n02") > before + 10)

    def test_a_node_logs_that_its_connections_are_refused(self, cluster: FaultCluster, injector: Injector) -> None:
        before = len(cluster.log("kubelets"))
        with injector.during(CutApi(nodes=("r1-n02",), refuse=True)):
            late = cluster.start_pod("r1-n02")
            cluster.until(lambda now: "no response from 127.0.0.1" in cluster.log("kubelets")[before:])
            assert cluster.snapshot().pod(late)["status"]["phase"] == "Pending"
        until_running(cluster, late)


def watches(cluster: FaultCluster, node: str) -> int:
    """How many watches without a resource version the programs of a node have begun, from the audit log."""
    lines = cluster.handle.audit_log.read_text().splitlines()
    return sum("sendInitialEvents=true" in line and f'"{node}"' in line for line in lines)
