"""nvidia-imex-ctl without a process for each question.

Thirty-six agents that each start a ctl every few seconds would take half a core of a laptop. The questions, the
answers and the sockets are the soft ctl's own; only the process is saved.
"""

import asyncio
from concurrent.futures import Executor
from pathlib import Path

from imex_dra.imex.ctl import Ctl
from imex_dra.softimex.ctl import answers
from imex_dra.softimex.errors import SoftImexError
from imex_dra.softimex.noderoot import NodeRoot


class InProcessCtl(Ctl):
    """`threads` are its own: whoever asks a daemon that hangs waits, and nobody else must."""

    def __init__(self, root: Path, config: Path, threads: Executor) -> None:
        super().__init__((), config)
        self._root = NodeRoot(root)
        self._threads = threads

    async def _ask(self, *flags: str) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._answer, flags)

    def _answer(self, flags: tuple[str, ...]) -> bytes:
        try:
            return "\n".join(answers(["-c", str(self._config), *flags], self._root)).encode()
        except (SoftImexError, OSError):
            return b""
