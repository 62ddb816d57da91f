"""Ports to listen on: one that stays ours over any number of restarts, and one that answers at once."""

import socket


class ReservedPort:
    """A port that stays ours from the moment it is chosen, over any number of restarts of its server.

    The reservation is a bound socket that never listens. A server that binds with SO_REUSEPORT, as kube-apiserver
    does with `--permit-port-sharing`, shares it; the kernel gives the port to nobody else meanwhile.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind((address, 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()


def without_delay(listening: socket.socket) -> socket.socket:
    """The same socket, whose connections send each piece at once instead of 40 ms after the last.

    They inherit it on Linux. asyncio sees to it only for sockets that it made itself: one of `socket.socket()` or
    `socket.create_server` does not say that it is TCP.
    """
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
