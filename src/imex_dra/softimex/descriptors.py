"""Open files on their way between processes, over unix sockets."""

import array
import os
import socket

_SIZE = array.array("i").itemsize


def receive(sock: socket.socket, most: int) -> tuple[bytes, int | None]:
    """Bytes, and the descriptor that came with them; the kernel closes what does not fit in the room for one."""
    data, ancillary, _, _ = sock.recvmsg(most, socket.CMSG_LEN(_SIZE), socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(content[: len(content) - len(content) % _SIZE])
    for surplus in found[1:]:
        os.close(surplus)
    return data, found[0] if found else None


def send(sock: socket.socket, data: bytes, descriptor: int) -> int:
    return socket.send_fds(sock, [data], [descriptor])


def close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
