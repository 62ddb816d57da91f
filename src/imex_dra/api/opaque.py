"""The opaque device configuration in a claim: any JSON that a user wrote, kept as bytes until it is needed.

Kubernetes validates only that it is JSON of at most 10 KiB, and a claim may have 32 of them. Therefore a cache
keeps only the parameters of this driver, and only if they can be valid (`kept_parameters`); they are decoded
when they are used. The node parses them strictly: an unknown or misspelled field is an error, because the
configuration decides which memory a container can access.
"""

from typing import Literal

import msgspec
from msgspec import Raw, Struct, field

from imex_dra.api.computedomain import AllocationMode
from imex_dra.api.names import DRIVER

NO_PARAMETERS = Raw(b"null")
OVERSIZED = Raw(b'"oversized"')
"""Stands for parameters that are too long to be valid."""

_MAX_PARAMETERS = 2048
"""Bytes. A valid configuration has about 200; the API server removes insignificant space."""


class ComputeDomainChannelConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    api_version: Literal["resource.nvidia.com/v1beta1"] = field(
        name="apiVersion", default="resource.nvidia.com/v1beta1"
    )
    kind: Literal["ComputeDomainChannelConfig"] = "ComputeDomainChannelConfig"
    domain_id: str = field(name="domainID")
    allocation_mode: AllocationMode = field(name="allocationMode", default=AllocationMode.SINGLE)

    def to_parameters(self) -> Raw:
        return Raw(msgspec.json.encode(self))


class _DomainName(Struct, frozen=True):
    domain_id: str = field(name="domainID", default="")


_configs = msgspec.json.Decoder(ComputeDomainChannelConfig)
_domain_names = msgspec.json.Decoder(_DomainName)


def kept_parameters(driver: str, parameters: Raw) -> Raw:
    """What a view keeps of an opaque configuration."""
    if driver != DRIVER:
        return NO_PARAMETERS
    # A Raw that msgspec decoded refers to the whole message, which may be a page of 500 claims: copy it.
    return parameters.copy() if memoryview(parameters).nbytes <= _MAX_PARAMETERS else OVERSIZED


def parse_channel_config(parameters: Raw) -> ComputeDomainChannelConfig:
    """Raises ValueError; the message names the field and its path."""
    if parameters == OVERSIZED:
        raise ValueError(f"it is longer than {_MAX_PARAMETERS} bytes")
    try:
        config = _configs.decode(parameters)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not config.domain_id:
        raise ValueError("domainID is empty - at `$.domainID`")
    return config


def named_domain(parameters: Raw) -> str:
    """UID of the ComputeDomain that the configuration names, even if it is invalid otherwise; empty if there is
    none.

    Before a channel is released, every claim counts that names the ComputeDomain, so this is not strict.
    """
    try:
        return _domain_names.decode(parameters).domain_id
    except (ValueError, RecursionError):
        return ""
