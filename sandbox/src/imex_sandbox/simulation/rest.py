"""What must be true a while after the last fault: nothing leaked, nothing stuck, every status says the truth."""

import json
from collections.abc import Iterator

from imex_sandbox.embedded.kinds import PODS
from imex_sandbox.embedded.statuses import Json
from imex_sandbox.embedded.storage import Key
from imex_sandbox.simulation.cluster import SimulatedCluster
from imex_sandbox.simulation.invariants import read_checkpoint
from imex_sandbox.simulation.kinds import (
    CLAIMS,
    DOMAINS,
    NODES,
    NVLINK_NODES,
    PARTITIONS,
    SLICES,
    TEMPLATES,
)
from imex_sandbox.simulation.node import SimulatedNode


def problems_at_rest(cluster: SimulatedCluster) -> list[str]:
    found = (_pods, _disks, _deletions, _leftovers, _nodes, _partitions, _domains)
    return [problem for check in found for problem in check(cluster)]


def _pods(cluster: SimulatedCluster) -> Iterator[str]:
    running = {process.pod for process in cluster.processes()}
    for key, stored in cluster.storage.all(PODS):
        pod, uid = stored.document, stored.document["metadata"]["uid"]
        if pod["metadata"].get("deletionTimestamp"):
            yield f"pod {key.name} is still being deleted"
        elif not pod["spec"].get("nodeName"):
            yield f"pod {key.name} is not scheduled"
        elif uid not in running:
            kubelet = cluster.kubelets[pod["spec"]["nodeName"]]
            if _is_exhausted(cluster, kubelet.node) and "no free channel" in kubelet.errors.get(uid, ""):
                continue
            yield f"pod {key.name} does not run on {kubelet.node.name}: {kubelet.errors.get(uid, 'no error')}"


def _is_exhausted(cluster: SimulatedCluster, node: SimulatedNode) -> bool:
    """Whether every channel of the partition is assigned; channel 0 never is."""
    partition = cluster.objects.get(PARTITIONS, Key("", node.hardware.partition)).document
    entries = partition.get("status", {}).get("channels", ())
    held = {process.channel for process in cluster.processes() if process.partition == node.hardware.partition}
    used = [entry for entry in entries if entry["state"] == "Assigned" or entry["channel"] in held]
    return len(used) == node.hardware.channel_count - 1


def _disks(cluster: SimulatedCluster) -> Iterator[str]:
    claims = {stored.document["metadata"]["uid"] for _, stored in cluster.storage.all(CLAIMS)}
    for node in cluster.nodes.values():
        content = node.checkpoint.read_bytes() if node.checkpoint.exists() else b'{"payload":"{}"}'
        prepared = read_checkpoint(content)
        specs = {path.stem.rpartition("_")[2] for path in (node.root / "cdi").glob("*.json")}
        if prepared is None:
            yield f"{node.name}: the checkpoint is damaged"
            continue
        if leaked := prepared.keys() - claims:
            yield f"{node.name}: checkpoint entries without a claim: {sorted(leaked)}"
        if specs != prepared.keys():
            yield f"{node.name}: CDI specs {sorted(specs)}, checkpoint {sorted(prepared)}"
        yield from _outdated_specs(node)
        if leftover := [path.name for path in sorted(node.root.rglob(".*"))]:
            yield f"{node.name}: temporary files: {leftover}"


def _outdated_specs(node: SimulatedNode) -> Iterator[str]:
    for path in sorted((node.root / "cdi").glob("*.json")):
        edits = json.loads(path.read_text())["devices"][0]["containerEdits"]
        majors = {device["major"] for device in edits.get("deviceNodes", ())}
        if majors - {node.hardware.major}:
            yield f"{node.name}: {path.name} has the major {majors}, the driver has {node.hardware.major}"


def _deletions(cluster: SimulatedCluster) -> Iterator[str]:
    for kind in (DOMAINS, CLAIMS, TEMPLATES, PARTITIONS):
        for key, stored in cluster.storage.all(kind):
            document = stored.document
            # A partition that is in use works on, and its condition DeletionBlocked says when it will be deleted.
            # It may have been empty when it was deleted: a restore brings the deletion back.
            is_used = kind is PARTITIONS and document.get("status", {}).get("members")
            if document["metadata"].get("deletionTimestamp") and not is_used:
                yield f"{kind.kind} {key.name} is still being deleted"


def _leftovers(cluster: SimulatedCluster) -> Iterator[str]:
    domains = {key.name for key, _ in cluster.storage.all(DOMAINS)}
    for key, _ in cluster.storage.all(TEMPLATES):
        if key.name not in domains:
            yield f"ResourceClaimTemplate {key.name} has no ComputeDomain"
    for key, _ in cluster.storage.all(NVLINK_NODES):
        if key.name not in cluster.nodes:
            yield f"NVLinkNode {key.name} has no node"


def _nodes(cluster: SimulatedCluster) -> Iterator[str]:
    slices = {one.document["spec"]["nodeName"]: one.document for _, one in cluster.storage.all(SLICES)}
    reports = {key.name: one.document.get("status", {}) for key, one in cluster.storage.all(NVLINK_NODES)}
    labels = {key.name: one.document["metadata"].get("labels", {}) for key, one in cluster.storage.all(NODES)}
    for node in cluster.nodes.values():
        report = reports.get(node.name, {})
        if not slices.get(node.name, {}).get("spec", {}).get("devices"):
            yield f"{node.name} publishes no devices"
        if node.hardware.partition not in labels.get(node.name, {}).values():
            yield f"Node {node.name} has the labels {labels.get(node.name)}"
        if _condition(report, "Ready") != "True":
            yield f"NVLinkNode {node.name} is not Ready: {report.get('conditions')}"
        if report.get("unreachable"):
            yield f"{node.name} does not reach {report['unreachable']}"
        yield from _untrue_report(cluster, node, report)


def _untrue_report(cluster: SimulatedCluster, node: SimulatedNode, report: Json) -> Iterator[str]:
    processes = list(cluster.kubelets[node.name].processes.values())
    held = {(h["partition"], h["channel"], h["computeDomain"]) for h in report.get("heldChannels", ())}
    used = {(process.partition, process.channel, process.domain) for process in processes}
    if missing := used - held:
        yield f"NVLinkNode {node.name} does not list channels that are held: {sorted(missing)}"
    # The end of a use is reported with the next write: only a released channel waits for it.
    assigned = {
        (key.name, entry["channel"], entry["computeDomain"]["uid"])
        for key, stored in cluster.storage.all(PARTITIONS)
        for entry in stored.document.get("status", {}).get("channels", ())
        if entry["state"] == "Assigned"
    }
    if ended := held - used - assigned:
        yield f"NVLinkNode {node.name} lists released channels that nothing holds: {sorted(ended)}"
    listed, prepared = set(report.get("preparedClaims", ())), {process.claim for process in processes}
    if unlisted := prepared - listed:
        yield f"NVLinkNode {node.name} does not list prepared claims: {sorted(unlisted)}"
    # An unprepare is no reason for a write, either.
    existing = {stored.document["metadata"]["uid"] for _, stored in cluster.storage.all(CLAIMS)}
    if untrue := (listed - prepared) & existing:
        yield f"NVLinkNode {node.name} lists claims that are not prepared: {sorted(untrue)}"


def _partitions(cluster: SimulatedCluster) -> Iterator[str]:
    domains = {one.document["metadata"]["uid"] for _, one in cluster.storage.all(DOMAINS)}
    listed = {key.name for key, _ in cluster.storage.all(PARTITIONS)}
    if missing := {node.hardware.partition for node in cluster.nodes.values()} - listed:
        yield f"there is no NVLinkPartition {sorted(missing)}"
    for key, stored in cluster.storage.all(PARTITIONS):
        status = stored.document.get("status", {})
        members = status.get("members", ())
        expected = sorted(n.name for n in cluster.nodes.values() if n.hardware.partition == key.name)
        if sorted(m["node"] for m in members if m["state"] == "Ready") != expected or len(members) != len(
            expected
        ):
            brief = [f"{member['node']} {member['state']}" for member in members]
            yield f"{key.name}: members {brief}, expected {expected}, {status.get('conditions')}"
        if status.get("pendingReports"):
            yield f"{key.name}: waits for reports of {status['pendingReports']}"
        if not expected and not status.get("channels"):
            yield f"{key.name} is not used, but still there"
        if _condition(status, "Ready") != ("True" if expected else "False"):
            yield f"{key.name} with the nodes {expected}: {status.get('conditions')}"
        held = {process.channel for process in cluster.processes() if process.partition == key.name}
        for entry in status.get("channels", ()):
            if not entry["computeDomain"].get("uid") and entry["channel"] in held:
                continue  # after a restore, two ComputeDomains had a claim to it
            if entry["state"] != "Assigned" or entry["computeDomain"]["uid"] not in domains:
                yield f"{key.name}: channel {entry['channel']} is {entry['state']}, {entry['computeDomain']}"


def _domains(cluster: SimulatedCluster) -> Iterator[str]:
    nodes: dict[str, set[str]] = {}
    for process in cluster.processes():
        nodes.setdefault(process.domain, set()).add(process.node)
    for key, stored in cluster.storage.all(DOMAINS):
        status = stored.document.get("status", {})
        used = nodes.get(stored.document["metadata"]["uid"], set())
        if any(node.get("reason") == "ChannelsExhausted" for node in status.get("nodes", ())):
            continue  # `_pods` checks whether that is true
        if _condition(status, "Ready") != ("True" if used else "False"):
            yield f"ComputeDomain {key.name} with pods on {sorted(used)}: {status.get('conditions')}"
        if {node["name"] for node in status.get("nodes", ())} != used:
            yield f"ComputeDomain {key.name} lists {status.get('nodes')}, its pods run on {sorted(used)}"
        if _condition(status, "Degraded") == "True":
            yield f"ComputeDomain {key.name} is Degraded: {status.get('conditions')}"


def _condition(status: Json, name: str) -> str:
    return next((one["status"] for one in status.get("conditions", ()) if one["type"] == name), "")
