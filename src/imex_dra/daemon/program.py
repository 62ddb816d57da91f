"""`imex daemon` as a process: where its files are, and an orderly end on SIGTERM."""

from collections.abc import Sequence
from pathlib import Path

from imex_dra.daemon.agent import Agent
from imex_dra.imex.ctl import Ctl
from imex_dra.imex.files import Files


async def run(
    *, directory: Path, hosts: Path, socket: Path, command: Sequence[str], ctl_command: Sequence[str]
) -> None:
    files = Files(directory, hosts)
    ctl = Ctl(ctl_command, files.config)
    agent = Agent(files, directory / "membership.json", command=command, ctl=ctl)
    directory.mkdir(parents=True, exist_ok=True)
    await agent.run(socket)
