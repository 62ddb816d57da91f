"""The checks of the demo, as pure functions over what the watches show. Each says what it found."""

import re
from collections.abc import Sequence

from imex_dra.api.computedomain import ComputeDomain, Readiness
from imex_dra.api.nvlinknode import ImexState
from imex_dra.api.nvlinkpartition import ChannelState, NVLinkPartition, PartitionState
from imex_dra.api.views import ResourceClaim
from imex_dra.picture.snapshot import Snapshot, is_ready
from imex_sandbox.demo.report import Check, ClaimRow
from imex_sandbox.demo.sharedmemory import CONTENT, MemoryResult
from imex_sandbox.softimex.memory import CudaError

RESERVED = "allocated,reserved"
_LISTED = 3
"""How many objects a message lists before it counts the rest."""
_RANK = re.compile(r"^#\s+Rank\s+\d+ Group", re.MULTILINE)
_OUT_OF_BOUNDS = re.compile(r"^# Out of bounds values : (.*)$", re.MULTILINE)


def nodes_are_ready(observed: Snapshot, expected: int) -> Check:
    late = [f"{node.metadata.name} is not" for node in observed.nodes if not is_ready(node)]
    ready = len(observed.nodes) - len(late)
    return Check("nodes are Ready", ready == expected and not late, _of(ready, expected, late))


def daemons_are_ready(observed: Snapshot, expected: int) -> Check:
    late = [
        f"{node.metadata.name} is {node.status.imex_state.value}"
        for node in observed.nvlink_nodes
        if node.status.imex_state is not ImexState.READY
    ]
    ready = len(observed.nvlink_nodes) - len(late)
    return Check("IMEX daemons are READY", ready == expected, _of(ready, expected, late))


def partitions_are_up(observed: Snapshot, expected: int, members: int) -> Check:
    summaries = [f"{p.status.summary.state.value} {p.status.summary.nodes}" for p in observed.partitions]
    complete = [p for p in observed.partitions if _is_complete(p, members)]
    return Check(
        "NVLink partitions are UP, with every node as a member",
        len(complete) == expected == len(observed.partitions),
        ", ".join(sorted(summaries)) or "none",
    )


def channel_devices_are_published(observed: Snapshot, expected: int) -> Check:
    publishing = {found.spec.node_name for found in observed.slices if found.spec.devices}
    missing = sorted({node.metadata.name for node in observed.nodes} - publishing)
    found = _of(len(publishing), expected, [f"{name} does not" for name in missing])
    return Check("nodes publish channel devices", len(publishing) == expected, found)


def domain_is_ready(domain: ComputeDomain | None, nodes: int) -> Check:
    """The number of nodes is checked, too: a ComputeDomain is Ready with the pods that exist so far."""
    what = "the ComputeDomain is Ready"
    if domain is None:
        return Check(what, False, "it is gone")
    message = next((c.message for c in domain.status.conditions if c.status == "False" and c.message), "")
    found = ", ".join(filter(None, (domain.status.status.value, f"nodes {domain.status.summary.nodes}", message)))
    ready = domain.status.status is Readiness.READY
    return Check(what, ready and len(domain.status.nodes) == nodes, found)


def claim_row(claim: ResourceClaim, partitions: Sequence[NVLinkPartition]) -> ClaimRow:
    """The node, partition and channel of a claim."""
    node = ", ".join(sorted(claim.nodes))
    partition = next((p for p in partitions if any(m.node == node for m in p.status.members)), None)
    uids = claim.domain_uids
    channels = [
        one.channel
        for one in (partition.status.channels if partition else ())
        if one.compute_domain.uid in uids and one.state is ChannelState.ASSIGNED
    ]
    return ClaimRow(
        claim.metadata.name,
        claim.pods,
        claim_state(claim),
        node,
        partition.metadata.name if partition else "",
        # Two channels would violate the driver's central invariant: report none rather than the first one.
        channels[0] if len(channels) == 1 else None,
    )


def claim_state(claim: ResourceClaim) -> str:
    """As `kubectl get resourceclaims` prints it."""
    if claim.status.allocation is None:
        return "pending"
    words = ("deleted" * bool(claim.metadata.deletion_timestamp), "allocated", "reserved" * bool(claim.pods))
    return ",".join(filter(None, words))


def claims_are_reserved(rows: Sequence[ClaimRow], expected: int) -> list[Check]:
    """Every claim is allocated and reserved, and all of them have the same channel in one partition."""
    reserved = [one for one in rows if one.state == RESERVED]
    others = [f"{one.name} is {one.state}" for one in rows if one.state != RESERVED]
    partitions = sorted({one.partition or "none" for one in rows})
    channels = sorted({"none" if one.channel is None else str(one.channel) for one in rows})
    return [
        Check(
            f"claims are {RESERVED}",
            len(reserved) == expected == len(rows),
            _of(len(reserved), expected, others),
        ),
        Check(
            "one channel", len(channels) == 1 and channels != ["none"], f"channel {', '.join(channels) or 'none'}"
        ),
        Check("one partition", len(partitions) == 1 and partitions != ["none"], ", ".join(partitions) or "none"),
    ]


def claims_are_on_different_nodes(rows: Sequence[ClaimRow], expected: int) -> Check:
    nodes = {one.node for one in rows if one.node}
    return Check("each claim is on a different node", len(nodes) == expected, _of(len(nodes), expected))


def container_has_its_channel(output: str, domain: str, channel: int | None) -> Check:
    """`output`: the container's channel devices, then the name and the channel in its environment."""
    expected = [f"channel{channel}", f"{domain} {channel}"]
    found = output.split("\n")
    return Check("the container has this channel and no other", found == expected, ", ".join(found))


def allreduce_succeeded(output: str, ranks: int) -> list[Check]:
    """`output` has the format of nccl-tests."""
    participating = len(_RANK.findall(output))
    result = _OUT_OF_BOUNDS.findall(output)
    return [
        Check("ranks that took part", participating == ranks, f"{participating} of {ranks}"),
        Check("every element of every sum is right", result == ["0 OK"], result[0] if result else "no result"),
    ]


def memory_was_read(result: MemoryResult) -> Check:
    good = result.content == CONTENT.decode()
    return Check("a process of the same ComputeDomain on another node reads the memory", good, str(result))


def memory_was_refused(result: MemoryResult) -> Check:
    """The handle is valid: the process of the same ComputeDomain used it."""
    good = result.code == CudaError.NOT_PERMITTED and not result.content
    return Check("a process of another ComputeDomain is refused", good, str(result))


def channels_differ(one: ClaimRow, other: ClaimRow) -> Check:
    """Two ComputeDomains in one partition never share a channel."""
    same_partition = one.partition == other.partition
    differ = one.channel is not None and other.channel is not None and one.channel != other.channel
    found = f"channels {one.channel} and {other.channel}" if same_partition else "different partitions"
    return Check(
        "the other ComputeDomain has another channel in the same partition", differ and same_partition, found
    )


def nothing_is_left(observed: Snapshot) -> list[Check]:
    domains = [f"{d.metadata.namespace}/{d.metadata.name}" for d in observed.domains]
    claims = [f"{c.metadata.namespace}/{c.metadata.name}" for c in observed.claims]
    assigned = [
        str(one.channel)
        for partition in observed.partitions
        for one in partition.status.channels
        if one.state is ChannelState.ASSIGNED
    ]
    return [
        Check("no ComputeDomain is left", not domains, _listed(domains)),
        Check("no claim is left", not claims, _listed(claims)),
        Check("no channel is assigned", not assigned, _listed(assigned)),
    ]


def no_claim_is_prepared(specs: Sequence[str]) -> Check:
    """`specs`: the CDI specs on the nodes' disks, without which no container gets a channel."""
    return Check("no node has a prepared claim", not specs, _listed(specs))


def _is_complete(partition: NVLinkPartition, members: int) -> bool:
    return partition.status.summary.state is PartitionState.UP and len(partition.status.members) == members


def _of(count: int, expected: int, others: Sequence[str] = ()) -> str:
    return f"{count} of {expected}" + (f": {_listed(others)}" if others else "")


def _listed(objects: Sequence[str]) -> str:
    more = f" and {len(objects) - _LISTED} more" if len(objects) > _LISTED else ""
    return ", ".join(objects[:_LISTED]) + more
