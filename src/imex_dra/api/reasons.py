"""Why something is as it is: one enum, one sentence each.

Conditions, Events, prepare errors and `imex explain` all say the same words, because all of them call
`sentence`. A sentence names the object and the cause, and, where somebody can do something, the next step.
"""

import string
from enum import StrEnum

from imex_dra.base.errors import Misconfigured


class Reason(StrEnum):
    NO_SUCH_COMPUTE_DOMAIN = "NoSuchComputeDomain"
    OTHER_NAMESPACE = "OtherNamespace"
    COMPUTE_DOMAIN_DELETING = "ComputeDomainDeleting"
    INVALID_CONFIG = "InvalidConfig"
    CLAIM_CHANGED = "ClaimChanged"
    NO_SUCH_CLAIM = "NoSuchClaim"
    CLAIM_NOT_HERE = "ClaimNotHere"
    NO_CHANNEL_ASSIGNED = "NoChannelAssigned"
    CHANNELS_EXHAUSTED = "ChannelsExhausted"
    CHANNEL_HELD = "ChannelHeld"
    ALL_CHANNELS_REFUSED = "AllChannelsRefused"
    ACCEPTED = "Accepted"
    FABRIC_BROKEN = "FabricBroken"
    FABRIC_PENDING = "FabricPending"
    NOT_A_MEMBER = "NotAMember"
    DAEMON_NOT_READY = "DaemonNotReady"
    SLOT_DIFFERS = "SlotDiffers"
    API_UNREACHABLE = "APIUnreachable"
    OVERTAKEN = "Overtaken"
    TEMPLATE_TAKEN = "TemplateTaken"
    NO_PODS_YET = "NoPodsYet"
    NODES_READY = "NodesReady"
    NODES_NOT_READY = "NodesNotReady"
    FEWER_NODES = "FewerNodes"
    WAITING_FOR_PODS = "WaitingForPods"
    CHANNEL_ASSIGNED = "ChannelAssigned"
    RECORD_OLD = "RecordOld"
    DRAIN_FIRST = "DrainFirst"
    DAEMON_ELSEWHERE = "DaemonElsewhere"
    NO_SLOT = "NoSlot"
    NODES_ADMITTED = "NodesAdmitted"
    CHANNELS_HELD = "ChannelsHeld"
    LISTS_OLD = "ListsOld"
    CHANNELS_UNKNOWN = "ChannelsUnknown"
    CHANNELS_FREE = "ChannelsFree"


_SENTENCES: dict[Reason, str] = {
    Reason.NO_SUCH_COMPUTE_DOMAIN: (
        "claim {claim} asks for ComputeDomain {uid}, but namespace {namespace} has none with this UID: it was"
        " deleted or made anew; delete the pod, so that it gets a claim from the current template"
    ),
    Reason.OTHER_NAMESPACE: (
        "claim {claim} asks for ComputeDomain {domain}, which is in another namespace; a channel is given"
        " only inside its ComputeDomain's namespace: create a ComputeDomain in {namespace}"
    ),
    Reason.COMPUTE_DOMAIN_DELETING: (
        "ComputeDomain {domain} is being deleted and takes no new pods; create it anew, then delete the pod"
    ),
    Reason.INVALID_CONFIG: (
        "claim {claim} has a configuration for {driver} that can't be read: {cause}; claim from the"
        " ResourceClaimTemplate that the ComputeDomain names"
    ),
    Reason.CLAIM_CHANGED: (
        "claim {claim} is not the one the kubelet asks for: its UID is {found}, not {wanted}; delete the pod"
    ),
    Reason.NO_SUCH_CLAIM: "claim {claim} does not exist any more; if its pod still does, delete the pod",
    Reason.CLAIM_NOT_HERE: "claim {claim} can't be prepared on node {node}: {cause}; delete the pod",
    Reason.NO_CHANNEL_ASSIGNED: (
        "ComputeDomain {domain} has no channel in NVLink partition {partition} yet{waited}; check that"
        " imex controller runs: kubectl -n {controller_namespace} get lease {lease}"
    ),
    Reason.CHANNELS_EXHAUSTED: (
        "NVLink partition {partition} has no free channel left: all {count} are in use or resting; delete"
        " ComputeDomains that are no longer needed"
    ),
    Reason.CHANNEL_HELD: (
        "channel {channel} of NVLink partition {partition} is still held on node {node} by claim {holder} of"
        " ComputeDomain {holder_domain}; delete the pod that uses that claim"
    ),
    Reason.ALL_CHANNELS_REFUSED: (
        "ComputeDomain {domain} asks for allocationMode All, which opens the memory of every workload in the"
        " partition; use Single, or let an administrator label the namespace {label}"
    ),
    Reason.ACCEPTED: "nothing stands in the way any more",
    Reason.FABRIC_BROKEN: (
        "the NVLink fabric of node {node} is broken: {cause}; the pod can't run here until the node is repaired:"
        " delete the pod to reschedule it"
    ),
    Reason.FABRIC_PENDING: ("the NVLink fabric of node {node} is not up{waited}: {cause}"),
    Reason.NOT_A_MEMBER: (
        "node {node} is not a member of NVLink partition {partition}{waited}; check that"
        " imex controller runs: kubectl -n {controller_namespace} get lease {lease}"
    ),
    Reason.DAEMON_NOT_READY: (
        "the IMEX daemon of node {node} is {state}, not READY{waited}{cause}; if it"
        " does not come back, delete the pod to reschedule it"
    ),
    Reason.SLOT_DIFFERS: (
        "the IMEX daemon of node {node} runs in slot {running}, but the node's slot in NVLink partition"
        " {partition} is {assigned}{waited}; the daemon restarts into it by itself"
    ),
    Reason.API_UNREACHABLE: "node {node} can't reach the API server to prepare claim {claim}: {cause}",
    Reason.OVERTAKEN: "preparing claim {claim} was overtaken by its unprepare; the kubelet asks again if needed",
    Reason.TEMPLATE_TAKEN: (
        "ResourceClaimTemplate {template} exists and was not made for ComputeDomain {domain}: rename one of them"
    ),
    Reason.NO_PODS_YET: "no pod has claimed a channel yet",
    Reason.NODES_READY: "{count} of {count} nodes with a claim are ready",
    Reason.NODES_NOT_READY: "{count} of {total} nodes with a claim are not ready: {nodes}",
    Reason.FEWER_NODES: "{count} of the {wanted} nodes that numNodes asks for hold a claim",
    Reason.WAITING_FOR_PODS: (
        "deletion waits for pods that still hold a channel: {pods}; delete them, or set the annotation"
        " {annotation} to take the channel away"
    ),
    Reason.CHANNEL_ASSIGNED: "channel {channel} of NVLink partition {partition} is assigned",
    Reason.RECORD_OLD: (
        "NVLinkPartition {partition} is older than what node {node} knows (recall {seen}, not {known}): it was"
        " lost or restored{waited}; imex controller completes it as soon as every node has answered:"
        " kubectl get nvlinkpartition {partition} -o yaml"
    ),
    Reason.DRAIN_FIRST: (
        "node {node} may not join NVLink partition {partition} yet, because processes on it hold channels that"
        " belong to others there: {holders}; delete the pods that use them"
    ),
    Reason.DAEMON_ELSEWHERE: (
        "node {node} may not join NVLink partition {partition} yet, because its IMEX daemon still runs in"
        " {elsewhere}; check that imex daemon runs on it"
    ),
    Reason.NO_SLOT: (
        "NVLink partition {partition} has no slot left for node {node}: all {slots} are taken; delete the Nodes of"
        " members that are switched off for good"
    ),
    Reason.NODES_ADMITTED: "every node that belongs here is a member",
    Reason.CHANNELS_HELD: "of the channels that were given back, {count} can't be used again yet: {nodes}",
    Reason.CHANNELS_UNKNOWN: (
        "this record was lost or restored, and no new channel is given before every node has said what it holds;"
        " missing: {nodes}; bring them back, or delete the Node of one that is switched off for good"
    ),
    Reason.LISTS_OLD: (
        "no new channel is given before these nodes run with the present member list, because nodes that are gone"
        " are in older ones: {nodes}; check that imex daemon runs on them, or delete the Node of one that is"
        " switched off for good"
    ),
    Reason.CHANNELS_FREE: "every channel that was given back can be used again",
}


def sentence(reason: Reason, waited: float = 0.0, /, **facts: object) -> str:
    """`waited` seconds are mentioned, where the sentence has a place for it, if there were any."""
    patience = f", after waiting for {waited:.0f} s" if waited else ""
    try:
        return _SENTENCES[reason].format(waited=patience, **facts)
    except KeyError as missing:
        raise Misconfigured(f"the sentence for {reason} needs the fact {missing}") from None


def facts_of(reason: Reason) -> frozenset[str]:
    """The facts that a reason's sentence needs."""
    names = (name for _, name, _, _ in string.Formatter().parse(_SENTENCES[reason]))
    return frozenset(name for name in names if name and name != "waited")
