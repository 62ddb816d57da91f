"""What the reasons that users see in conditions, Events and prepare errors are made of.

There is one typed function per reason, in `claimreasons`, `domainreasons`, `partitionreasons` and `nodereasons`.
Conditions, Events and errors call the same function, and therefore use the same sentence. An explanation names the
object and the cause and, where somebody can act, the next step.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, TypeVar

from imex_dra.api.names import LEASE, NAMESPACE
from imex_dra.base.errors import ImexError

E = TypeVar("E", bound=ImexError)

_LISTED = 5
CHECK_CONTROLLER = f"check that imex controller runs: kubectl -n {NAMESPACE} get lease {LEASE}"


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
    DEVICE_NODE_REFUSED = "DeviceNodeRefused"
    DRAIN_FIRST = "DrainFirst"
    FABRIC_BROKEN = "FabricBroken"
    FABRIC_PENDING = "FabricPending"
    FEWER_NODES = "FewerNodes"
    FOREIGN_FINALIZERS = "ForeignFinalizers"
    HOST_DAEMON_NOT_READY = "HostDaemonNotReady"
    HOST_INDEX_TAKEN = "HostIndexTaken"
    HOST_INDEX_TOO_HIGH = "HostIndexTooHigh"
    HOST_INDEX_UNKNOWN = "HostIndexUnknown"
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
    NODE_LISTS_DIFFER = "NodeListsDiffer"
    NODE_NOT_LISTED = "NodeNotListed"
    NODE_NOT_READY = "NodeNotReady"
    NODE_UNREACHABLE = "NodeUnreachable"
    NOT_A_MEMBER = "NotAMember"
    PARTITION_NOT_RECEIVED = "PartitionNotReceived"
    NO_ADDRESS = "NoAddress"
    NO_CHANNEL_ASSIGNED = "NoChannelAssigned"
    NO_DEVICES = "NoDevices"
    NO_FABRIC = "NoFabric"
    NO_INDEX = "NoIndex"
    NO_MEMBERS = "NoMembers"
    NO_OTHER_DRIVER = "NoOtherDriver"
    NO_PODS_YET = "NoPodsYet"
    NO_POD_ADDRESS = "NoPodAddress"
    NO_REPORT = "NoReport"
    NO_SUCH_CLAIM = "NoSuchClaim"
    NO_SUCH_COMPUTE_DOMAIN = "NoSuchComputeDomain"
    ONE_PARTITION = "OnePartition"
    ONE_VERSION = "OneVersion"
    SEVERAL_CHANNEL_COUNTS = "SeveralChannelCounts"
    ONE_CHANNEL_COUNT = "OneChannelCount"
    OTHER_DRIVER_ON_NODE = "OtherDriverOnNode"
    OTHER_DRIVER_PRESENT = "OtherDriverPresent"
    OTHER_NAMESPACE = "OtherNamespace"
    PARTITION_OUTDATED = "PartitionOutdated"
    PEERS_UNREACHABLE = "PeersUnreachable"
    PEERS_UNKNOWN = "PeersUnknown"
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
    Reason.DAEMON_NOT_READY: "check the log of nvidia-imex on the node if it does not recover",
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

    def error(self, kind: type[E], waited: float = 0.0) -> E:
        """An error with this message, which also knows its reason."""
        error = kind(self.message(waited))
        error.reason = self.reason
        return error

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


def unreachable(since: str) -> str:
    return f"has been unreachable since {since}" if since else "is unreachable"


def not_reporting(since: str) -> str:
    return f"has not reported since {since}" if since else "does not report"
