"""The process that runs the proxies of all nodes: each node has its own URL and its own behavior."""

import asyncio
import ssl
from collections.abc import Iterator, Mapping

import httpx2
import pytest

from imex_dra.base.errors import Rejected
from imex_sandbox import racks
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.proxy.server import ProxyProcess

pytestmark = pytest.mark.kube

NODES = [node.name for node in racks.layout(racks.of_racks(2, "gb200-nvl72"))]


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> ProxyProcess:
    directory = tmp_path_factory.mktemp("proxy")
    return ProxyProcess(directory, directory / "proxy.log")


@pytest.fixture(scope="module")
def urls(proxy: ProxyProcess, control_plane: ControlPlane) -> Iterator[Mapping[str, str]]:
    yield proxy.start(control_plane, NODES)
    proxy.stop()


def answers(control_plane: ControlPlane, url: str) -> bool:
    trust = ssl.create_default_context(cafile=control_plane.authority.certificate)
    try:
        return httpx2.get(f"{url}/version", verify=trust, timeout=30, trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False


def test_each_node_has_its_own_url(urls: Mapping[str, str], control_plane: ControlPlane) -> None:
    assert list(urls) == NODES
    assert len({*urls.values(), control_plane.url}) == 37
    assert answers(control_plane, urls["r1-n17"])


def test_a_fault_on_one_node_does_not_affect_another(
    proxy: ProxyProcess, urls: Mapping[str, str], control_plane: ControlPlane
) -> None:
    asyncio.run(proxy.set_behavior("r0-n00", {"refuse": True}))
    assert not answers(control_plane, urls["r0-n00"])
    assert answers(control_plane, urls["r0-n01"])
    asyncio.run(proxy.set_behavior("r0-n00", {}))
    assert answers(control_plane, urls["r0-n00"])


def test_an_unknown_node_is_refused(proxy: ProxyProcess, urls: Mapping[str, str]) -> None:
    with pytest.raises(Rejected, match="there is no proxy for node 'r9-n00'"):
        asyncio.run(proxy.set_behavior("r9-n00", {"stall": True}))
