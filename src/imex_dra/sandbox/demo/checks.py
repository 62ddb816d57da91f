"""What has to be so, as pure functions over what the watches show. Each says what it found, good or bad."""

from collections.abc import Sequence

from imex_dra.api.computedomain import ComputeDomain, Readiness
from imex_dra.api.nvlinknode import ImexState
from imex_dra.api.nvlinkpartition import ChannelState, NVLinkPartition, PartitionState
from imex_dra.api.views import ResourceClaim
from imex_dra.controller.observed import claim_nodes, domain_uids
from imex_dra.picture.observed import Observed, is_ready
from imex_dra.sandbox.demo.memory import CONTENT, Word
from imex_dra.sandbox.demo.report import Check, ClaimRow
from imex_dra.softimex.memory import CudaError

RESERVED = "allocated,reserved"
_NAMED = 3
"""How many offenders are named in a sentence."""


def nodes_are_ready(observed: Observed, expected: int) -> Check:
    late = [f"{node.metadata.name} is not" for node in observed.nodes if not is_ready(node)]
    ready = len(observed.nodes) - len(late)
    return Check("nodes are Ready", ready == expected and not late, _of(ready, expected, late))


def daemons_are_ready(observed: Observed, expected: int) -> Check:
    late = [
        f"{card.metadata.name} is {card.status.imex_state.value}"
        for card in observed.cards
        if card.status.imex_state is not ImexState.READY
    ]
    ready = len(observed.cards) - len(late)
    return Check("IMEX daemons are READY", ready == expected, _of(ready, expected, late))


def partitions_are_up(observed: Observed, expected: int, members: int) -> Check:
    told = [f"{p.status.summary.state.value} {p.status.summary.nodes}" for p in observed.partitions]
    whole = [p for p in observed.partitions if _is_whole(p, members)]
    return Check(
        "NVLink partitions are UP, with every node a member",
        len(whole) == expected == len(observed.partitions),
        ", ".join(sorted(told)) or "there is none",
    )


def seats_are_offered(observed: Observed, expected: int) -> Check:
    offering = {found.spec.node_name for found in observed.slices if found.spec.devices}
    missing = [f"{name} does not" for name in sorted({node.metadata.name for node in observed.nodes} - offering)]
    return Check(
        "nodes offer seats to the scheduler", len(offering) == expected, _of(len(offering), expected, missing)
    )


def domain_is_ready(domain: ComputeDomain | None, nodes: int) -> Check:
    """With that many nodes: without any it is Ready as well."""
    what = "the ComputeDomain is Ready"
    if domain is None:
        return Check(what, False, "it is gone")
    told = next((c.message for c in domain.status.conditions if c.status == "False" and c.message), "")
    found = ", ".join(filter(None, (domain.status.status.value, f"nodes {domain.status.summary.nodes}", told)))
    ready = domain.status.status is Readiness.READY
    return Check(what, ready and len(domain.status.nodes) == nodes, found)


def row(claim: ResourceClaim, partitions: Sequence[NVLinkPartition]) -> ClaimRow:
    """What one claim came to: on which node, in which partition, with which channel."""
    node = ", ".join(sorted(claim_nodes(claim)))
    partition = next((p for p in partitions if any(m.node == node for m in p.status.members)), None)
    uids = domain_uids(claim)
    numbers = [
        one.channel
        for one in (partition.status.channels if partition else ())
        if one.compute_domain.uid in uids and one.state is ChannelState.ASSIGNED
    ]
    return ClaimRow(
        claim.metadata.name,
        claim.pods,
        state(claim),
        node,
        partition.metadata.name if partition else "",
        numbers[0] if len(numbers) == 1 else None,
    )


def state(claim: ResourceClaim) -> str:
    """As `kubectl get resourceclaims` prints it."""
    if claim.status.allocation is None:
        return "pending"
    words = ("deleted" * bool(claim.metadata.deletion_timestamp), "allocated", "reserved" * bool(claim.pods))
    return ",".join(filter(None, words))


def claims_are_held(rows: Sequence[ClaimRow], expected: int) -> list[Check]:
    """Every claim allocated and reserved, and all together one channel in one partition."""
    held = [one for one in rows if one.state == RESERVED]
    other = [f"{one.name} is {one.state}" for one in rows if one.state != RESERVED]
    partitions = sorted({one.partition or "none" for one in rows})
    channels = sorted({"none" if one.channel is None else str(one.channel) for one in rows})
    return [
        Check(f"claims are {RESERVED}", len(held) == expected == len(rows), _of(len(held), expected, other)),
        Check(
            "one channel", len(channels) == 1 and channels != ["none"], f"channel {', '.join(channels) or 'none'}"
        ),
        Check("one partition", len(partitions) == 1 and partitions != ["none"], ", ".join(partitions) or "none"),
    ]


def nodes_are_their_own(rows: Sequence[ClaimRow], expected: int) -> Check:
    nodes = {one.node for one in rows if one.node}
    return Check("each claim is on a node of its own", len(nodes) == expected, _of(len(nodes), expected))


def container_has(said: str, domain: str, channel: int | None) -> Check:
    """What a container listed of its devices and printed of its environment."""
    expected = [f"channel{channel}", f"{domain} {channel}"]
    found = said.split("\n")
    return Check("the container has that channel and no other", found == expected, ", ".join(found))


def was_let_in(word: Word) -> Check:
    good = word.content == CONTENT.decode()
    return Check("a process of the same ComputeDomain on another node reads the memory", good, str(word))


def was_refused(word: Word) -> Check:
    """With the very handle that the other one read by."""
    good = word.code == CudaError.NOT_PERMITTED and not word.content
    return Check("a process of another ComputeDomain is refused", good, str(word))


def channels_differ(one: ClaimRow, other: ClaimRow) -> Check:
    """Two ComputeDomains in one partition never share a number."""
    apart = one.channel is not None and other.channel is not None and one.channel != other.channel
    return Check(
        "its channel in the same partition is another one",
        apart and one.partition == other.partition,
        f"channel {other.channel} beside {one.channel}"
        if one.partition == other.partition
        else "another partition",
    )


def nothing_is_left(observed: Observed) -> list[Check]:
    domains = [f"{d.metadata.namespace}/{d.metadata.name}" for d in observed.domains]
    claims = [f"{c.metadata.namespace}/{c.metadata.name}" for c in observed.claims]
    assigned = [
        str(one.channel)
        for partition in observed.partitions
        for one in partition.status.channels
        if one.state is ChannelState.ASSIGNED
    ]
    return [
        Check("no ComputeDomain is left", not domains, _named(domains)),
        Check("no claim is left", not claims, _named(claims)),
        Check("no channel is assigned", not assigned, _named(assigned)),
    ]


def nodes_are_empty(specs: Sequence[str]) -> Check:
    """By the CDI specs on their disks, without which no container gets a channel."""
    return Check("no node has a channel prepared", not specs, _named(specs))


def _is_whole(partition: NVLinkPartition, members: int) -> bool:
    return partition.status.summary.state is PartitionState.UP and len(partition.status.members) == members


def _of(count: int, expected: int, offenders: Sequence[str] = ()) -> str:
    return f"{count} of {expected}" + (f": {_named(offenders)}" if offenders else "")


def _named(offenders: Sequence[str]) -> str:
    more = f" and {len(offenders) - _NAMED} more" if len(offenders) > _NAMED else ""
    return ", ".join(offenders[:_NAMED]) + more
