"""Every kind of fault, where a user sees it; and the cluster mends itself when it is undone."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.base.errors import Rejected
from imex_dra.sandbox.faults.injector import Injector
from imex_dra.sandbox.faults.kinds import (
    AnyFault,
    BreakFabric,
    ChangeClique,
    CutApi,
    DelayTraffic,
    DropTraffic,
    ExpireWatches,
    FailApi,
    HangProcess,
    KillNode,
    KillProcess,
    PendFabric,
    RebootNode,
    ReloadDriver,
    RestartKubelet,
    ThrottleApi,
)
from tests.faults.cluster.site import Seen, Site, container, running_site, runs
from tests.sandbox.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.timeout(300)]

EXPORT = """
import sys
from imex_dra.softimex import memory
mine = memory.open_channel().allocate(65536)
print(mine.export().hex(), flush=True)
sys.stdin.read()
"""
IMPORT = """
import sys, time
from imex_dra.softimex import memory
channel = memory.open_channel()
began = time.monotonic()
try:
    channel.attach(bytes.fromhex(sys.argv[1]))
    print(time.monotonic() - began)
except memory.CudaError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Site]:
    with running_site() as site:
        yield site


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    yield shared
    shared.tidy()


@pytest.fixture
def injector(site: Site) -> Injector:
    return site.injector


def until_running(site: Site, pod: str) -> Seen:
    return site.until(lambda seen: seen.pod(pod)["status"]["phase"] == "Running")


def boot_ids(seen: Seen, node: str) -> tuple[str, str]:
    return seen.node(node)["status"]["nodeInfo"]["bootID"], seen.card(node)["bootID"]


def rebooted(seen: Seen, before: Seen, node: str) -> bool:
    """The Node and the card both know another boot, the same one."""
    (kubelet, card), old = boot_ids(seen, node), boot_ids(before, node)
    return kubelet == card and kubelet not in old


def restarted(seen: Seen, before: Seen, pod: str) -> bool:
    return container(seen.pod(pod)) != container(before.pod(pod))


class TestNodes:
    def test_a_node_without_power_and_one_without_the_api_are_lost_and_come_back(
        self, site: Site, injector: Injector
    ) -> None:
        """Both at once, because Kubernetes gives a silent node 50 s."""
        lost = "Kubelet stopped posting node status."
        victim = site.start_pod("r1-n00", claim=False)
        before = until_running(site, victim)
        assert runs(victim)
        with injector.during(KillNode(nodes=("r1-n00",))), injector.during(CutApi(nodes=("r1-n01",))):
            assert not runs(victim)
            with pytest.raises(Rejected, match="no nvidia-imex runs"):
                site.cluster.nodes["r1-n00"].pid("nvidia-imex")
            late = site.start_pod("r1-n01", claim=False)
            site.until(lambda seen: seen.peers("r1-n02") == {"r1-n01"})
            site.until(lambda seen: all(seen.node_ready(node)["message"] == lost for node in ("r1-n00", "r1-n01")))
            assert site.look().pod(late)["status"]["phase"] == "Pending"
        until_running(site, late)
        seen = site.until(lambda seen: rebooted(seen, before, "r1-n00") and restarted(seen, before, victim))
        assert runs(victim)
        assert boot_ids(seen, "r1-n01") == boot_ids(before, "r1-n01")

    def test_a_rebooted_node_has_a_new_boot_id(self, site: Site, injector: Injector) -> None:
        before = site.look()
        injector.begin(RebootNode(nodes=("r1-n02",)))
        site.until(lambda seen: rebooted(seen, before, "r1-n02"))

    def test_a_restarted_kubelet_wipes_its_slices_and_its_containers_go_on(
        self, site: Site, injector: Injector
    ) -> None:
        before = site.look()
        injector.begin(RestartKubelet(nodes=("r0-n00",)))
        seen = site.until(lambda seen: seen.slice_of("r0-n00") not in ("", before.slice_of("r0-n00")))
        assert container(seen.pod("w0")) == container(before.pod("w0"))


class TestProcesses:
    def test_a_killed_nvidia_imex_is_started_again(self, site: Site, injector: Injector) -> None:
        node = site.cluster.nodes["r0-n00"]
        before = node.pid("nvidia-imex")
        injector.begin(KillProcess(program="nvidia-imex", nodes=("r0-n00",)))
        site.until(lambda seen: node.pid("nvidia-imex") != before)

    def test_a_hanging_nvidia_imex_takes_its_node_out_of_the_partition(
        self, site: Site, injector: Injector
    ) -> None:
        with injector.during(HangProcess(program="nvidia-imex", nodes=("r0-n01",))):
            seen = site.until(
                lambda seen: seen.card("r0-n01")["imexState"] == "UNAVAILABLE" and "r0-n01" in seen.why()
            )
            assert seen.pod("w1")["status"]["phase"] == "Running"
            site.until(lambda seen: seen.partition(site.homes["r0-n01"])["summary"]["state"] == "DEGRADED")

    def test_a_node_says_that_its_imex_daemon_is_dead(self, site: Site, injector: Injector) -> None:
        with injector.during(KillProcess(program="imex-daemon", nodes=("r0-n02",), for_="1h")):
            site.until(lambda seen: "imex daemon does not answer" in seen.card("r0-n02")["problem"])
            site.until(lambda seen: "r0-n02" in seen.why())

    def test_a_hanging_imex_daemon_starts_no_nvidia_imex(self, site: Site, injector: Injector) -> None:
        with injector.during(HangProcess(program="imex-daemon", nodes=("r0-n02",))):
            injector.begin(KillProcess(program="nvidia-imex", nodes=("r0-n02",)))
            site.until(lambda seen: seen.peers("r0-n00") == {"r0-n01"} and seen.peers("r0-n01") == {"r0-n00"})
            site.until(lambda seen: "r0-n00, r0-n01" in seen.why())  # r0-n02 itself tells nobody anything
            with pytest.raises(Rejected, match="no nvidia-imex runs"):
                site.cluster.nodes["r0-n02"].pid("nvidia-imex")

    def test_without_imex_node_a_pod_says_that_nobody_prepares_its_claim(
        self, site: Site, injector: Injector
    ) -> None:
        with injector.during(KillProcess(program="imex-node", nodes=("r1-n02",), for_="1h")):
            pod = site.start_pod("r1-n02")
            site.until(lambda seen: "Failed to prepare dynamic resources" in site.events(pod))

    def test_a_hanging_imex_node_says_nothing_until_it_goes_on(self, site: Site, injector: Injector) -> None:
        with injector.during(PendFabric(nodes=("r1-n02",))):
            site.until(lambda seen: seen.card("r1-n02")["fabric"]["state"] == "pending")
            hanging = injector.begin(HangProcess(program="imex-node", nodes=("r1-n02",)))
            assert hanging is not None
        time.sleep(2)
        assert site.look().card("r1-n02")["fabric"]["state"] == "pending"
        injector.undo(hanging.id)
        site.until(lambda seen: seen.card("r1-n02")["fabric"]["state"] == "ok")

    @pytest.mark.parametrize(
        "fault",
        [KillProcess(program="imex-controller", for_="1h"), HangProcess(program="imex-controller")],
        ids=["killed", "hanging"],
    )
    def test_without_a_controller_a_new_computedomain_has_no_template(
        self, site: Site, injector: Injector, fault: AnyFault
    ) -> None:
        def template() -> str:
            return site.team.kubectl("get", "resourceclaimtemplate", "waiting", "--ignore-not-found")

        with injector.during(fault):
            site.kubectl.apply(site.domain("waiting"))
            time.sleep(2)
            assert not template()
            assert not site.look().why()
        site.until(lambda seen: template())

    @pytest.mark.parametrize(
        ("fault", "words"),
        [
            (KillProcess(program="apiserver", for_="1h"), "refused"),
            (HangProcess(program="apiserver"), "imeout|deadline"),
        ],
        ids=["killed", "hanging"],
    )
    def test_without_an_api_server_nobody_hears_anything_and_pods_go_on(
        self, site: Site, injector: Injector, fault: AnyFault, words: str
    ) -> None:
        before = site.look()
        with injector.during(fault), pytest.raises(Rejected, match=words):
            site.kubectl("get", "nodes", "--request-timeout=2s")
        site.until_healthy()
        assert container(site.look().pod("w0")) == container(before.pod("w0"))


class TestTraffic:
    def test_where_traffic_is_dropped_an_allreduce_fails(self, site: Site, injector: Injector) -> None:
        assert "Out of bounds values : 0 OK" in allreduce(site)
        with injector.during(DropTraffic(between=("r0-n00", "r0-n01"))):
            site.until(lambda seen: "r0-n00, r0-n01" in seen.why())
            site.until(lambda seen: seen.peers("r0-n00") == seen.peers("r0-n01") == {"r0-n02"})
            assert "OK" not in allreduce(site)

    def test_where_traffic_is_delayed_an_import_takes_its_time(self, site: Site, injector: Injector) -> None:
        exporting = site.python_in("w0", EXPORT)
        assert exporting.stdout is not None
        handle = exporting.stdout.readline().strip()
        with injector.during(DelayTraffic(between=("r0-n00", "r0-n01"), delay="600ms")):
            assert eventually(lambda: imported_in(site, handle) > 2 * 0.6, 60)  # daemons look at their cables anew
        exporting.communicate(timeout=60)


def imported_in(site: Site, handle: str) -> float:
    """How many seconds an import took."""
    return float(site.python_in("w1", IMPORT, handle).communicate(timeout=60)[0])


def allreduce(site: Site) -> str:
    """What the first of two ranks says, in pods on two nodes."""
    port = str(free_port())
    ranks = [
        site.process_in(
            f"w{rank}",
            "env",
            *(f"RANK={rank}", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}"),
            *("imex", "allreduce"),
        )
        for rank in range(2)
    ]
    return "".join(rank.communicate(timeout=120)[0] for rank in ranks)


class TestHardware:
    def test_a_pending_fabric_is_on_the_card_and_in_the_condition(self, site: Site, injector: Injector) -> None:
        with injector.during(PendFabric(nodes=("r0-n00",), reason="switches are training")):
            site.until(lambda seen: "r0-n00" in seen.why())
            pending = {"state": "pending", "reason": "switches are training"}
            site.until(lambda seen: seen.card("r0-n00")["fabric"] == pending)

    def test_a_node_with_a_broken_fabric_offers_no_seats(self, site: Site, injector: Injector) -> None:
        with injector.during(BreakFabric(nodes=("r1-n00",), reason="3 links are down")):
            site.until(lambda seen: not seen.slice_of("r1-n00"))
            site.until(lambda seen: "broken: 3 links are down" in seen.card("r1-n00")["problem"])

    def test_another_clique_is_another_partition(self, site: Site, injector: Injector) -> None:
        home = site.homes["r1-n01"]
        moved = f"{home.rpartition('.')[0]}.7"
        with injector.during(ChangeClique(nodes=("r1-n01",), clique=7)):
            seen = site.until(lambda seen: seen.partition(moved).get("summary", {}).get("nodes") == "1/1")
            assert seen.card("r1-n01")["partition"] == moved
            label = "nvidia.com/gpu.clique"
            site.until(lambda seen: seen.node("r1-n01")["metadata"]["labels"].get(label) == moved)

    def test_a_reloaded_driver_has_another_major_and_version(self, site: Site, injector: Injector) -> None:
        old = site.look().card("r1-n01")["driverVersion"]
        injector.begin(ReloadDriver(nodes=("r1-n01",), major=241, version="590.1"))
        site.until(lambda seen: seen.card("r1-n01")["driverVersion"] == "590.1" and not seen.peers("r1-n01"))
        injector.begin(ReloadDriver(nodes=("r1-n01",), major=242, version=old))
        site.until_healthy()
        until_running(site, site.start_pod("r1-n01"))
        specs = (site.cluster.nodes["r1-n01"].root.path / "run/cdi").glob("imex-dra.io-channel_*.json")
        assert [majors(spec) for spec in specs] == [{242}]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def majors(spec: Path) -> set[int]:
    devices = json.loads(spec.read_text())["devices"]
    return {node["major"] for device in devices for node in device["containerEdits"]["deviceNodes"]}


class TestApi:
    @pytest.mark.parametrize(
        ("fault", "words"),
        [
            (FailApi(nodes=("r1-n00",), share=0.5, code=500), "a fault answers 500"),
            (ThrottleApi(nodes=("r1-n00",), share=0.7, retry_after=0), "a fault answers 429"),
        ],
        ids=["errors", "throttled"],
    )
    def test_a_pod_starts_although_the_api_server_is_unwell(
        self, site: Site, injector: Injector, fault: AnyFault, words: str
    ) -> None:
        with injector.during(fault):
            until_running(site, site.start_pod("r1-n00", claim=False))  # a failed prepare waits for a minute
            site.until(lambda seen: words in site.log("crew") + site.log("kubelets"))

    def test_in_a_storm_of_410_nodes_list_again_and_again_and_pods_start(
        self, site: Site, injector: Injector
    ) -> None:
        before = watches(site, "r1-n02")
        with injector.during(ExpireWatches(nodes=("r1-n02",), every="300ms")):
            until_running(site, site.start_pod("r1-n02"))
            site.until(lambda seen: watches(site, "r1-n02") > before + 10)

    def test_a_node_whose_connections_are_refused_says_so(self, site: Site, injector: Injector) -> None:
        before = len(site.log("kubelets"))
        with injector.during(CutApi(nodes=("r1-n02",), refuse=True)):
            late = site.start_pod("r1-n02")
            site.until(lambda seen: "no answer from 127.0.0.1" in site.log("kubelets")[before:])
            assert site.look().pod(late)["status"]["phase"] == "Pending"
        until_running(site, late)


def watches(site: Site, node: str) -> int:
    """How many watches from nothing the node's programs have begun, as the API server's audit log says."""
    lines = site.cluster.audit_log.read_text().splitlines()
    return sum("sendInitialEvents=true" in line and f'"{node}"' in line for line in lines)
