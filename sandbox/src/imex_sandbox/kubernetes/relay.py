"""Relays TCP connections from a node's network namespace to the API server on the loopback of the host.

In the namespace it listens on the loopback port of the API server, for the kubelet and pods with host network,
and on the cluster IP of the Service `kubernetes`, for all pods. It binds its sockets in the namespace of the node
and then enters the namespace of the host to connect from there. Stopping it disconnects the node from the API
server.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from pathlib import Path

from imex_sandbox.kubernetes.apiserver import SERVICE_ADDRESS
from imex_sandbox.kubernetes.binaries import find
from imex_sandbox.kubernetes.machine import Machine
from imex_sandbox.process import Process

_CLONE_NEWNET = 0x40000000
_CHUNK = 65536

Address = tuple[str, int]


def process(machine: Machine, target: str, log: Path) -> Process:
    """It shares only the network namespace of the machine, not its files and processes."""
    machine.run(find("ip"), "address", "add", f"{SERVICE_ADDRESS}/32", "dev", "lo")
    nsenter = ["nsenter", f"--target={machine.pid}", "--net", "--", sys.executable, "-m", __spec__.name]
    arguments = [f"/proc/{os.getpid()}/ns/net", target, target, f"{SERVICE_ADDRESS}:443"]
    return Process("relay", [*nsenter, *arguments], log=log)


def disable_nagle(listening: socket.socket) -> socket.socket:
    """Let accepted connections send small segments at once instead of up to 40 ms later.

    On Linux, accepted connections inherit TCP_NODELAY. asyncio sets it only on sockets whose protocol is TCP, and
    sockets from `socket.socket()` and `socket.create_server()` have protocol 0.
    """
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


async def relay(listening: list[socket.socket], target: Address) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            target_reader, target_writer = await asyncio.open_connection(*target)
            with contextlib.closing(target_writer):
                await asyncio.gather(_copy(reader, target_writer), _copy(target_reader, writer))

    servers = [await asyncio.start_server(accept, sock=one) for one in listening]
    await asyncio.gather(*(server.serve_forever() for server in servers))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()


def enter_network(path: str) -> None:
    """`os.setns` requires Python 3.12."""
    descriptor = os.open(path, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns", path)
    os.close(descriptor)


def main() -> None:
    """Arguments: the network namespace to connect from, the target, and the addresses to listen on."""
    namespace, target, *addresses = sys.argv[1:]
    listening = [disable_nagle(socket.create_server(_parse(address))) for address in addresses]
    # After the sockets are bound: they stay in the namespace of the node, new connections start from this one.
    enter_network(namespace)
    asyncio.run(relay(listening, _parse(target)))


def _parse(text: str) -> Address:
    host, port = text.rsplit(":", 1)
    return host, int(port)


if __name__ == "__main__":
    main()
