"""On which address the IMEX daemon of a node listens."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from imex_dra.api.meta import ObjectMeta
from imex_dra.api.nodereasons import no_address, no_pod_address
from imex_dra.api.nvlinknode import READY, NVLinkNodeStatus
from imex_dra.api.reasons import Explanation
from imex_dra.api.views import Node, NodeAddress, NodeStatus
from imex_dra.base.errors import Unavailable
from imex_dra.kube.conditions import find_condition
from imex_dra.node.address import find_address, internal_address
from imex_dra.node.checkpoint import Checkpoint
from imex_dra.node.grant import node_obstacle
from imex_dra.node.nodestatus import node_status
from tests.node.snapshots import NODE, daemon, healthy_except, partition

V4, V6 = ("InternalIP", "10.0.0.7"), ("InternalIP", "fd00:0:0::7")
OTHERS = (("Hostname", "n1"), ("ExternalIP", "192.0.2.1"), ("InternalIP", "not an address"))


def node(*addresses: tuple[str, str]) -> Node:
    return Node(ObjectMeta(name="n1"), NodeStatus(addresses=tuple(NodeAddress(*each) for each in addresses)))


@pytest.mark.parametrize(
    ("addresses", "family", "expected"),
    [
        ((*OTHERS, V4), "", "10.0.0.7"),
        ((*OTHERS, V6), "", "fd00::7"),
        ((V4, V6), "", "10.0.0.7"),
        ((V6, V4), "", "fd00::7"),
        ((V4, V6), "ipv6", "fd00::7"),
        ((V6, V4), "ipv4", "10.0.0.7"),
        ((V4,), "ipv6", ""),
        (OTHERS, "", ""),
        ((), "", ""),
    ],
)
def test_the_first_internal_address_of_the_family_is_used(
    addresses: tuple[tuple[str, str], ...], family: str, expected: str
) -> None:
    assert internal_address(node(*addresses), family) == expected


class Api:
    """Answers reads of the Node one after the other."""

    def __init__(self, *answers: Node | Exception) -> None:
        self.answers = list(answers)

    async def get(self, *arguments: object) -> Node:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_node_without_an_address_is_read_again_until_it_has_one_and_says_why() -> None:
    api: Any = Api(Unavailable("no answer"), node(), node(V6), node(V6, V4))
    problems: list[Explanation] = []
    async with asyncio.timeout(60):
        found = await find_address(api, "n1", "ipv4", problem=problems.append, period=0)
    assert found == "10.0.0.7"
    assert api.answers == []
    assert [problem.message() for problem in problems] == [
        "the Node n1 has no IPv4 address of type InternalIP, on which the IMEX daemon could listen; check the"
        " kubelet's --node-ip, or start imex node with --address"
    ] * 2


def test_a_node_without_an_address_says_so_in_its_condition_and_in_prepare_errors() -> None:
    missing = no_address(node=NODE, kind="IPv6 address")
    outside = healthy_except(watched_partition=partition(), address="", address_problem=missing)
    status = node_status(outside, Checkpoint(), NVLinkNodeStatus(), datetime(2026, 1, 1, tzinfo=UTC))
    ready = find_condition(status.conditions, READY)
    assert ready is not None
    assert (ready.status, ready.reason, ready.message) == ("False", "NoAddress", missing.message())
    obstacle = node_obstacle(outside)
    assert obstacle is not None
    assert obstacle.explanation == missing
    assert not obstacle.terminal


def test_a_member_keeps_its_address_while_the_node_has_none_for_a_moment() -> None:
    inside = healthy_except(address="", address_problem=no_address(node=NODE, kind="IP address"))
    last = NVLinkNodeStatus(address="10.0.0.7")
    assert node_status(inside, Checkpoint(), last, datetime(2026, 1, 1, tzinfo=UTC)).address == "10.0.0.7"
    assert node_obstacle(inside) is None


def test_in_the_network_of_pods_the_address_is_that_of_the_daemon_pod() -> None:
    now, missing = datetime(2026, 1, 1, tzinfo=UTC), no_pod_address(node=NODE)
    silent = healthy_except(watched_partition=partition(), address="", address_problem=missing)
    obstacle = node_obstacle(silent)
    assert obstacle is not None
    assert obstacle.explanation == missing
    says = structs.replace(silent, daemon=daemon(address="10.1.0.7"))
    assert node_status(says, Checkpoint(), NVLinkNodeStatus(address="10.1.0.6"), now).address == "10.1.0.7"
    obstacle = node_obstacle(says)
    assert obstacle is not None
    assert obstacle.explanation.reason == "NotAMember"
