"""ComputeDomain: what a user asks for. Every field the peer accepts is accepted with the same meaning."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, field

from imex_dra.api.meta import AnnotatedMeta, Condition, Resource, View, shown

DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
MAX_LISTED_NODES = 512

READY = "Ready"
ACCEPTED = "Accepted"
"""Present only where a ComputeDomain is refused, or was."""
DELETING = "Deleting"


class AllocationMode(StrEnum):
    SINGLE = "Single"
    ALL = "All"


class Readiness(StrEnum):
    READY = "Ready"
    NOT_READY = "NotReady"


class TemplateName(View, frozen=True):
    name: Annotated[
        str,
        Meta(
            description="Name of the ResourceClaimTemplate, in the ComputeDomain's namespace.",
            min_length=1,
            max_length=253,
            pattern=DNS_SUBDOMAIN,
        ),
    ]


class ChannelSpec(View, frozen=True):
    resource_claim_template: Annotated[
        TemplateName, Meta(description="The ResourceClaimTemplate that pods claim their channel from.")
    ]
    allocation_mode: Annotated[
        AllocationMode,
        Meta(
            description=(
                "Single: the ComputeDomain's own channel. All: every channel of the partition, other "
                "workloads' included; refused unless the namespace allows it."
            ),
            extra_json_schema={"default": "Single"},
        ),
    ] = AllocationMode.SINGLE


class ComputeDomainSpec(View, frozen=True):
    num_nodes: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "Deprecated. Nodes that must be there before the ComputeDomain is Ready; "
                "0 means that its pods' nodes are all that counts."
            ),
            extra_json_schema={"default": 0},
        ),
    ] = 0
    channel: Annotated[
        ChannelSpec | None,
        Meta(description="Left out: the ResourceClaimTemplate has the ComputeDomain's own name."),
    ] = None


class DomainNode(View, frozen=True, gc=False):
    name: Annotated[str, Meta(description="The Node's name.")]
    ip_address: Annotated[str, Meta(description="The address of its IMEX daemon.")]
    clique_id: Annotated[str, Meta(description="Its NVLink partition; empty without NVLink fabric.")] = field(
        name="cliqueID"
    )
    index: Annotated[int, Meta(description="Its slot in the IMEX domain; -1 without NVLink fabric.")] = -1
    status: Annotated[Readiness, Meta(extra_json_schema={"default": "NotReady"})] = shown(Readiness.NOT_READY)


class DomainPartition(View, frozen=True, gc=False):
    name: Annotated[str, Meta(description="The NVLinkPartition.")]
    channel: Annotated[int, Meta(ge=0, description="The ComputeDomain's IMEX channel there.")]
    nodes: Annotated[int, Meta(ge=0, description="Nodes that hold a claim.")] = 0
    ready: Annotated[int, Meta(ge=0, description="Of these, nodes that are ready.")] = 0


class DomainSummary(View, frozen=True, gc=False):
    nodes: str = ""
    partitions: str = ""
    channels: str = ""


class ComputeDomainStatus(View, frozen=True):
    status: Annotated[
        Readiness,
        Meta(
            description="Ready: every node that holds a claim can serve it.",
            extra_json_schema={"default": "NotReady"},
        ),
    ] = shown(Readiness.NOT_READY)
    nodes: Annotated[
        tuple[DomainNode, ...],
        Meta(
            max_length=MAX_LISTED_NODES,
            description="The nodes that hold a claim; nodes that are not ready come first.",
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    nodes_omitted: Annotated[int, Meta(ge=0, description="Nodes that did not fit into the list.")] = 0
    partitions: Annotated[
        tuple[DomainPartition, ...],
        Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = ()
    conditions: Annotated[
        tuple[Condition, ...],
        Meta(extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = ()
    summary: Annotated[DomainSummary, Meta(description="What the columns of kubectl get show.")] = DomainSummary()


class ComputeDomain(View, frozen=True):
    """A set of nodes, wherever its pods land, whose workloads share one IMEX channel per NVLink partition."""

    metadata: AnnotatedMeta
    spec: Annotated[
        ComputeDomainSpec,
        Meta(
            description="What is asked for; immutable.",
            extra_json_schema={
                "x-kubernetes-validations": [
                    {
                        "rule": "self == oldSelf",
                        "message": "a ComputeDomain's spec is immutable: create another one",
                    }
                ]
            },
        ),
    ]
    status: ComputeDomainStatus = ComputeDomainStatus()

    @property
    def template_name(self) -> str:
        channel = self.spec.channel
        return channel.resource_claim_template.name if channel else self.metadata.name

    @property
    def allocation_mode(self) -> AllocationMode:
        return self.spec.channel.allocation_mode if self.spec.channel else AllocationMode.SINGLE


COMPUTE_DOMAINS = Resource(ComputeDomain, "resource.nvidia.com", "v1beta1", "computedomains")
