"""What a node reports, and what other drivers and writers cause: one function per reason. See `reasons`."""

from collections.abc import Sequence
from signal import Signals

from imex_dra.api.names import (
    CLIQUE_LABEL,
    DAEMON_SECRET,
    DRIVER,
    IMEX_PORTS,
    NAMESPACE,
    READINESS_ANNOTATION,
    READINESS_MEMBERS,
)
from imex_dra.api.reasons import CHECK_CONTROLLER, Explanation, Reason, listed

_LAST_LINES, _MAX_LINE = 5, 500
_RESCHEDULE = "delete the pod to reschedule it"
_REMOVE_OTHER_DRIVER = (
    "remove one of the two drivers, or install NVIDIA's with resources.computeDomains.enabled=false; imex-dra"
    " continues when the other one is gone"
)


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


# What prevents nvidia-imex from being READY, as a part of `daemon_not_ready`


def supervisor_not_running() -> str:
    return (
        "the supervisor of nvidia-imex does not run on this node: look at the pod of the IMEX daemon there"
        f" (kubectl describe), which may wait for Secret {DAEMON_SECRET} or its image, or be gone while the GPU"
        " driver is replaced"
    )


def imex_not_queried() -> str:
    return "imex node has just started there, and nvidia-imex has not answered it yet"


def imex_program_missing(*, program: str, driver_root: str) -> str:
    return (
        f"the GPU driver in {driver_root} has no {program}: install the package nvidia-imex of the driver's"
        " version there, or start imex node with --driver-root, the directory that has it"
    )


def driver_too_old(*, version: str, minimum: str) -> str:
    return (
        f"the GPU driver {version} is older than {minimum}, whose nvidia-imex is the first that takes host names:"
        f" install {minimum} or later"
    )


def other_imex_running(*, pid: int, unit: str, container: str) -> str:
    if unit:
        place, step = (
            f" of the systemd unit {unit}",
            f"run systemctl disable --now {unit} and systemctl mask {unit}",
        )
    elif container:
        place, step = f" in container {container[:12]}", "remove what runs that container"
    else:
        place, step = "", "stop it"
    return (
        f"another nvidia-imex runs on the host (pid {pid}{place}), and the GPU driver has only one IMEX session:"
        f" {step}"
    )


def port_taken(*, port: int, pid: int, program: str) -> str:
    holder = f"{program} (pid {pid})" if pid else "another process"
    return (
        f"{holder} has port {port} of the host, which nvidia-imex needs: stop it, and reserve the ports on all"
        f" nodes with sysctl net.ipv4.ip_local_reserved_ports={','.join(map(str, IMEX_PORTS))}"
    )


def imex_certificate_missing() -> str:
    return (
        f"there is no certificate for TLS between IMEX daemons: check that Secret {DAEMON_SECRET} exists (imex"
        f" controller creates it: kubectl -n {NAMESPACE} get secret {DAEMON_SECRET}) and that the pod of the IMEX"
        " daemon mounts it"
    )


def imex_files_not_written(*, cause: str) -> str:
    return f"the configuration of nvidia-imex cannot be written: {cause}"


def imex_ended(*, code: int, output: str) -> str:
    """`code` as a shell reports it. The last lines of the output, each at most 500 characters long."""
    try:
        how = Signals(code - 128).name
    except ValueError:
        how = f"exit code {code}"
    lines = [line[:_MAX_LINE] for line in output.splitlines()[-_LAST_LINES:]]
    return f"nvidia-imex ended with {how}" + (f": {'; '.join(lines)}" if lines else "")


def imex_recovering(*, timeout: float, missing: Sequence[str]) -> str:
    """`missing` are addresses of members that are alive, as far as is known, and have not reconnected."""
    waits = (
        f"nvidia-imex did not exit cleanly and waits up to {timeout:g} s for the nodes that had imported memory"
        " from it"
    )
    if not missing:
        return waits
    return (
        f"{waits}; not connected: {listed(missing)}: check these nodes and the network, and delete the Node of one"
        " that will not return"
    )


def imex_index_unexpected(*, expected: int) -> str:
    return (
        f"nvidia-imex was started for index {expected}, but an address of another member is an address of this"
        " node too: remove that address from the node, and delete the pod of the IMEX daemon there"
    )


# The same, if the host manages nvidia-imex


def host_ctl_missing(*, driver_root: str) -> str:
    return (
        f"there is no nvidia-imex-ctl in {driver_root}: install the package nvidia-imex of the driver's version,"
        " or start imex node with --driver-root, the directory that has it"
    )


def host_imex_not_running() -> str:
    return (
        "no nvidia-imex runs on the host, and imex node --imex host-managed does not start it: run systemctl"
        " enable --now nvidia-imex on the node, or install without host-managed"
    )


def host_config_unreadable(*, path: str, cause: str) -> str:
    return (
        f"{path}, which the host's nvidia-imex reads, cannot be read: {cause}; check the file, or start imex"
        " node with --imex-config"
    )


def host_nodes_not_members(*, entries: Sequence[str]) -> str:
    return (
        f"the host's nvidia-imex is connected to nodes that are no members of the partition ({listed(entries)}),"
        " so this node has not confirmed the member list: run imex node there too, or remove them from the node"
        " lists of all hosts"
    )


def host_index_moves() -> str:
    return "imex controller takes the index of the host over when the node lists of all members are equal"


def host_index_unknown(*, node: str) -> Explanation:
    return Explanation(
        Reason.HOST_INDEX_UNKNOWN,
        f"nvidia-imex-ctl -N on node {node} does not say which entry of the host's node list is the node itself",
        "check that exactly one entry of the list is an address of the node",
    )


def node_list_owner(*, is_host_managed: bool) -> str:
    return "the host's nvidia-imex" if is_host_managed else "imex-dra"


def node_lists_differ(*, node: str, partition: str, owner: str) -> Explanation:
    return Explanation(
        Reason.NODE_LISTS_DIFFER,
        f"node {node} has the node list of {owner}, and most members of NVLink partition {partition} have another"
        " one, so their IMEX daemons do not communicate",
        "install the same nodes_config.cfg and restart nvidia-imex on all nodes of the partition, or let imex-dra"
        " manage all of them: the mode must be one",
    )


def imex_version_differs(*, imex: str, driver: str) -> str:
    return (
        f"nvidia-imex is of version {imex}, and the GPU driver of version {driver}: install both in the same"
        " version, and delete the pod of the IMEX daemon there"
    )


def imex_without_recovery() -> str:
    return (
        "nvidia-imex was restarted without recovery: nodes that had imported memory from it did not reconnect in"
        " time, and jobs that still run there may access memory that no longer exists"
    )


def index_differs(*, node: str, partition: str, running: int, assigned: int, problem: str = "") -> Explanation:
    return Explanation(
        Reason.INDEX_DIFFERS,
        f"the IMEX daemon of node {node} runs with index {running}, but the node's index in NVLink partition"
        f" {partition} is {assigned}",
        problem or "the daemon restarts with the new index by itself",
    )


def no_address(*, node: str, kind: str) -> Explanation:
    """`kind`: which one is wanted."""
    return Explanation(
        Reason.NO_ADDRESS,
        f"the Node {node} has no {kind} of type InternalIP, on which the IMEX daemon could listen",
        "check the kubelet's --node-ip, or start imex node with --address",
    )


def no_pod_address(*, node: str) -> Explanation:
    return Explanation(
        Reason.NO_POD_ADDRESS,
        f"the pod of the IMEX daemon of node {node} has not said its IP address",
        "check that it runs, and that its variable POD_IP is its address in the network of pods",
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
        "check the log of nvidia-imex on the node",
    )


def node_not_listed(*, domain: str, node: str, partition: str) -> Explanation:
    return Explanation(
        Reason.NODE_NOT_LISTED,
        f"ComputeDomain {domain} has the annotation {READINESS_ANNOTATION}={READINESS_MEMBERS}, and its status"
        f" does not list node {node} in NVLink partition {partition} yet",
        CHECK_CONTROLLER,
    )


def peers_unreachable(*, domain: str, node: str, peers: Sequence[str]) -> Explanation:
    return Explanation(
        Reason.PEERS_UNREACHABLE,
        f"ComputeDomain {domain} has the annotation {READINESS_ANNOTATION}={READINESS_MEMBERS}, and the IMEX"
        f" daemon of node {node} is not connected to other nodes with claims: {listed(peers)}",
        "check these nodes, or remove the annotation and create the ComputeDomain again",
    )


def peers_unknown(*, domain: str, node: str) -> Explanation:
    return Explanation(
        Reason.PEERS_UNKNOWN,
        f"ComputeDomain {domain} has the annotation {READINESS_ANNOTATION}={READINESS_MEMBERS}, and"
        f" nvidia-imex-ctl -N on node {node} has not reported yet to which nodes its IMEX daemon is connected",
        "check the log of nvidia-imex on the node",
    )


def disk_error(*, node: str, cause: str) -> Explanation:
    return Explanation(
        Reason.DISK_ERROR,
        f"node {node} cannot write what it has prepared: {cause}",
        "check the disks of the node; the kubelet tries again",
    )


def device_node_refused(*, path: str, cause: str) -> Explanation:
    return Explanation(
        Reason.DEVICE_NODE_REFUSED,
        f"imex node may not create the device node of a channel ({path}: {cause})",
        "run it as root with CAP_MKNOD, and with the host's /dev mounted writable",
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
