"""Containers without processes, for racks with hundreds of nodes: each costs one timer.

By default a hollow container runs until it is terminated, and then exits at once with code 0. An annotation of the
pod changes that:

    hollow.sandbox.imex-dra.io/<container>: '{"runs": 2, "code": 3, "ends": 0.5}'

exits after 2 s with code 3; if it is terminated before that, it exits half a second later.
"""

import asyncio
from pathlib import Path

import msgspec
from msgspec import Struct

from imex_dra.base.errors import Rejected
from imex_sandbox.kubelet.containerexec import ExecCommand, ExecSession
from imex_sandbox.kubelet.runtime import ContainerConfig, ExitStatus, RunningContainer

ANNOTATION = "hollow.sandbox.imex-dra.io/"
SIGKILL_CODE = 137


class HollowBehavior(Struct, frozen=True, forbid_unknown_fields=True):
    """The value of the annotation; times are in seconds."""

    runs: float | None = None
    code: int = 0
    ends: float = 0.0


class HollowContainer:
    def __init__(self, behavior: HollowBehavior) -> None:
        self._behavior = behavior
        self._exit: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()
        self._terminating = False
        if behavior.runs is not None:
            self._exit_after(behavior.runs)

    async def wait(self) -> ExitStatus:
        return await self._exit

    def terminate(self) -> None:
        if not self._terminating:
            self._terminating = True
            self._exit_after(self._behavior.ends)

    def kill(self) -> None:
        self._exit_with(SIGKILL_CODE)

    async def exec(self, command: ExecCommand) -> ExecSession:
        raise Rejected(f"cannot execute {command.argv[0]}: hollow containers have no processes")

    def _exit_after(self, delay: float) -> None:
        asyncio.get_running_loop().call_later(delay, self._exit_with, self._behavior.code)

    def _exit_with(self, code: int) -> None:
        if not self._exit.done():
            self._exit.set_result(ExitStatus(code))


class HollowLauncher:
    runs_processes = False

    async def launch(self, config: ContainerConfig, log: Path) -> RunningContainer:
        return HollowContainer(_behavior(config))


def _behavior(config: ContainerConfig) -> HollowBehavior:
    key = f"{ANNOTATION}{config.container.name}"
    value = config.pod.metadata.annotations.get(key)
    if value is None:
        return HollowBehavior()
    try:
        return msgspec.json.decode(value, type=HollowBehavior)
    except msgspec.MsgspecError as error:
        raise Rejected(f"annotation {key}: {error}") from error
