"""Messages between a launcher and the ranks of one host, on a connected socket."""

import socket

from imex_dra.softimex.frames import Decoder, Message, encode


class Wire:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = Decoder()
        self._messages: list[Message] = []

    def fileno(self) -> int:
        return self._sock.fileno()

    def patience(self, seconds: float | None) -> None:
        """How long one `send` or `receive` may take."""
        self._sock.settimeout(seconds)

    def send(self, message: Message) -> None:
        self._sock.sendall(encode(message))

    def receive(self) -> Message | None:
        """Waits for a message; None if the other end is gone."""
        while not self._messages:
            arrived = self.arrived()
            if arrived is None:
                return None
            self._messages += arrived
        return self._messages.pop(0)

    def arrived(self) -> list[Message] | None:
        """What can be read in one go, perhaps no whole message; None at the end."""
        waiting, self._messages = self._messages, []
        if waiting:
            return waiting
        data = self._sock.recv(65536)
        return self._decoder.feed(data) if data else None

    def close(self) -> None:
        self._sock.close()
