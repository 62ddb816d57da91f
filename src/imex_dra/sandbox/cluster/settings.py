"""What `imex up` was asked for, and what it tells the two processes that play all nodes: kubelets and crew."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from imex_dra.sandbox import racks
from imex_dra.sandbox.cluster.crewsettings import CrewNode, CrewSettings
from imex_dra.sandbox.cluster.places import Places
from imex_dra.sandbox.kubelet import settings as kubelets
from imex_dra.sandbox.kubelet.nodeobject import NodeFacts
from imex_dra.sandbox.kubelet.standins import Rule
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.racks import SimulatedNode


class Options(Struct, frozen=True):
    """What `imex up` was asked for."""

    cluster: racks.Cluster
    driver: bool = True
    apart: bool = False
    """Every program of every node in a process of its own."""
    hollow: bool = False
    """Containers that only pretend."""
    rules: tuple[Rule, ...] = ()


def for_kubelets(
    options: Options,
    places: Places,
    nodes: Sequence[SimulatedNode],
    control_plane: ControlPlane,
    servers: Mapping[str, str],
) -> kubelets.Settings:
    """`servers`: the API server's address for each node."""
    own = control_plane.authority.server("kubelets", [f"IP:{node.address}" for node in nodes])
    members = [
        kubelets.Member(
            facts(index, node),
            places.node(node.name),
            control_plane.identities.token(user(node)),
            servers[node.name],
        )
        for index, node in enumerate(nodes)
    ]
    return kubelets.Settings(
        server=control_plane.url,
        authority=control_plane.authority.certificate,
        nodes=members,
        serving=kubelets.Serving(own.certificate, own.key),
        containers="hollow" if options.hollow else "processes",
        rules=options.rules,
        control=places.kubelets,
    )


def for_crew(options: Options, places: Places, nodes: Sequence[SimulatedNode]) -> CrewSettings:
    crew = [CrewNode(node.name, node.address, places.node(node.name), places.account(node.name)) for node in nodes]
    return CrewSettings(crew, places.fabric, places.logs, places.crew, options.apart)


def user(node: SimulatedNode) -> str:
    return f"system:node:{node.name}"


def facts(index: int, node: SimulatedNode) -> NodeFacts:
    """`index` counts all nodes of the cluster: each has a network of its own for its pods."""
    return NodeFacts(
        node.name,
        node.address,
        node.hardware.boot_id,
        pod_network=f"10.{244 + index // 256}.{index % 256}",
        labels=labels(node),
        gpus=node.profile.gpus,
    )


def labels(node: SimulatedNode) -> dict[str, str]:
    """What the GPU operator would write; the clique label is our controller's."""
    return {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": str(node.profile.gpus),
        "nvidia.com/gpu.product": node.profile.product.replace(" ", "-"),
        "sandbox.imex-dra.io/rack": node.rack,
    }
