"""The files that nvidia-imex reads, and the member list they are made of."""

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
from imex_dra.imex.files import Files
from imex_dra.imex.membership import Membership, membership_of

LIST = Membership("7b.1", 5, 3, "imex-0a1b2c3d-%03d", {"0": "10.0.0.1", "2": "10.0.0.3"}, 0, "10.0.0.1")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "etc/nvidia-imex", tmp_path / "hosts")


def settings(tmp_path: Path) -> dict[str, str]:
    lines = (tmp_path / "etc/nvidia-imex/config.cfg").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_the_nodes_file_names_every_slot_whoever_is_there(files: Files, tmp_path: Path) -> None:
    files.write(LIST)
    nodes = (tmp_path / "etc/nvidia-imex/nodes_config.cfg").read_text()
    assert nodes == "imex-0a1b2c3d-000\nimex-0a1b2c3d-001\nimex-0a1b2c3d-002\n"
    files.write(structs.replace(LIST, addresses={}, own_slot=2))
    assert (tmp_path / "etc/nvidia-imex/nodes_config.cfg").read_text() == nodes


def test_both_addresses_are_explicit_and_nothing_runs_in_the_background(files: Files, tmp_path: Path) -> None:
    files.write(LIST)
    written = settings(tmp_path)
    assert written["BIND_INTERFACE_IP"] == written["IMEX_CMD_BIND_INTERFACE_IP"] == "10.0.0.1"
    assert (written["SERVER_PORT"], written["IMEX_CMD_PORT"]) == ("50000", "50005")
    assert (written["DAEMONIZE"], written["LOG_FILE_NAME"]) == ("0", "")
    assert written["IMEX_WAIT_FOR_QUORUM"] == "RECOVERY"
    assert Path(written["IMEX_NODE_CONFIG_FILE"]).exists()


def test_every_slot_has_a_line_in_the_hosts_file_and_an_empty_one_resolves_to_nobody(
    files: Files, tmp_path: Path
) -> None:
    files.write(LIST)
    assert (tmp_path / "hosts").read_text() == (
        "10.0.0.1\timex-0a1b2c3d-000\n127.0.0.2\timex-0a1b2c3d-001\n10.0.0.3\timex-0a1b2c3d-002\n"
    )


FOREIGN = (
    "# made by somebody\n127.0.0.1 localhost\n\n::1\tlocalhost ip6-localhost # six\n10.9.9.9 imex-0a1b2c3d-0000"
)


@pytest.mark.parametrize("end", ["\n", ""], ids=["ended by a newline", "not ended"])
def test_lines_of_others_are_kept_and_ours_are_replaced_in_the_same_file(
    files: Files, tmp_path: Path, end: str
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(FOREIGN + end)
    inode = hosts.stat().st_ino
    files.write_hosts(LIST)
    files.write_hosts(structs.replace(LIST, addresses={"1": "10.0.0.22"}))
    ours = "127.0.0.2\timex-0a1b2c3d-000\n10.0.0.22\timex-0a1b2c3d-001\n127.0.0.2\timex-0a1b2c3d-002\n"
    assert hosts.read_text() == f"{FOREIGN}\n{ours}"
    assert hosts.stat().st_ino == inode


def test_a_line_of_others_that_is_no_text_survives(files: Files, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(b"10.0.0.9 caf\xe9\n")
    files.write_hosts(LIST)
    assert (tmp_path / "hosts").read_bytes().startswith(b"10.0.0.9 caf\xe9\n10.0.0.1\t")


def test_a_shorter_content_leaves_nothing_of_the_longer_one(files: Files, tmp_path: Path) -> None:
    files.write_hosts(structs.replace(LIST, addresses={"0": "fd00:0123:4567:89ab:cdef:0123:4567:89ab"}))
    files.write_hosts(structs.replace(LIST, addresses={}))
    assert (tmp_path / "hosts").read_text().splitlines() == [
        f"127.0.0.2\timex-0a1b2c3d-{slot:03d}" for slot in range(3)
    ]


def test_a_hosts_file_that_is_right_already_is_not_touched(files: Files, tmp_path: Path) -> None:
    files.write_hosts(LIST)
    (tmp_path / "hosts").chmod(0o444)
    before = (tmp_path / "hosts").stat().st_mtime_ns
    files.write_hosts(LIST)
    assert (tmp_path / "hosts").stat().st_mtime_ns == before


def partition(*members: Member) -> NVLinkPartition:
    return NVLinkPartition(
        AnnotatedMeta(name="7b.1"),
        NVLinkPartitionSpec(slots=3, name_format="imex-0a1b2c3d-%03d"),
        NVLinkPartitionStatus(generation=5, members=members),
    )


def test_the_list_is_of_all_members_that_stay_in_whatever_state() -> None:
    members = [Member(f"n{slot}", slot, f"10.0.0.{slot + 1}", state) for slot, state in enumerate(MemberState)]
    left = {member.slot for member in members if member.state is MemberState.LEAVING}
    made = membership_of(partition(*members), "n0")
    assert made is not None
    assert made.addresses == {str(m.slot): m.address for m in members if m.slot not in left}
    assert (made.own_slot, made.own_address, made.generation) == (0, "10.0.0.1", 5)
    assert (made.slots, made.name_format, made.partition) == (3, "imex-0a1b2c3d-%03d", "7b.1")


@pytest.mark.parametrize("members", [(), (Member("n1", 0, "10.0.0.1", MemberState.LEAVING),)])
def test_who_is_no_member_or_leaves_has_no_list(members: tuple[Member, ...]) -> None:
    assert membership_of(partition(*members), "n1") is None
