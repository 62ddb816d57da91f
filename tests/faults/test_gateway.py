"""The lines of a cluster in their own process: an address for each node, and one node's trouble is no other's."""

import asyncio
import ssl
from collections.abc import Iterator, Mapping

import httpx2
import pytest

from imex_dra.base.errors import Rejected
from imex_dra.sandbox import racks
from imex_dra.sandbox.cluster.places import Places
from imex_dra.sandbox.control import Request
from imex_dra.sandbox.faults.gateway import LineGateway
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane

pytestmark = pytest.mark.kube

NODES = racks.layout(racks.of_racks(2, "gb200-nvl72"))


@pytest.fixture(scope="module")
def gateway() -> LineGateway:
    return LineGateway()


@pytest.fixture(scope="module")
def servers(
    gateway: LineGateway, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, str]]:
    places = Places("lines", state_root=tmp_path_factory.mktemp("state"), run_root=tmp_path_factory.mktemp("run"))
    for directory in (places.run, places.logs):
        directory.mkdir(parents=True)
    yield gateway.start(control_plane, NODES, places)
    gateway.stop()


def answered(control_plane: ControlPlane, url: str) -> bool:
    trust = ssl.create_default_context(cafile=control_plane.authority.certificate)
    try:
        return httpx2.get(f"{url}/version", verify=trust, timeout=30, trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False


def test_every_node_has_an_address_of_its_own(servers: Mapping[str, str], control_plane: ControlPlane) -> None:
    assert servers.keys() == {node.name for node in NODES}
    assert len({*servers.values(), control_plane.url}) == 37
    assert answered(control_plane, servers["r1-n17"])


def test_one_nodes_trouble_is_no_others(
    gateway: LineGateway, servers: Mapping[str, str], control_plane: ControlPlane
) -> None:
    asyncio.run(gateway.answer(Request("gateway", "r0-n00", options={"refused": True})))
    assert not answered(control_plane, servers["r0-n00"])
    assert answered(control_plane, servers["r0-n01"])
    asyncio.run(gateway.answer(Request("gateway", "r0-n00")))
    assert answered(control_plane, servers["r0-n00"])


def test_a_node_that_is_not_there_is_refused(gateway: LineGateway, servers: Mapping[str, str]) -> None:
    with pytest.raises(Rejected, match="no line can do 'behave' for node 'r9-n00'"):
        asyncio.run(gateway.answer(Request("gateway", "r9-n00", options={"silent": True})))
