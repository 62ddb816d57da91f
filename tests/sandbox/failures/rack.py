"""One rack of four nodes whose delays are short, for tests of what a user sees when something breaks."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from imex_dra.api.names import DRIVER
from imex_dra.base.clock import rfc3339
from imex_dra.node.checkpoint import CheckpointFile
from imex_sandbox.cluster.handle import Cluster, Node, running
from imex_sandbox.faults.injector import Injector
from imex_sandbox.kubernetes.kubectl import to_yaml
from imex_sandbox.racks import Cluster as Racks
from imex_sandbox.racks import Driver
from imex_sandbox.racks import Rack as RackSpec
from tests.sandbox.cluster.namespace import Namespace, until

SLEEP = ("sleep", "1000000")
DELAYS = Driver(suspend_after=2.0, publish_after=3.0, prepare_deadline=10.0)
"""Instead of 600, 30 and 40 s. A prepare that succeeds needs less than a second, on a busy machine a few."""


class Rack:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.kubectl = cluster.kubectl
        self.injector = Injector(cluster)
        self.nodes = list(cluster.nodes)
        self.partition_name = cluster.nodes[self.nodes[0]].partition
        self.namespace = Namespace(cluster)

    def until(self, condition: Callable[[], object]) -> None:
        until(self.cluster, condition)

    # Faults

    def node(self, name: str) -> Node:
        return self.cluster.nodes[name]

    def power_off(self, *names: str) -> None:
        """Without power, and known to be: Kubernetes itself would set the Nodes to Unknown after 50 s."""
        for name in names:
            self.node(name).power_off()
        for name in names:
            self._set_unknown(name)

    def _set_unknown(self, name: str) -> None:
        condition = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
            "lastTransitionTime": rfc3339(datetime.now(UTC)),
        }
        patch = json.dumps({"status": {"conditions": [condition]}})
        self.kubectl("patch", "node", name, "--subresource=status", f"--patch={patch}")

    def delete_slice(self, node: str) -> None:
        """As a kubelet does when it starts. In a simulated boot, `imex node` may be faster."""
        self.kubectl("delete", "resourceslice", f"--field-selector=spec.nodeName={node}")

    def forget_node(self, name: str) -> str:
        """What `imex forget-node` prints."""
        flags = ("forget-node", name, "--yes", f"--kubeconfig={self.cluster.kubeconfig}")
        done = subprocess.run(
            [sys.executable, "-m", "imex_dra.cli", *flags], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stderr + done.stdout

    def lose_partition(self) -> None:
        """Delete the NVLinkPartition, with its finalizer, as if the object had been lost."""
        partition = ("nvlinkpartition", self.partition_name)
        self.kubectl("delete", *partition, "--wait=false")
        self.kubectl("patch", *partition, "--type=merge", '--patch={"metadata":{"finalizers":null}}')

    def restore_partition(self, status: dict[str, Any]) -> None:
        """Replace its status, as a restored backup does."""
        live = self.kubectl.get("nvlinkpartition", self.partition_name)
        del live["metadata"]["resourceVersion"]
        document = to_yaml({**live, "status": status})
        self.kubectl("replace", "--subresource=status", "--filename=-", stdin=document)

    # Workload

    def start(self, domain: str, *nodes: str) -> list[str]:
        """One more pod of the ComputeDomain on each of these nodes."""
        if not self.namespace.kubectl("get", "computedomain", domain, "--ignore-not-found"):
            self.namespace.domain(domain)
        names = {f"{domain}-{uuid.uuid4().hex[:4]}": node for node in nodes}
        pods = [self.namespace.pod(name, node, template=domain, command=SLEEP) for name, node in names.items()]
        self.kubectl.apply(*pods)
        return list(names)

    def run(self, domain: str, *nodes: str) -> list[str]:
        """The same, and wait until the pods run."""
        pods = self.start(domain, *nodes)
        self.namespace.until_ready(*pods)
        return pods

    def events(self, kind: str, name: str, reason: str = "") -> list[str]:
        """Messages of the Events about the object, with this reason if one is given."""
        selector = f"involvedObject.kind={kind},involvedObject.name={name}"
        found = self.namespace.get("events", f"--field-selector={selector}")["items"]
        return [event["message"] for event in found if reason in ("", event["reason"])]

    # What a user sees

    def domain(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.namespace.get("computedomain", name).get("status", {})
        return status

    def domain_condition(self, name: str, type_: str) -> tuple[str, str, str]:
        return _condition(self.domain(name), type_)

    def ready_nodes(self, domain: str) -> dict[str, bool]:
        return {node["name"]: node["status"] == "Ready" for node in self.domain(domain).get("nodes", [])}

    def partition(self) -> dict[str, Any]:
        """Its status; empty while the object does not exist."""
        found = [p for p in self.kubectl.get("nvlinkpartitions")["items"] if self._is_own(p)]
        status: dict[str, Any] = found[0].get("status", {}) if found else {}
        return status

    def _is_own(self, partition: dict[str, Any]) -> bool:
        return bool(partition["metadata"]["name"] == self.partition_name)

    def partition_condition(self, type_: str) -> tuple[str, str, str]:
        return _condition(self.partition(), type_)

    def summary(self) -> tuple[str, str]:
        """State and nodes, as the columns of kubectl get show them."""
        summary = self.partition().get("summary", {})
        return summary.get("state", ""), summary.get("nodes", "")

    def channel(self, domain: str) -> int:
        """The channel that is assigned to the ComputeDomain."""
        entries = [e for e in self.partition()["channels"] if e["state"] == "Assigned"]
        (own,) = [e["channel"] for e in entries if self._is_of(e["computeDomain"], domain)]
        return int(own)

    def _is_of(self, reference: dict[str, Any], domain: str) -> bool:
        return (reference["namespace"], reference["name"]) == (self.namespace.name, domain)

    def members(self) -> dict[str, str]:
        """State by node."""
        return {member["node"]: member["state"] for member in self.partition().get("members", [])}

    def indexes(self) -> dict[str, int]:
        return {member["node"]: member["index"] for member in self.partition().get("members", [])}

    def nvlink_node(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.kubectl.get("nvlinknode", name).get("status", {})
        return status

    def checkpoint(self, node: str) -> Path:
        return self.node(node).root.path / "k/plugins" / DRIVER / "imex-dra.json"

    def prepared_claims(self, node: str) -> Set[str]:
        """UIDs of the claims in the node's checkpoint."""
        return CheckpointFile(self.checkpoint(node)).load().claims.keys()

    def publishing_nodes(self) -> dict[str, str]:
        """The UID of the ResourceSlice, by node."""
        slices = self.kubectl.get("resourceslices")["items"]
        return {found["spec"]["nodeName"]: found["metadata"]["uid"] for found in slices}

    # Between two tests

    def until_healthy(self) -> None:
        members = sum(self.node(name).partition == self.partition_name for name in self.nodes)
        self.until(lambda: self.summary() == ("UP", f"{members}/{members}"))
        self.until(lambda: self.publishing_nodes().keys() == set(self.nodes))
        self.until(lambda: not any(self.nvlink_node(name).get("unreachable") for name in self.nodes))

    def reset(self, powered_off: list[str]) -> None:
        """Delete the workload, power all nodes on, and wait until the rack is healthy."""
        old, self.namespace = self.namespace, Namespace(self.cluster)
        # By force, because a kubelet that is off deletes nothing, and one that boots retries a failed prepare only
        # after a minute.
        old.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
        for name in powered_off:
            self.node(name).power_on()
        old.delete_all()
        # A forced deletion does not wait for the unprepare.
        self.until(lambda: not any(self.prepared_claims(name) for name in self.nodes))
        self.until_healthy()


def _condition(status: dict[str, Any], type_: str) -> tuple[str, str, str]:
    """Status, reason and message; empty if it is not present."""
    found = (c for c in status.get("conditions", []) if c["type"] == type_)
    return next(((c["status"], c["reason"], c["message"]) for c in found), ("", "", ""))


@contextmanager
def running_rack(nodes: int = 4, *more: RackSpec) -> Iterator[Rack]:
    name = f"d{uuid.uuid4().hex[:6]}"
    racks = (RackSpec("r0", "gb200-nvl72", nodes=nodes), *more)
    spec = Racks("sandbox.imex-dra.io/v1", "Cluster", racks, name, DELAYS)
    with running(spec) as cluster:
        rack = Rack(cluster)
        rack.until_healthy()
        yield rack
