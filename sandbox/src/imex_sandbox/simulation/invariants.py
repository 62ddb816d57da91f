"""What must hold after every step.

Each check compares what is true (processes, daemons, files on disk) with what must never be, and uses nothing of
the code under test. `sharing` is the promise of the product: no two ComputeDomains can map each other's memory.
The others are what it rests on.
"""

import json
from itertools import combinations

from imex_sandbox.embedded.statuses import Json
from imex_sandbox.embedded.storage import Key
from imex_sandbox.simulation.cluster import SimulatedCluster
from imex_sandbox.simulation.kinds import PARTITIONS
from imex_sandbox.simulation.kubelet import Process


class Violation(AssertionError):
    def __init__(self, name: str, cause: str) -> None:
        super().__init__(f"{name}: {cause}")
        self.name = name


class Invariants:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._checked: dict[str, object] = {}
        """By node: the processes, and the state of the disk, that were compared last."""

    def check(self) -> None:
        """Raises Violation."""
        self._check_sharing()
        self._check_daemons()
        self._check_partitions()
        self._check_checkpoints()

    def _check_sharing(self) -> None:
        cluster, now = self._cluster, self._cluster.loop.time()
        by_channel: dict[int, list[Process]] = {}
        for process in cluster.processes():
            if process.channel >= 0:
                by_channel.setdefault(process.channel, []).append(process)
        for channel, processes in by_channel.items():
            for one, other in combinations(processes, 2):
                if one.domain == other.domain:
                    continue
                if one.node == other.node or cluster.fabric.connected(one.node, other.node, now):
                    cause = f"channel {channel} is used by {one.domain} on {one.node} and by {other.domain}"
                    raise Violation("shared channel", f"{cause} on {other.node}, and the nodes are connected")

    def _check_daemons(self) -> None:
        """No daemon is connected to two others under one index."""
        cluster, now = self._cluster, self._cluster.loop.time()
        by_index: dict[tuple[str, int], list[str]] = {}
        for name, daemon in cluster.fabric.daemons.items():
            if daemon.applied is not None and daemon.is_ready(now):
                by_index.setdefault((daemon.applied.partition, daemon.applied.own_index), []).append(name)
        for (_, index), names in by_index.items():
            for one, other in combinations(names, 2):
                for third in cluster.fabric.daemons:
                    if cluster.fabric.connected(third, one, now) and cluster.fabric.connected(third, other, now):
                        raise Violation("shared index", f"{third} is connected to {one} and {other} as {index}")

    def _check_partitions(self) -> None:
        for key, stored in self._cluster.storage.all(PARTITIONS):
            status = stored.document.get("status", {})
            _check_members(key.name, status)
            # An object that was lost, or restored from a backup, says nothing until the nodes have reported.
            if status.get("pendingReports") or not status.get("epoch") or key.name in self._cluster.restored:
                continue
            entries = {entry["channel"]: entry for entry in status.get("channels", ())}
            for process in self._cluster.processes():
                if process.partition == key.name and process.channel >= 0:
                    self._check_assignment(key, entries.get(process.channel), process)

    def _check_assignment(self, partition: Key, entry: Json | None, process: Process) -> None:
        """The partition knows of every channel that a process can open, until the process has ended."""
        where = f"channel {process.channel} of {partition.name}"
        holder = f"a process of {process.domain} on {process.node}"
        uid = entry["computeDomain"].get("uid", "") if entry else ""
        if entry is not None and entry["state"] == "Assigned" and uid != process.domain:
            raise Violation("channel reused", f"{where} is assigned to {uid}, but {holder} holds it")
        if uid not in (process.domain, "") or entry is None:
            raise Violation("channel forgotten", f"{holder} holds {where}, but the partition does not know it")

    def _check_checkpoints(self) -> None:
        """Every process with a channel is in the checkpoint of its node: only this survives the node program."""
        for name, kubelet in self._cluster.kubelets.items():
            node = kubelet.node
            state = (tuple(kubelet.processes), node.disk.changes)
            if self._checked.get(name) == state or not kubelet.processes:
                continue
            self._checked[name] = state
            claims = read_checkpoint(node.checkpoint.read_bytes()) if node.checkpoint.exists() else None
            for process in kubelet.processes.values():
                if process.told != process.channel:
                    raise Violation("wrong environment", f"{process} was told another channel")
                # Without a readable file, the CDI specs are the record.
                if claims is None:
                    continue
                if claims.get(process.claim) != (process.domain, process.channel):
                    cause = f"{process} is not in the checkpoint, which has {sorted(claims)}"
                    raise Violation("process without checkpoint", cause)


def _check_members(partition: str, status: Json) -> None:
    for name in ("index", "node"):
        values = [member.get(name) for member in status.get("members", ())]
        if len(values) != len(set(values)):
            raise Violation("ambiguous member list", f"{partition}: two members have one {name}: {values}")


def read_checkpoint(content: bytes) -> dict[str, tuple[str, int]] | None:
    """Domain and channel by claim; None if the file is damaged."""
    try:
        payload = json.loads(json.loads(content)["payload"])
    except ValueError:
        return None
    claims: dict[str, Json] = payload.get("claims", {})
    return {uid: (claim["domainUid"], claim["channel"]) for uid, claim in claims.items()}
