"""The reasons that users see in conditions, Events and prepare errors: one typed function per reason.

All of them use the same sentence, because all of them call these functions. An explanation names the object and
the cause and, where somebody can act, the next step.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from imex_dra.api.names import (
    ALL_CHANNELS_ALLOWED,
    ALL_CHANNELS_LABEL,
    CLIQUE_LABEL,
    DRIVER,
    LEASE,
    NAMESPACE,
    READINESS_ANNOTATION,
    READINESS_MEMBERS,
    RELEASE_ANNOTATION,
    RELEASE_NOW,
)

_LISTED = 5
_CHECK_CONTROLLER = f"check that imex controller runs: kubectl -n {NAMESPACE} get lease {LEASE}"
_FORGET = "for a node that will not return, delete its Node object or run imex forget-node"
_RESCHEDULE = "delete the pod to reschedule it"
_REMOVE_OTHER_DRIVER = (
    "remove one of the two drivers, or install NVIDIA's with resources.computeDomains.enabled=false; imex-dra"
    " continues when the other one is gone"
)


class Reason(StrEnum):
    """The CamelCase word of a condition or an Event."""

    ACCEPTED = "Accepted"
    ALL_CHANNELS_REFUSED = "AllChannelsRefused"
    API_UNREACHABLE = "APIUnreachable"
    ASSIGNMENT_BLOCKED = "AssignmentBlocked"
    CHANNELS_EXHAUSTED = "ChannelsExhausted"
    CHANNELS_HELD = "ChannelsHeld"
    CHANNELS_REUSABLE = "ChannelsReusable"
    CHANNEL_ASSIGNED = "ChannelAssigned"
    CHANNEL_HELD = "ChannelHeld"
    CHANNEL_LIMIT = "ChannelLimit"
    CLAIMS_NOT_PREPARED = "ClaimsNotPrepared"
    CLAIMS_SERVED = "ClaimsServed"
    CLAIMS_WAITING = "ClaimsWaiting"
    CLAIM_NOT_HERE = "ClaimNotHere"
    CLAIM_REPLACED = "ClaimReplaced"
    CLAIM_UNDECODABLE = "ClaimUndecodable"
    CLAIM_UNPREPARED = "ClaimUnprepared"
    CLIQUE_LABELS_MATCH = "CliqueLabelsMatch"
    CLIQUE_LABEL_DIFFERS = "CliqueLabelDiffers"
    COMPUTE_DOMAIN_DELETING = "ComputeDomainDeleting"
    CONNECTIONS_UNKNOWN = "ConnectionsUnknown"
    CONTRADICTED_MOVE = "ContradictedMove"
    DAEMON_IN_OTHER_PARTITION = "DaemonInOtherPartition"
    DAEMON_NOT_READY = "DaemonNotReady"
    DAEMON_RESTARTED = "DaemonRestarted"
    DISK_ERROR = "DiskError"
    DRAIN_FIRST = "DrainFirst"
    FABRIC_BROKEN = "FabricBroken"
    FABRIC_PENDING = "FabricPending"
    FEWER_NODES = "FewerNodes"
    FOREIGN_FINALIZERS = "ForeignFinalizers"
    IMPLAUSIBLE_REPORT = "ImplausibleReport"
    INDEX_DIFFERS = "IndexDiffers"
    INVALID_CONFIG = "InvalidConfig"
    INVENTED_CHANNEL = "InventedChannel"
    IN_USE = "InUse"
    MEMBERS_CONNECTED = "MembersConnected"
    MEMBERS_NOT_CONNECTED = "MembersNotConnected"
    MEMBERS_NOT_READY = "MembersNotReady"
    MEMBERS_REACHABLE = "MembersReachable"
    MEMBERS_READY = "MembersReady"
    MEMBERS_UNREACHABLE = "MembersUnreachable"
    MEMBER_LISTS_OUTDATED = "MemberListsOutdated"
    MEMBER_OF_OTHER_PARTITION = "MemberOfOtherPartition"
    MEMBER_SUSPENDED = "MemberSuspended"
    NODES_ADMITTED = "NodesAdmitted"
    NODES_NOT_CONNECTED = "NodesNotConnected"
    NODES_NOT_READY = "NodesNotReady"
    NODES_READY = "NodesReady"
    NODE_FULL = "NodeFull"
    NODE_NOT_LISTED = "NodeNotListed"
    NODE_NOT_READY = "NodeNotReady"
    NODE_UNREACHABLE = "NodeUnreachable"
    NOT_A_MEMBER = "NotAMember"
    NO_CHANNEL_ASSIGNED = "NoChannelAssigned"
    NO_DEVICES = "NoDevices"
    NO_FABRIC = "NoFabric"
    NO_INDEX = "NoIndex"
    NO_MEMBERS = "NoMembers"
    NO_OTHER_DRIVER = "NoOtherDriver"
    NO_PODS_YET = "NoPodsYet"
    NO_REPORT = "NoReport"
    NO_SUCH_CLAIM = "NoSuchClaim"
    NO_SUCH_COMPUTE_DOMAIN = "NoSuchComputeDomain"
    ONE_PARTITION = "OnePartition"
    ONE_VERSION = "OneVersion"
    OTHER_DRIVER_ON_NODE = "OtherDriverOnNode"
    OTHER_DRIVER_PRESENT = "OtherDriverPresent"
    OTHER_NAMESPACE = "OtherNamespace"
    PARTITION_OUTDATED = "PartitionOutdated"
    PEERS_UNREACHABLE = "PeersUnreachable"
    PODS_ENDED = "PodsEnded"
    RECOVERED = "Recovered"
    REPORTS_PENDING = "ReportsPending"
    SEVERAL_PARTITIONS = "SeveralPartitions"
    SEVERAL_VERSIONS = "SeveralVersions"
    SUSPENDED = "Suspended"
    TEMPLATE_FORGED = "TemplateForged"
    TEMPLATE_ORPHANED = "TemplateOrphaned"
    TEMPLATE_READY = "TemplateReady"
    TEMPLATE_TAKEN = "TemplateTaken"
    TOO_FEW_CHANNELS = "TooFewChannels"
    UNUSED = "Unused"
    WAITING_FOR_PODS = "WaitingForPods"


_NODE_STEPS = {
    Reason.FABRIC_BROKEN: "repair the node: its devices are withdrawn, and no new pod is scheduled here",
    Reason.FABRIC_PENDING: "check the GPU driver and the fabric manager if this lasts",
    Reason.DISK_ERROR: "check the disks of the node: until then its channels and claims are reported as they were",
    Reason.DAEMON_NOT_READY: "check the log of imex daemon on the node if it does not recover",
}
"""Next steps for the reader of a node's condition, where they differ from those for the owner of a pod."""


class Explanation(NamedTuple):
    reason: Reason
    cause: str
    next_step: str = ""

    def message(self, waited: float = 0.0) -> str:
        """One sentence. It says how many seconds the caller waited, if it did."""
        wait = f" (waited {waited:.0f} s)" if waited else ""
        return f"{self.cause}{wait}" + (f"; {self.next_step}" if self.next_step else "")

    def for_node(self) -> "Explanation":
        """The same cause in a condition of the NVLinkNode: its reader looks after the node, not after a pod."""
        return self._replace(next_step=_NODE_STEPS.get(self.reason, self.next_step))


def listed(names: Sequence[str], separator: str = ", ") -> str:
    """The first few, and how many more there are: a message must stay readable with a thousand pods."""
    more = len(names) - _LISTED
    return separator.join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def at(time: str) -> str:
    """An RFC 3339 time in UTC, to the minute."""
    return f"{time[:10]} {time[11:16]} UTC"


# Claims


def no_such_claim(*, claim: str) -> Explanation:
    return Explanation(
        Reason.NO_SUCH_CLAIM, f"claim {claim} no longer exists", "if its pod still exists, delete the pod"
    )


def claim_replaced(*, claim: str, found_uid: str, requested_uid: str) -> Explanation:
    cause = f"claim {claim} has UID {found_uid}, but the kubelet requested {requested_uid}"
    return Explanation(Reason.CLAIM_REPLACED, cause, "delete the pod")


def claim_not_here(*, claim: str, node: str, cause: str) -> Explanation:
    return Explanation(
        Reason.CLAIM_NOT_HERE, f"claim {claim} cannot be prepared on node {node}: {cause}", "delete the pod"
    )


def claim_unprepared(*, claim: str) -> Explanation:
    cause = f"claim {claim} was unprepared while it was being prepared"
    return Explanation(Reason.CLAIM_UNPREPARED, cause, "the kubelet prepares it again if it is still needed")


def claim_undecodable(*, cause: str) -> Explanation:
    """The cause names the claim."""
    return Explanation(
        Reason.CLAIM_UNDECODABLE, cause, "claim from the ResourceClaimTemplate that the ComputeDomain names"
    )


def invalid_config(*, claim: str, cause: str) -> Explanation:
    return Explanation(
        Reason.INVALID_CONFIG,
        f"claim {claim} has an invalid configuration for {DRIVER}: {cause}",
        "claim from the ResourceClaimTemplate that the ComputeDomain names",
    )


def api_unreachable(*, node: str, claim: str, cause: str) -> Explanation:
    return Explanation(
        Reason.API_UNREACHABLE, f"node {node} cannot reach the API server to prepare claim {claim}: {cause}"
    )


# ComputeDomains


def no_such_compute_domain(*, claim: str, uid: str, namespace: str) -> Explanation:
    return Explanation(
        Reason.NO_SUCH_COMPUTE_DOMAIN,
        f"claim {claim} names ComputeDomain {uid}, but namespace {namespace} has no ComputeDomain with this UID:"
        " it was deleted or recreated",
        "delete the pod, so that it gets a claim from the current template",
    )


def other_namespace(*, claim: str, domain: str, namespace: str) -> Explanation:
    return Explanation(
        Reason.OTHER_NAMESPACE,
        f"claim {claim} names ComputeDomain {domain}, which is in another namespace, and a channel can only be"
        " used in the namespace of its ComputeDomain",
        f"create a ComputeDomain in {namespace}",
    )


def compute_domain_deleting(*, domain: str) -> Explanation:
    return Explanation(
        Reason.COMPUTE_DOMAIN_DELETING,
        f"ComputeDomain {domain} is being deleted and accepts no new pods",
        "create it again, then delete the pod",
    )


def all_channels_refused(*, domain: str) -> Explanation:
    return Explanation(
        Reason.ALL_CHANNELS_REFUSED,
        f"ComputeDomain {domain} requests allocationMode All, which opens the memory of every workload in the"
        " partition",
        f"use Single, or ask an administrator to label the namespace {ALL_CHANNELS_LABEL}={ALL_CHANNELS_ALLOWED}",
    )


def accepted() -> Explanation:
    return Explanation(Reason.ACCEPTED, "the ComputeDomain is accepted")


def template_taken(*, template: str, domain: str) -> Explanation:
    return Explanation(
        Reason.TEMPLATE_TAKEN,
        f"ResourceClaimTemplate {template} exists and was not created for ComputeDomain {domain}",
        "rename one of them",
    )


def template_forged(*, template: str, domain: str) -> Explanation:
    return Explanation(
        Reason.TEMPLATE_FORGED,
        f"ResourceClaimTemplate {template} names ComputeDomain {domain} as its owner, but imex controller did not"
        " create it: its claims request something else",
        "delete the ResourceClaimTemplate; imex controller creates it again",
    )


def template_orphaned(*, template: str, domain: str) -> Explanation:
    return Explanation(
        Reason.TEMPLATE_ORPHANED,
        f"ResourceClaimTemplate {template} is labeled or configured for ComputeDomain {domain}, but does not name"
        " it as its owner: the owner reference was removed, or somebody else created the template",
        "delete the ResourceClaimTemplate; imex controller creates it again",
    )


def template_ready(*, template: str) -> Explanation:
    return Explanation(Reason.TEMPLATE_READY, f"pods can claim from ResourceClaimTemplate {template}")


def no_pods_yet(*, template: str) -> Explanation:
    return Explanation(
        Reason.NO_PODS_YET, f"no pod has claimed a channel yet: pods claim from ResourceClaimTemplate {template}"
    )


def pods_ended(*, ended_at: str) -> Explanation:
    return Explanation(
        Reason.PODS_ENDED, f"no pod holds a claim at the moment; the last claim ended at {ended_at}"
    )


def nodes_ready(*, count: int) -> Explanation:
    return Explanation(Reason.NODES_READY, f"{count} of {count} nodes with a claim are ready")


def nodes_not_ready(*, count: int, total: int, causes: Sequence[str]) -> Explanation:
    """`causes`: one sentence for each node, or one for several."""
    verb = "is" if count == 1 else "are"
    return Explanation(
        Reason.NODES_NOT_READY, f"{count} of {total} nodes with a claim {verb} not ready: {listed(causes, '; ')}"
    )


def recovered(*, state: str, since: str) -> Explanation:
    return Explanation(Reason.RECOVERED, f"{state} again; the ComputeDomain had been degraded since {since}")


def several_partitions(*, partitions: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.SEVERAL_PARTITIONS,
        f"pods with a claim run in {len(partitions)} NVLink partitions, and GPU memory can be shared only within"
        f" one: {listed(partitions)}",
        f"if this is not intended, add a pod affinity with topologyKey {CLIQUE_LABEL}",
    )


def one_partition() -> Explanation:
    return Explanation(Reason.ONE_PARTITION, "pods with a claim run in at most one NVLink partition")


def fewer_nodes(*, count: int, wanted: int) -> Explanation:
    cause = f"{count} of the {wanted} nodes that numNodes requires hold a claim"
    return Explanation(Reason.FEWER_NODES, cause)


def waiting_for_pods(*, pods: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.WAITING_FOR_PODS,
        f"deletion waits for pods that still hold a channel: {listed(pods)}",
        f"delete them, or set the annotation {RELEASE_ANNOTATION}={RELEASE_NOW} to delete the ComputeDomain now;"
        " running pods then keep the channel device until they end",
    )


def foreign_finalizers(*, finalizers: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.FOREIGN_FINALIZERS,
        f"imex-dra has released the ComputeDomain; deletion waits for finalizers of others: {listed(finalizers)}",
        "check the controllers that set them",
    )


def claims_waiting(*, pods: Sequence[str], causes: Sequence[str]) -> Explanation:
    """`causes`: what the controller knows about the nodes. The scheduler knows more, and says it on the pods."""
    count = len(pods)
    waiting = "1 claim waits for a node" if count == 1 else f"{count} claims wait for a node"
    return Explanation(
        Reason.CLAIMS_WAITING,
        f"{waiting} ({listed(pods)})" + (f": {listed(causes, '; ')}" if causes else ""),
        "kubectl describe pod shows what the scheduler says",
    )


def no_devices(*, causes: Sequence[str]) -> Explanation:
    cause = listed(causes, "; ") or "imex node has not reported on any node"
    return Explanation(Reason.NO_DEVICES, f"no node publishes devices: {cause}")


def node_full(*, node: str, claims: int, limit: int) -> Explanation:
    return Explanation(
        Reason.NODE_FULL,
        f"{node} is full ({claims} of {limit})",
        "the limit is the flag --max-claims of imex node",
    )


# Nodes of a ComputeDomain


def node_unreachable(*, node: str, since: str) -> Explanation:
    return Explanation(Reason.NODE_UNREACHABLE, f"{node} {_unreachable(since)}")


def no_report(*, node: str, since: str) -> Explanation:
    return Explanation(Reason.NO_REPORT, f"{node} {_not_reporting(since)}", "check that imex node runs on it")


def node_not_ready(*, node: str, state: str, cause: str) -> Explanation:
    explained = f": {cause}" if cause else ""
    return Explanation(Reason.NODE_NOT_READY, f"{node} is {state} in its NVLink partition{explained}")


def nodes_not_connected(*, node: str, others: Sequence[str]) -> Explanation:
    if len(others) == 1:
        first, second = sorted((node, *others))
        cause = f"{first} and {second} cannot reach each other"
    else:
        cause = f"{node} and {len(others)} other nodes cannot reach each other: {listed(others)}"
    return Explanation(Reason.NODES_NOT_CONNECTED, cause)


def claims_not_prepared(*, node: str, claims: Sequence[str]) -> Explanation:
    """`claims`: their pods, where known."""
    noun = "the claim" if len(claims) == 1 else f"{len(claims)} claims"
    return Explanation(Reason.CLAIMS_NOT_PREPARED, f"{node} has not prepared {noun} of {listed(claims)}")


def daemon_restarted(*, nodes: Sequence[str]) -> Explanation:
    daemons, their = ("IMEX daemon", "this node's") if len(nodes) == 1 else ("IMEX daemons", "these nodes'")
    verb = "was" if len(nodes) == 1 else "were"
    return Explanation(
        Reason.DAEMON_RESTARTED,
        f"the {daemons} of {listed(nodes)} {verb} restarted: imports of {their} GPU memory by other nodes have"
        " ended",
        "restart the job if it reports errors",
    )


def no_fabric(*, nodes: Sequence[str]) -> Explanation:
    have, their = ("has", "its") if len(nodes) == 1 else ("have", "their")
    return Explanation(Reason.NO_FABRIC, f"{listed(nodes)} {have} no NVLink fabric: {their} pods get no channel")


def _unreachable(since: str) -> str:
    return f"has been unreachable since {since}" if since else "is unreachable"


def _not_reporting(since: str) -> str:
    return f"has not reported since {since}" if since else "does not report"


# Channels of a partition


def channel_assigned(*, channel: int, partition: str) -> Explanation:
    return Explanation(Reason.CHANNEL_ASSIGNED, f"channel {channel} of NVLink partition {partition} is assigned")


def no_channel_assigned(*, domain: str, partition: str) -> Explanation:
    return Explanation(
        Reason.NO_CHANNEL_ASSIGNED,
        f"ComputeDomain {domain} has no channel in NVLink partition {partition} yet",
        _CHECK_CONTROLLER,
    )


def channels_exhausted(*, partition: str, count: int) -> Explanation:
    return Explanation(
        Reason.CHANNELS_EXHAUSTED,
        f"NVLink partition {partition} has no free channel: all {count} are assigned or not yet reusable",
        "delete ComputeDomains that are no longer needed",
    )


def channel_limit(*, partition: str, namespace: str, limit: int) -> Explanation:
    return Explanation(
        Reason.CHANNEL_LIMIT,
        f"namespace {namespace} has {limit} channels in NVLink partition {partition}, and may not have more",
        "delete ComputeDomains that are no longer needed, or ask an administrator for a higher"
        " --max-channels-per-namespace",
    )


def assignment_blocked(*, partition: str, cause: str) -> Explanation:
    return Explanation(
        Reason.ASSIGNMENT_BLOCKED, f"NVLink partition {partition} assigns no channel at the moment: {cause}"
    )


def channel_held(*, channel: int, partition: str, node: str, holder: str, holder_domain: str) -> Explanation:
    return Explanation(
        Reason.CHANNEL_HELD,
        f"channel {channel} of NVLink partition {partition} is still held on node {node} by claim {holder} of"
        f" ComputeDomain {holder_domain}",
        "delete the pod that uses that claim",
    )


def channels_held(*, count: int, blockers: Sequence[str]) -> Explanation:
    noun = "channel" if count == 1 else "channels"
    return Explanation(Reason.CHANNELS_HELD, f"{count} released {noun} cannot be reused yet: {listed(blockers)}")


def channels_reusable() -> Explanation:
    return Explanation(Reason.CHANNELS_REUSABLE, "every released channel can be reused")


# Members of a partition


def not_a_member(*, node: str, partition: str) -> Explanation:
    return Explanation(
        Reason.NOT_A_MEMBER, f"node {node} is not a member of NVLink partition {partition}", _CHECK_CONTROLLER
    )


def suspended(*, node: str, partition: str) -> Explanation:
    return Explanation(
        Reason.SUSPENDED,
        f"node {node} is suspended in NVLink partition {partition}: it was not reachable, and is admitted again"
        " when its Node is Ready and its IMEX daemon has the current member list",
        _CHECK_CONTROLLER,
    )


def in_use(*, uses: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.IN_USE,
        f"this NVLinkPartition is deleted when nothing uses it any more; it has {listed(uses)}",
        "delete the Node objects of its members first",
    )


def unused() -> Explanation:
    return Explanation(Reason.UNUSED, "nothing uses this partition")


def nodes_admitted() -> Explanation:
    return Explanation(Reason.NODES_ADMITTED, "every node of this partition is a member")


def drain_first(*, node: str, partition: str, holders: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.DRAIN_FIRST,
        f"node {node} cannot join NVLink partition {partition} yet: it holds channels that are not assigned to the"
        f" same ComputeDomains there: {listed(holders)}",
        "delete the pods that use them",
    )


def daemon_in_other_partition(*, node: str, partition: str, other: str) -> Explanation:
    return Explanation(
        Reason.DAEMON_IN_OTHER_PARTITION,
        f"node {node} cannot join NVLink partition {partition} yet: its IMEX daemon still runs in {other}",
        "check that imex daemon runs on the node",
    )


def member_of_other_partition(*, node: str, partition: str, other: str) -> Explanation:
    return Explanation(
        Reason.MEMBER_OF_OTHER_PARTITION,
        f"node {node} cannot join NVLink partition {partition} yet: it is a member of {other}",
        f"see the conditions of NVLinkPartition {other}",
    )


def too_few_channels(*, node: str, partition: str, count: int, used: int) -> Explanation:
    return Explanation(
        Reason.TOO_FEW_CHANNELS,
        f"node {node} offers {count} channels, but NVLink partition {partition} uses {used}",
        "set the same NVreg_ImexChannelCount on all nodes of the partition",
    )


def implausible_report(*, node: str, partition: str, reported: str, known: str) -> Explanation:
    return Explanation(
        Reason.IMPLAUSIBLE_REPORT,
        f"node {node} reports {reported}, but NVLink partition {partition} is at {known}: its report is ignored,"
        " and it cannot be a member until it reports something else",
        "check that imex node on it is the real one; then drain the node, remove its imex-dra.json and"
        " member-list.json, and restart imex daemon",
    )


def invented_channel(*, node: str, partition: str) -> Explanation:
    return Explanation(
        Reason.INVENTED_CHANNEL,
        f"node {node} reports that it holds a channel which NVLink partition {partition} has not assigned: its"
        " report is ignored, and it cannot be a member while it holds the channel",
        "check that imex node on it is the real one; then drain the node",
    )


def contradicted_move(*, node: str, partition: str, witness: str) -> Explanation:
    return Explanation(
        Reason.CONTRADICTED_MOVE,
        f"node {node} reports that it is no longer in NVLink partition {partition}, but member {witness} still"
        " reaches it there: it neither leaves nor joins another",
        "check that imex daemon runs on both nodes",
    )


def no_index(*, node: str, partition: str, max_nodes: int) -> Explanation:
    return Explanation(
        Reason.NO_INDEX,
        f"NVLink partition {partition} has no free index for node {node}: all {max_nodes} are taken",
        _FORGET,
    )


def partition_outdated(*, partition: str, node: str, epoch: int, acknowledged: int) -> Explanation:
    return Explanation(
        Reason.PARTITION_OUTDATED,
        f"NVLinkPartition {partition} is at epoch {epoch}, but node {node} has acknowledged epoch {acknowledged}:"
        " the object was lost or restored",
        "imex controller recovers it when every node has reported its channels: kubectl get nvlinkpartition"
        f" {partition} -o yaml",
    )


def reports_pending(*, nodes: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.REPORTS_PENDING,
        "this partition was lost or restored, and assigns no new channel until every node has reported the"
        f" channels it holds (missing: {listed(nodes)})",
        f"start these nodes; {_FORGET}",
    )


def member_lists_outdated(*, nodes: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.MEMBER_LISTS_OUTDATED,
        "this partition assigns no new channel until these nodes apply the current member list, because older"
        f" lists contain nodes that have left: {listed(nodes)}",
        f"check that imex daemon runs on them; {_FORGET}",
    )


def no_members() -> Explanation:
    return Explanation(Reason.NO_MEMBERS, "this partition has no members")


def members_ready(*, count: int) -> Explanation:
    return Explanation(Reason.MEMBERS_READY, f"{count} of {count} members are ready and connected")


def member_suspended(*, count: int, suspended: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.MEMBER_SUSPENDED,
        f"{count} members are ready and connected; suspended: {listed(suspended)}",
        _FORGET,
    )


def member_not_reachable(*, node: str, since: str) -> str:
    return f"{node} {_unreachable(at(since))}"


def member_unreachable_for_several(*, node: str) -> str:
    return f"several members cannot reach {node}, although its Node is Ready"


def member_not_reporting(*, node: str, since: str) -> str:
    return f"{node} {_not_reporting(at(since))}"


def member_not_ready(*, node: str, cause: str) -> str:
    return f"{node} is not ready: {cause}"


def member_joining(*, node: str) -> str:
    return f"{node} is joining"


def members_not_ready(*, culprits: Sequence[str]) -> Explanation:
    return Explanation(Reason.MEMBERS_NOT_READY, listed(culprits, "; "))


def cannot_reach_each_other(*, one: str, other: str) -> str:
    return f"{one} and {other} cannot reach each other"


def members_not_connected(*, pairs: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.MEMBERS_NOT_CONNECTED, listed(pairs, "; "), "check the network between the IMEX daemons"
    )


def members_connected() -> Explanation:
    return Explanation(Reason.MEMBERS_CONNECTED, "all members that are alive reach each other")


def several_versions(*, groups: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.SEVERAL_VERSIONS,
        f"members run different versions of the GPU driver: {listed(groups, '; ')}",
        "install one version on all nodes of the partition",
    )


def one_version() -> Explanation:
    return Explanation(Reason.ONE_VERSION, "all members run the same version of the GPU driver")


# Nodes


def fabric_broken(*, node: str, cause: str) -> Explanation:
    return Explanation(
        Reason.FABRIC_BROKEN,
        f"{node}: the NVLink fabric is broken ({cause})",
        f"the pod cannot run here until the node is repaired: {_RESCHEDULE}",
    )


def fabric_pending(*, node: str, cause: str) -> Explanation:
    return Explanation(Reason.FABRIC_PENDING, f"{node}: the NVLink fabric is not up: {cause}")


def daemon_not_ready(*, node: str, state: str, problem: str) -> Explanation:
    cause = f"the IMEX daemon of node {node} is {state}, not READY" + (f": {problem}" if problem else "")
    return Explanation(Reason.DAEMON_NOT_READY, cause, f"if it does not recover, {_RESCHEDULE}")


def index_differs(*, node: str, partition: str, running: int, assigned: int) -> Explanation:
    return Explanation(
        Reason.INDEX_DIFFERS,
        f"the IMEX daemon of node {node} runs with index {running}, but the node's index in NVLink partition"
        f" {partition} is {assigned}",
        "the daemon restarts with the new index by itself",
    )


def claims_served(*, node: str) -> Explanation:
    return Explanation(Reason.CLAIMS_SERVED, f"node {node} can serve claims")


def members_reachable(*, node: str, partition: str) -> Explanation:
    return Explanation(
        Reason.MEMBERS_REACHABLE,
        f"the IMEX daemon of node {node} can reach every other member of NVLink partition {partition}",
    )


def members_unreachable(*, node: str, members: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.MEMBERS_UNREACHABLE,
        f"the IMEX daemon of node {node} cannot reach {listed(members)}",
        "check these nodes, and the network between them and this node",
    )


def connections_unknown(*, node: str, since: str) -> Explanation:
    return Explanation(
        Reason.CONNECTIONS_UNKNOWN,
        f"nvidia-imex-ctl -N on node {node} has not reported the connections of the IMEX daemon since {since},"
        " so the unreachable members are those of that time",
        "check the log of imex daemon on the node",
    )


def node_not_listed(*, domain: str, node: str) -> Explanation:
    return Explanation(
        Reason.NODE_NOT_LISTED,
        f"ComputeDomain {domain} has the annotation {READINESS_ANNOTATION}={READINESS_MEMBERS}, and its status"
        f" does not list node {node} yet",
        _CHECK_CONTROLLER,
    )


def peers_unreachable(*, domain: str, node: str, peers: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.PEERS_UNREACHABLE,
        f"ComputeDomain {domain} has the annotation {READINESS_ANNOTATION}={READINESS_MEMBERS}, and the IMEX"
        f" daemon of node {node} is not connected to other nodes with claims: {listed(peers)}",
        "check these nodes, or remove the annotation and create the ComputeDomain again",
    )


def disk_error(*, node: str, cause: str) -> Explanation:
    return Explanation(
        Reason.DISK_ERROR,
        f"node {node} cannot write what it has prepared: {cause}",
        "check the disks of the node; the kubelet tries again",
    )


# Other drivers and other writers


def other_driver_present(*, found: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.OTHER_DRIVER_PRESENT,
        f"another driver named {DRIVER} runs in this cluster ({listed(found)}), and the two would undo each"
        " other's work, so imex-dra changes nothing",
        _REMOVE_OTHER_DRIVER,
    )


def other_driver_on_node(*, node: str, slices: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.OTHER_DRIVER_ON_NODE,
        f"another driver named {DRIVER} publishes devices of node {node} (ResourceSlice {listed(slices)}), so"
        " imex-dra does not serve this node",
        f"{_REMOVE_OTHER_DRIVER}; delete a ResourceSlice that it left behind",
    )


def no_other_driver() -> Explanation:
    return Explanation(Reason.NO_OTHER_DRIVER, f"no other driver named {DRIVER} runs in this cluster")


def clique_label_differs(*, node: str, label: str, owner: str, partition: str) -> Explanation:
    return Explanation(
        Reason.CLIQUE_LABEL_DIFFERS,
        f"the label {CLIQUE_LABEL} of node {node} is {label}, set by {owner}, but its GPUs report {partition}, so"
        " pods that select by this label may miss their partition",
        f"correct what sets it, or remove it, and imex-dra sets it: kubectl label node {node} {CLIQUE_LABEL}-",
    )


def clique_labels_match() -> Explanation:
    return Explanation(
        Reason.CLIQUE_LABELS_MATCH, f"the label {CLIQUE_LABEL} of every node is the partition of its GPUs"
    )
