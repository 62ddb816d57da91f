"""The description of a cluster, and the nodes that follow from it."""

import ipaddress
import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.api.nvlinknode import FabricState
from imex_dra.base.errors import Misconfigured
from imex_dra.hardware.racks import rack_nodes
from imex_sandbox.cluster.settings import flags
from imex_sandbox.profiles import DEFAULT_CLIQUE, PROFILES, Profile
from imex_sandbox.racks import Cluster, Rack, control_plane_node, layout, load, of_racks, partitions_of
from imex_sandbox.simulated import HardwareFile, to_reading
from imex_sandbox.softimex.noderoot import parse_hardware

HEAD = "apiVersion: sandbox.imex-dra.io/v1\nkind: Cluster\n"

names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)


@st.composite
def racks(draw: st.DrawFn, name: str) -> Rack:
    profile = PROFILES[draw(st.sampled_from(list(PROFILES)))]
    nodes = draw(st.none() | st.integers(1, 30))
    size = profile.nodes if nodes is None else nodes
    cuts = sorted(draw(st.sets(st.integers(1, size - 1), max_size=4))) if profile.multi_node and size > 1 else []
    edges = [0, *cuts, size]
    partitions = tuple(after - before for before, after in pairwise(edges)) if cuts else ()
    return Rack(name, profile.name, nodes, partitions)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    found = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    return Cluster(
        "sandbox.imex-dra.io/v1", "Cluster", tuple(draw(racks(name)) for name in found), name=draw(names)
    )


@given(clusters(), st.integers(0, 239))
def test_names_addresses_gpus_and_boot_ids_are_unique(cluster: Cluster, number: int) -> None:
    nodes = layout(cluster, number)
    gpus = [gpu.uuid for node in nodes for gpu in node.hardware.gpus]
    boots = [node.hardware.boot_id for node in nodes]
    for found in ([n.name for n in nodes], [n.address for n in nodes], gpus, boots):
        assert len(set(found)) == len(found)


@given(clusters(), st.integers(0, 239))
def test_addresses_are_loopback_addresses_of_the_cluster(cluster: Cluster, number: int) -> None:
    for node in layout(cluster, number):
        address = ipaddress.ip_address(node.address)
        assert address.is_loopback
        assert node.address != "127.0.0.2"
        assert node.address.split(".")[1] == str(16 + number)


@given(clusters())
def test_no_two_racks_share_a_fabric(cluster: Cluster) -> None:
    racks_by_fabric: dict[str, set[str]] = {}
    for node in layout(cluster):
        if node.hardware.partition:
            racks_by_fabric.setdefault(node.hardware.partition.partition(".")[0], set()).add(node.rack)
    assert all(len(sharing) == 1 for sharing in racks_by_fabric.values())


@given(clusters())
def test_a_rack_has_the_partitions_of_its_description(cluster: Cluster) -> None:
    for rack in cluster.racks:
        found = [partition for partition in partitions_of(cluster.name, rack) if partition]
        sizes = tuple(found.count(partition) for partition in dict.fromkeys(found))
        if rack.partitions:
            assert sizes == rack.partitions
        else:
            assert len(sizes) == PROFILES[rack.profile].multi_node


@given(clusters())
def test_the_same_file_always_gives_the_same_nodes(cluster: Cluster) -> None:
    again = msgspec.yaml.decode(msgspec.yaml.encode(cluster), type=Cluster)
    assert layout(again) == layout(cluster)


@given(clusters())
def test_the_driver_and_soft_imex_read_hardware_json_the_same_way(cluster: Cluster) -> None:
    for node in layout(cluster):
        text = msgspec.json.encode(node.hardware)
        assert msgspec.json.decode(text, type=HardwareFile) == node.hardware
        reading, soft = to_reading(node.hardware), parse_hardware(text.decode())
        assert reading.partition == soft.partition == node.hardware.partition
        assert soft.gpus == len(node.hardware.gpus) == node.profile.gpus
        assert bool(soft.problem) == (reading.fabric.state is not FabricState.OK)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_a_rack_has_the_nodes_of_its_profile_in_one_partition(profile: Profile) -> None:
    nodes = layout(of_racks(1, profile.name))
    assert len({node.hardware.partition for node in nodes}) == 1
    assert len(nodes) == profile.nodes


def test_nodes_and_gpus_of_each_profile() -> None:
    sizes = {name: (profile.nodes, profile.gpus) for name, profile in PROFILES.items()}
    assert sizes == {
        "gb200-nvl72": (18, 4),
        "gb300-nvl72": (18, 4),
        "gb200-nvl36x2": (18, 4),
        "gh200-nvl32": (16, 2),
        "vr-nvl72": (18, 4),
        "hgx-h100": (4, 8),
    }


def test_the_controller_knows_how_many_nodes_each_multi_node_profile_has() -> None:
    for profile in PROFILES.values():
        if profile.multi_node:
            assert rack_nodes(profile.product) == profile.nodes


def test_equal_racks_are_named_r0_and_r1() -> None:
    nodes = layout(of_racks(2, "gb200-nvl72"), number=3)
    assert len(nodes) == 36
    assert (nodes[0].name, nodes[0].address) == ("r0-n00", "127.19.0.10")
    assert (nodes[-1].name, nodes[-1].address) == ("r1-n17", "127.19.1.27")
    assert nodes[0].hardware.partition.endswith(f".{DEFAULT_CLIQUE}")
    assert {gpu.name for gpu in nodes[0].hardware.gpus} == {"NVIDIA GB200"}


def test_a_node_without_multi_node_nvlink_has_no_fabric() -> None:
    (node, *_) = layout(of_racks(1, "hgx-h100"))
    assert (node.hardware.fabric.state, node.hardware.partition) == (FabricState.NONE, "")


def test_two_chassis_may_form_one_fabric() -> None:
    nodes = layout(of_racks(1, "gb200-nvl36x2"))
    serials = [node.hardware.gpus[0].chassis_serial for node in nodes]
    assert [serials.count(serial) for serial in dict.fromkeys(serials)] == [9, 9]


def test_clusters_with_different_names_share_no_partition_uuid() -> None:
    one, other = (layout(of_racks(1, "gb200-nvl72", name=name)) for name in ("one", "other"))
    assert not {node.hardware.partition for node in one} & {node.hardware.partition for node in other}


def test_a_cluster_is_read_from_yaml(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        f"{HEAD}name: lab\nracks:\n- {{name: a, profile: gb200-nvl72, partitions: [9, 9]}}\n"
        "- {name: b, profile: hgx-h100, nodes: 2, driverVersion: 590.1}\n"
    )
    with pytest.raises(Misconfigured, match=re.escape("`$.racks[1].driverVersion`")):
        load(path)
    path.write_text(path.read_text().replace("590.1", "'590.1'"))
    nodes = layout(load(path))
    assert [node.name for node in nodes][-2:] == ["b-n00", "b-n01"]
    assert [node.hardware.partition.rpartition(".")[2] for node in nodes] == ["1"] * 9 + ["2"] * 9 + ["", ""]
    assert nodes[-1].hardware.driver_version == "590.1"


def test_a_rack_can_have_what_public_manifests_select_tolerate_and_request(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    rack = "{name: a, profile: gb200-nvl72, labels: {pool: x}, resources: {rdma/ib: 4}, taints: [{key: gpu, %s}]}"
    path.write_text(f"{HEAD}racks: [{rack % 'effect: NoSchedule, value: b'}]\ncontrolPlaneNode: true\n")
    cluster = load(path)
    node = layout(cluster)[-1]
    assert (node.labels, node.resources, list(map(str, node.taints))) == (
        {"pool": "x"},
        {"rdma/ib": 4},
        ["gpu=b:NoSchedule"],
    )
    extra = control_plane_node(cluster, 3)
    assert extra
    assert (extra.name, extra.address, extra.profile.gpus) == ("control-plane", "127.19.0.9", 0)
    assert list(map(str, extra.taints)) == ["node-role.kubernetes.io/control-plane:NoSchedule"]
    path.write_text(f"{HEAD}racks: [{rack % 'effect: Never'}]\n")
    with pytest.raises(Misconfigured, match=re.escape("`$.racks[0].taints[0].effect`")):
        load(path)
    path.write_text(f"{HEAD}racks: [{{name: a, profile: gb200-nvl72, resources: {{cpu: 4}}}}]\n")
    with pytest.raises(Misconfigured, match="'cpu' is no extended resource"):
        load(path)
    assert control_plane_node(of_racks(1, "gb200-nvl72")) is None


@pytest.mark.parametrize("amount", ["four", "-1", "'0.5'", "1e99999999", "''"])
def test_an_amount_of_a_resource_is_a_whole_number(tmp_path: Path, amount: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"{HEAD}racks: [{{name: a, profile: gb200-nvl72, resources: {{rdma/ib: {amount}}}}}]\n")
    with pytest.raises(Misconfigured, match=r"of rdma/ib is no whole number, .* at `\$\.racks\[0\]\.resources`"):
        load(path)
    path.write_text(f"{HEAD}racks: [{{name: a, profile: gb200-nvl72, resources: {{rdma/ib: 1k}}}}]\n")
    assert load(path).racks[0].resources == {"rdma/ib": "1k"}


def test_a_cluster_file_can_set_flags_of_the_driver(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    racks = f"{HEAD}racks: [{{name: a, profile: gb200-nvl72}}]\n"
    path.write_text(f"{racks}driver: {{suspendAfter: 5, prepareDeadline: 2.5}}\n")
    driver = load(path).driver
    assert flags(driver.controller_options) == ["--suspend-after=5"]
    assert flags(driver.node_options) == ["--prepare-deadline=2.5"]
    path.write_text(f"{racks}driver: {{publishAfter: -1}}\n")
    with pytest.raises(Misconfigured, match=re.escape("`$.driver.publishAfter`")):
        load(path)
    path.write_text(racks)
    assert not load(path).driver.controller_options | load(path).driver.node_options


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expected `object`"),
        ("racks: [", "while parsing"),
        ("apiVersion: v1\nkind: Cluster\nracks: []\n", "`$.apiVersion`"),
        (f"{HEAD}racks: []\n", "1 to 256 racks - at `$.racks`"),
        (f"{HEAD}racks: [{{name: a}}]\n", "missing required field `profile` - at `$.racks[0]`"),
        (f"{HEAD}racks: [{{name: a, profile: nvl1}}]\n", "unknown profile 'nvl1': choose one of gb200-nvl72"),
        (f"{HEAD}racks: [{{name: a, profile: nvl1}}]\n", "at `$.racks[0].profile`"),
        (f"{HEAD}racks: [{{name: a, profile: hgx-h100, color: red}}]\n", "`color` - at `$.racks[0]`"),
        (f"{HEAD}racks: [{{name: A, profile: hgx-h100}}]\n", "at `$.racks[0].name`"),
        (f"{HEAD}racks: [{{name: a, profile: hgx-h100, nodes: 0}}]\n", "at `$.racks[0].nodes`"),
        (f"{HEAD}racks: [{{name: a, profile: hgx-h100, nodes: 246}}]\n", "at `$.racks[0].nodes`"),
        (
            f"{HEAD}racks: [{{name: a, profile: hgx-h100, partitions: [4]}}]\n",
            "profile hgx-h100 has no NVLink between nodes",
        ),
        (
            f"{HEAD}racks: [{{name: a, profile: gb200-nvl72, partitions: [9, 8]}}]\n",
            "the partitions have 17 nodes, but the rack has 18",
        ),
        (f"{HEAD}racks: [{{name: a, profile: gb200-nvl72, partitions: [18, 0]}}]\n", "at least one node"),
        (f"{HEAD}name: Lab\nracks: [{{name: a, profile: hgx-h100}}]\n", "at `$.name`"),
        (
            f"{HEAD}racks: [{{name: a, profile: hgx-h100}}, {{name: a, profile: hgx-h100}}]\n",
            "there are two racks named a - at `$.racks[1].name`",
        ),
    ],
)
def test_an_error_names_the_file_and_the_path_of_the_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(Misconfigured, match=re.escape(message)) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_the_error_for_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="cannot be read: No such file"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize("number", [-1, 240])
def test_a_machine_can_run_240_clusters(number: int) -> None:
    with pytest.raises(Misconfigured, match="240 clusters"):
        layout(of_racks(1, "gb200-nvl72"), number)
