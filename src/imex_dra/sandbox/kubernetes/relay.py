"""Carries connections from inside a node to the API server on the host's loopback.

Inside, it listens where the API server seems to be: at its loopback port, for the kubelet and pods on the host
network, and at the address of the Service `kubernetes`, for all pods. It binds in the node's network namespace
and then goes back to the host's, in which it connects. To stop it is to cut the node from the API server.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from pathlib import Path

from imex_dra.sandbox.kubernetes.apiserver import SERVICE_ADDRESS
from imex_dra.sandbox.kubernetes.binaries import find
from imex_dra.sandbox.kubernetes.machine import Machine
from imex_dra.sandbox.kubernetes.ports import without_delay
from imex_dra.sandbox.process import Process

_CLONE_NEWNET = 0x40000000
_CHUNK = 65536

Address = tuple[str, int]


def process(machine: Machine, target: str, log: Path) -> Process:
    """Only the network is the machine's; it sees our files and processes."""
    machine.run(find("ip"), "address", "add", f"{SERVICE_ADDRESS}/32", "dev", "lo")
    entered = ["nsenter", f"--target={machine.pid}", "--net", "--", sys.executable, "-m", __spec__.name]
    words = [f"/proc/{os.getpid()}/ns/net", target, target, f"{SERVICE_ADDRESS}:443"]
    return Process("relay", [*entered, *words], log=log)


async def relay(listening: list[socket.socket], target: Address) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*target)
            with contextlib.closing(far_writer):
                await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    servers = [await asyncio.start_server(accept, sock=one) for one in listening]
    await asyncio.gather(*(server.serve_forever() for server in servers))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()


def enter_network(path: str) -> None:
    """`os.setns` came with Python 3.12 only."""
    descriptor = os.open(path, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns", path)
    os.close(descriptor)


def main() -> None:
    """Arguments: the network namespace to connect from, the target, the addresses to listen at."""
    home, target, *addresses = sys.argv[1:]
    listening = [without_delay(socket.create_server(_parsed(address))) for address in addresses]
    enter_network(home)
    asyncio.run(relay(listening, _parsed(target)))


def _parsed(text: str) -> Address:
    host, port = text.rsplit(":", 1)
    return host, int(port)


if __name__ == "__main__":
    main()
