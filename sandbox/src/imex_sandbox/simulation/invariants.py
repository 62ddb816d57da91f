"""What must hold after every step.

Each check compares what is true (processes, daemons, files on disk) with what must never be, and uses nothing of
the code under test. `sharing` is what the product guarantees: no two ComputeDomains can map each other's memory.
The others are what it rests on.
"""

import json
from collections.abc import Iterator
from itertools import combinations, permutations
from typing import NamedTuple

from imex_sandbox.embedded.statuses import Json
from imex_sandbox.simulation.cluster import SimulatedCluster
from imex_sandbox.simulation.containers import Process, Told
from imex_sandbox.simulation.kinds import CLAIMS, DOMAINS, PARTITIONS


class Violation(AssertionError):
    def __init__(self, name: str, cause: str) -> None:
        super().__init__(f"{name}: {cause}")
        self.name = name


class Holder(NamedTuple):
    what: str
    node: str
    partition: str
    domain: str
    channel: int


class Invariants:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._checked: dict[str, object] = {}
        """By node: the processes, and the state of the disk, that were compared last."""
        self._prepared: dict[tuple[str, int], list[Holder]] = {}
        """By node and boot: what containers could be given at any time."""
        self._assigned: dict[str, dict[int, str]] = {}
        """By partition: the ComputeDomain of each channel that was assigned at the last check."""
        self._recorded: dict[Holder, float] = {}
        """When the partition of a holder last knew of its channel."""
        self._peers: set[tuple[Process, Process]] = set()
        """Processes of one ComputeDomain whose daemons have known each other."""

    def check(self) -> None:
        """Raises Violation."""
        self._check_sharing()
        self._check_daemons()
        self._check_peers()
        self._check_checkpoints()
        self._check_partitions()

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
        """No member is contacted by two daemons under one index.

        A daemon knows its peers by their indexes. One that still has an older list and is cut off, or was, may
        know another node under an index: it is Suspended then, and gets no channel before it has the current list.
        """
        cluster, now = self._cluster, self._cluster.loop.time()
        fabric, by_index = cluster.fabric, dict[tuple[str, int], list[str]]()
        for name, daemon in fabric.daemons.items():
            if daemon.applied is not None and daemon.is_ready(now):
                by_index.setdefault((daemon.applied.partition, daemon.applied.own_index), []).append(name)
        for (partition, index), names in by_index.items():
            for one, other in permutations(names, 2):
                for member in self._active_members(partition).difference((one, other)):
                    if fabric.connected(member, one, now) and fabric.contacts(other, member, now):
                        cause = f"{member} is connected to {one} as {index}, and contacted by {other} as {index}"
                        raise Violation("shared index", cause)

    def _active_members(self, partition: str) -> set[str]:
        for key, stored in self._cluster.storage.all(PARTITIONS):
            if key.name == partition:
                members = stored.document.get("status", {}).get("members", ())
                return {member["node"] for member in members if member["state"] not in ("Leaving", "Suspended")}
        return set()

    def _check_peers(self) -> None:
        """The daemons of a job that runs never drop each other, unless a node was moved."""
        daemons, jobs = self._cluster.fabric.daemons, dict[tuple[str, str], list[Process]]()
        for process in self._cluster.processes():
            hardware = self._cluster.nodes[process.node].hardware
            if (hardware.partition, hardware.moves) == (process.partition, process.moves):
                jobs.setdefault((process.domain, process.partition), []).append(process)
        peers = set()
        for (_, partition), processes in jobs.items():
            for pair in combinations(processes, 2):
                if pair[0].node == pair[1].node:
                    continue
                one, other = (daemons.get(process.node) for process in pair)
                if one and other and one.lists(partition, other) and other.lists(partition, one):
                    peers.add(pair)
                elif pair in self._peers:
                    raise Violation(
                        "peer dropped", f"the daemons of {pair[0]} and {pair[1]} no longer list each other"
                    )
        self._peers = peers

    def _check_partitions(self) -> None:
        existing = {key.name for key, _ in self._cluster.storage.all(PARTITIONS)}
        for holder in self._holders():
            if holder.channel >= 0 and holder.partition not in existing | self._cluster.restored:
                self._check_assignment(None, holder, {})
        for key, stored in self._cluster.storage.all(PARTITIONS):
            status = stored.document.get("status", {})
            _check_members(key.name, status)
            # An object that was lost, or restored from a backup, says nothing until the nodes have reported.
            if status.get("pendingReports") or not status.get("epoch") or key.name in self._cluster.restored:
                self._assigned.pop(key.name, None)
                continue
            entries = {entry["channel"]: entry for entry in status.get("channels", ())}
            self._check_releases(key.name, entries)
            self._check_foreign_channels(key.name, status, entries)
            for holder in self._holders():
                if holder.partition == key.name and holder.channel >= 0:
                    self._check_assignment(entries.get(holder.channel), holder, status)

    def _check_assignment(self, entry: Json | None, holder: Holder, status: Json) -> None:
        """The partition knows of every channel that a process has or could have, until that has ended."""
        where = f"channel {holder.channel} of {holder.partition}"
        who = f"{holder.what} of {holder.domain} on {holder.node}"
        uid = entry["computeDomain"].get("uid", "") if entry else ""
        is_reused = entry is not None and entry["state"] == "Assigned" and uid != holder.domain
        if not is_reused and entry is not None and uid in (holder.domain, ""):
            self._recorded[holder] = self._cluster.loop.time()
        elif self._was_lost_without_its_node(holder, status):
            return
        elif is_reused:
            raise Violation("channel reused", f"{where} is assigned to {uid}, but {who} holds it")
        else:
            raise Violation("channel forgotten", f"{who} holds {where}, but the partition does not know it")

    def _was_lost_without_its_node(self, holder: Holder, status: Json) -> bool:
        """Whether the entry was lost with a restore, and the node of the holder is not in the partition.

        If no member holds a channel that the restored version does not know, nothing proves the restore. It does
        no harm as long as the node is away: it is connected to no member, and must be drained before it returns
        (`DrainFirst`). A node that returns without that is a violation again.
        """
        recorded = self._recorded.get(holder)
        if recorded is None or self._cluster.tampered_at.get(holder.partition, -1.0) < recorded:
            return False
        daemon = self._cluster.fabric.daemons.get(holder.node)
        runs_here = daemon is not None and daemon.applied and daemon.applied.partition == holder.partition
        return not runs_here and holder.node not in {member["node"] for member in status.get("members", ())}

    def _check_releases(self, partition: str, entries: dict[int, Json]) -> None:
        """A channel stays assigned while pods use it, unless a user has asked for its release."""
        before = self._assigned.get(partition, {})
        self._assigned[partition] = {
            channel: entry["computeDomain"]["uid"]
            for channel, entry in entries.items()
            if entry["state"] == "Assigned"
        }
        released = {uid for channel, uid in before.items() if uid != self._assigned[partition].get(channel)}
        if not released:
            return
        storage = self._cluster.storage
        kept = {
            one.document["metadata"]["uid"]
            for _, one in storage.all(DOMAINS)
            if "imex-dra.io/release" not in one.document["metadata"].get("annotations", {})
        }
        claims = {one.document["metadata"]["uid"] for _, one in storage.all(CLAIMS)}
        for process in self._cluster.processes():
            if process.partition == partition and process.domain in released & kept and process.claim in claims:
                raise Violation("channel released in use", f"{process} uses it, and its claim is still there")

    def _check_foreign_channels(self, partition: str, status: Json, entries: dict[int, Json]) -> None:
        """No member holds a channel number of another partition that is assigned to another ComputeDomain here."""
        inside = {m["node"] for m in status.get("members", ()) if m["state"] not in ("Leaving", "Suspended")}
        for process in self._cluster.processes():
            if process.partition == partition or process.node not in inside:
                continue
            entry = entries.get(process.channel)
            if entry and entry["state"] == "Assigned" and entry["computeDomain"].get("uid") != process.domain:
                cause = f"{process} is on a member of {partition}, which has assigned the same number"
                raise Violation("foreign channel", cause)

    def _holders(self) -> Iterator["Holder"]:
        for process in self._cluster.processes():
            yield Holder("a process", process.node, process.partition, process.domain, process.channel)
        for node in self._cluster.nodes.values():
            if node.powered:
                yield from self._prepared.get((node.name, node.hardware.boot), ())

    def _check_checkpoints(self) -> None:
        """Every process with a channel is in the checkpoint of its node: only this survives the node program."""
        for name, kubelet in self._cluster.kubelets.items():
            node = kubelet.node
            state = (tuple(kubelet.processes), frozenset(kubelet.finished), node.disk.changes)
            if self._checked.get(name) == state:
                continue
            self._checked[name] = state
            claims = read_checkpoint(node.checkpoint.read_bytes()) if node.checkpoint.exists() else None
            if again := kubelet.finished.intersection(claims or ()):
                raise Violation("prepared after its unprepare", f"{name}: {sorted(again)}")
            if claims is not None:
                boot_id = f"boot-{node.hardware.boot}"
                self._prepared[name, node.hardware.boot] = [
                    Holder("a prepared claim", name, claim["partition"], claim["domainUid"], claim["channel"])
                    for claim in claims.values()
                    if claim["bootId"] == boot_id
                ]
            for process in kubelet.processes.values():
                if process.told != Told(process.domain, process.channel, process.partition):
                    raise Violation("wrong environment", f"{process} was told something else")
                # Without a readable file, the CDI specs are the record.
                if claims is None:
                    continue
                claim = claims.get(process.claim, {})
                recorded = tuple(claim.get(field) for field in ("domainUid", "channel", "partition"))
                if recorded != (process.domain, process.channel, process.partition):
                    cause = f"{process} is not in the checkpoint, which has {sorted(claims)}"
                    raise Violation("process without checkpoint", cause)


def _check_members(partition: str, status: Json) -> None:
    for name in ("index", "node"):
        values = [member.get(name) for member in status.get("members", ())]
        if len(values) != len(set(values)):
            raise Violation("ambiguous member list", f"{partition}: two members have one {name}: {values}")


def read_checkpoint(content: bytes) -> dict[str, Json] | None:
    """The claims, by UID; None if the file is damaged."""
    try:
        claims: dict[str, Json] = json.loads(json.loads(content)["payload"]).get("claims", {})
    except ValueError:
        return None
    return claims
