"""Claims that a node has prepared, or is about to."""

from imex_dra.node.checkpoint import PreparedClaim
from tests.node.facts import BOOT, PARTITION


def prepared(
    uid: str,
    *,
    channel: int = 7,
    domain: str = "job",
    partition: str = PARTITION,
    all_channels: bool = False,
    boot_id: str = BOOT,
    channel_count: int = 2048,
) -> PreparedClaim:
    return PreparedClaim(
        uid=uid,
        namespace="team",
        name=f"claim-{uid}",
        domain_uid=f"uid-{domain}",
        domain_name=domain,
        partition=partition,
        channel=channel,
        all=all_channels,
        devices=(("channel", "n1", "channel-0"),),
        boot_id=boot_id,
        channel_count=channel_count,
    )
