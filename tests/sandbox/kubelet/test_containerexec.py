"""The streams of commands that are executed in containers."""

import asyncio
import os

from imex_sandbox.kubelet.containerexec import terminal_streams


async def test_the_output_of_a_terminal_can_be_read_after_its_command_exited() -> None:
    ours, theirs = os.openpty()
    reader, writer = await terminal_streams(ours)
    os.write(theirs, b"hello\n")
    os.close(theirs)
    await asyncio.sleep(0.1)  # the terminal reports the end of its command meanwhile
    assert await reader.read() == b"hello\r\n"
    writer.close()
