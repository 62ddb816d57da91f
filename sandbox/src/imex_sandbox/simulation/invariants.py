"""What must hold after every step, and what must be true when all faults are over.

`sharing` is the promise of the product: no two ComputeDomains can map each other's memory. `reuse` is stronger:
no number belongs to a ComputeDomain while a live process of another may hold it.
"""

from itertools import combinations

from imex_sandbox.embedded.kinds import KINDS, PODS
from imex_sandbox.embedded.statuses import Json
from imex_sandbox.simulation.cluster import SimulatedCluster
from imex_sandbox.simulation.kubelet import Process
from imex_sandbox.simulation.scheduling import CLAIMS

PARTITIONS = next(kind for kind in KINDS if kind.plural == "nvlinkpartitions")
DOMAINS = next(kind for kind in KINDS if kind.plural == "computedomains")


class Violation(AssertionError):
    pass


def check_sharing(cluster: SimulatedCluster) -> None:
    now = cluster.loop.time()
    by_channel: dict[int, list[Process]] = {}
    for process in cluster.processes():
        if process.channel >= 0:
            by_channel.setdefault(process.channel, []).append(process)
    for channel, processes in by_channel.items():
        for one, other in combinations(processes, 2):
            if one.domain == other.domain:
                continue
            if one.node == other.node or cluster.fabric.connected(one.node, other.node, now):
                raise Violation(
                    f"channel {channel} is used by ComputeDomain {one.domain} on {one.node} and by {other.domain}"
                    f" on {other.node}, and the two nodes are connected"
                )


def check_indexes(cluster: SimulatedCluster) -> None:
    """Two live daemons of one partition never run with the same index while a third accepts both."""
    now = cluster.loop.time()
    taken: dict[tuple[str, int, str], str] = {}
    for name, daemon in cluster.fabric.daemons.items():
        if daemon.applied is None or not daemon.is_ready(now):
            continue
        for other in cluster.fabric.daemons:
            if other != name and cluster.fabric.connected(other, name, now):
                place = (daemon.applied.partition, daemon.applied.own_index, other)
                if taken.setdefault(place, name) != name:
                    raise Violation(f"{other} is connected to {name} and {taken[place]} under one index")


def check_reuse(cluster: SimulatedCluster) -> None:
    for key, stored in cluster.objects.storage.all(PARTITIONS):
        status = stored.document.get("status", {})
        if status.get("pendingReports") or key.name in cluster.restored:
            continue
        assigned = {
            entry["channel"]: entry["computeDomain"]["uid"]
            for entry in status.get("channels", ())
            if entry["state"] == "Assigned"
        }
        for process in cluster.processes():
            node = cluster.nodes[process.node]
            if node.hardware.partition != key.name:
                continue
            owner = assigned.get(process.channel)
            if owner is not None and owner != process.domain:
                raise Violation(
                    f"channel {process.channel} of {key.name} is assigned to {owner}, but a process of"
                    f" {process.domain} on {process.node} holds it"
                )


def check_every_step(cluster: SimulatedCluster) -> None:
    check_sharing(cluster)
    check_indexes(cluster)
    check_reuse(cluster)


def problems_at_rest(cluster: SimulatedCluster) -> list[str]:
    """What is still wrong although all faults ended a while ago."""
    return [*_pods(cluster), *_disks(cluster), *_deletions(cluster), *_partitions(cluster), *_domains(cluster)]


def _pods(cluster: SimulatedCluster) -> list[str]:
    running = {process.pod for process in cluster.processes()}
    found = []
    for key, stored in cluster.objects.storage.all(PODS):
        pod, uid = stored.document, stored.document["metadata"]["uid"]
        if pod["metadata"].get("deletionTimestamp"):
            found.append(f"pod {key.name} is still being deleted")
        elif not pod["spec"].get("nodeName"):
            found.append(f"pod {key.name} is not scheduled")
        elif uid not in running:
            kubelet = cluster.kubelets[pod["spec"]["nodeName"]]
            found.append(
                f"pod {key.name} does not run on {kubelet.node.name}: {kubelet.errors.get(uid, 'no error')}"
            )
    return found


def _disks(cluster: SimulatedCluster) -> list[str]:
    claims = {stored.document["metadata"]["uid"] for _, stored in cluster.objects.storage.all(CLAIMS)}
    found = []
    for node in cluster.nodes.values():
        prepared = node.prepared_claims()
        checkpoint = prepared.read()
        specs = prepared.specs.claims()
        if leaked := checkpoint.claims.keys() - claims:
            found.append(f"{node.name}: checkpoint entries without a claim: {sorted(leaked)}")
        if specs != checkpoint.claims.keys():
            found.append(f"{node.name}: CDI specs {sorted(specs)}, checkpoint {sorted(checkpoint.claims)}")
    return found


def _deletions(cluster: SimulatedCluster) -> list[str]:
    return [
        f"ComputeDomain {key.name} is still being deleted"
        for key, stored in cluster.objects.storage.all(DOMAINS)
        if stored.document["metadata"].get("deletionTimestamp")
    ]


def _partitions(cluster: SimulatedCluster) -> list[str]:
    found = []
    for key, stored in cluster.objects.storage.all(PARTITIONS):
        status = stored.document.get("status", {})
        members = [m for m in status.get("members", ()) if m["state"] == "Ready"]
        expected = sorted(n.name for n in cluster.nodes.values() if n.hardware.partition == key.name)
        if sorted(member["node"] for member in members) != expected:
            found.append(f"{key.name}: members {_brief(status)}, expected {expected}")
        if status.get("pendingReports"):
            found.append(f"{key.name}: waits for reports of {status['pendingReports']}")
    return found


def _domains(cluster: SimulatedCluster) -> list[str]:
    """The status says the truth: all pods of every ComputeDomain run."""
    used = {process.domain for process in cluster.processes()}
    return [
        f"ComputeDomain {key.name} is {stored.document.get('status', {}).get('status')}"
        for key, stored in cluster.objects.storage.all(DOMAINS)
        if stored.document["metadata"]["uid"] in used
        and stored.document.get("status", {}).get("status") != "Ready"
    ]


def _brief(status: Json) -> list[str]:
    return [f"{member['node']} {member['state']}" for member in status.get("members", ())]
