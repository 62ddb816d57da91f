"""The manager of `imex node` as a process, to be killed.

    python -m tests.daemon.manager_program <directory> <ctl> <file>

It reads its member list from a JSON file, again and again, as `imex node` gets it from a watch.
"""

import asyncio
import shlex
import sys
from pathlib import Path

import msgspec

from imex_dra.daemon.manager import DaemonManager
from imex_dra.daemon.supervisor import Supervisor
from imex_dra.imex.ctl import ImexCtl
from imex_dra.imex.memberlist import MemberList


async def run(directory: Path, ctl: str, member_list: Path) -> None:
    manager = DaemonManager(Supervisor(directory), ImexCtl(shlex.split(ctl)), lambda state: None)
    managing = asyncio.create_task(manager.run())
    while not managing.done():
        manager.desire(msgspec.json.decode(member_list.read_bytes(), type=MemberList), may_write=True)
        await asyncio.sleep(0.05)
    await managing


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
