"""Which process has a port that nvidia-imex needs."""

import os
import socket
from pathlib import Path

import pytest

from imex_dra.hardware.ports import PortHolder, find_port_holder, local_sockets

PROC = Path("/proc")
TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:C350 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1001 1 0 100 0 0 10 0
   1: 0100007F:0016 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 1002 1 0 100 0 0 10 0
   2: 0100007F:C355 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 1003 1 0 100 0 0 10 0
   3: 0100007F:C355 0100007F:0051 06 00000000:00000000 00:00000000 00000000     0        0 0 1 0 100 0 0 10 0
   4: 0100007F:C350 0100007F:0052 05 00000000:00000000 00:00000000 00000000     0        0 0 1 0 100 0 0 10 0
   5: unreadable
"""


def test_sockets_are_found_by_their_local_port_unless_they_have_ended() -> None:
    assert local_sockets(TABLE, (50000, 50005)) == {"1001": 50000, "1003": 50005}
    assert local_sockets("", (50000,)) == {}


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def test_a_real_listener_is_named_with_its_process_unless_it_is_ours(family: socket.AddressFamily) -> None:
    with socket.socket(family) as listener:
        try:
            listener.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        listener.listen()
        port = listener.getsockname()[1]
        program = Path("/proc/self/comm").read_text().strip()
        assert find_port_holder(PROC, (port,), []) == PortHolder(port, os.getpid(), program)
        assert find_port_holder(PROC, (port,), [os.getpid()]) is None
    assert find_port_holder(PROC, (port,), []) is None


def test_a_process_that_is_not_found_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "1/net").mkdir(parents=True)
    (tmp_path / "1/net/tcp6").write_text(TABLE)
    assert find_port_holder(tmp_path, (50005,), []) == PortHolder(50005)
