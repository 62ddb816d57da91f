"""The driver on real kubelets with simulated hardware: nodes a0 and a1 in one NVLink partition, b0 in another."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import structs

from imex_dra.api.names import DRIVER
from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_sandbox.kubernetes import driver
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.driver import NodeDriver
from imex_sandbox.kubernetes.network import Network
from imex_sandbox.kubernetes.node import Node
from imex_sandbox.simulated import HardwareFile, SimulatedGpu
from tests.conftest import install_crds
from tests.paths import DEPLOY
from tests.sandbox.kubernetes import driverimage
from tests.waiting import until

PARTITION_A = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1"
PARTITION_B = "0f0e0d0c-0b0a-4908-8706-050403020100.32766"
PARTITIONS = {"a0": PARTITION_A, "a1": PARTITION_A, "b0": PARTITION_B}
PREPARE_DEADLINE = 6.0
"""Seconds, instead of 40; still far more than a prepare that succeeds needs."""


class DriverCluster:
    def __init__(self, root: Path, control_plane: ControlPlane, nodes: Sequence[Node]) -> None:
        self.root = root
        self.control_plane = control_plane
        self.kubectl = control_plane.kubectl
        self.revoked_permissions: list[tuple[str, datetime, datetime]] = []
        """Resources that a test forbade the driver to use, and from when until when."""
        account = control_plane.service_account("imex-dra", "imex-controller")
        self.controller = driver.controller(account, root / "controller.log")
        self.drivers = {
            node.name: NodeDriver(
                node,
                kubeconfig=control_plane.service_account("imex-dra", "imex-node", node=node.name),
                fabric=root / "fabric",
                flags=(f"--prepare-deadline={PREPARE_DEADLINE}",),
            )
            for node in nodes
        }

    def start(self) -> None:
        self.controller.start()
        for name, node in self.drivers.items():
            node.start(healthy_hardware(name))
        self.until(lambda: self.publishing_nodes() == self.drivers.keys())
        self.until(lambda: all(self.is_connected(partition) for partition in (PARTITION_A, PARTITION_B)))

    def stop(self) -> None:
        self.controller.stop()
        for node in self.drivers.values():
            node.stop()

    def until(self, condition: Callable[[], object], within: float = 90) -> None:
        try:
            until(condition, within=within)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from error

    def logs(self) -> str:
        paths = [self.root / "controller.log", *sorted(self.root.glob("*/imex-*.log"))]
        return "\n".join(f"== {path.name}\n{path.read_text()[-1500:]}" for path in paths if path.exists())

    # Objects of the API server

    def partition(self, name: str = PARTITION_A) -> dict[str, Any]:
        """With an empty status if it does not exist: a partition without members is deleted."""
        items: list[dict[str, Any]] = self.kubectl.get("nvlinkpartitions")["items"]
        found = (item for item in items if item["metadata"]["name"] == name)
        return {"status": {}} | next(found, {})

    def partition_condition(self, kind: str, partition: str = PARTITION_A) -> dict[str, Any]:
        conditions = self.partition(partition)["status"].get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {})

    def members(self, partition: str = PARTITION_A) -> list[tuple[str, int, str]]:
        """Node, index and address of each."""
        members = self.partition(partition)["status"].get("members", [])
        return [(member["node"], member["index"], member["address"]) for member in members]

    def staying_members(self, partition: str = PARTITION_A) -> list[str]:
        """Nodes of members that are not Leaving."""
        members = self.partition(partition)["status"].get("members", [])
        return [member["node"] for member in members if member["state"] != "Leaving"]

    def summary(self, partition: str = PARTITION_A) -> dict[str, str]:
        """State and nodes, as kubectl get shows them; empty while the controller has written none."""
        found: dict[str, str] = self.partition(partition)["status"].get("summary", {})
        return found

    def is_connected(self, partition: str) -> bool:
        """Whether every member is Ready and reports that it reaches all others: then no change is pending."""
        status = self.partition(partition)["status"]
        nodes = [member["node"] for member in status.get("members", [])]
        connected = [self.node_condition(node, "Connected").get("status") == "True" for node in nodes]
        return status.get("summary", {}).get("state") == "UP" and all(connected)

    def assigned_channel(self, domain_uid: str, partition: str = PARTITION_A) -> int | None:
        entries = self.partition(partition)["status"].get("channels", [])
        own = [e for e in entries if e["computeDomain"]["uid"] == domain_uid and e["state"] == "Assigned"]
        return own[0]["channel"] if own else None

    def node_condition(self, name: str, kind: str) -> dict[str, str]:
        """A condition of the NVLinkNode; empty if there is none."""
        conditions = self.node_status(name).get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {})

    def node_status(self, name: str) -> dict[str, Any]:
        """Status of the NVLinkNode."""
        found: dict[str, Any] = self.kubectl.get("nvlinknode", name).get("status", {})
        return found

    def publishing_nodes(self) -> set[str]:
        """Nodes with a ResourceSlice."""
        return {found["spec"]["nodeName"] for found in self.kubectl.get("resourceslices")["items"]}

    def until_published(self, name: str) -> None:
        self.until(lambda: name in self.publishing_nodes())

    def audit_events(self) -> list[dict[str, Any]]:
        """All requests so far, from the audit log of the API server. Its last line may be incomplete."""
        text = self.control_plane.audit_log.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    # Nodes

    def prepared_claims(self, node: str) -> set[str]:
        """UIDs of claims that have a checkpoint entry or a CDI spec."""
        root = self.drivers[node].node.root
        file = root / "k/plugins" / DRIVER / "imex-dra.json"
        claims = set(json.loads(json.loads(file.read_text())["payload"])["claims"]) if file.exists() else set()
        specs = {path.stem.partition("_")[2] for path in (root / "run/cdi").glob("imex-dra.io-channel_*.json")}
        return claims | specs

    def until_nothing_prepared(self, within: float = 120) -> None:
        self.until(lambda: not any(self.prepared_claims(name) for name in self.drivers), within)

    def registrations(self, name: str) -> int:
        """How often the kubelet has registered the driver on this node."""
        logs = self.drivers[name].node.root.glob("imex-node*.log")
        return sum(log.read_text().count("registered with the kubelet") for log in logs)

    def logged_at(self, name: str, event: str, claim: str) -> list[datetime]:
        """When `imex node` logged this event for this claim."""
        lines = (self.drivers[name].node.root / "imex-node.log").read_text().splitlines()
        entries = [json.loads(line) for line in lines if event in line and claim in line and line.endswith("}")]
        times = [e["timestamp"] for e in entries if (e["event"], e.get("claim")) == (event, claim)]
        return [datetime.fromisoformat(time) for time in times]

    def write_hardware(self, name: str, **changes: Any) -> None:
        """Makes the node's hardware healthy except for the changes."""
        self.drivers[name].root.write_hardware(structs.replace(healthy_hardware(name), **changes))

    @contextmanager
    def hardware(self, name: str, **changes: Any) -> Iterator[None]:
        self.write_hardware(name, **changes)
        try:
            yield
        finally:
            self.write_hardware(name)

    def kill_imex_daemon(self, name: str) -> None:
        """Returns when the next one runs. The socket of the killed one stays until then, as after a crash."""
        lock = self.drivers[name].node.root / "run/imex.lock"
        killed = lock.read_text()
        self.drivers[name].node.machine.run("kill", "-9", killed.strip())
        self.until(lambda: lock.read_text() not in ("", killed))

    @contextmanager
    def without_kubelet(self, name: str) -> Iterator[None]:
        """The scheduler still binds pods to the node for a while; the kubelet finds them when it starts again."""
        kubelet = self.drivers[name].node.kubelet
        kubelet.kill()
        assert kubelet.wait(within=60)
        try:
            yield
        finally:
            kubelet.start()

    @contextmanager
    def without_controller(self) -> Iterator[None]:
        self.controller.stop()
        try:
            yield
        finally:
            self.controller.start()


def healthy_hardware(name: str) -> HardwareFile:
    return HardwareFile(
        fabric=Fabric(FabricState.OK),
        partition=PARTITIONS[name],
        driver_version="580.95.05",
        boot_id=f"boot-of-{name}",
        gpus=tuple(SimulatedGpu(f"GPU-{name}-{number}", "GB200") for number in range(4)),
    )


@contextmanager
def running_cluster(root: Path) -> Iterator[DriverCluster]:
    with ExitStack() as stack:
        control_plane = stack.enter_context(ControlPlane(root / "cp"))
        network = stack.enter_context(Network(root))
        install_crds(control_plane)
        for manifest in ("rbac", "policies", "deviceclasses"):
            control_plane.kubectl("apply", "-f", str(DEPLOY / f"{manifest}.yaml"))
        archives = [driverimage.build()]
        nodes = [
            Node(name, root / name, control_plane=control_plane, network=network, archives=archives)
            for name in PARTITIONS
        ]
        for node in nodes:
            node.start()
            stack.callback(node.stop)
        for node in nodes:
            node.until_ready()
        cluster = DriverCluster(root, control_plane, nodes)
        stack.callback(cluster.stop)
        cluster.start()
        yield cluster
