"""ComputeDomain: what a user creates. Every field of NVIDIA's driver is accepted, with the same meaning."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, field

from imex_dra.api.limits import MAX_TIME
from imex_dra.api.meta import AnnotatedMeta, Condition, Resource, View, shown

DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
MAX_LISTED_NODES = 512

READY = "Ready"
"""Condition: True while at least one pod holds a claim, and every claim is prepared on a node that is ready."""
TEMPLATE_READY = "TemplateReady"
"""Condition: False while pods cannot claim, or claim from something else than the controller's template."""
CHANNEL_ASSIGNED = "ChannelAssigned"
"""Condition: True if it has a channel in every partition where its pods are; False with the cause."""
DEGRADED = "Degraded"
"""Condition: present from the moment at which the ComputeDomain is Ready until its pods have ended. True if a node
with a claim has become not ready since."""
SPANS_PARTITIONS = "SpansPartitions"
"""Condition: present since pods first held claims in several partitions."""
ACCEPTED = "Accepted"
"""Condition: present only if the ComputeDomain is refused, or was."""
DELETING = "Deleting"
"""Condition: present while a deletion waits; says for what."""


class AllocationMode(StrEnum):
    SINGLE = "Single"
    ALL = "All"


class Readiness(StrEnum):
    READY = "Ready"
    NOT_READY = "NotReady"


class Phase(StrEnum):
    """What the column STATUS of kubectl get shows."""

    NO_PODS = "NoPods"
    READY = "Ready"
    NOT_READY = "NotReady"
    DELETING = "Deleting"


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
        TemplateName,
        Meta(description="ResourceClaimTemplate from which pods claim the channel; the controller creates it."),
    ]
    allocation_mode: Annotated[
        AllocationMode,
        Meta(
            description=(
                "Single: pods get the channel of the ComputeDomain. All: pods get every channel of the partition, "
                "including those of other workloads; refused unless the namespace allows it."
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
                "Deprecated. Minimum number of nodes with a claim before the ComputeDomain is Ready; 0 for no "
                "minimum."
            ),
            extra_json_schema={"default": 0},
        ),
    ] = 0
    channel: Annotated[
        ChannelSpec | None,
        Meta(
            description=(
                "How pods claim the channel. If omitted, the ResourceClaimTemplate has the name of the "
                "ComputeDomain."
            ),
        ),
    ] = None


class DomainNode(View, frozen=True, gc=False):
    """A node with an allocated claim."""

    name: Annotated[str, Meta(description="Name of the Node.")]
    ip_address: Annotated[str, Meta(description="IP address of its IMEX daemon.")]
    clique_id: Annotated[str, Meta(description="NVLinkPartition of the node; empty without NVLink fabric.")] = (
        field(name="cliqueID")
    )
    index: Annotated[int, Meta(description="Index of the node in its IMEX domain; -1 without NVLink fabric.")] = -1
    status: Annotated[
        Readiness,
        Meta(
            description="Whether the node serves every claim of the ComputeDomain.",
            extra_json_schema={"default": "NotReady"},
        ),
    ] = shown(Readiness.NOT_READY)
    reason: Annotated[
        str, Meta(description="Why the node is not ready, or why its pods get no channel; one CamelCase word.")
    ] = ""
    message: Annotated[str, Meta(description="The same as one sentence.")] = ""
    imex_started_at: Annotated[
        str,
        Meta(
            max_length=MAX_TIME,
            description="When the IMEX daemon was started that ran when claims of the ComputeDomain were last seen"
            " prepared here.",
            extra_json_schema={"format": "date-time"},
        ),
    ] = ""


class DomainPartition(View, frozen=True, gc=False):
    """An NVLinkPartition in which the ComputeDomain has a channel."""

    name: Annotated[str, Meta(description="Name of the NVLinkPartition.")]
    channel: Annotated[int, Meta(ge=0, description="IMEX channel of the ComputeDomain in this partition.")]
    nodes: Annotated[int, Meta(ge=0, description="Number of nodes with a claim.")] = 0
    ready: Annotated[int, Meta(ge=0, description="Number of these nodes that are ready.")] = 0


class DomainSummary(View, frozen=True, gc=False):
    """Values for the columns of kubectl get."""

    status: Annotated[
        str,
        Meta(
            description="NoPods: no pod holds a claim. Ready, NotReady: condition Ready. Deleting: a deletion"
            " waits."
        ),
    ] = ""
    message: Annotated[
        str, Meta(description="Message of the condition Ready, or of Deleting while a deletion waits.")
    ] = ""
    nodes: Annotated[str, Meta(description="Ready nodes, and all nodes with a claim.")] = ""
    partitions: Annotated[str, Meta(description="Number of partitions with a channel.")] = ""
    channels: Annotated[str, Meta(description="Channel number in each partition.")] = ""


class ComputeDomainStatus(View, frozen=True):
    """Observed state."""

    status: Annotated[
        Readiness,
        Meta(
            description="Ready: pods hold claims, and every claim is prepared on a node that is ready.",
            extra_json_schema={"default": "NotReady"},
        ),
    ] = shown(Readiness.NOT_READY)
    nodes: Annotated[
        tuple[DomainNode, ...],
        Meta(
            max_length=MAX_LISTED_NODES,
            description="Nodes with a claim; nodes that are not ready come first.",
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    nodes_omitted: Annotated[int, Meta(ge=0, description="Number of nodes that do not fit in the list.")] = 0
    partitions: Annotated[
        tuple[DomainPartition, ...],
        Meta(
            description="Partitions in which the ComputeDomain has a channel.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    claims_ended_at: Annotated[
        str,
        Meta(
            description="When the last claim ended; empty while pods hold claims, and before the first one does.",
            extra_json_schema={"format": "date-time"},
        ),
    ] = ""
    conditions: Annotated[
        tuple[Condition, ...],
        Meta(
            description="Ready, TemplateReady and ChannelAssigned; Degraded, SpansPartitions, Accepted and"
            " Deleting where they apply.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    summary: Annotated[DomainSummary, Meta(description="Values for the columns of kubectl get.")] = DomainSummary()


class ComputeDomain(View, frozen=True):
    """Gives its pods a common IMEX channel in each NVLink partition, on every node where they run."""

    metadata: AnnotatedMeta
    spec: Annotated[
        ComputeDomainSpec,
        Meta(
            description="Desired state. Immutable.",
            extra_json_schema={
                "x-kubernetes-validations": [
                    {
                        "rule": "self == oldSelf",
                        "message": "the spec of a ComputeDomain is immutable: create another ComputeDomain",
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
