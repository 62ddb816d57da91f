"""The options of `imex up`, and the settings of the two processes that simulate nodes: kubelets and drivers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from imex_sandbox import racks
from imex_sandbox.cluster.paths import ClusterPaths
from imex_sandbox.kubelet.config import KubeletsConfig, NodeConfig, NodeFacts, ServingCertificate, StandIn
from imex_sandbox.kubernetes.embedded import AnyControlPlane
from imex_sandbox.racks import Driver, SimulatedNode

EMBEDDED, KUBERNETES = CONTROL_PLANES = ("embedded", "kubernetes")


class Options(Struct, frozen=True):
    cluster: racks.Cluster
    control_plane: str = EMBEDDED
    """One of `CONTROL_PLANES`."""
    driver: bool = True
    processes: bool = False
    """Run every program of every node in a process of its own."""
    hollow: bool = False
    """Containers only pretend to run."""
    rules: tuple[StandIn, ...] = ()


class DriverNode(Struct, frozen=True):
    name: str
    address: str
    root: Path
    kubeconfig: Path
    driver: Driver = Driver()


class DriverSettings(Struct, frozen=True):
    """The settings file of `drivers`. It is defined here because that module imports the whole driver."""

    nodes: list[DriverNode]
    fabric: Path
    logs: Path
    socket: Path
    processes: bool = False


def kubelet_settings(
    options: Options,
    paths: ClusterPaths,
    nodes: Sequence[SimulatedNode],
    control_plane: AnyControlPlane,
    servers: Mapping[str, str],
) -> KubeletsConfig:
    """`servers` maps a node to its URL of the API server."""
    own = control_plane.authority.server("kubelets", [f"IP:{node.address}" for node in nodes])
    members = [
        NodeConfig(
            node_facts(index, node),
            paths.node(node.name),
            control_plane.identities.token(node_user(node)),
            servers[node.name],
        )
        for index, node in enumerate(nodes)
    ]
    return KubeletsConfig(
        authority=control_plane.authority.certificate,
        nodes=members,
        serving=ServingCertificate(own.certificate, own.key),
        containers="hollow" if options.hollow else "processes",
        stand_ins=options.rules,
        control=paths.kubelets_socket,
    )


def driver_settings(options: Options, paths: ClusterPaths, nodes: Sequence[SimulatedNode]) -> DriverSettings:
    members = [
        DriverNode(
            node.name,
            node.address,
            paths.node(node.name),
            paths.driver_kubeconfig(node.name),
            options.cluster.driver,
        )
        for node in nodes
    ]
    return DriverSettings(members, paths.fabric, paths.logs, paths.drivers_socket, options.processes)


def flags(options: Mapping[str, float]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value:g}" for name, value in options.items()]


def node_user(node: SimulatedNode) -> str:
    return f"system:node:{node.name}"


def node_facts(index: int, node: SimulatedNode) -> NodeFacts:
    """`index` counts all nodes of the cluster; it determines the node's pod network."""
    return NodeFacts(
        node.name,
        node.address,
        node.hardware.boot_id,
        pod_network=f"10.{244 + index // 256}.{index % 256}",
        labels=gpu_labels(node) if node.profile.gpus else {},
        gpus=node.profile.gpus,
        resources={name: str(amount) for name, amount in node.resources.items()},
    )


def gpu_labels(node: SimulatedNode) -> dict[str, str]:
    """The labels that the GPU operator sets. The clique label is set by imex-controller."""
    return {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": str(node.profile.gpus),
        "nvidia.com/gpu.product": node.profile.product.replace(" ", "-"),
        "sandbox.imex-dra.io/rack": node.rack,
    }
