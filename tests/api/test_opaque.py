import pytest

from imex_dra.api.computedomain import AllocationMode
from imex_dra.api.opaque import ComputeDomainChannelConfig, parse_channel_config

VALID = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomainChannelConfig",
    "domainID": "7d3a",
}


def test_what_the_controller_writes_is_what_the_node_reads() -> None:
    config = ComputeDomainChannelConfig(domain_id="7d3a", allocation_mode=AllocationMode.ALL)
    assert parse_channel_config(config.to_parameters()) == config


def test_a_peers_config_without_mode_means_single() -> None:
    assert parse_channel_config(VALID).allocation_mode is AllocationMode.SINGLE


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"domainId": "x"}, "unknown field `domainId`"),
        ({"allocationMode": "Some"}, r"'Some' - at `\$\.allocationMode`"),
        ({"kind": "ComputeDomainDaemonConfig"}, r"at `\$\.kind`"),
        ({"apiVersion": "resource.nvidia.com/v2"}, r"at `\$\.apiVersion`"),
        ({"domainID": ""}, "domainID is empty"),
        ({"domainID": 7}, r"Expected `str`, got `int` - at `\$\.domainID`"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_channel_config(VALID | change)


def test_nothing_at_all() -> None:
    with pytest.raises(ValueError, match="Expected `object`"):
        parse_channel_config(None)
