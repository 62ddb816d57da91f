"""The files that nvidia-imex reads, and the member list they are generated from."""

from pathlib import Path

import pytest
from msgspec import structs

from imex_dra.api.meta import AnnotatedMeta
from imex_dra.api.nvlinkpartition import (
    Member,
    MemberState,
    NVLinkPartition,
    NVLinkPartitionSpec,
    NVLinkPartitionStatus,
)
from imex_dra.imex.files import ImexFiles
from imex_dra.imex.memberlist import MemberList, member_list_of

LIST = MemberList("7b.1", 5, 3, "imex-0a1b2c3d-%03d", {"0": "10.0.0.1", "2": "10.0.0.3"}, 0, "10.0.0.1")


@pytest.fixture
def files(tmp_path: Path) -> ImexFiles:
    return ImexFiles(tmp_path / "etc/nvidia-imex", tmp_path / "hosts")


def settings(tmp_path: Path) -> dict[str, str]:
    lines = (tmp_path / "etc/nvidia-imex/config.cfg").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_the_nodes_file_names_every_index_whether_it_has_a_member_or_not(files: ImexFiles, tmp_path: Path) -> None:
    files.write(LIST)
    nodes = (tmp_path / "etc/nvidia-imex/nodes_config.cfg").read_text()
    assert nodes == "imex-0a1b2c3d-000\nimex-0a1b2c3d-001\nimex-0a1b2c3d-002\n"
    files.write(structs.replace(LIST, addresses={}, own_index=2))
    assert (tmp_path / "etc/nvidia-imex/nodes_config.cfg").read_text() == nodes


def test_the_daemon_binds_to_the_node_address_and_stays_in_the_foreground(
    files: ImexFiles, tmp_path: Path
) -> None:
    files.write(LIST)
    written = settings(tmp_path)
    assert written["BIND_INTERFACE_IP"] == written["IMEX_CMD_BIND_INTERFACE_IP"] == "10.0.0.1"
    assert (written["SERVER_PORT"], written["IMEX_CMD_PORT"]) == ("50000", "50005")
    assert (written["DAEMONIZE"], written["LOG_FILE_NAME"]) == ("0", "")
    assert written["IMEX_WAIT_FOR_QUORUM"] == "RECOVERY"
    assert Path(written["IMEX_NODE_CONFIG_FILE"]).exists()


def test_the_hosts_file_names_every_index_and_an_unused_one_resolves_to_loopback(
    files: ImexFiles, tmp_path: Path
) -> None:
    files.write(LIST)
    assert (tmp_path / "hosts").read_text() == (
        "10.0.0.1\timex-0a1b2c3d-000\n127.0.0.2\timex-0a1b2c3d-001\n10.0.0.3\timex-0a1b2c3d-002\n"
    )


OTHER_LINES = (
    "# written by another program\n127.0.0.1 localhost\n\n::1\tlocalhost ip6-localhost # six\n"
    "10.9.9.9 imex-0a1b2c3d-0000"
)


@pytest.mark.parametrize("end", ["\n", ""], ids=["with a final newline", "without a final newline"])
def test_lines_of_other_programs_are_kept_and_ours_are_replaced_in_place(
    files: ImexFiles, tmp_path: Path, end: str
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(OTHER_LINES + end)
    inode = hosts.stat().st_ino
    files.write_hosts(LIST)
    files.write_hosts(structs.replace(LIST, addresses={"1": "10.0.0.22"}))
    ours = "127.0.0.2\timex-0a1b2c3d-000\n10.0.0.22\timex-0a1b2c3d-001\n127.0.0.2\timex-0a1b2c3d-002\n"
    assert hosts.read_text() == f"{OTHER_LINES}\n{ours}"
    assert hosts.stat().st_ino == inode


def test_lines_of_other_programs_that_are_not_utf_8_are_kept(files: ImexFiles, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(b"10.0.0.9 caf\xe9\n")
    files.write_hosts(LIST)
    assert (tmp_path / "hosts").read_bytes().startswith(b"10.0.0.9 caf\xe9\n10.0.0.1\t")


def test_shorter_content_leaves_nothing_of_longer_content(files: ImexFiles, tmp_path: Path) -> None:
    files.write_hosts(structs.replace(LIST, addresses={"0": "fd00:0123:4567:89ab:cdef:0123:4567:89ab"}))
    files.write_hosts(structs.replace(LIST, addresses={}))
    assert (tmp_path / "hosts").read_text().splitlines() == [
        f"127.0.0.2\timex-0a1b2c3d-{index:03d}" for index in range(3)
    ]


def test_an_up_to_date_hosts_file_is_not_written(files: ImexFiles, tmp_path: Path) -> None:
    files.write_hosts(LIST)
    (tmp_path / "hosts").chmod(0o444)
    before = (tmp_path / "hosts").stat().st_mtime_ns
    files.write_hosts(LIST)
    assert (tmp_path / "hosts").stat().st_mtime_ns == before


def partition(*members: Member) -> NVLinkPartition:
    return NVLinkPartition(
        AnnotatedMeta(name="7b.1"),
        NVLinkPartitionSpec(max_nodes=3, name_format="imex-0a1b2c3d-%03d"),
        NVLinkPartitionStatus(generation=5, members=members),
    )


def test_the_list_contains_all_members_but_those_that_leave() -> None:
    members = [
        Member("n0", 0, "10.0.0.1", MemberState.READY),
        Member("n1", 1, "10.0.0.2", MemberState.LEAVING),
        Member("n2", 2, "10.0.0.3", MemberState.JOINING),
        Member("n3", 3, "10.0.0.4", MemberState.NOT_READY),
        Member("n4", 4, "10.0.0.5", MemberState.UNKNOWN),
    ]
    addresses = {"0": "10.0.0.1", "2": "10.0.0.3", "3": "10.0.0.4", "4": "10.0.0.5"}
    assert member_list_of(partition(*members), "n0") == structs.replace(LIST, addresses=addresses)


@pytest.mark.parametrize("members", [(), (Member("n1", 0, "10.0.0.1", MemberState.LEAVING),)])
def test_a_node_that_is_not_a_member_or_leaves_has_no_list(members: tuple[Member, ...]) -> None:
    assert member_list_of(partition(*members), "n1") is None
