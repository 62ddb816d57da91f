"""Two small racks for the tests of faults: r0 has a pod of a ComputeDomain on each node, r1 is idle."""

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from imex_dra.base.errors import Rejected
from imex_sandbox.cluster.handle import Cluster, running
from imex_sandbox.faults.injector import Injector
from imex_sandbox.kubernetes.binaries import find
from imex_sandbox.racks import Cluster as Racks
from imex_sandbox.racks import Rack
from tests.sandbox.cluster.namespace import TIMEOUT, Namespace
from tests.waiting import until

KINDS = "nodes,nvlinknodes,nvlinkpartitions,resourceslices,computedomains,pods"
NODES = 3
TEMPORARY = {"created-by": "a-fault-test"}


class Snapshot:
    """The objects of one `kubectl get`, by kind and name."""

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self._objects = {(item["kind"], item["metadata"]["name"]): item for item in items}

    def all(self, kind: str) -> dict[str, dict[str, Any]]:
        return {name: item for (found, name), item in self._objects.items() if found == kind}

    def nvlink_node(self, node: str) -> dict[str, Any]:
        status: dict[str, Any] = self._objects["NVLinkNode", node].get("status", {})
        return status

    def nvlink_node_message(self, node: str, condition: str = "Ready") -> str:
        conditions = self.nvlink_node(node).get("conditions", [])
        return next((str(c["message"]) for c in conditions if c["type"] == condition), "")

    def peers(self, node: str) -> set[str]:
        """The other nodes of its partition, without those that its IMEX daemon cannot reach."""
        nvlink_node = self.nvlink_node(node)
        others = {name: self.nvlink_node(name) for name in self.all("NVLinkNode") if name != node}
        members = {name for name, other in others.items() if other["partition"] == nvlink_node["partition"]}
        return members - set(nvlink_node.get("unreachable", []))

    def partition(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self._objects.get(("NVLinkPartition", name), {}).get("status", {})
        return status

    def node(self, name: str) -> dict[str, Any]:
        return self._objects["Node", name]

    def node_ready(self, name: str) -> dict[str, Any]:
        found = (c for c in self.node(name)["status"].get("conditions", []) if c["type"] == "Ready")
        return next(found, {"status": "Unknown", "message": "no condition"})

    def pod(self, name: str) -> dict[str, Any]:
        return self._objects.get(("Pod", name), {})

    def device_health(self, pod: str) -> tuple[str, str]:
        """Health and message of the channel device, in the status of the pod's container."""
        claim = self.pod(pod)["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0]
        device = claim["resources"][0]
        return device["health"], device.get("message", "")

    def slice_of(self, node: str) -> str:
        """The UID of the node's ResourceSlice; empty if there is none."""
        found = [s for s in self.all("ResourceSlice").values() if s["spec"]["nodeName"] == node]
        return str(found[0]["metadata"]["uid"]) if found else ""

    def not_ready_message(self) -> str:
        """Why the ComputeDomain is not Ready; empty if it is."""
        conditions = self._objects["ComputeDomain", "train"].get("status", {}).get("conditions", [])
        ready = next(
            (c for c in conditions if c["type"] == "Ready"), {"status": "False", "message": "no condition"}
        )
        return "" if ready["status"] == "True" else str(ready["message"])


class FaultCluster:
    def __init__(self, cluster: Cluster) -> None:
        self.handle = cluster
        self.kubectl = cluster.kubectl
        self.injector = Injector(cluster)
        self.partitions = {name: node.partition for name, node in cluster.nodes.items()}
        self.namespace = Namespace(cluster)

    def start_workers(self) -> None:
        self.namespace.domain("train")
        sleep = ("sleep", "1000000")
        pods = [self.namespace.pod(f"w{n}", f"r0-n0{n}", template="train", command=sleep) for n in range(NODES)]
        self.kubectl.apply(*pods)
        self.until_healthy()

    def snapshot(self) -> Snapshot:
        return Snapshot(self.kubectl.get(KINDS, "--all-namespaces")["items"])

    def until(self, condition: Callable[[Snapshot], object]) -> Snapshot:
        """The snapshot for which the condition is true."""

        def matching_snapshot() -> Snapshot | None:
            try:
                snapshot = self.snapshot()
                return snapshot if condition(snapshot) else None
            # The API server does not answer, or an object or a part of its status does not exist yet.
            except (Rejected, subprocess.TimeoutExpired, LookupError):
                return None

        try:
            found = until(matching_snapshot, within=TIMEOUT)
        except AssertionError as error:
            shown = self.kubectl("get", f"{KINDS},events", "--all-namespaces", "-o", "wide")
            raise AssertionError(f"{error}\n{shown}\n{self.handle.logs()}") from None
        assert found is not None
        return found

    def until_healthy(self) -> None:
        self.until(self._is_healthy)

    def _is_healthy(self, snapshot: Snapshot) -> bool:
        nodes = all(snapshot.node_ready(name)["status"] == "True" for name in self.partitions)
        nvlink_nodes = all(
            self._is_connected(snapshot.nvlink_node(name), partition)
            for name, partition in self.partitions.items()
        )
        slices = all(snapshot.slice_of(name) for name in self.partitions)
        up = all(
            snapshot.partition(partition)["summary"]["state"] == "UP" for partition in self.partitions.values()
        )
        pods = all(_is_ready(snapshot.pod(f"w{number}")) for number in range(NODES))
        return nodes and nvlink_nodes and slices and up and pods and not snapshot.not_ready_message()

    def _is_connected(self, nvlink_node: dict[str, Any], partition: str) -> bool:
        state = (nvlink_node["fabric"]["state"], nvlink_node["imexState"], nvlink_node["partition"])
        return state == ("ok", "READY", partition) and not nvlink_node.get("unreachable")

    def start_pod(self, node: str, *, claim: bool = True) -> str:
        """Start a pod, of the ComputeDomain if it has a claim. `reset` deletes it."""
        name = f"p-{uuid.uuid4().hex[:8]}"
        pod = self.namespace.pod(name, node, template="train" if claim else "", command=("sleep", marker(name)))
        pod["metadata"]["labels"] = TEMPORARY
        self.kubectl.apply(pod)
        return name

    def domain(self, name: str) -> dict[str, Any]:
        meta = {"name": name, "namespace": self.namespace.name, "labels": TEMPORARY}
        return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": meta, "spec": {}}

    def reset(self) -> None:
        """Undo all active faults, delete what the test has created, and wait until the cluster is healthy."""
        for entry in self.injector.active():
            self.injector.undo(entry.id)
        self.until(lambda snapshot: True)  # the API server answers
        selector = ",".join(f"{key}={value}" for key, value in TEMPORARY.items())
        arguments = ("-n", self.namespace.name, "delete", "pods,computedomains", "-l", selector, "--timeout=120s")
        self.kubectl(*arguments, within=TIMEOUT + 30)
        self.until_healthy()

    def events(self, pod: str) -> str:
        found = self.namespace.get("events", f"--field-selector=involvedObject.name={pod}")["items"]
        return "\n".join(event["message"] for event in found)

    def process_in(self, pod: str, *argv: str) -> subprocess.Popen[str]:
        arguments = [
            "--kubeconfig",
            str(self.handle.kubeconfig),
            "-n",
            self.namespace.name,
            "exec",
            "-i",
            pod,
            "--",
            *argv,
        ]
        return subprocess.Popen(
            [find("kubectl"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def python_in(self, pod: str, script: str, *arguments: str) -> subprocess.Popen[str]:
        return self.process_in(pod, sys.executable, "-c", script, *arguments)

    def log(self, name: str) -> str:
        path = self.handle.paths.log(name)
        return path.read_text(errors="replace") if path.exists() else ""


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def container_id(pod: dict[str, Any]) -> str:
    """The id of its container, which changes with each restart."""
    return str(pod["status"]["containerStatuses"][0]["containerID"])


def marker(pod: str) -> str:
    """The argument of the pod's `sleep`, which no other process has."""
    return f"1000000.{int(pod.removeprefix('p-'), 16)}"


def is_running(pod: str) -> bool:
    """Whether the process of the pod runs on this machine."""
    return any(marker(pod).encode() in words for words in _command_lines())


def _command_lines() -> Iterator[list[bytes]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes().split(b"\0")


@contextmanager
def running_fault_cluster() -> Iterator[FaultCluster]:
    racks = tuple(Rack(f"r{number}", "gb200-nvl72", nodes=NODES) for number in range(2))
    name = f"f{uuid.uuid4().hex[:6]}"
    with running(Racks("sandbox.imex-dra.io/v1", "Cluster", racks, name)) as cluster:
        fault_cluster = FaultCluster(cluster)
        fault_cluster.start_workers()
        yield fault_cluster
