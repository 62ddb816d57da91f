import socket

import pytest

from imex_dra.sandbox.kubernetes.ports import ReservedPort, without_delay


def test_a_reserved_port_is_shared_with_its_server_and_with_nobody_else() -> None:
    port = ReservedPort()
    with socket.socket() as server, socket.socket() as stranger:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", port.number))
        with pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port.number))
    port.release()


def accepted_delays(listening: socket.socket) -> bool:
    with listening, socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
        return not accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_what_a_socket_without_delay_accepts_sends_at_once() -> None:
    assert accepted_delays(socket.create_server(("127.0.0.1", 0)))
    assert not accepted_delays(without_delay(socket.create_server(("127.0.0.1", 0))))
