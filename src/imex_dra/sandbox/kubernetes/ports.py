"""A port that stays ours from the moment it is chosen, over any number of restarts of its server.

The reservation is a bound socket that never listens. A server that binds with SO_REUSEPORT, as kube-apiserver
does with `--permit-port-sharing`, shares it; the kernel gives the port to nobody else meanwhile.
"""

import socket


class ReservedPort:
    def __init__(self, address: str = "127.0.0.1") -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind((address, 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()
