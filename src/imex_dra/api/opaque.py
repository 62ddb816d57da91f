"""The driver's configuration inside a claim, read strictly.

A misspelt field in an opaque config is silently ignored by Kubernetes; it must not be by us, because what
it asks for decides which memory a container can reach.
"""

from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from imex_dra.api.computedomain import AllocationMode


class ComputeDomainChannelConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    api_version: Literal["resource.nvidia.com/v1beta1"] = field(
        name="apiVersion", default="resource.nvidia.com/v1beta1"
    )
    kind: Literal["ComputeDomainChannelConfig"] = "ComputeDomainChannelConfig"
    domain_id: str = field(name="domainID")
    allocation_mode: AllocationMode = field(name="allocationMode", default=AllocationMode.SINGLE)

    def to_parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = msgspec.to_builtins(self)
        return parameters


def parse_channel_config(parameters: object) -> ComputeDomainChannelConfig:
    """Raises ValueError with msgspec's own words, which name the field and its path."""
    config = msgspec.convert(parameters, ComputeDomainChannelConfig)
    if not config.domain_id:
        raise ValueError("domainID is empty - at `$.domainID`")
    return config
