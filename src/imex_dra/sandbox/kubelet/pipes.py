"""What a child says on a pipe before it becomes something else."""

import asyncio
import os

_MOST = 4096


async def heard(descriptor: int) -> bytes:
    """The first words, or nothing if the other end is closed without any. Closes the descriptor."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        return await reader.read(_MOST)
    finally:
        transport.close()
