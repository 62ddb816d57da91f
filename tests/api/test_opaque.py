"""The opaque device configuration: which parameters are kept, and how strictly they are parsed."""

import msgspec
import pytest
from msgspec import Raw

from imex_dra.api.computedomain import AllocationMode
from imex_dra.api.opaque import (
    NO_PARAMETERS,
    OVERSIZED,
    ComputeDomainChannelConfig,
    kept_parameters,
    named_domain,
    parse_channel_config,
)

VALID = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomainChannelConfig",
    "domainID": "7d3a",
}


def raw(parameters: object) -> Raw:
    return Raw(msgspec.json.encode(parameters))


def test_the_config_that_the_controller_writes_can_be_parsed() -> None:
    config = ComputeDomainChannelConfig(domain_id="7d3a", allocation_mode=AllocationMode.ALL)
    assert parse_channel_config(config.to_parameters()) == config


def test_the_default_allocation_mode_is_single() -> None:
    assert parse_channel_config(raw(VALID)).allocation_mode is AllocationMode.SINGLE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"domainId": "x"}, "unknown field `domainId`"),
        ({"allocationMode": "Some"}, r"'Some' - at `\$\.allocationMode`"),
        ({"kind": "ComputeDomainDaemonConfig"}, r"at `\$\.kind`"),
        ({"apiVersion": "resource.nvidia.com/v2"}, r"at `\$\.apiVersion`"),
        ({"domainID": ""}, "domainID is empty"),
        ({"domainID": 7}, r"Expected `str`, got `int` - at `\$\.domainID`"),
    ],
)
def test_an_invalid_field_is_reported_with_its_path(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_channel_config(raw(VALID | change))


def test_a_missing_config_is_rejected() -> None:
    with pytest.raises(ValueError, match="Expected `object`"):
        parse_channel_config(NO_PARAMETERS)


@pytest.mark.parametrize("parameters", [b'{"a":"\\ud800"}', b"[" * 5000 + b"]" * 5000, b'"\xff"', b"", b"1e999"])
def test_parameters_that_are_not_even_decodable_are_invalid_and_name_nothing(parameters: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_channel_config(Raw(parameters))
    assert named_domain(Raw(parameters)) == ""


def test_an_invalid_config_still_names_its_computedomain() -> None:
    assert named_domain(raw(VALID | {"unknown": 1})) == "7d3a"
    assert named_domain(raw({"domainID": 7})) == named_domain(raw([])) == named_domain(NO_PARAMETERS) == ""


def test_only_parameters_of_this_driver_that_can_be_valid_are_kept() -> None:
    assert kept_parameters("gpu.nvidia.com", raw(VALID)) == NO_PARAMETERS
    assert kept_parameters("compute-domain.nvidia.com", raw(VALID)) == raw(VALID)
    oversized = kept_parameters("compute-domain.nvidia.com", raw(VALID | {"x": "y" * 5000}))
    assert oversized == OVERSIZED
    with pytest.raises(ValueError, match="longer than 2048 bytes"):
        parse_channel_config(oversized)
