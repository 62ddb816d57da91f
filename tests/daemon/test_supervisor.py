"""The directory that `imex node` shares with the supervisor: what is written, and what is found again."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from imex_dra.base.errors import Misconfigured, Unavailable
from imex_dra.daemon.supervisor import Found, Process, Supervisor
from imex_dra.imex.config import HostsFile, hosts_file, identity_of
from imex_dra.imex.memberlist import MemberList

LIST = MemberList("7b.1", 5, 3, "imex-0a1b2c3d-%03d", {0: "10.0.0.1", 2: "10.0.0.3"}, 0, "10.0.0.1")
IDENTITY = identity_of(LIST, "RECOVERY")


@pytest.fixture
def files(tmp_path: Path) -> Supervisor:
    return Supervisor(tmp_path)


@pytest.fixture
def control(tmp_path: Path) -> Iterator[int]:
    """The end of the FIFO that the supervisor has."""
    os.mkfifo(tmp_path / "control")
    descriptor = os.open(tmp_path / "control", os.O_RDWR | os.O_NONBLOCK)
    yield descriptor
    os.close(descriptor)


def find(files: Supervisor) -> Found:
    found = files.find()
    assert found is not None
    return found


def test_without_a_reader_of_the_fifo_there_is_no_supervisor(files: Supervisor, tmp_path: Path) -> None:
    assert files.find() is None
    os.mkfifo(tmp_path / "control")
    assert files.find() is None
    with pytest.raises(Unavailable):
        files.apply()


def test_commands_are_lines_in_the_fifo(files: Supervisor, control: int) -> None:
    files.apply()
    files.reload(42)
    assert os.read(control, 100) == b"apply\nreload 42\n"


def test_commands_to_a_supervisor_that_hangs_fail_and_do_not_block(files: Supervisor, control: int) -> None:
    os.write(control, b"x" * 65536)
    with pytest.raises(BlockingIOError):
        files.apply()


def test_after_a_reboot_nothing_is_found(files: Supervisor, control: int) -> None:
    assert find(files) == Found()


def test_everything_that_was_written_is_found(files: Supervisor, control: int, tmp_path: Path) -> None:
    files.write_config(IDENTITY)
    files.write_hosts(hosts_file(LIST))
    files.set_current(IDENTITY)
    (tmp_path / "status").write_text(
        f"state=running\npid=42\nidentity={IDENTITY.name}\nhosts=# a title\nexit=3\nrestarts=7\n"
    )
    (tmp_path / "started").touch()
    os.utime(tmp_path / "started", (0, 1.5))
    assert find(files) == Found(
        process=Process.RUNNING,
        pid=42,
        running=IDENTITY,
        applied_title="# a title",
        exit_code=3,
        restarts=7,
        started_at="1970-01-01T00:00:01.500000Z",
        current=IDENTITY.name,
        configured=IDENTITY,
        hosts=hosts_file(LIST).content,
    )


def test_the_configuration_is_complete_and_refers_to_itself(files: Supervisor, tmp_path: Path) -> None:
    files.write_config(IDENTITY)
    files.set_current(IDENTITY)
    lines = (tmp_path / "current/config.cfg").read_text().splitlines()
    nodes = Path(dict(line.split("=", 1) for line in lines)["IMEX_NODE_CONFIG_FILE"])
    assert nodes.read_text() == IDENTITY.nodes_file()
    assert files.config(IDENTITY).samefile(tmp_path / "current/config.cfg")


@pytest.mark.parametrize("content", [None, b"", b'{"partition":"\xff"}', b"[]"])
def test_an_identity_that_cannot_be_read_is_unknown(
    files: Supervisor, control: int, content: bytes | None
) -> None:
    files.write_config(IDENTITY)
    files.set_current(IDENTITY)
    file = files.config(IDENTITY).with_name("identity.json")
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert (find(files).current, find(files).configured) == (IDENTITY.name, None)


def test_the_current_configuration_is_replaced_and_removed(files: Supervisor, control: int) -> None:
    other = structs.replace(IDENTITY, own_index=1)
    for identity in (IDENTITY, other):
        files.write_config(identity)
        files.set_current(identity)
        assert find(files).configured == identity
    files.remove_other_configs(other)
    assert find(files).configured == other
    for _ in range(2):
        files.set_current(None)
        assert (find(files).current, find(files).configured) == ("", None)


def test_the_hosts_file_is_rewritten_in_place(files: Supervisor, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    files.write_hosts(hosts_file(LIST))
    inode = hosts.stat().st_ino
    for member_list in (
        structs.replace(LIST, generation=6, addresses={1: "fd00:0123:4567:89ab:cdef:0123:4567:89ab"}),
        structs.replace(LIST, partition="7b.longer", max_nodes=12),
        LIST,
    ):
        files.write_hosts(hosts_file(member_list))
        assert hosts.read_text() == hosts_file(member_list).content
    assert hosts.stat().st_ino == inode


def test_a_hosts_file_that_another_program_changes_meanwhile_is_an_error(
    files: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite

    def interfere(descriptor: int, content: bytes, offset: int) -> int:
        return write(descriptor, content, offset) + write(descriptor, b"10.0.0.9 other\n", 5000)

    monkeypatch.setattr(os, "pwrite", interfere)
    with pytest.raises(Misconfigured, match="only one program may write it"):
        files.write_hosts(hosts_file(LIST))


def test_the_title_is_written_after_the_entries(
    files: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_hosts(HostsFile("# old", "entries 1\n"))
    write, contents = os.pwrite, []

    def observe(descriptor: int, content: bytes, offset: int) -> int:
        written = write(descriptor, content, offset)
        contents.append((tmp_path / "hosts").read_text())
        return written

    monkeypatch.setattr(os, "pwrite", observe)
    files.write_hosts(HostsFile("# new", "entries 2\n"))
    assert contents == ["# old\nentries 2\n", "# new\nentries 2\n"]
