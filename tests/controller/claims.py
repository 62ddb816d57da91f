"""ComputeDomains and ResourceClaims for tests."""

from typing import Any

import msgspec
from msgspec import Raw

from imex_dra.api.computedomain import (
    AllocationMode,
    ChannelSpec,
    ComputeDomain,
    ComputeDomainSpec,
    TemplateName,
)
from imex_dra.api.meta import AnnotatedMeta
from imex_dra.api.names import DRIVER
from imex_dra.api.opaque import ComputeDomainChannelConfig
from imex_dra.api.views import (
    Allocation,
    AllocationResult,
    ClaimConsumer,
    ClaimStatus,
    DeviceAllocation,
    DeviceConfig,
    OpaqueConfig,
    ResourceClaim,
)


def domain(
    name: str = "job",
    *,
    namespace: str = "team",
    num_nodes: int = 0,
    template: str = "",
    mode: AllocationMode = AllocationMode.SINGLE,
) -> ComputeDomain:
    channel = ChannelSpec(TemplateName(template), mode) if template else None
    meta = AnnotatedMeta(name=name, namespace=namespace, uid=f"uid-{name}", resource_version="1", generation=3)
    return ComputeDomain(meta, ComputeDomainSpec(num_nodes, channel))


def configuration(domain_uid: str, *requests: str, driver: str = DRIVER, **more: Any) -> DeviceConfig:
    parameters = msgspec.to_builtins(ComputeDomainChannelConfig(domain_id=domain_uid)) | more
    return DeviceConfig(requests, OpaqueConfig(driver, Raw(msgspec.json.encode(parameters))))


def claim(
    name: str,
    *config: DeviceConfig,
    nodes: tuple[str, ...] = ("n1",),
    namespace: str = "team",
    driver: str = DRIVER,
    pods: tuple[str, ...] = (),
) -> ResourceClaim:
    """A claim that is allocated on these nodes, or not allocated if there are none."""
    results = tuple(AllocationResult("channel", driver, node, "channel-0") for node in nodes)
    allocation = Allocation(DeviceAllocation(results, config)) if nodes else None
    consumers = tuple(ClaimConsumer("pods", pod, f"uid-{pod}") for pod in pods)
    meta = AnnotatedMeta(name=name, namespace=namespace, uid=f"uid-{name}", resource_version="1")
    return ResourceClaim(meta, status=ClaimStatus(allocation, consumers))
