"""Rules: can this cluster run the driver at all? What `imex preflight` asks before anything is installed."""

import re
from collections.abc import Iterator
from typing import Any

from imex_dra.api.meta import Key, Resource
from imex_dra.api.names import CLIQUE_LABEL, NAMESPACE
from imex_dra.api.reasons import listed
from imex_dra.api.views import DAEMON_SETS, NODES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.noderules import has_gpus
from imex_dra.diagnose.partitionrules import version_skew
from imex_dra.diagnose.rule import Link, Problem, about_pod, rule
from imex_dra.diagnose.snapshot import DEVICE_CLASSES, Plain
from imex_dra.lint.findings import Severity

MINIMUM = (1, 34)
"""The first version of Kubernetes with resource.k8s.io/v1."""
_DRA: tuple[Resource[Any], ...] = (RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES)
_MAX_SKEW = 3
"""Minor versions that a kubelet may be older than the API server."""
_CDI = {"containerd": (1, 7), "cri-o": (1, 28)}
"""First versions in which CDI works, at least if it is turned on."""
_CDI_BY_DEFAULT = {"containerd": (2, 0), "cri-o": (1, 28)}
_IMEX_PORTS = {50000, 50005}
_DRIVER_LABEL = "nvidia.com/cuda.driver-version.full"


def version_of(text: str) -> tuple[int, int] | None:
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _info(cluster: Cluster, field: str) -> dict[str, str]:
    """A field of status.nodeInfo of each node with GPUs."""
    return {
        name: str((cluster.plain_nodes[name].get("status", {}).get("nodeInfo") or {}).get(field, ""))
        for name in cluster.nodes
        if has_gpus(cluster, name)
    }


@rule(
    "IMEX210",
    Severity.ERROR,
    Link.DRIVER,
    "Kubernetes is too old, or has no Dynamic Resource Allocation",
    why="""Channels are claimed by Dynamic Resource Allocation (DRA) with the API resource.k8s.io/v1, which
    Kubernetes has since 1.34.""",
    finds="the cluster runs Kubernetes 1.33, and imex-dra needs 1.34 or later",
)
def too_old(cluster: Cluster) -> Iterator[Problem]:
    server = version_of(cluster.snapshot.version)
    without_dra = any(one.plural == RESOURCE_SLICES.plural and one.not_served for one in cluster.snapshot.missing)
    if server and server < MINIMUM:
        message = f"the cluster runs Kubernetes {_dotted(server)}, and imex-dra needs {_dotted(MINIMUM)} or later"
        yield Problem("Cluster", Key("", ""), message, "upgrade the control plane")
    elif without_dra:
        message = "the API server does not serve resource.k8s.io/v1: Dynamic Resource Allocation is turned off"
        yield Problem("Cluster", Key("", ""), message, "do not turn the API resource.k8s.io/v1 off")


def dra_is_known(cluster: Cluster) -> bool:
    """Whether a kind of resource.k8s.io/v1 was read, or the version is too old for it."""
    server = version_of(cluster.snapshot.version)
    if server and server < MINIMUM:
        return True
    objects = cluster.snapshot.objects
    kinds = [objects[resource.plural] for resource in _DRA if resource.plural in objects]
    return any(all(one.get("apiVersion") == RESOURCE_SLICES.api_version for one in found) for found in kinds)


@rule(
    "IMEX211",
    Severity.ERROR,
    Link.DRIVER,
    "A kubelet is too old",
    why="""The kubelet prepares claims through the plugin API of DRA, which is stable since 1.34, and it may be
    at most three minor versions older than the API server.""",
    finds="the kubelets of r0-n01 run Kubernetes 1.33, and imex-dra needs 1.34 or later",
)
def old_kubelets(cluster: Cluster) -> Iterator[Problem]:
    server = version_of(cluster.snapshot.version)
    oldest = max(MINIMUM, (server[0], server[1] - _MAX_SKEW)) if server else MINIMUM
    groups: dict[tuple[int, int], list[str]] = {}
    for node, text in _info(cluster, "kubeletVersion").items():
        version = version_of(text)
        if version and version < oldest:
            groups.setdefault(version, []).append(node)
    for version, nodes in sorted(groups.items()):
        who = "imex-dra needs" if oldest == MINIMUM else "the API server allows"
        run = f"the kubelets of {listed(nodes)} run Kubernetes {_dotted(version)}"
        message = f"{run}, and {who} {_dotted(oldest)} or later"
        yield Problem("Cluster", Key("", ""), message, "upgrade these nodes", nodes=frozenset(nodes))


@rule(
    "IMEX212",
    Severity.ERROR,
    Link.DRIVER,
    "A container runtime does not support CDI",
    why="""The driver gives channel devices to containers by the Container Device Interface (CDI). containerd
    supports it from 1.7 on, CRI-O from 1.28 on.""",
    finds="the container runtime of r0-n01 is containerd 1.6, which does not support CDI",
)
def runtime_without_cdi(cluster: Cluster) -> Iterator[Problem]:
    for runtime, nodes in _runtimes(cluster).items():
        name, version = runtime
        if version < _CDI[name]:
            which = f"{name} {_dotted(version)}"
            message = f"the container runtime of {listed(nodes)} is {which}, which does not support CDI"
            yield Problem("Cluster", Key("", ""), message, f"upgrade {name}", nodes=frozenset(nodes))


@rule(
    "IMEX213",
    Severity.WARNING,
    Link.DRIVER,
    "A container runtime may have CDI turned off",
    why="""containerd 1.7 supports CDI, but it is turned off unless its configuration has enable_cdi = true.
    Which it is cannot be seen from outside: with CDI turned off the containers of a pod start, without the
    channel. containerd 2.0 and later have it turned on.""",
    finds="the container runtime of r0-n01 is containerd 1.7, in which CDI is turned off by default",
)
def cdi_turned_off(cluster: Cluster) -> Iterator[Problem]:
    for runtime, nodes in _runtimes(cluster).items():
        name, version = runtime
        if _CDI[name] <= version < _CDI_BY_DEFAULT[name]:
            which = f"{name} {_dotted(version)}"
            message = f"the container runtime of {listed(nodes)} is {which}, in which CDI is turned off by default"
            step = "check that its configuration has enable_cdi = true and cdi_spec_dirs, or upgrade to 2.0"
            yield Problem("Cluster", Key("", ""), message, step, nodes=frozenset(nodes))


def _runtimes(cluster: Cluster) -> dict[tuple[str, tuple[int, int]], list[str]]:
    """Nodes by runtime and version. Other runtimes are left out: nothing is known about them."""
    found: dict[tuple[str, tuple[int, int]], list[str]] = {}
    for node, text in _info(cluster, "containerRuntimeVersion").items():
        name, _, number = text.partition("://")
        version = version_of(number)
        if name in _CDI and version:
            found.setdefault((name, version), []).append(node)
    return found


@rule(
    "IMEX214",
    Severity.WARNING,
    Link.DRIVER,
    "No node is known to have GPUs",
    why="""Nodes with GPUs are recognized by the labels of GPU Feature Discovery (nvidia.com/gpu.product,
    nvidia.com/gpu.clique), or by the report of imex node. Here no node has either.""",
    finds="none of 4 nodes has the label nvidia.com/gpu.product or nvidia.com/gpu.clique",
)
def no_gpus(cluster: Cluster) -> Iterator[Problem]:
    known = cluster.nvlink_nodes or any(has_gpus(cluster, node) for node in cluster.nodes)
    if cluster.has(NODES.plural) and cluster.nodes and not known:
        message = f"none of {len(cluster.nodes)} nodes has the label nvidia.com/gpu.product or {CLIQUE_LABEL}"
        yield Problem("Cluster", Key("", ""), message, "install GPU Feature Discovery, or the GPU Operator")


@rule(
    "IMEX215",
    Severity.ERROR,
    Link.DRIVER,
    "The legacy nvidia-imex DaemonSet runs",
    why="""It starts nvidia-imex on every node, on the same ports as the IMEX daemons of this driver, and gives
    channel 0 to all containers. Only one nvidia-imex can run on a node. Retire it when no workload needs it any
    more, and before the driver is installed.""",
    finds="DaemonSet gpu-system/nvidia-imex runs nvidia-imex on the nodes, as imex-dra does",
)
def legacy_daemon_set(cluster: Cluster) -> Iterator[Problem]:
    for key in legacy_daemon_sets(cluster):
        message = f"DaemonSet {key} runs nvidia-imex on the nodes, as imex-dra does"
        step = f"delete it when no pod needs it: kubectl -n {key.namespace} delete daemonset {key.name}"
        yield Problem("Cluster", Key("", ""), message, step)


def legacy_daemon_sets(cluster: Cluster) -> list[Key]:
    found = []
    for one in cluster.snapshot.of(DAEMON_SETS.plural):
        metadata = one["metadata"]
        key = Key(str(metadata.get("namespace", "")), str(metadata.get("name", "")))
        if key.namespace != NAMESPACE and _runs_imex(one):
            found.append(key)
    return found


def _runs_imex(daemon_set: Plain) -> bool:
    if "nvidia-imex" in str(daemon_set["metadata"].get("name", "")):
        return True
    spec = daemon_set.get("spec", {}).get("template", {}).get("spec", {})
    words = [
        str(word)
        for container in spec.get("containers") or ()
        for part in ("command", "args")
        for word in container.get(part) or ()
    ]
    # Not the plugin or daemon of NVIDIA's DRA driver: IMEX203 says more about it.
    return any(re.search(r"(^|/|\s)nvidia-imex(\s|$)", word) for word in words)


@rule(
    "IMEX216",
    Severity.ERROR,
    Link.DAEMON,
    "A pod uses a port of the IMEX daemon",
    why="""nvidia-imex listens on the ports 50000 and 50005 of the host. A pod with hostPort or hostNetwork
    that uses one of them keeps the IMEX daemon of its node from starting.""",
    finds="container main uses port 50000 of node r0-n01, on which nvidia-imex listens",
)
def port_taken(cluster: Cluster) -> Iterator[Problem]:
    for pod in cluster.pods:
        if pod.ended or pod.namespace == NAMESPACE or not has_gpus(cluster, pod.node):
            continue
        on_host = pod.spec["hostNetwork"].content is True
        for container in pod.containers:
            for port in container.value["ports"].elements():
                number = port["hostPort"].number or (port["containerPort"].number if on_host else None)
                if number in _IMEX_PORTS:
                    where = f"port {number} of node {pod.node}"
                    message = f"container {container.name} uses {where}, on which nvidia-imex listens"
                    yield about_pod(pod, message, "use another port", "", pod.node)


@rule(
    "IMEX217",
    Severity.WARNING,
    Link.DRIVER,
    "Nodes of a clique have different versions of the GPU driver",
    why="""GPU Feature Discovery labels nodes with the version of their GPU driver. nvidia-imex supports a
    domain of equal versions. After the installation IMEX311 says the same from what the nodes report.""",
    finds="nodes of clique aaaa.1 have different GPU drivers: 570.1.2 (r0-n00), 580.0.1 (r0-n01)",
)
def driver_labels_differ(cluster: Cluster) -> Iterator[Problem]:
    skewed = {problem.key.name for problem in version_skew.problems(cluster)}
    for clique, nodes in cluster.fabric_nodes.items():
        versions: dict[str, list[str]] = {}
        for node in nodes:
            version = cluster.nodes[node].metadata.labels.get(_DRIVER_LABEL, "") if node in cluster.nodes else ""
            if version:
                versions.setdefault(version, []).append(node)
        if len(versions) > 1 and clique not in skewed:
            groups = ", ".join(f"{version} ({listed(found)})" for version, found in sorted(versions.items()))
            message = f"nodes of clique {clique} have different GPU drivers: {groups}"
            step = "install one version on all of them"
            yield Problem("Cluster", Key("", ""), message, step, nodes=frozenset(nodes))


RULES = (
    too_old,
    old_kubelets,
    runtime_without_cdi,
    cdi_turned_off,
    no_gpus,
    legacy_daemon_set,
    port_taken,
    driver_labels_differ,
)
