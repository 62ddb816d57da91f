"""Rules: is the driver installed, and does it run?"""

from collections.abc import Iterator
from datetime import datetime

from imex_dra.api import nodereasons
from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.meta import OTHER_DRIVER, Key
from imex_dra.api.names import CHANNEL_CLASS, LEASE, NAMESPACE
from imex_dra.api.nvlinknode import NVLINK_NODES
from imex_dra.api.reasons import CHECK_CONTROLLER, listed
from imex_dra.api.views import DAEMON_SETS, LEASES, NODES
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.noderules import has_gpus
from imex_dra.diagnose.rule import Link, Problem, rule
from imex_dra.diagnose.snapshot import DEVICE_CLASSES, Missing, Plain
from imex_dra.kube.conditions import find_condition
from imex_dra.lint.findings import Severity

_OTHER_PROGRAMS = ("compute-domain-kubelet-plugin", "compute-domain-daemon")
"""Programs of NVIDIA's DRA driver for ComputeDomains. Its part for GPUs is another program, and no conflict."""
_STALE_AFTER = 60.0
"""Seconds since the last renewal of the Lease. It is renewed every few seconds."""


@rule(
    "IMEX201",
    Severity.ERROR,
    Link.DRIVER,
    "The cluster has no ComputeDomains",
    why="""The API server does not know the kind ComputeDomain, because its CustomResourceDefinition is not
    installed. Manifests with a ComputeDomain are refused, and no template for claims exists.""",
    finds="the cluster has no kind ComputeDomain (resource.nvidia.com/v1beta1): imex-dra is not installed",
)
def not_installed(cluster: Cluster) -> Iterator[Problem]:
    if missing := _not_served(cluster):
        step = "ask an administrator to install imex-dra and its CustomResourceDefinitions (deploy/crds)"
        yield Problem("Cluster", Key("", ""), f"{missing.why}: imex-dra is not installed", step)


def _not_served(cluster: Cluster) -> Missing | None:
    """Without ComputeDomains nothing else of the driver is there, either, and that is one cause."""
    found = (one for one in cluster.snapshot.missing if one.plural == COMPUTE_DOMAINS.plural and one.not_served)
    return next(found, None)


@rule(
    "IMEX202",
    Severity.ERROR,
    Link.DRIVER,
    "The DeviceClass of channels is missing",
    why="""Claims of channels request devices of the class compute-domain-default-channel.nvidia.com. Without
    it the scheduler cannot allocate any claim, and every pod with a channel stays Pending.""",
    finds="""there is no DeviceClass compute-domain-default-channel.nvidia.com: no claim of a channel can be
    allocated""",
)
def no_device_class(cluster: Cluster) -> Iterator[Problem]:
    if _not_served(cluster):
        return
    names = {one["metadata"].get("name") for one in cluster.snapshot.of(DEVICE_CLASSES.plural)}
    if cluster.has(DEVICE_CLASSES.plural) and CHANNEL_CLASS not in names:
        message = f"there is no DeviceClass {CHANNEL_CLASS}: no claim of a channel can be allocated"
        yield Problem("DeviceClass", Key("", CHANNEL_CLASS), message, "create it as imex-dra installs it")


@rule(
    "IMEX203",
    Severity.ERROR,
    Link.DRIVER,
    "Another driver serves the same ComputeDomains",
    why="""NVIDIA's DRA driver and imex-dra have the same driver name, and would undo each other's work.
    Therefore imex-dra changes nothing while the other one is present, and prepares no new claim
    (docs/nvidia-driver.md).""",
    finds="""another driver named compute-domain.nvidia.com runs in this cluster (DaemonSet
    nvidia-dra-driver-gpu/kubelet-plugin), and the two would undo each other's work, so imex-dra changes
    nothing""",
)
def other_driver(cluster: Cluster) -> Iterator[Problem]:
    reported = [("NVLinkPartition", name, p.status.conditions) for name, p in cluster.partitions.items()]
    on_nodes = [("NVLinkNode", name, n.status.conditions) for name, n in cluster.nvlink_nodes.items()]
    # Every partition has the condition at the same time: one finding is enough.
    for kind, name, conditions in (*reported, *on_nodes):
        condition = find_condition(conditions, OTHER_DRIVER)
        if condition and condition.status == "True":
            cause, _, step = condition.message.partition("; ")
            yield Problem("Cluster", Key("", ""), cause, step, f"condition {OTHER_DRIVER} of {kind} {name}")
            return
    # Before imex-dra is installed there are no conditions.
    found = list(_other_daemon_sets(cluster)) if not cluster.partitions else []
    if found:
        yield Problem("Cluster", Key("", ""), *nodereasons.other_driver_present(found=found)[1:])


def _other_daemon_sets(cluster: Cluster) -> Iterator[str]:
    for one in cluster.snapshot.of(DAEMON_SETS.plural):
        words = str(one.get("spec", {}).get("template", {}).get("spec", {}).get("containers"))
        if any(program in words for program in _OTHER_PROGRAMS):
            yield f"DaemonSet {one['metadata'].get('namespace')}/{one['metadata'].get('name')}"


@rule(
    "IMEX204",
    Severity.ERROR,
    Link.DRIVER,
    "The controller does not run",
    why="""imex controller creates templates, assigns channels, and writes the status of ComputeDomains. It
    renews a Lease every few seconds. While no controller does, running pods keep their channels, but a new
    ComputeDomain gets no template and no channel, and every status may be outdated.""",
    finds="no imex controller has renewed its Lease since 2026-11-18T02:00:00Z",
)
def no_controller(cluster: Cluster) -> Iterator[Problem]:
    if _not_served(cluster) or not _leases_known(cluster):
        return
    lease = _lease(cluster)
    key = Key(NAMESPACE, LEASE)
    if lease is None:
        yield Problem(
            "Lease", key, "no imex controller has ever run here: its Lease does not exist", CHECK_CONTROLLER
        )
        return
    age = _age(cluster, lease)
    if age is not None and age > _STALE_AFTER:
        message = f"no imex controller has renewed its Lease since {_renewed(lease)[:19]}Z"
        yield Problem("Lease", key, message, f"check its pods: kubectl -n {NAMESPACE} get pods")


def _leases_known(cluster: Cluster) -> bool:
    return cluster.has(LEASES.plural) or any(
        one.plural == LEASES.plural and one.namespace == NAMESPACE for one in cluster.snapshot.missing
    )


def _lease(cluster: Cluster) -> Plain | None:
    for lease in cluster.snapshot.of(LEASES.plural):
        if (lease["metadata"].get("namespace"), lease["metadata"].get("name")) == (NAMESPACE, LEASE):
            return lease
    return None


def controller_is_known(cluster: Cluster) -> bool:
    """Whether the Lease says if the controller runs. Files do not say when they were written."""
    lease = _lease(cluster)
    return lease is None or _age(cluster, lease) is not None


def _renewed(lease: Plain) -> str:
    return str(lease.get("spec", {}).get("renewTime") or "")


def _age(cluster: Cluster, lease: Plain) -> float | None:
    """Seconds between its renewal and the snapshot; None if one of the times is not known."""
    try:
        times = [
            datetime.fromisoformat(time.replace("Z", "+00:00"))
            for time in (_renewed(lease), cluster.snapshot.taken_at)
        ]
        return (times[1] - times[0]).total_seconds()
    except (ValueError, TypeError):
        return None


@rule(
    "IMEX205",
    Severity.ERROR,
    Link.DRIVER,
    "imex node runs on no node",
    why="""imex node runs on every node with GPUs, and reports it as an NVLinkNode. Without a single report
    there are no channel devices, and no pod with a channel can be scheduled.""",
    finds="""no node reports: there are 4 nodes with GPUs (r0-n00, r0-n01, r1-n00, r1-n01), and no NVLinkNode""",
)
def no_reports(cluster: Cluster) -> Iterator[Problem]:
    gpus = [node for node in cluster.nodes if has_gpus(cluster, node)]
    if cluster.has(NVLINK_NODES.plural, NODES.plural) and gpus and not cluster.nvlink_nodes:
        message = f"no node reports: there are {len(gpus)} nodes with GPUs ({listed(gpus)}), and no NVLinkNode"
        step = f"check the DaemonSet of imex node: kubectl -n {NAMESPACE} get daemonsets"
        yield Problem("Cluster", Key("", ""), message, step)


RULES = (not_installed, no_device_class, other_driver, no_controller, no_reports)
