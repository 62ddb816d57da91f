"""The files that nvidia-imex reads, and the member list they are generated from."""

from pathlib import Path
from typing import Any

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
from imex_dra.imex.config import Identity, generation_in, hosts_file, identity_of
from imex_dra.imex.memberlist import MemberList, member_list_of

LIST = MemberList("7b.1", 5, 3, "imex-0a1b2c3d-%03d", {0: "10.0.0.1", 2: "10.0.0.3"}, 0, "10.0.0.1")


IDENTITY = identity_of(LIST, "RECOVERY")


def settings(identity: Identity) -> dict[str, str]:
    text = identity.config_file(
        nodes_file=Path("/run/nodes.cfg"), command_socket=Path("/run/ctrl.sock"), tls_directory=Path("/run/tls")
    )
    return dict(line.split("=", 1) for line in text.splitlines())


def test_the_nodes_file_names_every_index_whether_it_has_a_member_or_not() -> None:
    assert IDENTITY.nodes_file() == "imex-0a1b2c3d-000\nimex-0a1b2c3d-001\nimex-0a1b2c3d-002\n"


def test_the_daemon_binds_to_the_node_address_and_stays_in_the_foreground() -> None:
    written = settings(IDENTITY)
    assert written["BIND_INTERFACE_IP"] == written["IMEX_CMD_BIND_INTERFACE_IP"] == "10.0.0.1"
    assert (written["SERVER_PORT"], written["IMEX_CMD_PORT"]) == ("50000", "50005")
    assert (written["DAEMONIZE"], written["LOG_FILE_NAME"]) == ("0", "")
    assert written["IMEX_WAIT_FOR_QUORUM"] == "RECOVERY"
    assert written["IMEX_NODE_DISCONNECTED_GRACE_TIME"] == "600"
    assert written["IMEX_NODE_CONFIG_FILE"] == "/run/nodes.cfg"


def test_tls_uses_the_files_of_the_secret_for_both_sides_and_one_name_for_all_daemons() -> None:
    assert not [key for key in settings(IDENTITY) if "AUTH" in key]
    written = settings(identity_of(LIST, "RECOVERY", tls=True))
    assert (
        written.items()
        >= {
            "IMEX_ENABLE_AUTH_ENCRYPTION": "1",
            "IMEX_AUTH_ENCRYPTION_MODE": "SSL_TLS",
            "IMEX_AUTH_SOURCE": "FILE",
            "IMEX_SERVER_KEY": "/run/tls/tls.key",
            "IMEX_SERVER_CERT": "/run/tls/tls.crt",
            "IMEX_SERVER_CERT_AUTH": "/run/tls/ca.crt",
            "IMEX_CLIENT_KEY": "/run/tls/tls.key",
            "IMEX_CLIENT_CERT": "/run/tls/tls.crt",
            "IMEX_CLIENT_CERT_AUTH": "/run/tls/ca.crt",
            "IMEX_SECURITY_TARGET_OVERRIDE": "imex-daemon",
        }.items()
    )


def test_the_name_of_an_identity_is_that_of_everything_that_is_read_only_at_start() -> None:
    others = [
        changed(partition="7b.2"),
        changed(max_nodes=4),
        changed(name_format="imex-ffffffff-%03d"),
        changed(own_index=2),
        changed(own_address="10.0.0.9"),
    ]
    names = [
        IDENTITY.name,
        identity_of(LIST, "NONE").name,
        identity_of(LIST, "RECOVERY", tls=True).name,
        *(identity_of(each, "RECOVERY").name for each in others),
    ]
    assert len(set(names)) == len(names)
    same = changed(generation=6, addresses={0: "10.0.0.1", 1: "10.0.0.2"})
    assert identity_of(same, "RECOVERY").name == IDENTITY.name


def changed(**facts: Any) -> MemberList:
    return structs.replace(LIST, **facts)


def test_the_hosts_file_names_every_index_and_an_unused_one_resolves_to_loopback() -> None:
    hosts = hosts_file(LIST)
    assert [line.split() for line in hosts.content.splitlines()] == [
        ["#", "generation", "5", "of", "7b.1"],
        ["127.0.0.1", "localhost"],
        ["10.0.0.1", "imex-0a1b2c3d-000"],
        ["127.0.0.2", "imex-0a1b2c3d-001"],
        ["10.0.0.3", "imex-0a1b2c3d-002"],
    ]


def test_the_hosts_files_of_one_partition_have_one_size() -> None:
    longest = "fd00:0123:4567:89ab:cdef:0123:4567:89ab"
    lists = [LIST, changed(addresses={}), changed(addresses={0: longest}), changed(generation=2**63 - 1)]
    assert len({len(hosts_file(each).content) for each in lists}) == 1


@pytest.mark.parametrize("generation", [0, 5, 2**63 - 1])
def test_the_title_of_a_hosts_file_tells_the_generation_in_its_partition(generation: int) -> None:
    title = hosts_file(changed(generation=generation)).title
    assert generation_in(title, "7b.1") == generation
    assert generation_in(title, "7b.2") == 0


@pytest.mark.parametrize("title", ["", "127.0.0.1 localhost", "# generation  of 7b.1", "# generation 5 of 7b.1 x"])
def test_any_other_title_tells_nothing(title: str) -> None:
    assert generation_in(title, "7b.1") == 0


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
    addresses = {0: "10.0.0.1", 2: "10.0.0.3", 3: "10.0.0.4", 4: "10.0.0.5"}
    found = member_list_of(partition(*members), "n0")
    assert found == structs.replace(LIST, addresses=addresses, possible_importers=(3, 4))


def test_a_member_that_was_never_ready_or_is_suspended_is_no_possible_importer() -> None:
    states = [
        MemberState.READY,
        MemberState.JOINING,
        MemberState.SUSPENDED,
        MemberState.READY,
        MemberState.UNKNOWN,
    ]
    members = [Member(f"n{index}", index, f"10.0.0.{index}", state) for index, state in enumerate(states)]
    found = member_list_of(partition(*members), "n0")
    assert found is not None
    assert found.possible_importers == (3, 4)


@pytest.mark.parametrize("members", [(), (Member("n1", 0, "10.0.0.1", MemberState.LEAVING),)])
def test_a_node_that_is_not_a_member_or_leaves_has_no_list(members: tuple[Member, ...]) -> None:
    assert member_list_of(partition(*members), "n1") is None
