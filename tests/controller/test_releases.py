"""Which ComputeDomains are read to release their channels, if there are more than are read for one plan."""

from typing import Any, cast

import pytest

from imex_dra.api.meta import AnnotatedMeta, Key
from imex_dra.api.nvlinkpartition import (
    ChannelAssignment,
    ChannelState,
    DomainReference,
    NVLinkPartition,
    NVLinkPartitionSpec,
    NVLinkPartitionStatus,
)
from imex_dra.base.errors import NotFound, Undecodable
from imex_dra.controller.caches import Caches
from imex_dra.controller.releases import RECHECK, ReleaseCheck
from imex_dra.kube.client import Client


class Reads:
    """Of ComputeDomains that are gone, except for those that cannot be decoded."""

    def __init__(self, undecodable: set[str]) -> None:
        self.undecodable = undecodable

    async def get(self, resource: Any, key: Key) -> Any:
        raise Undecodable("spec") if key.name in self.undecodable else NotFound("gone")


def partition(*names: str) -> NVLinkPartition:
    channels = tuple(
        ChannelAssignment(number, ChannelState.ASSIGNED, DomainReference("team", name, f"uid-{name}"), "")
        for number, name in enumerate(names, start=1)
    )
    return NVLinkPartition(
        AnnotatedMeta(name="7b.1"),
        NVLinkPartitionSpec(max_nodes=4, name_format="x-%03d"),
        NVLinkPartitionStatus(channels=channels),
    )


@pytest.mark.parametrize("broken", [1, 32, 100])
async def test_computedomains_that_cannot_be_decoded_do_not_keep_others_from_being_released(broken: int) -> None:
    undecodable = [f"broken-{number}" for number in range(broken)]
    reads, unconfirmed = Reads(set(undecodable)), dict[str, None]()
    before = partition(*undecodable, "gone")
    for _ in range(1 + broken // 32):
        check = ReleaseCheck(cast("Client", reads), Caches(), unconfirmed)
        released = await check.released_domains(before)
        assert check.recheck_after == RECHECK
        if released:
            break
    assert released == {"uid-gone"}


async def test_one_that_can_be_decoded_again_is_released() -> None:
    names = [f"broken-{number}" for number in range(40)]
    reads, unconfirmed = Reads(set(names)), dict[str, None]()
    for _ in range(3):
        await ReleaseCheck(cast("Client", reads), Caches(), unconfirmed).released_domains(partition(*names))
    reads.undecodable.clear()
    released: set[str] = set()
    for _ in range(2):
        rest = partition(*(name for name in names if f"uid-{name}" not in released))
        released |= await ReleaseCheck(cast("Client", reads), Caches(), unconfirmed).released_domains(rest)
    assert released == {f"uid-{name}" for name in names}
    assert not unconfirmed
