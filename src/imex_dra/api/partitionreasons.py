"""What the channels and members of an NVLinkPartition report: one function per reason. See `reasons`."""

from collections.abc import Sequence

from imex_dra.api.reasons import CHECK_CONTROLLER, Explanation, Reason, at, listed, not_reporting, unreachable

_DAEMON_PROGRAMS = "imex node and the pod of the IMEX daemon"
_FORGET = "for a node that will not return, delete its Node object or run imex forget-node"


# Channels of a partition


def channel_assigned(*, channel: int, partition: str) -> Explanation:
    return Explanation(Reason.CHANNEL_ASSIGNED, f"channel {channel} of NVLink partition {partition} is assigned")


def no_channel_assigned(*, domain: str, partition: str) -> Explanation:
    return Explanation(
        Reason.NO_CHANNEL_ASSIGNED,
        f"ComputeDomain {domain} has no channel in NVLink partition {partition} yet",
        CHECK_CONTROLLER,
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
        Reason.NOT_A_MEMBER, f"node {node} is not a member of NVLink partition {partition}", CHECK_CONTROLLER
    )


def partition_not_received(*, node: str, partition: str) -> Explanation:
    """It may not exist yet, or the watch may lag: the node cannot say that it is not a member."""
    cause = f"node {node} has not received NVLinkPartition {partition} from the API server yet"
    return Explanation(Reason.PARTITION_NOT_RECEIVED, cause, CHECK_CONTROLLER)


def suspended(*, node: str, partition: str) -> Explanation:
    return Explanation(
        Reason.SUSPENDED,
        f"node {node} is suspended in NVLink partition {partition}: it was not reachable, and is admitted again"
        " when its Node is Ready and its IMEX daemon has the current member list",
        CHECK_CONTROLLER,
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
        f"check that {_DAEMON_PROGRAMS} run on the node",
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
        "check that imex node on it is the real one; then drain the node, remove its imex-dra.json, and reboot it",
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
        f"check that {_DAEMON_PROGRAMS} run on both nodes",
    )


def no_index(*, node: str, partition: str, max_nodes: int) -> Explanation:
    return Explanation(
        Reason.NO_INDEX,
        f"NVLink partition {partition} has no free index for node {node}: all {max_nodes} are taken",
        f"{_FORGET}; if the machine has more nodes, drain it, set imex controller --max-nodes and delete the"
        " NVLinkPartition",
    )


def host_daemon_not_ready(*, node: str, partition: str, state: str) -> Explanation:
    return Explanation(
        Reason.HOST_DAEMON_NOT_READY,
        f"node {node} cannot join NVLink partition {partition} yet: the nvidia-imex of its host is {state}, so its"
        " index is not known",
        f"see the conditions of NVLinkNode {node}",
    )


def host_index_taken(*, node: str, partition: str, index: int, other: str) -> Explanation:
    return Explanation(
        Reason.HOST_INDEX_TAKEN,
        f"node {node} cannot join NVLink partition {partition}: the nvidia-imex of its host has index {index},"
        f" which is that of member {other}",
        "check the addresses of both nodes and their node lists",
    )


def host_index_too_high(*, node: str, partition: str, index: int, max_nodes: int) -> Explanation:
    return Explanation(
        Reason.HOST_INDEX_TOO_HIGH,
        f"node {node} cannot join NVLink partition {partition}: the nvidia-imex of its host has index {index}, and"
        f" the partition was created for {max_nodes} nodes",
        "drain the machine, set imex controller --max-nodes to the size of the node list, and delete the"
        " NVLinkPartition",
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
        f"check that {_DAEMON_PROGRAMS} run on them; {_FORGET}",
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
    return f"{node} {unreachable(at(since))}"


def member_unreachable_for_several(*, node: str) -> str:
    return f"several members cannot reach {node}, although its Node is Ready"


def member_not_reporting(*, node: str, since: str) -> str:
    return f"{node} {not_reporting(at(since))}"


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


def several_channel_counts(*, groups: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.SEVERAL_CHANNEL_COUNTS,
        f"the GPU drivers of the members offer different numbers of channels: {listed(groups, '; ')}",
        "load the GPU driver with the same NVreg_ImexChannelCount on all nodes",
    )


def one_channel_count() -> Explanation:
    return Explanation(Reason.ONE_CHANNEL_COUNT, "the GPU drivers of all members offer equally many channels")
