"""On which address the IMEX daemon of a node listens."""

import asyncio
from typing import Any

import pytest

from imex_dra.api.meta import ObjectMeta
from imex_dra.api.nodereasons import no_address
from imex_dra.api.views import Node, NodeAddress, NodeStatus
from imex_dra.base.errors import Unavailable
from imex_dra.node.address import find_address, internal_address

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


async def test_a_node_without_an_address_is_read_again_until_it_has_one() -> None:
    api: Any = Api(Unavailable("no answer"), node(), node(V6), node(V6, V4))
    async with asyncio.timeout(60):
        assert await find_address(api, "n1", "ipv4", period=0) == "10.0.0.7"
    assert api.answers == []


def test_the_reason_names_the_node_and_what_to_do() -> None:
    assert no_address(node="n1", family="ipv6") == (
        "Node n1 has no IPv6 address of type InternalIP, on which the IMEX daemon could listen: check the"
        " kubelet's --node-ip, or start imex node with --address"
    )
